//! The durable core with the state of replication, and what replication needs of the layers above.

use crate::Replication;
use crate::apply::Apply;
use crate::migration::Migration;
use crate::slot_migration::{RecordedImports, SlotMigration};
use crate::view::View;
use kvick_core::stats::WorkerStats;
use kvick_durability::DurableCore;
use kvick_net::tls::Tls;
use kvick_store::Locked;
use kvick_store::global_lock::Participant;
use std::ops::Deref;
use std::sync::OnceLock;

type MakeApplier = Box<dyn Fn(Participant) -> Box<dyn Apply> + Send + Sync>;
type Unblock = Box<dyn Fn(&ReplicatedCore, &mut Locked, &WorkerStats) + Send + Sync>;

/// The durable core with replication, MIGRATE, and the TLS materials of outgoing and incoming connections.
pub struct ReplicatedCore {
    durable: DurableCore,
    /// Replicas, and the primary.
    pub replication: Replication,
    /// MIGRATE.
    pub migration: Migration,
    /// Atomic slot migration.
    pub slot_migration: SlotMigration,
    /// TLS.
    pub tls: Tls,
    make_applier: OnceLock<MakeApplier>,
    unblock: OnceLock<Unblock>,
}

impl Deref for ReplicatedCore {
    type Target = DurableCore;

    fn deref(&self) -> &DurableCore {
        &self.durable
    }
}

impl ReplicatedCore {
    /// On a durable core, to which it is not [attached](Self::attach) yet.
    pub fn new(durable: DurableCore) -> Self {
        ReplicatedCore {
            replication: Replication::new(durable.workers_max()),
            migration: Migration::new(durable.workers_max()),
            slot_migration: SlotMigration::default(),
            tls: Tls::default(),
            make_applier: OnceLock::new(),
            unblock: OnceLock::new(),
            durable,
        }
    }

    /// Shows the layers below what they need of replication.
    pub fn attach(&'static self) {
        self.set_replication(Box::new(View(self)));
        self.set_slot_imports(Box::new(RecordedImports(self)));
        self.set_interrupt_primary(|| self.replication.upstream.interrupt());
    }

    /// Sets what executes a primary's commands, once.
    pub fn set_applier(&self, make: impl Fn(Participant) -> Box<dyn Apply> + Send + Sync + 'static) {
        // A second call would be a mistake of the process's start alone; the first stays.
        let _ = self.make_applier.set(Box::new(make));
    }

    /// Sets what answers clients that wait for keys when the server becomes a replica, once.
    pub fn set_unblock(&self, unblock: impl Fn(&ReplicatedCore, &mut Locked, &WorkerStats) + Send + Sync + 'static) {
        // As above.
        let _ = self.unblock.set(Box::new(unblock));
    }

    /// Something that executes a primary's commands; `None` before it was set.
    pub(crate) fn applier(&self, participant: Participant) -> Option<Box<dyn Apply>> {
        self.make_applier.get().map(|make| make(participant))
    }

    /// Answers clients that wait for keys: the server becomes a replica. The caller holds the global lock.
    pub(crate) fn unblock(&self, global: &mut Locked, stats: &WorkerStats) {
        if let Some(unblock) = self.unblock.get() {
            unblock(self, global, stats);
        }
    }

    /// A worker, or another thread, has appended to the write log: wakes its readers, except the worker itself. True if
    /// replies do well to wait: see [`Aof::on_log_appended`](kvick_durability::aof::Aof::on_log_appended).
    #[inline]
    pub fn on_log_appended(&self, worker: Option<usize>) -> bool {
        self.replication.wake_feeders(self, worker);
        self.aof.on_log_appended(&self.keyspace.log)
    }
}
