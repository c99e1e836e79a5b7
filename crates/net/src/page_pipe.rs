//! Sends memory from where it is, without copying it.
//!
//! A pipe holds references to pages instead of bytes. `vmsplice` puts pages of memory into it, `splice` moves them on
//! to a socket, whose packets then refer to the same pages. Nothing tells when they were sent: until the receiver has
//! acknowledged (or, on the same machine, read) them, a change of the memory changes what is received. **Invariant**: a
//! pipe is empty between two calls; what a socket does not take is dropped.

use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, vmsplice};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

/// Bytes that the pipe can refer to, if the system allows it. They are put into it and moved on at once: the more there
/// are, the more is in vain if the socket takes less.
const CAPACITY: usize = 256 * 1024;

/// A pipe for pages on their way to a socket. The default one copies.
#[derive(Default)]
pub struct PagePipe {
    /// `None` if pages cannot be sent.
    ends: Option<Ends>,
}

struct Ends {
    from: OwnedFd,
    to: OwnedFd,
}

/// `/dev/null`, which takes the pages that no socket takes.
fn nowhere() -> io::Result<&'static File> {
    static NOWHERE: OnceLock<File> = OnceLock::new();
    if let Some(file) = NOWHERE.get() {
        return Ok(file);
    }
    let file = File::options().write(true).open("/dev/null")?;
    Ok(NOWHERE.get_or_init(|| file))
}

impl PagePipe {
    /// A pipe. Where the system refuses it, bytes are copied.
    pub fn open() -> PagePipe {
        let ends = || -> io::Result<Ends> {
            nowhere()?;
            let (from, to) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
            // A pipe that stays small takes less at once.
            let _ = fcntl_setpipe_size(&to, CAPACITY);
            Ok(Ends { from, to })
        };
        PagePipe { ends: ends().ok() }
    }

    /// Whether pages are sent without a copy.
    pub fn is_open(&self) -> bool {
        self.ends.is_some()
    }

    /// Sends bytes that begin and end with pages; `more` if others follow at once. Returns how many the socket took.
    ///
    /// # Safety
    ///
    /// The pages must not change any more, even when this memory was freed.
    pub unsafe fn send(&mut self, socket: &impl AsFd, bytes: &[u8], more: bool) -> io::Result<usize> {
        let Some(ends) = &self.ends else { return copy(socket, bytes, more) };
        // SAFETY: promised by the caller.
        let (sent, error) = unsafe { ends.send(socket, bytes, more) };
        match error {
            Some(error) if is_refusal(error) => {
                self.ends = None;
                if sent > 0 { Ok(sent) } else { copy(socket, bytes, more) }
            }
            Some(error) if sent == 0 => Err(error.into()),
            _ => Ok(sent),
        }
    }
}

/// Whether an error is about pages, not about the socket: a filter of system calls, or an old kernel.
fn is_refusal(error: Errno) -> bool {
    [Errno::INVAL, Errno::NOSYS, Errno::PERM, Errno::ACCESS, Errno::OPNOTSUPP, Errno::NOMEM, Errno::FAULT, Errno::BADF]
        .contains(&error)
}

fn copy(socket: &impl AsFd, bytes: &[u8], more: bool) -> io::Result<usize> {
    let more = if more { SendFlags::MORE } else { SendFlags::empty() };
    Ok(send(socket, bytes, SendFlags::NOSIGNAL | more)?)
}

impl Ends {
    /// Returns the bytes sent, and why there are not more.
    ///
    /// # Safety
    ///
    /// As for [`PagePipe::send`].
    unsafe fn send(&self, socket: &impl AsFd, bytes: &[u8], more: bool) -> (usize, Option<Errno>) {
        let mut sent = 0;
        while sent < bytes.len() {
            // SAFETY: promised by the caller.
            let taken = unsafe { vmsplice(&self.to, &[IoSliceRaw::from_slice(&bytes[sent..])], SpliceFlags::NONBLOCK) };
            let mut left = match taken {
                Ok(0) => return (sent, Some(Errno::INVAL)),
                Ok(taken) => taken,
                Err(error) => return (sent, Some(error)),
            };
            let flags = if more || sent + left < bytes.len() { SpliceFlags::MORE } else { SpliceFlags::empty() };
            while left > 0 {
                match splice(&self.from, None, socket, None, left, SpliceFlags::NONBLOCK | flags) {
                    Ok(n) if n > 0 => {
                        sent += n;
                        left -= n;
                    }
                    result => {
                        // A pipe with pages of another reply must not be used again.
                        let is_empty = self.discard(left).is_ok();
                        return (sent, result.err().filter(|_| is_empty).or(Some(Errno::INVAL)));
                    }
                }
            }
        }
        (sent, None)
    }

    /// Drops what is in the pipe.
    fn discard(&self, mut len: usize) -> io::Result<()> {
        while len > 0 {
            match splice(&self.from, None, nowhere()?, None, len, SpliceFlags::empty())? {
                0 => return Err(Errno::INVAL.into()),
                n => len -= n,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_testing::connected_pair;
    use std::io::Read;
    use std::net::TcpStream;

    fn connected() -> (TcpStream, TcpStream) {
        let (sender, receiver) = connected_pair();
        sender.set_nonblocking(true).expect("a socket that does not block");
        (sender, receiver)
    }

    fn pages(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i / 7 + i / 4096) as u8).collect()
    }

    /// # Safety
    /// As for [`PagePipe::send`].
    unsafe fn send_all(pipe: &mut PagePipe, sender: &TcpStream, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while sent < bytes.len() {
            // SAFETY: promised by the caller.
            match unsafe { pipe.send(sender, &bytes[sent..], false) } {
                Ok(n) => sent += n,
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        sent
    }

    #[test]
    fn what_the_socket_takes_arrives_and_nothing_stays_in_the_pipe() {
        let (sender, mut receiver) = connected();
        let mut pipe = PagePipe::open();
        let bytes = pages(64 << 20);
        // SAFETY: the bytes do not change before they were received.
        let sent = unsafe { send_all(&mut pipe, &sender, &bytes) };
        assert!(pipe.is_open() && sent > 0 && sent < bytes.len(), "{sent}");
        let mut received = vec![0; sent];
        receiver.read_exact(&mut received).expect("bytes");
        assert!(received == bytes[..sent]);
        // SAFETY: as above.
        let next = unsafe { send_all(&mut pipe, &sender, &bytes[sent..][..8192]) };
        assert_eq!(next, 8192);
        receiver.read_exact(&mut received[..next]).expect("bytes");
        assert!(received[..next] == bytes[sent..][..next]);
    }

    #[test]
    fn a_closed_receiver_is_an_error_and_no_signal() {
        let (sender, receiver) = connected();
        drop(receiver);
        let (mut pipe, bytes) = (PagePipe::open(), pages(1 << 20));
        let error = (0..100).find_map(|_| {
            // SAFETY: the bytes do not change.
            unsafe { pipe.send(&sender, &bytes, false) }.err()
        });
        let kind = error.expect("an error").kind();
        assert!(matches!(kind, io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset), "{kind:?}");
        assert!(pipe.is_open());
    }

    #[test]
    fn bytes_are_copied_where_pages_are_refused() {
        let (sender, mut receiver) = connected();
        let bytes = pages(65536);
        let mut pipe = PagePipe::open();
        let ends = pipe.ends.as_mut().expect("a pipe");
        // Pages cannot be put into the end for reading.
        ends.to = ends.from.try_clone().expect("a file descriptor");
        // SAFETY: the bytes do not change.
        let sent = unsafe { send_all(&mut pipe, &sender, &bytes) };
        assert!(sent == bytes.len() && !pipe.is_open());
        let mut received = vec![0; sent];
        receiver.read_exact(&mut received).expect("bytes");
        assert!(received == bytes);
    }
}
