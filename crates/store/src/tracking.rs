//! Client-side caching: who has read which keys, and is to be told when they change.
//!
//! Each partition has a table of the keys that clients have read which keep what they read, with the numbers of these
//! clients. A command that changes such a key notes that in its [`Effects`](crate::effects::Effects), and the readers are
//! taken out of the table and told after the command. **Invariant**: a reader is added under the lock under which it read,
//! so whoever changes the key later finds it. One that is added between a change and the moment at which the readers are
//! taken out has read the new value, and is told for nothing, which does no harm.
//!
//! Other clients want to know of all changes of keys that begin with some prefix. That there are such clients is known to
//! every command from its beginning on ([`Tracking::heard`]), and it notes all keys that it changes. Who they are is the
//! server's business.
//!
//! Numbers of clients that have gone, or do not keep anything any more, stay until their keys change or are evicted.

use crate::chance;
use crate::effects::EventClass;
use crate::hash::KeyHasher;
use crate::keyspace::Key;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

/// The numbers of the clients that have read a key, ascending.
pub type Readers = SmallVec<[u64; 2]>;

/// What is known of the keyspace as a whole.
#[derive(Default)]
pub struct Tracking {
    /// Keys in the tables of all partitions.
    keys: AtomicUsize,
    /// Readers of all keys.
    items: AtomicUsize,
    /// Who wants to know of changes of keys that nobody has read.
    curious: AtomicU8,
}

/// Those who are told of all keys that begin with some prefix.
const BROADCASTS: u8 = 1;
/// The server itself.
const NOTES: u8 = 2;

impl Tracking {
    /// How many keys have readers.
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// How many readers they have, each counted once for every key.
    pub fn items(&self) -> usize {
        self.items.load(Ordering::Relaxed)
    }

    /// Has commands note all keys that they change, or only those that have readers. Who read a key after this was called
    /// may rely on it that later changes of the key are noted: the key's lock orders them.
    pub fn set_broadcasts(&self, on: bool) {
        self.set(BROADCASTS, on);
    }

    /// The same for the server itself, which wants to know what its clients change.
    pub fn set_noted(&self, on: bool) {
        self.set(NOTES, on);
    }

    /// Whether those who are told of prefixes are to hear of changes.
    pub fn broadcasts(&self) -> bool {
        self.curious.load(Ordering::Relaxed) & BROADCASTS != 0
    }

    fn set(&self, who: u8, on: bool) {
        if on {
            self.curious.fetch_or(who, Ordering::Relaxed);
        } else {
            self.curious.fetch_and(!who, Ordering::Relaxed);
        }
    }

    /// What a command is to hear of besides events.
    #[inline]
    pub fn heard(&self) -> EventClass {
        // Without a branch: every command asks.
        EventClass::from_bits_retain(EventClass::CHANGE.bits() * u32::from(self.curious.load(Ordering::Relaxed) != 0))
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

/// A key that has changed, and that clients may have cached.
#[derive(Debug, PartialEq, Eq)]
pub struct Stale {
    /// Number of its database.
    pub database: usize,
    /// The key.
    pub key: Box<[u8]>,
    /// Whether it had readers.
    pub has_readers: bool,
    /// The client that changed it, or met it when its time had come, if that does not want to hear of what it does
    /// itself; 0 for nobody.
    pub author: u64,
    /// Whether it went, or a part of it, by no command's will: its time had come, or memory was short.
    pub lost: bool,
}

/// What the commands of a worker changed that clients may have cached.
#[derive(Default)]
pub(crate) struct Changes {
    /// What the present command may have changed.
    noted: Vec<Stale>,
    /// What commands did change, the earliest first.
    pub(crate) stale: Vec<Stale>,
    /// Bytes of those among them that went by no command's will.
    pub(crate) lost_bytes: usize,
    /// Whether all that anybody has cached is stale.
    pub(crate) all_stale: bool,
    pub(crate) author: u64,
}

impl Changes {
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.noted.clear();
    }

    /// True when there is somebody to tell.
    #[inline]
    pub(crate) fn are_there(&self) -> bool {
        !self.stale.is_empty() | self.all_stale
    }

    #[inline]
    pub(crate) fn has_noted(&self) -> bool {
        !self.noted.is_empty()
    }

    /// The present command may have changed a key.
    pub(crate) fn note(&mut self, database: usize, key: &[u8], has_readers: bool) {
        self.noted.push(Stale { database, key: key.into(), has_readers, author: self.author, lost: false });
    }

    /// What the present command may have changed, it did.
    pub(crate) fn commit(&mut self) {
        self.stale.append(&mut self.noted);
    }

    /// A key, or a part of it, went by no command's will.
    pub(crate) fn lost(&mut self, database: usize, key: &[u8], has_readers: bool) {
        self.stale.push(Stale { database, key: key.into(), has_readers, author: self.author, lost: true });
        self.lost_bytes += size_of::<Stale>() + key.len();
    }
}

/// What was new about a reader of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Added {
    /// The key had no reader before.
    pub(crate) key: bool,
    /// It is one more.
    pub(crate) reader: bool,
}

/// The keys of one partition that have readers.
#[derive(Default)]
pub(crate) struct TrackedKeys {
    /// By the hashes of the keys, of which hardly any two are the same.
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

    /// Takes the readers of a key out, but for one who stays if it is one.
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

    /// Takes out some key by chance.
    pub(crate) fn take_any(&mut self, draw: u64, hasher: KeyHasher) -> Option<(Box<[u8]>, Readers)> {
        let some = chance::below(draw, self.by_hash.len().max(1));
        let key = self.by_hash.values().nth(some)?.first()?.key.clone();
        let readers = self.take(Key { bytes: &key, hash: hasher.hash(&key) }, 0);
        Some((key, readers))
    }

    /// How many keys and readers there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let all = || self.by_hash.values().flatten();
        (all().count(), all().map(|tracked| tracked.readers.len()).sum())
    }
}

/// Passes on what is a hash already, with its high bits in the place of the low ones: these are the same for all keys of a
/// partition.
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
    fn readers_are_kept_once_and_taken_together() {
        let (mut keys, key) = (TrackedKeys::default(), Key { bytes: b"k", hash: 7 });
        let added: Vec<_> = [5, 3, 5, 9].map(|reader| keys.add(key, reader)).into();
        assert_eq!(added, [NEW_KEY, NEW_READER, KNOWN, NEW_READER]);
        assert_eq!((keys.contains(key), keys.counts()), (true, (1, 3)));
        assert_eq!(keys.take(key, 0).as_slice(), [3, 5, 9]);
        assert!(keys.is_empty() && keys.take(key, 0).is_empty());
    }

    #[test]
    fn who_changed_a_key_itself_stays_its_reader() {
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
    fn keys_with_one_hash_are_told_apart() {
        let mut keys = TrackedKeys::default();
        let [a, b] = [b"a", b"b"].map(|bytes| Key { bytes, hash: 7 });
        assert_eq!((keys.add(a, 1), keys.contains(b), keys.add(b, 2)), (NEW_KEY, false, NEW_KEY));
        assert_eq!((keys.take(a, 0).as_slice(), keys.contains(a), keys.contains(b)), (&[1][..], false, true));
    }

    #[test]
    fn any_key_may_be_chosen_by_chance() {
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
