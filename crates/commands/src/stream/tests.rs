//! Tests of the stream commands on a keyspace.

use super::COMMANDS;
use crate::string;
use crate::testing::Bench;
use kvick_resp::{OwnedArgs, Version};
use kvick_store::EventClass;

fn bench() -> Bench {
    let mut bench = Bench::new(&[COMMANDS, string::COMMANDS]);
    bench.settings.encoding.stream.entries = 5;
    bench
}

/// A stream of entries 1-0 to `len`-0 with a group that has delivered two entries to consumer c.
fn with_group(len: u64) -> Bench {
    let mut bench = bench();
    (1..=len).for_each(|ms| assert!(bench.run(&format!("XADD s {ms}-0 a {ms}")).starts_with('$')));
    assert_eq!(bench.run("XGROUP CREATE s g 0"), "+OK");
    assert!(bench.run("XREADGROUP GROUP g c COUNT 2 STREAMS s >").starts_with('*'));
    bench.propagated();
    bench
}

#[test]
fn entries_are_added_and_read() {
    let mut bench = bench();
    assert_eq!(bench.run("XADD s * a 1"), "$15 1700000000000-0");
    assert_eq!(bench.run("XADD s * a 2"), "$15 1700000000000-1");
    assert_eq!(bench.run("XADD s 1700000000000-* b x c y"), "$15 1700000000000-2");
    assert_eq!(bench.run("XLEN s"), ":3");
    let last = "*2 $15 1700000000000-2 *4 $1 b $1 x $1 c $1 y";
    assert_eq!(bench.run("XRANGE s (1700000000000-1 +"), format!("*1 {last}"));
    assert_eq!(bench.run("XREVRANGE s + - COUNT 1"), format!("*1 {last}"));
    assert_eq!(bench.run("XRANGE s - + COUNT 0"), "*-1");
    assert_eq!(bench.run("XRANGE none - +"), "*0");
    assert_eq!(bench.run("XADD none NOMKSTREAM * a 1"), "$-1");
    assert_eq!(bench.run("XLEN none"), ":0");
}

#[test]
fn invalid_additions_are_rejected() {
    let mut bench = bench();
    bench.run("XADD s 5-5 a 1");
    bench.run("SET str x");
    for (line, error) in [
        ("XADD s 5-5 a 1", "ERR The ID specified in XADD is equal or smaller than the target stream top item"),
        ("XADD s 4-* a 1", "ERR The ID specified in XADD is equal or smaller than the target stream top item"),
        ("XADD s 0-0 a 1", "ERR The ID specified in XADD must be greater than 0-0"),
        ("XADD s x a 1", "ERR Invalid stream ID specified as stream command argument"),
        ("XADD s * a 1 b", "ERR wrong number of arguments for 'xadd' command"),
        ("XADD s MAXLEN 5 *", "ERR wrong number of arguments for 'xadd' command"),
        ("XADD s MAXLEN -1 * a 1", "ERR The MAXLEN argument must be >= 0."),
        ("XADD s MAXLEN x * a 1", "ERR value is not an integer or out of range"),
        ("XADD s MINID x * a 1", "ERR Invalid stream ID specified as stream command argument"),
        (
            "XADD s MAXLEN 1 MINID 1 * a 1",
            "ERR syntax error, MAXLEN and MINID options at the same time are not compatible",
        ),
        ("XADD s LIMIT 1 * a 1", "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"),
        ("XTRIM s MAXLEN 1 LIMIT 1", "ERR syntax error, LIMIT cannot be used without the special ~ option"),
        ("XTRIM s LIMIT 0", "ERR syntax error, XTRIM must be called with a trimming strategy"),
        ("XTRIM s FOO 1", "ERR syntax error"),
        ("XADD str * a 1", "WRONGTYPE Operation against a key holding the wrong kind of value"),
    ] {
        assert_eq!(bench.run(line), format!("-{error}"), "{line}");
    }
    bench.run("XSETID s 18446744073709551615-18446744073709551615");
    let exhausted = "-ERR The stream has exhausted the last possible ID, unable to add more items";
    assert_eq!(bench.run("XADD s * a 1"), exhausted);
    assert_eq!(bench.propagated().len(), 3);
}

/// The commands that Valkey writes to its append-only file for the same requests, except for LIMIT, which an exact trim
/// does not have.
#[test]
fn propagated_commands_state_their_result() {
    let mut bench = bench();
    for (request, propagated) in [
        ("XADD s * a 1", "XADD s 1700000000000-0 a 1"),
        ("XADD s 9000000000000-* a 1", "XADD s 9000000000000-0 a 1"),
        ("XADD s 9000000000000-7 a 1", "XADD s 9000000000000-7 a 1"),
        ("XADD s MAXLEN ~ 2 LIMIT 10 9000000000001-1 a 1", "XADD s MAXLEN = 4 9000000000001-1 a 1"),
        ("XADD s MAXLEN ~ 2 9000000000001-2 a 1", "XADD s MAXLEN = 5 9000000000001-2 a 1"),
        ("XADD s MINID ~ 9000000000001-1 9000000000001-3 a 1", "XADD s MINID = 1700000000000-0 9000000000001-3 a 1"),
        ("XADD s MAXLEN = 4 9000000000001-4 a 1", "XADD s MAXLEN = 4 9000000000001-4 a 1"),
        ("XTRIM s MAXLEN ~ 1 LIMIT 0", "XTRIM s MAXLEN = 2"),
        ("XTRIM s MAXLEN ~ 0 LIMIT 0", "XTRIM s MAXLEN = 0"),
        ("XTRIM s MAXLEN ~ 0 LIMIT 0", ""),
        (
            "XADD s MINID ~ 9000000000001-1 NOMKSTREAM 9000000000002-1 a 1",
            "XADD s MINID = 9000000000002-1 NOMKSTREAM 9000000000002-1 a 1",
        ),
        ("XADD s 9000000000002-2 a 1", "XADD s 9000000000002-2 a 1"),
        ("XADD s 9000000000002-3 a 1", "XADD s 9000000000002-3 a 1"),
        ("XGROUP CREATE s g 0", "XGROUP CREATE s g 0"),
        (
            "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
            "MULTI|\
             XCLAIM s g c 0 9000000000002-1 TIME 1700000000000 RETRYCOUNT 1 FORCE JUSTID LASTID 9000000000002-1|\
             XCLAIM s g c 0 9000000000002-2 TIME 1700000000000 RETRYCOUNT 1 FORCE JUSTID LASTID 9000000000002-2|\
             XGROUP SETID s g 9000000000002-2 ENTRIESREAD 9|EXEC",
        ),
        (
            "XREADGROUP GROUP g n NOACK STREAMS s >",
            "MULTI|XGROUP CREATECONSUMER s g n|XGROUP SETID s g 9000000000002-3 ENTRIESREAD 10|EXEC",
        ),
        ("XREADGROUP GROUP g m STREAMS s >", ""),
        ("XREADGROUP GROUP g c STREAMS s 0", ""),
        ("XACK s g 9000000000002-1 1-1", "XACK s g 9000000000002-1 1-1"),
        ("XACK s g 9000000000002-1 1-1", ""),
        (
            "XCLAIM s g d 0 9000000000002-2",
            "XCLAIM s g d 0 9000000000002-2 TIME 1700000000000 RETRYCOUNT 3 FORCE JUSTID LASTID 9000000000002-3",
        ),
        ("XCLAIM s g d 0 5-5", ""),
        ("XCLAIM s g e 0 5-5 LASTID 9000000000009-0", "XGROUP SETID s g 9000000000009-0 ENTRIESREAD 10"),
        (
            "XCLAIM s g e 0 9000000000002-3 FORCE RETRYCOUNT 7 JUSTID",
            "XCLAIM s g e 0 9000000000002-3 TIME 1700000000000 RETRYCOUNT 7 FORCE JUSTID LASTID 9000000000009-0",
        ),
        ("XDEL s 9000000000002-2", "XDEL s 9000000000002-2"),
        (
            "XCLAIM s g e 0 9000000000002-2",
            "XCLAIM s g d 0 9000000000002-2 TIME 1700000000000 RETRYCOUNT 3 FORCE JUSTID LASTID 9000000000009-0",
        ),
        ("XDEL s 9000000000002-3", "XDEL s 9000000000002-3"),
        (
            "XAUTOCLAIM s g e 0 -",
            "XCLAIM s g e 0 9000000000002-3 TIME 1700000000000 RETRYCOUNT 7 FORCE JUSTID LASTID 9000000000009-0",
        ),
        ("XGROUP CREATECONSUMER s g z", "XGROUP CREATECONSUMER s g z"),
        ("XGROUP CREATECONSUMER s g z", ""),
        ("XGROUP DELCONSUMER s g z", "XGROUP DELCONSUMER s g z"),
        ("XGROUP SETID s g 0 ENTRIESREAD 5", "XGROUP SETID s g 0 ENTRIESREAD 5"),
        (
            "XSETID s 9000000000005-5 ENTRIESADDED 100 MAXDELETEDID 9000000000003-0",
            "XSETID s 9000000000005-5 ENTRIESADDED 100 MAXDELETEDID 9000000000003-0",
        ),
        ("XGROUP DESTROY s g", "XGROUP DESTROY s g"),
        ("XGROUP DESTROY s g", ""),
    ] {
        let reply = bench.run(request);
        assert!(!reply.starts_with('-'), "{request}: {reply}");
        assert_eq!(bench.propagated().join("|"), propagated, "{request}");
    }
}

/// A replica that executes the propagated commands gets the same stream.
#[test]
fn replica_converges() {
    let (mut source, mut follower) = (bench(), bench());
    let requests = [
        "XADD s MAXLEN ~ 7 * a 1",
        "XADD s MINID ~ 1699999999999-0 LIMIT 3 * a 2",
        "XGROUP CREATE s g 0 MKSTREAM",
        "XREADGROUP GROUP g c COUNT 2 STREAMS s >",
        "XREADGROUP GROUP g d COUNT 1 NOACK STREAMS s >",
        "XCLAIM s g d 0 1700000000000-1 IDLE 5 RETRYCOUNT 3",
        "XDEL s 1700000000000-3",
        "XAUTOCLAIM s g c 0 - COUNT 2",
        "XACK s g 1700000000000-0",
        "XTRIM s MAXLEN ~ 4",
    ];
    for round in 0..40 {
        for request in requests.iter().take(requests.len() - round % 4) {
            source.run(request);
            for told in source.propagated().iter().filter(|told| !["MULTI", "EXEC"].contains(&told.as_str())) {
                let reply = follower.run(told);
                assert!(!reply.starts_with('-'), "{told}: {reply}");
            }
        }
        for question in ["XRANGE s - +", "XINFO GROUPS s", "XPENDING s g - + 1000"] {
            assert_eq!(source.run(question), follower.run(question), "{question}");
        }
    }
}

#[test]
fn changes_fire_events() {
    let mut bench = bench();
    for (request, events) in [
        ("XADD s 1-0 a 1", &["new", "xadd"][..]),
        ("XADD s MAXLEN 1 2-0 a 1", &["xadd", "xtrim"]),
        ("XTRIM s MAXLEN 5", &[]),
        ("XTRIM s MAXLEN 0", &["xtrim"]),
        ("XADD s 3-0 a 1", &["xadd"]),
        ("XDEL s 7-7", &[]),
        ("XDEL s 3-0", &["xdel"]),
        ("XGROUP CREATE s g $", &["xgroup-create"]),
        ("XGROUP CREATE t g $ MKSTREAM", &["new", "xgroup-create"]),
        ("XGROUP SETID s g 0", &["xgroup-setid"]),
        ("XGROUP CREATECONSUMER s g c", &["xgroup-createconsumer"]),
        ("XREADGROUP GROUP g d STREAMS s >", &["xgroup-createconsumer"]),
        ("XCLAIM s g e 0 1-0", &["xgroup-createconsumer"]),
        ("XAUTOCLAIM s g f 0 0", &["xgroup-createconsumer"]),
        ("XGROUP DELCONSUMER s g c", &["xgroup-delconsumer"]),
        ("XGROUP DESTROY s g", &["xgroup-destroy"]),
        ("XSETID s 9-0", &["xsetid"]),
    ] {
        let reply = bench.run(request);
        assert!(!reply.starts_with('-'), "{request}: {reply}");
        assert_eq!(bench.events(), events, "{request}");
    }
}

#[test]
fn empty_keys_block() {
    let mut bench = with_group(3);
    let until = bench.now_ms + 50;
    assert_eq!(bench.run("XREAD BLOCK 50 STREAMS s t $ 0"), format!("+waits for Stream at [4, 5] until Some({until})"));
    assert_eq!(bench.run("XREAD BLOCK 0 STREAMS s 3"), "+waits for Stream at [4] until None");
    assert!(bench.run("XREAD BLOCK 0 STREAMS s +").starts_with("*1 *2 $1 s *1 *2 $3 3-0"));
    assert!(bench.run("XREADGROUP GROUP g c BLOCK 0 STREAMS s >").starts_with("*1"));
    assert_eq!(bench.run("XREADGROUP GROUP g c BLOCK 0 STREAMS s >"), "+waits for Stream at [7] until None");
    assert_eq!(bench.run("XREADGROUP GROUP g n BLOCK 0 STREAMS s 0"), "*1 *2 $1 s *0");
    assert_eq!(bench.run("XREAD STREAMS s 3"), "*-1");
    bench.may_block = false;
    assert_eq!(bench.run("XREAD BLOCK 0 STREAMS s 3"), "*-1");
    assert_eq!(bench.run("XREAD BLOCK -1 STREAMS s 3"), "-ERR timeout is negative");
}

#[test]
fn group_read_without_entries_changes_nothing() {
    let mut bench = with_group(2);
    bench.now_ms += 7;
    assert_eq!(bench.run("XREADGROUP GROUP g c STREAMS s >"), "*-1");
    assert_eq!((bench.propagated().len(), bench.events().len()), (0, 0));
    bench.now_ms += 5;
    let expected = "*1 *8 $4 name $1 c $7 pending :2 $4 idle :5 $8 inactive :12";
    assert_eq!(bench.run("XINFO CONSUMERS s g"), expected);
}

#[test]
fn stream_named_twice_is_delivered_once() {
    let mut bench = with_group(3);
    let reply = bench.run("XREADGROUP GROUP g c STREAMS s s > >");
    assert_eq!(reply, "*1 *2 $1 s *1 *2 $3 3-0 *2 $1 a $1 3");
}

#[test]
fn reading_history_lists_pending_and_deleted_entries() {
    let mut bench = with_group(3);
    bench.run("XDEL s 1-0");
    let reply = bench.run("XREADGROUP GROUP g c STREAMS s 0");
    assert_eq!(reply, "*1 *2 $1 s *2 *2 $3 1-0 *-1 *2 $3 2-0 *2 $1 a $1 2");
    assert_eq!(bench.run("XREADGROUP GROUP g c COUNT 1 STREAMS s 1"), "*1 *2 $1 s *1 *2 $3 2-0 *2 $1 a $1 2");
    assert_eq!(bench.run("XPENDING s g"), "*4 :2 $3 1-0 $3 2-0 *1 *2 $1 c $1 2");
    assert_eq!(bench.run("XPENDING s g - + 9 c"), "*2 *4 $3 1-0 $1 c :0 :1 *4 $3 2-0 $1 c :0 :3");
    assert_eq!(bench.run("XACK s g 1-0 2-0 3-0"), ":2");
    assert_eq!(bench.run("XPENDING s g"), "*4 :0 $-1 $-1 *-1");
}

#[test]
fn missing_groups_are_reported() {
    let mut bench = with_group(1);
    bench.run("SET str x");
    for (line, error) in [
        (
            "XREADGROUP GROUP x c STREAMS s >",
            "NOGROUP No such key 's' or consumer group 'x' in XREADGROUP with GROUP option",
        ),
        ("XREADGROUP GROUP g c STREAMS str >", "WRONGTYPE Operation against a key holding the wrong kind of value"),
        (
            "XREADGROUP GROUP g c STREAMS s > x",
            "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified.",
        ),
        ("XREADGROUP COUNT 1 COUNT 1 STREAMS s >", "ERR Missing GROUP option for XREADGROUP"),
        (
            "XREAD STREAMS s >",
            "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
        ),
        ("XREAD NOACK STREAMS s 0", "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead."),
        ("XREAD COUNT 1 FOO", "ERR syntax error"),
        ("XCLAIM s x c 0 1-0", "NOGROUP No such key 's' or consumer group 'x'"),
        ("XCLAIM s g c 0 1-0 FOO", "ERR Unrecognized XCLAIM option 'FOO'"),
        ("XAUTOCLAIM s g c 0 - COUNT 0", "ERR COUNT must be > 0"),
        ("XPENDING none g", "NOGROUP No such key 'none' or consumer group 'g'"),
        ("XINFO CONSUMERS s x", "NOGROUP No such consumer group 'x' for key name 's'"),
        ("XINFO STREAM none", "ERR no such key"),
        ("XINFO STREAM s FOO", "ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP."),
        ("XGROUP CREATE s g 0", "BUSYGROUP Consumer Group name already exists"),
        ("XGROUP SETID s x 0", "NOGROUP No such consumer group 'x' for key name 's'"),
        ("XGROUP CREATE s h 0 ENTRIESREAD -2", "ERR value for ENTRIESREAD must be positive or -1"),
    ] {
        assert_eq!(bench.run(line), format!("-{error}"), "{line}");
    }
    assert!(bench.run("XGROUP DESTROY none g").starts_with("-ERR The XGROUP subcommand requires the key to exist."));
    assert_eq!(bench.run("XACK s x 1-0"), ":0");
    assert!(bench.propagated().iter().all(|told| told.starts_with("SET ")));
}

#[test]
fn claims_respect_idle_time() {
    let mut bench = with_group(3);
    bench.now_ms += 100;
    assert_eq!(bench.run("XCLAIM s g d 101 1-0 2-0"), "*0");
    assert_eq!(bench.run("XCLAIM s g d 100 1-0 3-0 JUSTID"), "*1 $3 1-0");
    assert_eq!(bench.run("XAUTOCLAIM s g d 100 -"), "*3 $3 0-0 *1 *2 $3 2-0 *2 $1 a $1 2 *0");
    assert_eq!(bench.run("XPENDING s g"), "*4 :2 $3 1-0 $3 2-0 *1 *2 $1 d $1 2");
    bench.run("XDEL s 1-0");
    assert_eq!(bench.run("XAUTOCLAIM s g e 0 - COUNT 1 JUSTID"), "*3 $3 2-0 *0 *1 $3 1-0");
    assert_eq!(bench.run("XCLAIM s g e 0 3-0 FORCE IDLE 50 JUSTID"), "*1 $3 3-0");
    assert_eq!(bench.run("XPENDING s g IDLE 50 - + 9"), "*1 *4 $3 3-0 $1 e :50 :1");
}

#[test]
fn resp3_replies_with_maps() {
    let mut bench = with_group(1);
    bench.version = Version::Resp3;
    assert_eq!(bench.run("XREAD STREAMS s 0"), "%1 $1 s *1 *2 $3 1-0 *2 $1 a $1 1");
    assert_eq!(bench.run("XREAD STREAMS s 1"), "_");
    assert!(bench.run("XINFO STREAM s").starts_with("%10 $6 length :1 $15 radix-tree-keys :1 $16 radix-tree-nodes :2"));
    assert!(bench.run("XINFO STREAM s FULL").starts_with("%9 "));
    let group = "%6 $4 name $1 g $9 consumers :1 $7 pending :1 $17 last-delivered-id $3 1-0";
    assert_eq!(bench.run("XINFO GROUPS s"), format!("*1 {group} $12 entries-read :1 $3 lag :0"));
}

#[test]
fn keys_are_found_only_after_the_option() {
    let keys = |line: &str| {
        let args = OwnedArgs::new(line.split(' '));
        super::read::XREADGROUP.spec.key_positions(args.args()).map(|keys| keys.iter().map(|key| key.index).collect())
    };
    assert_eq!(keys("XREADGROUP GROUP streams streams COUNT 1 STREAMS streams b 0 0"), Some(vec![7, 8]));
    assert_eq!(keys("XREADGROUP GROUP g c NOACK STREAMS a"), None);
    assert_eq!(keys("XREADGROUP GROUP g c STREAMS"), None);
    // The command replies with an error, but only to users with rights for these keys.
    assert_eq!(keys("XREADGROUP GROUP g c FOO STREAMS a 0"), Some(vec![6]));
    assert_eq!(keys("XREADGROUP GROUP g c STREAMS a b 0"), Some(vec![5]));
}

#[test]
fn errors_quote_words_as_they_are() {
    let mut bench = with_group(1);
    let request: [&[u8]; 6] = [b"XCLAIM", b"s", b"\xff\0rest", b"c", b"0", b"1-0"];
    assert_eq!(bench.run_words(&request), b"-NOGROUP No such key 's' or consumer group '\xff'\r\n");
}

#[test]
fn a_miss_is_noted_before_the_options_are_read() {
    let mut bench = bench();
    bench.event_mask = EventClass::KEY_MISS;
    assert_eq!(bench.run("XAUTOCLAIM none g c x 0"), "-ERR Invalid min-idle-time argument for XAUTOCLAIM");
    assert_eq!(bench.events(), ["keymiss"]);
}
