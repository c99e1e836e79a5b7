//! A client's socket: TCP, Unix or TLS.

use crate::page_pipe::PagePipe;
use crate::tls::stream::Stream;
use mio::event::Source;
use mio::net::{TcpStream, UnixStream};
use mio::{Interest, Registry, Token};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags};
use socket2::{MaybeUninitSlice, SockRef};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, RawFd};

/// A stream socket.
pub enum Socket {
    /// Over TCP.
    Tcp(TcpStream),
    /// Over a Unix socket.
    Unix(UnixStream),
    /// Over TCP, encrypted.
    Tls(Box<Stream>),
}

/// Reads from a socket by a direct system call, without the C library.
#[inline]
fn receive(socket: &impl AsFd, into: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::net::recv(socket, into, RecvFlags::empty())?.0)
}

fn receive_scattered(socket: SockRef<'_>, first: &mut [MaybeUninit<u8>], second: &mut [u8]) -> io::Result<usize> {
    let mut slices = [MaybeUninitSlice::new(first), MaybeUninitSlice::new(to_be_overwritten(second))];
    Ok(socket.recv_vectored(&mut slices)?.0)
}

/// The same memory for a system call that writes to it.
fn to_be_overwritten(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the bytes are initialised, and a socket writes nothing else there.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

/// Writes to a socket in the same way. A closed peer causes an error, not a signal.
#[inline]
fn send(socket: &impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::net::send(socket, bytes, SendFlags::NOSIGNAL)?)
}

/// The same for several slices. The kernel does less for this call than for `writev`, which is for files too.
#[inline]
fn send_vectored(socket: &impl AsFd, blocks: &[IoSlice<'_>], flags: SendFlags) -> io::Result<usize> {
    let flags = SendFlags::NOSIGNAL | flags;
    Ok(rustix::net::sendmsg(socket, blocks, &mut SendAncillaryBuffer::default(), flags)?)
}

impl Socket {
    /// A socket of this process.
    ///
    /// # Errors
    /// If it cannot be made non-blocking.
    pub fn from_unix(stream: std::os::unix::net::UnixStream) -> io::Result<Socket> {
        stream.set_nonblocking(true)?;
        Ok(Socket::Unix(UnixStream::from_std(stream)))
    }

    /// Reads the available bytes.
    #[inline]
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => receive(stream, into),
            Socket::Unix(stream) => receive(stream, into),
            Socket::Tls(stream) => stream.read(into),
        }
    }

    /// Appends available bytes to `buffer`, at most `max`; `buffer` must have that much spare capacity.
    pub fn read_append(&mut self, buffer: &mut Vec<u8>, max: usize) -> io::Result<usize> {
        let n = self.read_uninitialised(&mut buffer.spare_capacity_mut()[..max])?;
        // SAFETY: the socket wrote that many bytes there.
        unsafe { buffer.set_len(buffer.len() + n) };
        Ok(n)
    }

    /// Reads available bytes into uninitialised memory.
    pub fn read_uninitialised(&mut self, into: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => SockRef::from(&*stream).recv(into),
            Socket::Unix(stream) => SockRef::from(&*stream).recv(into),
            Socket::Tls(stream) => stream.read_uninitialised(into),
        }
    }

    /// Number of received bytes that wait in the socket; 0 if unknown.
    pub fn available(&self) -> usize {
        let waiting = match self {
            Socket::Tcp(stream) => rustix::io::ioctl_fionread(stream),
            Socket::Unix(stream) => rustix::io::ioctl_fionread(stream),
            Socket::Tls(stream) => rustix::io::ioctl_fionread(stream.socket()),
        };
        waiting.map_or(0, |bytes| bytes as usize)
    }

    /// Reads available bytes into `first`, and only what follows when it is full into `second`. Returns their number.
    pub fn read_scattered(&mut self, first: &mut [MaybeUninit<u8>], second: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => receive_scattered(SockRef::from(&*stream), first, second),
            Socket::Unix(stream) => receive_scattered(SockRef::from(&*stream), first, second),
            Socket::Tls(stream) => {
                let n = stream.read_uninitialised(first)?;
                // The error or end that this hides is returned by the next read.
                let behind = if n == first.len() && stream.has_more() { stream.read(second).unwrap_or(0) } else { 0 };
                Ok(n + behind)
            }
        }
    }

    /// Reads available bytes into `first`, what follows when that is full into `second`, and then into `third`. Returns
    /// their number. Over TLS, reads only into `first`.
    pub fn read_in_three(
        &mut self,
        first: &mut [u8],
        second: &mut [MaybeUninit<u8>],
        third: &mut [u8],
    ) -> io::Result<usize> {
        let (first, third) = (to_be_overwritten(first), to_be_overwritten(third));
        let socket = match self {
            Socket::Tcp(stream) => SockRef::from(&*stream),
            Socket::Unix(stream) => SockRef::from(&*stream),
            Socket::Tls(stream) => return stream.read_uninitialised(first),
        };
        Ok(socket.recv_vectored(&mut [first, second, third].map(MaybeUninitSlice::new))?.0)
    }

    /// Writes as many bytes as the socket accepts.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => send(stream, bytes),
            Socket::Unix(stream) => send(stream, bytes),
            Socket::Tls(stream) => stream.write(bytes),
        }
    }

    /// The same for several slices.
    pub fn write_vectored(&mut self, blocks: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => send_vectored(stream, blocks, SendFlags::empty()),
            Socket::Unix(stream) => send_vectored(stream, blocks, SendFlags::empty()),
            Socket::Tls(stream) => stream.write_vectored(blocks),
        }
    }

    /// Whether [`write_pages`](Self::write_pages) can be used.
    #[inline]
    pub fn takes_pages(&self) -> bool {
        matches!(self, Socket::Tcp(_))
    }

    /// As [`write_vectored`](Self::write_vectored), if more will be written at once: a TCP socket waits for it instead
    /// of sending a packet that is not full.
    pub fn write_vectored_before_more(&mut self, blocks: &[IoSlice<'_>]) -> io::Result<usize> {
        let Socket::Tcp(stream) = self else { return self.write_vectored(blocks) };
        send_vectored(stream, blocks, SendFlags::MORE)
    }

    /// Writes whole pages of memory without copying them, if the socket [takes pages](Self::takes_pages); `more` if
    /// more will be written at once. Returns how many bytes the socket took.
    ///
    /// # Safety
    ///
    /// The pages must not change any more, even when this memory was freed.
    pub unsafe fn write_pages(&mut self, pipe: &mut PagePipe, pages: &[u8], more: bool) -> io::Result<usize> {
        match self {
            // SAFETY: promised by the caller.
            Socket::Tcp(stream) => unsafe { pipe.send(stream, pages, more) },
            _ => self.write(pages),
        }
    }

    /// Whether more input may be available that the poll does not report. For a plain socket, a read that fills its
    /// buffer indicates this.
    #[inline]
    pub fn has_more(&self) -> bool {
        matches!(self, Socket::Tls(stream) if stream.has_more())
    }

    /// Whether the input that was read ends within a TLS record.
    #[inline]
    pub fn ends_within_record(&self) -> bool {
        matches!(self, Socket::Tls(stream) if stream.ends_within_record())
    }

    /// Acknowledges at once what was received. TCP delays this by up to 40 ms, to send it together with a reply, and a
    /// peer that follows Nagle's algorithm keeps the rest of its request back until then.
    #[cold]
    pub fn acknowledge(&self) {
        let socket = match self {
            Socket::Tcp(stream) => stream,
            Socket::Tls(stream) => stream.socket(),
            Socket::Unix(_) => return,
        };
        // If this fails, the rest of the request only arrives later.
        let _ = rustix::net::sockopt::set_tcp_quickack(socket, true);
    }

    /// Encrypted bytes that wait to be sent.
    #[inline]
    pub fn pending_output(&self) -> usize {
        if let Socket::Tls(stream) = self { stream.pending_output() } else { 0 }
    }

    /// Sends waiting bytes; the next write does so too.
    pub fn flush(&mut self) -> io::Result<()> {
        let Socket::Tls(stream) = self else { return Ok(()) };
        match stream.flush() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            result => result,
        }
    }

    /// Whether it is encrypted.
    #[inline]
    pub fn is_tls(&self) -> bool {
        matches!(self, Socket::Tls(_))
    }

    /// Whether the TLS handshake is running, so that nothing can be read or written yet.
    pub fn is_handshaking(&self) -> bool {
        matches!(self, Socket::Tls(stream) if stream.is_handshaking())
    }

    fn source(&mut self) -> &mut dyn Source {
        match self {
            Socket::Tcp(stream) => stream,
            Socket::Unix(stream) => stream,
            Socket::Tls(stream) => stream.socket_mut(),
        }
    }

    /// Registers the socket with the poll for edge-triggered input and output events.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.source().register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }

    /// Removes the socket from the poll.
    pub fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        self.source().deregister(registry)
    }

    /// The file descriptor.
    pub fn fd(&self) -> RawFd {
        match self {
            Socket::Tcp(stream) => stream.as_raw_fd(),
            Socket::Unix(stream) => stream.as_raw_fd(),
            Socket::Tls(stream) => stream.fd(),
        }
    }
}
