//! Gossip entries of PING, PONG and MEET: what the sender knows of other nodes.
//!
//! An entry has 104 bytes: the node's name (40 bytes); the times of the last PING and PONG (4 each); its IP address
//! (46), client port, bus port, flags and other client port (2 each); and 2 unused bytes.
//!
//! In a large cluster most of the work is gossip that tells nothing new. [`Gossip::received`] gives access to the few
//! bytes that tell whether it does, and [`Gossip::encoded`] sends entries that were encoded before.

use super::wire::{Reader, is_terminated_address, write_address};
use super::{ADDRESS_BYTES, DecodeError, EncodeError, GOSSIP_ENTRY_BYTES};
use crate::flags::NodeFlags;
use crate::node_id::{NodeId, is_name};
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

/// Places in an entry.
const PING_SENT: usize = NodeId::LEN;
const PONG_RECEIVED: usize = PING_SENT + 4;
const ADDRESS: usize = PONG_RECEIVED + 4;
const FLAGS: usize = ADDRESS + ADDRESS_BYTES + 4;

/// A gossip entry that was received and checked.
#[derive(Clone, Copy)]
pub(crate) struct ReceivedEntry<'a>(&'a [u8; GOSSIP_ENTRY_BYTES]);

/// The gossip entries of a message: received, or to be sent.
#[derive(Clone, Copy)]
pub struct Gossip<'a>(Source<'a>);

#[derive(Clone, Copy)]
enum Source<'a> {
    /// Checked when the message was decoded, or made by [`GossipEntry::encode`].
    Encoded(&'a [[u8; GOSSIP_ENTRY_BYTES]]),
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

    /// Whether [`GossipEntry::read`] succeeds. Looks only at what can be wrong.
    fn check(bytes: &[u8; GOSSIP_ENTRY_BYTES]) -> Result<(), DecodeError> {
        let (name, rest) = bytes.split_first_chunk().ok_or(DecodeError::Truncated)?;
        if !is_name(name) {
            return Err(DecodeError::NodeId);
        }
        let address = rest.get(ADDRESS - NodeId::LEN..).and_then(<[u8]>::first_chunk).ok_or(DecodeError::Truncated)?;
        if is_terminated_address(address) { Ok(()) } else { Err(DecodeError::Address) }
    }

    /// The entry as it is in a message. Fails if the address cannot be sent.
    pub(crate) fn encode(&self) -> Option<[u8; GOSSIP_ENTRY_BYTES]> {
        let mut bytes = Vec::with_capacity(GOSSIP_ENTRY_BYTES);
        self.write(&mut bytes).ok()?;
        bytes.as_slice().try_into().ok()
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
        entries.iter().try_for_each(GossipEntry::check)?;
        Ok(Gossip(Source::Encoded(entries)))
    }

    pub(super) fn write(self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        match self.0 {
            Source::Encoded(entries) => {
                out.extend_from_slice(entries.as_flattened());
                Ok(())
            }
            Source::ToSend(entries) => entries.iter().try_for_each(|entry| entry.write(out)),
        }
    }

    /// Entries made by [`GossipEntry::encode`], with their times.
    pub(crate) fn encoded(entries: &'a [[u8; GOSSIP_ENTRY_BYTES]]) -> Gossip<'a> {
        Gossip(Source::Encoded(entries))
    }

    /// The entries of a received message, not decoded. None if the entries are to be sent.
    pub(crate) fn received(self) -> impl Iterator<Item = ReceivedEntry<'a>> {
        let Source::Encoded(entries) = self.0 else { return [].iter().map(ReceivedEntry) };
        entries.iter().map(ReceivedEntry)
    }

    /// Number of entries.
    pub fn len(self) -> usize {
        match self.0 {
            Source::Encoded(entries) => entries.len(),
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
            Source::Encoded(entries) => (entries, [].as_slice()),
            Source::ToSend(entries) => ([].as_slice(), entries),
        };
        // All that were received can be read: `read` has tried.
        received.iter().filter_map(|entry| GossipEntry::read(entry).ok()).chain(to_send.iter().copied())
    }
}

impl<'a> ReceivedEntry<'a> {
    /// The name.
    pub(crate) fn name(self) -> &'a [u8; NodeId::LEN] {
        // Never empty: the entry is longer.
        self.0.first_chunk().unwrap_or(&[0; NodeId::LEN])
    }

    /// [`GossipEntry::pong_received`].
    pub(crate) fn pong_received(self) -> u32 {
        u32::from_be_bytes(self.part::<PONG_RECEIVED, 4>())
    }

    /// [`GossipEntry::flags`].
    pub(crate) fn flags(self) -> NodeFlags {
        NodeFlags::from_bits_retain(u16::from_be_bytes(self.part::<FLAGS, 2>()))
    }

    /// The whole entry. `None` only if it was not checked.
    pub(crate) fn decode(self) -> Option<GossipEntry<'a>> {
        GossipEntry::read(self.0).ok()
    }

    fn part<const PLACE: usize, const BYTES: usize>(self) -> [u8; BYTES] {
        let mut part = [0; BYTES];
        part.copy_from_slice(&self.0[PLACE..PLACE + BYTES]);
        part
    }
}

/// Writes the times of an entry, in seconds of Unix time.
pub(crate) fn set_times(entry: &mut [u8; GOSSIP_ENTRY_BYTES], ping_sent: u32, pong_received: u32) {
    entry[PING_SENT..PONG_RECEIVED].copy_from_slice(&ping_sent.to_be_bytes());
    entry[PONG_RECEIVED..ADDRESS].copy_from_slice(&pong_received.to_be_bytes());
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_checked_entry_can_be_read(
            name in "[a-z0-9]{40}|[a-z0-9]{39}[A-Z/:`{]",
            address in "[0-9a-f.:]{0,46}|[a-z@ .é]{0,20}",
            rest in prop::array::uniform8(any::<u8>()),
        ) {
            let mut entry = [0; GOSSIP_ENTRY_BYTES];
            entry[..NodeId::LEN].copy_from_slice(name.as_bytes());
            entry[PING_SENT..ADDRESS].copy_from_slice(&rest);
            entry[ADDRESS..ADDRESS + address.len()].copy_from_slice(address.as_bytes());
            let read = GossipEntry::read(&entry);
            prop_assert_eq!(GossipEntry::check(&entry), read.map(|_| ()));
            if let Ok(read) = read {
                let received = ReceivedEntry(&entry);
                prop_assert_eq!(received.name(), read.node.as_bytes());
                prop_assert_eq!((received.pong_received(), received.flags()), (read.pong_received, read.flags));
                prop_assert_eq!(read.encode(), Some(entry));
            }
        }
    }
}
