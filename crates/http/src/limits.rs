//! What a peer may use.

use std::time::Duration;

/// See the module's documentation. [`Limits::default`] suits monitoring and a few browsers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at the same time, of all listeners together.
    pub connections_max: usize,
    /// Bytes of the request line and headers. hyper needs at least 8 KiB.
    pub head_bytes_max: usize,
    /// Number of headers.
    pub headers_max: usize,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// Time for the TLS handshake.
    pub handshake_time_max: Duration,
    /// Time from the end of a reply, or from the start of the connection, to the end of the next request's headers.
    pub head_time_max: Duration,
    /// Time for a request's body.
    pub body_time_max: Duration,
    /// Time that written bytes may wait for the peer to read them.
    pub write_time_max: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 64,
            head_bytes_max: 16 * 1024,
            headers_max: 64,
            body_bytes_max: 64 * 1024,
            handshake_time_max: Duration::from_secs(10),
            head_time_max: Duration::from_secs(30),
            body_time_max: Duration::from_secs(10),
            write_time_max: Duration::from_secs(10),
        }
    }
}
