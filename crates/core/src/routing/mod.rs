//! Which node serves which hash slot, as this node currently knows it.
//!
//! A [`SlotMap`] is an immutable snapshot of the cluster's configuration, reduced to what decides about requests. The
//! cluster's own thread builds one whenever something in it changes and [publishes](Routing::publish) it. Publication
//! needs the global lock, so that every batch of requests is served by one map from beginning to end, and a request
//! that holds the lock of its keys is served by the map that is current.
//!
//! Most requests are for a slot that this node owns and that nothing is happening to. [`Routing::serves`] answers for
//! them with one bit. Everything else is decided by [`SlotMap::route`], which needs to know more about the request: see
//! [`Query`].

mod endpoint;
mod map;
pub mod slot_stats;
#[cfg(test)]
mod tests;

pub use endpoint::{NodeAddress, RouteNode, Viewer};
pub use map::{CROSS_SLOT, ClusterState, Decision, DownReason, NO_NODE, NodeIndex, Owners, Presence, Query, SlotMap};

use kvick_store::Locked;
use kvick_store::slot::SLOTS;
use parking_lot::RwLock;
use slot_stats::SlotStats;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Slots per word of the bitmap.
const WORD: usize = u64::BITS as usize;

/// The current slot map of a node in cluster mode.
pub struct Routing {
    current: RwLock<Arc<SlotMap>>,
    /// Number of publications so far.
    generation: AtomicU64,
    /// The slots that this node [serves](Self::serves), one bit each.
    served: [AtomicU64; SLOTS as usize / WORD],
    /// Counters of the slots.
    pub slot_stats: SlotStats,
    bus: OnceLock<Box<dyn Bus>>,
}

/// The cluster bus, through which this node reaches the others.
pub trait Bus: Send + Sync {
    /// Sends a message that was published here to the nodes whose clients may receive it: those of this shard if
    /// `to_shard` is set, otherwise all. Must not block; the caller may hold locks of the keyspace.
    fn publish(&self, to_shard: bool, channel: &[u8], message: &[u8]);
}

impl Default for Routing {
    /// The state before the first publication: the cluster is down and no slot has an owner.
    fn default() -> Self {
        Routing {
            current: RwLock::new(Arc::new(SlotMap::unassigned())),
            generation: AtomicU64::new(0),
            served: [const { AtomicU64::new(0) }; SLOTS as usize / WORD],
            slot_stats: SlotStats::default(),
            bus: OnceLock::new(),
        }
    }
}

impl Routing {
    /// Whether this node serves all reads and writes of a slot without further checks: the cluster is up, and this node
    /// is a primary that owns the slot and is neither migrating nor importing it. Stable within a batch. False for
    /// numbers that are not slots.
    #[inline]
    pub fn serves(&self, slot: u16) -> bool {
        let word = self.served.get(usize::from(slot) / WORD);
        word.is_some_and(|word| word.load(Ordering::Relaxed) >> (usize::from(slot) % WORD) & 1 == 1)
    }

    /// Sets the cluster bus. Later calls have no effect.
    pub fn set_bus(&self, bus: Box<dyn Bus>) {
        // Only a bug in the startup code calls this twice; the first value stays.
        let _ = self.bus.set(bus);
    }

    /// Sends a published message to other nodes: see [`Bus::publish`].
    pub fn publish_on_bus(&self, to_shard: bool, channel: &[u8], message: &[u8]) {
        if let Some(bus) = self.bus.get() {
            bus.publish(to_shard, channel, message);
        }
    }

    /// The current map.
    pub fn current(&self) -> Arc<SlotMap> {
        self.current.read().clone()
    }

    /// The ID of this node; `None` before the first publication.
    pub fn node_id(&self) -> Option<[u8; 40]> {
        let map = self.current();
        map.nodes.get(usize::from(map.myself)).map(|node| node.id)
    }

    /// Number of publications so far. Stable within a batch.
    #[inline]
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Makes a map the current one and returns the previous one. `global` proves that no batch runs.
    ///
    /// Clients that wait for keys, and subscribers of shard channels, may have to be redirected afterwards: the
    /// engine's `routing::publish` calls this and does that.
    pub fn publish(&self, map: SlotMap, global: &mut Locked) -> Arc<SlotMap> {
        assert!(global.is_global(), "slot maps are published while no request runs");
        for (index, word) in self.served.iter().enumerate() {
            let first = (index * WORD) as u16;
            let serves = |bit: usize| u64::from(map.serves_stable(first + bit as u16)) << bit;
            word.store((0..WORD).map(serves).sum(), Ordering::Relaxed);
        }
        let previous = std::mem::replace(&mut *self.current.write(), Arc::new(map));
        self.generation.fetch_add(1, Ordering::Relaxed);
        previous
    }
}
