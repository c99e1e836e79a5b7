//! The largest keys, found by a slow walk over the keyspace.
//!
//! Each worker walks its share of the partitions again and again, a few keys per lock acquisition, and skips partitions
//! that other threads have locked. It remembers the largest keys of each kind, by bytes and by elements, in [`Lists`]
//! of bounded size. A key is updated when the walk comes to it again; a key that the walk no longer finds is removed at
//! the end of the round. Between two visits a listed key may have changed or gone, so readers [look it
//! up](Keyspace::look).

use crate::entry::Entry;
use crate::hash::Key;
use crate::keyspace::{Keyspace, Share};
use crate::value::Kind;
use std::time::Instant;

/// Keys in each list.
pub const KEYS_MAX: usize = 16;
/// Longer names are not listed, so that the memory of the lists is bounded.
pub const NAME_BYTES_MAX: usize = 1024;
/// Sampled elements of a large collection, as in MEMORY USAGE.
const SAMPLES: usize = 5;
/// A key's share of its table: one slot.
const SLOT_BYTES: usize = size_of::<u64>();
/// Keys and buckets visited per lock acquisition.
const KEYS_PER_LOCK: usize = 16;
const BUCKETS_PER_LOCK: usize = 32;
/// Attempts to lock a partition in which a key is looked up.
const LOOK_TRIES: usize = 64;

/// What lists are ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Memory.
    Bytes,
    /// Number of elements; strings have none.
    Elements,
}

impl Order {
    const ALL: [Order; 2] = [Order::Bytes, Order::Elements];
}

/// The size of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Size {
    /// The kind of its value.
    pub kind: Kind,
    /// Memory of key and value, as in MEMORY USAGE; for large collections an estimate.
    pub bytes: usize,
    /// Number of elements; 0 for strings.
    pub elements: usize,
}

impl Size {
    fn of(entry: &Entry<'_>) -> Size {
        Size { kind: entry.kind(), bytes: entry.memory(SAMPLES) + SLOT_BYTES, elements: entry.elements() }
    }

    /// The size in an order.
    pub fn by(&self, order: Order) -> usize {
        match order {
            Order::Bytes => self.bytes,
            Order::Elements => self.elements,
        }
    }
}

/// A key in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BigKey {
    /// Its name.
    pub name: Box<[u8]>,
    /// The number of its database.
    pub db: usize,
    /// Its size when the walk last came to it.
    pub size: Size,
    /// The round in which that was.
    round: u64,
}

/// The largest keys, by kind and order. Each list is unordered.
#[derive(Clone, Default, Debug)]
pub struct Lists {
    lists: [[Vec<BigKey>; 2]; Kind::NAMES.len()],
    /// The smallest size in each list that is full; otherwise 0.
    floors: [[usize; 2]; Kind::NAMES.len()],
}

impl Lists {
    /// The keys of a kind with the greatest sizes in an order.
    pub fn of(&self, kind: Kind, order: Order) -> &[BigKey] {
        &self.lists[kind as usize][order as usize]
    }

    /// Whether a key of this size belongs into a list, or may be in one.
    #[inline]
    fn admits(&self, size: &Size) -> bool {
        let floors = &self.floors[size.kind as usize];
        Order::ALL.iter().any(|order| size.by(*order) >= floors[*order as usize].max(1))
    }

    /// Adds or updates a key; returns whether a list changed.
    fn add(&mut self, name: &[u8], db: usize, size: Size, round: u64) -> bool {
        if name.len() > NAME_BYTES_MAX {
            return false;
        }
        let mut is_changed = false;
        for order in Order::ALL {
            let list = &mut self.lists[size.kind as usize][order as usize];
            let floor = &mut self.floors[size.kind as usize][order as usize];
            let listed = list.iter_mut().find(|listed| listed.db == db && *listed.name == *name);
            if let Some(listed) = listed {
                is_changed |= listed.size != size;
                (listed.size, listed.round) = (size, round);
            } else if size.by(order) > *floor {
                if list.len() == KEYS_MAX
                    && let Some(smallest) = (0..KEYS_MAX).min_by_key(|at| list[*at].size.by(order))
                {
                    list.swap_remove(smallest);
                }
                list.push(BigKey { name: name.into(), db, size, round });
                is_changed = true;
            }
            *floor = floor_of(list, order);
        }
        is_changed
    }

    /// Removes the keys that were last seen before `round`; returns whether there were any.
    fn remove_before(&mut self, round: u64) -> bool {
        let mut is_changed = false;
        for (lists, floors) in self.lists.iter_mut().zip(&mut self.floors) {
            for (order, (list, floor)) in Order::ALL.into_iter().zip(lists.iter_mut().zip(floors)) {
                let len = list.len();
                list.retain(|listed| listed.round >= round);
                is_changed |= list.len() < len;
                *floor = floor_of(list, order);
            }
        }
        is_changed
    }
}

fn floor_of(list: &[BigKey], order: Order) -> usize {
    if list.len() < KEYS_MAX { 0 } else { list.iter().map(|key| key.size.by(order)).min().unwrap_or(0) }
}

/// One worker's position in its share, and what it has found.
#[derive(Default)]
pub struct Walk {
    lists: Lists,
    round: u64,
    /// The current partition, counted among those of the worker.
    next: usize,
    /// The position in its table to continue from.
    position: u64,
}

/// The result of a part of a walk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Number of keys visited.
    pub keys: u64,
    /// Whether the lists have changed.
    pub is_changed: bool,
    /// Whether the end of the share was reached. The next call begins the next round.
    pub is_round_over: bool,
}

impl Walk {
    /// What it has found.
    pub fn lists(&self) -> &Lists {
        &self.lists
    }

    /// Continues until the deadline or the end of the share. The caller is in a batch and holds no locks.
    pub fn run(&mut self, keyspace: &'static Keyspace, share: Share, now_ms: i64, deadline: Instant) -> Progress {
        let partitions = keyspace.partitions();
        let total = keyspace.databases() * partitions;
        let mut progress = Progress::default();
        loop {
            let index = share.worker + self.next * share.workers;
            if index >= total {
                progress.is_changed |= self.lists.remove_before(self.round);
                (self.next, self.position, self.round) = (0, 0, self.round + 1);
                progress.is_round_over = true;
                return progress;
            }
            let (number, partition) = (index / partitions, index % partitions);
            let database = keyspace.database_at(number);
            if !keyspace.is_allocated(database) {
                // This worker's first partition in the next database.
                self.advance(((number + 1) * partitions - index).div_ceil(share.workers));
                continue;
            }
            if keyspace.partition_len(database, partition) == 0 {
                self.advance(1);
                if !self.next.is_multiple_of(KEYS_PER_LOCK) {
                    continue;
                }
            } else {
                self.step(keyspace, number, partition, now_ms, &mut progress);
            }
            if Instant::now() >= deadline {
                return progress;
            }
        }
    }

    fn advance(&mut self, partitions: usize) {
        (self.next, self.position) = (self.next + partitions, 0);
    }

    /// Visits some keys of a partition, under its lock. Leaves a partition that another thread has locked.
    fn step(
        &mut self,
        keyspace: &'static Keyspace,
        number: usize,
        partition: usize,
        now_ms: i64,
        progress: &mut Progress,
    ) {
        let address = keyspace.address_of(keyspace.database_at(number), partition);
        let Some(locked) = keyspace.try_lock_one(address) else { return self.advance(1) };
        let (lists, round) = (&mut self.lists, self.round);
        let visit = |entry: Entry<'_>| {
            progress.keys += 1;
            let size = Size::of(&entry);
            if !entry.is_expired(now_ms) && lists.admits(&size) {
                progress.is_changed |= lists.add(entry.key(), number, size, round);
            }
        };
        let partition = locked.partition(address);
        match partition.sample(self.position, BUCKETS_PER_LOCK, KEYS_PER_LOCK, false, visit) {
            Some(position) => self.position = position,
            None => self.advance(1),
        }
    }
}

/// The result of looking a key up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Look {
    /// It exists.
    Found(Size),
    /// It does not exist.
    Gone,
    /// Other threads have locked its partition.
    Locked,
}

impl Keyspace {
    /// Looks up the current size of a key without waiting. The caller is in a batch.
    pub fn look(&'static self, db: usize, name: &[u8], now_ms: i64) -> Look {
        let key: Key<'_> = self.key(name);
        let (database, partition) = (self.database_at(db), self.partition_of(key.hash));
        if self.partition_len(database, partition) == 0 {
            return Look::Gone;
        }
        let address = self.address_of(database, partition);
        for _ in 0..LOOK_TRIES {
            if let Some(locked) = self.try_lock_one(address) {
                let found = locked.partition(address).find_entry(key);
                let found = found.filter(|(_, entry)| !entry.is_expired(now_ms));
                return found.map_or(Look::Gone, |(_, entry)| Look::Found(Size::of(&entry)));
            }
            std::hint::spin_loop();
        }
        Look::Locked
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::db::{Counters, Db, Env};
    use crate::effects::Effects;
    use crate::hash::KeyHasher;
    use crate::value::Expiry;
    use std::time::Duration;

    const NOW_MS: i64 = 1000;

    fn set(keyspace: &'static Keyspace, number: usize, name: &str, len: usize, expiry: Expiry) {
        let (counters, mut effects, access) = (Counters::default(), Effects::default(), Access::default());
        let mut locked = keyspace.lock_global();
        let env = Env::command(0, &access, &counters, &mut effects);
        let mut db = Db::new(&mut locked, number, env);
        db.set_bytes(db.key(name.as_bytes()), &vec![b'v'; len], expiry);
    }

    fn round(walk: &mut Walk, keyspace: &'static Keyspace, share: Share) -> Progress {
        let deadline = Instant::now() + Duration::from_secs(60);
        let progress = walk.run(keyspace, share, NOW_MS, deadline);
        assert!(progress.is_round_over);
        progress
    }

    /// The names in the list of strings by bytes, the largest first.
    fn strings(walk: &Walk) -> Vec<String> {
        let mut list = walk.lists().of(Kind::String, Order::Bytes).to_vec();
        list.sort_by_key(|key| std::cmp::Reverse((key.size.bytes, key.name.clone())));
        list.iter().map(|key| format!("{}:{}", key.db, String::from_utf8_lossy(&key.name))).collect()
    }

    const ALL: Share = Share { worker: 0, workers: 1 };

    #[test]
    fn a_round_finds_the_largest_keys() {
        let keyspace = Keyspace::leak(3, 8, KeyHasher::random());
        for n in 0..500 {
            // The allocator's size classes are closer together than that.
            let len = if n < 484 { n } else { (1000.0 * 1.3f64.powi(n - 484)) as i32 };
            set(keyspace, 2 * (n as usize % 2), &format!("{n:03}"), len as usize, Expiry::None);
        }
        let mut walk = Walk::default();
        let progress = round(&mut walk, keyspace, ALL);
        assert_eq!((progress.keys, progress.is_changed), (500, true));
        let expected: Vec<String> = (0..KEYS_MAX).map(|n| 499 - n).map(|n| format!("{}:{n}", 2 * (n % 2))).collect();
        assert_eq!(strings(&walk), expected);
        assert!(walk.lists().of(Kind::String, Order::Elements).is_empty());
        assert!(!round(&mut walk, keyspace, ALL).is_changed);
    }

    #[test]
    fn keys_that_shrink_or_go_leave_the_lists() {
        let keyspace = Keyspace::leak(1, 4, KeyHasher::random());
        for n in 0..KEYS_MAX + 3 {
            set(keyspace, 0, &format!("key{n:02}"), 1000 + 200 * n, Expiry::None);
        }
        let mut walk = Walk::default();
        round(&mut walk, keyspace, ALL);
        assert_eq!(strings(&walk)[0], "0:key18");
        set(keyspace, 0, "key18", 10, Expiry::None);
        set(keyspace, 0, "key17", 10_000, Expiry::At(NOW_MS - 1));
        set(keyspace, 0, "key03", 10_000, Expiry::At(NOW_MS + 1));
        round(&mut walk, keyspace, ALL);
        round(&mut walk, keyspace, ALL);
        let found = strings(&walk);
        assert_eq!((found.len(), &*found[0]), (KEYS_MAX, "0:key03"));
        assert!(!found.contains(&"0:key18".into()) && !found.contains(&"0:key17".into()), "{found:?}");
        keyspace.lock_global().flush(0, false);
        assert!(round(&mut walk, keyspace, ALL).is_changed);
        assert!(strings(&walk).is_empty());
    }

    #[test]
    fn workers_share_the_walk_and_stop_in_time() {
        let keyspace = Keyspace::leak(2, 16, KeyHasher::random());
        for n in 0..400 {
            set(keyspace, n % 2, &n.to_string(), 10, Expiry::None);
        }
        let of_worker = |worker| round(&mut Walk::default(), keyspace, Share { worker, workers: 3 }).keys;
        assert_eq!((0..3).map(of_worker).sum::<u64>(), 400);
        let (mut walk, mut keys, mut parts) = (Walk::default(), 0, 0);
        loop {
            let progress = walk.run(keyspace, ALL, NOW_MS, Instant::now());
            (keys, parts) = (keys + progress.keys, parts + 1);
            if progress.is_round_over {
                break;
            }
        }
        assert_eq!(keys, 400);
        assert!(parts > 400 / (2 * KEYS_PER_LOCK), "{parts}");
    }

    #[test]
    fn locked_partitions_are_skipped() {
        let keyspace = Keyspace::leak(1, 2, KeyHasher::random());
        (0..100).for_each(|n| set(keyspace, 0, &n.to_string(), 10, Expiry::None));
        let (mut walk, held) = (Walk::default(), keyspace.lock_one(keyspace.address(0, keyspace.key(b"0"))));
        let keys = round(&mut walk, keyspace, ALL).keys;
        assert!(keys > 0 && keys < 100, "{keys}");
        assert_eq!(keyspace.look(0, b"0", NOW_MS), Look::Locked);
        drop(held);
        assert!(matches!(keyspace.look(0, b"0", NOW_MS), Look::Found(Size { kind: Kind::String, elements: 0, .. })));
        assert_eq!(keyspace.look(0, b"nothing", NOW_MS), Look::Gone);
        assert_eq!(round(&mut walk, keyspace, ALL).keys, 100);
    }

    #[test]
    fn names_are_bounded_and_sizes_updated() {
        let mut lists = Lists::default();
        let size = |bytes, elements| Size { kind: Kind::List, bytes, elements };
        assert!(!lists.add(&[b'n'; NAME_BYTES_MAX + 1], 0, size(100, 1), 0));
        assert!(lists.add(b"a", 0, size(100, 1), 0) && !lists.add(b"a", 0, size(100, 1), 1));
        assert!(lists.add(b"a", 0, size(50, 2), 1) && lists.add(b"a", 1, size(70, 0), 1));
        let of = |lists: &Lists, order| {
            lists.of(Kind::List, order).iter().map(|key| (key.db, key.size.by(order))).collect::<Vec<_>>()
        };
        assert_eq!((of(&lists, Order::Bytes), of(&lists, Order::Elements)), (vec![(0, 50), (1, 70)], vec![(0, 2)]));
        assert!(!lists.remove_before(1) && lists.remove_before(2));
    }
}
