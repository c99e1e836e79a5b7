//! Tests of dumps that old servers wrote, in the directory `KVICK_TEST_DUMPS`: Valkey's `tests/assets`.

use super::{describe, read_all, relaxed};
use crate::Loaded;
use std::path::PathBuf;

/// The contents of a dump by name; `None`, with a message, if the directory does not exist.
fn read(name: &str) -> Option<Vec<(String, Vec<String>)>> {
    let Some(dir) = std::env::var_os("KVICK_TEST_DUMPS").map(PathBuf::from) else {
        eprintln!("KVICK_TEST_DUMPS is not set: {name} was not read");
        return None;
    };
    let bytes = std::fs::read(dir.join(name)).expect("the directory contains the dumps");
    let entries = read_all(&bytes, relaxed()).expect("a sound dump");
    let described = entries.into_iter().map(|(key, value)| {
        let lines = if let Loaded::Value(value) = value { describe(&value) } else { vec![format!("{value:?}")] };
        (String::from_utf8_lossy(&key).into_owned(), lines)
    });
    Some(described.collect())
}

#[test]
fn zipmaps_of_redis_2_4() {
    let Some(entries) = read("hash-zipmap.rdb") else { return };
    assert_eq!(entries, [("hash".to_owned(), ["listpack", "f1=v1 None", "f2=v2 None"].map(str::to_owned).to_vec())]);
}

#[test]
fn hashes_and_sorted_sets_of_redis_6() {
    let Some(entries) = read("hash-ziplist.rdb") else { return };
    assert_eq!(entries[0].1, ["listpack", "f1=v1 None", "f2=v2 None"]);
    let Some(entries) = read("zset-ziplist.rdb") else { return };
    assert_eq!(entries[0].1, ["listpack", "one 1.0", "two 2.0"]);
}

#[test]
fn lists_of_redis_4() {
    let Some(entries) = read("list-quicklist.rdb") else { return };
    let list = entries.iter().find(|(key, _)| key == "list").expect("it has one");
    assert_eq!(list.1[1..], ["7"]);
}

#[test]
fn every_encoding_of_old_servers() {
    let Some(entries) = read("encodings.rdb") else { return };
    assert_eq!(entries.len(), 13);
    let of = |key: &str| entries.iter().find(|(name, _)| name == key).map_or(&[][..], |(_, lines)| lines);
    assert_eq!(of("number"), ["string", "10"]);
    assert_eq!(of("set_zipped_1").first().map(String::as_str), Some("intset"));
    assert_eq!(of("zset_zipped").len(), 4);
}

#[test]
fn empty_collections_written_by_old_servers() {
    let Some(entries) = read("corrupt_empty_keys.rdb") else { return };
    assert_eq!(entries.len(), 9);
    assert!(entries.iter().all(|(_, lines)| lines == &["Empty"]), "{entries:?}");
}
