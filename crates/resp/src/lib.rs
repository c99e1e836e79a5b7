//! The Redis serialization protocol, RESP2 and RESP3: requests in, replies out; no I/O.
//!
//! * [`Parser`] finds requests in the bytes a connection received, in whatever pieces they came. A request that lies
//!   whole in the input costs no copy and no allocation: its arguments are [`Span`]s of the input.
//! * [`Args`] is how a request's arguments are handed around: borrowed, `Copy`, indexed like a slice. [`OwnedArgs`]
//!   keeps a request for later.
//! * [`Reply`] appends replies to a byte vector in the protocol version of the connection.
//! * [`format`](mod@format) has the number formats that requests and replies share with stored values.
//! * [`split_args`] splits a line into arguments by the quoting rules of inline requests and configuration files.
//!
//! Nothing here trusts the input: a length that is merely claimed reserves no memory, and every malformed request is a
//! [`ProtocolError`].

mod args;
mod error;
pub mod format;
pub mod glob;
mod grisu;
mod inline;
mod parser;
mod partial;
mod receiving;
mod repeat;
mod reply;

pub use args::{Args, OwnedArgs, Span};
pub use error::ProtocolError;
pub use inline::{Unbalanced, split_args};
pub use parser::{Limits, Parsed, Parser};
pub use partial::BIG_ARG;
pub use repeat::Repeat;
pub use reply::{Mark, Reply, Version};
