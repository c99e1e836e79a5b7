//! Reads and writes of a client that debugs a script; see [`kvick_engine::debugging`]. They bypass the event loop,
//! because the script occupies the worker.

use super::connection::Connection;
use kvick_engine::yielding::DebugConnection;
use kvick_net::page_pipe::PagePipe;
use kvick_net::socket::Socket;
use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

/// Bytes per read.
const READ: usize = 4096;
/// Maximum time for which a client may take none of its output.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum wait for input before checking whether the session is to continue.
const READ_WAIT: Duration = Duration::from_millis(20);

impl DebugConnection for Connection {
    fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    fn awaits_fsync(&self) -> bool {
        self.awaiting_fsync > 0
    }

    fn read(&mut self, into: &mut Vec<u8>) -> Option<usize> {
        let start = into.len();
        into.resize(start + READ, 0);
        let read = match self.socket.read(&mut into[start..]) {
            Ok(0) => None,
            Ok(n) => Some(n),
            Err(error) if is_transient(&error) => {
                wait(&self.socket, libc::POLLIN, READ_WAIT);
                Some(0)
            }
            Err(_) => None,
        };
        into.truncate(start + read.unwrap_or(0));
        read
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Connection { socket, output, .. } = self;
        let mut rest = bytes;
        while !output.is_empty() || !rest.is_empty() || socket.pending_output() > 0 {
            let written = match output.is_empty() {
                false => output.flush(socket, &mut PagePipe::default(), usize::MAX).map(|written| (written, 0)),
                true if rest.is_empty() => socket.flush().map(|()| (0, 0)),
                true => socket.write(rest).map(|written| (written, written)),
            };
            let (moved, of_rest) = match written {
                Ok(written) => written,
                Err(error) if is_transient(&error) => (0, 0),
                Err(error) => return Err(error),
            };
            rest = &rest[of_rest..];
            if moved == 0
                && (!output.is_empty() || !rest.is_empty() || socket.pending_output() > 0)
                && !wait(socket, libc::POLLOUT, WRITE_TIMEOUT)
            {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    fn is_closed(&self) -> bool {
        wait(&self.socket, libc::POLLRDHUP, Duration::ZERO)
    }

    fn hand_over(&mut self) {
        if let Socket::Tls(stream) = &mut self.socket {
            stream.abandon();
        }
    }

    fn close_notify(&mut self) {
        if let Socket::Tls(stream) = &mut self.socket {
            stream.send_close_notify();
        }
    }
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// Waits until a socket is ready. Returns whether it is ready or has failed.
fn wait(socket: &Socket, events: libc::c_short, timeout: Duration) -> bool {
    let mut poll = libc::pollfd { fd: socket.fd(), events, revents: 0 };
    let ms = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the array has one entry, which outlives the call.
    unsafe { libc::poll(&mut poll, 1, ms) > 0 }
}
