//! The keyspace under its locks, driven by one thread and by two concurrently: measures the gain from a second core.
//!
//! Each thread does what a worker does for a batch: enters the batch, prefetches, and for each key locks its
//! partition, looks the key up or sets it, and unlocks it. Keys are spread over one million. The reported time is for
//! the same number of operations per thread, so two threads that do not hinder each other take as long as one. Two
//! threads with separate keyspaces, which share only the hardware, show how much of the loss is due to the hardware.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use kvick_store::global_lock::Participant;
use kvick_store::hash::KeyHasher;
use kvick_store::{Access, Counters, Db, Effects, Env, EventClass, Expiry, Keyspace};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

const KEYS: u64 = 1_000_000;
/// The number that the server uses for two workers.
const PARTITIONS: usize = 2048;
const BATCH: usize = 64;
const BATCHES: usize = 2_000;

struct Thread {
    keyspace: &'static Keyspace,
    participant: Participant,
    access: Access,
    counters: Counters,
    effects: Effects,
    state: u64,
}

impl Thread {
    fn new(keyspace: &'static Keyspace, participant: Participant, seed: u64) -> Self {
        Thread {
            keyspace,
            participant,
            access: Access::default(),
            counters: Counters::default(),
            effects: Effects::default(),
            state: seed,
        }
    }

    fn key(&mut self) -> [u8; 16] {
        self.state = self.state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        key((self.state >> 33) % KEYS)
    }

    fn batch(&mut self, write_every: usize) {
        let keys: [[u8; 16]; BATCH] = std::array::from_fn(|_| self.key());
        let keyspace = self.keyspace;
        keyspace.global_lock.enter(self.participant);
        let keys = keys.each_ref().map(|bytes| keyspace.key(bytes));
        keyspace.prefetch(0, &keys.map(|key| key.hash), None);
        for (number, key) in keys.iter().enumerate() {
            let mut locked = keyspace.lock_one(keyspace.address(0, *key));
            self.effects.begin(false, EventClass::empty(), 0);
            let env = Env::command(1, &self.access, &self.counters, &mut self.effects);
            let mut db = Db::new(&mut locked, 0, env);
            if number % write_every == 0 {
                db.set_bytes(*key, b"a value of some length", Expiry::None);
            } else {
                black_box(db.get(*key).is_some());
            }
        }
        keyspace.global_lock.leave(self.participant);
    }
}

/// The key with a number. Allocates nothing, so that the allocator's locks are not measured.
fn key(mut n: u64) -> [u8; 16] {
    let mut bytes = *b"key:000000000000";
    for digit in bytes[10..].iter_mut().rev() {
        *digit += (n % 10) as u8;
        n /= 10;
    }
    bytes
}

/// A thread's position in a keyspace.
type Seat = (&'static Keyspace, Participant);

/// A keyspace of a million keys, and the positions of two threads in it.
fn filled() -> [Seat; 2] {
    let keyspace = Keyspace::leak(1, PARTITIONS, KeyHasher::with_secret(3, 4));
    let participants = [(); 2].map(|()| keyspace.global_lock.join().expect("few threads"));
    let mut thread = Thread::new(keyspace, participants[0], 0);
    for n in 0..KEYS {
        let bytes = key(n);
        let key = keyspace.key(&bytes);
        let mut locked = keyspace.lock_one(keyspace.address(0, key));
        let (access, counters, effects) = (&thread.access, &thread.counters, &mut thread.effects);
        let env = Env::command(1, access, counters, effects);
        Db::new(&mut locked, 0, env).set_bytes(key, b"a value of some length", Expiry::None);
    }
    participants.map(|participant| (keyspace, participant))
}

/// The time that one thread per seat takes for its batches, started together. Their speeds
/// are summed, so that a thread that the machine delays counts for the work it did.
fn run(seats: &[Seat], write_every: usize) -> Duration {
    let barrier = Barrier::new(seats.len());
    std::thread::scope(|scope| {
        let work = |number: usize| {
            let (keyspace, participant) = seats[number];
            let mut thread = Thread::new(keyspace, participant, number as u64 * 7919 + 1);
            barrier.wait();
            let began = Instant::now();
            (0..BATCHES).for_each(|_| thread.batch(write_every));
            began.elapsed()
        };
        let running: Vec<_> = (0..seats.len()).map(|number| scope.spawn(move || work(number))).collect();
        let seconds = running.into_iter().map(|thread| thread.join().expect("no panic").as_secs_f64());
        Duration::from_secs_f64(seats.len() as f64 / seconds.map(|seconds| 1.0 / seconds).sum::<f64>())
    })
}

fn keyspace(c: &mut Criterion) {
    let (shared, other) = (filled(), filled());
    let apart = [shared[0], other[0]];
    for (name, write_every) in [("10% SET", 10), ("all SET", 1)] {
        let mut group = c.benchmark_group(format!("keyspace of 1M, {name}"));
        for (name, seats) in
            [("1 thread", &shared[..1]), ("2 threads", &shared), ("2 threads, a keyspace each", &apart)]
        {
            group.throughput(Throughput::Elements((seats.len() * BATCH * BATCHES) as u64));
            group.bench_function(name, |b| b.iter_custom(|rounds| (0..rounds).map(|_| run(seats, write_every)).sum()));
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10).measurement_time(Duration::from_secs(3));
    targets = keyspace
}
criterion_main!(benches);
