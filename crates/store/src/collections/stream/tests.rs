//! Tests of streams: blocks, trimming, groups, and random operations against a model.

use super::*;
use crate::value::{IntBuf, Str};
use proptest::prelude::*;
use std::collections::BTreeMap;

const LIMITS: BlockLimits = BlockLimits { bytes: 4096, entries: 100 };

fn word(word: Str<'_>) -> Vec<u8> {
    word.bytes(&mut IntBuf::default()).to_vec()
}

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn fields(entry: &Entry<'_>) -> Fields {
    entry.fields().map(|(name, value)| (word(name), word(value))).collect()
}

fn append(stream: &mut Stream, id: Id, fields: &Fields, limits: BlockLimits) {
    let words: Vec<&[u8]> = fields.iter().flat_map(|(name, value)| [&name[..], &value[..]]).collect();
    assert_eq!(stream.log_mut().append(id, words.into_iter(), limits), Ok(()));
}

fn filled(len: u64) -> Stream {
    let mut stream = Stream::new();
    for ms in 1..=len {
        append(&mut stream, Id::new(ms, 0), &vec![(b"a".to_vec(), ms.to_string().into_bytes())], LIMITS);
    }
    stream
}

/// A copy through the dump format.
fn reloaded(stream: &Stream) -> Stream {
    let mut loader = Loader::default();
    for (id, block) in stream.log().blocks() {
        loader.block(id, block.view().bytes()).expect("own blocks hold together");
    }
    let log = stream.log();
    let mut copy = loader.finish(log.len(), log.last_id(), Some(log.history())).expect("own counts fit");
    for group in stream.groups().iter() {
        let (_, groups) = copy.groups_mut();
        let loaded = groups.create(group.name(), group.last_id, group.entries_read).expect("one of each name");
        for (id, pending) in group.pending().iter() {
            loaded.load_pending(id, pending.delivered_ms, pending.deliveries).expect("pending once");
        }
        for consumer in group.consumers() {
            let id = loaded.load_consumer(consumer.name(), consumer.seen_ms(), consumer.active_ms).expect("once");
            for (entry, _) in group.pending_of(consumer, Id::MIN) {
                loaded.load_owner(entry, id).expect("pending");
            }
        }
        assert_eq!(loaded.loaded(), Ok(()));
    }
    copy
}

fn check(stream: &Stream, model: &BTreeMap<Id, Fields>) {
    let log = stream.log();
    assert!(log.range(Id::MIN, Id::MAX).map(|entry| (entry.id, fields(&entry))).eq(model.clone()));
    let back = log.range_back(Id::MIN, Id::MAX).map(|entry| entry.id);
    assert!(back.eq(model.keys().rev().copied()));
    assert_eq!(log.len(), model.len() as u64);
    assert_eq!(log.history().first_id, model.keys().next().copied().unwrap_or(Id::MIN));
    assert_eq!(log.last_entry_id(), model.keys().next_back().copied());
}

#[derive(Clone, Debug)]
enum Step {
    Append(u8, Vec<(u8, Vec<u8>)>),
    Delete(prop::sample::Index),
    TrimLen(prop::sample::Index, bool),
    TrimFrom(prop::sample::Index, bool, bool),
    Range(prop::sample::Index, prop::sample::Index),
    Reload,
}

fn steps() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    let value = prop_oneof![
        any::<i16>().prop_map(|number| number.to_string().into_bytes()),
        prop::collection::vec(any::<u8>(), 0..70),
    ];
    prop_oneof![
        12 => (0u8..4, prop::collection::vec((0u8..3, value), 1..4)).prop_map(|(by, fields)| Step::Append(by, fields)),
        6 => index().prop_map(Step::Delete),
        1 => (index(), any::<bool>()).prop_map(|(at, approximate)| Step::TrimLen(at, approximate)),
        1 => (index(), any::<bool>(), any::<bool>()).prop_map(|(at, approximate, above)| {
            Step::TrimFrom(at, approximate, above)
        }),
        2 => (index(), index()).prop_map(|(start, end)| Step::Range(start, end)),
        1 => Just(Step::Reload),
    ]
}

fn nth(model: &BTreeMap<Id, Fields>, index: prop::sample::Index) -> Id {
    model.keys().nth(index.index(model.len().max(1))).copied().unwrap_or(Id::new(1, 1))
}

/// Removes what the stream removed, which must be a prefix: exactly the expected one if the trim was exact.
fn follow_trim(stream: &Stream, model: &mut BTreeMap<Id, Fields>, removed: u64, wanted: usize, approximate: bool) {
    if approximate {
        assert!(removed as usize <= wanted);
    } else {
        assert_eq!(removed as usize, wanted);
    }
    (0..removed).for_each(|_| drop(model.pop_first()));
    check(stream, model);
}

fn follow(stream: &mut Stream, model: &mut BTreeMap<Id, Fields>, step: Step, limits: BlockLimits) {
    match step {
        Step::Append(by, named) => {
            let last = stream.log().last_id();
            let id = if by == 0 { last.next().expect("far from the end") } else { Id::new(last.ms + u64::from(by), 0) };
            let fields: Fields = named.into_iter().map(|(name, value)| (vec![b'a' + name], value)).collect();
            append(stream, id, &fields, limits);
            model.insert(id, fields);
        }
        Step::Delete(index) => {
            let id = nth(model, index);
            assert_eq!(stream.log().contains(id), model.contains_key(&id));
            assert_eq!(stream.log_mut().delete(id), model.remove(&id).is_some());
            assert!(!stream.log().contains(id));
        }
        Step::TrimLen(index, approximate) => {
            let len = index.index(model.len() + 1);
            let removed = stream.log_mut().trim(Trim::Len(len as u64), approximate, 0);
            follow_trim(stream, model, removed, model.len() - len, approximate);
        }
        Step::TrimFrom(index, approximate, above) => {
            let mut id = nth(model, index);
            if above {
                id.seq += 1;
            }
            let wanted = model.range(..id).count();
            let removed = stream.log_mut().trim(Trim::From(id), approximate, 0);
            follow_trim(stream, model, removed, wanted, approximate);
        }
        Step::Range(start, end) => {
            let (start, end) = (nth(model, start), nth(model, end));
            let forth: Vec<_> = stream.log().range(start, end).map(|entry| entry.id).collect();
            let mut back: Vec<_> = stream.log().range_back(start, end).map(|entry| entry.id).collect();
            back.reverse();
            assert_eq!(forth, back);
            let expected = if start > end { Vec::new() } else { model.range(start..=end).map(|(id, _)| *id).collect() };
            assert_eq!(forth, expected);
        }
        Step::Reload => {
            let copy = reloaded(stream);
            assert_eq!(copy.log().history(), stream.log().history());
            *stream = copy;
        }
    }
}

proptest! {
    #[test]
    fn log_behaves_as_sorted_map(
        steps in prop::collection::vec(steps(), 1..400),
        entries in prop_oneof![Just(0), Just(3), Just(10), Just(100)],
        bytes in prop_oneof![Just(0), Just(100), Just(4096)],
    ) {
        let (mut stream, mut model) = (Stream::new(), BTreeMap::new());
        for step in steps {
            follow(&mut stream, &mut model, step, BlockLimits { bytes, entries });
        }
        check(&stream, &model);
        check(&stream.clone(), &model);
    }

    /// Groups keep the model's (consumer, deliveries) of each ID through deliveries, assignments, and removals.
    #[test]
    fn pending_entry_belongs_to_one_consumer(
        operations in prop::collection::vec((0u8..8, 0u64..150, 0u8..4), 1..400),
    ) {
        let mut stream = filled(10);
        let (_, groups) = stream.groups_mut();
        let group = groups.create(b"g", Id::MIN, Some(0)).expect("the first");
        let mut model: BTreeMap<Id, (u8, u64)> = BTreeMap::new();
        for (operation, ms, name) in operations {
            let id = Id::new(ms, 0);
            let consumer = |group: &mut Group| match group.find_consumer(&[name]) {
                Some(consumer) => consumer,
                None => group.create_consumer(&[name], 1).expect("not there"),
            };
            match operation {
                0..4 => {
                    let consumer = consumer(group);
                    group.deliver(id, consumer, 2);
                    model.insert(id, (name, 1));
                }
                4 => {
                    let consumer = consumer(group);
                    group.assign(id, consumer);
                    model.entry(id).and_modify(|own| own.0 = name);
                }
                5 => if let Some(pending) = group.pending_mut(id) {
                    pending.deliveries += 1;
                    model.entry(id).and_modify(|own| own.1 += 1);
                },
                6 => prop_assert_eq!(group.forget(id), model.remove(&id).is_some()),
                _ => if ms < 20 {
                    let owned = model.values().filter(|(owner, _)| *owner == name).count();
                    prop_assert_eq!(group.delete_consumer(&[name]).unwrap_or(0), owned);
                    model.retain(|_, (owner, _)| *owner != name);
                },
            }
        }
        for copy in [stream.clone(), reloaded(&stream), stream] {
            let group = copy.groups().get(b"g").expect("created");
            let state = group.pending().iter();
            let state = state.map(|(id, own)| (id, (group.consumer(own.consumer()).name()[0], own.deliveries)));
            prop_assert!(state.eq(model.clone()));
            for consumer in group.consumers() {
                let owned = model.iter().filter(|(_, (owner, _))| *owner == consumer.name()[0]).map(|(id, _)| *id);
                prop_assert!(group.pending_of(consumer, Id::MIN).map(|(id, _)| id).eq(owned));
            }
        }
    }

    #[test]
    fn loading_with_flipped_bits_is_safe(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..3),
        delete in prop::option::of(1u64..9),
    ) {
        let mut stream = filled(9);
        if let Some(ms) = delete {
            stream.log_mut().delete(Id::new(ms, 0));
        }
        let (id, block) = stream.log().blocks().next().expect("one");
        let mut bytes = block.view().bytes().to_vec();
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= byte;
        }
        let mut loader = Loader::default();
        if loader.block(id, &bytes).is_ok() {
            for len in 0..12 {
                let Ok(mut stream) = Loader(loader.0.clone()).finish(len, Id::MAX, None) else { continue };
                let entries = stream.log().range(Id::MIN, Id::MAX);
                let ids: Vec<_> = entries.map(|entry| (entry.id, fields(&entry)).0).collect();
                prop_assert_eq!(ids.len() as u64, len);
                stream.log_mut().trim(Trim::Len(len / 2), false, 0);
                ids.iter().for_each(|id| _ = stream.log_mut().delete(*id));
                prop_assert!(stream.log().is_empty());
            }
        }
    }
}

/// A block that Valkey 9.1.2 dumped after the same requests.
#[test]
fn block_bytes_match_dump_format() {
    let dumped = [
        "c90000002800040101010201816102816202000102010001000101018374776f040501030100010101dff902f1001003\
         050100010101dffb02010181610281780206010001f4188ccd792f08000009dffc020201816202f4ffffffffffffff7f\
         09816102c0820208010201f4188ccd792f08000009dffd02e046",
        &"7a".repeat(70),
        "48f26079fe040501ff",
    ];
    let long = "z".repeat(70);
    let mut stream = Stream::new();
    for (ms, seq, fields) in [
        (1000, 5, [("a", "1"), ("b", "two")].as_slice()),
        (1000, 6, &[("a", "-7"), ("b", "4096")]),
        (1001, 0, &[("a", "x")]),
        (9_000_000_000_000, 1, &[("b", "9223372036854775807"), ("a", "130")]),
        (9_000_000_000_000, 2, &[("a", &long), ("b", "-100000")]),
    ] {
        let fields = fields.iter().map(|(name, value)| (name.as_bytes().to_vec(), value.as_bytes().to_vec())).collect();
        append(&mut stream, Id::new(ms, seq), &fields, LIMITS);
    }
    assert!(stream.log_mut().delete(Id::new(1000, 6)));
    let (id, block) = stream.log().blocks().next().expect("one");
    let hex: String = block.view().bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!((id, hex), (Id::new(1000, 5), dumped.concat()));
}

#[test]
fn ids_only_increase() {
    let mut stream = filled(3);
    let log = stream.log();
    assert_eq!(log.new_id(NewId::Auto, 2), Ok(Id::new(3, 1)));
    assert_eq!(log.new_id(NewId::Auto, 4), Ok(Id::new(4, 0)));
    assert_eq!(log.new_id(NewId::Ms(3), 9), Ok(Id::new(3, 1)));
    assert_eq!(log.new_id(NewId::Ms(4), 9), Ok(Id::new(4, 0)));
    assert_eq!(log.new_id(NewId::Ms(2), 9), Err(AppendError::NotBeyond));
    assert_eq!(log.new_id(NewId::Exact(Id::new(3, 0)), 9), Err(AppendError::NotBeyond));
    stream.log_mut().set_last_id(Id::new(3, u64::MAX), None, None);
    assert_eq!(stream.log().new_id(NewId::Ms(3), 9), Err(AppendError::NotBeyond));
    stream.log_mut().set_last_id(Id::MAX, None, None);
    assert_eq!(stream.log().new_id(NewId::Auto, 9), Err(AppendError::NotBeyond));
}

#[test]
fn blocks_respect_their_limits() {
    let blocks = |bytes, entries| {
        let mut stream = Stream::new();
        for ms in 1..=100 {
            append(
                &mut stream,
                Id::new(ms, 0),
                &vec![(b"field".to_vec(), vec![b'x'; 20])],
                BlockLimits { bytes, entries },
            );
        }
        stream.log().blocks_len()
    };
    assert_eq!(blocks(0, 0), 1);
    assert_eq!(blocks(0, 10), 10);
    assert_eq!(blocks(1, 10), 100);
    // A block of 19 entries has 523 bytes and refuses one of 25 more, one of 18 has 497.
    assert_eq!(blocks(540, 0), 100usize.div_ceil(19));
}

#[test]
fn approximate_trim_removes_whole_blocks_within_limit() {
    let mut log = filled(350).log().clone();
    assert_eq!(log.trim(Trim::Len(201), true, 0), 100);
    assert_eq!(log.trim(Trim::Len(0), true, 99), 0);
    assert_eq!(log.trim(Trim::Len(0), true, 199), 100);
    assert_eq!(log.trim(Trim::From(Id::new(300, 1)), true, 0), 100);
    assert_eq!(log.trim(Trim::From(Id::new(350, 0)), true, 0), 0);
    assert_eq!(log.trim(Trim::From(Id::new(350, 0)), false, 0), 49);
    assert_eq!((log.len(), log.history().first_id), (1, Id::new(350, 0)));
}

#[test]
fn lag_is_known_unless_entries_ahead_were_deleted() {
    let mut stream = filled(5);
    let (log, groups) = stream.groups_mut();
    let group = groups.create(b"g", Id::MIN, None).expect("the first");
    assert_eq!(log.lag(group), Some(5));
    log.advance(group, Id::new(1, 0));
    assert_eq!((group.entries_read, log.lag(group)), (Some(1), Some(4)));
    stream.log_mut().delete(Id::new(3, 0));
    let (log, groups) = stream.groups_mut();
    let group = groups.get_mut(b"g").expect("created");
    assert_eq!(log.lag(group), None);
    log.advance(group, Id::new(2, 0));
    assert_eq!(group.entries_read, None);
    log.advance(group, Id::new(4, 0));
    log.advance(group, Id::new(5, 0));
    assert_eq!((group.entries_read, log.lag(group)), (Some(5), Some(0)));
}

#[test]
fn load_rejects_inconsistent_parts() {
    let stream = filled(250);
    let blocks: Vec<_> = stream.log().blocks().map(|(id, block)| (id, block.view().bytes().to_vec())).collect();
    let load = |order: &[usize], len, last| {
        let mut loader = Loader::default();
        for index in order {
            loader.block(blocks[*index].0, &blocks[*index].1)?;
        }
        loader.finish(len, Id::new(last, 0), None).map(|stream| stream.log().history())
    };
    let history = History { first_id: Id::new(1, 0), max_deleted_id: Id::MIN, entries_added: 250 };
    assert_eq!(load(&[0, 1, 2], 250, 250), Ok(history));
    assert!(load(&[0, 1, 2], 251, 250).is_err());
    assert!(load(&[0, 1, 2], 250, 249).is_err());
    assert!(load(&[0, 2, 1], 250, 250).is_err());
    assert!(load(&[0, 0], 200, 250).is_err());
}

#[test]
fn memory_overhead_is_small() {
    let stream = filled(10_000);
    let bytes: usize = stream.log().blocks().map(|(_, block)| block.byte_len()).sum();
    let memory = stream.memory(0);
    assert!(memory < bytes + bytes / 5, "{memory} for {bytes}");
    assert!((stream.memory(5) as f64 / memory as f64 - 1.0).abs() < 0.1);
    assert!(Stream::new().memory(0) <= 160, "{}", Stream::new().memory(0));
}
