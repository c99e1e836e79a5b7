//! The node's part of a shutdown.

use super::ClusterNode;
use kvick_replication::replicas::Stage;
use kvick_runtime::logging;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

/// The first version of a replica that takes over on request.
const VERSION_TAKES_OVER: u32 = 0x0009_0000;

/// How long the last save of `nodes.conf` may take.
const SAVE_MAX: Duration = Duration::from_secs(10);

impl ClusterNode {
    /// Whether this node is a primary with slots.
    pub fn is_voter(&self) -> bool {
        self.read(|cluster, _| cluster.is_primary() && !cluster.my_slots().is_empty())
    }

    /// Asks a replica that has all data to take over. No write can follow.
    pub fn hand_over(&self) {
        let server = self.server;
        if !self.read(|cluster, _| cluster.is_primary()) {
            return;
        }
        if !server.slot_migration.slot_sets().granted.is_empty() {
            // The replica would accept writes to slots that the target is about to claim. After the node timeout it
            // takes over without being asked.
            logging::notice(format_args!("No auto failover on shutdown: slots are about to move to another node."));
            return;
        }
        let (log, replicas) = (&server.keyspace.log, server.replication.replicas.all());
        if replicas.iter().any(|replica| replica.version.load(Ordering::Relaxed) < VERSION_TAKES_OVER) {
            logging::notice(format_args!(
                "Unable to perform auto failover on shutdown since there are legacy replicas."
            ));
            return;
        }
        let has_all = |applied| applied == log.offset();
        let best = replicas
            .iter()
            .filter(|replica| replica.stage() == Stage::Online && has_all(replica.applied.load(Ordering::Acquire)));
        let Some(id) = best.filter_map(|replica| replica.node_id.lock().clone()).next_back() else {
            logging::notice(format_args!("Unable to find a replica to perform the auto failover on shutdown."));
            return;
        };
        // All replicas receive the request; the one that it names executes it.
        log.append_replica_only(&[b"CLUSTER", b"FAILOVER", b"FORCE", b"REPLICAID", &id]);
        server.on_log_appended(None);
        let id = String::from_utf8_lossy(&id);
        logging::notice(format_args!("Perform auto failover to replica {id} on shutdown."));
    }

    /// Saves `nodes.conf` before the process exits.
    pub fn save_last(&self) {
        logging::notice(format_args!("Saving the cluster configuration file before exiting."));
        let (sender, saved) = mpsc::channel();
        self.bus.save(move |done| {
            // The receiver may have given up.
            let _ = sender.send(done);
        });
        // A failure has been logged.
        let _ = saved.recv_timeout(SAVE_MAX);
    }
}
