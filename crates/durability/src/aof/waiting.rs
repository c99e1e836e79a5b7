//! WAIT and WAITAOF: clients that wait until replicas, or disks, have what they wrote.

use super::{Aof, State};
use crate::DurableCore;
use kvick_core::clients::ClientInfo;
use kvick_core::inbox::Served;
use kvick_resp::{Reply, Version};
use kvick_runtime::clock;
use std::sync::Arc;
use std::time::Duration;

/// A client that waits.
pub struct Waiting {
    /// The client.
    pub client: Arc<ClientInfo>,
    /// The ticket of its wait.
    pub ticket: u64,
    /// The protocol of its reply.
    pub version: Version,
    /// What they have to have it in.
    pub place: Place,
    /// Up to where in the log they have to have all.
    pub offset: u64,
    /// How many disks have to: 0 or 1, this server's own.
    pub local: u64,
    /// How many replicas' have to.
    pub replicas: u64,
    /// Unix time in ms until which it waits at most.
    pub until_ms: Option<i64>,
}

/// Where a client wants what it wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// WAIT: applied by replicas.
    Memory,
    /// WAITAOF: on disks.
    Disk,
}

/// What a client is told whose files are gone.
pub const DISABLED: &str = "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";

impl Waiting {
    /// Its answer, if it need not wait any longer.
    fn answer(&self, core: &DurableCore, now_ms: i64) -> Option<Vec<u8>> {
        let aof = &core.aof;
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, self.version);
        if self.local > 0 && aof.status.lock().state == State::Off {
            reply.error(DISABLED);
            return Some(out);
        }
        let local = u64::from(aof.synced() >= self.offset);
        let replicas = core.replication_view().replicas_at(self.offset, self.place == Place::Disk) as u64;
        let is_enough = local >= self.local && replicas >= self.replicas;
        if !is_enough && self.until_ms.is_none_or(|until_ms| until_ms > now_ms) {
            return None;
        }
        if self.place == Place::Disk {
            reply.array(2);
            reply.uint(local);
        }
        reply.uint(replicas);
        Some(out)
    }
}

impl Aof {
    /// Has a client wait.
    pub fn wait(&self, waiting: Waiting) {
        self.waiting.lock().push(waiting);
        self.wake();
    }

    /// Whether somebody waits.
    pub fn is_awaited(&self) -> bool {
        !self.waiting.lock().is_empty()
    }

    /// Replicas have come further: those who wait for that may have waited long enough.
    pub fn replicas_moved(&self) {
        if self.is_awaited() {
            self.wake();
        }
    }

    /// Answers those who need not wait any longer. Those that are gone are found out by their workers.
    pub(super) fn answer_waiting(&self, core: &DurableCore) {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            return;
        }
        let now_ms = clock::unix_ms();
        waiting.retain(|one| {
            let Some(reply) = one.answer(core, now_ms) else { return core.clients.get(one.client.id).is_some() };
            let served = Served { client: one.client.clone(), ticket: one.ticket, reply, is_last: false };
            core.answer(served);
            false
        });
    }

    /// Tells all who wait that it is over, for this reason, and ends their connections.
    pub fn end_waits(&self, core: &DurableCore, error: &str) {
        for one in std::mem::take(&mut *self.waiting.lock()) {
            let mut reply = Vec::new();
            Reply::new(&mut reply, one.version).error(error);
            core.answer(Served { client: one.client, ticket: one.ticket, reply, is_last: true });
        }
    }

    /// How long until the first of them gives up.
    pub(super) fn until_deadline(&self) -> Option<Duration> {
        let until_ms = self.waiting.lock().iter().filter_map(|one| one.until_ms).min()?;
        // One that is due within this millisecond is waited for a whole one.
        Some(Duration::from_millis(until_ms.saturating_sub(clock::unix_ms()).max(1) as u64))
    }
}
