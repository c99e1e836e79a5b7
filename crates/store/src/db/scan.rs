//! Walking through a database: SCAN, and keys drawn at random.

use super::{Db, Env, WhenExpired, discard, tell_of_loss};
use crate::entry::Entry;
use crate::keyspace::{Address, Keyspace};
use crate::partition::Partition;

impl Db<'_> {
    /// A key chosen with equal chances for all, or nearly so when many have expired: these are dropped on the way. When
    /// such keys are kept and seem to be all there are, it is one of them. Needs the world.
    pub fn random_key(&mut self, mut random: impl FnMut() -> u64) -> Option<Vec<u8>> {
        let mut kept = 0;
        // Every turn finds a key, drops one or counts one that is kept.
        loop {
            let len = self.len();
            if len == 0 {
                return None;
            }
            let address = self.weighted_partition(random() % len as u64);
            let name = self.locked.partition(address).random(&mut random)?.key().to_vec();
            if self.peek(self.key(&name)).is_some() || kept == KEPT_TRIES_MAX {
                return Some(name);
            }
            kept += usize::from(self.env.when_expired != WhenExpired::Drop);
            let keyspace = self.keyspace();
            self.env.effects.commit_records(&keyspace.log);
        }
    }

    /// The partition that holds key number `rank` when keys are counted partition by partition.
    fn weighted_partition(&self, mut rank: u64) -> Address {
        let keyspace = self.keyspace();
        let mut partition = 0;
        for number in 0..keyspace.partitions() {
            let len = keyspace.partition_len(self.database, number) as u64;
            if len > 0 {
                partition = number;
            }
            if rank < len {
                break;
            }
            rank = rank.saturating_sub(len);
        }
        keyspace.address_of(self.database, partition)
    }

    /// Looks at some keys from `cursor` on, at least `count` of them or all that are left, and says where to go on; 0
    /// when done. Of those that are `wanted` it visits the ones whose time has not come, and drops the others
    /// unless they are kept. Partitions are locked one at a time, so the command must hold no keys' locks (or the world).
    pub fn scan(
        &mut self,
        cursor: u64,
        count: usize,
        mut wanted: impl FnMut(&Entry<'_>) -> bool,
        mut visit: impl FnMut(Entry<'_>),
    ) -> u64 {
        let keyspace = self.keyspace();
        let partitions = keyspace.partitions();
        let (mut partition, mut position) = decode_cursor(cursor, partitions);
        let mut seen = 0;
        let mut due = Vec::new();
        // Empty buckets are looked at too: a sparse table ends the call after some work, not only after `count` keys.
        let mut buckets = count.saturating_mul(10);
        while partition < partitions {
            if keyspace.partition_len(self.database, partition) == 0 {
                (partition, position) = (partition + 1, 0);
                continue;
            }
            if seen >= count || buckets == 0 {
                return encode_cursor(partition, position, partitions);
            }
            buckets -= 1;
            let address = keyspace.address_of(self.database, partition);
            let env = &mut self.env;
            let next = self.locked.visit(address, |partition| {
                let next = partition.scan(position, |entry| {
                    seen += 1;
                    if wanted(&entry) {
                        if !env.hides(&entry) {
                            visit(entry);
                        } else if env.when_expired == WhenExpired::Drop {
                            due.push(entry.key().to_vec());
                        }
                    }
                });
                due.drain(..).for_each(|key| drop_due(keyspace, partition, env, &key));
                next
            });
            (partition, position) = next.map_or((partition + 1, 0), |position| (partition, position));
        }
        0
    }
}

/// Drops a key whose time has come while its partition is locked for that alone, and has it in the log before others can
/// change the key.
#[cold]
fn drop_due(keyspace: &Keyspace, partition: &mut Partition, env: &mut Env<'_>, key: &[u8]) {
    let key = keyspace.key(key);
    let Some(place) = partition.find(key) else { return };
    discard(keyspace, partition, place, env.lazy_expire);
    let number = env.effects.works_on();
    tell_of_loss(partition, env.effects, number, key);
    env.counters.expired.add(1);
    env.effects.expired(key, env.lazy_expire);
    env.effects.commit_records(&keyspace.log);
}

/// Turns in which a random key turns out to be one that has expired and is kept, before it will do.
const KEPT_TRIES_MAX: usize = 100;

/// A cursor is the partition in its low bits, and above them the first 48 bits of the place in the hash space.
fn encode_cursor(partition: usize, position: u64, partitions: usize) -> u64 {
    (position >> 16) << partitions.trailing_zeros() | partition as u64
}

fn decode_cursor(cursor: u64, partitions: usize) -> (usize, u64) {
    let partition = cursor as usize & (partitions - 1);
    (partition, (cursor >> partitions.trailing_zeros()) << 16)
}
