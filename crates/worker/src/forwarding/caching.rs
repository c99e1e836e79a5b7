//! Client-side caching of keys that other nodes own.
//!
//! Requests of clients that cache keys use links of their own, on which the other node tracks what is read. With RESP3
//! its invalidations arrive on the same link, behind the replies to the reads. With RESP2 they arrive on the worker's
//! link for pushes; clients cannot rely on an order there, since the invalidations go to another connection of theirs.
//! A read is noted when its reply arrives, so that a later invalidation finds it.
//!
//! For clients in broadcasting mode, worker 0 has a link to each primary that reports all changes, whatever the
//! prefixes of the clients are.
//!
//! A client with NOLOOP has links of its own, with NOLOOP, so that other nodes know which changes are its own.
//!
//! When a link is lost, invalidations may be missing: all clients get the invalidation of all keys.

use super::links::{Peer, PeerLink, Purpose};
use crate::Worker;
use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, Resolved};
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_core::tracking::invalidate;
use kvick_core::tracking::invalidation::InvalidatedKeys;
use kvick_resp::{Args, Limits, Parsed, Parser, Version};
use std::net::SocketAddr;
use std::sync::Arc;

impl Worker {
    /// Notes the keys that a client has read with a request, or with the requests of a transaction.
    #[cold]
    pub(super) fn note_cached(&mut self, client: u64, requests: &[u8]) {
        let (mut parser, mut at, mut big) = (Parser::new(), 0, Vec::new());
        let limits = Limits::default();
        loop {
            let mut spans = Vec::new();
            if parser.parse(requests, &mut at, &mut spans, &mut big, &limits) != Parsed::Request {
                return;
            }
            self.note_read(client, Args::new(requests, &spans, &big));
        }
    }

    fn note_read(&mut self, client: u64, args: Args<'_>) {
        let Resolved::Command(command) = self.server.catalogue.resolve(args) else { return };
        let reads = command.spec.flags.contains(Flags::READONLY) || command.class == Class::Script;
        if !reads {
            return;
        }
        let keys_max = self.engine.runtime_config.tracked_keys_max;
        for position in command.spec.key_positions(args).unwrap_or_default() {
            let Some(key) = args.get(position.index) else { continue };
            if let Some((other, clients)) = self.links.cached.add(key, client, keys_max) {
                self.invalidate_cached(&other, &clients);
            }
        }
    }

    fn invalidate_cached(&self, key: &[u8], clients: &[u64]) {
        let clients = clients.iter().filter_map(|client| self.server.clients.get(*client));
        let clients = clients.filter(|client| !client.flags().contains(ClientFlags::BROADCAST));
        let keys = InvalidatedKeys::keys(std::iter::once(key));
        invalidate(self.server, Executor::Worker(self.number), &keys, clients);
    }

    /// A node reports that keys have changed.
    pub(super) fn receive_invalidation(&mut self, peer: Peer, keys: &[&[u8]]) {
        if let Purpose::Own(client) | Purpose::OwnPushes(client) = peer.purpose {
            return self.invalidate_own(client, &InvalidatedKeys::keys(keys.iter().copied()));
        }
        for key in keys {
            if peer.purpose == Purpose::Broadcasts {
                self.engine.note_change((*key).into());
                continue;
            }
            let clients = self.links.cached.take(key);
            if !clients.is_empty() {
                self.invalidate_cached(key, &clients);
            }
        }
    }

    /// Sends clients whose requests are forwarded the invalidation of all keys: those in broadcasting mode, or the
    /// others.
    pub(super) fn invalidate_all_cached(&mut self, broadcast: bool) {
        if !broadcast {
            self.links.cached.clear();
        }
        let all = self.server.clients.all().into_iter();
        let concerned = all.filter(|client| is_cached_elsewhere(client, broadcast));
        invalidate(self.server, Executor::Worker(self.number), &InvalidatedKeys::All, concerned);
    }

    /// Sends a client with links of its own an invalidation.
    pub(super) fn invalidate_own(&self, client: u64, keys: &InvalidatedKeys) {
        invalidate(self.server, Executor::Worker(self.number), keys, self.server.clients.get(client).into_iter());
    }

    /// Closes the links of clients that do not need links of their own any more.
    pub(super) fn end_own_links(&mut self) {
        let needs = |client: u64| {
            let info = self.server.clients.get(client);
            info.is_some_and(|info| info.flags().contains(ClientFlags::TRACKING | ClientFlags::NOLOOP))
        };
        let is_over = |link: &PeerLink| match link.peer.purpose {
            Purpose::Own(client) | Purpose::OwnPushes(client) => link.lease.is_none() && !needs(client),
            _ => false,
        };
        let all = self.links.all.iter();
        let over: Vec<usize> =
            all.filter(|(_, link)| link.as_deref().is_some_and(is_over)).map(|(number, _)| number).collect();
        for number in over {
            if self.links.get(number).is_some_and(|link| link.link.is_empty()) {
                self.drop_link(number);
            }
        }
    }

    /// The ID that a link for pushes has at its node; `None` while it is not ready.
    pub(super) fn push_receiver(&mut self, pushes: Peer) -> Option<u64> {
        let number = self.share_link(pushes)?;
        self.links.get(number)?.link.client_id()
    }

    /// Has worker 0 receive the changes on all other nodes while clients in broadcasting mode need them.
    pub(super) fn check_broadcasts(&mut self) {
        let is_needed = self.server.tracking.prefixes() > 0
            && self.server.clients.all().iter().any(|client| is_cached_elsewhere(client, true));
        if !is_needed {
            self.links.of_purpose(Purpose::Broadcasts).into_iter().for_each(|number| _ = self.drop_link(number));
            return;
        }
        self.links.routes.update(self.server);
        for address in self.links.routes.owners().unwrap_or_default() {
            if !self.links.routes.is_myself(address) {
                let peer = Peer { purpose: Purpose::Broadcasts, ..push_peer(address) };
                let _ = self.share_link(peer);
            }
        }
    }
}

/// The link for pushes to a node.
pub(super) fn push_peer(address: SocketAddr) -> Peer {
    Peer { address, db: 0, version: Version::Resp3, purpose: Purpose::Pushes }
}

/// Whether a client caches keys of other nodes, in broadcasting mode or not.
fn is_cached_elsewhere(client: &Arc<ClientInfo>, broadcast: bool) -> bool {
    let flags = client.flags();
    flags.contains(ClientFlags::FORWARD | ClientFlags::TRACKING) && flags.contains(ClientFlags::BROADCAST) == broadcast
}
