//! Tests of round trips: values of every kind in every encoding, and dumps of them.

use super::{describe, payload, read_all};
use crate::aof::commands;
use crate::{
    Event, Gradual, Loaded, Preface, ReadOptions, Reader, Record, Usage, ValueOptions, ValueRef, VersionCheck,
    WriteError, WriteOptions, Writer, restore, save_record, value_len,
};
use kvick_store::collections::stream::{Id, Loader};
use kvick_store::collections::{hash, list, set, sorted_set};
use kvick_store::snapshot::pieces::Piece;
use kvick_store::{Expiry, Hash, IntBuf, List, Set, SortedSet, Value};
use proptest::collection::vec;
use proptest::prelude::*;

/// Strings of all formats: integers of all widths, repetitive text, noise, long ones.
fn strings() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        (any::<i64>(), 0..64u32).prop_map(|(number, shift)| (number >> shift).to_string().into_bytes()),
        vec(any::<u8>(), 0..40),
        ("[ab]{1,3}", 1..80usize).prop_map(|(text, times)| text.repeat(times).into_bytes()),
        (any::<u8>(), 60..6_000usize).prop_map(|(byte, len)| (0..len).map(|i| byte ^ (i / 7) as u8).collect()),
    ]
}

fn scores() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>().prop_filter("scores are numbers", |score| !score.is_nan()), (-9..9i32).prop_map(f64::from)]
}

fn lists() -> impl Strategy<Value = Value> {
    let limits = (prop_oneof![Just(-2), Just(-1), Just(4)], 0..2u32);
    (vec(strings(), 1..60), limits).prop_map(|(elements, (max_listpack_size, compress_depth))| {
        let mut builder = list::Builder::new(list::Limits { max_listpack_size, compress_depth });
        elements.iter().for_each(|element| builder.element(element));
        let list: List = builder.finish();
        list.into()
    })
}

fn sets() -> impl Strategy<Value = Value> {
    let members = prop_oneof![
        vec(strings(), 1..200),
        vec((any::<i64>(), 0..64u32).prop_map(|(number, shift)| (number >> shift).to_string().into_bytes()), 1..60),
    ];
    members.prop_map(|members| {
        let limits = set::Limits { intset_entries: 50, listpack_entries: 128, listpack_value: 64 };
        let mut set = Set::for_first(&members[0], members.len(), &limits);
        members.iter().for_each(|member| _ = set.insert(member, &limits));
        set.into()
    })
}

fn sorted_sets() -> impl Strategy<Value = Value> {
    vec((strings(), scores()), 1..200).prop_map(|elements| {
        let limits = sorted_set::Limits { entries: 128, value: 64 };
        let mut sorted_set = SortedSet::new();
        elements.iter().for_each(|(member, score)| _ = sorted_set.insert(member, *score, limits));
        sorted_set.into()
    })
}

fn hashes() -> impl Strategy<Value = Value> {
    let expiry = prop_oneof![3 => Just(None), 1 => (0..1i64 << 44).prop_map(Some)];
    (any::<bool>(), vec((strings(), strings(), expiry), 1..100)).prop_map(|(volatile, fields)| {
        let limits = hash::Limits { fields: 80, bytes: 64 };
        let mut hash = Hash::new();
        for (name, value, expiry) in &fields {
            let expiry = expiry.filter(|_| volatile).map_or(Expiry::None, Expiry::At);
            hash.set(name, value, expiry, hash::FieldClock::ALL, limits);
        }
        hash.into()
    })
}

fn values() -> impl Strategy<Value = Value> {
    let strings =
        strings().prop_map(|bytes| match std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok()) {
            Some(number) if i64::to_string(&number).as_bytes() == bytes => Value::Int(number),
            _ => Value::Bytes(bytes),
        });
    prop_oneof![strings, lists(), sets(), sorted_sets(), hashes()]
}

/// Options under which values keep the encodings that the strategies chose.
fn large_limits() -> ValueOptions {
    let mut options = ValueOptions::default();
    (options.encoding.hash.fields, options.encoding.set.intset_entries) = (80, 50);
    options
}

/// A stream with deleted entries and groups.
pub fn stream() -> Value {
    let mut block = kvick_store::encodings::listpack::Listpack::new();
    // The header of a block: 2 live, 1 deleted, one field named f.
    let head: [&[u8]; 5] = [b"2", b"1", b"1", b"f", b"0"];
    // Flags (2: the same fields, 1: deleted), difference of the ID, values, number of preceding elements.
    let entries: [&[&[u8]]; 3] = [
        &[b"2", b"0", b"0", b"v1", b"4"],
        &[b"3", b"1", b"0", b"v2", b"4"],
        &[b"0", b"2", b"5", b"1", b"g", b"v3", b"6"],
    ];
    head.iter().chain(entries.iter().copied().flatten()).for_each(|element| block.push_back(element));
    let mut loader = Loader::default();
    loader.block(Id::new(1000, 1), block.bytes()).expect("a sound block");
    let history = kvick_store::collections::stream::History {
        first_id: Id::new(1000, 1),
        max_deleted_id: Id::new(1001, 1),
        entries_added: 3,
    };
    let mut stream = loader.finish(2, Id::new(2000, 0), Some(history)).expect("as many as there are");
    let (_, groups) = stream.groups_mut();
    let group = groups.create(b"group", Id::new(1002, 6), Some(3)).expect("the first");
    group.load_pending(Id::new(1000, 1), 5000, 2).expect("once");
    group.load_pending(Id::new(1002, 6), 6000, 1).expect("once");
    let alice = group.load_consumer(b"alice", 7000, 6500).expect("the first");
    group.load_consumer(b"bob", 7001, -1).expect("the second");
    for id in [Id::new(1000, 1), Id::new(1002, 6)] {
        group.load_owner(id, alice).expect("pending");
    }
    groups.create(b"idle", Id::MIN, None).expect("another");
    stream.into()
}

#[test]
fn streams_round_trip_with_their_groups() {
    let stream = stream();
    let restored = restore(&payload(&stream), VersionCheck::Strict, true, &ValueOptions::default());
    assert_eq!(describe(&restored.expect("it was dumped")), describe(&stream));
}

/// Calls `take` with the pieces of a value that can be captured
/// in pieces, in the order of dumps; returns whether it can be.
fn take_pieces(value: ValueRef<'_>, mut take: impl FnMut(Piece<'_>)) -> bool {
    let text = &mut IntBuf::default();
    match value {
        ValueRef::Set(set) if matches!(set.encoded(), set::Encoded::Table(_)) => {
            set.iter().for_each(|member| take(Piece::Member(member.bytes(text))));
        }
        ValueRef::SortedSet(sorted_set) if sorted_set.listpack().is_none() => {
            let elements = sorted_set.range_rev(0..usize::MAX);
            elements.for_each(|(member, score)| take(Piece::Scored(member.bytes(text), score)));
        }
        ValueRef::Hash(hash) if !hash.is_packed() => {
            hash.iter().for_each(|field| take(Piece::Field(field)));
        }
        ValueRef::List(list) if list.listpack().is_none() => {
            let (blocks, _) = list.blocks().expect("it has some");
            blocks.for_each(|block| take(Piece::ListBlock(block)));
        }
        ValueRef::Stream(stream) => {
            stream.log().blocks().for_each(|(id, block)| take(Piece::StreamBlock(id, block)));
        }
        _ => return false,
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn writing_in_pieces_equals_writing_at_once(
        value in prop_oneof![sets(), sorted_sets(), hashes(), lists(), Just(stream())],
        expiry_ms in prop::option::of(0..i64::MAX),
        compress: bool,
    ) {
        let options = WriteOptions { compress, ..WriteOptions::default() };
        let record =
            Record { key: b"key", value: ValueRef::from(&value), expiry_ms, usage: Usage::Frequency(7) };
        let (mut whole, mut pieces) = (Vec::new(), Vec::new());
        prop_assert!(save_record(&mut whole, &record, &options).is_ok());
        let gradual = Gradual::begin(&mut pieces, &record, &options).expect("it can be expressed");
        if take_pieces(record.value, |piece| gradual.piece(&mut pieces, piece)) {
            gradual.end(&mut pieces);
            prop_assert!(pieces == whole);
        }
        let (mut whole, mut pieces) = (Vec::new(), Vec::new());
        commands::rebuild(&mut whole, &record);
        let mut gradual = commands::Gradual::begin(&record);
        if take_pieces(record.value, |piece| gradual.piece(&mut pieces, piece)) {
            gradual.end(&mut pieces);
            match record.value {
                // Elements come in another order, and so do requests.
                ValueRef::Hash(_) | ValueRef::SortedSet(_) => prop_assert_eq!(pieces.len(), whole.len()),
                _ => prop_assert!(pieces == whole),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn payloads_keep_the_encoding(value in values()) {
        let restored = restore(&payload(&value), VersionCheck::Strict, true, &large_limits());
        let restored = restored.map_err(|error| TestCaseError::fail(format!("{error:?}")))?;
        prop_assert_eq!(describe(&restored), describe(&value));
    }

    #[test]
    fn serialized_lengths_exclude_type_version_and_checksum(value in values()) {
        let len = value_len(ValueRef::from(&value), &WriteOptions::default());
        prop_assert_eq!(len.ok(), Some(payload(&value).len() as u64 - 11));
    }

    #[test]
    fn changed_payloads_fail_or_give_a_value_that_can_be_dumped(
        value in values(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut changed = payload(&value);
        let body = changed.len() - 10;
        for (place, byte) in changes {
            changed[place.index(body)] = byte;
        }
        if let Ok(value) = restore(&changed, VersionCheck::Strict, false, &large_limits()) {
            prop_assert!(restore(&payload(&value), VersionCheck::Strict, true, &large_limits()).is_ok());
        }
    }

    #[test]
    fn dumps_round_trip_with_all_options(
        entries in vec((vec(any::<u8>(), 0..30), values(), prop::option::of(0..i64::MAX), 0..3u8), 0..8),
        compress: bool,
        checksum: bool,
    ) {
        let options = WriteOptions { compress, checksum, ..WriteOptions::default() };
        let mut writer = Writer::new(Vec::new(), options)?;
        writer.preface(&Preface { valkey_version: "9.1.0", created_s: 7, ..Preface::default() })?;
        writer.function(b"#!lua name=x")?;
        writer.select_db(5, entries.len() as u64, 0)?;
        for (index, (key, value, expiry_ms, usage)) in entries.iter().enumerate() {
            let usage = [Usage::Unknown, Usage::IdleSeconds(1 << 20), Usage::Frequency(200)][usize::from(*usage)];
            let record = Record { key, value: ValueRef::from(value), expiry_ms: *expiry_ms, usage };
            if index % 2 == 0 {
                writer.record(&record).map_err(|error| TestCaseError::fail(error.to_string()))?;
            } else {
                let mut bytes = Vec::new();
                prop_assert!(save_record(&mut bytes, &record, &options).is_ok());
                writer.captured(&bytes)?;
            }
        }
        let written = writer.written();
        let (file, _) = writer.finish()?;
        prop_assert_eq!(file.len() as u64, written + 9);

        let read = ReadOptions { values: large_limits(), ..ReadOptions::default() };
        let mut reader = Reader::new(&file[..], read).map_err(|error| TestCaseError::fail(error.to_string()))?;
        let mut left = entries.iter();
        while let Some(event) = reader.next_event().map_err(|error| TestCaseError::fail(error.to_string()))? {
            match event {
                Event::Entry(record) => {
                    let (key, value, expiry_ms, _) = left.next().expect("no more than were written");
                    prop_assert_eq!(reader.key(), &key[..]);
                    prop_assert_eq!(record.expiry_ms, *expiry_ms);
                    let Loaded::Value(read) = record.value else { return Err(TestCaseError::fail("no value")) };
                    prop_assert_eq!(describe(&read), describe(value));
                }
                Event::SelectDb(number) => prop_assert_eq!(number, 5),
                Event::Function(code) => prop_assert_eq!(&code[..], b"#!lua name=x"),
                _ => {}
            }
        }
        prop_assert!(left.next().is_none());
    }
}

#[test]
fn dumps_for_redis_refuse_values_that_it_cannot_read() {
    let mut hash = Hash::new();
    let limits = hash::Limits { fields: 10, bytes: 10 };
    hash.set(b"f", b"v", Expiry::At(1 << 40), hash::FieldClock::ALL, limits);
    let value = Value::from(hash);
    let record = Record { key: b"k", value: ValueRef::from(&value), expiry_ms: None, usage: Usage::Unknown };
    let mut bytes = Vec::new();
    let saved = save_record(&mut bytes, &record, &WriteOptions::for_redis());
    assert!(matches!(saved, Err(WriteError::Unrepresentable)));
    assert!(bytes.is_empty());
    let (file, _) = Writer::new(Vec::new(), WriteOptions::for_redis()).and_then(Writer::finish).expect("a vector");
    assert!(file.starts_with(b"REDIS0011\xff"));
    assert!(read_all(&file, ReadOptions::default()).is_ok());
}
