//! The interface for executing a primary's commands, which the engine implements.

use kvick_resp::Args;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// How often to check whether a script has ended, or the append-only file has been replayed.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Executes a primary's commands, and appends them to the write log in the primary's own bytes.
pub trait Apply {
    /// Begins to apply the stream of the primary of this generation. The next record, or the dump, has selected the
    /// database.
    fn begin(&mut self, generation: u64, database: usize, endpoints: &Endpoints);

    /// Exchanges all databases with their staging databases. Clients that wait for, watch or cache keys see the new
    /// data.
    fn exchange_staging(&mut self);

    /// Drops all data, in the background if `lazy`.
    fn drop_data(&mut self, lazy: bool);

    /// The link has ended.
    fn end(&mut self);

    /// Whether the link is to be closed.
    fn is_doomed(&self) -> bool;

    /// Reads the clock.
    fn tick(&mut self);

    /// Executes requests and appends them to the log, while `next` returns any: each with its bytes as received.
    fn run<'a>(&mut self, next: &mut dyn FnMut() -> Option<(Args<'a>, &'a [u8])>) -> Result<(), Superseded>;
}

/// The two endpoints of the connection to a primary, for CLIENT commands.
#[derive(Clone, Debug, Default)]
pub struct Endpoints {
    /// The primary's address and port.
    pub peer: String,
    /// This server's address and port.
    pub local: String,
    /// The file descriptor.
    pub fd: i32,
}

impl Endpoints {
    /// The endpoints of a socket.
    pub fn of(socket: &TcpStream) -> Endpoints {
        let text =
            |address: io::Result<SocketAddr>| address.map_or_else(|_| String::new(), |address| address.to_string());
        Endpoints { peer: text(socket.peer_addr()), local: text(socket.local_addr()), fd: socket.as_raw_fd() }
    }
}

/// The server has switched to another primary, or to none.
#[derive(Debug)]
pub struct Superseded;
