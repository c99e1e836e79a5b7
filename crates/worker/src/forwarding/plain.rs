//! The short way of most requests to other nodes: consecutive requests of one connection with one key each that need
//! nothing else of this node.
//!
//! **Invariant**: a request that takes the short way is sent as by [`Worker::send_elsewhere`]. The short way stops
//! before any request that needs more: that opens a link, finds it full, may be answered by this node or a replica, or
//! has to wait for outstanding replies.

use super::links::{Peer, Purpose};
use super::{Forwarded, Waits};
use crate::Worker;
use kvick_engine::batch::{Batch, Request as ParsedRequest};
use kvick_engine::forwarding::Plain;
use kvick_forward::{Content, Request, Ticket};
use std::net::SocketAddr;

impl Forwarded {
    /// Whether requests may be sent over the links of this generation now.
    fn sends(&self, generation: (u64, u64)) -> bool {
        let is_current = self.queue.is_empty() || self.generation == generation;
        is_current && self.waits == Waits::Nothing && self.lease.is_none() && !self.is_full()
    }
}

impl Worker {
    /// Sends requests of a connection from the first on while they qualify. Returns their number.
    pub(crate) fn send_plain(
        &mut self,
        token: usize,
        requests: &[ParsedRequest],
        batch: &Batch,
        shared: &[u8],
    ) -> usize {
        self.links.routes.update(self.server);
        let (links, engine) = (&mut self.links, &mut self.engine);
        let (generation, bytes_max) = (links.generation(), engine.runtime_config.forward_link_max);
        let Some(connection) = self.connections.get_mut(token) else { return 0 };
        let client = &mut connection.client;
        if !engine.sends_plainly(client) {
            return 0;
        }
        let forwarded = connection.forwarded.get_or_insert_default();
        let (id, db, version) = (client.info.id, client.db, client.version);
        let mut used: Option<(SocketAddr, usize)> = None;
        let (mut sent, mut last) = (0, None);
        for request in requests {
            let Some(Plain { command, slot, writes, reads }) = engine.plain(request) else { break };
            let Some(address) = links.routes.owner(slot).filter(|_| forwarded.sends(generation)) else { break };
            let number = match used {
                Some((known, number)) if known == address => number,
                _ if links.routes.is_myself(address) => break,
                _ => match links.shared(Peer { address, db, version, purpose: Purpose::Requests }) {
                    Some(number) => number,
                    None => break,
                },
            };
            used = Some((address, number));
            if !links.has_room(number, bytes_max) {
                break;
            }
            forwarded.generation = generation;
            let ticket = Ticket {
                connection: token,
                client: id,
                reply: forwarded.queue.expect(),
                part: 0,
                wanted: true,
                caches: false,
                writes,
                attempts: 0,
                slot: Some(slot),
            };
            let content = Content::Args(batch.args(request, shared));
            let plain = Request { content, commands: 1, asking: false, reads };
            if let Some((address, link)) = links.push(number, plain, ticket).filter(|_| writes) {
                forwarded.note_written(address, link);
            }
            (sent, last) = (sent + 1, Some(command));
        }
        if let Some(command) = last {
            engine.note_plain(client, command, sent as u64);
        }
        sent
    }
}
