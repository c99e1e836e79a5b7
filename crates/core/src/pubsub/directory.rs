//! How many subscribers each worker has for every channel, shard channel and pattern.
//!
//! Channels are spread over locks by the hash of their names. Patterns have one lock, which publishers only read under, since
//! every message has to be matched with all of them.

use super::publication::Address;
use super::{Kind, Name};
use kvick_resp::glob;
use parking_lot::{Mutex, RwLock};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Locks that the channels are spread over.
const SEGMENTS: usize = 64;

/// Names, and how many subscribers each worker has for them.
type Counts = HashMap<Name, ByWorker>;

/// See the module's documentation.
pub struct Directory {
    channels: [Mutex<Counts>; SEGMENTS],
    shard_channels: [Mutex<Counts>; SEGMENTS],
    patterns: RwLock<Counts>,
    /// How many names there are of each kind.
    sizes: [AtomicUsize; Kind::COUNT],
    /// The stamp of the next subscription.
    next_stamp: AtomicU64,
}

/// Subscribers by worker: only workers that have some.
#[derive(Default)]
struct ByWorker(SmallVec<[(u32, u32); 2]>);

impl ByWorker {
    fn add(&mut self, worker: usize) {
        match self.0.iter_mut().find(|(known, _)| *known as usize == worker) {
            Some((_, count)) => *count += 1,
            None => self.0.push((worker as u32, 1)),
        }
    }

    /// Whether any are left.
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

/// Who a message is for.
pub struct Found {
    /// Workers that have subscribers for it.
    pub workers: SmallVec<[usize; 8]>,
    /// Patterns that its channel matches.
    pub patterns: Box<[Name]>,
    /// It is for subscriptions with lower stamps.
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
    /// How many channels, patterns or shard channels have subscribers.
    #[inline]
    pub fn size(&self, kind: Kind) -> usize {
        self.sizes[kind as usize].load(Ordering::Relaxed)
    }

    /// Whether anybody could hear of keyspace events.
    #[inline]
    pub fn has_listeners(&self) -> bool {
        self.size(Kind::Channel) + self.size(Kind::Pattern) > 0
    }

    /// How many subscribers a channel or shard channel has.
    pub fn count(&self, kind: Kind, name: &[u8]) -> usize {
        self.with(kind, name, |counts| counts.get(name).map_or(0, ByWorker::total))
    }

    /// The names of all channels or shard channels that have subscribers and match the pattern, if there is one.
    pub fn names(&self, kind: Kind, pattern: Option<&[u8]>) -> Vec<Name> {
        let mut names = Vec::new();
        for segment in self.segments(kind) {
            let counts = segment.lock();
            let meant = |name: &&Name| pattern.is_none_or(|pattern| glob::matches(pattern, name, false));
            names.extend(counts.keys().filter(meant).cloned());
        }
        names
    }

    /// A connection of a worker subscribes; the shared name and the stamp of the subscription.
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
            // Under the name's lock: see `find`.
            (name, self.next_stamp.fetch_add(1, Ordering::Relaxed))
        })
    }

    /// A connection of a worker ends its subscription.
    pub(super) fn remove(&self, kind: Kind, name: &[u8], worker: usize) {
        self.with(kind, name, |counts| {
            if counts.get_mut(name).is_some_and(|by_worker| !by_worker.remove(worker)) {
                counts.remove(name);
                self.sizes[kind as usize].fetch_sub(1, Ordering::Relaxed);
            }
        });
    }

    /// Tells `send` who a message is for, if it is for anybody; how many they are. Until `send` returns, no other message
    /// is sent to the channel and nobody subscribes to what it is for.
    pub(super) fn find(&self, address: Address, channel: &[u8], send: impl FnOnce(Found)) -> usize {
        let (kind, heeds_patterns) = match address {
            Address::Channel => (Kind::Channel, self.size(Kind::Pattern) > 0),
            Address::Shard => (Kind::Shard, false),
        };
        if self.size(kind) == 0 && !heeds_patterns {
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
        let known_patterns = heeds_patterns.then(|| self.patterns.read());
        for (pattern, by_worker) in known_patterns.iter().flat_map(|known| known.iter()) {
            if glob::matches(pattern, channel, false) {
                add(by_worker);
                patterns.push(pattern.clone());
            }
        }
        if receivers > 0 {
            // Who subscribed under one of these locks before has a lower stamp, and who does so later has none lower.
            let horizon = self.next_stamp.load(Ordering::Relaxed);
            send(Found { workers, patterns: patterns.into_boxed_slice(), horizon });
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

    /// Where a channel or shard channel is.
    fn segment(&self, kind: Kind, name: &[u8]) -> &Mutex<Counts> {
        let at = kvick_store::hash::elements().hash(name) as usize % SEGMENTS;
        if kind == Kind::Shard { &self.shard_channels[at] } else { &self.channels[at] }
    }
}
