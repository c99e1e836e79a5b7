//! Tests of SORT by its replies.

use crate::context::Collation;
use crate::testing::Bench;
use crate::{hash, keys, list, set, sort, sorted_set, string};
use kvick_resp::Version;
use std::sync::Arc;

fn bench() -> Bench {
    let mut bench = Bench::new(&[
        keys::COMMANDS,
        string::COMMANDS,
        list::COMMANDS,
        set::COMMANDS,
        hash::COMMANDS,
        sorted_set::COMMANDS,
        sort::COMMANDS,
    ]);
    bench.run("RPUSH l 3 1 2 10");
    bench.run("SADD s 3 1 2 10");
    bench.run("ZADD z 1 b 2 a 3 c");
    bench.run("MSET w_1 30 w_2 10 w_3 20 o_1 one o_2 two o_10 ten");
    bench.run("HSET h_1 weight 1 name first");
    bench.run("HSET h_2 weight 9");
    bench.propagated();
    bench
}

/// The values of an array reply, `-` for nulls.
fn sorted(bench: &mut Bench, line: &str) -> String {
    let reply = bench.run(line);
    let mut words = reply.split(' ').skip(1);
    let mut values = Vec::new();
    while let Some(head) = words.next() {
        values.push(if head == "$-1" { "-" } else { words.next().unwrap_or("?") });
    }
    values.join(" ")
}

#[test]
fn numbers_and_strings_are_ordered_differently() {
    let mut bench = bench();
    for key in ["l", "s"] {
        for (options, expected) in [
            ("", "1 2 3 10"),
            (" DESC", "10 3 2 1"),
            (" desc asc", "1 2 3 10"),
            (" ALPHA", "1 10 2 3"),
            (" alpha desc", "3 2 10 1"),
        ] {
            assert_eq!(sorted(&mut bench, &format!("SORT {key}{options}")), expected, "{key}{options}");
            assert_eq!(sorted(&mut bench, &format!("SORT_RO {key}{options}")), expected, "{key}{options}");
        }
    }
    assert_eq!(sorted(&mut bench, "SORT z ALPHA"), "a b c");
    assert_eq!(bench.run("SORT z"), "-ERR One or more scores can't be converted into double");
    assert_eq!(bench.run("SORT none"), "*0");
    bench.run("RPUSH odd 1e2 -inf inf -5 0.5 +7");
    assert_eq!(sorted(&mut bench, "SORT odd"), "-inf -5 0.5 +7 1e2 inf");
    bench.run("RPUSH same 1.0 1 01 1.00");
    assert_eq!(sorted(&mut bench, "SORT same"), "01 1 1.0 1.00");
    assert_eq!(sorted(&mut bench, "SORT same DESC"), "1.00 1.0 1 01");
    for bad in ["nan", "", "1x", " 1", "0x10"] {
        bench.run_words(&[b"DEL", b"bad"]);
        bench.run_words(&[b"RPUSH", b"bad", b"1", bad.as_bytes()]);
        assert_eq!(bench.run("SORT bad"), "-ERR One or more scores can't be converted into double", "{bad:?}");
    }
}

/// Ignores the case of letters.
#[derive(Debug)]
struct WithoutCase;

impl Collation for WithoutCase {
    fn sort_key(&self, text: &[u8]) -> Vec<u8> {
        text.to_ascii_lowercase()
    }
}

#[test]
fn strings_are_compared_by_the_locale_unless_they_are_stored() {
    let mut bench = bench();
    bench.run("RPUSH names b B a C A");
    bench.run("MSET w_a 1 w_b X w_B x w_A Y");
    assert_eq!(sorted(&mut bench, "SORT names ALPHA"), "A B C a b");
    bench.settings.collation = Some(Arc::new(WithoutCase));
    assert_eq!(sorted(&mut bench, "SORT names ALPHA"), "A a B b C");
    assert_eq!(sorted(&mut bench, "SORT_RO names ALPHA DESC"), "C b B a A");
    assert_eq!(sorted(&mut bench, "SORT names BY w_* ALPHA"), "C a b B A");
    assert_eq!(bench.run("SORT names ALPHA STORE stored"), ":5");
    assert_eq!(sorted(&mut bench, "LRANGE stored 0 -1"), "A B C a b");
}

#[test]
fn limit_truncates_the_result() {
    let mut bench = bench();
    for (limit, expected) in [
        ("0 2", "1 2"),
        ("1 2", "2 3"),
        ("3 9", "10"),
        ("4 1", ""),
        ("9 1", ""),
        ("-5 2", "1 2"),
        ("1 -1", "2 3 10"),
        ("1 -7", "2 3 10"),
        ("1 0", ""),
        ("9223372036854775807 9223372036854775807", ""),
        ("1 9223372036854775807", "2 3 10"),
    ] {
        for key in ["l", "s"] {
            assert_eq!(sorted(&mut bench, &format!("SORT {key} LIMIT {limit}")), expected, "{limit}");
        }
    }
    assert_eq!(sorted(&mut bench, "SORT l LIMIT 1 2 DESC"), "3 2");
}

#[test]
fn constant_sort_keys_keep_the_order() {
    let mut bench = bench();
    for (line, expected) in [
        ("SORT l BY nosort", "3 1 2 10"),
        ("SORT l BY nosort DESC", "10 2 1 3"),
        ("SORT l BY nosort LIMIT 1 2", "1 2"),
        ("SORT l BY nosort DESC LIMIT 1 2", "2 1"),
        ("SORT l BY nosort LIMIT 4 2", ""),
        ("SORT l BY nosort BY w_*", "3 1 2 10"),
        ("SORT z BY nosort", "b a c"),
        ("SORT z BY nosort DESC LIMIT 0 2", "c a"),
        ("SORT z BY nosort LIMIT 2 5", "c"),
        ("SORT s BY nosort", "1 2 3 10"),
        ("SORT s BY nosort DESC LIMIT 1 2", "2 3"),
    ] {
        assert_eq!(sorted(&mut bench, line), expected, "{line}");
    }
    bench.run("SADD words b c a");
    assert_eq!(sorted(&mut bench, "SORT words BY nosort"), "b c a");
    bench.run("SORT words BY nosort STORE d");
    assert_eq!(sorted(&mut bench, "LRANGE d 0 -1"), "a b c");
}

#[test]
fn sort_patterns_dereference_other_keys() {
    let mut bench = bench();
    for (line, expected) in [
        ("SORT l BY w_*", "10 2 3 1"),
        ("SORT l BY w_* DESC", "1 3 2 10"),
        ("SORT l BY w_* LIMIT 1 2", "2 3"),
        ("SORT l BY h_*->weight", "10 3 1 2"),
        ("SORT l BY o_* ALPHA", "3 1 10 2"),
        ("SORT l BY o_* ALPHA DESC", "2 10 1 3"),
        ("SORT l GET o_*", "one two - ten"),
        ("SORT l GET # GET o_* GET h_*->name", "1 one first 2 two - 3 - - 10 ten -"),
        ("SORT l GET nothing GET #", "- 1 - 2 - 3 - 10"),
        ("SORT l BY w_* GET w_*", "- 10 20 30"),
        ("SORT l GET w_*->weight", "- - - -"),
        ("SORT l GET h_*", "- - - -"),
        ("SORT l BY missing_*->x", "1 10 2 3"),
    ] {
        assert_eq!(sorted(&mut bench, line), expected, "{line}");
    }
    bench.run("MSET x*1 odd x->1 arrow 1-> end");
    assert_eq!(sorted(&mut bench, "SORT l GET x->* LIMIT 0 1"), "arrow");
    assert_eq!(sorted(&mut bench, "SORT l GET *-> LIMIT 0 1"), "end");
    assert_eq!(bench.run("SORT l BY o_*"), "-ERR One or more scores can't be converted into double");
    bench.version = Version::Resp3;
    assert_eq!(bench.run("SORT l LIMIT 0 1 GET none"), "*1 _");
}

#[test]
fn results_are_stored_as_lists() {
    let mut bench = bench();
    bench.run("SET d text EX 100");
    bench.propagated();
    assert_eq!(bench.run("SORT s STORE d"), ":4");
    assert_eq!(bench.events(), ["sortstore"]);
    assert_eq!((sorted(&mut bench, "LRANGE d 0 -1"), bench.run("TTL d")), ("1 2 3 10".into(), ":-1".into()));
    assert_eq!(bench.run("OBJECT ENCODING d"), "$8 listpack");
    assert_eq!(bench.run("SORT l GET o_* GET # STORE d"), ":8");
    assert_eq!(bench.run_words(&[b"LINDEX", b"d", b"4"]), b"$0\r\n\r\n");
    assert_eq!(bench.run("SORT l DESC STORE l"), ":4");
    assert_eq!(sorted(&mut bench, "LRANGE l 0 -1"), "10 3 2 1");
    assert_eq!(bench.run("SORT none STORE d"), ":0");
    assert_eq!((bench.events(), bench.run("EXISTS d")), (vec!["del"], ":0".into()));
    assert_eq!(bench.run("SORT none STORE d"), ":0");
    assert!(bench.events().is_empty());
    let lines = ["SORT s STORE d", "SORT l GET o_* GET # STORE d", "SORT l DESC STORE l", "SORT none STORE d"];
    assert_eq!(bench.propagated(), lines);
    bench.settings.encoding.list.max_listpack_size = 3;
    bench.run("SORT l STORE d");
    assert_eq!(bench.run("OBJECT ENCODING d"), "$9 quicklist");
}

#[test]
fn invalid_requests_are_rejected() {
    let mut bench = bench();
    let wrong_type = "-WRONGTYPE Operation against a key holding the wrong kind of value";
    for (line, error) in [
        ("SORT w_1", wrong_type),
        ("SORT h_1", wrong_type),
        ("SORT l BY", "-ERR syntax error"),
        ("SORT l GET", "-ERR syntax error"),
        ("SORT l LIMIT 1", "-ERR syntax error"),
        ("SORT l STORE", "-ERR syntax error"),
        ("SORT l other", "-ERR syntax error"),
        ("SORT_RO l STORE d", "-ERR syntax error"),
        ("SORT l LIMIT x 1", "-ERR value is not an integer or out of range"),
        ("SORT l LIMIT 1 x other", "-ERR value is not an integer or out of range"),
    ] {
        assert_eq!(bench.run(line), error, "{line}");
    }
}

#[test]
fn patterns_stay_in_the_slot_of_the_sorted_key_in_cluster_mode() {
    let mut bench = Bench::in_cluster(&[super::COMMANDS, crate::list::COMMANDS, crate::string::COMMANDS]);
    bench.run("RPUSH {l}ist 2 1");
    bench.run("MSET {l}w1 20 {l}w2 10");
    assert_eq!(bench.run("SORT {l}ist BY {l}w* GET {l}w* GET #"), "*4 $2 10 $1 2 $2 20 $1 1");
    assert_eq!(bench.run("SORT {l}ist BY nosort GET #"), "*2 $1 2 $1 1");
    let denied = |option: &str| {
        format!(
            "-ERR {option} option of SORT denied in Cluster mode when keys formed by the pattern may be in different \
             slots."
        )
    };
    for (option, argument) in [("BY", "w*"), ("BY", "{m}*"), ("GET", "w*"), ("GET", "constant"), ("GET", "*{l}")] {
        assert_eq!(bench.run(&format!("SORT {{l}}ist {option} {argument}")), denied(option), "{option} {argument}");
    }
    assert_eq!(bench.run("SORT_RO {l}ist GET w*"), denied("GET"));
}

#[test]
fn keys_are_found_among_the_arguments() {
    let keys = |line: &str| {
        let words = kvick_resp::OwnedArgs::new(line.split(' '));
        let found = super::find_keys(words.args()).unwrap_or_default();
        found.iter().map(|key| key.index).collect::<Vec<_>>()
    };
    assert_eq!(keys("SORT a"), [1]);
    assert_eq!(keys("SORT a BY store GET store STORE d"), [1, 7]);
    assert_eq!(keys("SORT a LIMIT store store STORE d DESC"), [1, 6]);
    assert_eq!(keys("SORT a STORE d STORE e"), [1, 5]);
    assert_eq!(keys("SORT a STORE"), [1]);
    // The argument after STORE is a key, whatever its name. Valkey finds "by" here, and so lets users write to "d"
    // without rights to it.
    assert_eq!(keys("SORT l STORE by STORE d"), [1, 5]);
    let mut bench = bench();
    assert_eq!(bench.run("SORT l STORE by STORE d"), ":4");
    assert_eq!(bench.run("EXISTS d by"), ":1");
}
