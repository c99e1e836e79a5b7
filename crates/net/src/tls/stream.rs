//! The server's side of a connection with TLS, for a worker: a socket that never blocks, with plain text at one end.
//!
//! ```text
//! socket --> scratch --> rustls: decrypts in place --> where the reader wants it (what has no room waits in `plain`)
//!   ^           the beginning of a record that is not whole waits in `incoming`
//!   +------- scratch <-- rustls: encrypts <----------- the writer's bytes
//!               what the socket does not take waits in `outgoing`
//! ```
//!
//! A connection on which nothing is under way holds no buffers: ciphertext passes through a scratch buffer of the
//! thread. What waits is bounded: `incoming` by the length of a record, or of a handshake's messages; `plain` by that
//! of a record; and `outgoing` by [`CHUNK`], since nothing is encrypted while it waits. So bytes leave in the order in
//! which they were written, and a writer is told of room as with a plain socket.
//!
//! The poll tells of new bytes on the socket alone. Who reads asks [`Stream::has_more`] whether there may be more, in
//! the socket or here, that the poll will not tell of.

use super::materials::Materials;
use mio::net::TcpStream;
use rustls::pki_types::CertificateDer;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, EncryptError, UnbufferedStatus, WriteTraffic};
use std::cell::RefCell;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// Plain text of a record at most.
const RECORD: usize = 16 * 1024;
/// What encryption adds to a record, and more.
const OVERHEAD: usize = 256;
/// Bytes read from the socket at least, if they are there: a record of the greatest length, with the room that TLS 1.2
/// lets a cipher waste.
const READ_MIN: usize = RECORD + 2048 + OVERHEAD;
/// Bytes read from the socket at most.
const READ_MAX: usize = 4 * READ_MIN;
/// Plain text that is encrypted before it is written.
const CHUNK: usize = 4 * RECORD;
/// Stretches shorter than this are put together before they are encrypted.
const GATHERED: usize = 4 * 1024;
/// Bytes of a handshake that may wait for their rest: certificates are some thousand bytes long.
const HANDSHAKE_MAX: usize = 48 * 1024;

/// DEBUG FORCE-TLS-WRITE-ERROR: whether sockets are treated as if they took nothing.
static CLOGGED: AtomicBool = AtomicBool::new(false);

/// Has all connections with TLS behave as if their sockets took nothing, or no longer.
pub fn clog(on: bool) {
    CLOGGED.store(on, Ordering::Relaxed);
}

/// Buffers that all connections of a thread share.
#[derive(Default)]
struct Scratch {
    /// Ciphertext.
    cipher: Vec<u8>,
    /// Plain text that is put together.
    plain: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// See the module's documentation.
pub struct Stream {
    socket: TcpStream,
    tls: UnbufferedServerConnection,
    /// Ciphertext from the beginning of a record on that is not whole.
    incoming: Vec<u8>,
    /// Plain text that nobody has read, from `plain_read` on.
    plain: Vec<u8>,
    plain_read: usize,
    /// Ciphertext that the socket did not take, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    /// True when the socket may hold more.
    more: bool,
    /// True when the other end has said that it sends no more, or closed its socket.
    ended: bool,
    /// True until both ends have agreed on keys.
    handshaking: bool,
    /// True when the other end broke the protocol: it has been told, and nothing more is to be said or heard.
    broken: bool,
}

/// How far a handshake has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshake {
    /// It waits for the other end.
    Waiting,
    /// It is done.
    Done,
}

impl Stream {
    /// A connection that was accepted, before its handshake.
    pub fn accept(socket: TcpStream, materials: &Materials) -> io::Result<Self> {
        let tls = UnbufferedServerConnection::new(materials.acceptor.clone()).map_err(io::Error::other)?;
        Ok(Stream {
            socket,
            tls,
            incoming: Vec::new(),
            plain: Vec::new(),
            plain_read: 0,
            outgoing: Vec::new(),
            sent: 0,
            more: true,
            ended: false,
            handshaking: true,
            broken: false,
        })
    }

    /// The socket, for the poll.
    pub fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// The socket, for its options.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// Its file descriptor.
    pub fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// The certificate that the client has shown and that was verified, if it has.
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.peer_certificates()?.first()
    }

    /// Whether both ends have yet to agree on keys.
    pub fn is_handshaking(&self) -> bool {
        self.handshaking
    }

    /// Whether there may be more to read that the poll does not tell of.
    pub fn has_more(&self) -> bool {
        self.more || self.plain_read < self.plain.len()
    }

    /// Bytes of ciphertext that wait for the socket.
    pub fn held_output(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Goes on with the handshake as far as the other end lets it. After an error the other end has been told.
    pub fn handshake(&mut self) -> io::Result<Handshake> {
        loop {
            let mut plain = std::mem::take(&mut self.plain);
            let received = self.receive(READ_MIN, |bytes| plain.extend_from_slice(bytes));
            self.plain = plain;
            if received.as_ref().is_err_and(is_plain_text) {
                // An alert would be taken for a reply.
                self.outgoing.clear();
            }
            let flushed = self.flush();
            received?;
            if !self.tls.is_handshaking() {
                self.handshaking = false;
                return Ok(Handshake::Done);
            }
            match flushed {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                _ => {}
            }
            if self.ended {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if self.incoming.len() > HANDSHAKE_MAX {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the handshake is too long"));
            }
            if !self.more {
                return Ok(Handshake::Waiting);
            }
        }
    }

    /// Reads plain text; 0 bytes are the end.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        self.read_with(into.len(), |bytes| {
            let n = bytes.len().min(into.len() - filled);
            into[filled..filled + n].copy_from_slice(&bytes[..n]);
            filled += n;
            n
        })
    }

    /// The same into memory that need not be initialised.
    pub fn read_uninitialised(&mut self, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        let mut filled = 0;
        self.read_with(into.len(), |bytes| {
            let n = bytes.len().min(into.len() - filled);
            for (place, byte) in into[filled..filled + n].iter_mut().zip(bytes) {
                place.write(*byte);
            }
            filled += n;
            n
        })
    }

    /// Reads plain text into a place with `room` bytes; `put` takes as much of its argument as has room there, and
    /// returns how much that is.
    fn read_with(&mut self, room: usize, mut put: impl FnMut(&[u8]) -> usize) -> io::Result<usize> {
        if self.plain_read < self.plain.len() {
            let n = put(&self.plain[self.plain_read..]);
            self.plain_read += n;
            // The poll may have told of more that has not been looked for: this was no read of the socket.
            self.more = true;
            if self.plain_read == self.plain.len() {
                (self.plain, self.plain_read) = (Vec::new(), 0);
            }
            return Ok(n);
        }
        if self.ended {
            return Ok(0);
        }
        let (mut total, mut surplus) = (0, Vec::new());
        let received = self.receive(room.clamp(READ_MIN, READ_MAX), |bytes| {
            let n = put(bytes);
            total += n;
            surplus.extend_from_slice(&bytes[n..]);
        });
        self.plain = surplus;
        if self.held_output() > 0 {
            // An answer to a key update. What the socket does not take goes with what is written next.
            let _ = self.flush();
        }
        // What came before an error is not lost by it: the error comes again.
        match received {
            _ if total > 0 => Ok(total),
            Err(error) => Err(error),
            Ok(()) if self.ended => Ok(0),
            Ok(()) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Receives up to `max` bytes of ciphertext, counting those that waited, and hands on what they were.
    fn receive(&mut self, max: usize, sink: impl FnMut(&[u8])) -> io::Result<()> {
        if self.broken {
            return Err(io::ErrorKind::InvalidData.into());
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let held = self.incoming.len();
            let end = held + max.saturating_sub(held).max(READ_MIN);
            if scratch.cipher.len() < end {
                scratch.cipher.resize(end, 0);
            }
            let buffer = &mut scratch.cipher[..end];
            buffer[..held].copy_from_slice(&self.incoming);
            let received = match self.socket.read(&mut buffer[held..]) {
                Ok(0) => {
                    self.ended = true;
                    0
                }
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.more = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            self.more = held + received == end;
            if received == 0 {
                return Ok(());
            }
            let filled = &mut buffer[..held + received];
            let (done, result) = process(&mut self.tls, filled, &mut self.outgoing, sink);
            let rest = &filled[done..];
            if rest.len() != held || done > 0 {
                self.incoming = rest.to_vec();
            }
            match result {
                Ok(ended) => {
                    self.ended |= ended;
                    // The end is found by reading again.
                    self.more |= self.ended;
                    Ok(())
                }
                Err(error) => {
                    (self.broken, self.more) = (true, true);
                    Err(io::Error::new(io::ErrorKind::InvalidData, error))
                }
            }
        })
    }

    /// Writes what fits.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// Writes what fits of several stretches.
    pub fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if CLOGGED.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut stretches = Stretches::new(slices);
        let mut written = 0;
        SCRATCH.with_borrow_mut(|Scratch { cipher, plain }| {
            loop {
                let taken = self.encrypt(&mut stretches, plain, cipher)?;
                if taken.plain == 0 {
                    return Ok(written);
                }
                written += taken.plain;
                let sent = self.send(&cipher[..taken.cipher])?;
                if sent < taken.cipher {
                    self.outgoing = cipher[sent..taken.cipher].to_vec();
                    self.sent = 0;
                    return Ok(written);
                }
            }
        })
    }

    /// Encrypts the next stretches, [`CHUNK`] bytes at most, into `cipher`.
    fn encrypt(
        &mut self,
        stretches: &mut Stretches<'_, '_>,
        plain: &mut Vec<u8>,
        cipher: &mut Vec<u8>,
    ) -> io::Result<Encrypted> {
        let mut done = Encrypted { plain: 0, cipher: 0 };
        let room = CHUNK + (CHUNK / RECORD + 1) * OVERHEAD;
        if cipher.len() < room {
            cipher.resize(room, 0);
        }
        // The beginning of a record changes nothing: what is whole has been processed.
        let UnbufferedStatus { state, .. } = self.tls.process_tls_records(&mut self.incoming);
        let mut traffic = match state.map_err(io::Error::other)? {
            ConnectionState::WriteTraffic(traffic) => traffic,
            _ => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        while done.plain < CHUNK {
            let bytes = stretches.next(CHUNK - done.plain, plain);
            if bytes.is_empty() {
                break;
            }
            done.cipher += encrypt(&mut traffic, bytes, cipher, done.cipher)?;
            done.plain += bytes.len();
        }
        Ok(done)
    }

    /// Writes ciphertext that waits. An error of the kind `WouldBlock` says that some still does.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.held_output() > 0 {
            let outgoing = std::mem::take(&mut self.outgoing);
            let sent = self.send(&outgoing[self.sent..]);
            self.outgoing = outgoing;
            match sent? {
                0 => return Err(io::ErrorKind::WouldBlock.into()),
                n => self.sent += n,
            }
        }
        (self.outgoing, self.sent) = (Vec::new(), 0);
        Ok(())
    }

    /// Writes what the socket takes; 0 when it takes nothing at present.
    fn send(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.socket.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
                result => return result,
            }
        }
    }

    /// Says nothing more: another process has the connection.
    pub fn let_go(&mut self) {
        self.broken = true;
    }

    /// Tells the other end, if there is room for that, that nothing more comes.
    pub fn say_goodbye(&mut self) {
        if self.handshaking || self.broken || self.flush().is_err() {
            return;
        }
        let mut alert = [0; OVERHEAD];
        let state = self.tls.process_tls_records(&mut self.incoming).state;
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state
            && let Ok(n) = traffic.queue_close_notify(&mut alert)
        {
            // Who has gone already needs no goodbye.
            let _ = self.send(&alert[..n]);
        }
    }
}

/// Whether a handshake failed because its first bytes were none of TLS.
pub fn is_plain_text(error: &io::Error) -> bool {
    let told = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(told, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}

/// What was encrypted: bytes of plain text, and of ciphertext.
struct Encrypted {
    plain: usize,
    cipher: usize,
}

/// Has the library process what came; how many of the bytes are done with, and whether the other end sends no more.
/// What the library has to say goes to `outgoing`.
fn process(
    tls: &mut UnbufferedServerConnection,
    incoming: &mut [u8],
    outgoing: &mut Vec<u8>,
    mut sink: impl FnMut(&[u8]),
) -> (usize, Result<bool, rustls::Error>) {
    let (mut done, mut failure) = (0, None);
    loop {
        let UnbufferedStatus { mut discard, state } = tls.process_tls_records(&mut incoming[done..]);
        // What comes after an error is the alert that tells the other end of it, if anything.
        let mut outcome = failure.take().map(Err);
        match state {
            Ok(ConnectionState::EncodeTlsData(mut data)) => encode(&mut data, outgoing),
            _ if outcome.is_some() => {}
            Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                while let Some(Ok(record)) = traffic.next_record() {
                    sink(record.payload);
                    discard += record.discard;
                }
            }
            Ok(ConnectionState::TransmitTlsData(data)) => data.done(),
            Ok(ConnectionState::PeerClosed | ConnectionState::Closed) => outcome = Some(Ok(true)),
            Ok(_) => outcome = Some(Ok(false)),
            Err(error) => failure = Some(error),
        }
        done = (done + discard).min(incoming.len());
        if let Some(outcome) = outcome {
            return (done, outcome);
        }
    }
}

fn encode(data: &mut EncodeTlsData<'_, ServerConnectionData>, outgoing: &mut Vec<u8>) {
    let start = outgoing.len();
    let mut room = 1024;
    loop {
        outgoing.resize(start + room, 0);
        match data.encode(&mut outgoing[start..]) {
            Ok(n) => return outgoing.truncate(start + n),
            Err(EncodeError::InsufficientSize(needed)) => room = needed.required_size,
            Err(EncodeError::AlreadyEncoded) => return outgoing.truncate(start),
        }
    }
}

/// Encrypts bytes to `cipher` from `at` on; the bytes written.
fn encrypt(
    traffic: &mut WriteTraffic<'_, ServerConnectionData>,
    bytes: &[u8],
    cipher: &mut Vec<u8>,
    at: usize,
) -> io::Result<usize> {
    match traffic.encrypt(bytes, &mut cipher[at..]) {
        Ok(n) => Ok(n),
        Err(EncryptError::InsufficientSize(needed)) => {
            // Many small stretches, or new keys before them.
            cipher.resize(at + needed.required_size, 0);
            traffic.encrypt(bytes, &mut cipher[at..]).map_err(io::Error::other)
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Stretches of plain text, cut and put together to such as are worth a record.
struct Stretches<'s, 'b> {
    slices: &'s [IoSlice<'b>],
    /// Bytes of the first that are taken already.
    taken: usize,
}

impl<'s, 'b> Stretches<'s, 'b> {
    fn new(slices: &'s [IoSlice<'b>]) -> Self {
        Stretches { slices, taken: 0 }
    }

    /// The next bytes, `max` at most: of one stretch, or of several short ones that are copied to `gathered`. Empty
    /// when all are taken.
    fn next<'g>(&mut self, max: usize, gathered: &'g mut Vec<u8>) -> &'g [u8]
    where
        's: 'g,
    {
        while let [first, rest @ ..] = self.slices
            && self.taken == first.len()
        {
            (self.slices, self.taken) = (rest, 0);
        }
        let Some((first, rest)) = self.slices.split_first() else { return &[] };
        let left = &first[self.taken..];
        if left.len() >= GATHERED || rest.is_empty() {
            let n = left.len().min(max);
            self.taken += n;
            return &left[..n];
        }
        gathered.clear();
        let max = max.min(RECORD);
        while let Some((first, rest)) = self.slices.split_first()
            && gathered.len() < max
            && first.len() - self.taken < GATHERED
        {
            let left = &first[self.taken..];
            let n = left.len().min(max - gathered.len());
            gathered.extend_from_slice(&left[..n]);
            self.taken += n;
            if self.taken < first.len() {
                break;
            }
            (self.slices, self.taken) = (rest, 0);
        }
        gathered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_stretches_are_put_together_and_long_ones_are_not_copied() {
        let bytes: Vec<u8> = (0..70_000u32).map(|n| (n % 251) as u8).collect();
        let lengths = [0, 10, 0, 4_000, GATHERED - 1, GATHERED, 20_000, 1, 2, 30_000, 3];
        let (mut rest, mut slices) = (bytes.as_slice(), Vec::new());
        for length in lengths {
            let (slice, more) = rest.split_at(length.min(rest.len()));
            slices.push(IoSlice::new(slice));
            rest = more;
        }
        let whole = bytes.len() - rest.len();
        for max in [1, 100, 5_000, CHUNK] {
            let mut stretches = Stretches::new(&slices);
            let (mut got, mut pieces, mut gathered) = (Vec::new(), 0, Vec::new());
            loop {
                let piece = stretches.next(max, &mut gathered);
                if piece.is_empty() {
                    break;
                }
                assert!(piece.len() <= max);
                got.extend_from_slice(piece);
                pieces += 1;
            }
            assert!(got == bytes[..whole], "in pieces of {max}");
            if max == CHUNK {
                // The first three short ones, two long ones, two short ones, a long one, and the last.
                assert_eq!(pieces, 6);
            }
        }
    }
}
