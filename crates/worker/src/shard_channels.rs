//! Ends subscriptions to shard channels in slots that this node's shard has lost.
//!
//! The engine announces a loss to all workers once the new slot map is current, so no new subscription to such a
//! channel begins meanwhile. Each worker unsubscribes its own connections and tells them so.

use super::Worker;
use super::delivery::Encoded;
use kvick_core::pubsub::{Kind, Name};
use kvick_engine::session::Fate;
use kvick_resp::Reply;
use kvick_store::slot::slot;

impl Worker {
    /// Unsubscribes connections from the shard channels of slots that this node's shard does not own. They receive the
    /// messages published before.
    #[cold]
    pub(super) fn leave_lost_shard_channels(&mut self) {
        self.slots_lost = false;
        let Some(routing) = &self.server.routing else { return };
        let map = routing.current();
        let is_subscribed =
            |subscriptions: &kvick_core::pubsub::subscriptions::Subscriptions| subscriptions.count(Kind::Shard) > 0;
        let tokens: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.client.subscriptions.as_deref().is_some_and(is_subscribed))
            .map(|(token, _)| token)
            .collect();
        let mut keeps = false;
        for token in tokens {
            self.catch_up(token);
            let Some(connection) = self.connections.get_mut(token) else { continue };
            let client = &mut connection.client;
            if client.forwarding.is_some() {
                // It keeps them: the worker subscribes at the new owner.
                keeps = true;
                continue;
            }
            let Some(mut own) = client.subscriptions.take() else { continue };
            let mut left: Vec<(Name, usize)> = Vec::new();
            for name in own.names(Kind::Shard).into_iter().filter(|name| !map.is_mine(slot(name))) {
                self.server.pubsub.unsubscribe(Kind::Shard, &name, client.info.place(), &mut own);
                left.push((name, own.count(Kind::Shard)));
            }
            client.set_subscriptions(own);
            let (version, is_open) = (client.version, client.fate == Fate::Open && !client.info.is_doomed());
            if is_open && !left.is_empty() {
                self.push(token, version, &mut Encoded::default(), |out| {
                    let mut reply = Reply::new(out, version);
                    for (name, remaining) in &left {
                        reply.push(3);
                        reply.bulk(b"sunsubscribe");
                        reply.bulk(name);
                        reply.uint(*remaining as u64);
                    }
                });
            }
        }
        if keeps {
            self.keep_shard_channels();
        }
    }
}
