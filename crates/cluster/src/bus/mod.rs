//! Messages of the cluster bus, version 1, as Valkey 9.1 sends and accepts them.
//!
//! A TCP connection between the bus ports of two nodes carries a sequence of messages. [`split_frame`] finds the
//! first message in received bytes, [`Message::decode`] reads it, and [`Message::encode`] appends one to a buffer.
//! All integers are big-endian.
//!
//! Every message begins with 16 bytes: the signature `RCmb`, the total length, the version, a port, the type and a
//! number of gossip entries. Most messages continue with the rest of a header of 2,256 bytes, which describes the
//! sender and the slots it owns (module `header`), so that any message brings news of its sender. Published messages
//! and messages of modules may have a **light header** instead, the 16 bytes alone: the type then has its highest bit
//! set. They are accepted only on connections whose other end is known.
//!
//! | type | message | after the header |
//! | ---: | --- | --- |
//! | 0, 1, 2 | PING, PONG, MEET | 104 bytes per gossip entry (module `gossip`), then extensions (module `extension`) |
//! | 3 | FAIL | the failed node's name, 40 bytes |
//! | 4, 10 | PUBLISH, PUBLISHSHARD | lengths of channel and message, 4 bytes each; channel; message |
//! | 5, 6 | FAILOVER_AUTH_REQUEST, FAILOVER_AUTH_ACK | nothing |
//! | 7 | UPDATE | config epoch, 8 bytes; node's name, 40 bytes; its slots, 2,048 bytes |
//! | 8 | MFSTART | nothing |
//! | 9 | MODULE | the module's ID, 8 bytes; length of the payload, 4 bytes; the module's own type, 1 byte; payload |
//!
//! Two kinds of faults are to be handled differently, as Valkey does. After a [`FrameError`] the connection cannot be
//! used any more. A [`DecodeError`] concerns one message, which is ignored. Messages and extensions of unknown types
//! are not errors: they decode as [`Body::Unknown`] and [`Extension::Unknown`].
//!
//! Decoding allocates nothing: a [`Message`] borrows channels, payloads, slots, gossip entries and extensions from
//! the bytes it was read from. Everything is checked at once, so that the parts can be iterated without errors.

mod body;
mod error;
mod extension;
mod frame;
mod gossip;
mod header;
mod message;
#[cfg(test)]
mod tests;
mod wire;

pub use body::{Body, LightBody, MessageType, ModuleMessage, Ping, Publish, Update};
pub use error::{DecodeError, EncodeError};
pub use extension::{Extension, Extensions};
pub use frame::{Frame, FrameError, split_frame};
pub(crate) use gossip::set_times;
pub use gossip::{Gossip, GossipEntry};
pub use header::{ClusterState, Header, MessageFlags};
pub use message::Message;

/// Bytes of a full header.
pub const HEADER_BYTES: usize = 2256;

/// Bytes of a light header, and of what all messages begin with.
pub const LIGHT_HEADER_BYTES: usize = 16;

/// Bytes of a gossip entry.
pub const GOSSIP_ENTRY_BYTES: usize = 104;

/// Bytes of an IP address on the bus, including at least one zero byte at its end.
pub const ADDRESS_BYTES: usize = 46;
