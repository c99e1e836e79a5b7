//! Tests of the list commands.

use super::COMMANDS;
use crate::keys;
use crate::testing::Bench;

fn bench() -> Bench {
    Bench::new(&[COMMANDS, keys::COMMANDS, crate::string::COMMANDS])
}

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

#[test]
fn pushes_and_pops_at_both_ends() {
    let mut bench = bench();
    assert_eq!(bench.run("RPUSH l b c"), ":2");
    assert_eq!(bench.events(), ["new", "rpush"]);
    assert_eq!(bench.run("LPUSH l a z"), ":4");
    assert_eq!(bench.events(), ["lpush"]);
    assert_eq!(bench.run("LRANGE l 0 -1"), "*4 $1 z $1 a $1 b $1 c");
    assert_eq!(bench.run("LPOP l"), "$1 z");
    assert_eq!(bench.run("RPOP l"), "$1 c");
    assert_eq!(bench.run("LPOP l 5"), "*2 $1 a $1 b");
    assert_eq!(bench.events(), ["lpop", "del"]);
    assert_eq!(bench.run("EXISTS l"), ":0");
    assert_eq!(bench.propagated(), ["RPUSH l b c", "LPUSH l a z", "LPOP l", "RPOP l", "LPOP l 5"]);
}

#[test]
fn pushx_needs_a_list() {
    let mut bench = bench();
    assert_eq!(bench.run("LPUSHX l a"), ":0");
    assert_eq!(bench.run("RPUSHX l a"), ":0");
    bench.run("RPUSH l b");
    assert_eq!(bench.run("LPUSHX l a 1"), ":3");
    assert_eq!(bench.run("RPUSHX l c"), ":4");
    assert_eq!(bench.run("LRANGE l 0 -1"), "*4 $1 1 $1 a $1 b $1 c");
}

#[test]
fn pop_count_may_be_zero_or_exceed_the_length() {
    let mut bench = bench();
    assert_eq!(bench.run("LPOP l"), "$-1");
    assert_eq!(bench.run("LPOP l 1"), "*-1");
    assert_eq!(bench.run("LPOP l 0"), "*-1");
    bench.run("RPUSH l a b c");
    bench.propagated();
    assert_eq!(bench.run("RPOP l 0"), "*0");
    assert!(bench.propagated().is_empty());
    assert_eq!(bench.run("RPOP l 2"), "*2 $1 c $1 b");
    for count in ["-1", "x", "1.5", "9223372036854775808"] {
        assert_eq!(bench.run(&format!("LPOP l {count}")), "-ERR value is out of range, must be positive");
    }
    assert_eq!(bench.run("LPOP l 1 2"), "-ERR wrong number of arguments for 'lpop' command");
    assert_eq!(bench.run("RPOP l 9223372036854775807"), "*1 $1 a");
}

#[test]
fn all_commands_reject_wrong_types() {
    let mut bench = bench();
    bench.run("SET s 1");
    bench.run("RPUSH l a");
    for request in [
        "LPUSH s a",
        "RPUSHX s a",
        "LPOP s",
        "RPOP s 1",
        "LLEN s",
        "LINDEX s 0",
        "LINSERT s BEFORE a b",
        "LRANGE s 0 1",
        "LSET s 0 a",
        "LREM s 0 a",
        "LTRIM s 0 1",
        "LPOS s a",
        "LMOVE s l LEFT LEFT",
        "LMOVE l s LEFT LEFT",
        "RPOPLPUSH l s",
        "LMPOP 1 s LEFT",
        "BLPOP s 0",
        "BLMOVE s l LEFT LEFT 0",
        "BLMOVE l s LEFT LEFT 0",
        "BRPOPLPUSH s l 0",
        "BLMPOP 0 1 s LEFT",
    ] {
        assert_eq!(bench.run(request), WRONG_TYPE, "{request}");
    }
    assert_eq!(bench.run("LMOVE n s LEFT LEFT"), "$-1");
    assert_eq!(bench.run("LRANGE l 0 -1"), "*1 $1 a");
}

#[test]
fn elements_are_looked_up_by_index_and_range() {
    let mut bench = bench();
    bench.run("RPUSH l a b 3");
    assert_eq!(bench.run("LLEN l"), ":3");
    assert_eq!(bench.run("LLEN n"), ":0");
    assert_eq!(bench.run("LINDEX l -1"), "$1 3");
    assert_eq!(bench.run("LINDEX l 3"), "$-1");
    assert_eq!(bench.run("LINDEX l x"), "-ERR value is not an integer or out of range");
    assert_eq!(bench.run("LINDEX n x"), "$-1");
    assert_eq!(bench.run("LRANGE l -2 9223372036854775807"), "*2 $1 b $1 3");
    assert_eq!(bench.run("LRANGE l 2 1"), "*0");
    assert_eq!(bench.run("LRANGE n 0 x"), "-ERR value is not an integer or out of range");
    assert_eq!(bench.run("LRANGE n 0 1"), "*0");
}

#[test]
fn index_beyond_32_bits_is_rejected_except_from_the_replication_log() {
    let mut bench = bench();
    bench.run("RPUSH l a b");
    for index in ["4294967295", "9223372036854775807", "-9223372036854775808"] {
        assert_eq!(bench.run(&format!("LSET l {index} c")), "-ERR index out of range");
    }
    bench.from_log = true;
    assert_eq!(bench.run("LSET l 9223372036854775807 d"), "+OK");
    assert_eq!(bench.run("LSET l -9223372036854775808 c"), "+OK");
    assert_eq!(bench.run("LSET l 4294967298 e"), "-ERR index out of range");
    assert_eq!(bench.run("LRANGE l 0 -1"), "*2 $1 c $1 d");
}

#[test]
fn elements_are_replaced_and_inserted() {
    let mut bench = bench();
    assert_eq!(bench.run("LSET n 0 a"), "-ERR no such key");
    assert_eq!(bench.run("LINSERT n BEFORE a b"), ":0");
    bench.run("RPUSH l a b");
    assert_eq!(bench.run("LSET l -1 c"), "+OK");
    assert_eq!(bench.events(), ["lset"]);
    assert_eq!(bench.run("LSET l 2 d"), "-ERR index out of range");
    assert_eq!(bench.run("LSET l x d"), "-ERR value is not an integer or out of range");
    assert_eq!(bench.run("LINSERT l before c b"), ":3");
    assert_eq!(bench.run("LINSERT l AFTER c d"), ":4");
    assert_eq!(bench.events(), ["linsert"]);
    assert_eq!(bench.run("LINSERT l AFTER x d"), ":-1");
    assert_eq!(bench.run("LINSERT l beside c d"), "-ERR syntax error");
    assert_eq!(bench.run("LRANGE l 0 -1"), "*4 $1 a $1 b $1 c $1 d");
    assert_eq!(bench.propagated(), ["RPUSH l a b", "LSET l -1 c", "LINSERT l before c b", "LINSERT l AFTER c d"]);
}

#[test]
fn elements_are_removed_by_value_from_either_end() {
    let mut bench = bench();
    bench.run("RPUSH l a b a c a 7");
    assert_eq!(bench.run("LREM l -1 a"), ":1");
    assert_eq!(bench.run("LRANGE l 0 -1"), "*5 $1 a $1 b $1 a $1 c $1 7");
    assert_eq!(bench.run("LREM l 1 a"), ":1");
    assert_eq!(bench.run("LREM l 0 7"), ":1");
    assert_eq!(bench.run("LREM l 0 x"), ":0");
    assert!(bench.events().is_empty());
    assert_eq!(bench.run("LRANGE l 0 -1"), "*3 $1 b $1 a $1 c");
    let range = "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
    assert_eq!(bench.run("LREM l -9223372036854775808 a"), range);
    assert_eq!(bench.run("LREM l x a"), "-ERR value is not an integer or out of range");
    bench.run("LTRIM l 1 1");
    assert_eq!(bench.run("LREM l 0 a"), ":1");
    assert_eq!(bench.events(), ["lrem", "del"]);
}

#[test]
fn trimming_keeps_a_range() {
    let mut bench = bench();
    assert_eq!(bench.run("LTRIM n 0 1"), "+OK");
    bench.run("RPUSH l a b c d e");
    bench.propagated();
    assert_eq!(bench.run("LTRIM l 0 -1"), "+OK");
    assert_eq!(bench.events(), ["ltrim"]);
    assert!(bench.propagated().is_empty());
    assert_eq!(bench.run("LTRIM l 1 -2"), "+OK");
    assert_eq!(bench.run("LRANGE l 0 -1"), "*3 $1 b $1 c $1 d");
    assert_eq!(bench.run("LTRIM l 5 9"), "+OK");
    assert_eq!(bench.events(), ["ltrim", "del"]);
    assert_eq!(bench.propagated(), ["LTRIM l 1 -2", "LTRIM l 5 9"]);
}

#[test]
fn lpos_finds_positions() {
    let mut bench = bench();
    bench.run("RPUSH l a b c 1 2 3 c c");
    for (request, reply) in [
        ("LPOS l c", ":2"),
        ("LPOS l 3", ":5"),
        ("LPOS l x", "$-1"),
        ("LPOS l c RANK 2", ":6"),
        ("LPOS l c RANK -1", ":7"),
        ("LPOS l c RANK -3", ":2"),
        ("LPOS l c RANK 4", "$-1"),
        ("LPOS l c COUNT 0", "*3 :2 :6 :7"),
        ("LPOS l c COUNT 2 RANK -1", "*2 :7 :6"),
        ("LPOS l c COUNT 5 RANK 2", "*2 :6 :7"),
        ("LPOS l x COUNT 0", "*0"),
        ("LPOS l c MAXLEN 2", "$-1"),
        ("LPOS l c MAXLEN 3", ":2"),
        ("LPOS l c MAXLEN 1 RANK -1", ":7"),
        ("LPOS l c COUNT 0 MAXLEN 7", "*2 :2 :6"),
        ("LPOS n c", "$-1"),
        ("LPOS n c COUNT 1", "*0"),
        ("LPOS l c RANK", "-ERR syntax error"),
        ("LPOS l c FOO 1", "-ERR syntax error"),
        ("LPOS l c COUNT -1", "-ERR COUNT can't be negative"),
        ("LPOS l c COUNT x", "-ERR COUNT can't be negative"),
        ("LPOS l c MAXLEN -1", "-ERR MAXLEN can't be negative"),
        ("LPOS l c RANK x", "-ERR value is not an integer or out of range"),
    ] {
        assert_eq!(bench.run(request), reply, "{request}");
    }
    assert!(bench.run("LPOS l c RANK 0").starts_with("-ERR RANK can't be zero: use 1 to start"));
}

#[test]
fn lmove_moves_an_element() {
    let mut bench = bench();
    bench.run("RPUSH a 1 2 3");
    assert_eq!(bench.run("LMOVE a b LEFT RIGHT"), "$1 1");
    assert_eq!(bench.events(), ["new", "rpush", "lpop"]);
    assert_eq!(bench.run("RPOPLPUSH a b"), "$1 3");
    assert_eq!(bench.events(), ["lpush", "rpop"]);
    assert_eq!(bench.run("LMOVE a b right left"), "$1 2");
    assert_eq!(bench.events(), ["lpush", "rpop", "del"]);
    assert_eq!(bench.run("LRANGE b 0 -1"), "*3 $1 2 $1 3 $1 1");
    assert_eq!(bench.run("LMOVE b b LEFT RIGHT"), "$1 2");
    assert_eq!(bench.events(), ["rpush", "lpop"]);
    assert_eq!(bench.run("LRANGE b 0 -1"), "*3 $1 3 $1 1 $1 2");
    assert_eq!(bench.run("LMOVE a b LEFT RIGHT"), "$-1");
    assert_eq!(bench.run("LMOVE b a up RIGHT"), "-ERR syntax error");
    bench.run("RPUSH one x");
    assert_eq!(bench.run("RPOPLPUSH one one"), "$1 x");
    assert_eq!(bench.run("LLEN one"), ":1");
}

#[test]
fn keys_are_popped_in_argument_order() {
    let mut bench = bench();
    assert_eq!(bench.run("LMPOP 2 a b LEFT"), "*-1");
    bench.run("RPUSH b 1 2 3");
    bench.propagated();
    assert_eq!(bench.run("LMPOP 2 a b LEFT"), "*2 $1 b *1 $1 1");
    assert_eq!(bench.run("LMPOP 2 a b RIGHT COUNT 10"), "*2 $1 b *2 $1 3 $1 2");
    assert_eq!(bench.events(), ["rpop", "del"]);
    assert_eq!(bench.propagated(), ["LPOP b 1", "RPOP b 2"]);
    for count in ["0", "-1", "x"] {
        assert_eq!(bench.run(&format!("LMPOP {count} a LEFT")), "-ERR numkeys should be greater than 0");
        assert_eq!(bench.run(&format!("LMPOP 1 a LEFT COUNT {count}")), "-ERR count should be greater than 0");
    }
    for request in [
        "LMPOP 2 a LEFT",
        "LMPOP 1 a UP",
        "LMPOP 1 a LEFT COUNT",
        "LMPOP 1 a LEFT COUNT 1 COUNT 2",
        "LMPOP 1 a LEFT x",
        "LMPOP 9223372036854775807 a LEFT",
        "BLMPOP 0 2 a LEFT",
    ] {
        assert_eq!(bench.run(request), "-ERR syntax error", "{request}");
    }
}

#[test]
fn empty_keys_block_on_all_keys() {
    let mut bench = bench();
    assert_eq!(bench.run("BLPOP a b 0"), "+waits for List at [1, 2] until None");
    assert_eq!(bench.run("BRPOP a 0.5"), "+waits for List at [1] until Some(1700000000500)");
    assert_eq!(bench.run("BLMPOP 1 2 a b LEFT COUNT 3"), "+waits for List at [3, 4] until Some(1700000001000)");
    assert_eq!(bench.run("BLMOVE a b LEFT RIGHT 0"), "+waits for List at [1] until None");
    assert_eq!(bench.run("BRPOPLPUSH a b 2"), "+waits for List at [1] until Some(1700000002000)");
    assert!(bench.propagated().is_empty());
}

#[test]
fn non_blocking_context_gets_null() {
    let mut bench = bench();
    bench.may_block = false;
    assert_eq!(bench.run("BLPOP a b 0"), "*-1");
    assert_eq!(bench.run("BLMPOP 0 1 a LEFT"), "*-1");
    assert_eq!(bench.run("BLMOVE a b LEFT RIGHT 0"), "$-1");
    assert_eq!(bench.run("BRPOPLPUSH a b 0"), "$-1");
}

#[test]
fn immediate_pop_is_propagated_as_non_blocking_command() {
    let mut bench = bench();
    bench.run("RPUSH b 1 2 3 4 5 6");
    bench.propagated();
    assert_eq!(bench.run("BLPOP a b 0"), "*2 $1 b $1 1");
    assert_eq!(bench.run("BRPOP a b 0"), "*2 $1 b $1 6");
    assert_eq!(bench.run("BLMPOP 0 2 a b LEFT COUNT 2"), "*2 $1 b *2 $1 2 $1 3");
    assert_eq!(bench.run("BLMOVE b c left RIGHT 0"), "$1 4");
    assert_eq!(bench.run("BRPOPLPUSH b c 0"), "$1 5");
    let expected = ["LPOP b", "RPOP b", "LPOP b 2", "LMOVE b c left RIGHT", "RPOPLPUSH b c"];
    assert_eq!(bench.propagated(), expected);
}

#[test]
fn timeouts_are_checked_before_keys() {
    let mut bench = bench();
    bench.run("SET s 1");
    for command in ["BLPOP s", "BRPOP s", "BRPOPLPUSH s t", "BLMOVE s t LEFT LEFT"] {
        assert_eq!(bench.run(&format!("{command} x")), "-ERR timeout is not a float or out of range");
        assert_eq!(bench.run(&format!("{command} -1")), "-ERR timeout is negative");
    }
    assert_eq!(bench.run("BLMPOP x 1 s LEFT"), "-ERR timeout is not a float or out of range");
    assert_eq!(bench.run("BLMPOP x 0 s LEFT"), "-ERR numkeys should be greater than 0");
    assert_eq!(bench.run("BLMOVE s t up LEFT x"), "-ERR syntax error");
}

#[test]
fn settings_determine_the_encoding() {
    let mut bench = bench();
    bench.settings.encoding.list.max_listpack_size = 3;
    bench.run("RPUSH l a b c");
    assert_eq!(bench.run("OBJECT ENCODING l"), "$8 listpack");
    bench.run("RPUSH l d");
    assert_eq!(bench.run("OBJECT ENCODING l"), "$9 quicklist");
    bench.run("LPOP l 3");
    assert_eq!(bench.run("OBJECT ENCODING l"), "$8 listpack");
}
