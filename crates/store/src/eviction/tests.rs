//! Tests of eviction: candidates, ranks and policies.

use super::*;
use crate::db::{Db, Env};
use crate::hash::KeyHasher;
use crate::keyspace::Keyspace;
use crate::log::Audience;
use crate::value::Expiry;

const NOW_MS: i64 = 1_700_000_000_000;

/// A keyspace and a worker's state.
struct Bench {
    keyspace: &'static Keyspace,
    access: Access,
    counters: Counters,
    effects: Effects,
    evictor: Evictor,
    policy: Policy,
}

impl Bench {
    fn new(scope: Scope, order: Order) -> Self {
        let mut access = Access::default();
        access.lfu = order == Order::LeastFrequent;
        access.set_now(NOW_MS);
        Bench {
            keyspace: Keyspace::leak(3, 16, KeyHasher::with_secret(1, 2)),
            access,
            counters: Counters::default(),
            effects: Effects::default(),
            evictor: Evictor::new(7),
            policy: Policy { scope, order },
        }
    }

    fn with_db<T>(&mut self, number: usize, run: impl FnOnce(&mut Db<'_>) -> T) -> T {
        let mut locked = self.keyspace.lock_global();
        let env = Env::command(NOW_MS, &self.access, &self.counters, &mut self.effects);
        run(&mut Db::new(&mut locked, number, env))
    }

    /// Sets a key with the clock of a last use this many seconds ago, or of this frequency.
    fn set(&mut self, number: usize, name: &str, expiry: Expiry, used: u8) {
        let lfu = self.access.lfu;
        self.with_db(number, |db| {
            let key = db.key(name.as_bytes());
            db.set_bytes(key, b"value", expiry);
            let access = db.access();
            let clock = if lfu { access.clock_with_frequency(used) } else { access.clock_idle_for(used.into()) };
            db.set_access_clock(key, clock);
        });
    }

    fn has(&mut self, number: usize, name: &str) -> bool {
        self.with_db(number, |db| db.inspect(db.key(name.as_bytes())).is_some())
    }

    fn evict(&mut self) -> bool {
        let freed = self.evict_something();
        freed.inspect(|bytes| assert!([16, 24].contains(bytes), "{bytes}")).is_some()
    }

    fn evict_something(&mut self) -> Option<usize> {
        self.evictor.evict(Pass {
            keyspace: self.keyspace,
            policy: self.policy,
            samples: 5,
            lazy: true,
            now_ms: NOW_MS,
            access: &self.access,
            counters: &self.counters,
            effects: &mut self.effects,
            event_mask: EventClass::empty(),
        })
    }

    /// Bytes of all tables, of partitions without keys as well.
    fn table_bytes(&mut self) -> usize {
        let (mut locked, mut bytes) = (self.keyspace.lock_global(), 0);
        locked.for_each_partition(|_, partition| bytes += partition.table().memory());
        bytes
    }

    fn len(&self) -> usize {
        (0..3).map(|number| self.keyspace.len(number)).sum()
    }
}

fn candidate(rank: u64, hash: u64) -> Candidate {
    Candidate { rank, database: 0, hash }
}

#[test]
fn pool_keeps_best_candidates_and_returns_best_first() {
    let mut pool = Pool::default();
    for rank in [5, 1, 9, 3, 7].into_iter().chain(10..30) {
        pool.offer(candidate(rank, rank));
    }
    assert!(!pool.accepts(14) && pool.accepts(15));
    pool.offer(candidate(2, 2));
    let order: Vec<u64> = std::iter::from_fn(|| pool.take_best()).map(|best| best.rank).collect();
    assert_eq!(order, (14..30).rev().collect::<Vec<_>>());
}

#[test]
fn pool_holds_each_key_once_with_latest_rank() {
    let mut pool = Pool::default();
    [candidate(5, 1), candidate(8, 2), candidate(9, 1)].into_iter().for_each(|one| pool.offer(one));
    assert_eq!(pool.take_best(), Some(candidate(9, 1)));
    assert_eq!(pool.take_best(), Some(candidate(8, 2)));
    assert_eq!(pool.take_best(), None);
}

#[test]
fn equal_candidates_leave_the_pool_in_arrival_order() {
    let mut pool = Pool::default();
    (0..20).for_each(|hash| pool.offer(candidate(4, hash)));
    assert_eq!(pool.take_best(), Some(candidate(4, 0)));
    assert_eq!(pool.take_best(), Some(candidate(4, 1)));
}

#[test]
fn least_used_keys_are_evicted_and_most_used_stay() {
    for (order, good, bad) in [(Order::LeastRecent, 1, 200), (Order::LeastFrequent, 200, 1)] {
        let mut bench = Bench::new(Scope::All, order);
        for n in 0..500 {
            let (number, used) = (n % 3, if n < 250 { good } else { bad });
            bench.set(number, &n.to_string(), Expiry::None, used);
        }
        assert!((0..200).all(|_| bench.evict()));
        let kept = (0..250).filter(|n| bench.has(n % 3, &n.to_string())).count();
        assert!(kept >= 247, "{order:?}: {kept} of 250");
        assert_eq!((bench.len(), bench.counters.evicted.get()), (300, 200));
    }
}

#[test]
fn keys_that_expire_soonest_are_evicted_first() {
    let mut bench = Bench::new(Scope::Volatile, Order::SoonestToExpire);
    for n in 0..400 {
        bench.set(0, &n.to_string(), Expiry::At(NOW_MS + 1000 * (n + 1)), 0);
    }
    assert!((0..200).all(|_| bench.evict()));
    let late = (300..400).filter(|n| bench.has(0, &n.to_string())).count();
    let early = (0..100).filter(|n| bench.has(0, &n.to_string())).count();
    assert!(late >= 97 && early < 30, "{late} late ones, {early} early ones");
}

#[test]
fn volatile_policies_evict_only_volatile_keys() {
    for order in [Order::LeastRecent, Order::LeastFrequent, Order::SoonestToExpire, Order::Random] {
        let mut bench = Bench::new(Scope::Volatile, order);
        for n in 0..3000 {
            let expiry = if n % 1000 == 7 { Expiry::At(NOW_MS + 60_000) } else { Expiry::None };
            bench.set(n % 2, &n.to_string(), expiry, 50);
        }
        assert!((0..3).all(|_| bench.evict()), "{order:?}");
        assert!(!bench.evict(), "{order:?}");
        assert_eq!(bench.len(), 2997);
    }
}

#[test]
fn random_eviction_is_uniform_over_age_and_databases() {
    let mut bench = Bench::new(Scope::All, Order::Random);
    for n in 0..600 {
        bench.set(n % 3, &n.to_string(), Expiry::None, (n % 250) as u8);
    }
    assert!((0..300).all(|_| bench.evict()));
    for number in 0..3 {
        assert_eq!(bench.keyspace.len(number), 100);
    }
    let first_half = (0..300).filter(|n| bench.has(n % 3, &n.to_string())).count();
    assert!((110..190).contains(&first_half), "{first_half}");
}

#[test]
fn repeated_eviction_empties_the_keyspace() {
    for (scope, expiry) in [(Scope::All, Expiry::None), (Scope::Volatile, Expiry::At(NOW_MS + 1000))] {
        let mut bench = Bench::new(scope, Order::LeastRecent);
        assert!(!bench.evict());
        for n in 0..50 {
            bench.set(2, &n.to_string(), expiry, 1);
        }
        assert!((0..50).all(|_| bench.evict()));
        assert!(!bench.evict() && bench.len() == 0);
    }
}

#[test]
fn evicting_the_last_key_frees_the_table() {
    let mut bench = Bench::new(Scope::All, Order::LeastRecent);
    (0..200).for_each(|n| bench.set(1, &n.to_string(), Expiry::None, 1));
    assert!(bench.table_bytes() > 0);
    assert!((0..200).all(|_| bench.evict()));
    assert_eq!(bench.table_bytes(), 0);
}

#[test]
fn eviction_frees_empty_tables_when_no_key_is_evictable() {
    let mut bench = Bench::new(Scope::Volatile, Order::Random);
    bench.set(0, "lasting", Expiry::None, 1);
    let one = bench.table_bytes();
    (0..200).for_each(|n| bench.set(1, &n.to_string(), Expiry::None, 1));
    (0..200).for_each(|n| assert!(bench.with_db(1, |db| db.remove(db.key(n.to_string().as_bytes()), false))));
    let all = bench.table_bytes();
    assert!(all > one);
    assert_eq!(bench.evict_something(), Some(all - one));
    assert_eq!((bench.evict_something(), bench.table_bytes(), bench.len()), (None, one, 1));
}

#[test]
fn recently_used_candidate_is_not_evicted() {
    let mut bench = Bench::new(Scope::All, Order::LeastRecent);
    (0..40).for_each(|n| bench.set(0, &format!("cold-{n}"), Expiry::None, 100));
    bench.set(0, "hot", Expiry::None, 200);
    // The pool contains the hot key as the best candidate, which it then no longer is.
    let hash = bench.keyspace.key(b"hot").hash;
    bench.evictor.policy = Some(bench.policy);
    bench.evictor.pool.offer(candidate(u64::MAX - 1, hash));
    bench.with_db(0, |db| db.get(db.key(b"hot")).is_some());
    assert!((0..30).all(|_| bench.evict()));
    assert!(bench.has(0, "hot"));
}

#[test]
fn evictions_are_propagated_as_deletions() {
    let mut bench = Bench::new(Scope::All, Order::LeastRecent);
    bench.set(1, "only", Expiry::None, 9);
    let mut follower = bench.keyspace.log.follow(Audience::All);
    assert!(bench.evict());
    let text = String::from_utf8(follower.read().expect("not cut off")).expect("text");
    assert_eq!(text, "*2\r\n$6\r\nSELECT\r\n$1\r\n1\r\n*2\r\n$6\r\nUNLINK\r\n$4\r\nonly\r\n");
}
