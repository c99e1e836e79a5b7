//! Pauses: until when commands wait. CLIENT PAUSE starts a pause with a time limit. The server itself pauses writes
//! during FAILOVER, and while SHUTDOWN waits for replicas; it pauses all commands before it stops the process for DEBUG
//! PAUSE-AFTER-FORK. Writes to single [slots](SlotWrites) pause while these leave the node.

use crate::slot_writes::SlotWrites;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// The reasons for which the server itself pauses writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PauseReason {
    /// FAILOVER is under way.
    Failover = 1,
    /// SHUTDOWN waits for replicas.
    Shutdown = 2,
    /// A replica in the cluster is taking over.
    ClusterFailover = 4,
}

/// All pauses together. The check that no pause is active costs one load.
#[derive(Default)]
pub struct Pause {
    /// Unix time in ms at which the last pause ends; 0 when none is active.
    until_ms: AtomicI64,
    /// Unix time in ms until which all commands wait, not only those that may write.
    all_until_ms: AtomicI64,
    sources: Mutex<Sources>,
    /// Slots whose writes are paused. Unlike the other pauses, this one does not keep expired keys.
    pub slots: SlotWrites,
}

#[derive(Default)]
struct Sources {
    /// Unix time in ms at which the pause of CLIENT PAUSE ends.
    client_until_ms: i64,
    /// Whether that pause applies to all commands.
    client_pauses_all: bool,
    /// The server's own reasons, as bits of [`PauseReason`].
    internal: u8,
    /// Pauses of all commands by the server itself.
    internal_all: usize,
}

/// A pause that is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActivePause {
    /// When it ends, as a Unix time in milliseconds.
    pub until_ms: i64,
    /// Whether it applies to all commands, and not only to writes.
    pub pauses_all: bool,
}

impl Pause {
    /// Starts or extends a pause. The later end and the stricter kind apply.
    pub fn begin(&self, now_ms: i64, until_ms: i64, all: bool) {
        let mut sources = self.sources.lock();
        let was_all = sources.client_pauses_all && sources.client_until_ms > now_ms;
        sources.client_pauses_all = all || was_all;
        sources.client_until_ms = sources.client_until_ms.max(until_ms);
        self.publish(&sources);
    }

    /// Ends the pause that clients started.
    pub fn end(&self) {
        let mut sources = self.sources.lock();
        sources.client_until_ms = 0;
        self.publish(&sources);
    }

    /// Pauses writes from now on. The caller holds the global lock, so no write is in progress when this returns.
    pub fn pause_writes(&self, reason: PauseReason) {
        let mut sources = self.sources.lock();
        sources.internal |= reason as u8;
        self.publish(&sources);
    }

    /// Removes this reason to pause writes. The caller must send [`Resume`](crate::message::Message::Resume) to the
    /// workers.
    pub fn resume_writes(&self, reason: PauseReason) {
        let mut sources = self.sources.lock();
        sources.internal &= !(reason as u8);
        self.publish(&sources);
    }

    /// Pauses all commands from now on. The caller holds the global lock, so no command is in progress when this
    /// returns.
    pub fn pause_all(&self) {
        let mut sources = self.sources.lock();
        sources.internal_all += 1;
        self.publish(&sources);
    }

    /// Ends one pause begun with [`pause_all`](Self::pause_all). The caller must send
    /// [`Resume`](crate::message::Message::Resume) to the workers.
    pub fn resume_all(&self) {
        let mut sources = self.sources.lock();
        sources.internal_all -= 1;
        self.publish(&sources);
    }

    /// The server's own reason to pause writes, if it has one.
    pub fn internal_reason(&self) -> Option<PauseReason> {
        let internal = self.sources.lock().internal;
        let reasons = [PauseReason::Shutdown, PauseReason::Failover, PauseReason::ClusterFailover];
        reasons.into_iter().find(|reason| internal & *reason as u8 != 0)
    }

    fn publish(&self, sources: &Sources) {
        let Sources { client_until_ms, client_pauses_all, internal, internal_all } = *sources;
        let all_until_ms = match internal_all {
            0 if client_pauses_all => client_until_ms,
            0 => 0,
            _ => i64::MAX,
        };
        self.all_until_ms.store(all_until_ms, Ordering::SeqCst);
        let until_ms = if internal_all > 0 || internal > 0 { i64::MAX } else { client_until_ms };
        self.until_ms.store(until_ms, Ordering::SeqCst);
    }

    /// Whether any pause is active, so that writes wait. Expired keys are not deleted during a pause, since a deletion
    /// is a write.
    #[inline]
    pub fn blocks_writes(&self, now_ms: i64) -> bool {
        self.until_ms.load(Ordering::Relaxed) > now_ms
    }

    /// The active pause, if there is one.
    pub fn state(&self, now_ms: i64) -> Option<ActivePause> {
        let until_ms = self.until_ms.load(Ordering::SeqCst);
        let pauses_all = || self.all_until_ms.load(Ordering::SeqCst) > now_ms;
        (until_ms > now_ms).then(|| ActivePause { until_ms, pauses_all: pauses_all() })
    }

    /// Clears a pause that is over, so that commands no longer check it.
    fn clear_ended(&self, now_ms: i64) {
        let mut sources = self.sources.lock();
        if sources.client_until_ms <= now_ms {
            sources.client_until_ms = 0;
            self.publish(&sources);
        }
    }

    /// Whether commands have to check the pause at all.
    #[inline]
    pub fn may_be_active(&self) -> bool {
        self.may_concern_all_slots() | self.slots.holds_any()
    }

    /// Whether commands on any slot have to check the pause, and not only those on held [slots](Self::slots).
    #[inline]
    pub fn may_concern_all_slots(&self) -> bool {
        self.until_ms.load(Ordering::Relaxed) != 0
    }

    /// The [state](Self::state); clears a pause that is over.
    pub fn state_or_clear(&self, now_ms: i64) -> Option<ActivePause> {
        let state = self.state(now_ms);
        if state.is_none() {
            self.clear_ended(now_ms);
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_and_client_pauses_end_independently() {
        let pause = Pause::default();
        let paused = |until_ms, pauses_all| Some(ActivePause { until_ms, pauses_all });
        assert_eq!(pause.state(10), None);
        pause.begin(10, 100, true);
        assert_eq!(pause.state(10), paused(100, true));
        pause.pause_writes(PauseReason::Failover);
        pause.pause_writes(PauseReason::Shutdown);
        assert_eq!(pause.state(10), paused(i64::MAX, true));
        // The clients' pause is over; the internal one blocks writes only.
        assert_eq!(pause.state(100), paused(i64::MAX, false));
        pause.resume_writes(PauseReason::Failover);
        assert!(pause.blocks_writes(100));
        pause.resume_writes(PauseReason::Shutdown);
        assert_eq!((pause.state(99), pause.state(100)), (paused(100, true), None));
        pause.end();
        assert_eq!(pause.state(10), None);
        pause.begin(10, 50, false);
        assert_eq!(pause.state(10), paused(50, false));
        // An internal pause of all commands leaves that of the clients as it was.
        pause.pause_all();
        assert_eq!(pause.state(10), paused(i64::MAX, true));
        pause.resume_all();
        assert_eq!((pause.state(10), pause.state(50)), (paused(50, false), None));
    }
}
