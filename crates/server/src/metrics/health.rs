//! The state of the server for probes.
//!
//! `/healthz` fails if a worker hangs; restarting the server may help then. `/readyz` fails while the server should get
//! no requests: then waiting helps.

use crate::cluster::turns::Turns;
use crate::server::Server;
use kvick_cluster::bus::ClusterState;
use kvick_cluster::state::{Cluster, Facts};
use kvick_core::admission::Reasons;

/// How long a worker may take for one turn of its event loop, in milliseconds. A long script counts as turns; SAVE and
/// other commands that block a worker do not.
const HANG_MS: u64 = 60_000;

/// Whether all workers make progress. A hang is noticed by the second of two calls.
pub fn is_alive(server: &Server, turns: &Turns) -> bool {
    turns.observe(server);
    !turns.hangs_for_ms(HANG_MS)
}

/// Why the server should get no requests now; empty if it should.
pub fn obstacles(server: &Server) -> Vec<&'static str> {
    let upstream = &server.replication.upstream;
    let states = [
        (server.is_shutting_down(), "the server is shutting down"),
        (server.admission.has(Reasons::LOADING), "data is being loaded"),
        (upstream.is_replica() && !upstream.is_connected(), "the replica is not in sync with its primary"),
        (server.cluster().is_some_and(|node| node.read(is_down)), "the cluster is down"),
    ];
    states.into_iter().filter_map(|(holds, reason)| holds.then_some(reason)).collect()
}

fn is_down(cluster: &mut Cluster, _: &Facts<'_>) -> bool {
    cluster.state() != ClusterState::Ok
}
