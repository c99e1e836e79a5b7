//! The exchange with a target.
//!
//! ```text
//! AUTH ...      if the request has credentials
//! SELECT n      unless the socket is known to have that database
//! RESTORE key ttl payload [REPLACE] for each key; DEL key for one that was deleted here
//! ```
//!
//! In cluster mode the target imports the keys' slot: RESTORE-ASKING replaces RESTORE, and ASKING precedes DEL.
//!
//! AUTH and SELECT are answered before any key is sent, so that no key reaches the wrong database. All keys are sent
//! before the first of their answers is read. If the connection breaks before the first answer, the exchange is retried
//! once, since the target may have closed a cached connection; timeouts are not retried.

use super::packed_key::PackedKey;
use super::sockets::Socket;
use super::{MigrationJob, Request};
use crate::ReplicatedCore;
use crate::reply::Reply;
use kvick_config::tables::tls::TLS_CLUSTER;
use kvick_net::tls::outgoing::Channel;
use kvick_runtime::clock;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

/// A longer answer is an error.
const REPLY_LEN_MAX: u64 = 64 * 1024;
/// The size of the send buffer; larger payloads are sent from their own memory.
const CHUNK: usize = 64 * 1024;

/// Where the exchange failed.
enum TransferError {
    Connecting,
    Writing(io::Error),
    /// While reading, after this number of keys had been answered.
    Reading(io::Error, usize),
}

impl TransferError {
    fn is_retryable(&self) -> bool {
        match self {
            TransferError::Connecting => false,
            TransferError::Writing(error) => !timed_out(error),
            TransferError::Reading(error, answered) => *answered == 0 && !timed_out(error),
        }
    }

    fn text(&self) -> &'static str {
        match self {
            TransferError::Connecting => "IOERR error or timeout connecting to the client",
            TransferError::Writing(_) => "IOERR error or timeout writing to target instance",
            TransferError::Reading(..) => "IOERR error or timeout reading to target instance",
        }
    }
}

fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Sends keys, and records which have arrived and the first error.
pub(crate) fn run(core: &ReplicatedCore, job: &mut MigrationJob) {
    let mut result = transfer(core, job);
    if result.as_ref().is_err_and(TransferError::is_retryable) {
        result = transfer(core, job);
    }
    if let Err(error) = result {
        job.failure.get_or_insert(error.text().into());
    }
    if job.request.copy {
        // They are no longer needed for comparison.
        job.packed_keys.iter_mut().for_each(|packed_key| packed_key.payload = None);
    }
}

fn transfer(core: &ReplicatedCore, job: &mut MigrationJob) -> Result<(), TransferError> {
    let MigrationJob { request, db, packed_keys, failure, .. } = job;
    // `tls-cluster` covers the connections between nodes, and so those of MIGRATE.
    let tls = if core.config.read(TLS_CLUSTER) { core.tls.materials() } else { None };
    let mut socket =
        core.migration.sockets.take(&request.host, &request.port, request.timeout, tls.as_deref()).map_err(
            |error| match error.kind() {
                // As in Valkey, which detects this with its first write.
                io::ErrorKind::ConnectionRefused => TransferError::Writing(error),
                _ => TransferError::Connecting,
            },
        )?;
    let setup = setup_requests(request, &socket);
    let mut replies = BufReader::new(&mut socket.channel);
    let mut error = None;
    for words in setup {
        send_request(replies.get_mut(), &words).map_err(TransferError::Writing)?;
        let line = read_reply(&mut replies).map_err(|error| TransferError::Reading(error, 0))?;
        error = error.or(error_text(&line));
    }
    if error.is_none() {
        let is_cluster = core.routing.is_some();
        let sent = send(packed_keys, is_cluster, replies.get_mut()).map_err(TransferError::Writing)?;
        for (number, index) in sent.into_iter().enumerate() {
            if is_cluster && packed_keys[index].payload.is_none() {
                // The answer to ASKING.
                read_reply(&mut replies).map_err(|error| TransferError::Reading(error, number))?;
            }
            let line = read_reply(&mut replies).map_err(|error| TransferError::Reading(error, number))?;
            let error_text = error_text(&line);
            packed_keys[index].arrived = error_text.is_none();
            error = error.or(error_text);
        }
    }
    // Surplus bytes would be read as the answer to a later request.
    let is_in_sync = replies.buffer().is_empty();
    if !request.copy && request.database == *db as i64 && is_this_server(core, &socket) {
        packed_keys.iter_mut().for_each(|packed_key| packed_key.arrived = false);
        failure.get_or_insert("IOERR the target instance is this one".into());
    }
    socket.database = error.is_none().then_some(request.database);
    if is_in_sync {
        core.migration.sockets.put(&request.host, &request.port, socket);
    }
    if let Some(text) = error {
        failure.get_or_insert(format!("ERR Target instance replied with error: {text}"));
    }
    Ok(())
}

/// The requests that precede the keys.
fn setup_requests(request: &Request, socket: &Socket) -> Vec<Vec<Vec<u8>>> {
    let auth = request.credentials.as_ref().map(|credentials| {
        let words = [Some(b"AUTH".to_vec()), credentials.user.clone(), Some(credentials.password.clone())];
        words.into_iter().flatten().collect()
    });
    let select = || vec![b"SELECT".to_vec(), request.database.to_string().into_bytes()];
    auth.into_iter().chain((socket.database != Some(request.database)).then(select)).collect()
}

fn send_request(channel: &mut Channel, words: &[Vec<u8>]) -> io::Result<()> {
    let mut bytes = Vec::new();
    write_request(&mut bytes, &words.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    channel.write_all(&bytes)
}

/// Sends the keys, except those that have expired. Returns the indices of those that were sent.
fn send(packed_keys: &[PackedKey], is_cluster: bool, channel: &mut Channel) -> io::Result<Vec<usize>> {
    let mut out = BufWriter::with_capacity(CHUNK, channel);
    let (mut sent, now_ms) = (Vec::new(), clock::unix_ms());
    for (index, packed_key) in packed_keys.iter().enumerate() {
        // RESTORE treats 0 as no expiry.
        let ttl_ms = packed_key.expiry_ms.map_or(0, |at| at.saturating_sub(now_ms).max(1));
        if packed_key.expiry_ms.is_some_and(|at| at < now_ms) {
            continue;
        }
        sent.push(index);
        match &packed_key.payload {
            None => {
                if is_cluster {
                    write_request(&mut out, &[b"ASKING"])?;
                }
                write_request(&mut out, &[b"DEL", &packed_key.key])?;
            }
            Some(payload) => {
                let ttl = ttl_ms.to_string();
                let replace = packed_key.replace.then_some(&b"REPLACE"[..]);
                let command = if is_cluster { &b"RESTORE-ASKING"[..] } else { b"RESTORE" };
                let words = [command, &packed_key.key, ttl.as_bytes(), payload];
                write_request(&mut out, &words.into_iter().chain(replace).collect::<Vec<_>>())?;
            }
        }
    }
    out.flush()?;
    Ok(sent)
}

fn write_request(out: &mut impl Write, words: &[&[u8]]) -> io::Result<()> {
    write!(out, "*{}\r\n", words.len())?;
    for word in words {
        write!(out, "${}\r\n", word.len())?;
        out.write_all(word)?;
        out.write_all(b"\r\n")?;
    }
    Ok(())
}

/// Reads a line, without its terminator.
fn read_reply(replies: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    replies.take(REPLY_LEN_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.pop_if(|byte| *byte == b'\r');
    Ok(line)
}

/// The text of the error in a line, if it is one.
fn error_text(line: &[u8]) -> Option<String> {
    match Reply::parse(&String::from_utf8_lossy(line)) {
        Reply::Error { text, .. } => Some(text.to_owned()),
        _ => None,
    }
}

/// Whether the target is this server itself, so that the keys must stay. The target has answered, so it has registered
/// its client.
fn is_this_server(core: &ReplicatedCore, socket: &Socket) -> bool {
    let Ok(local) = socket.channel.socket().local_addr() else { return false };
    let local = local.to_string();
    core.clients.all().iter().any(|client| client.peer == local)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_lines_of_limited_length() {
        let mut input = &b"+OK\r\n-BUSYKEY x\r\n+half"[..];
        assert_eq!(read_reply(&mut input).expect("a line"), b"+OK");
        let line = read_reply(&mut input).expect("a line");
        assert_eq!(error_text(&line).as_deref(), Some("BUSYKEY x"));
        assert_eq!(read_reply(&mut input).expect_err("no line").kind(), io::ErrorKind::UnexpectedEof);
        let endless = vec![b'x'; 2 * REPLY_LEN_MAX as usize];
        assert!(read_reply(&mut &endless[..]).is_err());
    }
}
