//! `CONFIG SET appendonly`: files are begun with a first base, and ended.

use super::writer::Order;
use super::{State, rewrite};
use crate::config::tables::persistence::APPENDONLY;
use crate::logging;
use crate::persistence::snapshots::{self, Purpose};
use crate::server::Server;
use kvick_store::Locked;
use std::sync::mpsc;

/// Does what the setting says, if that is not done yet. The world is held; within a transaction a first base waits for the
/// transaction's end.
pub fn follow_setting(server: &'static Server, global: &mut Locked, in_transaction: bool) {
    let is_off = server.aof.status().state == State::Off;
    match server.config.read(APPENDONLY) {
        true if is_off => switch_on(server, global, in_transaction),
        false if !is_off => switch_off(server),
        _ => {}
    }
}

/// Begins to keep the data in files. The world is held.
pub fn switch_on(server: &'static Server, global: &mut Locked, in_transaction: bool) {
    let aof = &server.aof;
    let mut status = aof.status.lock();
    status.state = State::Waiting;
    if status.write_error.take().is_some() || std::mem::take(&mut status.sync_failed) {
        logging::warning(format_args!("AOF reopen, just ignore the last error."));
    }
    drop(status);
    if in_transaction {
        rewrite::schedule(server);
        return logging::notice(format_args!(
            "AOF was enabled during a transaction. An AOF background was scheduled to start when possible."
        ));
    }
    match server.persistence.status().running.map(|running| running.purpose) {
        Some(Purpose::AofBase) => {
            logging::notice(format_args!(
                "AOF was enabled but there is already an AOF rewriting in background. Stopping background AOF and \
                 starting a rewrite now."
            ));
            rewrite::cancel(server);
            rewrite::schedule(server);
        }
        Some(_) => {
            rewrite::schedule(server);
            logging::notice(format_args!(
                "AOF was enabled but there is already another background operation. An AOF background was scheduled to \
                 start when possible."
            ));
        }
        None => {
            if rewrite::begin(server, global).is_err() {
                rewrite::schedule(server);
            }
        }
    }
}

/// Writes what there is, and keeps the data in files no longer.
pub fn switch_off(server: &'static Server) {
    let (answer, stopped) = mpsc::channel();
    server.aof.order(Order::Stop(answer));
    // The log has told why, if something could not be written.
    let _ = stopped.recv();
    let mut status = server.aof.status.lock();
    status.state = State::Off;
    if std::mem::take(&mut status.scheduled) {
        logging::notice(format_args!("AOF was disabled but there is a scheduled AOF background, cancel it."));
    }
    drop(status);
    snapshots::base_is_wanted(&server.persistence, false);
    rewrite::cancel(server);
    // Those who wait for the disk hear of it.
    server.aof.wake();
}
