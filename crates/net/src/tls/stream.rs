//! The server's side of a TLS connection, for a worker: a non-blocking socket that carries plain text.
//!
//! ```text
//! socket --> scratch --> rustls: decrypts in place --> the reader's buffer (the excess waits in `plain`)
//!   ^           an incomplete record waits in `incoming`
//!   +------- scratch <-- rustls: encrypts <----------- the writer's bytes
//!               what the socket does not accept waits in `outgoing`
//! ```
//!
//! An idle connection holds no buffers: ciphertext passes through a scratch buffer of the thread. Waiting bytes are
//! limited: `incoming` by the length of a record or of a handshake's messages; `plain` by that of a record; `outgoing`
//! by [`CHUNK`], since nothing is encrypted while it is not empty. So bytes are sent in the order in which they were
//! written, and a writer sees backpressure as with a plain socket.
//!
//! The poll reports new bytes on the socket only. Readers ask [`Stream::has_more`] whether there may be more, in the
//! socket or in these buffers, that the poll will not report.

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

/// Maximum plain text of a record.
const RECORD: usize = 16 * 1024;
/// An upper bound of what encryption adds to a record.
const OVERHEAD: usize = 256;
/// Minimum size of a socket read: a record of maximum length, with the expansion that TLS 1.2 allows a cipher.
const READ_MIN: usize = RECORD + 2048 + OVERHEAD;
/// Maximum size of a socket read.
const READ_MAX: usize = 4 * READ_MIN;
/// Maximum plain text that is encrypted before it is written.
const CHUNK: usize = 4 * RECORD;
/// Shorter slices are combined before they are encrypted.
const COMBINE_BELOW: usize = 4 * 1024;
/// Limit of an incomplete handshake message: certificates have some thousand bytes.
const HANDSHAKE_MAX: usize = 48 * 1024;

/// DEBUG FORCE-TLS-WRITE-ERROR: whether sockets are treated as if they accepted no bytes.
static FAIL_WRITES: AtomicBool = AtomicBool::new(false);

/// Enables or disables simulated failures: TLS connections behave as if their sockets accepted no bytes.
pub fn fail_writes(on: bool) {
    FAIL_WRITES.store(on, Ordering::Relaxed);
}

/// Buffers that all connections of a thread share.
#[derive(Default)]
struct Scratch {
    /// Ciphertext.
    cipher: Vec<u8>,
    /// Combined plain text.
    plain: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// See the module's documentation.
pub struct Stream {
    socket: TcpStream,
    tls: UnbufferedServerConnection,
    /// Ciphertext of an incomplete record.
    incoming: Vec<u8>,
    /// Unread plain text, from `plain_read` on.
    plain: Vec<u8>,
    plain_read: usize,
    /// Ciphertext that the socket did not accept, from `sent` on.
    outgoing: Vec<u8>,
    sent: usize,
    /// True when the socket may hold more.
    more: bool,
    /// True when the peer has sent its end, or closed its socket.
    ended: bool,
    /// True until the handshake is done.
    handshaking: bool,
    /// True after the peer violated the protocol: the alert has been sent, and the connection is unusable.
    broken: bool,
}

/// The progress of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshake {
    /// It waits for the peer.
    Waiting,
    /// It is done.
    Done,
}

impl Stream {
    /// Wraps an accepted connection, before its handshake.
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

    /// The client's verified certificate, if any.
    pub fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.tls.peer_certificates()?.first()
    }

    /// Whether the handshake is still running.
    pub fn is_handshaking(&self) -> bool {
        self.handshaking
    }

    /// Whether more input may be available that the poll does not report.
    pub fn has_more(&self) -> bool {
        self.more || self.plain_read < self.plain.len()
    }

    /// Whether the input that was read ends within a record.
    pub fn ends_within_record(&self) -> bool {
        !self.incoming.is_empty()
    }

    /// Ciphertext that waits for the socket, in bytes.
    pub fn pending_output(&self) -> usize {
        self.outgoing.len() - self.sent
    }

    /// Continues the handshake. After an error an alert has been sent.
    pub fn handshake(&mut self) -> io::Result<Handshake> {
        loop {
            let mut plain = std::mem::take(&mut self.plain);
            let received = self.receive(READ_MIN, |bytes| plain.extend_from_slice(bytes));
            self.plain = plain;
            if received.as_ref().is_err_and(is_plain_text) {
                // The peer would take an alert for a reply.
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

    /// Reads plain text; 0 bytes mean the end.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        self.read_with(into.len(), |bytes| {
            let n = bytes.len().min(into.len() - filled);
            into[filled..filled + n].copy_from_slice(&bytes[..n]);
            filled += n;
            n
        })
    }

    /// The same into uninitialised memory.
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

    /// Reads plain text into a buffer of `room` bytes. `put` consumes as much of its argument as fits, and returns how
    /// much.
    fn read_with(&mut self, room: usize, mut put: impl FnMut(&[u8]) -> usize) -> io::Result<usize> {
        if self.plain_read < self.plain.len() {
            let n = put(&self.plain[self.plain_read..]);
            self.plain_read += n;
            // The poll may have reported input that has not been read: this call did not read the socket.
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
        if self.pending_output() > 0 {
            // An answer to a key update. The next write sends the rest.
            let _ = self.flush();
        }
        // Bytes before an error are kept: the error will recur.
        match received {
            _ if total > 0 => Ok(total),
            Err(error) => Err(error),
            Ok(()) if self.ended => Ok(0),
            Ok(()) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Receives up to `max` bytes of ciphertext, including waiting bytes, and processes them.
    fn receive(&mut self, max: usize, sink: impl FnMut(&[u8])) -> io::Result<()> {
        if self.broken {
            return Err(io::ErrorKind::InvalidData.into());
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let buffered = self.incoming.len();
            let end = buffered + max.saturating_sub(buffered).max(READ_MIN);
            if scratch.cipher.len() < end {
                scratch.cipher.resize(end, 0);
            }
            let buffer = &mut scratch.cipher[..end];
            buffer[..buffered].copy_from_slice(&self.incoming);
            let received = match self.socket.read(&mut buffer[buffered..]) {
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
            self.more = buffered + received == end;
            if received == 0 {
                return Ok(());
            }
            let filled = &mut buffer[..buffered + received];
            let (done, result) = process(&mut self.tls, filled, &mut self.outgoing, sink);
            let rest = &filled[done..];
            if rest.len() != buffered || done > 0 {
                self.incoming = rest.to_vec();
            }
            match result {
                Ok(ended) => {
                    self.ended |= ended;
                    // Another read finds the end.
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

    /// Writes as many bytes as fit.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    /// The same for several slices.
    pub fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.flush()?;
        if self.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if FAIL_WRITES.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut reader = SliceReader::new(slices);
        let mut written = 0;
        SCRATCH.with_borrow_mut(|Scratch { cipher, plain }| {
            loop {
                let consumed = self.encrypt(&mut reader, plain, cipher)?;
                if consumed.plain == 0 {
                    return Ok(written);
                }
                written += consumed.plain;
                let sent = self.send(&cipher[..consumed.cipher])?;
                if sent < consumed.cipher {
                    self.outgoing = cipher[sent..consumed.cipher].to_vec();
                    self.sent = 0;
                    return Ok(written);
                }
            }
        })
    }

    /// Encrypts the next slices, at most [`CHUNK`] bytes, into `cipher`.
    fn encrypt(
        &mut self,
        reader: &mut SliceReader<'_, '_>,
        plain: &mut Vec<u8>,
        cipher: &mut Vec<u8>,
    ) -> io::Result<Encrypted> {
        let mut done = Encrypted { plain: 0, cipher: 0 };
        let room = CHUNK + (CHUNK / RECORD + 1) * OVERHEAD;
        if cipher.len() < room {
            cipher.resize(room, 0);
        }
        // An incomplete record is harmless: complete ones have been processed.
        let UnbufferedStatus { state, .. } = self.tls.process_tls_records(&mut self.incoming);
        let mut traffic = match state.map_err(io::Error::other)? {
            ConnectionState::WriteTraffic(traffic) => traffic,
            _ => return Err(io::ErrorKind::BrokenPipe.into()),
        };
        while done.plain < CHUNK {
            let bytes = reader.next(CHUNK - done.plain, plain);
            if bytes.is_empty() {
                break;
            }
            done.cipher += encrypt(&mut traffic, bytes, cipher, done.cipher)?;
            done.plain += bytes.len();
        }
        Ok(done)
    }

    /// Sends waiting ciphertext. A `WouldBlock` error means that some is left.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.pending_output() > 0 {
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

    /// Writes what the socket accepts; 0 if it accepts nothing at present.
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

    /// Sends nothing more: another process owns the connection.
    pub fn abandon(&mut self) {
        self.broken = true;
    }

    /// Sends a close alert, if the socket accepts it.
    pub fn send_close_notify(&mut self) {
        if self.handshaking || self.broken || self.flush().is_err() {
            return;
        }
        let mut alert = [0; OVERHEAD];
        let state = self.tls.process_tls_records(&mut self.incoming).state;
        if let Ok(ConnectionState::WriteTraffic(mut traffic)) = state
            && let Ok(n) = traffic.queue_close_notify(&mut alert)
        {
            // The peer may already be gone.
            let _ = self.send(&alert[..n]);
        }
    }
}

/// Whether a handshake failed because its first bytes were not TLS.
pub fn is_plain_text(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType)))
}

/// The numbers of encrypted bytes: of plain text, and of ciphertext.
struct Encrypted {
    plain: usize,
    cipher: usize,
}

/// Lets the library process received bytes. Returns how many are done with, and whether the peer has ended. The
/// library's own output goes to `outgoing`.
fn process(
    tls: &mut UnbufferedServerConnection,
    incoming: &mut [u8],
    outgoing: &mut Vec<u8>,
    mut sink: impl FnMut(&[u8]),
) -> (usize, Result<bool, rustls::Error>) {
    let (mut done, mut failure) = (0, None);
    loop {
        let UnbufferedStatus { mut discard, state } = tls.process_tls_records(&mut incoming[done..]);
        // After an error the library may produce an alert for the peer.
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

/// Encrypts bytes to `cipher` from `at` on. Returns the number of bytes written.
fn encrypt(
    traffic: &mut WriteTraffic<'_, ServerConnectionData>,
    bytes: &[u8],
    cipher: &mut Vec<u8>,
    at: usize,
) -> io::Result<usize> {
    match traffic.encrypt(bytes, &mut cipher[at..]) {
        Ok(n) => Ok(n),
        Err(EncryptError::InsufficientSize(needed)) => {
            // Many short slices, or new keys before them.
            cipher.resize(at + needed.required_size, 0);
            traffic.encrypt(bytes, &mut cipher[at..]).map_err(io::Error::other)
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Slices of plain text, split and combined into pieces suitable for records.
struct SliceReader<'s, 'b> {
    slices: &'s [IoSlice<'b>],
    /// Bytes already taken from the first slice.
    consumed: usize,
}

impl<'s, 'b> SliceReader<'s, 'b> {
    fn new(slices: &'s [IoSlice<'b>]) -> Self {
        SliceReader { slices, consumed: 0 }
    }

    /// The next bytes, at most `max`: of one slice, or of several short ones that are copied to `combined`. Empty at
    /// the end.
    fn next<'g>(&mut self, max: usize, combined: &'g mut Vec<u8>) -> &'g [u8]
    where
        's: 'g,
    {
        while let [first, rest @ ..] = self.slices
            && self.consumed == first.len()
        {
            (self.slices, self.consumed) = (rest, 0);
        }
        let Some((first, rest)) = self.slices.split_first() else { return &[] };
        let left = &first[self.consumed..];
        if left.len() >= COMBINE_BELOW || rest.is_empty() {
            let n = left.len().min(max);
            self.consumed += n;
            return &left[..n];
        }
        combined.clear();
        let max = max.min(RECORD);
        while let Some((first, rest)) = self.slices.split_first()
            && combined.len() < max
            && first.len() - self.consumed < COMBINE_BELOW
        {
            let left = &first[self.consumed..];
            let n = left.len().min(max - combined.len());
            combined.extend_from_slice(&left[..n]);
            self.consumed += n;
            if self.consumed < first.len() {
                break;
            }
            (self.slices, self.consumed) = (rest, 0);
        }
        combined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slices_are_joined_and_long_ones_are_not_copied() {
        let bytes: Vec<u8> = (0..70_000u32).map(|n| (n % 251) as u8).collect();
        let lengths = [0, 10, 0, 4_000, COMBINE_BELOW - 1, COMBINE_BELOW, 20_000, 1, 2, 30_000, 3];
        let (mut rest, mut slices) = (bytes.as_slice(), Vec::new());
        for length in lengths {
            let (slice, more) = rest.split_at(length.min(rest.len()));
            slices.push(IoSlice::new(slice));
            rest = more;
        }
        let complete = bytes.len() - rest.len();
        for max in [1, 100, 5_000, CHUNK] {
            let mut reader = SliceReader::new(&slices);
            let (mut got, mut pieces, mut combined) = (Vec::new(), 0, Vec::new());
            loop {
                let piece = reader.next(max, &mut combined);
                if piece.is_empty() {
                    break;
                }
                assert!(piece.len() <= max);
                got.extend_from_slice(piece);
                pieces += 1;
            }
            assert!(got == bytes[..complete], "in pieces of {max}");
            if max == CHUNK {
                // The first three short ones, two long ones, two short ones, a long one, and the last.
                assert_eq!(pieces, 6);
            }
        }
    }
}
