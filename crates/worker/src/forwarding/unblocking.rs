//! CLIENT UNBLOCK of clients that wait at other nodes.
//!
//! The other node gets CLIENT UNBLOCK for the link on which the client waits, and answers the client over that link: so
//! nothing that it has just popped for the client is lost.

use super::Waits;
use super::links::{Peer, Purpose};
use crate::Worker;
use kvick_core::clients::ClientInfo;
use kvick_core::inbox::Delivery;
use kvick_forward::{Content, Request, Ticket};
use kvick_resp::{OwnedArgs, Version};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// In tickets, stands for no connection: the reply is to this worker.
pub const UNBLOCKS: usize = usize::MAX;
/// How often the other node is asked at once whether the client waits: the request may overtake that on the other link.
const ATTEMPTS_MAX: u8 = 50;

/// The error with which a client is unblocked.
const UNBLOCKED: &str = "UNBLOCKED client unblocked via CLIENT UNBLOCK";

impl Worker {
    /// Unblocks a client, as if its time had passed, or with an error.
    pub(crate) fn unblock_elsewhere(&mut self, client: &Arc<ClientInfo>, error: bool) {
        let owner = client.worker();
        if owner != self.number {
            return self.forward(owner, Delivery::UnblockedElsewhere(client.clone(), error));
        }
        let token = client.token.load(Ordering::Relaxed);
        if self.connections.get(token).is_none_or(|connection| connection.client.info.id != client.id) {
            return;
        }
        let now_ms = self.engine.now_ms;
        let Some(forwarded) = self.forwarded(token) else { return };
        match forwarded.waits {
            Waits::Lease => {
                let ticket = Ticket {
                    connection: UNBLOCKS,
                    client: client.id,
                    reply: forwarded.queue.first(),
                    part: error.into(),
                    wanted: false,
                    caches: false,
                    writes: false,
                    attempts: 0,
                    slot: None,
                };
                self.send_unblock(token, ticket);
            }
            Waits::Acknowledgements if error => {
                self.finish_wait(token, Err(UNBLOCKED.to_owned()));
            }
            // The next reply of each node is the last one.
            Waits::Acknowledgements => forwarded.end_wait(now_ms),
            _ => {}
        }
    }

    /// Has the node where a connection waits unblock it, now or as soon as it can be asked.
    fn send_unblock(&mut self, token: usize, ticket: Ticket) {
        if self.try_unblock(token, ticket).is_none() {
            self.unblock_later(ticket);
        }
    }

    /// Asks the node where a connection waits to unblock it. `None` if that is not possible yet: the link on which the
    /// connection waits, or the one for requests, is not ready.
    fn try_unblock(&mut self, token: usize, ticket: Ticket) -> Option<()> {
        let number = self.forwarded(token)?.lease?;
        let link = self.links.get(number)?;
        let id = link.link.client_id()?;
        let peer = Peer { purpose: Purpose::Requests, version: Version::Resp2, db: 0, address: link.peer.address };
        let reason = if ticket.part == 0 { "TIMEOUT" } else { "ERROR" };
        let words = OwnedArgs::new(["CLIENT", "UNBLOCK", &id.to_string(), reason]);
        let request = Request { content: Content::Args(words.args()), commands: 1, asking: false, reads: false };
        self.push_shared(peer, request, ticket).then_some(())
    }

    /// Unblocks a client with the next turn of the timers, or when a link becomes ready.
    pub(super) fn unblock_later(&mut self, ticket: Ticket) {
        let later = &mut self.links.unblock_later;
        if !later.iter().any(|other| (other.client, other.reply) == (ticket.client, ticket.reply)) {
            later.push(Ticket { attempts: 0, ..ticket });
        }
    }

    /// Tries again to unblock clients.
    #[inline]
    pub(super) fn unblock_again(&mut self) {
        if !self.links.unblock_later.is_empty() {
            for ticket in std::mem::take(&mut self.links.unblock_later) {
                self.unblock_if_waiting(ticket);
            }
        }
    }

    /// A node has answered CLIENT UNBLOCK. Zero: it has not got what the client waits for yet, or has answered it.
    pub(super) fn note_unblocked(&mut self, ticket: Ticket, reply: &[u8]) {
        if reply != b":0\r\n" {
        } else if ticket.attempts < ATTEMPTS_MAX {
            self.unblock_if_waiting(Ticket { attempts: ticket.attempts + 1, ..ticket });
        } else {
            self.unblock_later(ticket);
        }
    }

    /// Unblocks a client, unless it has its reply by now.
    fn unblock_if_waiting(&mut self, ticket: Ticket) {
        let Some(info) = self.server.clients.get(ticket.client) else { return };
        let token = info.token.load(Ordering::Relaxed);
        let is_same = self.connections.get(token).is_some_and(|connection| connection.client.info.id == ticket.client);
        let waits = self.forwarded(token).is_some_and(|forwarded| {
            forwarded.waits == Waits::Lease && !forwarded.queue.is_empty() && forwarded.queue.first() == ticket.reply
        });
        if is_same && waits {
            self.send_unblock(token, ticket);
        }
    }
}
