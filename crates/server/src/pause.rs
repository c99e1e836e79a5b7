//! CLIENT PAUSE: until when which commands wait.

use crate::session::Client;
use crate::table::Registered;
use kvick_commands::spec::Flags;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// The state of CLIENT PAUSE. Reading it when there is none costs one load.
#[derive(Default)]
pub struct Pause {
    /// Unix time in ms at which it ends; 0 when there is none.
    until_ms: AtomicI64,
    /// Whether all commands wait, or only those that may write.
    all: AtomicBool,
}

impl Pause {
    /// Begins or prolongs a pause: the later end and the stricter kind win.
    pub fn begin(&self, now_ms: i64, until_ms: i64, all: bool) {
        let running = self.until_ms.load(Ordering::SeqCst) > now_ms;
        let all = all || (running && self.all.load(Ordering::SeqCst));
        self.all.store(all, Ordering::SeqCst);
        self.until_ms.fetch_max(until_ms, Ordering::SeqCst);
    }

    /// Ends it.
    pub fn end(&self) {
        self.until_ms.store(0, Ordering::SeqCst);
        self.all.store(false, Ordering::SeqCst);
    }

    /// Whether there is a pause, of whichever kind: then keys that expired are not deleted, as that would be a write.
    #[inline]
    pub fn keeps_data(&self, now_ms: i64) -> bool {
        self.until_ms.load(Ordering::Relaxed) > now_ms
    }

    /// Until when it lasts, and whether for all commands.
    pub fn state(&self, now_ms: i64) -> Option<(i64, bool)> {
        let until = self.until_ms.load(Ordering::SeqCst);
        (until > now_ms).then(|| (until, self.all.load(Ordering::SeqCst)))
    }

    /// A pause that is over is forgotten, so that commands do not look at it any more.
    fn forget(&self, now_ms: i64) {
        let until = self.until_ms.load(Ordering::SeqCst);
        if until <= now_ms {
            // When it fails, another pause has begun meanwhile.
            let _ = self.until_ms.compare_exchange(until, 0, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Whether a command has to wait.
    #[inline]
    pub fn holds(&self, command: &Registered, client: &Client, now_ms: i64) -> bool {
        self.until_ms.load(Ordering::Relaxed) != 0 && self.holds_slowly(command, client, now_ms)
    }

    #[cold]
    fn holds_slowly(&self, command: &Registered, client: &Client, now_ms: i64) -> bool {
        let Some((_, all)) = self.state(now_ms) else {
            self.forget(now_ms);
            return false;
        };
        // As in the reference, a pause of all commands holds CLIENT UNPAUSE too. Monitors, which may not use keys, go on.
        let writes = || client.flags_asked(command).intersects(Flags::WRITE.union(Flags::MAY_REPLICATE));
        !client.is_monitor() && (all || writes())
    }
}
