//! A dump from a server, by a full synchronization.
//!
//! The server takes this connection for a replica that wants nothing but a dump (`REPLCONF rdb-only 1`), and closes it
//! behind the dump.

use crate::access::{Access, Stream, at};
use kvick_load::connection::write_request;
use kvick_rdb::crc64;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// The version of Valkey whose dumps are understood.
const FORMAT: &str = "9.1.0";
/// Bytes of the mark behind a dump of unknown length.
const MARK_LEN: usize = 40;
/// Bytes of the longest line of a reply.
const LINE_MAX: u64 = 64 << 10;
/// Bytes that are read at once.
const BUFFER: usize = 256 << 10;

/// A connection that is logged in, and has not asked for the dump yet.
pub struct Source {
    endpoint: String,
    stream: BufReader<Stream>,
}

/// What was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    /// When the server began its snapshot, in milliseconds of Unix time on the clock of this machine.
    pub moment_unix_ms: u64,
    /// The replication history that the dump is a state of.
    pub replication_id: String,
    /// The offset in that history.
    pub replication_offset: u64,
    /// Size of the dump.
    pub bytes: u64,
    /// CRC-64 of the whole dump, as Redis computes it.
    pub crc64: u64,
}

impl Source {
    /// Connects and logs in.
    ///
    /// # Errors
    /// If the server cannot be reached or refuses.
    pub fn connect(endpoint: &str, access: &Access) -> io::Result<Source> {
        let connect = || {
            let (stream, login, replies) = access.stream(endpoint)?;
            let mut source = Source { endpoint: endpoint.to_owned(), stream: BufReader::with_capacity(BUFFER, stream) };
            source.send(&login)?;
            for _ in 0..replies {
                source.status()?;
            }
            source.command(&["REPLCONF", "capa", "eof"])?;
            // A server that knows no versions of replicas sends its own format. Others would leave out what is newer.
            let _ = source.command(&["REPLCONF", "version", FORMAT]);
            // A server that does not know this goes on with its replication stream, which is not read.
            let _ = source.command(&["REPLCONF", "rdb-only", "1"]);
            Ok(source)
        };
        connect().map_err(|error| at(endpoint, &error))
    }

    /// Asks for the dump and writes it to `out`. Calls `began` when the server has begun its snapshot, and drops it if
    /// it does not begin one.
    ///
    /// # Errors
    /// If the server refuses, or the connection or `out` fails.
    pub fn fetch(mut self, out: &mut dyn Write, began: Box<dyn FnOnce() + '_>) -> io::Result<Fetched> {
        self.receive(out, began).map_err(|error| at(&self.endpoint, &error))
    }

    fn receive(&mut self, out: &mut dyn Write, began: Box<dyn FnOnce() + '_>) -> io::Result<Fetched> {
        let reply = self.command(&["PSYNC", "?", "-1"])?;
        let moment_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        began();
        let mut words = reply.split(' ');
        let (Some("FULLRESYNC"), Some(id), Some(Ok(offset))) =
            (words.next(), words.next(), words.next().map(str::parse))
        else {
            return Err(io::Error::other(format!("unexpected reply to PSYNC: {reply}")));
        };
        let mut sum = Sum { out, bytes: 0, crc64: 0 };
        let header = self.line()?;
        if let Some(mark) = header.strip_prefix("$EOF:").filter(|mark| mark.len() == MARK_LEN) {
            self.copy_to_mark(mark.as_bytes(), &mut sum)?;
        } else if let Some(Ok(length)) = header.strip_prefix('$').map(str::parse::<u64>) {
            let copied = io::copy(&mut Read::by_ref(&mut self.stream).take(length), &mut sum)?;
            if copied != length {
                return Err(incomplete());
            }
        } else {
            return Err(io::Error::other(format!("unexpected begin of a dump: {header}")));
        }
        let (bytes, crc64) = (sum.bytes, sum.crc64);
        Ok(Fetched { moment_unix_ms, replication_id: id.to_owned(), replication_offset: offset, bytes, crc64 })
    }

    /// Copies up to the mark, which is the last that the server sends.
    fn copy_to_mark(&mut self, mark: &[u8], out: &mut Sum<'_>) -> io::Result<()> {
        let mut held = Vec::with_capacity(BUFFER + MARK_LEN);
        loop {
            let chunk = self.stream.fill_buf()?;
            if chunk.is_empty() {
                return Err(incomplete());
            }
            held.extend_from_slice(chunk);
            let taken = chunk.len();
            self.stream.consume(taken);
            if let Some(dump) = held.strip_suffix(mark) {
                return out.write_all(dump);
            }
            let ready = held.len().saturating_sub(MARK_LEN);
            out.write_all(&held[..ready])?;
            held.drain(..ready);
        }
    }

    fn command(&mut self, words: &[&str]) -> io::Result<String> {
        let mut request = Vec::new();
        write_request(words, &mut request);
        self.send(&request)?;
        self.status()
    }

    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(request)?;
        stream.flush()
    }

    /// A status reply without its first character.
    fn status(&mut self) -> io::Result<String> {
        let line = self.line()?;
        if let Some(status) = line.strip_prefix('+') {
            return Ok(status.to_owned());
        }
        Err(io::Error::other(line.strip_prefix('-').unwrap_or(&line).to_owned()))
    }

    /// The next line that is not empty: empty ones say that the server is alive.
    fn line(&mut self) -> io::Result<String> {
        loop {
            let mut line = Vec::new();
            Read::by_ref(&mut self.stream).take(LINE_MAX).read_until(b'\n', &mut line)?;
            if line.pop() != Some(b'\n') {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let text = String::from_utf8_lossy(&line);
            let text = text.trim_end_matches('\r');
            if !text.is_empty() {
                return Ok(text.to_owned());
            }
        }
    }
}

fn incomplete() -> io::Error {
    let text = "the connection was closed before the dump was complete; the log of the server says why";
    io::Error::new(ErrorKind::UnexpectedEof, text)
}

/// Counts and checksums what is written.
struct Sum<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
    crc64: u64,
}

impl Write for Sum<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.bytes += written as u64;
        self.crc64 = crc64::update(self.crc64, &bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}
