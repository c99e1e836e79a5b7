//! Finds the first message in received bytes.
//!
//! The first 16 bytes of a message suffice to check its length against the limit of its type, before the rest has
//! arrived. A receiver that buffers until a frame is complete thus holds at most [`PUBLISH_BYTES_MAX`] bytes for a
//! connection, and much less for all messages except published ones and those of modules. It should let its buffer
//! grow with what arrives, not reserve what [`Frame::Incomplete`] asks for.

use super::body::MessageType;
use super::header::{Prefix, SIGNATURE};
use super::wire::Reader;
use super::{GOSSIP_ENTRY_BYTES, HEADER_BYTES, LIGHT_HEADER_BYTES};
use crate::node_id::NodeId;
use crate::slots::SLOTS_BYTES;
use std::fmt;

/// The bit of the type that marks a light header.
pub(super) const LIGHT: u16 = 0x8000;

/// Bytes that the extensions of a message may have. A forgotten node takes 56.
pub(super) const EXTENSIONS_BYTES_MAX: usize = 1 << 20;

/// Bytes of a message with published data or from a module, which clients choose. Both parts of published data
/// together are far below this unless `proto-max-bulk-len` was raised.
pub(super) const PUBLISH_BYTES_MAX: usize = 1 << 30;

/// Bytes of a message of an unknown type.
pub(super) const UNKNOWN_BYTES_MAX: usize = 16 << 20;

/// What received bytes begin with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// At least this many more bytes are needed.
    Incomplete(usize),
    /// One message, for [`super::Message::decode`]. The next one begins behind it.
    Complete(&'a [u8]),
}

/// Received bytes cannot be divided into messages: the connection must be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// They do not begin with `RCmb`.
    Signature,
    /// The announced length is less than that of the header.
    TooShort(u32),
    /// The announced length is more than a message of its type may have.
    TooLong(u32),
}

/// Finds the first message. `received` begins where the previous message has ended.
pub fn split_frame(received: &[u8]) -> Result<Frame<'_>, FrameError> {
    let signature = &received[..received.len().min(SIGNATURE.len())];
    if !SIGNATURE.starts_with(signature) {
        return Err(FrameError::Signature);
    }
    let Ok(prefix) = Prefix::read(&mut Reader(received)) else {
        return Ok(Frame::Incomplete(LIGHT_HEADER_BYTES.saturating_sub(received.len())));
    };
    let total = prefix.total_bytes as usize;
    if total < header_bytes(prefix.kind) {
        return Err(FrameError::TooShort(prefix.total_bytes));
    }
    if total > bytes_max(prefix.kind, prefix.gossip_count) {
        return Err(FrameError::TooLong(prefix.total_bytes));
    }
    Ok(match received.split_at_checked(total) {
        Some((frame, _)) => Frame::Complete(frame),
        None => Frame::Incomplete(total - received.len()),
    })
}

/// Bytes of the header of a message with this type field.
fn header_bytes(kind: u16) -> usize {
    if kind & LIGHT != 0 { LIGHT_HEADER_BYTES } else { HEADER_BYTES }
}

/// Bytes that a message with this type field and number of gossip entries may have.
pub(super) fn bytes_max(kind: u16, gossip_count: u16) -> usize {
    let header = header_bytes(kind);
    match MessageType::from_number(kind & !LIGHT) {
        Some(MessageType::Ping | MessageType::Pong | MessageType::Meet) => {
            header + usize::from(gossip_count) * GOSSIP_ENTRY_BYTES + EXTENSIONS_BYTES_MAX
        }
        Some(MessageType::Fail) => header + NodeId::LEN,
        Some(MessageType::FailoverAuthRequest | MessageType::FailoverAuthAck | MessageType::ManualFailoverStart) => {
            header
        }
        Some(MessageType::Update) => header + size_of::<u64>() + NodeId::LEN + SLOTS_BYTES,
        Some(MessageType::Publish | MessageType::Module | MessageType::PublishShard) => PUBLISH_BYTES_MAX,
        None => UNKNOWN_BYTES_MAX,
    }
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Signature => f.write_str("bad signature"),
            FrameError::TooShort(length) => write!(f, "message length {length} is less than that of its header"),
            FrameError::TooLong(length) => write!(f, "message length {length} is above the limit of its type"),
        }
    }
}

impl std::error::Error for FrameError {}
