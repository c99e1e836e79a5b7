//! Gossip entries of PING, PONG and MEET: what the sender knows of other nodes.
//!
//! An entry has 104 bytes: the node's name (40 bytes); the times of the last PING and PONG (4 each); its IP address
//! (46), client port, bus port, flags and other client port (2 each); and 2 unused bytes.

use super::wire::{Reader, write_address};
use super::{DecodeError, EncodeError, GOSSIP_ENTRY_BYTES};
use crate::flags::NodeFlags;
use crate::node_id::NodeId;
use std::fmt;

/// One node as another one sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GossipEntry<'a> {
    /// The node's name.
    pub node: NodeId,
    /// When the sender last sent it a PING that it has not answered yet: Unix time in seconds, or 0.
    pub ping_sent: u32,
    /// When the sender last received its PONG: Unix time in seconds, or 0.
    pub pong_received: u32,
    /// Its IP address; empty if it is not known.
    pub ip: &'a str,
    /// Client port: TLS if the bus uses TLS, otherwise TCP.
    pub port: u16,
    /// Port of the cluster bus.
    pub bus_port: u16,
    /// What the node is.
    pub flags: NodeFlags,
    /// The other client port: TCP if the bus uses TLS, otherwise TLS. 0 if it has none.
    pub secondary_port: u16,
}

/// The gossip entries of a message: received, or to be sent.
#[derive(Clone, Copy)]
pub struct Gossip<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    /// Checked when the message was decoded.
    Received(&'a [[u8; GOSSIP_ENTRY_BYTES]]),
    ToSend(&'a [GossipEntry<'a>]),
}

impl<'a> GossipEntry<'a> {
    fn read(bytes: &'a [u8; GOSSIP_ENTRY_BYTES]) -> Result<GossipEntry<'a>, DecodeError> {
        let mut reader = Reader(bytes);
        Ok(GossipEntry {
            node: reader.node_id()?,
            ping_sent: reader.u32()?,
            pong_received: reader.u32()?,
            ip: reader.address()?,
            port: reader.u16()?,
            bus_port: reader.u16()?,
            flags: NodeFlags::from_bits_retain(reader.u16()?),
            secondary_port: reader.u16()?,
        })
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.extend_from_slice(self.node.as_bytes());
        out.extend_from_slice(&self.ping_sent.to_be_bytes());
        out.extend_from_slice(&self.pong_received.to_be_bytes());
        write_address(out, self.ip)?;
        for number in [self.port, self.bus_port, self.flags.bits(), self.secondary_port, 0] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        Ok(())
    }
}

impl<'a> Gossip<'a> {
    /// No entries.
    pub const NONE: Gossip<'static> = Gossip(Source::ToSend(&[]));

    pub(super) fn read(reader: &mut Reader<'a>, count: u16) -> Result<Gossip<'a>, DecodeError> {
        let (entries, _) = reader.bytes(usize::from(count) * GOSSIP_ENTRY_BYTES)?.as_chunks();
        for entry in entries {
            GossipEntry::read(entry)?;
        }
        Ok(Gossip(Source::Received(entries)))
    }

    pub(super) fn write(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        self.iter().try_for_each(|entry| entry.write(out))
    }

    /// Number of entries.
    pub fn len(self) -> usize {
        match self.0 {
            Source::Received(entries) => entries.len(),
            Source::ToSend(entries) => entries.len(),
        }
    }

    /// Whether there are no entries.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The entries in their order.
    pub fn iter(self) -> impl Iterator<Item = GossipEntry<'a>> {
        let (received, to_send) = match self.0 {
            Source::Received(entries) => (entries, [].as_slice()),
            Source::ToSend(entries) => ([].as_slice(), entries),
        };
        // All that were received can be read: `read` has tried.
        received.iter().filter_map(|entry| GossipEntry::read(entry).ok()).chain(to_send.iter().copied())
    }
}

impl<'a> From<&'a [GossipEntry<'a>]> for Gossip<'a> {
    fn from(entries: &'a [GossipEntry<'a>]) -> Gossip<'a> {
        Gossip(Source::ToSend(entries))
    }
}

impl PartialEq for Gossip<'_> {
    fn eq(&self, other: &Gossip<'_>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Gossip<'_> {}

impl fmt::Debug for Gossip<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
