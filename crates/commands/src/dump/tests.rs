//! Tests of DUMP and RESTORE.

use crate::testing::Bench;

fn bench() -> Bench {
    Bench::new(&[super::COMMANDS, crate::keys::COMMANDS, crate::string::COMMANDS, crate::list::COMMANDS])
}

/// Dumps a key; returns the payload.
fn dump(bench: &mut Bench, key: &str) -> Vec<u8> {
    let reply = bench.run_words(&[b"dump", key.as_bytes()]);
    let start = reply.windows(2).position(|pair| pair == b"\r\n").expect("a bulk string") + 2;
    reply[start..reply.len() - 2].to_vec()
}

fn restore(bench: &mut Bench, key: &str, ttl: &str, payload: &[u8], options: &[&str]) -> String {
    let mut words = vec![b"restore", key.as_bytes(), ttl.as_bytes(), payload];
    words.extend(options.iter().map(|word| word.as_bytes()));
    String::from_utf8_lossy(&bench.run_words(&words)).trim_end().to_owned()
}

#[test]
fn dump_and_restore_round_trip() {
    let mut bench = bench();
    bench.run("rpush list a 2 ccc");
    let payload = dump(&mut bench, "list");
    assert_eq!(restore(&mut bench, "other", "0", &payload, &[]), "+OK");
    assert_eq!(bench.run("lrange other 0 -1"), "*3 $1 a $1 2 $3 ccc");
    assert_eq!(bench.run("pttl other"), ":-1");
    assert_eq!(bench.events(), Vec::<&str>::new());
    assert_eq!(bench.run("dump nosuch"), "$-1");
}

#[test]
fn payload_matches_valkey_9() {
    let mut bench = bench();
    bench.run("set key 10");
    assert_eq!(dump(&mut bench, "key")[..5], [0, 0xc0, 10, 80, 0]);
}

#[test]
fn payload_is_compressed_unless_rdbcompression_is_off() {
    let mut bench = bench();
    bench.run(&format!("set key {}", "x".repeat(1000)));
    let compressed = dump(&mut bench, "key");
    bench.settings.rdb_compression = false;
    let plain = dump(&mut bench, "key");
    assert!(compressed.len() < 100 && plain.len() > 1000);
    assert_eq!(restore(&mut bench, "other", "0", &plain, &[]), "+OK");
    assert_eq!(bench.run("strlen other"), ":1000");
}

#[test]
fn times_are_relative_unless_absolute() {
    let mut bench = bench();
    bench.run("set key value");
    let payload = dump(&mut bench, "key");
    assert_eq!(restore(&mut bench, "a", "5000", &payload, &[]), "+OK");
    assert_eq!(bench.run("pttl a"), ":5000");
    let at = (bench.now_ms + 7000).to_string();
    assert_eq!(restore(&mut bench, "b", &at, &payload, &["ABSTTL"]), "+OK");
    assert_eq!(bench.run("pttl b"), ":7000");
    // The expiry time has passed: the key does not exist afterwards, even if it did before.
    assert_eq!(restore(&mut bench, "a", "1", &payload, &["absttl", "replace"]), "+OK");
    assert_eq!(bench.run("exists a"), ":0");
}

#[test]
fn existing_key_is_replaced_only_with_replace() {
    let mut bench = bench();
    bench.run("set key value");
    let payload = dump(&mut bench, "key");
    bench.run("rpush key2 x");
    assert_eq!(restore(&mut bench, "key2", "0", &payload, &[]), "-BUSYKEY Target key name already exists.");
    assert_eq!(restore(&mut bench, "key2", "0", &payload, &["REPLACE"]), "+OK");
    assert_eq!(bench.run("get key2"), "$5 value");
}

#[test]
fn idle_time_and_frequency_are_kept() {
    let mut bench = bench();
    bench.run("set key value");
    let payload = dump(&mut bench, "key");
    assert_eq!(restore(&mut bench, "a", "0", &payload, &["IDLETIME", "1000"]), "+OK");
    assert_eq!(bench.run("object idletime a"), ":1000");
    bench.settings.lfu = true;
    assert_eq!(restore(&mut bench, "b", "0", &payload, &["FREQ", "100"]), "+OK");
    assert_eq!(bench.run("object freq b"), ":100");
}

#[test]
fn errors_are_checked_in_order() {
    let mut bench = bench();
    bench.run("set key value");
    let payload = dump(&mut bench, "key");
    let cases: [(&str, &str, &[&str], &str); 10] = [
        ("a", "x", &["nonsense"], "-ERR syntax error"),
        ("a", "0", &["idletime"], "-ERR syntax error"),
        ("a", "0", &["idletime", "1", "freq", "1"], "-ERR syntax error"),
        ("a", "0", &["idletime", "x"], "-ERR value is not an integer or out of range"),
        ("a", "0", &["idletime", "-1"], "-ERR Invalid IDLETIME value, must be >= 0"),
        ("a", "0", &["freq", "256"], "-ERR Invalid FREQ value, must be >= 0 and <= 255"),
        ("key", "x", &[], "-BUSYKEY Target key name already exists."),
        ("a", "x", &[], "-ERR value is not an integer or out of range"),
        ("a", "-1", &[], "-ERR Invalid TTL value, must be >= 0"),
        ("a", "1", &["REPLACE"], "+OK"),
    ];
    for (key, ttl, options, reply) in cases {
        assert_eq!(restore(&mut bench, key, ttl, &payload, options), reply, "{key} {ttl} {options:?}");
    }
    let wrong = "-ERR DUMP payload version or checksum are wrong";
    assert_eq!(restore(&mut bench, "b", "0", &payload[..payload.len() - 1], &[]), wrong);
    assert_eq!(restore(&mut bench, "b", "0", b"", &[]), wrong);
}

#[test]
fn corrupt_payload_is_logged() {
    let mut bench = bench();
    // A list of one listpack whose header claims a greater length; the checksum is valid.
    let listpack = [11, 0, 0, 0, 1, 0, 0x81, b'a', 2, 0xff];
    let payload =
        [&[18, 1, 2, 10][..], &listpack, &[80, 0], &[0xfb, 0x5e, 0x35, 0x56, 0xf9, 0xc5, 0x7c, 0x71]].concat();
    assert_eq!(restore(&mut bench, "list", "0", &payload, &[]), "-ERR Bad data format");
    let remark = bench.log_message.take().expect("a reason");
    assert!(remark.starts_with("Internal error in RDB reading offset "), "{remark}");
    assert!(remark.ends_with(" -> Listpack integrity check failed."), "{remark}");
    bench.run("rpush list b");
    assert_eq!(bench.log_message, None);
}
