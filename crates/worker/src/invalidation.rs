//! Delivers invalidations to clients that cache keys; see [`kvick_core::tracking`].

use super::Worker;
use super::delivery::Encoded;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_core::inbox::Delivery;
use kvick_core::tracking::Invalidation;
use kvick_core::tracking::invalidation::{Target, write_disconnected};
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
                let has_moved = self.server.moved_connections.load(Ordering::Relaxed) > 0;
                if has_moved && self.readdress(invalidation, target) {
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
                self.push(target.token, version, &mut encoded, |out| invalidation.write(version, out));
            }
        }
    }

    /// Sends an invalidation again to those of its clients that were between two workers when it was sent.
    pub(super) fn readdress_in_transit(&self, invalidation: &Invalidation) {
        for target in invalidation.in_transit() {
            // A client that is gone needs none.
            let _ = self.readdress(invalidation, target);
        }
    }

    /// Sends an invalidation again to a client that is not where it was when it was sent. Returns whether the client is
    /// still connected.
    #[cold]
    fn readdress(&self, invalidation: &Invalidation, target: &Target) -> bool {
        let Some(client) = self.server.clients.get(target.client) else { return false };
        let (owner, token) = (client.worker(), client.token.load(Ordering::Relaxed));
        if owner == self.number && token == target.token {
            // It is being closed.
            return false;
        }
        self.server.put(owner, Delivery::Invalidated(invalidation.for_target(target, token)));
        true
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
