//! Tests of the hash commands.

use crate::testing::Bench;
use crate::{hash, keys, string};
use kvick_resp::Version;

const NOW_MS: i64 = 1_700_000_000_000;

fn bench() -> Bench {
    Bench::new(&[hash::COMMANDS, keys::COMMANDS, string::COMMANDS])
}

#[test]
fn fields_are_set_read_and_removed() {
    let mut bench = bench();
    assert_eq!(bench.run("HSET h a 1 b 2 a 3"), ":2");
    assert_eq!(bench.events(), ["new", "hset"]);
    assert_eq!(bench.run("HMSET h c x"), "+OK");
    assert_eq!(bench.run("HSETNX h c y"), ":0");
    assert_eq!(bench.run("HSETNX h d y"), ":1");
    assert_eq!(bench.run("HMGET h a b n d"), "*4 $1 3 $1 2 $-1 $1 y");
    assert_eq!(bench.run("HGETALL h"), "*8 $1 a $1 3 $1 b $1 2 $1 c $1 x $1 d $1 y");
    assert_eq!(bench.run("HKEYS h"), "*4 $1 a $1 b $1 c $1 d");
    assert_eq!(bench.run("HVALS h"), "*4 $1 3 $1 2 $1 x $1 y");
    assert_eq!(bench.run("HSTRLEN h a"), ":1");
    assert_eq!(bench.run("HEXISTS h n"), ":0");
    assert_eq!(bench.run("HDEL h a b n"), ":2");
    assert_eq!(bench.events(), ["hdel"]);
    assert_eq!(bench.run("HGETDEL h FIELDS 3 c c d"), "*3 $1 x $-1 $1 y");
    assert_eq!(bench.events(), ["hdel", "del"]);
    assert_eq!(bench.run("EXISTS h"), ":0");
    let set = ["HSET h a 1 b 2 a 3", "HMSET h c x", "HSETNX h d y"];
    assert_eq!(bench.propagated(), [&set[..], &["HDEL h a b n", "HGETDEL h FIELDS 3 c c d"]].concat());
}

#[test]
fn searching_a_missing_hash_finds_nothing() {
    let mut bench = bench();
    for (line, reply) in [
        ("HGET n f", "$-1"),
        ("HMGET n f", "*1 $-1"),
        ("HGETALL n", "*0"),
        ("HLEN n", ":0"),
        ("HRANDFIELD n", "$-1"),
        ("HRANDFIELD n 3", "*0"),
        ("HSCAN n 0 COUNT x", "*2 $1 0 *0"),
        ("HTTL n FIELDS 1 f", "*1 :-2"),
        ("HPERSIST n FIELDS 1 f", "*1 :-2"),
        ("HEXPIRE n 1 FIELDS 1 f", "*1 :-2"),
        ("HGETEX n EX 1 FIELDS 1 f", "*1 $-1"),
        ("HDEL n f", ":0"),
    ] {
        assert_eq!(bench.run(line), reply, "{line}");
    }
    bench.run("SET s v");
    for line in ["HGET s f", "HSET s f v", "HTTL s FIELDS 1 f", "HGETEX s EX x FIELDS 1 f", "HSETEX s NX FIELDS 1 f v"]
    {
        assert!(bench.run(line).starts_with("-WRONGTYPE"), "{line}");
    }
    assert_eq!(bench.run("DBSIZE"), ":1");
}

#[test]
fn resp3_nests_maps_and_pairs() {
    let mut bench = bench();
    bench.run("HSET h a 1");
    bench.version = Version::Resp3;
    assert_eq!(bench.run("HGETALL h"), "%1 $1 a $1 1");
    assert_eq!(bench.run("HRANDFIELD h 5 WITHVALUES"), "*1 *2 $1 a $1 1");
    assert_eq!(bench.run("HRANDFIELD h -2"), "*2 $1 a $1 a");
    assert_eq!(bench.run("HGETALL n"), "%0");
}

#[test]
fn numbers_count_and_keep_their_expiry() {
    let mut bench = bench();
    assert_eq!(bench.run("HINCRBY h n 5"), ":5");
    assert_eq!(bench.run("HINCRBYFLOAT h n 0.5"), "$3 5.5");
    assert_eq!(bench.run("HINCRBY h n 1"), "-ERR hash value is not an integer");
    assert_eq!(bench.run("HINCRBYFLOAT h n inf"), "-ERR value is NaN or Infinity");
    bench.run(&format!("HSETEX h PXAT {} FIELDS 1 t 1", NOW_MS + 5000));
    assert_eq!(bench.run("HINCRBY h t 9223372036854775807"), "-ERR increment or decrement would overflow");
    assert_eq!(bench.run("HINCRBY h t 1"), ":2");
    assert_eq!(bench.run("HINCRBYFLOAT h t 1.5"), "$3 3.5");
    assert_eq!(bench.run("HINCRBY h new 1"), ":1");
    assert_eq!(bench.run("HPTTL h FIELDS 2 t new"), "*2 :5000 :-1");
    let at = NOW_MS + 5000;
    let expected = [
        "HINCRBY h n 5".into(),
        "HSET h n 5.5".into(),
        format!("HSETEX h PXAT {at} FIELDS 1 t 1"),
        format!("HSETEX h PXAT {at} FIELDS 1 t 2"),
        format!("HSETEX h PXAT {at} FIELDS 1 t 3.5"),
        "HSET h new 1".into(),
    ];
    assert_eq!(bench.propagated(), expected);
}

#[test]
fn fields_expire_one_by_one() {
    let mut bench = bench();
    bench.run("HSET h a 1 b 2 c 3 d 4");
    assert_eq!(bench.run("HPEXPIRE h 10 FIELDS 2 a n"), "*2 :1 :-2");
    assert_eq!(bench.events(), ["hexpire"]);
    assert_eq!(bench.run("HPEXPIRE h 20 NX FIELDS 2 a b"), "*2 :0 :1");
    assert_eq!(bench.run("HEXPIRE h 0 FIELDS 1 d"), "*1 :2");
    assert_eq!(bench.events(), ["hexpired"]);
    assert_eq!(bench.run("OBJECT ENCODING h"), "$9 hashtable");
    bench.now_ms += 10;
    assert_eq!(bench.run("HMGET h a b"), "*2 $1 1 $1 2");
    bench.now_ms += 1;
    assert_eq!(bench.run("HMGET h a b c"), "*3 $-1 $1 2 $1 3");
    assert_eq!(bench.run("HLEN h"), ":3");
    assert_eq!(bench.run("HDEL h a"), ":0");
    assert_eq!(bench.run("HSETNX h a 5"), ":1");
    assert_eq!(bench.events(), ["hexpired", "hset"]);
    assert_eq!(bench.run("HPERSIST h FIELDS 3 a b n"), "*3 :-1 :1 :-2");
    assert_eq!(bench.events(), ["hpersist"]);
    assert_eq!(bench.counters.expired_fields.get(), 2);
    let expected = [
        "HSET h a 1 b 2 c 3 d 4".into(),
        format!("HPEXPIREAT h {} FIELDS 2 a n", NOW_MS + 10),
        format!("HPEXPIREAT h {} NX FIELDS 2 a b", NOW_MS + 20),
        "HDEL h d".into(),
        "HSET h a 5".into(),
        "HPERSIST h FIELDS 3 a b n".into(),
    ];
    assert_eq!(bench.propagated(), expected);
}

#[test]
fn hsetex_sets_values_with_expiry_and_conditions() {
    let mut bench = bench();
    assert_eq!(bench.run("HSETEX h XX FIELDS 1 a 1"), ":0");
    assert_eq!(bench.run("HSETEX h FXX FIELDS 1 a 1"), ":0");
    assert_eq!(bench.run("HSETEX h NX FNX EX 10 FIELDS 2 a 1 b 2"), ":1");
    assert_eq!(bench.events(), ["new", "hset", "hexpire"]);
    assert_eq!(bench.run("HSETEX h FNX FIELDS 2 c 1 b 2"), ":0");
    assert_eq!(bench.run("HSETEX h KEEPTTL FIELDS 1 a 3"), ":1");
    assert_eq!(bench.run("HSETEX h FIELDS 1 b 4"), ":1");
    assert_eq!(bench.run("HTTL h FIELDS 2 a b"), "*2 :10 :-1");
    assert_eq!(bench.run("HSETEX h EX 0 FIELDS 2 b 5 n 6"), ":1");
    assert_eq!(bench.events(), ["hset", "hexpire", "hexpired"]);
    bench.now_ms += 10_001;
    assert_eq!(bench.run("HSETEX h KEEPTTL FIELDS 1 a 7"), ":1");
    assert_eq!(bench.run("HTTL h FIELDS 1 a"), "*1 :-1");
    assert_eq!(bench.run("HSETEX other PXAT 0 FIELDS 1 a 1"), ":1");
    assert_eq!(bench.events(), ["new", "hset", "hexpire", "hexpired", "del"]);
    let expected = [
        format!("HSETEX h PXAT {} FIELDS 2 a 1 b 2", NOW_MS + 10_000),
        "HSETEX h KEEPTTL FIELDS 1 a 3".into(),
        "HSETEX h FIELDS 1 b 4".into(),
        "HDEL h b".into(),
        "MULTI".into(),
        "HDEL h a".into(),
        "HSETEX h KEEPTTL FIELDS 1 a 7".into(),
        "EXEC".into(),
    ];
    assert_eq!(bench.propagated(), expected);
}

#[test]
fn hgetex_reads_values_and_changes_their_expiry() {
    let mut bench = bench();
    bench.run("HSET h a 1 b 2");
    assert_eq!(bench.run("HGETEX h FIELDS 2 a n"), "*2 $1 1 $-1");
    assert_eq!(bench.run("HGETEX h PX 10 FIELDS 2 a n"), "*2 $1 1 $-1");
    assert_eq!(bench.events(), ["hexpire"]);
    assert_eq!(bench.run("HGETEX h PERSIST FIELDS 2 a b"), "*2 $1 1 $1 2");
    assert_eq!(bench.events(), ["hpersist"]);
    assert_eq!(bench.run("HGETEX h EXAT 1 FIELDS 3 a b a"), "*3 $1 1 $1 2 $-1");
    assert_eq!(bench.events(), ["hexpired", "del"]);
    let at = format!("HPEXPIREAT h {} FIELDS 1 a", NOW_MS + 10);
    assert_eq!(bench.propagated(), ["HSET h a 1 b 2", &at, "HPERSIST h FIELDS 1 a", "HDEL h a b"]);
}

#[test]
fn request_checks_have_a_fixed_order() {
    let mut bench = bench();
    bench.run("HSET h a 1");
    let mismatch = "-ERR numfields should be greater than 0 and match the provided number of fields";
    let (syntax, not_integer) = ("-ERR syntax error", "-ERR value is not an integer or out of range");
    for (line, error) in [
        ("HSET h a 1 b", "-ERR wrong number of arguments for 'hset' command"),
        ("HMSET h a 1 b", "-ERR wrong number of arguments for 'hmset' command"),
        ("HSETEX h EX 1 FIELDS 2 a 1", mismatch),
        ("HSETEX h EX 1 FIELDS x a 1", not_integer),
        ("HSETEX h EX -1 FIELDS 1 a 1", "-ERR invalid expire time in 'hsetex' command"),
        ("HSETEX h PERSIST FIELDS 1 a 1", syntax),
        ("HSETEX h FNX FXX FIELDS 1 a 1", syntax),
        ("HGETEX h EX 1 PX 1 FIELDS 1 a", syntax),
        ("HGETEX h EX 1 FIELD 1 a", mismatch),
        ("HGETDEL h FIELD 1 a", syntax),
        ("HEXPIRE h -1 FIELDS 1 a", "-ERR invalid expire time in 'hexpire' command"),
        ("HPEXPIRE h 9223372036854775807 FIELDS 1 a", "-ERR invalid expire time in 'hpexpire' command"),
        ("HEXPIRE h 1 GT LT FIELDS 1 a", "-ERR GT and LT options at the same time are not compatible"),
        ("HEXPIRE h 1 ZZ FIELDS 1 a", "-ERR Unsupported option ZZ"),
        ("HEXPIRE h 1 FIELDS 0 a", mismatch),
        ("HTTL h FIELDS 2 a", syntax),
        ("HPERSIST h FIELDS 2 a", mismatch),
        ("HRANDFIELD h x", not_integer),
        ("HRANDFIELD h 1 x", syntax),
        ("HRANDFIELD h 9223372036854775807 WITHVALUES", "-ERR value is out of range"),
        ("HSCAN h x", "-ERR invalid cursor"),
        ("HSCAN h 0 NOSCORES", "-ERR NOSCORES option can only be used in ZSCAN"),
    ] {
        assert_eq!(bench.run(line), error, "{line}");
    }
}

#[test]
fn random_fields_are_distinct_unless_repeats_are_requested() {
    let mut bench = bench();
    for (fields, counts) in [(20, [1, 5, 19]), (700, [1, 100, 690])] {
        let key = format!("h{fields}");
        (0..fields).for_each(|n| assert_eq!(bench.run(&format!("HSET {key} f{n} v{n}")), ":1"));
        for count in counts {
            let reply = bench.run(&format!("HRANDFIELD {key} {count}"));
            let picked: Vec<&str> = reply.split(' ').filter(|word| word.starts_with('f')).collect();
            let different: std::collections::HashSet<_> = picked.iter().collect();
            assert_eq!((picked.len(), different.len()), (count, count), "{key}");
        }
        let reply = bench.run(&format!("HRANDFIELD {key} -{} WITHVALUES", fields * 20));
        let picked: Vec<&str> = reply.split(' ').filter(|word| word.starts_with(['f', 'v'])).collect();
        assert_eq!(picked.len(), fields * 40);
        assert!(picked.chunks(2).all(|pair| pair[0][1..] == pair[1][1..]));
        let different: std::collections::HashSet<_> = picked.iter().step_by(2).collect();
        assert_eq!(different.len(), fields, "{key}");
    }
}

#[test]
fn scan_lists_every_matching_field() {
    let mut bench = bench();
    (0..600).for_each(|n| assert_eq!(bench.run(&format!("HSET h f{n} v{n}")), ":1"));
    let (mut cursor, mut seen) = ("0".to_string(), std::collections::HashSet::new());
    loop {
        let reply = bench.run(&format!("HSCAN h {cursor} MATCH f1* COUNT 50 NOVALUES"));
        cursor = reply.split(' ').nth(2).expect("a cursor").into();
        seen.extend(reply.split(' ').filter(|word| word.starts_with('f')).map(str::to_string));
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(seen.len(), 111);
}

#[test]
fn copy_has_only_visible_fields() {
    let mut bench = bench();
    bench.run("HSETEX h PX 1 FIELDS 2 a 1 b 1");
    bench.run("HSET h c 1");
    bench.now_ms += 2;
    bench.run("COPY h i");
    bench.run("RENAME h j");
    assert_eq!(["i", "j"].map(|key| bench.run(&format!("HLEN {key}"))), [":1", ":3"]);
}

#[test]
fn moved_and_copied_hashes_keep_volatile_fields_tracked() {
    let mut bench = bench();
    bench.run("HSETEX h EX 10 FIELDS 1 a 1");
    assert_eq!(bench.keyspace.volatile_hashes(0), 1);
    bench.run("RENAME h i");
    bench.run("COPY i j");
    bench.run("MOVE j 1");
    assert_eq!([0, 1].map(|number| bench.keyspace.volatile_hashes(number)), [1, 1]);
    bench.run("HPERSIST i FIELDS 1 a");
    assert_eq!(bench.keyspace.volatile_hashes(0), 0);
    bench.run("HEXPIRE i 1 FIELDS 1 a");
    assert_eq!(bench.keyspace.volatile_hashes(0), 1);
    bench.run("EXPIRE i 100");
    assert_eq!(bench.keyspace.volatile_hashes(0), 1);
    bench.run("SET i string");
    bench.run("FLUSHALL");
    assert_eq!([0, 1].map(|number| bench.keyspace.volatile_hashes(number)), [0, 0]);
}
