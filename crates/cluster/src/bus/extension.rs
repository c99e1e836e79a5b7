//! Extensions of PING, PONG and MEET: properties of the sender that the header has no room for.
//!
//! An extension begins with its length including this header (4 bytes), its number (2 bytes) and 2 unused bytes. Its
//! data follows, padded with zeros to a multiple of 8 bytes. Valkey sends them in the order 0, 1, 4, 5, 6, 7, 8, 2,
//! 3, and only those that it has something to say about.
//!
//! | number | extension | data | bytes in total |
//! | ---: | --- | --- | ---: |
//! | 0 | host name | text and a zero byte | varies |
//! | 1 | human-readable node name | text and a zero byte | varies |
//! | 2 | forgotten node | name; seconds, 8 bytes | 56 |
//! | 3 | shard | name | 48 |
//! | 4 | IPv4 address for clients | text and a zero byte | varies |
//! | 5 | IPv6 address for clients | text and a zero byte | varies |
//! | 6 | TCP port for clients | 2 bytes | 16 |
//! | 7 | TLS port for clients | 2 bytes | 16 |
//! | 8 | availability zone | text and a zero byte | varies |
//!
//! Valkey 9.1 sends all of these, Valkey 8.1 none above 5. A receiver that misses an extension of a kind takes the
//! property as unset. Data that has the wrong size, or could not be stored in `nodes.conf`, is treated as an
//! extension of an unknown kind, so that a strange property does not hide the rest of the message.

use super::wire::{Reader, terminated_text, write_zeros};
use super::{DecodeError, EncodeError};
use crate::field;
use crate::node_id::NodeId;
use std::fmt;

/// Bytes before the data.
const HEADER_BYTES: usize = 8;

/// What lengths are multiples of.
const ALIGNMENT: usize = 8;

/// A property of the sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extension<'a> {
    /// The host name that the sender announces.
    Hostname(&'a str),
    /// Its name for people, in log lines.
    HumanNodeName(&'a str),
    /// A node that the sender was told to forget (CLUSTER FORGET).
    ForgottenNode {
        /// Its name.
        node: NodeId,
        /// For how many seconds it must not be added again.
        ttl_seconds: u64,
    },
    /// The shard that the sender is in.
    ShardId(NodeId),
    /// The IPv4 address that clients are redirected to.
    ClientIpv4(&'a str),
    /// The IPv6 address that clients are redirected to.
    ClientIpv6(&'a str),
    /// The TCP port that clients are redirected to.
    ClientPort(u16),
    /// The TLS port that clients are redirected to.
    ClientTlsPort(u16),
    /// The availability zone that the sender runs in.
    AvailabilityZone(&'a str),
    /// An extension of an unknown kind, or with unusable data. Receivers ignore it.
    Unknown {
        /// Its number.
        number: u16,
        /// Its data with padding: a multiple of 8 bytes.
        data: &'a [u8],
    },
}

/// The extensions of a message: received, or to be sent.
#[derive(Clone, Copy)]
pub struct Extensions<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    /// This many bytes with this many extensions, checked when the message was decoded.
    Received(&'a [u8], u16),
    ToSend(&'a [Extension<'a>]),
}

impl<'a> Extension<'a> {
    /// Its number.
    pub fn number(&self) -> u16 {
        match self {
            Extension::Hostname(_) => 0,
            Extension::HumanNodeName(_) => 1,
            Extension::ForgottenNode { .. } => 2,
            Extension::ShardId(_) => 3,
            Extension::ClientIpv4(_) => 4,
            Extension::ClientIpv6(_) => 5,
            Extension::ClientPort(_) => 6,
            Extension::ClientTlsPort(_) => 7,
            Extension::AvailabilityZone(_) => 8,
            Extension::Unknown { number, .. } => *number,
        }
    }

    fn read(reader: &mut Reader<'a>) -> Result<Extension<'a>, DecodeError> {
        let length = reader.u32()?;
        let number = reader.u16()?;
        reader.u16()?;
        let data_bytes = (length as usize).checked_sub(HEADER_BYTES).filter(|bytes| bytes % ALIGNMENT == 0);
        let data = reader.bytes(data_bytes.ok_or(DecodeError::ExtensionLength(length))?)?;
        Ok(Extension::interpret(number, data).unwrap_or(Extension::Unknown { number, data }))
    }

    /// What data means. `None` if the kind is unknown or the data unusable.
    fn interpret(number: u16, data: &'a [u8]) -> Option<Extension<'a>> {
        let value = || terminated_text(data).filter(|text| field::is_value(text));
        let port = || data.first_chunk().filter(|_| data.len() == ALIGNMENT).map(|bytes| u16::from_be_bytes(*bytes));
        Some(match number {
            0 => Extension::Hostname(terminated_text(data).filter(|text| field::is_host(text))?),
            1 => Extension::HumanNodeName(value()?),
            2 => {
                let (name, seconds) = data.split_first_chunk()?;
                let ttl_seconds = u64::from_be_bytes(seconds.try_into().ok()?);
                Extension::ForgottenNode { node: NodeId::new(*name).ok()?, ttl_seconds }
            }
            3 => Extension::ShardId(NodeId::new(data.try_into().ok()?).ok()?),
            4 => Extension::ClientIpv4(value()?),
            5 => Extension::ClientIpv6(value()?),
            6 => Extension::ClientPort(port()?),
            7 => Extension::ClientTlsPort(port()?),
            8 => Extension::AvailabilityZone(value()?),
            _ => return None,
        })
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        write_zeros(out, HEADER_BYTES);
        match *self {
            Extension::Hostname(text) if field::is_host(text) => write_text(out, text),
            Extension::HumanNodeName(text)
            | Extension::ClientIpv4(text)
            | Extension::ClientIpv6(text)
            | Extension::AvailabilityZone(text)
                if field::is_value(text) =>
            {
                write_text(out, text);
            }
            Extension::ForgottenNode { node, ttl_seconds } => {
                out.extend_from_slice(node.as_bytes());
                out.extend_from_slice(&ttl_seconds.to_be_bytes());
            }
            Extension::ShardId(shard) => out.extend_from_slice(shard.as_bytes()),
            Extension::ClientPort(port) | Extension::ClientTlsPort(port) => {
                out.extend_from_slice(&port.to_be_bytes());
                write_zeros(out, ALIGNMENT - 2);
            }
            Extension::Unknown { data, .. } if data.len() % ALIGNMENT == 0 => out.extend_from_slice(data),
            _ => return Err(EncodeError::Extension),
        }
        let length = u32::try_from(out.len() - start).map_err(|_| EncodeError::TooLarge)?;
        out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        out[start + 4..start + 6].copy_from_slice(&self.number().to_be_bytes());
        Ok(())
    }
}

/// Appends a text, its zero byte and padding.
fn write_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    write_zeros(out, (text.len() + 1).next_multiple_of(ALIGNMENT) - text.len());
}

impl<'a> Extensions<'a> {
    /// No extensions.
    pub const NONE: Extensions<'static> = Extensions(Source::ToSend(&[]));

    pub(super) fn read(reader: &mut Reader<'a>, count: u16) -> Result<Extensions<'a>, DecodeError> {
        let start = reader.0;
        for _ in 0..count {
            Extension::read(reader)?;
        }
        Ok(Extensions(Source::Received(&start[..start.len() - reader.0.len()], count)))
    }

    pub(super) fn write(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.iter().try_for_each(|extension| extension.write(out))
    }

    /// Number of extensions.
    pub fn len(self) -> usize {
        match self.0 {
            Source::Received(_, count) => usize::from(count),
            Source::ToSend(extensions) => extensions.len(),
        }
    }

    /// Whether there are no extensions.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The extensions in their order.
    pub fn iter(self) -> impl Iterator<Item = Extension<'a>> {
        let (received, count, to_send) = match self.0 {
            Source::Received(bytes, count) => (bytes, count, [].as_slice()),
            Source::ToSend(extensions) => ([].as_slice(), 0, extensions),
        };
        let mut reader = Reader(received);
        // All that were received can be read: `Extensions::read` has tried.
        (0..count).map_while(move |_| Extension::read(&mut reader).ok()).chain(to_send.iter().copied())
    }
}

impl<'a> From<&'a [Extension<'a>]> for Extensions<'a> {
    fn from(extensions: &'a [Extension<'a>]) -> Extensions<'a> {
        Extensions(Source::ToSend(extensions))
    }
}

impl PartialEq for Extensions<'_> {
    fn eq(&self, other: &Extensions<'_>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Extensions<'_> {}

impl fmt::Debug for Extensions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
