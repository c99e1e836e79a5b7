//! Replies of other nodes: passed on in order, or the request is sent elsewhere or again.

use super::Waits;
use super::links::{Peer, Purpose};
use crate::Worker;
use crate::output::Run;
use kvick_core::clients::ClientFlags;
use kvick_forward::{Content, Redirect, Request, Ticket, Unanswered};
use kvick_resp::Version;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Time after which a request is sent again, if no node executes it at present.
const AGAIN_AFTER: Duration = Duration::from_millis(25);
/// Maximum number of times that a request is sent again; with the time above, some five seconds.
const ATTEMPTS_MAX: u8 = 200;
/// Redirections that are followed at once.
const AT_ONCE_MAX: u8 = 8;

pub(super) const NOT_EXECUTED: &str = "CLUSTERDOWN No node executes requests for this slot at present";
const UNKNOWN: &str = "ERR The link to the node of this slot was lost, and the command may have been executed";

/// A request to be sent again.
pub struct Parked {
    pub due: Instant,
    unanswered: Unanswered,
    /// Where it was sent last.
    peer: Peer,
    /// Whether it needs a lease.
    leases: bool,
}

/// The reply to EXEC if a watched key has changed.
pub(super) fn null_array(version: Version) -> &'static [u8] {
    if version == Version::Resp3 { b"_\r\n" } else { b"*-1\r\n" }
}

impl Peer {
    /// The link for the same requests to another node, a primary.
    fn primary_at(self, address: SocketAddr) -> Peer {
        let purpose = if self.purpose == Purpose::Reads { Purpose::Requests } else { self.purpose };
        Peer { address, purpose, ..self }
    }
}

impl Worker {
    /// Passes on a reply.
    #[inline]
    pub(super) fn pass_reply(&mut self, ticket: Ticket, reply: &[u8]) {
        let Some(connection) = self.connections.get_mut(ticket.connection) else { return };
        if connection.client.info.id != ticket.client {
            return;
        }
        let Some(forwarded) = connection.forwarded.as_deref_mut() else { return };
        let start = self.replies.position();
        forwarded.queue.answer(ticket.reply, ticket.part, ticket.wanted, reply, &mut self.replies.bytes);
        if !forwarded.held.is_empty() {
            forwarded.release_held(&mut self.replies.bytes);
        }
        let (end, is_done) = (self.replies.position(), forwarded.queue.is_empty());
        if end > start && forwarded.has_local {
            forwarded.has_local = !is_done;
            // The replies of this node may have to wait for the disk: the write log is looked at again.
            self.log_seen = u64::MAX;
        }
        if end > start || is_done {
            let token = ticket.connection;
            self.reached += 1;
            match self.runs.last_mut() {
                Some(last) if last.token == token && last.end == start => last.end = end,
                _ => self.runs.push(Run { token, start, end }),
            }
        }
        if is_done {
            self.end_outstanding(ticket.connection);
        }
    }

    /// All replies of a connection have arrived.
    fn end_outstanding(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let Some(forwarded) = connection.forwarded.as_deref_mut() else { return };
        forwarded.drains = false;
        if let Some(elsewhere) = &mut connection.client.forwarding {
            elsewhere.outstanding = false;
        }
        if matches!(forwarded.waits, Waits::Replies | Waits::Lease) {
            self.resume_forwarded(token);
        }
    }

    /// Continues a connection that waited for other nodes.
    pub(super) fn resume_forwarded(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let Some(forwarded) = connection.forwarded.as_deref_mut() else { return };
        if std::mem::take(&mut forwarded.waits) != Waits::Nothing {
            connection.stopped = false;
            connection.client.info.set_flags(ClientFlags::BLOCKED, false);
            self.queue(token);
        }
    }

    /// Continues the connections that waited for room on a link.
    pub(super) fn resume_stalled(&mut self) {
        for token in std::mem::take(&mut self.links.stalled) {
            let is_stalled = |waits| waits == Some(Waits::Room);
            let waits = self.connections.get(token).and_then(|connection| connection.forwarded.as_ref());
            if is_stalled(waits.map(|forwarded| forwarded.waits)) {
                self.resume_forwarded(token);
            }
        }
    }

    /// Passes on an error.
    pub(super) fn pass_error(&mut self, ticket: Ticket, text: &str) {
        self.engine.stats.count_error(text.as_bytes());
        self.pass_reply(ticket, format!("-{}\r\n", text.replace(['\r', '\n'], " ")).as_bytes());
    }

    /// Whether the connection of a request still exists. If so, it sends nothing more until this request is answered.
    fn drain_for(&mut self, ticket: Ticket) -> bool {
        let connection = self.connections.get_mut(ticket.connection);
        let Some(connection) = connection.filter(|connection| connection.client.info.id == ticket.client) else {
            return false;
        };
        let Some(forwarded) = connection.forwarded.as_deref_mut() else { return false };
        forwarded.drains = true;
        true
    }

    /// Follows a redirection. `from` is the link that it came from.
    pub(super) fn redirect(&mut self, mut unanswered: Unanswered, redirect: Redirect, from: Peer, leases: bool) {
        if !self.drain_for(unanswered.ticket) || (leases && self.ends_watch(&unanswered)) {
            return;
        }
        self.links.routes.update(self.server);
        let target = match &redirect {
            Redirect::Moved(target) | Redirect::Ask(target) => self.links.routes.find(target, from.address),
            Redirect::Later => None,
        };
        let asking = matches!(redirect, Redirect::Ask(_));
        unanswered.ticket.attempts += 1;
        match target {
            Some(address) if unanswered.ticket.attempts <= AT_ONCE_MAX => {
                self.engine.stats.forwarded_again.add(1);
                self.send_again(unanswered, from.primary_at(address), leases, asking);
            }
            _ => self.park(unanswered, from, leases),
        }
    }

    /// Decides about a request whose link was lost before it was answered.
    pub(super) fn retry_lost(&mut self, mut unanswered: Unanswered, peer: Peer, leases: bool) {
        if !self.drain_for(unanswered.ticket) || (leases && self.ends_watch(&unanswered)) {
            return;
        }
        if unanswered.sent && !unanswered.reads {
            return self.pass_error(unanswered.ticket, UNKNOWN);
        }
        unanswered.ticket.attempts += 1;
        self.park(unanswered, peer, leases);
    }

    /// Keeps a request to send it again in a moment, unless that has been done too often.
    pub(super) fn park(&mut self, unanswered: Unanswered, peer: Peer, leases: bool) {
        if unanswered.ticket.attempts >= ATTEMPTS_MAX || unanswered.ticket.slot.is_none() {
            return self.pass_error(unanswered.ticket, NOT_EXECUTED);
        }
        let due = Instant::now() + AGAIN_AFTER;
        self.links.parked.push_back(Parked { due, unanswered, peer, leases });
    }

    /// Sends the requests again that are due, to the present owners of their slots.
    pub(super) fn send_parked(&mut self) {
        let now = Instant::now();
        self.links.routes.update(self.server);
        while let Some(parked) = self.links.parked.pop_front() {
            if parked.due > now {
                return self.links.parked.push_front(parked);
            }
            let Parked { mut unanswered, peer, leases, .. } = parked;
            if !self.drain_for(unanswered.ticket) {
                continue;
            }
            self.engine.stats.forwarded_again.add(1);
            match unanswered.ticket.slot.and_then(|slot| self.links.routes.owner(slot)) {
                Some(address) => self.send_again(unanswered, peer.primary_at(address), leases, false),
                None => {
                    unanswered.ticket.attempts += 1;
                    self.park(unanswered, peer, leases);
                }
            }
        }
    }

    fn send_again(&mut self, mut unanswered: Unanswered, peer: Peer, leases: bool, asking: bool) {
        let Unanswered { ticket, commands, reads, .. } = unanswered;
        let number = if leases { self.change_lease(ticket.connection, peer) } else { None };
        let request = Request { content: Content::Encoded(&unanswered.bytes), commands, asking, reads };
        let is_sent = match (leases, number) {
            (false, _) => self.push_shared(peer, request, ticket),
            (true, Some(number)) => self.push_to(number, request, ticket),
            (true, None) => false,
        };
        if !is_sent {
            unanswered.ticket.attempts += 1;
            self.park(unanswered, peer, leases);
        }
    }

    /// Replaces a connection's lease by one of another node.
    fn change_lease(&mut self, token: usize, peer: Peer) -> Option<usize> {
        let forwarded = self.connections.get_mut(token)?.forwarded.as_deref_mut()?;
        if let Some(previous) = forwarded.lease.take() {
            self.drop_link(previous);
        }
        let number = self.lease_link(token, peer)?;
        self.connections.get_mut(token)?.forwarded.as_deref_mut()?.lease = Some(number);
        Some(number)
    }

    /// Answers a request on a lease that cannot be sent to another node, because keys are watched on this one. Returns
    /// whether it did: then the keys count as changed, and EXEC executes nothing.
    fn ends_watch(&mut self, unanswered: &Unanswered) -> bool {
        let ticket = unanswered.ticket;
        let Some(connection) = self.connections.get_mut(ticket.connection) else { return false };
        let version = connection.client.version;
        let Some(forwarded) = connection.forwarded.as_deref_mut() else { return false };
        let is_exec = unanswered.commands > 1;
        if forwarded.watches == 0 || (!is_exec && forwarded.watches == 1) {
            return false;
        }
        let was_lost = std::mem::replace(&mut forwarded.watch_lost, !is_exec);
        if is_exec {
            forwarded.watches = 0;
        }
        if is_exec && unanswered.sent && !unanswered.reads && was_lost {
            // The link was lost behind EXEC.
            self.pass_error(ticket, UNKNOWN);
        } else if is_exec {
            self.pass_reply(ticket, null_array(version));
        } else {
            self.pass_reply(ticket, b"+OK\r\n");
        }
        true
    }

    /// The link of a lease is lost.
    pub(super) fn lose_lease(&mut self, token: usize, number: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if let Some(forwarded) = connection.forwarded.as_deref_mut()
            && forwarded.lease == Some(number)
        {
            forwarded.lease = None;
            forwarded.watch_lost = forwarded.watches > 0;
        }
    }

    /// All requests on a lease have been answered: it ends, unless keys are watched over it.
    pub(super) fn settle_lease(&mut self, token: usize, number: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return self.return_link(number) };
        let watches = connection.client.watches_elsewhere();
        let Some(forwarded) = connection.forwarded.as_deref_mut() else { return };
        if forwarded.lease != Some(number) {
            return;
        }
        if !watches {
            (forwarded.lease, forwarded.watches) = (None, 0);
            self.return_link(number);
        }
    }
}
