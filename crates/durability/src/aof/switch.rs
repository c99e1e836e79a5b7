//! `CONFIG SET appendonly`: enables the append-only file with a first base, and disables it.

use super::writer::Order;
use super::{State, rewrite};
use crate::DurableCore;
use crate::persistence::snapshots::{self, Purpose};
use kvick_config::tables::persistence::APPENDONLY;
use kvick_runtime::logging;
use kvick_store::Locked;
use std::sync::mpsc;

/// Applies the setting. The caller holds the global lock; within a transaction the first base waits for the
/// transaction's end.
pub fn apply_setting(core: &'static DurableCore, global: &mut Locked, in_transaction: bool) {
    let is_off = core.aof.status().state == State::Off;
    match core.config.read(APPENDONLY) {
        true if is_off => switch_on(core, global, in_transaction),
        false if !is_off => switch_off(core),
        _ => {}
    }
}

/// Enables the append-only file. The caller holds the global lock.
pub fn switch_on(core: &'static DurableCore, global: &mut Locked, in_transaction: bool) {
    let aof = &core.aof;
    let mut status = aof.status.lock();
    status.state = State::WaitRewrite;
    if status.write_error.take().is_some() || std::mem::take(&mut status.sync_failed) {
        logging::warning(format_args!("AOF reopen, just ignore the last error."));
    }
    drop(status);
    if in_transaction {
        rewrite::schedule(core);
        return logging::notice(format_args!(
            "AOF was enabled during a transaction. An AOF background was scheduled to start when possible."
        ));
    }
    match core.persistence.status().running.map(|running| running.purpose) {
        Some(Purpose::AofBase) => {
            logging::notice(format_args!(
                "AOF was enabled but there is already an AOF rewriting in background. Stopping background AOF and \
                 starting a rewrite now."
            ));
            rewrite::cancel(core);
            rewrite::schedule(core);
        }
        Some(_) => {
            rewrite::schedule(core);
            logging::notice(format_args!(
                "AOF was enabled but there is already another background operation. An AOF background was scheduled to \
                 start when possible."
            ));
        }
        None => {
            if rewrite::begin(core, global).is_err() {
                rewrite::schedule(core);
            }
        }
    }
}

/// Writes the rest of the log and disables the append-only file.
pub fn switch_off(core: &'static DurableCore) {
    let (answer, stopped) = mpsc::channel();
    core.aof.order(Order::Stop(answer));
    // Write errors have been logged.
    let _ = stopped.recv();
    let mut status = core.aof.status.lock();
    status.state = State::Off;
    if std::mem::take(&mut status.scheduled) {
        logging::notice(format_args!("AOF was disabled but there is a scheduled AOF background, cancel it."));
    }
    drop(status);
    snapshots::set_base_requested(&core.persistence, false);
    rewrite::cancel(core);
    // This answers clients that wait for the disk.
    core.aof.wake();
}
