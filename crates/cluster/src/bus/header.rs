//! The full header of 2,256 bytes: the sender, its view of the cluster, and the slots it owns.
//!
//! | bytes | field |
//! | ---: | --- |
//! | 0 | signature `RCmb` |
//! | 4 | total length of the message |
//! | 8 | version, 1 |
//! | 10 | sender's client port (TLS if the bus uses TLS) |
//! | 12 | type |
//! | 14 | number of gossip entries |
//! | 16 | current epoch |
//! | 24 | config epoch |
//! | 32 | replication offset |
//! | 40 | sender's name |
//! | 80 | slots |
//! | 2128 | name of the sender's primary, or zeros |
//! | 2168 | sender's IP address, if it announces one |
//! | 2214 | number of extensions |
//! | 2216 | 30 bytes, unused |
//! | 2246 | the other client port (TLS if the bus does not use TLS) |
//! | 2248 | bus port |
//! | 2250 | node flags |
//! | 2252 | state of the cluster as the sender sees it |
//! | 2253 | message flags, 3 bytes; only the first is used |

use super::wire::{Reader, write_address, write_zeros};
use super::{DecodeError, EncodeError};
use crate::Epoch;
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use crate::slots::SlotsRef;
use bitflags::bitflags;

/// What all messages begin with.
pub(super) const SIGNATURE: [u8; 4] = *b"RCmb";

/// The only version.
pub(super) const VERSION: u16 = 1;

/// Bytes at the end of the header that have no meaning yet.
const UNUSED_BYTES: usize = 30;

bitflags! {
    /// What a message says about itself. Bits without a name are kept.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct MessageFlags: u8 {
        /// The sender is a primary that has paused its clients for a manual failover.
        const PAUSED = 1 << 0;
        /// A vote is requested although the primary works (manual failover).
        const FORCE_ACK = 1 << 1;
        /// The sender understands extensions. Without this flag a message has none.
        const EXTENSIONS = 1 << 2;
        const _ = !0;
    }
}

/// Whether a node sees enough of the cluster to serve it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ClusterState {
    /// 0 on the bus.
    Ok,
    /// 1 on the bus; other values count as this.
    #[default]
    Fail,
}

/// The full header, except for what the rest of the message determines: type, lengths and counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Header<'a> {
    /// The highest epoch that the sender knows.
    pub current_epoch: Epoch,
    /// The epoch of `slots`: the sender's own, or that of its primary if it is a replica.
    pub config_epoch: Epoch,
    /// Bytes of replication stream that the sender has produced, or processed if it is a replica.
    pub replication_offset: u64,
    /// Its name.
    pub sender: NodeId,
    /// The slots that the sender owns, or its primary if it is a replica.
    pub slots: SlotsRef<'a>,
    /// Its primary, if it is a replica.
    pub primary: Option<NodeId>,
    /// The IP address that the sender announces. If empty, receivers use the address of the connection.
    pub ip: &'a str,
    /// Client port: TLS if the bus uses TLS, otherwise TCP.
    pub port: u16,
    /// The other client port: TCP if the bus uses TLS, otherwise TLS. 0 if it has none.
    pub secondary_port: u16,
    /// Port of the cluster bus.
    pub bus_port: u16,
    /// What the sender is.
    pub flags: NodeFlags,
    /// The state of the cluster as the sender sees it.
    pub state: ClusterState,
    /// What the message says about itself. A message with extensions is written with
    /// [`MessageFlags::EXTENSIONS`] even if that is missing here.
    pub message_flags: MessageFlags,
}

/// The first 16 bytes of any message. They are all of a light header, whose port and count mean nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefix {
    pub(super) total_bytes: u32,
    pub(super) version: u16,
    pub(super) port: u16,
    pub(super) kind: u16,
    pub(super) gossip_count: u16,
}

impl Prefix {
    /// Reads the prefix. Checks only the signature.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Prefix, DecodeError> {
        if *reader.array()? != SIGNATURE {
            return Err(DecodeError::Signature);
        }
        Ok(Prefix {
            total_bytes: reader.u32()?,
            version: reader.u16()?,
            port: reader.u16()?,
            kind: reader.u16()?,
            gossip_count: reader.u16()?,
        })
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&SIGNATURE);
        out.extend_from_slice(&self.total_bytes.to_be_bytes());
        for field in [self.version, self.port, self.kind, self.gossip_count] {
            out.extend_from_slice(&field.to_be_bytes());
        }
    }
}

impl<'a> Header<'a> {
    /// Reads what follows the prefix. Also returns the number of extensions, 0 if the flags say that there are none.
    pub(super) fn read(prefix: &Prefix, reader: &mut Reader<'a>) -> Result<(Header<'a>, u16), DecodeError> {
        let current_epoch = reader.u64()?;
        let config_epoch = reader.u64()?;
        let replication_offset = reader.u64()?;
        let sender = reader.node_id()?;
        let slots = SlotsRef::new(reader.array()?);
        let primary = reader.optional_node_id()?;
        let ip = reader.address()?;
        let extension_count = reader.u16()?;
        reader.bytes(UNUSED_BYTES)?;
        let secondary_port = reader.u16()?;
        let bus_port = reader.u16()?;
        let flags = NodeFlags::from_bits_retain(reader.u16()?);
        let state = if reader.u8()? == 0 { ClusterState::Ok } else { ClusterState::Fail };
        let [first, _, _] = *reader.array()?;
        let message_flags = MessageFlags::from_bits_retain(first);
        let header = Header {
            current_epoch,
            config_epoch,
            replication_offset,
            sender,
            slots,
            primary,
            ip,
            port: prefix.port,
            secondary_port,
            bus_port,
            flags,
            state,
            message_flags,
        };
        let has_extensions = message_flags.contains(MessageFlags::EXTENSIONS);
        Ok((header, if has_extensions { extension_count } else { 0 }))
    }

    /// Appends what follows the prefix.
    pub(super) fn write(&self, out: &mut Vec<u8>, extension_count: u16) -> Result<(), EncodeError> {
        for number in [self.current_epoch, self.config_epoch, self.replication_offset] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.extend_from_slice(self.sender.as_bytes());
        self.slots.write(out);
        match &self.primary {
            Some(primary) => out.extend_from_slice(primary.as_bytes()),
            None => write_zeros(out, NodeId::LEN),
        }
        write_address(out, self.ip)?;
        out.extend_from_slice(&extension_count.to_be_bytes());
        write_zeros(out, UNUSED_BYTES);
        for number in [self.secondary_port, self.bus_port, self.flags.bits()] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        out.push(u8::from(self.state == ClusterState::Fail));
        let mut message_flags = self.message_flags;
        message_flags
            .set(MessageFlags::EXTENSIONS, extension_count > 0 || message_flags.contains(MessageFlags::EXTENSIONS));
        out.extend_from_slice(&[message_flags.bits(), 0, 0]);
        Ok(())
    }
}
