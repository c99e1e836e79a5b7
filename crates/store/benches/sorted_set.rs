//! Large sorted sets: insertion, ranks in both directions, score changes, removal from an end, and memory.

use criterion::{Criterion, criterion_group, criterion_main};
use kvick_store::collections::sorted_set::{Cut, Limits};
use kvick_store::{Collection, SortedSet};
use std::hint::black_box;

const LEN: u64 = 1_000_000;
const LIMITS: Limits = Limits { entries: 128, value: 64 };

fn member(n: u64) -> Vec<u8> {
    format!("member:{n:012}").into_bytes()
}

/// A pseudo-random number.
fn mix(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x7fb5_d329_728e_a185);
    n ^ n >> 27
}

fn filled() -> SortedSet {
    let mut set = SortedSet::new();
    for n in 0..LEN {
        set.insert(&member(n), (mix(n) % LEN) as f64, LIMITS);
    }
    println!("{:.1} bytes per element", set.memory(0) as f64 / LEN as f64);
    set
}

fn sorted_set(c: &mut Criterion) {
    let mut set = filled();
    let mut n = 0;
    let mut next = move || {
        n += 1;
        mix(n) % LEN
    };
    let names: Vec<Vec<u8>> = (0..4096).map(|_| member(next())).collect();
    let mut turn = 0;
    let mut name = || {
        turn = (turn + 1) % names.len();
        names[turn].as_slice()
    };
    c.bench_function("score", |b| b.iter(|| black_box(set.score(name()))));
    c.bench_function("rank of a member", |b| b.iter(|| black_box(set.rank(name()))));
    c.bench_function("ten elements by rank", |b| {
        b.iter(|| {
            let start = next() as usize;
            set.range(start..start + 10).map(|(_, score)| score).sum::<f64>()
        })
    });
    c.bench_function("count of a range of scores", |b| {
        b.iter(|| {
            let low = next() as f64;
            let cut = |score| Cut::Score { score, after: false };
            set.ranks(&cut(low), &cut(low + 1000.0)).len()
        })
    });
    c.bench_function("another score", |b| {
        b.iter(|| {
            let score = next() as f64;
            set.insert(name(), score, LIMITS)
        })
    });
    let mut added = LEN;
    c.bench_function("add and take the first", |b| {
        b.iter(|| {
            added += 1;
            set.insert(&member(added), next() as f64, LIMITS);
            set.remove_range(0..1);
        })
    });
    assert_eq!(set.len(), LEN as usize);
}

criterion_group!(benches, sorted_set);
criterion_main!(benches);
