//! Pauses: until when commands wait. CLIENT PAUSE begins one for a time; the server itself holds writes while it hands its
//! role over, or waits for its replicas before it ends.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, Ordering};

/// Why the server itself holds writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Hold {
    /// FAILOVER is under way.
    Failover = 1,
    /// SHUTDOWN waits for replicas.
    Shutdown = 2,
}

/// All pauses together. Reading it when there is none costs one load.
#[derive(Default)]
pub struct Pause {
    /// Unix time in ms at which the last pause ends; 0 when there is none.
    until_ms: AtomicI64,
    /// Unix time in ms until which all commands wait, and not only those that may write.
    all_until_ms: AtomicI64,
    reasons: Mutex<Reasons>,
}

#[derive(Default)]
struct Reasons {
    /// Unix time in ms until which a client wants a pause.
    asked_until_ms: i64,
    /// The server's own reasons, as bits.
    holds: u8,
}

impl Pause {
    /// Begins or prolongs a pause: the later end and the stricter kind win.
    pub fn begin(&self, now_ms: i64, until_ms: i64, all: bool) {
        let mut reasons = self.reasons.lock();
        let all = all || self.all_until_ms.load(Ordering::SeqCst) > now_ms;
        reasons.asked_until_ms = reasons.asked_until_ms.max(until_ms);
        if all {
            self.all_until_ms.store(reasons.asked_until_ms, Ordering::SeqCst);
        }
        self.publish(&reasons);
    }

    /// Ends what clients began.
    pub fn end(&self) {
        let mut reasons = self.reasons.lock();
        reasons.asked_until_ms = 0;
        self.all_until_ms.store(0, Ordering::SeqCst);
        self.publish(&reasons);
    }

    /// Holds writes from now on. The world is held, so when this has returned nothing is written any more.
    pub fn hold(&self, why: Hold) {
        let mut reasons = self.reasons.lock();
        reasons.holds |= why as u8;
        self.publish(&reasons);
    }

    /// Holds them for this reason no more. Workers have to be told to resume.
    pub fn release(&self, why: Hold) {
        let mut reasons = self.reasons.lock();
        reasons.holds &= !(why as u8);
        self.publish(&reasons);
    }

    fn publish(&self, reasons: &Reasons) {
        let until_ms = if reasons.holds != 0 { i64::MAX } else { reasons.asked_until_ms };
        self.until_ms.store(until_ms, Ordering::SeqCst);
    }

    /// Whether there is a pause, of whichever kind: then keys that expired are not deleted, as that would be a write.
    #[inline]
    pub fn keeps_data(&self, now_ms: i64) -> bool {
        self.until_ms.load(Ordering::Relaxed) > now_ms
    }

    /// Until when it lasts, and whether for all commands.
    pub fn state(&self, now_ms: i64) -> Option<(i64, bool)> {
        let until = self.until_ms.load(Ordering::SeqCst);
        (until > now_ms).then(|| (until, self.all_until_ms.load(Ordering::SeqCst) > now_ms))
    }

    /// A pause that is over is forgotten, so that commands do not look at it any more.
    fn forget(&self, now_ms: i64) {
        let mut reasons = self.reasons.lock();
        if reasons.asked_until_ms <= now_ms {
            reasons.asked_until_ms = 0;
            self.publish(&reasons);
        }
    }

    /// Whether commands have to look at it at all.
    #[inline]
    pub fn is_there(&self) -> bool {
        self.until_ms.load(Ordering::Relaxed) != 0
    }

    /// The [state](Self::state); a pause that is over is forgotten.
    pub fn state_or_forget(&self, now_ms: i64) -> Option<(i64, bool)> {
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
        assert_eq!(pause.state(10), None);
        pause.begin(10, 100, true);
        assert_eq!(pause.state(10), Some((100, true)));
        pause.hold(Hold::Failover);
        pause.hold(Hold::Shutdown);
        assert_eq!(pause.state(10), Some((i64::MAX, true)));
        // The clients' is over, and the server's holds writes alone.
        assert_eq!(pause.state(100), Some((i64::MAX, false)));
        pause.release(Hold::Failover);
        assert!(pause.keeps_data(100));
        pause.release(Hold::Shutdown);
        assert_eq!((pause.state(99), pause.state(100)), (Some((100, true)), None));
        pause.end();
        assert_eq!(pause.state(10), None);
        pause.begin(10, 50, false);
        assert_eq!(pause.state(10), Some((50, false)));
    }
}
