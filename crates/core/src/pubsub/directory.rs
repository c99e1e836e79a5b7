//! The number of subscribers that each worker has for every channel, shard channel and pattern.
//!
//! The hash of a channel's name selects one of several locks. Patterns share one read-write lock, which publishers take
//! for reading, since every message has to be matched with all patterns.

use super::publication::Address;
use super::{Kind, Name};
use kvick_resp::glob;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Number of locks for the channels.
const SEGMENTS: usize = 64;

/// Number of subscribers per worker, by name.
type Counts = HashMap<Name, ByWorker>;

/// See the module's documentation.
pub struct Directory {
    channels: [Mutex<Counts>; SEGMENTS],
    shard_channels: [Mutex<Counts>; SEGMENTS],
    patterns: RwLock<Counts>,
    /// Number of names of each kind.
    sizes: [AtomicUsize; Kind::COUNT],
    /// The stamp of the next subscription. Stamps ascend.
    next_stamp: AtomicU64,
}

/// Subscribers by worker; workers without subscribers have no entry.
#[derive(Default)]
struct ByWorker(SmallVec<[(u32, u32); 2]>);

impl ByWorker {
    fn add(&mut self, worker: usize) {
        match self.0.iter_mut().find(|(known, _)| *known as usize == worker) {
            Some((_, count)) => *count += 1,
            None => self.0.push((worker as u32, 1)),
        }
    }

    /// Removes a subscriber of a worker; returns whether any subscribers are left.
    fn remove(&mut self, worker: usize) -> bool {
        if let Some(at) = self.0.iter().position(|(known, _)| *known as usize == worker) {
            self.0[at].1 -= 1;
            if self.0[at].1 == 0 {
                self.0.swap_remove(at);
            }
        }
        !self.0.is_empty()
    }

    fn total(&self) -> usize {
        self.0.iter().map(|(_, count)| *count as usize).sum()
    }
}

/// The receivers of a message.
pub struct Receivers {
    /// Workers that have receivers.
    pub workers: SmallVec<[usize; 8]>,
    /// Patterns that match the channel.
    pub patterns: Box<[Name]>,
    /// Only subscriptions with stamps below this receive the message.
    pub horizon: u64,
}

impl Default for Directory {
    fn default() -> Self {
        Directory {
            channels: std::array::from_fn(|_| Mutex::default()),
            shard_channels: std::array::from_fn(|_| Mutex::default()),
            patterns: RwLock::default(),
            sizes: Default::default(),
            next_stamp: AtomicU64::new(0),
        }
    }
}

impl Directory {
    /// Number of channels, patterns or shard channels that have subscribers.
    #[inline]
    pub fn size(&self, kind: Kind) -> usize {
        self.sizes[kind as usize].load(Ordering::Relaxed)
    }

    /// Whether any client could receive keyspace events.
    #[inline]
    pub fn has_listeners(&self) -> bool {
        self.size(Kind::Channel) + self.size(Kind::Pattern) > 0
    }

    /// Number of subscribers of a channel or shard channel.
    pub fn count(&self, kind: Kind, name: &[u8]) -> usize {
        self.with(kind, name, |counts| counts.get(name).map_or(0, ByWorker::total))
    }

    /// The names of all channels or shard channels that have subscribers, filtered by the pattern if one is given.
    pub fn names(&self, kind: Kind, pattern: Option<&[u8]>) -> Vec<Name> {
        let mut names = Vec::new();
        for segment in self.segments(kind) {
            let counts = segment.lock();
            let matches = |name: &&Name| pattern.is_none_or(|pattern| glob::matches(pattern, name, false));
            names.extend(counts.keys().filter(matches).cloned());
        }
        names
    }

    /// Adds a subscription of a connection of a worker; returns the shared name and the stamp of the subscription.
    pub(super) fn add(&self, kind: Kind, name: &[u8], worker: usize) -> (Name, u64) {
        self.with(kind, name, |counts| {
            let name = match counts.get_key_value(name) {
                Some((name, _)) => name.clone(),
                None => {
                    self.sizes[kind as usize].fetch_add(1, Ordering::Relaxed);
                    Name::from(name)
                }
            };
            counts.entry(name.clone()).or_default().add(worker);
            // Under the lock of the name: see `find`.
            (name, self.next_stamp.fetch_add(1, Ordering::Relaxed))
        })
    }

    /// Moves a subscription to another worker; returns its new stamp, so that messages published before are not
    /// delivered again.
    pub(super) fn transfer(&self, kind: Kind, name: &[u8], from: usize, to: usize) -> u64 {
        self.with(kind, name, |counts| {
            if let Some(by_worker) = counts.get_mut(name) {
                by_worker.remove(from);
                by_worker.add(to);
            }
            self.next_stamp.fetch_add(1, Ordering::Relaxed)
        })
    }

    /// Removes a subscription of a connection of a worker.
    pub(super) fn remove(&self, kind: Kind, name: &[u8], worker: usize) {
        self.with(kind, name, |counts| {
            if counts.get_mut(name).is_some_and(|by_worker| !by_worker.remove(worker)) {
                counts.remove(name);
                self.sizes[kind as usize].fetch_sub(1, Ordering::Relaxed);
            }
        });
    }

    /// Calls `send` with the receivers of a message, if there are any; returns their number. Until `send` returns, no
    /// other message is published to the channel, and no client subscribes to the channel or a matching pattern.
    pub(super) fn find(&self, address: Address, channel: &[u8], send: impl FnOnce(Receivers)) -> usize {
        let (kind, matches_patterns) = match address {
            Address::Channel => (Kind::Channel, self.size(Kind::Pattern) > 0),
            Address::Shard => (Kind::Shard, false),
        };
        if self.size(kind) == 0 && !matches_patterns {
            return 0;
        }
        let counts = self.segment(kind, channel).lock();
        let mut receivers = 0;
        let mut workers = SmallVec::new();
        let mut add = |by_worker: &ByWorker| {
            receivers += by_worker.total();
            for (worker, _) in &by_worker.0 {
                if !workers.contains(&(*worker as usize)) {
                    workers.push(*worker as usize);
                }
            }
        };
        if let Some(by_worker) = counts.get(channel) {
            add(by_worker);
        }
        let mut patterns = Vec::new();
        let known_patterns = matches_patterns.then(|| self.patterns.read());
        for (pattern, by_worker) in known_patterns.iter().flat_map(|known| known.iter()) {
            if glob::matches(pattern, channel, false) {
                add(by_worker);
                patterns.push(pattern.clone());
            }
        }
        if receivers > 0 {
            // Subscriptions made under one of these locks before have lower stamps; later ones have this stamp or a
            // higher one.
            let horizon = self.next_stamp.load(Ordering::Relaxed);
            send(Receivers { workers, patterns: patterns.into_boxed_slice(), horizon });
        }
        receivers
    }

    fn with<T>(&self, kind: Kind, name: &[u8], work: impl FnOnce(&mut Counts) -> T) -> T {
        match kind {
            Kind::Pattern => work(&mut self.patterns.write()),
            _ => work(&mut self.segment(kind, name).lock()),
        }
    }

    fn segments(&self, kind: Kind) -> &[Mutex<Counts>] {
        match kind {
            Kind::Channel => &self.channels,
            Kind::Shard => &self.shard_channels,
            Kind::Pattern => &[],
        }
    }

    /// The lock and counts of a channel or shard channel.
    fn segment(&self, kind: Kind, name: &[u8]) -> &Mutex<Counts> {
        let at = kvick_store::hash::elements().hash(name) as usize % SEGMENTS;
        if kind == Kind::Shard { &self.shard_channels[at] } else { &self.channels[at] }
    }
}
