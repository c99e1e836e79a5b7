//! Tests of the replies, encodings, events and propagation of the set commands.

use crate::testing::Bench;
use crate::{keys, set, string};
use kvick_resp::Version;
use std::collections::{BTreeMap, BTreeSet};

const WRONG_TYPE: &str = "-WRONGTYPE Operation against a key holding the wrong kind of value";

fn bench() -> Bench {
    Bench::new(&[keys::COMMANDS, string::COMMANDS, set::COMMANDS])
}

/// The bulk strings of an array or set reply, in order.
fn words(reply: &str) -> Vec<String> {
    reply.split(' ').skip(2).step_by(2).map(str::to_owned).collect()
}

fn members(bench: &mut Bench, key: &str) -> BTreeSet<String> {
    words(&bench.run(&format!("SMEMBERS {key}"))).into_iter().collect()
}

fn of<const N: usize>(names: [&str; N]) -> BTreeSet<String> {
    names.map(String::from).into()
}

/// Adds members formed from `prefix` and each of the numbers.
fn add_numbered(bench: &mut Bench, key: &str, prefix: &str, numbers: std::ops::Range<u32>) {
    let list: Vec<String> = numbers.map(|n| format!("{prefix}{n}")).collect();
    let reply = bench.run(&format!("SADD {key} {}", list.join(" ")));
    assert_eq!(reply, format!(":{}", list.len()));
}

fn encoding(bench: &mut Bench, key: &str) -> String {
    bench.run(&format!("OBJECT ENCODING {key}")).rsplit(' ').next().unwrap_or_default().to_owned()
}

#[test]
fn members_are_added_once_and_removed_once() {
    let mut bench = bench();
    assert_eq!(bench.run("SADD s a b a"), ":2");
    assert_eq!(bench.events(), ["new", "sadd"]);
    assert_eq!(bench.run("SADD s a"), ":0");
    assert!(bench.events().is_empty());
    assert_eq!(bench.run("SCARD s"), ":2");
    assert_eq!(bench.run("SISMEMBER s a"), ":1");
    assert_eq!(bench.run("SISMEMBER s x"), ":0");
    assert_eq!(bench.run("SMISMEMBER s a x b"), "*3 :1 :0 :1");
    assert_eq!(bench.run("SREM s x"), ":0");
    assert_eq!(bench.run("SREM s a x b c"), ":2");
    assert_eq!(bench.events(), ["srem", "del"]);
    assert_eq!(bench.run("EXISTS s"), ":0");
    assert_eq!(bench.propagated(), ["SADD s a b a", "SREM s a x b c"]);
}

#[test]
fn missing_key_is_an_empty_set() {
    let mut bench = bench();
    for (command, reply) in [
        ("SREM s a", ":0"),
        ("SISMEMBER s a", ":0"),
        ("SMISMEMBER s a b", "*2 :0 :0"),
        ("SCARD s", ":0"),
        ("SMEMBERS s", "*0"),
        ("SMOVE s t a", ":0"),
        ("SPOP s", "$-1"),
        ("SPOP s 3", "*0"),
        ("SRANDMEMBER s", "$-1"),
        ("SRANDMEMBER s -3", "*0"),
        ("SSCAN s 0", "*2 $1 0 *0"),
        ("SINTER s t", "*0"),
        ("SINTERCARD 2 s t", ":0"),
        ("SUNION s t", "*0"),
        ("SDIFF s t", "*0"),
        ("SINTERSTORE d s t", ":0"),
        ("SUNIONSTORE d s t", ":0"),
        ("SDIFFSTORE d s t", ":0"),
    ] {
        assert_eq!(bench.run(command), reply, "{command}");
    }
    assert!(bench.propagated().is_empty());
    bench.version = Version::Resp3;
    assert_eq!(
        (bench.run("SMEMBERS s"), bench.run("SPOP s 1"), bench.run("SRANDMEMBER s 1")),
        ("~0".into(), "~0".into(), "*0".into())
    );
}

#[test]
fn wrong_types_are_rejected() {
    let mut bench = bench();
    bench.run("SET x 1");
    bench.run("SADD s a");
    for command in [
        "SADD x a",
        "SREM x a",
        "SISMEMBER x a",
        "SMISMEMBER x a",
        "SCARD x",
        "SMEMBERS x",
        "SMOVE x s a",
        "SMOVE s x a",
        "SPOP x",
        "SPOP x 0",
        "SRANDMEMBER x",
        "SRANDMEMBER x 0",
        "SSCAN x 0",
        "SINTER none x",
        "SINTERCARD 2 s x",
        "SUNION s x",
        "SDIFF s x",
        "SINTERSTORE s none x",
        "SUNIONSTORE s s x",
        "SDIFFSTORE s x s",
    ] {
        assert_eq!(bench.run(command), WRONG_TYPE, "{command}");
    }
    assert_eq!(bench.run("SMOVE none x a"), ":0");
    assert_eq!(bench.run("SUNIONSTORE x s"), ":1");
    assert_eq!(bench.run("SMEMBERS x"), "*1 $1 a");
}

#[test]
fn smove_moves_a_member() {
    let mut bench = bench();
    bench.run("SADD s a b 1");
    bench.run("SADD t b");
    bench.propagated();
    assert_eq!(bench.run("SMOVE s t x"), ":0");
    assert_eq!(bench.run("SMOVE s s a"), ":1");
    assert_eq!(bench.run("SMOVE s s x"), ":0");
    assert!(bench.events().is_empty() && bench.propagated().is_empty());
    assert_eq!(bench.run("SMOVE s t b"), ":1");
    assert_eq!(bench.events(), ["srem"]);
    assert_eq!(bench.run("SMOVE s t a"), ":1");
    assert_eq!(bench.events(), ["srem", "sadd"]);
    assert_eq!(bench.run("SMOVE s u 1"), ":1");
    assert_eq!(bench.events(), ["srem", "del", "new", "sadd"]);
    assert_eq!(encoding(&mut bench, "u"), "intset");
    assert_eq!(bench.propagated(), ["SMOVE s t b", "SMOVE s t a", "SMOVE s u 1"]);
}

#[test]
fn encoding_follows_the_settings() {
    let mut bench = bench();
    add_numbered(&mut bench, "ints", "", 0..512);
    assert_eq!(encoding(&mut bench, "ints"), "intset");
    bench.run("SADD ints 512");
    assert_eq!(encoding(&mut bench, "ints"), "hashtable");
    add_numbered(&mut bench, "many", "", 0..513);
    assert_eq!(encoding(&mut bench, "many"), "hashtable");
    add_numbered(&mut bench, "words", "w", 0..128);
    assert_eq!(encoding(&mut bench, "words"), "listpack");
    bench.run("SADD words w");
    assert_eq!(encoding(&mut bench, "words"), "hashtable");
    bench.run("SADD mixed 1 a");
    assert_eq!(encoding(&mut bench, "mixed"), "listpack");
    bench.settings.encoding.set.listpack_value = 3;
    bench.run("SADD mixed long");
    assert_eq!(encoding(&mut bench, "mixed"), "hashtable");
    assert_eq!(members(&mut bench, "mixed"), of(["1", "a", "long"]));
}

#[test]
fn spop_removes_the_member() {
    let mut bench = bench();
    bench.run("SADD s a b c");
    bench.propagated();
    let popped = bench.run("SPOP s").rsplit(' ').next().unwrap_or_default().to_owned();
    assert_eq!(bench.events(), ["spop"]);
    assert_eq!(bench.propagated(), [format!("SREM s {popped}")]);
    let left = members(&mut bench, "s");
    assert!(left.len() == 2 && !left.contains(&popped));
    assert_eq!(bench.run("SPOP s 0"), "*0");
    assert!(bench.propagated().is_empty() && bench.events().is_empty());
    assert_eq!(words(&bench.run("SPOP s 7")).len(), 2);
    assert_eq!((bench.events(), bench.run("EXISTS s")), (vec!["spop", "del"], ":0".into()));
    assert_eq!(bench.propagated(), ["UNLINK s"]);
    bench.run("SADD s a");
    bench.propagated();
    assert_eq!((bench.run("SPOP s"), bench.events()), ("$1 a".into(), vec!["spop", "del"]));
    bench.settings.lazy_server_del = false;
    bench.run("SADD s a");
    assert_eq!(bench.run("SPOP s 1"), "*1 $1 a");
    assert_eq!(bench.propagated(), ["SREM s a", "SADD s a", "DEL s"]);
    for (command, error) in [
        ("SPOP s -1", "-ERR value is out of range, must be positive"),
        ("SPOP s x", "-ERR value is out of range, must be positive"),
        ("SPOP s 1 2", "-ERR syntax error"),
    ] {
        assert_eq!(bench.run(command), error);
    }
}

#[test]
fn popping_from_each_encoding_takes_distinct_members() {
    for prefix in ["", "w", "a word that is too long for a listpack, which takes up to sixty-four bytes:"] {
        let prefix = prefix.replace(' ', "_");
        for count in [1, 30, 84, 99] {
            let mut bench = bench();
            add_numbered(&mut bench, "s", &prefix, 0..100);
            bench.run("EXPIRE s 100");
            bench.propagated();
            let popped: BTreeSet<String> = words(&bench.run(&format!("SPOP s {count}"))).into_iter().collect();
            assert_eq!(bench.events(), ["spop"]);
            let left = members(&mut bench, "s");
            assert_eq!((popped.len(), left.len()), (count, 100 - count));
            assert!(popped.is_disjoint(&left));
            let removed: Vec<String> = bench.propagated();
            let removed: BTreeSet<String> =
                removed.iter().flat_map(|line| line.split(' ').skip(2)).map(String::from).collect();
            assert_eq!(removed, popped);
            assert_eq!(bench.run("TTL s"), ":100");
        }
    }
}

#[test]
fn many_popped_members_are_propagated_in_batches() {
    let mut bench = bench();
    add_numbered(&mut bench, "s", "member:", 0..5000);
    for (count, batches) in [(2500, vec![1024, 1024, 452]), (2300, vec![1024, 1024, 252])] {
        bench.propagated();
        assert_eq!(words(&bench.run(&format!("SPOP s {count}"))).len(), count);
        let lines: Vec<_> = bench.propagated().into_iter().filter(|line| line.starts_with("SREM s ")).collect();
        assert_eq!(lines.iter().map(|line| line.split(' ').count() - 2).collect::<Vec<_>>(), batches);
    }
    assert_eq!(bench.run("SCARD s"), ":200");
    assert_eq!(encoding(&mut bench, "s"), "hashtable");
    assert_eq!(words(&bench.run("SPOP s 180")).len(), 180);
    assert_eq!(encoding(&mut bench, "s"), "listpack", "the few that stay are put into a new set");
}

#[test]
fn random_members_with_and_without_replacement() {
    let mut bench = bench();
    for (key, prefix) in [("ints", ""), ("words", "w")] {
        add_numbered(&mut bench, key, prefix, 0..50);
    }
    add_numbered(&mut bench, "table", "member:", 0..200);
    for (key, len) in [("ints", 50), ("words", 50), ("table", 200)] {
        let all = members(&mut bench, key);
        for count in [1, 10, 40, 50, 1000] {
            let drawn = words(&bench.run(&format!("SRANDMEMBER {key} {count}")));
            let different: BTreeSet<String> = drawn.iter().cloned().collect();
            assert_eq!((drawn.len(), different.len()), (count.min(len), count.min(len)));
            assert!(different.is_subset(&all));
            let drawn = words(&bench.run(&format!("SRANDMEMBER {key} -{count}")));
            assert!(drawn.len() == count && drawn.iter().all(|member| all.contains(member)));
        }
        assert_eq!(bench.run(&format!("SRANDMEMBER {key} 0")), "*0");
        let mut hits = BTreeMap::<String, u32>::new();
        words(&bench.run(&format!("SRANDMEMBER {key} -{}", len * 200)))
            .into_iter()
            .for_each(|m| *hits.entry(m).or_default() += 1);
        assert!(hits.len() == len && hits.values().all(|hits| hits.abs_diff(200) < 100));
        assert_eq!(members(&mut bench, key), all);
    }
    let range = "-ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807";
    assert_eq!(bench.run("SRANDMEMBER ints -9223372036854775808"), range);
    assert_eq!(bench.run("SRANDMEMBER ints x"), "-ERR value is not an integer or out of range");
    assert_eq!(bench.run("SRANDMEMBER ints 1 2"), "-ERR syntax error");
}

#[test]
fn sets_intersect() {
    let mut bench = bench();
    bench.run("SADD a 1 2 3 x");
    bench.run("SADD b 2 3 4 x");
    bench.run("SADD c 3 x y");
    assert_eq!(words(&bench.run("SINTER a b c")).into_iter().collect::<BTreeSet<_>>(), of(["3", "x"]));
    assert_eq!(bench.run("SINTER a b none"), "*0");
    assert_eq!(words(&bench.run("SINTER a a")).len(), 4);
    for (command, reply) in [
        ("SINTERCARD 3 a b c", ":2"),
        ("SINTERCARD 2 a b", ":3"),
        ("SINTERCARD 2 a b LIMIT 2", ":2"),
        ("SINTERCARD 2 a b limit 0", ":3"),
        ("SINTERCARD 2 a b LIMIT 1 LIMIT 9", ":3"),
        ("SINTERCARD 0 a", "-ERR numkeys should be greater than 0"),
        ("SINTERCARD x a", "-ERR numkeys should be greater than 0"),
        ("SINTERCARD 3 a b", "-ERR Number of keys can't be greater than number of args"),
        ("SINTERCARD 1 a LIMIT -1", "-ERR LIMIT can't be negative"),
        ("SINTERCARD 1 a LIMIT x", "-ERR LIMIT can't be negative"),
        ("SINTERCARD 1 a LIMIT", "-ERR syntax error"),
        ("SINTERCARD 1 a b", "-ERR syntax error"),
    ] {
        assert_eq!(bench.run(command), reply, "{command}");
    }
}

#[test]
fn stored_results_replace_any_type() {
    let mut bench = bench();
    bench.run("SADD a 1 2 3 x");
    bench.run("SADD b 2 3 4");
    bench.run("SET d text EX 100");
    bench.propagated();
    assert_eq!(bench.run("SINTERSTORE d a b"), ":2");
    assert_eq!((bench.events(), bench.run("TTL d")), (vec!["sinterstore"], ":-1".into()));
    assert_eq!((members(&mut bench, "d"), encoding(&mut bench, "d")), (of(["2", "3"]), "intset".into()));
    assert_eq!(bench.run("SUNIONSTORE d a b none"), ":5");
    assert_eq!((bench.events(), encoding(&mut bench, "d")), (vec!["sunionstore"], "listpack".into()));
    assert_eq!(members(&mut bench, "d"), of(["1", "2", "3", "4", "x"]));
    assert_eq!(bench.run("SDIFFSTORE d b a"), ":1");
    assert_eq!((bench.events(), bench.run("SMEMBERS d")), (vec!["sdiffstore"], "*1 $1 4".into()));
    assert_eq!(bench.run("SDIFFSTORE a a b"), ":2");
    assert_eq!(bench.run("SINTERSTORE d a b"), ":0");
    assert_eq!((bench.events(), bench.run("EXISTS d")), (vec!["del"], ":0".into()));
    assert_eq!(
        bench.propagated(),
        ["SINTERSTORE d a b", "SUNIONSTORE d a b none", "SDIFFSTORE d b a", "SDIFFSTORE a a b", "SINTERSTORE d a b"]
    );
}

#[test]
fn differences_are_the_same_by_lookup_and_by_removal() {
    let mut bench = bench();
    add_numbered(&mut bench, "large", "", 0..1000);
    add_numbered(&mut bench, "part", "", 0..990);
    for n in 0..6 {
        add_numbered(&mut bench, &format!("few{n}"), "", n * 10..n * 10 + 5);
    }
    let difference = |bench: &mut Bench, line: &str| words(&bench.run(line)).into_iter().collect::<BTreeSet<_>>();
    let expected: BTreeSet<String> = (990..1000).map(|n| n.to_string()).collect();
    assert_eq!(difference(&mut bench, "SDIFF large part none"), expected);
    let expected: BTreeSet<String> = (0..1000).filter(|n| *n >= 60 || n % 10 >= 5).map(|n| n.to_string()).collect();
    let line = "few0 few1 few2 few3 few4 few5";
    assert_eq!(difference(&mut bench, &format!("SDIFF large {line}")), expected);
    assert_eq!(bench.run(&format!("SDIFFSTORE d large {line}")), ":970");
    assert_eq!(members(&mut bench, "d"), expected);
    for line in ["SDIFF large large", "SDIFF large part large", "SDIFF none large", "SDIFF few0 large few1"] {
        assert_eq!(bench.run(line), "*0", "{line}");
    }
}

#[test]
fn scan_lists_small_sets_at_once_and_large_sets_in_parts() {
    let mut bench = bench();
    bench.run("SADD ints 3 1 2 11");
    assert_eq!(bench.run("SSCAN ints 0 COUNT 1"), "*2 $1 0 *4 $1 1 $1 2 $1 3 $2 11");
    assert_eq!(bench.run("SSCAN ints 77 MATCH 1*"), "*2 $1 0 *2 $1 1 $2 11");
    add_numbered(&mut bench, "table", "member:", 0..1000);
    for (options, len) in [("", 1000), (" COUNT 100", 1000), (" MATCH member:9?", 10)] {
        let (mut cursor, mut seen, mut calls) = ("0".to_owned(), BTreeSet::new(), 0);
        loop {
            let reply = bench.run(&format!("SSCAN table {cursor}{options}"));
            let (head, list) = reply.split_once(" *").expect("two parts");
            cursor = head.rsplit(' ').next().expect("a cursor").to_owned();
            seen.extend(words(&format!("*{list}")).into_iter().filter(|word| !word.is_empty()));
            calls += 1;
            if cursor == "0" {
                break;
            }
        }
        let listed: BTreeSet<String> = seen.into_iter().filter(|word| word.starts_with("member:")).collect();
        assert!(listed.len() == len && calls > 1, "{options}: {} in {calls} calls", listed.len());
    }
    assert_eq!(bench.run("SSCAN ints x"), "-ERR invalid cursor");
    assert_eq!(bench.run("SSCAN ints 0 TYPE string"), "-ERR syntax error");
    assert_eq!(bench.run("SSCAN ints 0 NOVALUES"), "-ERR NOVALUES option can only be used in HSCAN");
    assert_eq!(bench.run("SSCAN none 0 TYPE string"), "*2 $1 0 *0");
}

#[test]
fn replies_are_sets_in_resp3() {
    let mut bench = bench();
    bench.version = Version::Resp3;
    bench.run("SADD s 1");
    for command in ["SMEMBERS s", "SINTER s", "SUNION s", "SDIFF s"] {
        assert_eq!(bench.run(command), "~1 $1 1", "{command}");
    }
    assert_eq!(bench.run("SRANDMEMBER s 1"), "*1 $1 1");
    assert_eq!(bench.run("SPOP s 1"), "~1 $1 1");
}
