//! FAILOVER: a primary hands its role over to one of its replicas, without data loss.
//!
//! Writes are paused until a replica has caught up. Then the primary becomes a replica of it, and asks it with `PSYNC
//! ... FAILOVER` to take over. If the replica cannot or refuses, the server becomes the primary again.

use super::replicas::{Replica, Stage};
use super::upstream::Target;
use crate::ReplicatedCore;
use kvick_core::message::Message;
use kvick_core::pause::PauseReason;
use kvick_core::stats::WorkerStats;
use kvick_runtime::logging;
use kvick_store::Locked;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The state of a failover.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No failover is running.
    None,
    /// The server waits until a replica has caught up.
    WaitForSync,
    /// The server has asked a replica to take over.
    InProgress,
}

impl State {
    /// The name in INFO.
    pub fn name(self) -> &'static str {
        match self {
            State::None => "no-failover",
            State::WaitForSync => "waiting-for-sync",
            State::InProgress => "failover-in-progress",
        }
    }
}

/// A requested failover.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The replica to take over; if `None`, the first to catch up.
    pub target: Option<Target>,
    /// Deadline for the replica to catch up, as Unix time in ms.
    pub until_ms: Option<i64>,
    /// Whether the named replica takes over at the deadline even if it has not caught up.
    pub is_forced: bool,
    in_progress: bool,
}

impl Plan {
    /// A failover that has not begun.
    pub fn new(target: Option<Target>, until_ms: Option<i64>, is_forced: bool) -> Plan {
        Plan { target, until_ms, is_forced, in_progress: false }
    }
}

/// Names the target for the log.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Some(Target { host, port, .. }) => write!(f, "{host}:{port}"),
            None => f.write_str("any replica"),
        }
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct Failover(Mutex<Option<Plan>>);

impl Failover {
    /// The present state.
    pub fn state(&self) -> State {
        match &*self.0.lock() {
            None => State::None,
            Some(plan) if plan.in_progress => State::InProgress,
            Some(_) => State::WaitForSync,
        }
    }
}

impl ReplicatedCore {
    /// Begins a failover. The caller holds the global lock, and no failover is running.
    pub fn begin_failover(&self, plan: Plan) {
        logging::notice(format_args!("FAILOVER requested to {plan}."));
        // A request for an acknowledgement now shortens the wait.
        self.keyspace.log.append_replica_only(&[b"REPLCONF", b"GETACK", b"*"]);
        self.pause.pause_writes(PauseReason::Failover);
        *self.replication.failover.0.lock() = Some(plan);
        self.on_log_appended(None);
    }

    /// Continues a failover if a replica has caught up. Called ten times a second.
    pub(crate) fn tick_failover(&self, now_ms: i64) {
        if self.replication.failover.state() != State::WaitForSync {
            return;
        }
        let _global = self.keyspace.lock_global();
        let mut slot = self.replication.failover.0.lock();
        let Some(plan) = slot.as_mut().filter(|plan| !plan.in_progress) else { return };
        if plan.until_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            if !plan.is_forced {
                drop(slot);
                return self.abort_failover("Replica never caught up before timeout");
            }
            logging::notice(format_args!("FAILOVER to {plan} time out exceeded, failing over."));
        } else {
            let Some(replica) = self.caught_up(plan.target.as_ref()) else { return };
            let found = || Target::at(replica.address(), replica.port.load(Ordering::Relaxed));
            let target = plan.target.get_or_insert_with(found).clone();
            logging::notice(format_args!("Failover target {}:{} is synced, failing over.", target.host, target.port));
        }
        plan.in_progress = true;
        let Some(target) = plan.target.clone() else { return };
        drop(slot);
        self.set_primary(target);
    }

    /// A replica that has caught up: the one at this address, or any.
    fn caught_up(&self, target: Option<&Target>) -> Option<Arc<Replica>> {
        let end = self.keyspace.log.offset();
        let replicas = self.replication.replicas.all();
        let matches = |replica: &&Arc<Replica>| target.is_none_or(|target| replica.is_at(target));
        let mut candidates = replicas.iter().filter(matches);
        candidates
            .find(|replica| replica.stage() == Stage::Online && replica.applied.load(Ordering::Acquire) == end)
            .cloned()
    }

    /// Whether this server is asking its new primary to take over.
    pub fn is_failover_in_progress(&self) -> bool {
        self.replication.failover.state() == State::InProgress
    }

    /// Aborts a failover. The caller holds the global lock.
    pub fn abort_failover(&self, reason: &str) {
        let Some(plan) = self.replication.failover.0.lock().take() else { return };
        logging::notice(format_args!("FAILOVER to {plan} aborted: {reason}"));
        if plan.in_progress {
            self.become_primary();
        }
        self.resume_after_failover();
    }

    /// The target has taken over. The caller holds the global lock.
    pub fn finish_failover(&self, global: &mut Locked, stats: &WorkerStats) {
        if self.replication.failover.0.lock().take().is_some() {
            self.unblock_clients(global, stats);
            self.resume_after_failover();
        }
    }

    fn resume_after_failover(&self) {
        self.pause.resume_writes(PauseReason::Failover);
        self.send_all(|| Message::Resume);
    }
}
