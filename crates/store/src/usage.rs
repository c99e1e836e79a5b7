//! Memory and contents of databases, for INFO and MEMORY: collected partition by partition, without stopping commands.
//!
//! Partitions that are locked at the moment are skipped, and the figures are extrapolated from the others,
//! so they are estimates while commands run. These functions never block, and the caller may hold locks.

use crate::keyspace::Keyspace;

/// Buckets searched for keys with an expiry per sample.
const BUCKETS_PER_SAMPLE: usize = 16;

/// The size of the tables of one database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Keys.
    pub keys: usize,
    /// Keys with an expiry.
    pub volatile: usize,
    /// Partitions that hold keys.
    pub partitions: usize,
    /// Bytes of the tables themselves, without entries.
    pub table_bytes: usize,
    /// Total number of slots.
    pub slots: usize,
    /// Total number of segments.
    pub segments: usize,
}

impl Keyspace {
    /// The size of the tables of database `number`.
    pub fn usage(&'static self, number: usize) -> Usage {
        let mut usage = Usage { keys: self.len(number), volatile: self.volatile(number), ..Usage::default() };
        let database = self.database_at(number);
        let mut seen = 0;
        for partition in 0..self.partitions() {
            if self.partition_len(database, partition) == 0 {
                continue;
            }
            usage.partitions += 1;
            let address = self.address_of(database, partition);
            let Some(locked) = self.try_lock_one(address) else { continue };
            let table = locked.partition(address).table();
            usage.table_bytes += table.memory();
            usage.slots += table.capacity();
            usage.segments += table.segment_count();
            seen += 1;
        }
        let scale = |sum: usize| (sum * usage.partitions).checked_div(seen).unwrap_or(0);
        Usage {
            table_bytes: scale(usage.table_bytes),
            slots: scale(usage.slots),
            segments: scale(usage.segments),
            ..usage
        }
    }

    /// The mean remaining time to live of keys with an expiry, in milliseconds,
    /// from a sample of about `samples` keys; 0 if there are none.
    pub fn average_ttl_ms(&'static self, number: usize, now_ms: i64, samples: usize) -> u64 {
        let database = self.database_at(number);
        let (mut sum, mut count) = (0u64, 0u64);
        for partition in 0..self.partitions() {
            if count >= samples as u64 {
                break;
            }
            if self.partition_volatile(database, partition) == 0 {
                continue;
            }
            let address = self.address_of(database, partition);
            let Some(locked) = self.try_lock_one(address) else { continue };
            let mut position = Some(0);
            let before = count;
            while let Some(at) = position.filter(|_| count == before) {
                position = locked.partition(address).scan_volatile(at, BUCKETS_PER_SAMPLE, |entry| {
                    let left = entry.expiry().map_or(0, |at| at.saturating_sub(now_ms)).max(0);
                    sum = sum.saturating_add(left as u64);
                    count += 1;
                });
            }
        }
        sum.checked_div(count).unwrap_or(0)
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

    fn fill(keyspace: &'static Keyspace, keys: usize) {
        let (counters, mut effects, access) = (Counters::default(), Effects::default(), Access::default());
        let mut locked = keyspace.lock_global();
        let env = Env::command(0, &access, &counters, &mut effects);
        let mut db = Db::new(&mut locked, 0, env);
        for n in 0..keys {
            let name = n.to_string();
            let key = db.key(name.as_bytes());
            let expiry = if n % 2 == 0 { Expiry::At(5000) } else { Expiry::None };
            db.set_bytes(key, b"value", expiry);
        }
    }

    #[test]
    fn usage_counts_existing_keys() {
        let keyspace = Keyspace::leak(2, 16, KeyHasher::random());
        assert_eq!(keyspace.usage(0), Usage::default());
        fill(keyspace, 1000);
        let usage = keyspace.usage(0);
        assert_eq!((usage.keys, usage.volatile, usage.partitions), (1000, 500, 16));
        assert!(usage.slots >= 1000 && usage.table_bytes >= 8 * usage.slots && usage.segments >= 16);
        assert_eq!(keyspace.usage(1), Usage::default());
    }

    #[test]
    fn locked_partition_is_skipped_and_retried() {
        let keyspace = Keyspace::leak(1, 2, KeyHasher::random());
        fill(keyspace, 4000);
        let all = keyspace.usage(0);
        let held = keyspace.lock_one(keyspace.address(0, keyspace.key(b"0")));
        let seen = keyspace.usage(0);
        drop(held);
        assert_eq!(seen.keys, 4000);
        assert!(seen.slots * 2 > all.slots && seen.slots < all.slots * 2, "{} of {}", seen.slots, all.slots);
    }

    #[test]
    fn average_ttl_matches_the_keys() {
        let keyspace = Keyspace::leak(1, 16, KeyHasher::random());
        assert_eq!(keyspace.average_ttl_ms(0, 1000, 100), 0);
        fill(keyspace, 1000);
        assert_eq!(keyspace.average_ttl_ms(0, 1000, 100), 4000);
        assert_eq!(keyspace.average_ttl_ms(0, 9000, 100), 0);
    }
}
