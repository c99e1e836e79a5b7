//! A dump from a server, by a full synchronization.
//!
//! The server takes this connection for a replica that wants nothing but a dump (`REPLCONF rdb-only 1`), and closes it
//! behind the dump.

use crate::access::{Access, Stream, at};
use kvick_load::connection::write_request;
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

/// A dump that is read from its server.
pub struct Incoming {
    /// When the server began its snapshot, in milliseconds of Unix time on the clock of this machine.
    pub moment_unix_ms: u64,
    /// The replication history that the dump is a state of.
    pub replication_id: String,
    /// The offset in that history.
    pub replication_offset: u64,
    endpoint: String,
    stream: BufReader<Stream>,
    rest: Rest,
}

/// What is left of a dump.
enum Rest {
    /// So many bytes.
    Length(u64),
    /// All up to a mark, which is the last that the server sends.
    Mark(Window),
}

/// Bytes that have arrived. The last ones are held back, since they may be the mark.
struct Window {
    mark: [u8; MARK_LEN],
    held: Vec<u8>,
    /// Bytes of `held` that were read.
    read: usize,
    is_complete: bool,
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

    /// Asks for the dump. Returns when the server has begun its snapshot.
    ///
    /// # Errors
    /// If the server refuses, or the connection fails.
    pub fn begin(mut self) -> io::Result<Incoming> {
        let (moment_unix_ms, replication_id, replication_offset) =
            self.ask_for_dump().map_err(|error| at(&self.endpoint, &error))?;
        let Source { endpoint, stream } = self;
        let rest = Rest::Length(0);
        Ok(Incoming { moment_unix_ms, replication_id, replication_offset, endpoint, stream, rest })
    }

    fn ask_for_dump(&mut self) -> io::Result<(u64, String, u64)> {
        let reply = self.command(&["PSYNC", "?", "-1"])?;
        let moment_unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        let mut words = reply.split(' ');
        let (Some("FULLRESYNC"), Some(id), Some(Ok(offset))) =
            (words.next(), words.next(), words.next().map(str::parse))
        else {
            return Err(io::Error::other(format!("unexpected reply to PSYNC: {reply}")));
        };
        Ok((moment_unix_ms, id.to_owned(), offset))
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
        let line = next_line(&mut self.stream)?;
        if let Some(status) = line.strip_prefix('+') {
            return Ok(status.to_owned());
        }
        Err(io::Error::other(line.strip_prefix('-').unwrap_or(&line).to_owned()))
    }
}

/// The next line that is not empty: empty ones say that the server is alive.
fn next_line(stream: &mut impl BufRead) -> io::Result<String> {
    loop {
        let mut line = Vec::new();
        Read::by_ref(stream).take(LINE_MAX).read_until(b'\n', &mut line)?;
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

impl Incoming {
    /// Reads what is in front of the dump: how its end is recognized. A server may take its time for that.
    ///
    /// # Errors
    /// If the connection fails.
    pub fn wait(&mut self) -> io::Result<()> {
        self.rest = self.read_header().map_err(|error| at(&self.endpoint, &error))?;
        Ok(())
    }

    fn read_header(&mut self) -> io::Result<Rest> {
        let header = next_line(&mut self.stream)?;
        let mark = header.strip_prefix("$EOF:").map(|mark| <[u8; MARK_LEN]>::try_from(mark.as_bytes()));
        if let Some(Ok(mark)) = mark {
            let held = Vec::with_capacity(BUFFER);
            return Ok(Rest::Mark(Window { mark, held, read: 0, is_complete: false }));
        }
        let length = header.strip_prefix('$').and_then(|length| length.parse().ok());
        length.map(Rest::Length).ok_or_else(|| io::Error::other(format!("unexpected begin of a dump: {header}")))
    }
}

impl Read for Incoming {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.rest {
            Rest::Length(0) => Ok(0),
            Rest::Length(length) => {
                let most = usize::try_from(*length).map_or(buffer.len(), |length| length.min(buffer.len()));
                self.stream.read(&mut buffer[..most]).and_then(|count| {
                    *length -= count as u64;
                    if count == 0 && most > 0 { Err(incomplete()) } else { Ok(count) }
                })
            }
            Rest::Mark(window) => window.read(&mut self.stream, buffer),
        };
        read.map_err(|error| at(&self.endpoint, &error))
    }
}

impl Window {
    fn read(&mut self, stream: &mut impl BufRead, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let end = self.held.len().saturating_sub(MARK_LEN);
            if self.read < end || self.is_complete {
                let count = (end - self.read).min(buffer.len());
                buffer[..count].copy_from_slice(&self.held[self.read..self.read + count]);
                self.read += count;
                return Ok(count);
            }
            self.held.drain(..self.read);
            self.read = 0;
            let chunk = stream.fill_buf()?;
            if chunk.is_empty() {
                return Err(incomplete());
            }
            self.held.extend_from_slice(chunk);
            let taken = chunk.len();
            stream.consume(taken);
            self.is_complete = self.held.ends_with(&self.mark);
        }
    }
}

fn incomplete() -> io::Error {
    let text = "the connection was closed before the dump was complete; the log of the server says why";
    io::Error::new(ErrorKind::UnexpectedEof, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stream that hands out pieces of this size.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            self.0.read(&mut buffer[..count])
        }
    }

    #[test]
    fn dumps_end_at_their_mark_however_they_arrive() {
        let mark = [b'm'; MARK_LEN];
        let dump: Vec<u8> = (0..1000_u32).map(|number| number as u8).collect();
        let sent = [&dump[..], &mark].concat();
        for piece in [1, 7, MARK_LEN, 41, 1000, 2000] {
            let read = |sent| {
                let mut stream = BufReader::with_capacity(2000, Pieces(sent, piece));
                let mut window = Window { mark, held: Vec::new(), read: 0, is_complete: false };
                let (mut found, mut buffer) = (Vec::new(), [0; 100]);
                loop {
                    match window.read(&mut stream, &mut buffer) {
                        Ok(0) => return Ok(found),
                        Ok(count) => found.extend_from_slice(&buffer[..count]),
                        Err(error) => return Err(error.kind()),
                    }
                }
            };
            assert_eq!(read(&sent), Ok(dump.clone()), "{piece}");
            assert_eq!(read(&sent[..sent.len() - 1]), Err(ErrorKind::UnexpectedEof), "{piece}");
            assert_eq!(read(&mark), Ok(Vec::new()), "{piece}");
        }
    }
}
