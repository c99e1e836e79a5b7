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
//! A client with NOLOOP has links of its own, with NOLOOP, so that other nodes know which changes are its own. In
//! broadcasting mode it has one to every primary, whether it has sent requests there or not.
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
use kvick_engine::session::Client;
use kvick_resp::{Args, Limits, Parsed, Parser, Version};
use std::net::SocketAddr;
use std::sync::Arc;

/// Clients with these flags have links of their own.
const OWN: ClientFlags = ClientFlags::TRACKING.union(ClientFlags::NOLOOP);

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
        if let Purpose::Own { client, .. } | Purpose::OwnPushes(client) = peer.purpose {
            let Some(info) = self.server.clients.get(client) else { return };
            let has_prefixes = info.flags().contains(ClientFlags::BROADCAST);
            if matches!(peer.purpose, Purpose::Own { broadcasts, .. } if broadcasts != has_prefixes) {
                // The client has changed its mode; what it reads now goes over other links.
                return;
            }
            let is_wanted = |key: &&[u8]| !has_prefixes || self.server.tracking.covers(client, key);
            let wanted: Vec<&[u8]> = keys.iter().copied().filter(is_wanted).collect();
            if !wanted.is_empty() {
                self.invalidate_own(client, &InvalidatedKeys::keys(wanted.into_iter()));
            }
            return;
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

    /// Opens links of their own for clients in broadcasting mode with NOLOOP. Closes those that are not needed any
    /// more.
    pub(super) fn check_own_links(&mut self) {
        let wanted = if self.server.tracking.prefixes() > 0 { self.own_broadcasts() } else { Vec::new() };
        let owners = if wanted.is_empty() { None } else { self.links.routes.owners() };
        for wanted in &wanted {
            for address in owners.iter().flatten().copied() {
                if !self.links.routes.is_myself(address) {
                    let _ = self.share_link(Peer { address, ..*wanted });
                }
            }
        }
        let flags = |client: u64| self.server.clients.get(client).map_or(ClientFlags::empty(), |info| info.flags());
        let is_wanted = |peer: Peer| match peer.purpose {
            Purpose::Own { broadcasts: true, .. } => {
                owners.as_ref().is_none_or(|owners| owners.contains(&peer.address))
                    && wanted.iter().any(|wanted| Peer { address: peer.address, ..*wanted } == peer)
            }
            Purpose::Own { client, broadcasts: false } => flags(client) & (OWN | ClientFlags::BROADCAST) == OWN,
            Purpose::OwnPushes(client) => flags(client).contains(OWN),
            _ => true,
        };
        let is_over = |link: &PeerLink| link.lease.is_none() && !is_wanted(link.peer);
        let all = self.links.all.iter();
        let over: Vec<usize> =
            all.filter(|(_, link)| link.as_deref().is_some_and(is_over)).map(|(number, _)| number).collect();
        for number in over {
            if self.links.get(number).is_some_and(|link| link.link.is_empty()) {
                self.drop_link(number);
            }
        }
    }

    /// The links to each primary that this worker's clients in broadcasting mode with NOLOOP need, without an address.
    fn own_broadcasts(&self) -> Vec<Peer> {
        let nowhere = SocketAddr::from(([0; 4], 0));
        let needed = OWN | ClientFlags::BROADCAST | ClientFlags::FORWARD;
        let connections = self.connections.iter().map(|(_, connection)| &connection.client);
        let concerned = connections.filter(|client| client.info.flags().contains(needed));
        let peer = |client: &Client| {
            let purpose = Purpose::Own { client: client.info.id, broadcasts: true };
            Peer { address: nowhere, db: client.db, version: client.version, purpose }
        };
        concerned.map(peer).collect()
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

/// Whether a client caches keys of other nodes, in broadcasting mode without links of its own, or in another mode.
fn is_cached_elsewhere(client: &Arc<ClientInfo>, broadcast: bool) -> bool {
    let flags = client.flags();
    let broadcasts = flags.contains(ClientFlags::BROADCAST);
    let has_own_links = broadcasts && flags.contains(ClientFlags::NOLOOP);
    flags.contains(ClientFlags::FORWARD | ClientFlags::TRACKING) && broadcasts == broadcast && !has_own_links
}
