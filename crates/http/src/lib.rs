//! The HTTP endpoint: one thread that serves pages beside the workers, for monitoring systems and browsers.
//!
//! ```text
//! listeners --> connection (limits, TLS) --> hyper, HTTP/1.1 --> router (method and path) --> handler
//! ```
//!
//! [`Endpoint`] is the thread. It knows nothing about the server: a [`Router`] maps methods and paths to handlers, and
//! decides with the current [`Access`] who may call them. Handlers run on that thread, one at a time, so they must not
//! block; a body may be a stream that another thread feeds.
//!
//! Everything that a peer controls is limited by [`Limits`]: connections, headers, bodies, and the time for each. When
//! the limit of connections is reached, a new one replaces the oldest one, so idle or half-sent requests cannot keep a
//! monitoring system out.

pub mod access;
mod connection;
pub mod endpoint;
pub mod headers;
pub mod limits;
pub mod router;

pub use access::Access;
pub use endpoint::{Endpoint, TlsSource};
pub use hyper::body::Bytes;
pub use hyper::{Method, StatusCode};
pub use limits::Limits;
pub use router::{Body, Guard, Reply, Request, Router};
