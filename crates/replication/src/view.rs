//! Durability's view of replication.

use crate::ReplicatedCore;
use kvick_durability::{ReplicationView, Stream};
use std::sync::atomic::Ordering;

/// See the module's documentation.
pub struct View(pub &'static ReplicatedCore);

impl ReplicationView for View {
    fn stream(&self) -> Option<Stream> {
        let replication = &self.0.replication;
        let stream = || Stream {
            id: replication.history.lock().id.clone(),
            database: replication.upstream.database.load(Ordering::Relaxed),
        };
        replication.has_backlog.load(Ordering::SeqCst).then(stream)
    }

    fn resume_history(&self, id: &str, offset: u64, database: usize) {
        self.0.resume_history_from_dump(id, offset, database);
    }

    fn primary_database(&self) -> Option<usize> {
        let upstream = &self.0.replication.upstream;
        upstream.is_replica().then(|| upstream.database.load(Ordering::Relaxed))
    }

    fn replicas_acked(&self, offset: u64, on_disk: bool) -> usize {
        self.0.replication.replicas.count_acked(offset, on_disk)
    }
}
