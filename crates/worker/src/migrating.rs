//! Passes keys that the migrator returns to the engine, and delivers the answers.

use super::Worker;
use kvick_engine::migrating::Settled;

impl Worker {
    /// Settles the returned keys, unless writes are paused.
    pub(super) fn settle_returned(&mut self) {
        if self.returned.is_empty() || self.server.pause.blocks_writes(self.engine.now_ms) {
            return;
        }
        for job in std::mem::take(&mut self.returned) {
            match self.engine.within_batch(|engine| engine.settle(job)) {
                Settled::Done(served) => self.deliver(served),
                Settled::Sent => {}
                Settled::Later(job) => self.returned.push(job),
            }
        }
    }
}
