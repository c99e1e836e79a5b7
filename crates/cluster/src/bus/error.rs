//! What can be wrong with one message. The connection remains usable after any of these.

use std::fmt;

/// Why bytes are not a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DecodeError {
    /// It does not begin with `RCmb`.
    Signature,
    /// Its version is not 1.
    Version(u16),
    /// The announced length differs from the number of bytes.
    Length,
    /// It ends before its last field does.
    Truncated,
    /// This many bytes follow its last field.
    TrailingBytes(usize),
    /// A light header with a type that cannot have one.
    LightType(u16),
    /// A name of a node has other characters than lower-case letters and digits.
    NodeId,
    /// An IP address lacks its zero byte, or could not be stored in `nodes.conf`.
    Address,
    /// The length of an extension is below 8 or not a multiple of 8.
    ExtensionLength(u32),
}

/// Why a message cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EncodeError {
    /// An IP address is longer than 45 bytes, or could not be stored in `nodes.conf`.
    Address,
    /// The text of an extension has a zero byte or could not be stored in `nodes.conf`, or the data of an unknown
    /// one is not a multiple of 8 bytes.
    Extension,
    /// More than 65,535 gossip entries or extensions, or more bytes than a message of its type may have.
    TooLarge,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DecodeError::Signature => f.write_str("bad signature"),
            DecodeError::Version(version) => write!(f, "unsupported version {version}"),
            DecodeError::Length => f.write_str("the announced length differs from the number of bytes"),
            DecodeError::Truncated => f.write_str("the message ends within a field"),
            DecodeError::TrailingBytes(bytes) => write!(f, "{bytes} bytes after the last field"),
            DecodeError::LightType(number) => write!(f, "messages of type {number} cannot have a light header"),
            DecodeError::NodeId => f.write_str("invalid node ID"),
            DecodeError::Address => f.write_str("invalid IP address"),
            DecodeError::ExtensionLength(length) => write!(f, "invalid length {length} of an extension"),
        }
    }
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EncodeError::Address => "invalid IP address",
            EncodeError::Extension => "invalid extension",
            EncodeError::TooLarge => "the message is too large",
        })
    }
}

impl std::error::Error for DecodeError {}
impl std::error::Error for EncodeError {}
