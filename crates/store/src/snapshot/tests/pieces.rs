//! Tests of large collections captured in pieces: the captured pieces are a
//! consistent state at one moment, whatever changes are made during the capture.

use super::with_db;
use super::*;
use crate::collections::stream::{BlockLimits, Id, Trim};
use crate::collections::{Hash, List, Set, SortedSet, Stream, hash, list, set, sorted_set};
use crate::defrag::tests::Shuffling;
use crate::defrag::{Mover, Work};
use crate::entry::Entry;
use crate::global_lock::Participant;
use crate::hash::KeyHasher;
use crate::snapshot::pieces::Piece;
use crate::value::{IntBuf, Kind};
use crate::{Db, Expiry, FieldClock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

const DATABASES: usize = 3;
const SET: set::Limits = set::Limits { intset_entries: 512, listpack_entries: 128, listpack_value: 64 };
const HASH: hash::Limits = hash::Limits { fields: 512, bytes: 64 };
const SORTED_SET: sorted_set::Limits = sorted_set::Limits { entries: 128, value: 64 };
const BLOCKS: BlockLimits = BlockLimits { bytes: 4096, entries: 10 };

fn list_limits(n: u64) -> list::Limits {
    list::Limits { max_listpack_size: 20, compress_depth: (n % 3) as u32 }
}

/// A key's value as it was captured.
#[derive(Clone, PartialEq, Debug)]
struct Content {
    kind: Kind,
    expiry: Option<i64>,
    /// Number of elements.
    len: usize,
    /// Everything except the elements.
    beside: String,
    /// The elements, sorted if the collection has no order.
    elements: Vec<Vec<u8>>,
}

type Contents = BTreeMap<(usize, Vec<u8>), Content>;

impl Content {
    fn head(entry: Entry<'_>) -> Content {
        let stream = |stream: &Stream| {
            let groups: Vec<_> = stream.groups().iter().map(|group| (group.last_id, group.pending().len())).collect();
            let log = stream.log();
            format!("{:?} {:?} {} {groups:?}", log.last_id(), log.history(), log.blocks_len())
        };
        let beside = entry.collection::<Stream>().map(stream).unwrap_or_default();
        Content { kind: entry.kind(), expiry: entry.expiry(), len: entry.elements(), beside, elements: Vec::new() }
    }

    fn whole(entry: Entry<'_>) -> Content {
        let mut content = Content::head(entry);
        let text = &mut IntBuf::default();
        match entry.kind() {
            Kind::String => content.elements.push(entry.str().expect("a string").bytes(text).to_vec()),
            Kind::Set => {
                let members = entry.collection::<Set>().expect("a set").iter();
                members.for_each(|member| content.add(Piece::Member(member.bytes(text))));
            }
            Kind::SortedSet => {
                let elements = entry.collection::<SortedSet>().expect("a sorted set").iter();
                elements.for_each(|(member, score)| content.add(Piece::Scored(member.bytes(text), score)));
            }
            Kind::Hash => {
                entry.collection::<Hash>().expect("a hash").iter().for_each(|field| content.add(Piece::Field(field)));
            }
            Kind::List => {
                let list = entry.collection::<List>().expect("a list");
                let add = |element: crate::Str<'_>| content.elements.push(element.bytes(text).to_vec());
                list.visit(0..crate::Collection::len(list), list::Side::Head, add);
            }
            Kind::Stream => {
                let blocks = entry.collection::<Stream>().expect("a stream").log().blocks();
                blocks.for_each(|(id, block)| content.add(Piece::StreamBlock(id, block)));
            }
        }
        content.sorted()
    }

    fn add(&mut self, piece: Piece<'_>) {
        let (mut name, mut value) = (IntBuf::default(), IntBuf::default());
        match piece {
            Piece::Member(member) => self.elements.push(member.to_vec()),
            Piece::Scored(member, score) => self.elements.push([member, &score.to_be_bytes()].concat()),
            Piece::Field(field) => {
                let expiry = format!("={:?}=", field.expiry);
                let parts = [field.name.bytes(&mut name), expiry.as_bytes(), field.value.bytes(&mut value)];
                self.elements.push(parts.concat());
            }
            Piece::ListBlock(block) => {
                block.for_each(|element| self.elements.push(element.bytes(&mut name).to_vec()));
            }
            Piece::StreamBlock(id, block) => {
                self.elements.push([&id.to_bytes()[..], block.view().bytes()].concat());
            }
        }
    }

    fn sorted(mut self) -> Content {
        if !matches!(self.kind, Kind::List | Kind::Stream) {
            self.elements.sort();
        }
        self
    }
}

#[derive(Clone, Default)]
struct Copies {
    seen: Arc<Mutex<Contents>>,
    /// Number of collections captured in pieces.
    in_pieces: Arc<AtomicUsize>,
}

impl Copies {
    fn put(&self, key: (usize, Vec<u8>), content: Content) {
        let twice = self.seen.lock().insert(key, content);
        assert!(twice.is_none(), "captured twice");
    }
}

impl Sink for Copies {
    fn capture(&self, number: usize, entry: Entry<'_>) {
        self.put((number, entry.key().to_vec()), Content::whole(entry));
    }

    fn begin(&self, number: usize, entry: Entry<'_>) -> Option<Box<dyn PieceSink>> {
        self.in_pieces.fetch_add(1, Ordering::Relaxed);
        let (copies, content) = (self.clone(), Content::head(entry));
        Some(Box::new(Copying { copies, key: (number, entry.key().to_vec()), content }))
    }
}

struct Copying {
    copies: Copies,
    key: (usize, Vec<u8>),
    content: Content,
}

impl PieceSink for Copying {
    fn take(&mut self, piece: Piece<'_>) {
        self.content.add(piece);
    }

    fn flush(&mut self) {}

    fn end(self: Box<Self>) {
        self.copies.put(self.key, self.content.sorted());
    }
}

/// An infinite sequence of numbers.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        self.0 ^ self.0 >> 29
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

const KINDS: [&str; 5] = ["set", "hash", "zset", "list", "stream"];

fn name(n: u64) -> Vec<u8> {
    format!("element:{n}").into_bytes()
}

/// Creates a collection of a kind.
fn fill(db: &mut Db<'_>, key: &str, kind: usize, count: u64) {
    let key = db.key(key.as_bytes());
    db.remove(key, false);
    match kind {
        0 => {
            let set = db.create(key, Set::default());
            (0..count).for_each(|n| _ = set.insert(&name(n), &SET));
        }
        1 => {
            let hash = db.create(key, Hash::new());
            for n in 0..count {
                let expiry = if n % 13 == 5 { Expiry::At(1 << 45 | n as i64) } else { Expiry::None };
                hash.set(&name(n), &name(n * 7), expiry, FieldClock::ALL, HASH);
            }
            db.note_expiries(key);
        }
        2 => {
            let sorted_set = db.create(key, SortedSet::new());
            (0..count).for_each(|n| _ = sorted_set.insert(&name(n), (n * 7919 % 1000) as f64, SORTED_SET));
        }
        3 => {
            let list = db.create(key, List::new());
            (0..count).for_each(|n| list.push(list::Side::Tail, &name(n), list_limits(count)));
        }
        _ => {
            let stream = db.create(key, Stream::new());
            (1..=count).for_each(|n| append(stream, n));
            let (_, groups) = stream.groups_mut();
            let group = groups.create(b"group", Id::new(7, 0), None).expect("there is none");
            let consumer = group.create_consumer(b"consumer", 1).expect("there is none");
            (1..20).for_each(|n| group.deliver(Id::new(n, 0), consumer, 1));
        }
    }
}

fn append(stream: &mut Stream, n: u64) {
    let words = [name(n), name(n + 1)];
    let words = words.iter().map(Vec::as_slice);
    let _ = stream.log_mut().append(Id::new(n, 0), words, BLOCKS);
}

/// Changes a collection, if there is one at the key.
fn write(db: &mut Db<'_>, key: &str, random: &mut Random) {
    let key = db.key(key.as_bytes());
    let Some(kind) = db.peek(key).map(|entry| entry.kind()) else { return };
    let (what, n, many) = (random.below(100), random.below(9000), random.below(100) == 0);
    // Ordered collections are iterated in order to be written.
    let many_max = if matches!(kind, Kind::List | Kind::Stream) { 500 } else { 9000 };
    let times = if many { random.below(many_max) } else { 1 };
    let sides = [list::Side::Head, list::Side::Tail];
    let side = sides[random.below(2) as usize];
    let mut state = hash::State::Settled;
    for n in (n..n + times).map(|n| n % 9000) {
        match kind {
            Kind::String => _ = db.append(key, b"more"),
            Kind::Set => {
                let Ok(Some(set)) = db.write::<Set>(key) else { return };
                match what {
                    0..40 => _ = set.insert(&name(n), &SET),
                    40..70 => _ = set.remove(&name(n)),
                    _ => _ = set.pop(|| random.next(), |_| ()),
                }
            }
            Kind::Hash => {
                let Ok(Some(hash)) = db.write::<Hash>(key) else { return };
                let expiry = if n % 5 == 0 { Expiry::At(1 << 44 | n as i64) } else { Expiry::Keep };
                match what {
                    0..30 => _ = hash.set(&name(n), &name(n * n), expiry, FieldClock::ALL, HASH),
                    30..40 => _ = hash.set(&name(n), &name(n * 7), expiry, FieldClock::ALL, HASH),
                    40..50 => _ = hash.expire_at(&name(n), 1 << 43, FieldClock::ALL, |_| true),
                    50..60 => _ = hash.persist(&name(n), FieldClock::ALL),
                    _ => _ = hash.remove(&name(n), FieldClock::ALL),
                }
                state = hash.state();
            }
            Kind::SortedSet => {
                let Ok(Some(sorted_set)) = db.write::<SortedSet>(key) else { return };
                match what {
                    0..60 => _ = sorted_set.insert(&name(n), random.below(1000) as f64, SORTED_SET),
                    60..90 => _ = sorted_set.remove(&name(n)),
                    _ => sorted_set.remove_range(n as usize..n as usize + 20),
                }
            }
            Kind::List => {
                let Ok(Some(list)) = db.write::<List>(key) else { return };
                let len = crate::Collection::len(list);
                let limits = list_limits(len as u64);
                let index = random.below(len.max(1) as u64);
                match what {
                    0..20 => list.push(side, &name(n), limits),
                    20..25 => list.push(side, &[b'x'; 9000], limits),
                    25..65 => _ = list.pop(side, limits, |_| ()),
                    65..75 => _ = list.insert(&name(n), side, b"inserted", limits),
                    75..80 => _ = list.set(index as i64, b"replaced", limits),
                    80..83 => _ = list.set(index as i64, &[b'y'; 9000], limits),
                    83..90 => _ = list.remove_value(&name(n), side, 3, limits),
                    90..95 => _ = list.rotate(side, side.other(), limits, |_| ()),
                    _ => list.remove_range(index as usize..len.min(index as usize + 70), limits),
                }
            }
            Kind::Stream => {
                let Ok(Some(stream)) = db.write::<Stream>(key) else { return };
                let (next, left) = (stream.log().last_id().ms + 1, stream.log().len().saturating_sub(15));
                match what {
                    0..30 => append(stream, next),
                    30..60 => _ = stream.log_mut().delete(Id::new(n, 0)),
                    60..70 => _ = stream.log_mut().trim(Trim::Len(left), false, 0),
                    70..80 => _ = stream.log_mut().trim(Trim::From(Id::new(n / 50, 0)), true, 0),
                    80..83 => {
                        // An ID may be reused when all entries are gone.
                        stream.log_mut().trim(Trim::Len(0), false, 0);
                        stream.log_mut().set_last_id(Id::new(random.below(500), 0), None, None);
                    }
                    83..90 => stream.log_mut().set_last_id(Id::new(next + 5, 0), None, None),
                    _ => {
                        if let Some(group) = stream.groups_mut().1.get_mut(b"group") {
                            group.forget(Id::new(n % 30, 0));
                        }
                    }
                }
            }
        }
    }
    if state == hash::State::Unqueued {
        db.note_expiries(key);
    }
    let is_empty = db.peek(key).is_some_and(|entry| entry.elements() == 0 && kind != Kind::String);
    if is_empty && kind != Kind::Stream {
        db.remove(key, random.below(2) == 0);
    }
}

/// Changes a key as a whole.
fn shuffle(db: &mut Db<'_>, key: &str, other: &str, random: &mut Random) {
    let (key, other) = (db.key(key.as_bytes()), db.key(other.as_bytes()));
    let elsewhere = random.below(DATABASES as u64) as usize;
    match random.below(100) {
        0..10 => _ = db.remove(key, true),
        10..20 => _ = db.remove(key, false),
        20..25 => db.set_bytes(key, b"a string now", Expiry::None),
        25..50 => {
            if let Some((value, expiry)) = db.take(key) {
                db.put(other, value, expiry);
            }
        }
        50..65 => {
            if let Some((value, expiry)) = db.take(key) {
                db.with_database(elsewhere, |db| db.put(key, value, expiry));
            }
        }
        65..70 => _ = db.take(key),
        70..80 => {
            if let Some((value, expiry)) = db.copy_out(key) {
                db.put(other, value, expiry);
            }
        }
        80..95 => _ = db.set_expiry(key, Some(1 << 50)),
        95..98 => db.swap(elsewhere, (elsewhere + 1) % DATABASES),
        _ => _ = db.flush(elsewhere, true),
    }
}

/// The current contents.
fn present(keyspace: &'static Keyspace) -> Contents {
    let mut contents = Contents::new();
    for number in 0..DATABASES {
        with_db(keyspace, number, |db| {
            db.for_each(|entry| _ = contents.insert((number, entry.key().to_vec()), Content::whole(entry)));
        });
    }
    contents
}

fn begin_copying(keyspace: &'static Keyspace) -> (Walk, Copies) {
    let copies = Copies::default();
    (Walk::begin(&mut keyspace.lock_global(), Box::new(copies.clone())), copies)
}

/// Names of keys, one of which is chosen at random.
fn draw(random: &mut Random) -> String {
    let kind = KINDS[random.below(KINDS.len() as u64) as usize];
    format!("{kind}:{}", random.below(3))
}

/// Creates all missing keys.
fn replenish(keyspace: &'static Keyspace, random: &mut Random) {
    for number in 0..DATABASES {
        with_db(keyspace, number, |db| {
            for (kind, name) in KINDS.iter().enumerate() {
                let key = format!("{name}:{number}");
                let len = db.peek(db.key(key.as_bytes())).map_or(0, |entry| entry.elements());
                if len < 2500 {
                    fill(db, &key, kind, 2500 + random.below(5000));
                }
            }
            (0..200).for_each(|n| db.set_bytes(db.key(format!("string:{n}").as_bytes()), b"value", Expiry::None));
        });
    }
}

/// Moves about half of all allocations.
fn move_things(keyspace: &'static Keyspace) {
    let mut heap = Shuffling { every: 2, seen: 0 };
    keyspace.lock_global().for_each_partition(|_, partition| {
        let mut mover = Mover::new(&mut heap, usize::MAX, usize::MAX);
        assert!(partition.relocate(0, &mut mover, &mut Vec::new(), &mut Work::default()).is_none());
    });
}

fn walk_on(walk: &mut Walk, participant: Participant) {
    while walk.step(participant) {}
    assert!(!walk.snapshot.captures().any_running());
}

#[test]
fn large_collections_are_captured_at_snapshot_time() {
    let rounds = if cfg!(miri) { 1 } else { 5 };
    for seed in 0..2 {
        let keyspace = Keyspace::leak(DATABASES, 4, KeyHasher::with_secret(1, seed));
        let participant = keyspace.global_lock.join().expect("room");
        let mut random = Random(seed + 77);
        for round in 0..rounds {
            replenish(keyspace, &mut random);
            let expected = present(keyspace);
            let (mut walk, copies) = begin_copying(keyspace);
            let cancelled_after = if round % 4 == 3 { random.below(60) } else { u64::MAX };
            let (writes, shuffles) = (random.below(30), if round % 2 == 0 { 0 } else { random.below(4) });
            let mut steps = 0;
            while walk.step(participant) {
                with_db(keyspace, random.below(DATABASES as u64) as usize, |db| {
                    (0..writes).for_each(|_| write(db, &draw(&mut random), &mut random));
                    if random.below(20) < shuffles {
                        shuffle(db, &draw(&mut random), &draw(&mut random), &mut random);
                    }
                });
                if steps % 32 == 7 {
                    move_things(keyspace);
                }
                if steps == cancelled_after {
                    walk.snapshot().cancel();
                }
                steps += 1;
            }
            assert!(!walk.snapshot.captures().any_running());
            if walk.snapshot().is_cancelled() {
                continue;
            }
            let seen = copies.seen.lock();
            assert!(copies.in_pieces.load(Ordering::Relaxed) >= 9, "some come in pieces");
            for (key, content) in &expected {
                let found = seen.get(key);
                let what = || format!("{} of database {}", String::from_utf8_lossy(&key.1), key.0);
                assert!(found.is_some(), "{} is missing, seed {seed} round {round}", what());
                assert!(found == Some(content), "{} is not as it was, seed {seed} round {round}", what());
            }
            assert_eq!(seen.len(), expected.len());
        }
    }
}

#[test]
fn finished_snapshot_leaves_no_state() {
    let keyspace = Keyspace::leak(DATABASES, 4, KeyHasher::with_secret(1, 2));
    let participant = keyspace.global_lock.join().expect("room");
    let mut random = Random(5);
    replenish(keyspace, &mut random);
    for cancelled in [false, true, false, true] {
        let (mut walk, _) = begin_copying(keyspace);
        for number in 0..DATABASES {
            with_db(keyspace, number, |db| (0..300).for_each(|_| write(db, &draw(&mut random), &mut random)));
        }
        (0..7).for_each(|_| _ = walk.step(participant));
        if cancelled {
            walk.snapshot().cancel();
        }
        walk_on(&mut walk, participant);
        keyspace.lock_global().for_each_partition(|_, partition| {
            assert!(partition.snapshot().is_none());
            partition.for_each(|entry| {
                let table = match entry.inside() {
                    crate::Inside::Table(table) => table,
                    _ => return,
                };
                assert!(table.is_marked());
            });
        });
        let expected = present(keyspace);
        let (mut walk, copies) = begin_copying(keyspace);
        walk_on(&mut walk, participant);
        assert!(*copies.seen.lock() == expected);
    }
}

/// A snapshot of one large collection in the last database, after the walk has visited everything before it.
fn about_to_come(kind: usize) -> (&'static Keyspace, Participant, Walk, Copies, Contents) {
    let keyspace = Keyspace::leak(DATABASES, 4, KeyHasher::with_secret(1, 2));
    let participant = keyspace.global_lock.join().expect("room");
    for number in 0..DATABASES {
        with_db(keyspace, number, |db| db.set_bytes(db.key(b"string"), b"value", Expiry::None));
    }
    with_db(keyspace, 2, |db| fill(db, "large", kind, 3000));
    let expected = present(keyspace);
    let (mut walk, copies) = begin_copying(keyspace);
    while walk.next < 2 * keyspace.partitions() {
        assert!(walk.step(participant));
    }
    (keyspace, participant, walk, copies, expected)
}

#[test]
fn collection_moved_behind_the_walk_is_captured() {
    for kind in 0..KINDS.len() {
        let (keyspace, participant, mut walk, copies, expected) = about_to_come(kind);
        let mut random = Random(1);
        for (from, to) in [(2, 0), (0, 1), (1, 2)] {
            with_db(keyspace, from, |db| {
                (0..5).for_each(|_| write(db, "large", &mut random));
                let Some((value, expiry)) = db.take(db.key(b"large")) else { return };
                db.with_database(to, |db| db.put(db.key(b"large"), value, expiry));
            });
            assert!(from != 2 || to != 0 || !walk.snapshot.captures().moved_keys.lock().is_empty());
            assert!(walk.step(participant));
        }
        walk_on(&mut walk, participant);
        assert!(*copies.seen.lock() == expected);
    }
}

#[test]
fn dropped_collection_is_captured_from_its_remainder() {
    let drops: [fn(&mut Db<'_>); 5] = [
        |db| _ = db.remove(db.key(b"large"), false),
        |db| _ = db.remove(db.key(b"large"), true),
        |db| db.set_bytes(db.key(b"large"), b"a string", Expiry::None),
        |db| drop(db.take(db.key(b"large"))),
        |db| _ = db.flush(2, true),
    ];
    for (kind, drop) in (0..KINDS.len()).flat_map(|kind| drops.iter().map(move |drop| (kind, drop))) {
        for begun in [false, true] {
            let (keyspace, participant, mut walk, copies, expected) = about_to_come(kind);
            with_db(keyspace, 2, |db| {
                if begun {
                    write(db, "large", &mut Random(3));
                }
                drop(db);
                fill(db, "large", (kind + 1) % KINDS.len(), 2500);
            });
            walk_on(&mut walk, participant);
            assert!(*copies.seen.lock() == expected);
            // Freed memory is subtracted.
            let deadline = Instant::now() + Duration::from_secs(20);
            while keyspace.lazy_free.pending_bytes() > 0 {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
        }
    }
}
