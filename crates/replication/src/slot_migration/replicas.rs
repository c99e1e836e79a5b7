//! Imports that wait until replicas have what they received.

use crate::ReplicatedCore;
use kvick_cluster::migration::JobName;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The imports that wait.
#[derive(Default)]
pub(super) struct WaitingImports {
    list: Mutex<Vec<WaitingImport>>,
    /// Whether the list has an entry.
    any: AtomicBool,
}

struct WaitingImport {
    job: JobName,
    /// The offset of the log that replicas have to acknowledge.
    offset: u64,
    /// How many have to.
    replicas: u64,
}

impl WaitingImports {
    /// Adds an import, in place of an earlier wait of it, and asks the replicas for their offsets.
    pub(super) fn add(&self, core: &ReplicatedCore, job: JobName, replicas: u64) {
        // Behind the commands of the import, which a worker may still be appending.
        let global = core.keyspace.lock_global();
        let offset = core.keyspace.log.offset();
        core.keyspace.log.append_replica_only(&[b"REPLCONF", b"GETACK", b"*"]);
        drop(global);
        let mut list = self.list.lock();
        list.retain(|waiting| waiting.job != job);
        list.push(WaitingImport { job, offset, replicas });
        self.any.store(true, Ordering::SeqCst);
        drop(list);
        core.on_log_appended(None);
    }

    /// Removes an import that has ended.
    pub(super) fn remove(&self, job: JobName) {
        let mut list = self.list.lock();
        list.retain(|waiting| waiting.job != job);
        self.any.store(!list.is_empty(), Ordering::SeqCst);
    }

    /// Takes the imports that enough replicas have acknowledged.
    pub(super) fn take_replicated(&self, core: &ReplicatedCore) -> Vec<JobName> {
        if !self.any.load(Ordering::SeqCst) {
            return Vec::new();
        }
        let mut list = self.list.lock();
        let is_replicated = |waiting: &mut WaitingImport| {
            core.replication.replicas.count_acked(waiting.offset, false) as u64 >= waiting.replicas
        };
        let done = list.extract_if(.., is_replicated).map(|waiting| waiting.job).collect();
        self.any.store(!list.is_empty(), Ordering::SeqCst);
        done
    }
}
