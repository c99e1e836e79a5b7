//! Tests of invalid input: reading ends with an error at the right offset.

use super::{file, payload, read_all, record, relaxed, round_trip, string};
use crate::samples::{ziplist, zipmap};
use crate::value::ValueRef;
use crate::{
    ErrorKind, ReadOptions, Record, RestoreError, Usage, ValueOptions, VersionCheck, WriteOptions, Writer, restore,
};
use kvick_store::{Str, Value};

/// A dump with a value of every type, including obsolete ones.
fn sample() -> Vec<u8> {
    let entries = ["field", "12", "other", "3.5", "third", "70000", "last", "x"];
    let old = string(&ziplist(entries.iter().map(|entry| entry.as_bytes())));
    let scores = string(&ziplist(["a", "1", "b", "2.5"].iter().map(|entry| entry.as_bytes())));
    let pairs: [(&[u8], &[u8]); 2] = [(b"f1", b"v1"), (b"f2", b"22")];
    let at = 5000i64.to_le_bytes();
    let mut body = [
        record(0, b"\x05hello"),
        record(0, b"\xc1\x39\x30"),
        record(1, b"\x02\x01a\x01b"),
        record(2, b"\x02\x01a\x01b"),
        record(3, b"\x02\x01a\x031.5\x01b\xfe"),
        record(4, b"\x01\x01f\x01v"),
        record(9, &string(&zipmap(pairs))),
        record(10, &old),
        record(11, &string(b"\x02\x00\x00\x00\x02\x00\x00\x00\xff\xff\x07\x00")),
        record(12, &scores),
        record(13, &old),
        record(14, &[&b"\x02"[..], &old, &scores].concat()),
        record(22, &[&b"\x01\x01f\x01v"[..], &at].concat()),
    ]
    .concat();
    let mut compressed = Vec::new();
    let long = Record {
        key: b"long",
        value: ValueRef::Str(Str::Bytes(&[b'x'; 500])),
        expiry_ms: Some(1),
        usage: Usage::Frequency(1),
    };
    crate::save_record(&mut compressed, &long, &WriteOptions::default()).expect("a vector");
    body.extend(compressed);
    // The current types, from payloads without their footers.
    let stream = payload(&round_trip::stream());
    body.extend(record(stream[0], &stream[1..stream.len() - 10]));
    file(80, &body)
}

#[test]
fn a_dump_truncated_anywhere_is_truncated_not_corrupt() {
    let dump = sample();
    assert!(read_all(&dump, relaxed()).is_ok());
    for length in 0..dump.len() {
        let error = read_all(&dump[..length], relaxed()).expect_err("it is cut");
        assert!(error.is_short(), "{length}: {error}");
        assert_eq!(error.offset, length as u64, "{error}");
    }
}

#[test]
fn a_flipped_bit_is_detected_by_the_checksum_or_before() {
    let mut writer = Writer::new(Vec::new(), WriteOptions::default()).expect("a vector");
    let body = sample();
    writer.captured(&body[9..body.len() - 9]).expect("a vector");
    let (dump, _) = writer.finish().expect("a vector");
    assert!(read_all(&dump, ReadOptions::default()).is_ok());
    for bit in 0..dump.len() * 8 {
        let mut changed = dump.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let error = read_all(&changed, ReadOptions::default()).expect_err("it is changed");
        assert!(error.offset <= dump.len() as u64, "{bit}: {error}");
    }
}

#[test]
fn changes_to_a_dump_without_checksum_are_harmless() {
    let dump = sample();
    for bit in 0..dump.len() * 8 {
        let mut changed = dump.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let _ = read_all(&changed, relaxed());
    }
    for position in 9..dump.len() {
        for byte in [0x00, 0x3f, 0x7f, 0x80, 0x81, 0xc3, 0xfe, 0xff] {
            let mut changed = dump.clone();
            changed[position] = byte;
            let _ = read_all(&changed, relaxed());
        }
    }
}

#[test]
fn claimed_lengths_reserve_no_memory() {
    // Four gigabytes, the maximum, and more elements than possible.
    let claims: [&[u8]; 4] = [
        b"\x80\xff\xff\xff\xff",
        b"\x81\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff",
        b"\xc3\x05\x81\x00\x00\xff\xff\xff\xff\xff\xffhello",
    ];
    for claim in claims {
        for kind in (0..=22).filter(|kind| ![6, 7, 8].contains(kind)) {
            let dump = [&b"VALKEY080"[..], &record(kind, claim), b"ten bytes!"].concat();
            assert!(read_all(&dump, ReadOptions::default()).is_err(), "{kind} {claim:?}");
        }
    }
}

#[test]
fn signatures_and_versions_are_checked() {
    let kind_of = |dump: &[u8], options| read_all(dump, options).expect_err("it is refused").kind;
    assert!(matches!(kind_of(b"REDIX0011\xff", relaxed()), ErrorKind::Signature(_)));
    for (signature, version) in [("REDIS0000", 0), ("REDIS0080", 80), ("VALKEY011", 11), ("REDIS00x1", 0)] {
        let found = kind_of(format!("{signature}\u{1}").as_bytes(), relaxed());
        assert!(matches!(found, ErrorKind::Version(found) if found == version), "{signature}");
    }
    assert!(matches!(kind_of(&file(12, b""), ReadOptions::default()), ErrorKind::Version(12)));
    assert!(read_all(&file(12, b""), relaxed()).is_ok());
    let foreign = kind_of(&file(75, &record(150, b"")), relaxed());
    assert!(matches!(foreign, ErrorKind::Foreign { byte: 150, version: 75 }));
    let unknown = kind_of(&file(987, &record(150, b"")), relaxed());
    assert!(matches!(unknown, ErrorKind::UnknownType { byte: 150, version: 987 }));
}

#[test]
fn duplicates_are_refused() {
    let old = string(&ziplist(["a", "1", "a", "2"].iter().map(|entry| entry.as_bytes())));
    let pairs: [(&[u8], &[u8]); 2] = [(b"f", b"1"), (b"f", b"2")];
    let at = 5000i64.to_le_bytes();
    let bodies = [
        record(2, b"\x02\x01a\x01a"),
        record(3, b"\x02\x01a\x011\x01a\x012"),
        record(4, b"\x02\x01f\x01v\x01f\x01w"),
        record(9, &string(&zipmap(pairs))),
        record(11, &string(b"\x02\x00\x00\x00\x02\x00\x00\x00\x07\x00\x07\x00")),
        record(12, &old),
        record(13, &old),
        record(22, &[&b"\x02\x01f\x01v"[..], &at, b"\x01f\x01w", &at].concat()),
    ];
    for body in bodies {
        let error = read_all(&file(80, &body), relaxed()).expect_err("it is there twice");
        assert!(matches!(error.kind, ErrorKind::Corrupt(_)), "{}: {error}", body[0]);
    }
}

#[test]
fn an_invalid_score_differs_from_a_broken_encoding() {
    let ziplist = string(&ziplist(["m1", "nan", "m2", "2.5"].iter().map(|entry| entry.as_bytes())));
    let listpack = string(b"\x0f\0\0\0\x02\0\x81m\x02\x83nan\x04\xff");
    for (body, form) in [
        (record(3, b"\x01\x01m\xfd"), "Zset"),
        (record(5, &[b"\x01\x01m", &f64::NAN.to_le_bytes()[..]].concat()), "Zset"),
        (record(12, &ziplist), "Zset ziplist"),
        (record(17, &listpack), "Zset listpack"),
    ] {
        let error = read_all(&file(80, &body), relaxed()).expect_err("no number");
        assert_eq!(error.kind.to_string(), format!("{form} with NAN score detected"));
    }
}

#[test]
fn payload_errors_have_valkeys_texts() {
    let value = Value::Bytes(b"some text".to_vec());
    let sound = payload(&value);
    let refused = |payload: &[u8]| restore(payload, VersionCheck::Strict, true, &ValueOptions::default()).unwrap_err();
    for length in 0..sound.len() {
        assert!(matches!(refused(&sound[..length]), RestoreError::VersionOrChecksum), "{length}");
    }
    for bit in 0..sound.len() * 8 {
        let mut changed = sound.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(refused(&changed).to_string(), "DUMP payload version or checksum are wrong");
    }
    let unchecked = |payload: &[u8]| {
        restore(payload, VersionCheck::Relaxed, false, &ValueOptions::default()).unwrap_err().to_string()
    };
    let with_footer = |body: &[u8], version: u8| [body, &[version, 0], &[0; 8]].concat();
    assert_eq!(unchecked(&with_footer(b"\x16\x01", 13)), "Unsupported foreign data type: 22");
    assert_eq!(unchecked(&with_footer(b"\x63\x01", 80)), "Bad data format");
    assert_eq!(unchecked(&with_footer(b"\x00\x09short", 80)), "Bad data format");
    assert_eq!(unchecked(&with_footer(b"\x02\x00", 80)), "Bad data format");
}
