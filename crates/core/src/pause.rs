//! Pauses: until when commands wait. CLIENT PAUSE starts a pause with a time limit. The server itself holds writes
//! during FAILOVER, and while SHUTDOWN waits for replicas.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// The reasons for which the server itself holds writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Hold {
    /// FAILOVER is under way.
    Failover = 1,
    /// SHUTDOWN waits for replicas.
    Shutdown = 2,
}

/// All pauses together. The check that no pause is active costs one load.
#[derive(Default)]
pub struct Pause {
    /// Unix time in ms at which the last pause ends; 0 when none is active.
    until_ms: AtomicI64,
    /// Unix time in ms until which all commands wait, not only those that may write.
    all_until_ms: AtomicI64,
    reasons: Mutex<Reasons>,
}

#[derive(Default)]
struct Reasons {
    /// Unix time in ms at which the pause of CLIENT PAUSE ends.
    asked_until_ms: i64,
    /// The server's own reasons, as bits of [`Hold`].
    holds: u8,
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
        let mut reasons = self.reasons.lock();
        let all = all || self.all_until_ms.load(Ordering::SeqCst) > now_ms;
        reasons.asked_until_ms = reasons.asked_until_ms.max(until_ms);
        if all {
            self.all_until_ms.store(reasons.asked_until_ms, Ordering::SeqCst);
        }
        self.publish(&reasons);
    }

    /// Ends the pause that clients started.
    pub fn end(&self) {
        let mut reasons = self.reasons.lock();
        reasons.asked_until_ms = 0;
        self.all_until_ms.store(0, Ordering::SeqCst);
        self.publish(&reasons);
    }

    /// Holds writes from now on. The caller holds the global lock, so no write is in progress when this returns.
    pub fn hold(&self, why: Hold) {
        let mut reasons = self.reasons.lock();
        reasons.holds |= why as u8;
        self.publish(&reasons);
    }

    /// Removes this reason to hold writes. The caller must send [`Resume`](crate::message::Message::Resume) to the
    /// workers.
    pub fn release(&self, why: Hold) {
        let mut reasons = self.reasons.lock();
        reasons.holds &= !(why as u8);
        self.publish(&reasons);
    }

    fn publish(&self, reasons: &Reasons) {
        let until_ms = if reasons.holds != 0 { i64::MAX } else { reasons.asked_until_ms };
        self.until_ms.store(until_ms, Ordering::SeqCst);
    }

    /// Whether any pause is active. Expired keys are not deleted during a pause, since a deletion is a write.
    #[inline]
    pub fn keeps_data(&self, now_ms: i64) -> bool {
        self.until_ms.load(Ordering::Relaxed) > now_ms
    }

    /// The active pause, if there is one.
    pub fn state(&self, now_ms: i64) -> Option<ActivePause> {
        let until_ms = self.until_ms.load(Ordering::SeqCst);
        let pauses_all = || self.all_until_ms.load(Ordering::SeqCst) > now_ms;
        (until_ms > now_ms).then(|| ActivePause { until_ms, pauses_all: pauses_all() })
    }

    /// Clears a pause that is over, so that commands no longer check it.
    fn forget(&self, now_ms: i64) {
        let mut reasons = self.reasons.lock();
        if reasons.asked_until_ms <= now_ms {
            reasons.asked_until_ms = 0;
            self.publish(&reasons);
        }
    }

    /// Whether commands have to check the pause at all.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.until_ms.load(Ordering::Relaxed) != 0
    }

    /// The [state](Self::state); clears a pause that is over.
    pub fn state_or_forget(&self, now_ms: i64) -> Option<ActivePause> {
        let state = self.state(now_ms);
        if state.is_none() {
            self.forget(now_ms);
        }
        state
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_s_own_pause_and_the_clients_end_apart() {
        let pause = Pause::default();
        let paused = |until_ms, pauses_all| Some(ActivePause { until_ms, pauses_all });
        assert_eq!(pause.state(10), None);
        pause.begin(10, 100, true);
        assert_eq!(pause.state(10), paused(100, true));
        pause.hold(Hold::Failover);
        pause.hold(Hold::Shutdown);
        assert_eq!(pause.state(10), paused(i64::MAX, true));
        // The clients' pause is over; the server's holds writes only.
        assert_eq!(pause.state(100), paused(i64::MAX, false));
        pause.release(Hold::Failover);
        assert!(pause.keeps_data(100));
        pause.release(Hold::Shutdown);
        assert_eq!((pause.state(99), pause.state(100)), (paused(100, true), None));
        pause.end();
        assert_eq!(pause.state(10), None);
        pause.begin(10, 50, false);
        assert_eq!(pause.state(10), paused(50, false));
    }
}
