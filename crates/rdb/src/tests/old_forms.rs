//! Tests of every obsolete format, built by hand.

use super::{describe, file, read_all, record, relaxed, string};
use crate::samples::{ziplist, zipmap};
use crate::{Loaded, ReadOptions};
use kvick_store::encodings::listpack::Listpack;

/// The result of loading a single value in this format.
fn read(version: u32, kind: u8, value: &[u8]) -> Vec<String> {
    match read_all(&file(version, &record(kind, value)), relaxed()).expect("a sound file").as_slice() {
        [(_, Loaded::Value(value))] => describe(value),
        other => panic!("{other:?}"),
    }
}

fn listpack(elements: &[&str]) -> Vec<u8> {
    let mut listpack = Listpack::new();
    elements.iter().for_each(|element| listpack.push_back(element.as_bytes()));
    string(listpack.bytes())
}

fn old(elements: &[&str]) -> Vec<u8> {
    string(&ziplist(elements.iter().map(|element| element.as_bytes())))
}

#[test]
fn lists() {
    assert_eq!(read(2, 1, b"\x03\x01a\xc0\x05\x00"), ["listpack", "a", "5", ""]);
    assert_eq!(read(3, 10, &old(&["a", "1000", "b"])), ["listpack", "a", "1000", "b"]);
    let quicklist = [&b"\x02"[..], &old(&["a", "b"]), &old(&["c"])].concat();
    assert_eq!(read(7, 14, &quicklist), ["quicklist", "a", "b", "c"]);
    let quicklist = [&b"\x03\x02"[..], &listpack(&["a", "7"]), b"\x01\x03big", b"\x02", &listpack(&[])].concat();
    assert_eq!(read(10, 18, &quicklist), ["quicklist", "a", "7", "big"]);
}

#[test]
fn sets() {
    assert_eq!(read(1, 2, b"\x02\x01b\x01a"), ["listpack", "a", "b"]);
    assert_eq!(read(1, 2, b"\x02\xc0\x01\xc0\x02"), ["intset", "1", "2"]);
    let intset = b"\x02\x00\x00\x00\x02\x00\x00\x00\xff\xff\x07\x00";
    assert_eq!(read(4, 11, &string(intset)), ["intset", "-1", "7"]);
    assert_eq!(read(11, 20, &listpack(&["b", "9"])), ["listpack", "9", "b"]);
}

#[test]
fn sorted_sets() {
    let decimal = b"\x04\x01a\x041.25\x01b\xfe\x01c\xff\x01d\x02-3";
    assert_eq!(read(5, 3, decimal), ["listpack", "c -inf", "d -3.0", "a 1.25", "b inf"]);
    let binary = [&b"\x01\x01a"[..], &2.5f64.to_le_bytes()].concat();
    assert_eq!(read(8, 5, &binary), ["listpack", "a 2.5"]);
    assert_eq!(read(6, 12, &old(&["a", "1", "b", "2.5"])), ["listpack", "a 1.0", "b 2.5"]);
    assert_eq!(read(10, 17, &listpack(&["a", "1", "b", "2.5"])), ["listpack", "a 1.0", "b 2.5"]);
    // In another order than ours.
    assert_eq!(read(10, 17, &listpack(&["b", "2", "a", "1"])), ["listpack", "a 1.0", "b 2.0"]);
}

#[test]
fn hashes() {
    assert_eq!(read(1, 4, b"\x01\x01f\x01v"), ["listpack", "f=v None"]);
    let pairs: [(&[u8], &[u8]); 2] = [(b"f1", b"v1"), (b"f2", b"22")];
    assert_eq!(read(2, 9, &string(&zipmap(pairs))), ["listpack", "f1=v1 None", "f2=22 None"]);
    assert_eq!(read(6, 13, &old(&["f", "v", "g", "7"])), ["listpack", "f=v None", "g=7 None"]);
    assert_eq!(read(10, 16, &listpack(&["f", "v"])), ["listpack", "f=v None"]);
}

#[test]
fn hashes_with_expiry() {
    let (at, never) = (5000i64.to_le_bytes(), (-1i64).to_le_bytes());
    let fields = [&b"\x02\x01f\x01v"[..], &at, b"\x01g\x01w", &never].concat();
    assert_eq!(read(80, 22, &fields), ["hashtable", "f=v Some(5000)", "g=w None"]);
    // Redis 7.4: the earliest expiry; then 0 or the difference to it plus one.
    let fields = [&at[..], b"\x03\x00\x01f\x01v\x01\x01g\x01w\x0b\x01h\x01x"].concat();
    assert_eq!(read(12, 24, &fields), ["hashtable", "f=v None", "g=w Some(5000)", "h=x Some(5010)"]);
    let triples = listpack(&["f", "v", "0", "g", "w", "5000"]);
    assert_eq!(read(12, 25, &[&at[..], &triples].concat()), ["hashtable", "f=v None", "g=w Some(5000)"]);
    // Its release candidates: no earliest expiry.
    assert_eq!(read(12, 23, &triples), ["hashtable", "f=v None", "g=w Some(5000)"]);
    assert_eq!(read(12, 22, b"\x02\x00\x01f\x01v\x53\x88\x01g\x01w"), ["hashtable", "f=v None", "g=w Some(5000)"]);
}

#[test]
fn expired_fields_are_skipped_and_reported() {
    let at = 5000i64.to_le_bytes();
    let body = record(22, &[&b"\x01\x01f\x01v"[..], &at].concat());
    let mut options = ReadOptions::default();
    options.values.expire_fields_before_ms = Some(5001);
    let entries = read_all(&file(80, &body), options).expect("a sound file");
    assert!(matches!(entries.as_slice(), [(_, Loaded::Expired)]));
}

#[test]
fn streams_of_all_three_versions() {
    let id = |ms: u64, seq: u64| [ms.to_be_bytes(), seq.to_be_bytes()].concat();
    let block = listpack(&["1", "0", "1", "f", "0", "2", "0", "0", "v", "4"]);
    let blocks = [&b"\x01"[..], &string(&id(9, 1)), &block].concat();
    // Length, last ID; then first ID, greatest deleted ID, number of entries ever added.
    let (old_log, log) = (&b"\x01\x09\x01"[..], &b"\x01\x09\x01\x09\x01\x00\x00\x01"[..]);
    let seen = 77i64.to_le_bytes();
    let pending = [&b"\x01"[..], &id(9, 1), &seen, b"\x03"].concat();
    let consumer = |active: &[u8]| [&b"\x01\x01c"[..], &seen, active, b"\x01", &id(9, 1)].concat();
    let versions = [
        (15, [&blocks, old_log, b"\x01\x01g\x09\x01", &pending, &consumer(b"")].concat()),
        (19, [&blocks, log, b"\x01\x01g\x09\x01\x01", &pending, &consumer(b"")].concat()),
        (21, [&blocks, log, b"\x01\x01g\x09\x01\x01", &pending, &consumer(&seen)].concat()),
    ];
    let [first, second, third] = versions.map(|(kind, value)| read(11, kind, &value));
    assert_eq!(first, second);
    assert_eq!(second, third);
    assert!(third.iter().any(|line| line.contains("(77, 77)")), "{third:?}");
}

#[test]
fn empty_collections_are_reported_as_such() {
    for (kind, value) in [(1, &b"\x00"[..]), (2, b"\x00"), (5, b"\x00"), (4, b"\x00"), (14, b"\x00")] {
        let entries = read_all(&file(9, &record(kind, value)), ReadOptions::default()).expect("a sound file");
        assert!(matches!(entries.as_slice(), [(_, Loaded::Empty)]), "{kind}");
    }
}

#[test]
fn module_data_is_skipped_or_refused() {
    // The name of a module's type, then tagged parts: an integer, a float, a double, a string, the end.
    let value = [&b"\x81AAAAAAA\x01"[..], b"\x02\x07\x03ffff\x04dddddddd\x05\x03abc\x00"].concat();
    let dump = file(9, &record(7, &value));
    let entries = read_all(&dump, relaxed()).expect("a sound file");
    assert!(matches!(entries.as_slice(), [(_, Loaded::Module(_))]));
    let error = read_all(&dump, ReadOptions::default()).expect_err("it would be lost");
    assert!(error.to_string().contains("no matching module type"), "{error}");
}

#[test]
fn expiry_usage_and_hints_are_read() {
    let body = [
        &b"\xfe\x02\xfb\x01\x01\xfa\x03abc\x01d\xf4\x05\x01\x00"[..],
        b"\xfd\x01\x00\x00\x00\xf9\x09",
        &record(0, b"\x01v"),
        b"\xfc\x02\x00\x00\x00\x00\x00\x00\x00\xf8\x0a",
        &record(0, b"\x01w"),
    ]
    .concat();
    let dump = file(9, &body);
    let mut reader = crate::Reader::new(&dump[..], ReadOptions::default()).expect("a sound file");
    let mut lines = Vec::new();
    while let Some(event) = reader.next_event().expect("a sound file") {
        lines.push(match event {
            crate::Event::Entry(record) => format!("{:?} {:?}", record.expiry_ms, record.usage),
            event => format!("{event:?}"),
        });
    }
    let expected = [
        "SelectDb(2)",
        "ResizeDb { keys: 1, volatile: 1 }",
        "Aux { name: [97, 98, 99], value: [100] }",
        "SlotInfo { slot: 5, keys: 1, volatile: 0 }",
        "Some(1000) Frequency(9)",
        "Some(2) IdleSeconds(10)",
        "End(Absent)",
    ];
    assert_eq!(lines, expected);
}
