//! The environment's part of each input: the time, and facts about the node's data.

use crate::node_id::NodeId;
use crate::slots::{Slots, SlotsRef};

/// A point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Milliseconds of a clock that never goes back. All timers use it.
    pub mono_ms: u64,
    /// Unix time in milliseconds, for what others see: gossip, `nodes.conf` and CLUSTER NODES.
    pub unix_ms: i64,
}

/// The time, and facts about this node that other subsystems know. Read anew for every input.
#[derive(Clone, Copy)]
pub struct Facts<'a> {
    /// The current time.
    pub now: Now,
    /// Bytes of replication stream that this node has produced, or processed if it is a replica.
    pub replication_offset: u64,
    /// Milliseconds since the primary was last heard on the replication link, or since that link was lost.
    /// `u64::MAX` if this node does not have the data of its primary yet. Only of meaning on a replica.
    pub data_age_ms: u64,
    /// Whether any database has a key. Of meaning to commands, and when the data has been loaded.
    pub has_keys: bool,
    /// Number of keys in a slot, over all databases.
    pub keys_in_slot: &'a dyn Fn(u16) -> u64,
    /// Slots of atomic slot migrations under way.
    pub jobs: SlotJobs<'a>,
}

/// Slots of atomic slot migrations (CLUSTER MIGRATESLOTS) that are under way on this node.
#[derive(Clone, Copy)]
pub struct SlotJobs<'a> {
    /// Slots that this node imports.
    pub importing: SlotsRef<'a>,
    /// Slots that this node exports.
    pub exporting: SlotsRef<'a>,
    /// The slots of each export whose target was allowed to take them over. If it claims all of them, that is accepted
    /// with an epoch that is not below that of this node.
    pub granted: &'a [(NodeId, Slots)],
}

impl SlotJobs<'static> {
    /// No migration is under way.
    pub fn none() -> SlotJobs<'static> {
        static EMPTY: Slots = Slots::EMPTY;
        SlotJobs { importing: EMPTY.view(), exporting: EMPTY.view(), granted: &[] }
    }
}

impl Facts<'static> {
    /// The facts of a node without data.
    pub fn without_data(now: Now) -> Facts<'static> {
        Facts {
            now,
            replication_offset: 0,
            data_age_ms: 0,
            has_keys: false,
            keys_in_slot: &|_| 0,
            jobs: SlotJobs::none(),
        }
    }
}

impl Facts<'_> {
    /// Milliseconds of the monotonic clock.
    pub(super) fn ms(&self) -> u64 {
        self.now.mono_ms
    }
}

impl Now {
    /// The Unix time of a point of the monotonic clock; 0 for none.
    pub(super) fn unix_of(self, mono_ms: Option<u64>) -> i64 {
        mono_ms.map_or(0, |ms| self.unix_ms - (self.mono_ms as i64 - ms as i64))
    }

    /// The point of the monotonic clock that a Unix time is, if it is not before its start.
    pub(super) fn mono_of(self, unix_ms: i64) -> Option<u64> {
        let age = self.unix_ms.checked_sub(unix_ms)?;
        u64::try_from(i64::try_from(self.mono_ms).ok()?.checked_sub(age)?).ok()
    }
}

/// Milliseconds from a point of the monotonic clock until now: the largest number if there was none.
pub(super) fn elapsed(now_ms: u64, since_ms: Option<u64>) -> u64 {
    since_ms.map_or(u64::MAX, |since| now_ms.saturating_sub(since))
}
