//! Whole messages: header and body, or light header and body.

use super::body::{Body, LightBody, MessageType};
use super::frame::{LIGHT, bytes_max};
use super::header::{Header, Prefix, VERSION};
use super::wire::Reader;
use super::{DecodeError, EncodeError};

/// A message of the cluster bus.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// With a full header.
    Full {
        /// The sender and its slots.
        header: Header<'a>,
        /// What it says.
        body: Body<'a>,
    },
    /// With a light header. The sender is known from the connection.
    Light(LightBody<'a>),
}

impl<'a> Message<'a> {
    /// Reads a message from a frame, which has exactly one. See [`super::split_frame`].
    pub fn decode(frame: &'a [u8]) -> Result<Message<'a>, DecodeError> {
        let mut reader = Reader(frame);
        let prefix = Prefix::read(&mut reader)?;
        if prefix.total_bytes as usize != frame.len() {
            return Err(DecodeError::Length);
        }
        if prefix.version != VERSION {
            return Err(DecodeError::Version(prefix.version));
        }
        let message = if prefix.kind & LIGHT != 0 {
            Message::Light(LightBody::read(prefix.kind & !LIGHT, &mut reader)?)
        } else {
            let (header, extension_count) = Header::read(&prefix, &mut reader)?;
            let body = Body::read(prefix.kind, prefix.gossip_count, extension_count, &mut reader)?;
            Message::Full { header, body }
        };
        if reader.0.is_empty() { Ok(message) } else { Err(DecodeError::TrailingBytes(reader.0.len())) }
    }

    /// Appends the message. If it fails, `out` is as before.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        let start = out.len();
        let result = self.write(out).and_then(|kind| {
            let gossip_count = self.gossip_count()?;
            let total = out.len() - start;
            if total > bytes_max(kind, gossip_count) {
                return Err(EncodeError::TooLarge);
            }
            let total = u32::try_from(total).map_err(|_| EncodeError::TooLarge)?;
            out[start + 4..start + 8].copy_from_slice(&total.to_be_bytes());
            Ok(())
        });
        if result.is_err() {
            out.truncate(start);
        }
        result
    }

    /// Its type. `None` if it is unknown.
    pub fn message_type(&self) -> Option<MessageType> {
        match self {
            Message::Full { body, .. } => body.message_type(),
            Message::Light(body) => Some(body.message_type()),
        }
    }

    /// Appends the message with 0 as its length, and returns its type field.
    fn write(&self, out: &mut Vec<u8>) -> Result<u16, EncodeError> {
        let mut prefix = Prefix { total_bytes: 0, version: VERSION, port: 0, kind: 0, gossip_count: 0 };
        match self {
            Message::Full { header, body } => {
                prefix.kind = body.number();
                prefix.port = header.port;
                prefix.gossip_count = self.gossip_count()?;
                prefix.write(out);
                let extensions = body.ping().map_or(0, |ping| ping.extensions.len());
                header.write(out, u16::try_from(extensions).map_err(|_| EncodeError::TooLarge)?)?;
                body.write(out)?;
            }
            Message::Light(body) => {
                prefix.kind = body.message_type().number() | LIGHT;
                prefix.write(out);
                body.write(out)?;
            }
        }
        Ok(prefix.kind)
    }

    /// Number of gossip entries.
    fn gossip_count(&self) -> Result<u16, EncodeError> {
        let ping = match self {
            Message::Full { body, .. } => body.ping(),
            Message::Light(_) => None,
        };
        u16::try_from(ping.map_or(0, |ping| ping.gossip.len())).map_err(|_| EncodeError::TooLarge)
    }
}
