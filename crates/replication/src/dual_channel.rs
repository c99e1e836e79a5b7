//! Dual-channel full sync on the replica: the dump arrives over a second connection, while this server buffers the log
//! that follows it, so that the primary need not.
//!
//! The primary requests it with `+DUALCHANNELSYNC`. The second connection announces its purpose and receives the dump's
//! position in the history; the first one then resumes from that position as in a partial sync. A thread buffers its
//! stream in memory, up to the `client-output-buffer-limit` for replicas; beyond that the primary keeps the rest.

use super::apply::{Apply, Endpoints};
use super::full_sync::FullSync;
use super::link::Link;
use super::primary_connection::{LinkError, PrimaryConnection, for_log};
use super::reply::Reply;
use super::upstream::Target;
use crate::ReplicatedCore;
use crate::pause_after_fork;
use kvick_config::tables::network::CLIENT_OUTPUT_BUFFER_LIMIT;
use kvick_config::tables::replication as settings;
use kvick_runtime::logging;
use kvick_runtime::version::VALKEY;
use kvick_store::lazy_free::Garbage;
use parking_lot::{Condvar, Mutex};
use std::net::Shutdown;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often the buffering thread checks whether to stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The position of a dump.
struct DumpPosition {
    id: String,
    offset: u64,
    database: usize,
    /// The primary's client ID of the dump connection.
    channel: String,
}

impl Link<'_> {
    /// Loads a dump from a second connection. Returns the first one, which carries the log.
    pub(crate) fn dual_channel_sync(
        &mut self,
        target: &Target,
        mut primary_connection: PrimaryConnection,
    ) -> Result<PrimaryConnection, LinkError> {
        logging::notice(format_args!("Dual channel replication: PSYNC is not possible, initialize RDB channel."));
        let mut dump_connection = self.connect(target)?;
        self.dump_channel_handshake(&mut dump_connection)?;
        let position = request_dump(self.core, &mut dump_connection)?;
        let log_buffer = LogBuffer { core: self.core, state: Mutex::default(), changed: Condvar::new() };
        let (core, generation, participant) = (self.core, self.generation, self.participant);
        let applier: &mut dyn Apply = self.applier;
        let (loaded, buffered) = std::thread::scope(|scope| {
            let (position, log_buffer, dump_socket) = (&position, &log_buffer, dump_connection.socket());
            let buffer_log = move || {
                kvick_runtime::memory::register_thread();
                let buffered = request_log(core, &mut primary_connection, position, log_buffer)
                    .and_then(|()| log_buffer.buffer_until_stopped(primary_connection));
                if buffered.is_err()
                    && let Some(socket) = dump_socket
                {
                    // It may already be closed.
                    let _ = socket.shutdown(Shutdown::Both);
                }
                buffered
            };
            let buffering = std::thread::Builder::new().name("replica-log".into()).spawn_scoped(scope, buffer_log);
            let buffering = buffering.map_err(|error| LinkError::Io("Keeping the primary's log", error))?;
            let mut full_sync =
                FullSync { core, generation, participant, applier, id: &position.id, offset: position.offset };
            let loaded = full_sync.run(&mut dump_connection);
            log_buffer.stop();
            Ok::<_, LinkError>((loaded, buffering.join()))
        })?;
        // Other threads may hold the socket to interrupt it. It may already be closed.
        let _ = dump_connection.channel().socket().shutdown(Shutdown::Both);
        core.replication.upstream.buffered_bytes.store(0, Ordering::Relaxed);
        let buffered = buffered.unwrap_or_else(|_| Err(LinkError::Refused("The log could not be kept".into())));
        loaded?;
        let primary_connection = buffered?;
        self.applier.begin(generation, position.database, &Endpoints::of(primary_connection.channel().socket()));
        Ok(primary_connection)
    }

    /// Announces the second connection's purpose.
    fn dump_channel_handshake(&self, primary_connection: &mut PrimaryConnection) -> Result<(), LinkError> {
        let values = self.core.config.values();
        self.authenticate(primary_connection)?;
        let port = self.listening_port().to_string();
        primary_connection.send(&[
            b"REPLCONF",
            b"capa",
            b"eof",
            b"rdb-only",
            b"1",
            b"rdb-channel",
            b"1",
            b"listening-port",
            port.as_bytes(),
            b"version",
            VALKEY.as_bytes(),
        ])?;
        let announced = values.read(settings::REPLICA_ANNOUNCE_IP);
        if let Some(address) = &announced {
            primary_connection.send(&[b"REPLCONF", b"ip-address", address])?;
        }
        for _ in 0..1 + usize::from(announced.is_some()) {
            let answer = for_log(&primary_connection.read_line()?);
            if Reply::parse(&answer).is_error() {
                return Err(LinkError::Refused(format!(
                    "Dual channel replication: Server does not support sync with offset, dual channel sync approach \
                     cannot be used: {answer}"
                )));
            }
        }
        Ok(())
    }
}

/// Requests the dump. Returns its position.
fn request_dump(core: &ReplicatedCore, primary_connection: &mut PrimaryConnection) -> Result<DumpPosition, LinkError> {
    primary_connection.send(&[b"SYNC"])?;
    let answer = primary_connection.read_reply()?;
    let position = position(&for_log(&answer)).filter(|position| position.database < core.keyspace.databases());
    position.ok_or_else(|| {
        LinkError::Refused(format!(
            "Dual channel replication: Received unexpected $ENDOFF response: {}",
            for_log(&answer)
        ))
    })
}

fn position(answer: &str) -> Option<DumpPosition> {
    let mut words = answer.strip_prefix("$ENDOFF:")?.split_ascii_whitespace();
    let offset = words.next()?.parse().ok()?;
    let id = words.next().filter(|id| id.len() == 40)?.into();
    // A primary that has selected no database sends -1.
    let database = usize::try_from(words.next()?.parse::<i64>().ok()?).unwrap_or(0);
    let channel = words.next()?.parse::<u64>().ok()?.to_string();
    Some(DumpPosition { id, offset, database, channel })
}

/// Requests the log from the dump's position on, over the first connection.
fn request_log(
    core: &ReplicatedCore,
    primary_connection: &mut PrimaryConnection,
    position: &DumpPosition,
    log_buffer: &LogBuffer,
) -> Result<(), LinkError> {
    let refused = |answer: &str| LinkError::Refused(format!("Dual channel sync failed with error {answer}"));
    primary_connection.send(&[b"REPLCONF", b"set-rdb-client-id", position.channel.as_bytes()])?;
    let answer = for_log(&primary_connection.read_reply()?);
    if !Reply::parse(&answer).is_status() {
        return Err(refused(&answer));
    }
    if core.replication.pauses_after_fork.load(Ordering::Relaxed) {
        pause_after_fork::stop_process();
    }
    let next = (position.offset + 1).to_string();
    logging::notice(format_args!("Trying a partial resynchronization (request {}:{next}).", position.id));
    primary_connection.send(&[b"PSYNC", position.id.as_bytes(), next.as_bytes()])?;
    let answer = for_log(&primary_connection.read_reply()?);
    if !matches!(Reply::parse(&answer), Reply::Status { word: "CONTINUE", .. }) {
        return Err(refused(&answer));
    }
    let still = if *log_buffer.state.lock() { "." } else { ", RDB load in background." };
    logging::notice(format_args!(
        "Dual channel replication: PRIMARY <-> REPLICA sync: Primary accepted a Partial Resynchronization{still}"
    ));
    if *log_buffer.state.lock() {
        logging::notice(format_args!("Dual channel replication: Psync established after rdb load"));
    }
    Ok(())
}

/// Buffers the log while a dump is loaded.
struct LogBuffer {
    core: &'static ReplicatedCore,
    /// Whether to stop.
    state: Mutex<bool>,
    changed: Condvar,
}

impl LogBuffer {
    fn stop(&self) {
        *self.state.lock() = true;
        self.changed.notify_all();
    }

    /// Reads until stopped. Returns the connection, which holds the bytes read.
    fn buffer_until_stopped(&self, mut primary_connection: PrimaryConnection) -> Result<PrimaryConnection, LinkError> {
        let upstream = &self.core.replication.upstream;
        let (mut buffered, mut keepalive, mut is_full) =
            (primary_connection.take_unused(), primary_connection.keepalive(), false);
        while !*self.state.lock() {
            keepalive.send_if_due();
            let limit = self.core.config.read(CLIENT_OUTPUT_BUFFER_LIMIT).replica.hard_bytes;
            if limit > 0 && buffered.len() as u64 >= limit {
                if !std::mem::replace(&mut is_full, true) {
                    logging::notice(format_args!(
                        "Dual channel replication: Replication buffer limit reached ({limit}), stopping buffering. \
                         Further accumulation may occur on primary side."
                    ));
                }
                let mut stops = self.state.lock();
                if !*stops {
                    self.changed.wait_for(&mut stops, POLL_INTERVAL);
                }
                continue;
            }
            if let Err(broken) = primary_connection.read_append(&mut buffered, POLL_INTERVAL) {
                self.core.keyspace.lazy_free.dispose(Garbage::Other(Box::new(buffered)));
                return Err(broken);
            }
            upstream.buffered_bytes.store(buffered.len() as u64, Ordering::Relaxed);
            upstream.buffered_peak.fetch_max(buffered.len() as u64, Ordering::Relaxed);
        }
        primary_connection.unread(buffered);
        Ok(primary_connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_position_is_parsed() {
        let id = "a".repeat(40);
        let position =
            |text: &str| position(text).map(|position| (position.offset, position.database, position.channel));
        assert_eq!(position(&format!("$ENDOFF:17 {id} 3 42")), Some((17, 3, "42".into())));
        assert_eq!(position(&format!("$ENDOFF:17 {id} -1 42")), Some((17, 0, "42".into())));
        let invalid = ["$ENDOFF:17", "-ERR no", "$ENDOFF:x y z 1", "$EOF:17 3 42"];
        assert!(invalid.iter().all(|text| position(text).is_none()));
        assert_eq!(position(&format!("$ENDOFF:17 {} 3 42", "a".repeat(39))), None);
        assert_eq!(position(&format!("$ENDOFF:17 {id} 3 x")), None);
    }
}
