//! The exchange with a target.
//!
//! ```text
//! AUTH ...      if the request has credentials
//! SELECT n      unless the socket is known to have that database
//! RESTORE key ttl payload [REPLACE] for each key; DEL key for one that was deleted here
//! ```
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
const ANSWER_MAX: u64 = 64 * 1024;
/// The size of the send buffer; larger payloads are sent from their own memory.
const CHUNK: usize = 64 * 1024;

/// Where the exchange failed.
enum Trouble {
    Connecting,
    Writing(io::Error),
    /// While reading, after this number of keys had been answered.
    Reading(io::Error, usize),
}

impl Trouble {
    fn is_worth_a_try(&self) -> bool {
        match self {
            Trouble::Connecting => false,
            Trouble::Writing(error) => !timed_out(error),
            Trouble::Reading(error, answered) => *answered == 0 && !timed_out(error),
        }
    }

    fn text(&self) -> &'static str {
        match self {
            Trouble::Connecting => "IOERR error or timeout connecting to the client",
            Trouble::Writing(_) => "IOERR error or timeout writing to target instance",
            Trouble::Reading(..) => "IOERR error or timeout reading to target instance",
        }
    }
}

fn timed_out(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Sends keys, and records which have arrived and the first error.
pub(crate) fn run(core: &ReplicatedCore, job: &mut MigrationJob) {
    let mut result = converse(core, job);
    if result.as_ref().is_err_and(Trouble::is_worth_a_try) {
        result = converse(core, job);
    }
    if let Err(trouble) = result {
        job.failure.get_or_insert(trouble.text().into());
    }
    if job.request.copy {
        // They are no longer needed for comparison.
        job.packed_keys.iter_mut().for_each(|packed_key| packed_key.payload = None);
    }
}

fn converse(core: &ReplicatedCore, job: &mut MigrationJob) -> Result<(), Trouble> {
    let MigrationJob { request, db, packed_keys, failure, .. } = job;
    // `tls-cluster` covers the connections between nodes, and so those of MIGRATE.
    let tls = if core.config.read(TLS_CLUSTER) { core.tls.materials() } else { None };
    let mut socket = core
        .migration
        .sockets
        .take(&request.host, &request.port, request.timeout, tls.as_deref())
        .map_err(|_| Trouble::Connecting)?;
    let words_before = preliminaries(request, &socket);
    let mut answers = BufReader::new(&mut socket.channel);
    let mut error = None;
    for words in words_before {
        send_request(answers.get_mut(), &words).map_err(Trouble::Writing)?;
        let line = answer(&mut answers).map_err(|error| Trouble::Reading(error, 0))?;
        error = error.or(refused(&line));
    }
    if error.is_none() {
        let sent = send(packed_keys, answers.get_mut()).map_err(Trouble::Writing)?;
        for (number, index) in sent.into_iter().enumerate() {
            let line = answer(&mut answers).map_err(|error| Trouble::Reading(error, number))?;
            let refused = refused(&line);
            packed_keys[index].arrived = refused.is_none();
            error = error.or(refused);
        }
    }
    // Surplus bytes would be read as the answer to a later request.
    let in_step = answers.buffer().is_empty();
    if !request.copy && request.database == *db as i64 && is_this_server(core, &socket) {
        packed_keys.iter_mut().for_each(|packed_key| packed_key.arrived = false);
        failure.get_or_insert("IOERR the target instance is this one".into());
    }
    socket.database = error.is_none().then_some(request.database);
    if in_step {
        core.migration.sockets.keep(&request.host, &request.port, socket);
    }
    if let Some(text) = error {
        failure.get_or_insert(format!("ERR Target instance replied with error: {text}"));
    }
    Ok(())
}

/// The requests that precede the keys.
fn preliminaries(request: &Request, socket: &Socket) -> Vec<Vec<Vec<u8>>> {
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
fn send(packed_keys: &[PackedKey], channel: &mut Channel) -> io::Result<Vec<usize>> {
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
            None => write_request(&mut out, &[b"DEL", &packed_key.key])?,
            Some(payload) => {
                let ttl = ttl_ms.to_string();
                let replace = packed_key.replace.then_some(&b"REPLACE"[..]);
                let words = [&b"RESTORE"[..], &packed_key.key, ttl.as_bytes(), payload];
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
fn answer(answers: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    answers.take(ANSWER_MAX).read_until(b'\n', &mut line)?;
    if line.pop() != Some(b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    line.pop_if(|byte| *byte == b'\r');
    Ok(line)
}

/// The text of the error in a line, if it is one.
fn refused(line: &[u8]) -> Option<String> {
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
    fn answers_are_lines_of_a_bounded_length() {
        let mut input = &b"+OK\r\n-BUSYKEY x\r\n+half"[..];
        assert_eq!(answer(&mut input).expect("a line"), b"+OK");
        let line = answer(&mut input).expect("a line");
        assert_eq!(refused(&line).as_deref(), Some("BUSYKEY x"));
        assert_eq!(answer(&mut input).expect_err("no line").kind(), io::ErrorKind::UnexpectedEof);
        let endless = vec![b'x'; 2 * ANSWER_MAX as usize];
        assert!(answer(&mut &endless[..]).is_err());
    }
}
