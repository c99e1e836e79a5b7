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
    /// What other nodes have acknowledged, local disks and replicas, if the client has written there: the reply is the
    /// minimum.
    pub elsewhere: (u64, u64),
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
    /// How many local disks and replicas have acknowledged.
    fn acknowledged(&self, core: &DurableCore) -> (u64, u64) {
        let local = u64::from(core.aof.is_synced(self.offset));
        (local, core.replication_view().replicas_acked(self.offset, self.kind == WaitKind::Disk) as u64)
    }

    /// The reply, if the wait is over.
    fn reply_if_done(&self, core: &DurableCore, now_ms: i64) -> Option<Vec<u8>> {
        if self.local > 0 && core.aof.status.lock().state == State::Off {
            return Some(self.error_reply(AOF_DISABLED_ERROR));
        }
        let (local, replicas) = self.acknowledged(core);
        let is_over = self.until_ms.is_some_and(|until_ms| until_ms <= now_ms);
        (is_over || local >= self.local && replicas >= self.replicas).then(|| self.reply(local, replicas))
    }

    fn reply(&self, local: u64, replicas: u64) -> Vec<u8> {
        let (local, replicas) = (local.min(self.elsewhere.0), replicas.min(self.elsewhere.1));
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, self.version);
        if self.kind == WaitKind::Disk {
            reply.array(2);
            reply.uint(local);
        }
        reply.uint(replicas);
        out
    }

    fn error_reply(&self, error: &str) -> Vec<u8> {
        let mut out = Vec::new();
        Reply::new(&mut out, self.version).error(error);
        out
    }

    fn served(self, reply: Vec<u8>, is_last: bool) -> Served {
        Served { client: self.client, ticket: self.ticket, reply, is_last }
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
            let reply = client.error_reply(error);
            core.answer(client.served(reply, true));
        }
    }

    /// Ends the wait with this ticket: as if it had timed out, or with an error. Returns false if there is none.
    pub fn unblock(&self, core: &DurableCore, ticket: u64, error: Option<&str>) -> bool {
        let mut waiting = self.waiting.lock();
        let Some(at) = waiting.iter().position(|client| client.ticket == ticket) else { return false };
        let client = waiting.remove(at);
        drop(waiting);
        let reply = match error {
            Some(error) => client.error_reply(error),
            None => {
                let (local, replicas) = client.acknowledged(core);
                client.reply(local, replicas)
            }
        };
        core.answer(client.served(reply, false));
        true
    }

    /// The time until the first timeout.
    pub(super) fn until_deadline(&self) -> Option<Duration> {
        let until_ms = self.waiting.lock().iter().filter_map(|client| client.until_ms).min()?;
        // A remainder below one millisecond is rounded up.
        Some(Duration::from_millis(until_ms.saturating_sub(clock::unix_ms()).max(1) as u64))
    }
}
