//! Listening sockets, clients' sockets, and TLS in both directions.

pub mod listen;
pub mod page_pipe;
pub mod peer;
pub mod socket;
pub mod supervise;
pub mod tls;
