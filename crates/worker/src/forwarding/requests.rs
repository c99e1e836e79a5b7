//! Sends requests to the nodes that execute them.

use super::answers::null_array;
use super::links::{Peer, Purpose};
use super::{Forwarded, Waits};
use crate::Worker;
use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, CommandInfo};
use kvick_core::clients::ClientFlags;
use kvick_engine::forwarding::{Destination, Expected, may_write};
use kvick_forward::split::{self, Split};
use kvick_forward::{Content, Gather, Merge, Request, Ticket};
use kvick_resp::format::parse_u64;
use kvick_resp::{Args, OwnedArgs, Version};
use kvick_runtime::clock;
use kvick_store::slot::slot;
use std::net::SocketAddr;

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// It was sent, or answered with an error.
    Yes,
    /// It was sent, and the client is stopped until it is answered.
    Alone,
    /// It is to be executed again: the client is stopped until other nodes have answered, or take more.
    Later,
    /// It is to be executed again, and this node executes it.
    Here,
}

/// Why a request cannot be sent now.
enum Unsent {
    /// The client gets this error.
    Refused(&'static str),
    /// A link has no room.
    Full,
}

const NO_OWNER: Unsent = Unsent::Refused("CLUSTERDOWN Hash slot not served");
const INVALID_CURSOR: Unsent = Unsent::Refused("ERR invalid cursor");

/// A request with the connection that it comes from.
#[derive(Clone, Copy)]
struct Sending<'a> {
    token: usize,
    command: &'static CommandInfo,
    args: Args<'a>,
}

impl Sending<'_> {
    /// Whether it may be repeated if it is unknown whether it was executed.
    fn reads(&self) -> bool {
        let flags = self.command.spec.flags;
        flags.contains(Flags::READONLY) && !flags.contains(Flags::WRITE) || self.is_watch()
    }

    fn is_subscription(&self) -> bool {
        self.command.full_name == "ssubscribe"
    }

    fn is_watch(&self) -> bool {
        self.command.full_name == "watch"
    }

    /// Whether a replica may execute it for a client that has sent READONLY.
    fn may_read_replicas(&self) -> bool {
        let is_plain = self.command.class == Class::Data && !self.is_watch() && !self.may_block();
        is_plain && self.reads()
    }

    /// Whether it may wait at the other node, which would hold up everything behind it on a link.
    fn may_block(&self) -> bool {
        let is_stream = matches!(self.command.spec.name, "xread" | "xreadgroup");
        let blocks = || self.args.iter().skip(1).any(|word| word.eq_ignore_ascii_case(b"block"));
        self.command.spec.flags.contains(Flags::BLOCKING) && (!is_stream || blocks())
    }
}

/// A part of a request with the node that executes it.
struct Part {
    peer: Peer,
    slot: Option<u16>,
    request: OwnedArgs,
}

impl Worker {
    /// Whether a connection has sent requests to other nodes.
    pub(crate) fn has_forwarded(&self, token: usize) -> bool {
        self.connections.get(token).is_some_and(|connection| connection.forwarded.is_some())
    }

    /// Sends a request to the nodes that execute it.
    pub(crate) fn send_elsewhere(
        &mut self,
        token: usize,
        command: &'static CommandInfo,
        destination: Destination,
        args: Args<'_>,
    ) -> Sent {
        self.links.routes.update(self.server);
        let generation = self.links.generation();
        let sending = Sending { token, command, args };
        let Some(connection) = self.connections.get_mut(token) else { return Sent::Yes };
        let forwarded = connection.forwarded.get_or_insert_default();
        if !forwarded.queue.is_empty() {
            let is_alone = matches!(destination, Destination::Nowhere | Destination::Writers)
                || sending.may_block()
                || sending.is_watch()
                || sending.is_subscription();
            if forwarded.must_drain() || is_alone || forwarded.generation != generation {
                forwarded.waits = Waits::Replies;
                return Sent::Later;
            }
        }
        forwarded.generation = generation;
        if destination == Destination::Writers {
            return match forwarded.refused.take() {
                Some(error) => self.refuse_forwarding(sending, &error),
                None => self.await_writers(token, args),
            };
        }
        if sending.is_subscription() && destination != Destination::Nowhere {
            return match forwarded.refused.take() {
                Some(error) => self.refuse_forwarding(sending, &error),
                None => self.subscribe_elsewhere(token, args),
            };
        }
        let result = match destination {
            Destination::Slot(slot) => self.send_to_slot(sending, slot),
            Destination::Slots => self.send_parts(sending),
            Destination::Everywhere => self.send_everywhere(sending),
            Destination::Scan => self.send_scan(sending),
            // Nothing is outstanding, so the engine had no reason.
            Destination::Nowhere | Destination::Writers => {
                Err(Unsent::Refused("ERR The request cannot be executed now"))
            }
        };
        match result {
            Ok(sent) => sent,
            Err(Unsent::Full) => {
                if let Some(forwarded) = self.forwarded(token) {
                    forwarded.waits = Waits::Room;
                }
                self.links.stalled.push(token);
                Sent::Later
            }
            Err(Unsent::Refused(text)) => self.refuse_forwarding(sending, text),
        }
    }

    pub(super) fn forwarded(&mut self, token: usize) -> Option<&mut Forwarded> {
        self.connections.get_mut(token)?.forwarded.as_deref_mut()
    }

    /// Answers a request with an error instead of sending it.
    fn refuse_forwarding(&mut self, sending: Sending<'_>, text: &str) -> Sent {
        let reply = format!("-{text}\r\n");
        self.engine.stats.count_error(text.as_bytes());
        if sending.command.spec.flags.contains(Flags::EXECUTES)
            && let Some(connection) = self.connections.get_mut(sending.token)
        {
            self.engine.take_transaction(&mut connection.client);
        }
        self.answer_now(sending, reply.into_bytes());
        Sent::Yes
    }

    /// Answers a request behind those that are outstanding.
    fn answer_now(&mut self, sending: Sending<'_>, reply: Vec<u8>) {
        let Some(connection) = self.connections.get_mut(sending.token) else { return };
        let expected = self.engine.send_elsewhere(&mut connection.client, sending.command, sending.args);
        let Some(forwarded) = connection.forwarded.as_deref_mut() else { return };
        if !expected.wanted {
        } else if forwarded.queue.is_empty() {
            self.replies.bytes.extend_from_slice(&reply);
        } else {
            forwarded.queue.push_ready(reply);
        }
    }

    /// The link for a connection's requests to a node.
    fn peer(&self, token: usize, address: SocketAddr) -> Peer {
        let Some(connection) = self.connections.get(token) else {
            return Peer { address, db: 0, version: Version::Resp2, purpose: Purpose::Requests };
        };
        let client = &connection.client;
        let flags = client.info.flags();
        let purpose = match () {
            () if client.tracking.is_none() => Purpose::Requests,
            () if flags.contains(ClientFlags::NOLOOP) => {
                Purpose::Own { client: client.info.id, broadcasts: flags.contains(ClientFlags::BROADCAST) }
            }
            () if flags.contains(ClientFlags::BROADCAST) => Purpose::Requests,
            () => Purpose::Tracked,
        };
        Peer { address, db: client.db, version: client.version, purpose }
    }

    /// The link for a request to the owner of a slot.
    #[inline]
    fn peer_of_slot(&self, sending: Sending<'_>, slot: u16) -> Result<Peer, Unsent> {
        let token = sending.token;
        let peer = self.links.routes.owner(slot).map(|address| self.peer(token, address)).ok_or(NO_OWNER)?;
        let info = self.connections.get(token).map(|connection| &connection.client.info);
        match info.filter(|info| info.flags().contains(ClientFlags::READONLY)) {
            Some(info) if peer.purpose == Purpose::Requests && sending.may_read_replicas() => {
                let replica = self.links.replica(slot, info.id);
                Ok(replica.map_or(peer, |address| Peer { address, purpose: Purpose::Reads, ..peer }))
            }
            _ => Ok(peer),
        }
    }

    /// Counts a request that is being sent, and expects its reply.
    fn expect(&mut self, sending: Sending<'_>, slot: Option<u16>, gather: Option<Gather>) -> Option<Ticket> {
        let connection = self.connections.get_mut(sending.token)?;
        let Expected { wanted, caches } =
            self.engine.send_elsewhere(&mut connection.client, sending.command, sending.args);
        if let Some(elsewhere) = &mut connection.client.forwarding {
            elsewhere.outstanding = true;
        }
        let forwarded = connection.forwarded.as_deref_mut()?;
        let reply = match gather {
            Some(gather) => forwarded.queue.expect_parts(gather),
            None => forwarded.queue.expect(),
        };
        let client = connection.client.info.id;
        let (connection, writes) = (sending.token, may_write(sending.command));
        Some(Ticket { connection, client, reply, part: 0, wanted, caches, writes, attempts: 0, slot })
    }

    fn send_to_slot(&mut self, sending: Sending<'_>, slot: u16) -> Result<Sent, Unsent> {
        let Sending { token, command, args } = sending;
        let peer = self.peer_of_slot(sending, slot)?;
        if sending.is_watch() || sending.may_block() {
            return self.send_leased(sending, peer, slot);
        }
        if command.spec.flags.contains(Flags::EXECUTES) {
            return self.send_transaction(sending, peer, slot);
        }
        if !self.has_room(peer) {
            return Err(Unsent::Full);
        }
        let Some(ticket) = self.expect(sending, Some(slot), None) else { return Ok(Sent::Yes) };
        let request = Request { content: Content::Args(args), commands: 1, asking: false, reads: sending.reads() };
        if !self.push_shared(peer, request, ticket) {
            self.park_new(ticket, args, sending.reads(), peer, false);
        }
        self.drain_if_myself(token, peer);
        Ok(Sent::Yes)
    }

    /// What this node executes for itself over a link must not be overtaken by what it executes directly.
    fn drain_if_myself(&mut self, token: usize, peer: Peer) {
        if self.links.routes.is_myself(peer.address)
            && let Some(forwarded) = self.forwarded(token)
        {
            forwarded.drains = true;
        }
    }

    /// Sends a new request later: there is no link to the node at present.
    fn park_new(&mut self, ticket: Ticket, args: Args<'_>, reads: bool, peer: Peer, leases: bool) {
        let mut bytes = Vec::new();
        kvick_forward::encode::encode(args, &mut bytes);
        if let Some(forwarded) = self.forwarded(ticket.connection) {
            forwarded.drains = true;
        }
        let unanswered = kvick_forward::Unanswered { ticket, bytes, commands: 1, reads, sent: false };
        self.park(unanswered, peer, leases);
    }

    /// Sends a request over the lease of its connection, which gets one if it has none. Nothing is outstanding.
    fn send_leased(&mut self, sending: Sending<'_>, peer: Peer, slot: u16) -> Result<Sent, Unsent> {
        let Sending { token, args, .. } = sending;
        let Some(ticket) = self.expect(sending, Some(slot), None) else { return Ok(Sent::Yes) };
        let request = Request { content: Content::Args(args), commands: 1, asking: false, reads: sending.reads() };
        let is_watch = sending.is_watch();
        if is_watch && let Some(connection) = self.connections.get_mut(token) {
            connection.client.note_watched_elsewhere(slot, args.iter().skip(1));
            if let Some(forwarded) = connection.forwarded.as_deref_mut() {
                forwarded.watches += 1;
            }
        }
        let lease = self.forwarded(token).and_then(|forwarded| forwarded.lease);
        // While keys are watched, another blocking command goes elsewhere: the lease stays as it is.
        let number = match lease {
            Some(number) => Some(number),
            None => self.lease_link(token, peer),
        };
        if let Some(forwarded) = self.forwarded(token) {
            forwarded.lease = number;
            forwarded.waits = Waits::Lease;
        }
        let is_sent = number.is_some_and(|number| self.push_to(number, request, ticket));
        if !is_sent {
            self.park_new(ticket, args, sending.reads(), peer, true);
        }
        Ok(Sent::Alone)
    }

    /// Sends a transaction as one block: over the lease if keys are watched, else over the link that clients share.
    fn send_transaction(&mut self, sending: Sending<'_>, peer: Peer, slot: u16) -> Result<Sent, Unsent> {
        let token = sending.token;
        let Some(connection) = self.connections.get_mut(token) else { return Ok(Sent::Yes) };
        let watches = connection.client.watches_elsewhere();
        let (lease, version) =
            (self.forwarded(token).and_then(|forwarded| forwarded.lease), self.peer(token, peer.address).version);
        if !watches && !self.has_room(peer) {
            return Err(Unsent::Full);
        }
        let Some(connection) = self.connections.get_mut(token) else { return Ok(Sent::Yes) };
        let block = self.engine.take_transaction(&mut connection.client);
        if watches && lease.is_none() {
            // The node may have let the watched keys change since its link was lost.
            if let Some(forwarded) = self.forwarded(token) {
                (forwarded.watches, forwarded.watch_lost) = (0, false);
            }
            self.answer_now(sending, null_array(version).to_vec());
            return Ok(Sent::Yes);
        }
        let Some(mut ticket) = self.expect(sending, Some(slot), None) else { return Ok(Sent::Yes) };
        (ticket.caches, ticket.writes) = (block.caches, block.writes);
        let (commands, reads) = (block.commands, block.reads);
        let request = Request { content: Content::Encoded(&block.bytes), commands, asking: false, reads };
        let is_sent = match lease {
            Some(number) if watches => self.push_to(number, request, ticket),
            _ => self.push_shared(peer, request, ticket),
        };
        if !is_sent {
            let unanswered = kvick_forward::Unanswered { ticket, bytes: block.bytes, commands, reads, sent: false };
            self.park(unanswered, peer, false);
        }
        self.drain_if_myself(token, peer);
        if !watches {
            return Ok(Sent::Yes);
        }
        if let Some(forwarded) = self.forwarded(token) {
            forwarded.waits = Waits::Lease;
        }
        Ok(Sent::Alone)
    }

    /// Divides a request by the slots of its keys.
    fn send_parts(&mut self, sending: Sending<'_>) -> Result<Sent, Unsent> {
        let name = &sending.command.full_name;
        let Some(Split { parts, merge }) = split::by_slot(name, sending.args, slot) else {
            return Err(Unsent::Refused("ERR syntax error"));
        };
        let parts: Result<Vec<Part>, Unsent> = parts
            .into_iter()
            .map(|part| {
                let peer = self.peer_of_slot(sending, part.slot)?;
                Ok(Part { peer, slot: Some(part.slot), request: part.request })
            })
            .collect();
        self.send_all(sending, parts?, merge)
    }

    /// Sends a request to all nodes that own slots, and also to this one if it has the scripts of its clients.
    fn send_everywhere(&mut self, sending: Sending<'_>) -> Result<Sent, Unsent> {
        let Some(merge) = split::everywhere(&sending.command.full_name) else { return Err(NO_OWNER) };
        let merge = match merge {
            Merge::Any(_) => Merge::Any((clock::unix_us() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32),
            merge => merge,
        };
        let mut nodes = self.links.routes.owners().filter(|nodes| !nodes.is_empty()).ok_or(NO_OWNER)?;
        let concerns_scripts = sending.command.container.is_some() || sending.command.class != Class::Data;
        if let Some(myself) = self.links.routes.myself()
            && concerns_scripts
            && !nodes.contains(&myself)
        {
            nodes.push(myself);
        }
        let part = |address: &SocketAddr| Part {
            peer: self.peer(sending.token, *address),
            slot: None,
            request: OwnedArgs::from(sending.args),
        };
        let parts = nodes.iter().map(part).collect();
        self.send_all(sending, parts, merge)
    }

    /// Sends SCAN to the node that its cursor names.
    fn send_scan(&mut self, sending: Sending<'_>) -> Result<Sent, Unsent> {
        let cursor = sending.args.get(1).and_then(parse_u64).ok_or(INVALID_CURSOR)?;
        let (address, next) = self.links.routes.scanned(cursor).ok_or(NO_OWNER)?;
        let request = OwnedArgs::from(sending.args);
        let part = Part { peer: self.peer(sending.token, address), slot: None, request };
        self.send_all(sending, vec![part], Merge::Scan(next))
    }

    /// Sends the parts of a request: all of them, or none if a link has no room.
    fn send_all(&mut self, sending: Sending<'_>, parts: Vec<Part>, merge: Merge) -> Result<Sent, Unsent> {
        if parts.iter().any(|part| !self.has_room(part.peer)) {
            return Err(Unsent::Full);
        }
        let gather = Gather::new(merge, parts.len());
        let Some(first) = self.expect(sending, None, Some(gather)) else { return Ok(Sent::Yes) };
        for (number, part) in (0..).zip(&parts) {
            let ticket = Ticket { part: number, slot: part.slot, ..first };
            let (args, reads) = (part.request.args(), sending.reads());
            let request = Request { content: Content::Args(args), commands: 1, asking: false, reads };
            if !self.push_shared(part.peer, request, ticket) {
                self.park_new(ticket, args, reads, part.peer, false);
            }
            self.drain_if_myself(sending.token, part.peer);
        }
        Ok(Sent::Yes)
    }

    /// After a request was executed here: its reply waits for the outstanding ones, which there were if `awaits_others`
    /// is set. A lease that nothing needs any more ends.
    pub(crate) fn settle_local(&mut self, token: usize, reply_start: usize, awaits_others: bool) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if let Some(elsewhere) = &mut connection.client.forwarding {
            elsewhere.subscribes = false;
        }
        let Some(forwarded) = connection.forwarded.as_deref_mut() else { return };
        if awaits_others && self.replies.position() > reply_start {
            let reply = self.replies.copy_from(reply_start);
            self.replies.truncate(reply_start);
            forwarded.queue.push_ready(reply);
            forwarded.has_local = true;
        }
        let watches = connection.client.watches_elsewhere();
        if !watches && forwarded.queue.is_empty() && (forwarded.lease.is_some() || forwarded.watches > 0) {
            let lease = forwarded.lease.take();
            (forwarded.watches, forwarded.watch_lost) = (0, false);
            // Its node still watches the keys.
            if let Some(lease) = lease {
                self.drop_link(lease);
            }
        }
    }

    /// The connection is closed, and its lease ends.
    pub(crate) fn end_lease(&mut self, forwarded: &Forwarded) {
        if let Some(lease) = forwarded.lease {
            self.drop_link(lease);
        }
    }
}
