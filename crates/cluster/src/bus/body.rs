//! What follows the header of a message.

use super::extension::Extensions;
use super::gossip::Gossip;
use super::wire::Reader;
use super::{DecodeError, EncodeError};
use crate::Epoch;
use crate::node_id::NodeId;
use crate::slots::SlotsRef;

/// Types of messages, with their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u16)]
pub enum MessageType {
    /// A heartbeat. The receiver answers with a PONG.
    Ping = 0,
    /// The answer to PING and MEET, or a broadcast of the sender's changed state.
    Pong = 1,
    /// A PING that asks the receiver to add the sender to its nodes.
    Meet = 2,
    /// A node has failed.
    Fail = 3,
    /// A message for subscribers of a channel.
    Publish = 4,
    /// A replica asks for a vote, to replace its failed primary.
    FailoverAuthRequest = 5,
    /// A vote.
    FailoverAuthAck = 6,
    /// The slots of a node, for a sender with an outdated view.
    Update = 7,
    /// A replica asks its primary to pause clients for a manual failover.
    ManualFailoverStart = 8,
    /// A message between modules.
    Module = 9,
    /// A message for subscribers of a shard channel.
    PublishShard = 10,
}

/// What PING, PONG and MEET say besides the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ping<'a> {
    /// Other nodes as the sender sees them.
    pub gossip: Gossip<'a>,
    /// Properties of the sender.
    pub extensions: Extensions<'a>,
}

/// A message for subscribers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Publish<'a> {
    /// The channel.
    pub channel: &'a [u8],
    /// What to deliver.
    pub message: &'a [u8],
}

/// The slots of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Update<'a> {
    /// The node, which need not be the sender.
    pub node: NodeId,
    /// The epoch of its slots.
    pub config_epoch: Epoch,
    /// The slots it owns.
    pub slots: SlotsRef<'a>,
}

/// A message between modules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ModuleMessage<'a> {
    /// The sending module's ID, as the bytes are on the bus. Valkey writes the integer in the byte order of the
    /// sender's CPU.
    pub module_id: [u8; 8],
    /// The module's own type of message.
    pub kind: u8,
    /// The message.
    pub payload: &'a [u8],
}

/// What follows a full header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Body<'a> {
    /// See [`MessageType::Ping`].
    Ping(Ping<'a>),
    /// See [`MessageType::Pong`].
    Pong(Ping<'a>),
    /// See [`MessageType::Meet`].
    Meet(Ping<'a>),
    /// The node that has failed.
    Fail(NodeId),
    /// See [`MessageType::Publish`].
    Publish(Publish<'a>),
    /// See [`MessageType::FailoverAuthRequest`].
    FailoverAuthRequest,
    /// See [`MessageType::FailoverAuthAck`].
    FailoverAuthAck,
    /// See [`MessageType::Update`].
    Update(Update<'a>),
    /// See [`MessageType::ManualFailoverStart`].
    ManualFailoverStart,
    /// See [`MessageType::Module`].
    Module(ModuleMessage<'a>),
    /// See [`MessageType::PublishShard`].
    PublishShard(Publish<'a>),
    /// A message of a later version. Only its header means something.
    Unknown {
        /// Its type, neither that of another body nor with the bit of a light header.
        number: u16,
        /// All bytes after the header.
        data: &'a [u8],
    },
}

/// What follows a light header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LightBody<'a> {
    /// See [`MessageType::Publish`].
    Publish(Publish<'a>),
    /// See [`MessageType::Module`].
    Module(ModuleMessage<'a>),
    /// See [`MessageType::PublishShard`].
    PublishShard(Publish<'a>),
}

impl MessageType {
    /// All types, each at the index of its number.
    pub const ALL: [MessageType; 11] = [
        MessageType::Ping,
        MessageType::Pong,
        MessageType::Meet,
        MessageType::Fail,
        MessageType::Publish,
        MessageType::FailoverAuthRequest,
        MessageType::FailoverAuthAck,
        MessageType::Update,
        MessageType::ManualFailoverStart,
        MessageType::Module,
        MessageType::PublishShard,
    ];

    /// Its number on the bus.
    pub fn number(self) -> u16 {
        self as u16
    }

    /// The type with this number.
    pub fn from_number(number: u16) -> Option<MessageType> {
        MessageType::ALL.get(usize::from(number)).copied()
    }

    /// Its name in log lines and in the statistics of CLUSTER INFO.
    pub fn name(self) -> &'static str {
        match self {
            MessageType::Ping => "ping",
            MessageType::Pong => "pong",
            MessageType::Meet => "meet",
            MessageType::Fail => "fail",
            MessageType::Publish => "publish",
            MessageType::FailoverAuthRequest => "auth-req",
            MessageType::FailoverAuthAck => "auth-ack",
            MessageType::Update => "update",
            MessageType::ManualFailoverStart => "mfstart",
            MessageType::Module => "module",
            MessageType::PublishShard => "publishshard",
        }
    }

    /// Whether it may have a light header.
    pub fn may_be_light(self) -> bool {
        matches!(self, MessageType::Publish | MessageType::Module | MessageType::PublishShard)
    }
}

impl<'a> Ping<'a> {
    fn read(reader: &mut Reader<'a>, gossip_count: u16, extension_count: u16) -> Result<Ping<'a>, DecodeError> {
        Ok(Ping { gossip: Gossip::read(reader, gossip_count)?, extensions: Extensions::read(reader, extension_count)? })
    }
}

impl<'a> Publish<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Publish<'a>, DecodeError> {
        let (channel_bytes, message_bytes) = (reader.u32()?, reader.u32()?);
        Ok(Publish { channel: reader.bytes(channel_bytes as usize)?, message: reader.bytes(message_bytes as usize)? })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        for part in [self.channel, self.message] {
            out.extend_from_slice(&u32::try_from(part.len()).map_err(|_| EncodeError::TooLarge)?.to_be_bytes());
        }
        out.extend_from_slice(self.channel);
        out.extend_from_slice(self.message);
        Ok(())
    }
}

impl<'a> Update<'a> {
    fn read(reader: &mut Reader<'a>) -> Result<Update<'a>, DecodeError> {
        let config_epoch = reader.u64()?;
        Ok(Update { config_epoch, node: reader.node_id()?, slots: SlotsRef::new(reader.array()?) })
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.config_epoch.to_be_bytes());
        out.extend_from_slice(self.node.as_bytes());
        self.slots.write(out);
    }
}

impl<'a> ModuleMessage<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<ModuleMessage<'a>, DecodeError> {
        let module_id = *reader.array()?;
        let payload_bytes = reader.u32()?;
        Ok(ModuleMessage { module_id, kind: reader.u8()?, payload: reader.bytes(payload_bytes as usize)? })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(&self.module_id);
        out.extend_from_slice(&u32::try_from(self.payload.len()).map_err(|_| EncodeError::TooLarge)?.to_be_bytes());
        out.push(self.kind);
        out.extend_from_slice(self.payload);
        Ok(())
    }
}

impl<'a> Body<'a> {
    /// Its type. `None` if it is unknown.
    pub fn message_type(&self) -> Option<MessageType> {
        MessageType::from_number(self.number())
    }

    /// The number of its type.
    pub(super) fn number(&self) -> u16 {
        match self {
            Body::Ping(_) => MessageType::Ping.number(),
            Body::Pong(_) => MessageType::Pong.number(),
            Body::Meet(_) => MessageType::Meet.number(),
            Body::Fail(_) => MessageType::Fail.number(),
            Body::Publish(_) => MessageType::Publish.number(),
            Body::FailoverAuthRequest => MessageType::FailoverAuthRequest.number(),
            Body::FailoverAuthAck => MessageType::FailoverAuthAck.number(),
            Body::Update(_) => MessageType::Update.number(),
            Body::ManualFailoverStart => MessageType::ManualFailoverStart.number(),
            Body::Module(_) => MessageType::Module.number(),
            Body::PublishShard(_) => MessageType::PublishShard.number(),
            Body::Unknown { number, .. } => *number,
        }
    }

    /// Gossip and extensions, of the types that have them.
    pub fn ping(&self) -> Option<&Ping<'a>> {
        match self {
            Body::Ping(ping) | Body::Pong(ping) | Body::Meet(ping) => Some(ping),
            _ => None,
        }
    }

    pub(super) fn read(
        number: u16,
        gossip_count: u16,
        extension_count: u16,
        reader: &mut Reader<'a>,
    ) -> Result<Body<'a>, DecodeError> {
        let Some(kind) = MessageType::from_number(number) else {
            return Ok(Body::Unknown { number, data: reader.bytes(reader.0.len())? });
        };
        Ok(match kind {
            MessageType::Ping => Body::Ping(Ping::read(reader, gossip_count, extension_count)?),
            MessageType::Pong => Body::Pong(Ping::read(reader, gossip_count, extension_count)?),
            MessageType::Meet => Body::Meet(Ping::read(reader, gossip_count, extension_count)?),
            MessageType::Fail => Body::Fail(reader.node_id()?),
            MessageType::Publish => Body::Publish(Publish::read(reader)?),
            MessageType::FailoverAuthRequest => Body::FailoverAuthRequest,
            MessageType::FailoverAuthAck => Body::FailoverAuthAck,
            MessageType::Update => Body::Update(Update::read(reader)?),
            MessageType::ManualFailoverStart => Body::ManualFailoverStart,
            MessageType::Module => Body::Module(ModuleMessage::read(reader)?),
            MessageType::PublishShard => Body::PublishShard(Publish::read(reader)?),
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            Body::Ping(ping) | Body::Pong(ping) | Body::Meet(ping) => {
                ping.gossip.write(out)?;
                ping.extensions.write(out)?;
            }
            Body::Fail(node) => out.extend_from_slice(node.as_bytes()),
            Body::Publish(publish) | Body::PublishShard(publish) => publish.write(out)?,
            Body::FailoverAuthRequest | Body::FailoverAuthAck | Body::ManualFailoverStart => {}
            Body::Update(update) => update.write(out),
            Body::Module(module) => module.write(out)?,
            Body::Unknown { data, .. } => out.extend_from_slice(data),
        }
        Ok(())
    }
}

impl<'a> LightBody<'a> {
    /// Its type.
    pub fn message_type(&self) -> MessageType {
        match self {
            LightBody::Publish(_) => MessageType::Publish,
            LightBody::Module(_) => MessageType::Module,
            LightBody::PublishShard(_) => MessageType::PublishShard,
        }
    }

    pub(super) fn read(number: u16, reader: &mut Reader<'a>) -> Result<LightBody<'a>, DecodeError> {
        match MessageType::from_number(number) {
            Some(MessageType::Publish) => Publish::read(reader).map(LightBody::Publish),
            Some(MessageType::Module) => ModuleMessage::read(reader).map(LightBody::Module),
            Some(MessageType::PublishShard) => Publish::read(reader).map(LightBody::PublishShard),
            _ => Err(DecodeError::LightType(number)),
        }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self {
            LightBody::Publish(publish) | LightBody::PublishShard(publish) => publish.write(out),
            LightBody::Module(module) => module.write(out),
        }
    }
}
