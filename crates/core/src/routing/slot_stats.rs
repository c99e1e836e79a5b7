//! Counters of each slot, for CLUSTER SLOT-STATS.
//!
//! They are counted only while `cluster-slot-stats-enabled` is set, and allocated when that is the case for the first
//! time. Counters of a slot are reset when this node gains or loses it.

use kvick_store::slot::SLOTS;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The counters of one slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlotUsage {
    /// Time that commands for its keys took, in microseconds.
    pub cpu_us: u64,
    /// Bytes of requests for its keys.
    pub bytes_in: u64,
    /// Bytes of replies to those requests, of messages to subscribers of its shard channels, and of what its changes
    /// added to the replication stream, once for each replica.
    pub bytes_out: u64,
}

#[derive(Default)]
struct Counters {
    cpu_us: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// The counters of all slots.
#[derive(Default)]
pub struct SlotStats {
    counters: OnceLock<Box<[Counters]>>,
    enabled: AtomicBool,
}

impl SlotStats {
    /// Whether requests are counted.
    #[inline]
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// Sets whether requests are counted.
    pub fn enable(&self, enabled: bool) {
        self.enabled.store(enabled, Ordering::Relaxed);
    }

    /// Adds to the counters of a slot. Numbers that are not slots are ignored.
    pub fn add(&self, slot: u16, usage: SlotUsage) {
        let all = self.counters.get_or_init(|| (0..SLOTS).map(|_| Counters::default()).collect());
        let Some(counters) = all.get(usize::from(slot)) else { return };
        for (counter, amount) in [
            (&counters.cpu_us, usage.cpu_us),
            (&counters.bytes_in, usage.bytes_in),
            (&counters.bytes_out, usage.bytes_out),
        ] {
            if amount > 0 {
                counter.fetch_add(amount, Ordering::Relaxed);
            }
        }
    }

    /// The counters of a slot.
    pub fn of(&self, slot: u16) -> SlotUsage {
        let counters = self.counters.get().and_then(|all| all.get(usize::from(slot)));
        counters.map_or(SlotUsage::default(), |counters| SlotUsage {
            cpu_us: counters.cpu_us.load(Ordering::Relaxed),
            bytes_in: counters.bytes_in.load(Ordering::Relaxed),
            bytes_out: counters.bytes_out.load(Ordering::Relaxed),
        })
    }

    /// Resets the counters of a slot.
    pub fn reset(&self, slot: u16) {
        if let Some(counters) = self.counters.get().and_then(|all| all.get(usize::from(slot))) {
            counters.reset();
        }
    }

    /// Resets the counters of all slots (CONFIG RESETSTAT).
    pub fn reset_all(&self) {
        self.counters.get().into_iter().flatten().for_each(Counters::reset);
    }
}

impl Counters {
    fn reset(&self) {
        for counter in [&self.cpu_us, &self.bytes_in, &self.bytes_out] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}
