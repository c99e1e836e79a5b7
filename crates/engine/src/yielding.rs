//! What a request that runs a script needs of the thread that passed it in: other clients are served while the script
//! takes long, and a debugged script talks to its client.

use std::io;
use std::os::fd::RawFd;

/// Serves other clients while a long script runs.
pub trait Yield {
    /// Does the work that is currently possible and returns soon.
    fn yield_now(&mut self);

    /// The connection that sent the request, with its earlier replies written or pending. `None` if there is none.
    fn connection(&mut self) -> Option<&mut dyn DebugConnection> {
        None
    }
}

/// Does nothing: for commands that run no script.
impl Yield for () {
    fn yield_now(&mut self) {}
}

/// The connection of a client that debugs a script.
pub trait DebugConnection {
    /// Its file descriptor.
    fn fd(&self) -> RawFd;

    /// Whether replies to its earlier requests await fsync.
    fn awaits_fsync(&self) -> bool;

    /// Waits a moment for input and appends it to `into`. Returns the number of bytes, or `None` if the input has
    /// ended.
    fn read(&mut self, into: &mut Vec<u8>) -> Option<usize>;

    /// Writes all of `bytes`, after pending output.
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Whether the peer has closed the connection.
    fn is_closed(&self) -> bool;

    /// Makes this process close the connection without ending a TLS session: another process continues it.
    fn hand_over(&mut self);

    /// Ends the TLS session, if there is one.
    fn close_notify(&mut self);
}
