//! Tests of snapshots: each entry is captured once, as it was when the snapshot began.

use super::*;
use crate::access::Access;
use crate::db::{Counters, Db, Env};
use crate::effects::Effects;
use crate::entry::Entry;
use crate::hash::KeyHasher;
use crate::snapshot::pieces::PieceSink;
use crate::value::Expiry;
use crate::value::IntBuf;
use parking_lot::Mutex;
use std::collections::BTreeMap;

type Seen = Arc<Mutex<BTreeMap<(usize, Vec<u8>), Vec<u8>>>>;

struct Copy(Seen);

impl Sink for Copy {
    fn begin(&self, _: usize, _: Entry<'_>) -> Option<Box<dyn PieceSink>> {
        panic!("strings only");
    }

    fn capture(&self, number: usize, entry: Entry<'_>) {
        let mut buffer = IntBuf::default();
        let value = entry.str().expect("strings only").bytes(&mut buffer).to_vec();
        let twice = self.0.lock().insert((number, entry.key().to_vec()), value);
        assert!(twice.is_none(), "captured twice");
    }
}

fn with_db(keyspace: &'static Keyspace, number: usize, run: impl FnOnce(&mut Db<'_>)) {
    let (access, counters, mut effects) = (Access::default(), Counters::default(), Effects::default());
    let env = Env::command(1, &access, &counters, &mut effects);
    run(&mut Db::new(&mut keyspace.lock_global(), number, env));
}

fn set(db: &mut Db<'_>, n: usize, value: &str) {
    let name = format!("key:{n}");
    db.set_bytes(db.key(name.as_bytes()), value.as_bytes(), Expiry::None);
}

fn remove(db: &mut Db<'_>, n: usize) {
    let name = format!("key:{n}");
    db.remove(db.key(name.as_bytes()), true);
}

fn begin(keyspace: &'static Keyspace) -> (Walk, Seen) {
    let seen = Seen::default();
    (Walk::begin(&mut keyspace.lock_global(), Box::new(Copy(seen.clone()))), seen)
}

fn expected(numbers: &[usize], keys: usize) -> BTreeMap<(usize, Vec<u8>), Vec<u8>> {
    let all = numbers.iter().flat_map(|number| (0..keys).map(move |n| (*number, n)));
    all.map(|(number, n)| ((number, format!("key:{n}").into_bytes()), format!("old {n}").into_bytes())).collect()
}

#[test]
fn snapshot_is_consistent_under_concurrent_writes() {
    const KEYS: usize = 3000;
    let keyspace = Keyspace::leak(3, 4, KeyHasher::with_secret(1, 2));
    let participant = keyspace.global_lock.join().expect("room");
    for number in [0, 2] {
        with_db(keyspace, number, |db| (0..KEYS).for_each(|n| set(db, n, &format!("old {n}"))));
    }
    for round in 0..3 {
        let (mut walk, seen) = begin(keyspace);
        let (mut step, mut seed) = (0, round as u64 + 1);
        while walk.step(participant) {
            with_db(keyspace, step % 3, |db| {
                for _ in 0..20 {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let n = (seed >> 33) as usize % (2 * KEYS);
                    match seed >> 20 & 3 {
                        0 => remove(db, n),
                        1 => _ = db.append(db.key(format!("key:{n}").as_bytes()), b"!"),
                        2 => _ = db.set_expiry(db.key(format!("key:{n}").as_bytes()), Some(1 << 50)),
                        _ => set(db, n, "new"),
                    }
                }
            });
            if step == 30 {
                with_db(keyspace, 0, |db| db.swap(1, 2));
                with_db(keyspace, 0, |db| _ = db.flush(1, true));
            }
            step += 1;
        }
        assert!(*seen.lock() == expected(&[0, 2], KEYS), "round {round}");
        for number in [0, 1, 2] {
            with_db(keyspace, number, |db| {
                db.flush(number, false);
                if number != 1 {
                    (0..KEYS).for_each(|n| set(db, n, &format!("old {n}")));
                }
            });
        }
    }
}

#[test]
fn snapshots_of_different_partitions_run_at_the_same_time() {
    const KEYS: usize = 2000;
    let keyspace = Keyspace::leak(2, 8, KeyHasher::with_secret(1, 2));
    let participant = keyspace.global_lock.join().expect("room");
    for number in [0, 1] {
        with_db(keyspace, number, |db| (0..KEYS).for_each(|n| set(db, n, &format!("old {n}"))));
    }
    let is_in = |key: &[u8], partitions: &[usize]| partitions.contains(&keyspace.partition_of(keyspace.key(key).hash));
    let begin_in = |partitions: &[usize]| {
        let seen = Seen::default();
        let sink = Box::new(Copy(seen.clone()));
        (Walk::begin_in(&mut keyspace.lock_global(), partitions.into(), sink), seen)
    };
    let ((mut walk, seen), (mut other_walk, other_seen)) = (begin_in(&[1, 6]), begin_in(&[0]));
    let mut more = (true, true);
    while more.0 || more.1 {
        with_db(keyspace, 0, |db| (0..KEYS).step_by(3).for_each(|n| set(db, n, "new")));
        with_db(keyspace, 1, |db| (0..KEYS).step_by(5).for_each(|n| remove(db, n)));
        more.0 = more.0 && walk.step(participant);
        more.1 = more.1 && other_walk.step(participant);
    }
    for (seen, partitions) in [(seen, &[1, 6][..]), (other_seen, &[0])] {
        let mut expected = expected(&[0, 1], KEYS);
        expected.retain(|(_, key), _| is_in(key, partitions));
        assert!(*seen.lock() == expected, "{partitions:?}");
    }
}

#[test]
fn cancelled_snapshot_leaves_no_state() {
    let keyspace = Keyspace::leak(1, 4, KeyHasher::with_secret(1, 2));
    let participant = keyspace.global_lock.join().expect("room");
    with_db(keyspace, 0, |db| (0..500).for_each(|n| set(db, n, &format!("old {n}"))));
    let (mut walk, seen) = begin(keyspace);
    walk.step(participant);
    walk.snapshot().cancel();
    with_db(keyspace, 0, |db| (0..500).filter(|n| n % 3 == 0).for_each(|n| set(db, n, &format!("old {n}"))));
    while walk.step(participant) {}
    assert!(seen.lock().len() < 500);
    let (mut walk, seen) = begin(keyspace);
    while walk.step(participant) {}
    assert!(*seen.lock() == expected(&[0], 500));
}

mod pieces;
