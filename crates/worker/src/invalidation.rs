//! Delivers invalidations to clients that cache keys; see [`kvick_core::tracking`].

use super::Worker;
use super::delivery::Encoded;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_core::inbox::Delivery;
use kvick_core::tracking::Invalidation;
use kvick_core::tracking::invalidation::write_disconnected;
use kvick_engine::session::Fate;
use kvick_resp::Version;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Worker {
    /// Delivers an invalidation, which is the message with this number, to clients with tokens in a range.
    pub(super) fn deliver_invalidation(&mut self, number: u64, invalidation: &Invalidation, tokens: Range<usize>) {
        let mut encoded = Encoded::default();
        for target in invalidation.targets(tokens) {
            let connection = self.connections.get(target.token).filter(|connection| {
                let client = &connection.client;
                client.info.id == target.client && client.fate == Fate::Open && !client.info.is_doomed()
            });
            let Some(connection) = connection else {
                let may_have_moved = self.server.moved_connections.load(Ordering::Relaxed) > 0;
                if may_have_moved && self.server.clients.get(target.client).is_some() {
                    // It got the invalidation before it left, or gets it where it is.
                    continue;
                }
                if let Some(origin) = &target.origin {
                    self.deliver_disconnection_to(origin);
                }
                continue;
            };
            let client = &connection.client;
            let version = client.version;
            // RESP2 has no pushes, but subscribed clients accept messages.
            let is_reached = version == Version::Resp3 || (target.origin.is_some() && client.subscriptions.is_some());
            if is_reached && connection.heard_to <= number {
                let awaits_others = connection.awaits_others();
                self.push(target.token, version, &mut encoded, |out| invalidation.write(version, out));
                if awaits_others && target.origin.is_none() {
                    self.hold_invalidation(target.token, invalidation);
                }
            }
        }
    }

    /// Sends a client an invalidation again behind the replies of other nodes, which may have been given before it.
    #[cold]
    fn hold_invalidation(&mut self, token: usize, invalidation: &Invalidation) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        let version = connection.client.version;
        if let Some(forwarded) = connection.forwarded.as_deref_mut() {
            let mut push = Vec::new();
            invalidation.write(version, &mut push);
            forwarded.hold(push);
        }
    }

    /// Sends a new invalidation again to those of its clients that are not where they were when it was sent.
    #[inline]
    pub(super) fn readdress(&self, invalidation: &Invalidation) {
        if self.server.moved_connections.load(Ordering::Relaxed) > 0 {
            self.readdress_moved(invalidation);
        }
    }

    #[cold]
    fn readdress_moved(&self, invalidation: &Invalidation) {
        for target in invalidation.all_targets() {
            let here = self.connections.get(target.token).map(|connection| connection.client.info.id);
            if here != Some(target.client)
                && let Some(client) = self.server.clients.get(target.client)
            {
                let (owner, token) = (client.worker(), client.token.load(Ordering::Relaxed));
                if (owner, token) != (self.number, target.token) {
                    self.server.put(owner, Delivery::Invalidated(invalidation.for_target(target, token)));
                }
            }
        }
    }

    /// Notifies a client, on whichever worker, that it will receive no more invalidations.
    fn deliver_disconnection_to(&mut self, client: &Arc<ClientInfo>) {
        if client.worker() == self.number {
            return self.deliver_disconnection(client);
        }
        self.server.deliver(Executor::Worker(self.number), client.worker(), Delivery::Disconnected(client.clone()));
    }

    /// Notifies a client of this worker that it will receive no more invalidations.
    pub(super) fn deliver_disconnection(&mut self, client: &Arc<ClientInfo>) {
        let owner = client.worker();
        if owner != self.number {
            return self.forward(owner, Delivery::Disconnected(client.clone()));
        }
        let token = client.token.load(Ordering::Relaxed);
        let connection = self.connections.get(token).filter(|connection| connection.client.info.id == client.id);
        let Some(connection) = connection else { return };
        client.set_flags(ClientFlags::BROKEN_REDIRECT, true);
        if connection.client.version == Version::Resp3 && connection.client.fate == Fate::Open {
            let redirect = client.redirect.load(Ordering::Relaxed);
            self.push(token, Version::Resp3, &mut Encoded::default(), |out| write_disconnected(redirect, out));
        }
    }
}
