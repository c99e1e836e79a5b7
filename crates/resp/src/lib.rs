//! The Redis serialization protocol, RESP2 and RESP3: parses requests and writes replies, without I/O.
//!
//! * [`Parser`] finds requests in the bytes that a connection receives, in pieces of any size. A request that
//!   is completely in the input needs no copy and no allocation: its arguments are [`Span`]s of the input.
//! * [`Args`] is how the arguments of a request are passed: borrowed,
//!   `Copy`, indexed like a slice. [`OwnedArgs`] keeps a request for later.
//! * [`Reply`] appends replies to a byte vector in the protocol version of the connection.
//! * [`KeptReply`] is a reply that is encoded once for many clients.
//! * [`SharedBytes`] are large strings that requests, stored values and replies share.
//! * [`format`](mod@format) has the number formats that requests and replies share with stored values.
//! * [`split_args`] splits a line into arguments by the quoting rules of inline requests and configuration files.
//!
//! No input is trusted: a stated length alone reserves no memory, and every malformed request is a [`ProtocolError`].

mod apart;
mod args;
mod error;
pub mod format;
pub mod glob;
mod grisu;
mod inline;
mod kept;
mod pages;
mod parser;
mod partial;
mod receiving;
mod repeat;
mod reply;
mod shared;

pub use apart::parse_apart;
pub use args::{Args, OwnedArgs, Span};
pub use error::ProtocolError;
pub use inline::{Unbalanced, split_args};
pub use kept::KeptReply;
pub use parser::{Limits, Parsed, Parser};
pub use partial::BIG_ARG;
pub use repeat::Repeat;
pub use reply::{Mark, Reply, ReplyBuffer, SharedPart, Version};
pub use shared::{COPIES, LENT_MIN, SHARED_MIN, SharedBytes};
