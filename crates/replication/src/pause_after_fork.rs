//! DEBUG PAUSE-AFTER-FORK: the process stops itself during a dual-channel sync, until it receives SIGCONT. For tests.
//!
//! A server that forks stops its main process while the child sends the dump. Here the thread that writes the dump
//! would stop too, so the primary stops once the dump is sent. Until then it executes no commands: at the stop, the log
//! ends where the dump was taken.

use crate::ReplicatedCore;
use kvick_core::message::Message;
use kvick_net::supervise;
use kvick_runtime::logging;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops the process until it is continued.
pub fn stop_process() {
    logging::notice(format_args!("Process is about to stop."));
    supervise::stop_until_continued();
    logging::notice(format_args!("Process has been continued."));
}

/// Pauses all commands while dumps are sent over separate connections. When the last of its owners, one for each dump,
/// has dropped it, the process stops if any dump was sent completely; then commands resume.
pub struct StopAfterDump {
    core: &'static ReplicatedCore,
    is_any_sent: AtomicBool,
}

impl StopAfterDump {
    /// Pauses all commands. The caller holds the global lock.
    pub fn begin(core: &'static ReplicatedCore) -> Arc<Self> {
        core.pause.pause_all();
        Arc::new(StopAfterDump { core, is_any_sent: AtomicBool::new(false) })
    }

    /// A dump was sent completely.
    pub fn dump_sent(self: Arc<Self>) {
        self.is_any_sent.store(true, Ordering::Relaxed);
    }
}

impl Drop for StopAfterDump {
    fn drop(&mut self) {
        if *self.is_any_sent.get_mut() {
            stop_process();
        }
        self.core.pause.resume_all();
        self.core.send_all(|| Message::Resume);
    }
}
