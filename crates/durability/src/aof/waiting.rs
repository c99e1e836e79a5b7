//! WAIT and WAITAOF: clients that wait until replicas or disks have their writes.

use super::{Aof, State};
use crate::DurableCore;
use kvick_core::clients::ClientInfo;
use kvick_core::inbox::Served;
use kvick_resp::{Reply, Version};
use kvick_runtime::clock;
use std::sync::Arc;
use std::time::Duration;

/// A waiting client.
pub struct WaitingClient {
    /// The client.
    pub client: Arc<ClientInfo>,
    /// The ticket of its wait.
    pub ticket: u64,
    /// The protocol of its reply.
    pub version: Version,
    /// The kind of acknowledgement.
    pub kind: WaitKind,
    /// The log offset to be acknowledged.
    pub offset: u64,
    /// The number of local disks required: 0 or 1.
    pub local: u64,
    /// The number of replicas required.
    pub replicas: u64,
    /// Timeout, as Unix time in ms.
    pub until_ms: Option<i64>,
}

/// Which acknowledgement a client waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitKind {
    /// WAIT: applied by replicas.
    Memory,
    /// WAITAOF: on disks.
    Disk,
}

/// The error for a client that waits while the append-only file is disabled.
pub const AOF_DISABLED_ERROR: &str = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";

impl WaitingClient {
    /// The reply, if the wait is over.
    fn reply_if_done(&self, core: &DurableCore, now_ms: i64) -> Option<Vec<u8>> {
        let aof = &core.aof;
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, self.version);
        if self.local > 0 && aof.status.lock().state == State::Off {
            reply.error(AOF_DISABLED_ERROR);
            return Some(out);
        }
        let local = u64::from(aof.synced() >= self.offset);
        let replicas = core.replication_view().replicas_acked(self.offset, self.kind == WaitKind::Disk) as u64;
        let is_enough = local >= self.local && replicas >= self.replicas;
        if !is_enough && self.until_ms.is_none_or(|until_ms| until_ms > now_ms) {
            return None;
        }
        if self.kind == WaitKind::Disk {
            reply.array(2);
            reply.uint(local);
        }
        reply.uint(replicas);
        Some(out)
    }
}

impl Aof {
    /// Adds a waiting client.
    pub fn wait(&self, waiting: WaitingClient) {
        self.waiting.lock().push(waiting);
        self.wake();
    }

    /// Whether any client waits.
    pub fn has_waiting_clients(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Replicas have acknowledged more: re-checks the clients that wait for them.
    pub fn on_replica_ack(&self) {
        if self.has_waiting_clients() {
            self.wake();
        }
    }

    /// Answers the clients whose wait is over. Workers detect those that have disconnected.
    pub(super) fn reply_to_waiting_clients(&self, core: &DurableCore) {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            return;
        }
        let now_ms = clock::unix_ms();
        waiting.retain(|client| {
            let Some(reply) = client.reply_if_done(core, now_ms) else {
                return core.clients.get(client.client.id).is_some();
            };
            let served = Served { client: client.client.clone(), ticket: client.ticket, reply, is_last: false };
            core.answer(served);
            false
        });
    }

    /// Ends all waits with this error, and closes the connections.
    pub fn unblock_waiting_clients(&self, core: &DurableCore, error: &str) {
        for client in std::mem::take(&mut *self.waiting.lock()) {
            let mut reply = Vec::new();
            Reply::new(&mut reply, client.version).error(error);
            core.answer(Served { client: client.client, ticket: client.ticket, reply, is_last: true });
        }
    }

    /// The time until the first timeout.
    pub(super) fn until_deadline(&self) -> Option<Duration> {
        let until_ms = self.waiting.lock().iter().filter_map(|client| client.until_ms).min()?;
        // A remainder below one millisecond is rounded up.
        Some(Duration::from_millis(until_ms.saturating_sub(clock::unix_ms()).max(1) as u64))
    }
}
