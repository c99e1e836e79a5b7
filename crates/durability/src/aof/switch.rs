//! `CONFIG SET appendonly`: files are begun with a first base, and ended.

use super::writer::Order;
use super::{State, rewrite};
use crate::DurableCore;
use crate::persistence::snapshots::{self, Purpose};
use kvick_config::tables::persistence::APPENDONLY;
use kvick_runtime::logging;
use kvick_store::Locked;
use std::sync::mpsc;

/// Does what the setting says, if that is not done yet. The world is held; within a transaction a first base waits for
/// the transaction's end.
pub fn follow_setting(core: &'static DurableCore, global: &mut Locked, in_transaction: bool) {
    let is_off = core.aof.status().state == State::Off;
    match core.config.read(APPENDONLY) {
        true if is_off => switch_on(core, global, in_transaction),
        false if !is_off => switch_off(core),
        _ => {}
    }
}

/// Begins to keep the data in files. The world is held.
pub fn switch_on(core: &'static DurableCore, global: &mut Locked, in_transaction: bool) {
    let aof = &core.aof;
    let mut status = aof.status.lock();
    status.state = State::Waiting;
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

/// Writes what there is, and keeps the data in files no longer.
pub fn switch_off(core: &'static DurableCore) {
    let (answer, stopped) = mpsc::channel();
    core.aof.order(Order::Stop(answer));
    // The log has told why, if something could not be written.
    let _ = stopped.recv();
    let mut status = core.aof.status.lock();
    status.state = State::Off;
    if std::mem::take(&mut status.scheduled) {
        logging::notice(format_args!("AOF was disabled but there is a scheduled AOF background, cancel it."));
    }
    drop(status);
    snapshots::base_is_wanted(&core.persistence, false);
    rewrite::cancel(core);
    // Those who wait for the disk hear of it.
    core.aof.wake();
}
