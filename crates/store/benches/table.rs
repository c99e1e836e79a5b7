//! The hash table: lookup, insertion and removal of elements, in a table larger than the caches.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use kvick_store::hash::KeyHasher;
use kvick_store::table::Table;
use std::hint::black_box;
use std::ptr::NonNull;

const ELEMENTS: u64 = 1_000_000;

/// Elements are numbers that are leaked for the duration of the run.
struct Numbers {
    table: Table,
    hasher: KeyHasher,
    all: &'static [u64],
}

impl Numbers {
    fn new() -> Self {
        let all: &'static [u64] = Vec::leak((0..ELEMENTS * 2).collect());
        let mut numbers = Numbers { table: Table::new(), hasher: KeyHasher::with_secret(1, 2), all };
        (0..ELEMENTS as usize).for_each(|n| numbers.insert(n));
        numbers
    }

    fn hash(&self, n: u64) -> u64 {
        self.hasher.hash(&n.to_le_bytes())
    }

    fn insert(&mut self, n: usize) {
        let (hasher, hash) = (self.hasher, self.hash(self.all[n]));
        // SAFETY: every element is a leaked number.
        let hash_of = |p: NonNull<u8>| hasher.hash(&unsafe { *p.cast::<u64>().as_ref() }.to_le_bytes());
        self.table.insert(hash, NonNull::from(&self.all[n]).cast(), false, hash_of);
    }

    fn find(&self, n: u64) -> Option<kvick_store::table::Place> {
        // SAFETY: as above.
        self.table.find(self.hash(n), |p| unsafe { *p.cast::<u64>().as_ref() } == n)
    }
}

fn scattered(i: &mut u64) -> u64 {
    *i = i.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*i >> 33) % ELEMENTS
}

fn table(c: &mut Criterion) {
    let mut numbers = Numbers::new();
    let mut group = c.benchmark_group("table of 1M");
    group.throughput(Throughput::Elements(1));
    let mut i = 1;
    group.bench_function("find one that is there", |b| b.iter(|| black_box(numbers.find(scattered(&mut i)))));
    group.bench_function("find one that is not", |b| b.iter(|| black_box(numbers.find(ELEMENTS + scattered(&mut i)))));
    group.bench_function("prefetch 64, then find them", |b| {
        b.iter(|| {
            let keys: [u64; 64] = std::array::from_fn(|_| scattered(&mut i));
            keys.iter().for_each(|n| numbers.table.prefetch_bucket(numbers.hash(*n)));
            keys.iter().for_each(|n| numbers.table.prefetch_element(numbers.hash(*n)));
            keys.iter().filter(|n| numbers.find(**n).is_some()).count()
        })
    });
    group.bench_function("remove and insert", |b| {
        b.iter(|| {
            let n = scattered(&mut i);
            if let Some(place) = numbers.find(n) {
                numbers.table.remove(place);
            }
            numbers.insert(n as usize);
        })
    });
    group.bench_function("grow from nothing to 1M", |b| {
        b.iter_batched(|| (), |()| Numbers::new(), BatchSize::PerIteration);
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20);
    targets = table
}
criterion_main!(benches);
