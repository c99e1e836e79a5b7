//! Changing sides: from primary to replica, and back. All of this is done with the world held.

use super::synchronise;
use super::upstream::Target;
use crate::config::shapes::Primary;
use crate::config::tables::replication::{REPL_BACKLOG_SIZE, REPLICAOF};
use crate::logging;
use crate::persistence::gate;
use crate::server::Server;
use crate::stats::WorkerStats;
use crate::worker::Message;
use crate::worker::blocking::Blocked;
use kvick_store::Locked;
use std::sync::atomic::Ordering;

/// What those who wait are told when the server changes sides.
const CHANGED: &str = "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)";

impl Server {
    /// Follows a primary from now on.
    pub fn become_replica(&self, target: Target, world: &mut Locked, stats: &WorkerStats) {
        let replication = &self.replication;
        if !replication.upstream.is_replica() {
            logging::notice(format_args!(
                "Before turning into a replica, using my own primary parameters to synthesize a cached primary: I may be \
                 able to synchronize with the new primary with just a partial transfer."
            ));
        }
        self.config.put(REPLICAOF, Some(Primary { host: target.host.as_bytes().into(), port: target.port }));
        self.keyspace.log.set_repeats(true);
        self.persistence.gate.set(gate::REPLICA, true);
        replication.upstream.follow(Some(target));
        self.end_waits(world, stats);
        self.disconnect_replicas();
    }

    /// Goes on with the data by itself.
    pub fn become_primary(&self) {
        let replication = &self.replication;
        replication.upstream.follow(None);
        self.config.put(REPLICAOF, None);
        let (log, mut history) = (&self.keyspace.log, replication.history.lock());
        history.branch_off(log.offset());
        logging::notice(format_args!(
            "Setting secondary replication ID to {}, valid up to offset: {}. New replication ID is {}",
            history.previous_id(),
            history.previous_end(),
            history.id
        ));
        drop(history);
        log.set_repeats(false);
        if !replication.has_backlog.swap(true, Ordering::SeqCst) {
            log.keep_backlog(self.config.read(REPL_BACKLOG_SIZE));
        }
        self.persistence.gate.set(gate::REPLICA, false);
        // They follow by the ID of the history, which has changed.
        self.disconnect_replicas();
    }

    /// Has all replicas connect anew.
    pub fn disconnect_replicas(&self) {
        for replica in self.replication.replicas.all() {
            replica.client.doomed.store(true, Ordering::SeqCst);
            self.send(replica.client.worker, Message::Close(replica.client.clone()));
        }
    }

    /// Tells those who wait for a key that the server is not what it was.
    fn end_waits(&self, world: &mut Locked, stats: &WorkerStats) {
        for client in self.clients.all() {
            let Some(waiter) = client.waiter.lock().clone() else { continue };
            if let Some(blocked) = Blocked::of(&waiter)
                && blocked.leave(&waiter, world)
            {
                let served = blocked.end(&waiter, Some(CHANGED), stats);
                self.send(client.worker, Message::Served(served));
            }
        }
    }

    /// What replication does ten times a second.
    pub fn tick_replication(&'static self) {
        synchronise::tick(self);
    }
}
