//! Tests of defragmentation: values of all encodings stay the same when their allocations move.

use super::walk::{Pass, Walk};
use super::*;
use crate::access::Access;
use crate::collections::stream::{BlockLimits, Id};
use crate::collections::{Collection, hash, list, set, sorted_set};
use crate::db::{Counters, Db, Env};
use crate::effects::Effects;
use crate::hash::KeyHasher;
use crate::keyspace::{Keyspace, Share};
use crate::value::Expiry;
use crate::{Entry, FieldClock, Hash, IntBuf, List, Object, Set, SortedSet, Stream, Value};
use proptest::prelude::*;
use std::alloc::{alloc, dealloc, handle_alloc_error};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Moves one of every `n` allocations, or all if that is one.
pub(crate) struct Shuffling {
    pub every: usize,
    pub seen: usize,
}

// SAFETY: a moved allocation is copied to a new one of the same layout.
unsafe impl Heap for Shuffling {
    unsafe fn relocate(&mut self, allocation: NonNull<u8>, layout: Layout) -> NonNull<u8> {
        self.seen += 1;
        if !self.seen.is_multiple_of(self.every) {
            return allocation;
        }
        // SAFETY: the layout is not empty; the old allocation has it, as the caller promises, and is freed.
        unsafe {
            let Some(now) = NonNull::new(alloc(layout)) else { handle_alloc_error(layout) };
            now.copy_from_nonoverlapping(allocation, layout.size());
            // Overwrite freed memory, so that a use after free is detected.
            allocation.write_bytes(0xa5, layout.size());
            dealloc(allocation.as_ptr(), layout);
            now
        }
    }
}

fn with_db<T>(keyspace: &'static Keyspace, run: impl FnOnce(&mut Db<'_>) -> T) -> T {
    let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
    let env = Env::command(1, &access, &counters, &mut effects);
    run(&mut Db::new(&mut keyspace.lock_global(), 0, env))
}

fn name(n: usize) -> Vec<u8> {
    format!("member:{n}").into_bytes()
}

const SIZES: [usize; 4] = if cfg!(miri) { [1, 9, 40, 150] } else { [1, 30, 700, 9000] };

/// A value of each kind and encoding.
fn values(elements: usize) -> Vec<Value> {
    let mut values = vec![
        Value::Int(elements as i64),
        Value::Bytes(vec![b'x'; elements.min(300)]),
        Value::Raw(vec![b'y'; elements].into()),
    ];
    let mut set = Set::table();
    let mut numbers = Set::of_integers();
    let mut short = Set::short();
    let wide = set::Limits { intset_entries: usize::MAX, listpack_entries: usize::MAX, listpack_value: 64 };
    let mut hash = Hash::new();
    let mut packed = Hash::new();
    let mut sorted = SortedSet::new();
    let mut few = SortedSet::new();
    let mut list = List::new();
    let mut compressed = List::new();
    let mut stream = Stream::new();
    for n in 0..elements {
        set.insert(&name(n), &wide);
        if n < 300 {
            numbers.insert(format!("{}", n * n * n).as_bytes(), &wide);
            short.insert(&name(n), &wide);
            packed.set(&name(n), b"v", Expiry::None, FieldClock::ALL, hash::Limits { fields: 300, bytes: 64 });
            few.update(&name(n), sorted_set::Limits { entries: 300, value: 64 }, |_| Some(n as f64));
        }
        let expiry = if n % 3 == 0 { Expiry::At(1 << 40) } else { Expiry::None };
        hash.set(&name(n), &vec![b'z'; n % 50], expiry, FieldClock::ALL, hash::Limits { fields: 0, bytes: 0 });
        sorted.update(&name(n), sorted_set::Limits { entries: 0, value: 0 }, |_| Some((n % 17) as f64));
        let large = if n % 50 == 7 { vec![b'L'; 3000] } else { name(n) };
        let limits = |compress_depth| list::Limits { max_listpack_size: 8, compress_depth };
        list.push(list::Side::Tail, &large, limits(0));
        compressed.push(list::Side::Head, &large, limits(1));
        let words = [&b"field"[..], b"value", b"number", &name(n)];
        let limits = BlockLimits { bytes: 4096, entries: 20 };
        stream.log_mut().append(Id::new(n as u64 + 1, 0), words.iter().copied(), limits).expect("beyond the last one");
    }
    let (_, groups) = stream.groups_mut();
    for n in 0..elements.min(3) {
        let group = groups.create(&name(n), Id::new(0, 0), None).expect("a new group");
        for consumer in 0..elements.min(5) {
            let consumer = group.create_consumer(&name(consumer), 1).expect("a new consumer");
            (0..elements).filter(|at| at % 7 == n).for_each(|at| group.deliver(Id::new(at as u64 + 1, 0), consumer, 5));
        }
    }
    let sets = [set, numbers, short].map(Object::new);
    let hashes = [hash, packed].map(Object::new);
    let sorted_sets = [sorted, few].map(Object::new);
    let lists = [list, compressed].map(Object::new);
    let objects = sets.into_iter().chain(hashes).chain(sorted_sets).chain(lists).chain([Object::new(stream)]);
    values.extend(objects.map(Value::Object));
    values
}

/// A textual description of everything observable about a value.
fn seen(entry: Entry<'_>) -> String {
    let mut told = format!("{} {} {:?} ", entry.encoding(), entry.memory(0), entry.expiry());
    let mut buffer = Default::default();
    let mut tell = |bytes: &[u8]| told.push_str(&format!("{} ", String::from_utf8_lossy(bytes)));
    if let Some(string) = entry.str() {
        tell(string.bytes(&mut buffer));
    } else if let Some(set) = entry.collection::<Set>() {
        let mut members: Vec<Vec<u8>> =
            set.iter().map(|member| member.bytes(&mut IntBuf::default()).to_vec()).collect();
        assert!(members.iter().all(|member| set.contains(member)));
        members.sort();
        members.iter().for_each(|member| tell(member));
    } else if let Some(hash) = entry.collection::<Hash>() {
        let mut fields: Vec<String> = hash.iter().map(|field| format!("{field:?}")).collect();
        fields.sort();
        fields.iter().for_each(|field| tell(field.as_bytes()));
    } else if let Some(sorted) = entry.collection::<SortedSet>() {
        for (rank, (member, score)) in sorted.iter().enumerate() {
            let member = member.bytes(&mut buffer);
            assert_eq!(sorted.rank(member), Some((rank, score)));
            tell(member);
            tell(score.to_string().as_bytes());
        }
    } else if let Some(list) = entry.collection::<List>() {
        list.visit(0..list.len(), list::Side::Head, |element| tell(element.bytes(&mut IntBuf::default())));
    } else if let Some(stream) = entry.collection::<Stream>() {
        stream.log().range(Id::MIN, Id::MAX).for_each(|entry| {
            entry.fields().for_each(|(name, value)| tell(format!("{name:?} {value:?}").as_bytes()));
        });
        tell(format!("{:?}", stream.groups()).as_bytes());
    }
    told
}

fn everything(keyspace: &'static Keyspace) -> BTreeMap<Vec<u8>, String> {
    let mut all = BTreeMap::new();
    let mut global = keyspace.lock_global();
    global.for_each_partition(|_, partition| {
        partition.for_each(|entry| {
            all.insert(entry.key().to_vec(), seen(entry));
        })
    });
    all
}

/// A keyspace with values of all kinds.
fn filled() -> &'static Keyspace {
    let keyspace = Keyspace::leak(1, 4, KeyHasher::with_secret(3, 4));
    with_db(keyspace, |db| {
        for elements in SIZES {
            for (number, value) in values(elements).into_iter().enumerate() {
                let key = format!("{elements}:{number}");
                let expiry = (number % 2 == 0).then_some(1 << 40);
                db.put(db.key(key.as_bytes()), value, expiry);
            }
        }
    });
    keyspace
}

fn walk(keyspace: &'static Keyspace, every: usize, fields_max: usize, mut between: impl FnMut(usize)) -> Work {
    let (mut heap, mut work) = (Shuffling { every, seen: 0 }, Work::default());
    for worker in 0..2 {
        let (mut walk, mut passes) = (Walk::default(), 0);
        loop {
            // A deadline that has passed ends a pass after one step.
            let pass = Pass {
                keyspace,
                share: Share { worker, workers: 2 },
                heap: &mut heap,
                deadline: Instant::now(),
                fields_max,
            };
            if walk.run(pass, &mut work) {
                break;
            }
            between(passes);
            passes += 1;
            assert!(passes < 1_000_000, "a walk ends");
        }
    }
    work
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 6 }))]

    #[test]
    fn relocation_preserves_all_values(
        every in 1..5usize, fields_max in prop_oneof![Just(0), Just(100), Just(usize::MAX)]
    ) {
        let keyspace = filled();
        let before = everything(keyspace);
        let work = walk(keyspace, every, fields_max, |_| ());
        prop_assert_eq!((work.keys_moved + work.keys_kept) as usize, before.len());
        prop_assert!(work.moved > 0 && (every > 1 || work.kept == 0), "{:?}", work);
        prop_assert!(before == everything(keyspace));
        with_db(keyspace, |db| db.flush(0, false));
    }
}

#[test]
fn walk_tolerates_concurrent_inserts_updates_and_deletes() {
    let keyspace = filled();
    let mut model = everything(keyspace);
    let work = walk(keyspace, 2, 50, |pass| {
        let key = format!("{}:{}", SIZES[pass % SIZES.len()], pass / SIZES.len() % 13);
        with_db(keyspace, |db| {
            let key = db.key(key.as_bytes());
            match pass % 3 {
                0 => _ = db.remove(key, false),
                1 => db.put(key, Value::Bytes(b"new".to_vec()), None),
                _ => db.put(key, values(20).swap_remove(pass % 13), None),
            }
        });
        model = everything(keyspace);
    });
    assert!(work.moved > 0);
    assert!(model == everything(keyspace));
}

#[test]
fn partition_that_stays_locked_is_skipped() {
    let keyspace = filled();
    let held = keyspace.lock_one(keyspace.address(0, keyspace.key(b"some key")));
    let (mut heap, mut work, mut at) = (Shuffling { every: 1, seen: 0 }, Work::default(), Walk::default());
    let mut passes = 0;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !at.run(
        Pass { keyspace, share: Share { worker: 0, workers: 1 }, heap: &mut heap, deadline, fields_max: 100 },
        &mut work,
    ) {
        passes += 1;
    }
    drop(held);
    assert!((2..100).contains(&passes), "{passes}");
    assert!(work.keys_moved > 0 && (work.keys_moved as usize) < everything(keyspace).len());
}
