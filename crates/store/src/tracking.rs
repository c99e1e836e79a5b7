//! Client-side caching: records which clients have read which keys, so that they can be invalidated.
//!
//! Each partition has a table of the keys that tracking clients have read, with the IDs of these clients. A
//! command that changes such a key notes that in its [`Effects`](crate::effects::Effects); after the
//! command, the readers are removed from the table and notified. **Invariant**: a reader is added under the
//! lock under which it read, so a later change of the key finds it. A reader that is added between a change
//! and the removal of the readers has read the new value; its invalidation is unnecessary but harmless.
//!
//! In broadcast mode, clients receive the changes of all keys with a given prefix. Every
//! command knows from its start whether there are such clients ([`Tracking::event_mask`]),
//! and notes all keys that it changes. The server keeps the list of these clients.
//!
//! IDs of clients that have disconnected or disabled tracking stay in the table until their keys change or are evicted.

use crate::chance;
use crate::effects::event_class::EventClass;
use crate::hash::{Key, KeyHasher};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// The IDs of the clients that have read a key, ascending.
pub type Readers = SmallVec<[u64; 2]>;

/// State for the keyspace as a whole.
#[derive(Default)]
pub struct Tracking {
    /// Keys in the tables of all partitions.
    keys: AtomicUsize,
    /// Readers of all keys.
    items: AtomicUsize,
    /// Bits for the recipients of changes of keys that no client has read.
    note_all: AtomicU8,
}

/// Clients in broadcast mode.
const BROADCASTS: u8 = 1;
/// The server itself.
const NOTES: u8 = 2;

impl Tracking {
    /// Number of keys that have readers.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Number of readers, each counted once per key.
    pub fn items(&self) -> usize {
        self.items.load(Ordering::Relaxed)
    }

    /// Sets whether commands note all keys that they change, or only those that have readers. Once this has been
    /// enabled, all later changes of a key are noted for a client that then reads it: the key's lock orders them.
    pub fn set_broadcasts(&self, on: bool) {
        self.set(BROADCASTS, on);
    }

    /// Like [`set_broadcasts`](Self::set_broadcasts), on behalf of the server itself.
    pub fn set_notes_all(&self, on: bool) {
        self.set(NOTES, on);
    }

    /// Whether clients in broadcast mode receive changes.
    pub fn broadcasts(&self) -> bool {
        self.note_all.load(Ordering::Relaxed) & BROADCASTS != 0
    }

    fn set(&self, who: u8, on: bool) {
        if on {
            self.note_all.fetch_or(who, Ordering::Relaxed);
        } else {
            self.note_all.fetch_and(!who, Ordering::Relaxed);
        }
    }

    /// The additional event class of a command: [`EventClass::CHANGE`] if all changes are noted.
    #[inline]
    pub fn event_mask(&self) -> EventClass {
        // Branchless: every command calls this.
        EventClass::from_bits_retain(EventClass::CHANGE.bits() * u32::from(self.note_all.load(Ordering::Relaxed) != 0))
    }

    pub(crate) fn added(&self, added: Added) {
        self.keys.fetch_add(usize::from(added.key), Ordering::Relaxed);
        self.items.fetch_add(usize::from(added.reader), Ordering::Relaxed);
    }

    pub(crate) fn removed(&self, keys: usize, readers: usize) {
        self.keys.fetch_sub(keys, Ordering::Relaxed);
        self.items.fetch_sub(readers, Ordering::Relaxed);
    }
}

/// A changed key that clients may have cached.
#[derive(Debug, PartialEq, Eq)]
pub struct Stale {
    /// Number of its database.
    pub database: usize,
    /// The key.
    pub key: Box<[u8]>,
    /// Whether it had readers.
    pub has_readers: bool,
    /// The client that changed the key, or accessed it when it had expired, if that client uses NOLOOP; otherwise 0.
    pub noloop_writer: u64,
    /// Whether a script of that client changed the key.
    pub by_script: bool,
    /// Whether the key or a part of it expired or was evicted, rather than being changed by a command.
    pub reclaimed: bool,
}

/// Changes by the commands of a worker to keys that clients may have cached.
#[derive(Default)]
pub(crate) struct Changes {
    /// Keys that the current command may have changed.
    noted: Vec<Stale>,
    /// Keys that commands have changed, the earliest first.
    pub(crate) stale: Vec<Stale>,
    /// Bytes of the entries in `stale` for expired and evicted keys.
    pub(crate) reclaimed_bytes: usize,
    /// Whether everything that clients have cached is stale.
    pub(crate) all_stale: bool,
    pub(crate) noloop_writer: u64,
    pub(crate) by_script: bool,
}

impl Changes {
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.noted.clear();
    }

    /// True if there are changes to notify of.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        !self.stale.is_empty() | self.all_stale
    }

    #[inline]
    pub(crate) fn has_noted(&self) -> bool {
        !self.noted.is_empty()
    }

    /// Notes a key that the current command may have changed.
    pub(crate) fn note(&mut self, database: usize, key: &[u8], has_readers: bool) {
        self.noted.push(Stale {
            database,
            key: key.into(),
            has_readers,
            noloop_writer: self.noloop_writer,
            by_script: self.by_script,
            reclaimed: false,
        });
    }

    /// Confirms the noted keys: the current command made changes.
    pub(crate) fn commit(&mut self) {
        self.stale.append(&mut self.noted);
    }

    /// Adds a key that expired or was evicted, in whole or in part.
    pub(crate) fn reclaimed(&mut self, database: usize, key: &[u8], has_readers: bool) {
        self.stale.push(Stale {
            database,
            key: key.into(),
            has_readers,
            noloop_writer: self.noloop_writer,
            by_script: self.by_script,
            reclaimed: true,
        });
        self.reclaimed_bytes += size_of::<Stale>() + key.len();
    }
}

/// What [`TrackedKeys::add`] added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Added {
    /// The key had no reader before.
    pub(crate) key: bool,
    /// The reader is new.
    pub(crate) reader: bool,
}

/// The keys of one partition that have readers.
#[derive(Default)]
pub(crate) struct TrackedKeys {
    /// By hash of the key. Hash collisions are rare.
    by_hash: HashMap<u64, SmallVec<[Tracked; 1]>, BuildHasherDefault<Spread>>,
}

struct Tracked {
    key: Box<[u8]>,
    readers: Readers,
}

impl TrackedKeys {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }

    pub(crate) fn contains(&self, key: Key<'_>) -> bool {
        self.by_hash.get(&key.hash).is_some_and(|same| same.iter().any(|tracked| &*tracked.key == key.bytes))
    }

    pub(crate) fn add(&mut self, key: Key<'_>, reader: u64) -> Added {
        let same = self.by_hash.entry(key.hash).or_default();
        let Some(tracked) = same.iter_mut().find(|tracked| &*tracked.key == key.bytes) else {
            same.push(Tracked { key: key.bytes.into(), readers: Readers::from_slice(&[reader]) });
            return Added { key: true, reader: true };
        };
        match tracked.readers.binary_search(&reader) {
            Ok(_) => Added { key: false, reader: false },
            Err(at) => {
                tracked.readers.insert(at, reader);
                Added { key: false, reader: true }
            }
        }
    }

    /// Removes and returns the readers of a key, except `but`, which stays if it is one.
    pub(crate) fn take(&mut self, key: Key<'_>, but: u64) -> Readers {
        let Some(same) = self.by_hash.get_mut(&key.hash) else { return Readers::new() };
        let Some(at) = same.iter().position(|tracked| &*tracked.key == key.bytes) else { return Readers::new() };
        if same[at].readers.binary_search(&but).is_ok() {
            let mut taken = std::mem::replace(&mut same[at].readers, Readers::from_slice(&[but]));
            taken.retain(|reader| *reader != but);
            return taken;
        }
        let taken = same.swap_remove(at).readers;
        if same.is_empty() {
            self.by_hash.remove(&key.hash);
        }
        taken
    }

    /// Removes and returns some key chosen at random.
    pub(crate) fn take_any(&mut self, draw: u64, hasher: KeyHasher) -> Option<(Box<[u8]>, Readers)> {
        let some = chance::below(draw, self.by_hash.len().max(1));
        let key = self.by_hash.values().nth(some)?.first()?.key.clone();
        let readers = self.take(Key { bytes: &key, hash: hasher.hash(&key) }, 0);
        Some((key, readers))
    }

    /// Number of keys and of readers.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let all = || self.by_hash.values().flatten();
        (all().count(), all().map(|tracked| tracked.readers.len()).sum())
    }
}

/// Passes on a value that is already a hash, rotated so that its high bits
/// come first: the low bits are the same for all keys of a partition.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(self.0.rotate_left(8) ^ u64::from(*byte)));
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW_KEY: Added = Added { key: true, reader: true };
    const NEW_READER: Added = Added { key: false, reader: true };
    const KNOWN: Added = Added { key: false, reader: false };

    #[test]
    fn readers_are_deduplicated_and_taken_together() {
        let (mut keys, key) = (TrackedKeys::default(), Key { bytes: b"k", hash: 7 });
        let added: Vec<_> = [5, 3, 5, 9].map(|reader| keys.add(key, reader)).into();
        assert_eq!(added, [NEW_KEY, NEW_READER, KNOWN, NEW_READER]);
        assert_eq!((keys.contains(key), keys.counts()), (true, (1, 3)));
        assert_eq!(keys.take(key, 0).as_slice(), [3, 5, 9]);
        assert!(keys.is_empty() && keys.take(key, 0).is_empty());
    }

    #[test]
    fn noloop_writer_remains_a_reader() {
        let (mut keys, key) = (TrackedKeys::default(), Key { bytes: b"k", hash: 7 });
        for reader in [1, 2, 3] {
            keys.add(key, reader);
        }
        assert_eq!(keys.take(key, 2).as_slice(), [1, 3]);
        assert_eq!(keys.take(key, 2).as_slice(), []);
        assert_eq!(keys.take(key, 4).as_slice(), [2]);
        assert!(keys.is_empty());
    }

    #[test]
    fn keys_with_equal_hashes_are_distinguished() {
        let mut keys = TrackedKeys::default();
        let [a, b] = [b"a", b"b"].map(|bytes| Key { bytes, hash: 7 });
        assert_eq!((keys.add(a, 1), keys.contains(b), keys.add(b, 2)), (NEW_KEY, false, NEW_KEY));
        assert_eq!((keys.take(a, 0).as_slice(), keys.contains(a), keys.contains(b)), (&[1][..], false, true));
    }

    #[test]
    fn random_key_can_return_every_key() {
        let (mut keys, hasher) = (TrackedKeys::default(), KeyHasher::with_secret(1, 2));
        for n in 1..=100u64 {
            let name = n.to_string();
            keys.add(Key { bytes: name.as_bytes(), hash: hasher.hash(name.as_bytes()) }, n);
        }
        let mut taken: Vec<u64> = (0..100)
            .filter_map(|n| keys.take_any(u64::MAX / 100 * n, hasher))
            .flat_map(|(_, readers)| readers)
            .collect();
        taken.sort_unstable();
        assert_eq!(taken, (1..=100).collect::<Vec<_>>());
        assert!(keys.is_empty() && keys.take_any(0, hasher).is_none());
    }
}
