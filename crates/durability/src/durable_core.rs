//! The core with the durability state, and the interfaces to the layers above.

use crate::aof::Aof;
use crate::open_slots::OpenSlots;
use crate::persistence::Persistence;
use crate::replay::Replayer;
use crate::slot_imports::{NoSlotImports, SlotImports};
use kvick_config::tables::persistence::APPENDFSYNC;
use kvick_core::Core;
use kvick_scripting::Scripting;
use kvick_store::global_lock::Participant;
use std::ops::Deref;
use std::sync::OnceLock;

/// A position in the replication stream.
#[derive(Clone, Debug)]
pub struct StreamPosition {
    /// The selected database.
    pub database: i64,
    /// The replication ID.
    pub id: String,
    /// The offset.
    pub offset: i64,
}

/// A stream of changes to replicas.
pub struct Stream {
    /// The replication ID.
    pub id: String,
    /// The selected database.
    pub database: usize,
}

/// The interface to replication.
pub trait ReplicationView: Send + Sync {
    /// The stream that changes are replicated in, while there is a backlog. The caller holds the global lock.
    fn stream(&self) -> Option<Stream>;

    /// Continues the history that a dump belongs to: its ID, offset and selected database.
    fn resume_history(&self, id: &str, offset: u64, database: usize);

    /// The database that the primary has selected, on a replica.
    fn primary_database(&self) -> Option<usize>;

    /// The number of replicas that have acknowledged `offset`: in memory, or on their disks.
    fn replicas_acked(&self, offset: u64, on_disk: bool) -> usize;
}

/// A server without replication.
struct NoReplication;

impl ReplicationView for NoReplication {
    fn stream(&self) -> Option<Stream> {
        None
    }

    fn resume_history(&self, _: &str, _: u64, _: usize) {}

    fn primary_database(&self) -> Option<usize> {
        None
    }

    fn replicas_acked(&self, _: u64, _: bool) -> usize {
        0
    }
}

type MakeReplayer = Box<dyn Fn(Participant) -> Box<dyn Replayer> + Send + Sync>;

/// The core with dumps, the append-only file, and the scripts and functions that both of them contain.
pub struct DurableCore {
    core: Core,
    /// Dumps.
    pub persistence: Persistence,
    /// The append-only file.
    pub aof: Aof,
    /// Scripts and functions.
    pub scripting: Scripting,
    replication: OnceLock<Box<dyn ReplicationView>>,
    make_replayer: OnceLock<MakeReplayer>,
    slot_imports: OnceLock<Box<dyn SlotImports>>,
    open_slots: OnceLock<Box<dyn OpenSlots>>,
}

impl Deref for DurableCore {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DurableCore {
    /// On a core, with neither a dump nor an append-only file loaded.
    pub fn new(core: Core) -> Self {
        DurableCore {
            persistence: Persistence::default(),
            aof: Aof::new(core.workers_max(), core.config.read(APPENDFSYNC)),
            scripting: Scripting::new(core.keyspace, core.workers_max()),
            core,
            replication: OnceLock::new(),
            make_replayer: OnceLock::new(),
            slot_imports: OnceLock::new(),
            open_slots: OnceLock::new(),
        }
    }

    /// Sets the interface to replication, once; until then the server has none.
    pub fn set_replication(&self, replication: Box<dyn ReplicationView>) {
        // Only a bug would call this twice; the first stays.
        let _ = self.replication.set(replication);
    }

    /// Sets the factory of [`Replayer`]s, once.
    pub fn set_replayer(&self, make: impl Fn(Participant) -> Box<dyn Replayer> + Send + Sync + 'static) {
        // As above.
        let _ = self.make_replayer.set(Box::new(make));
    }

    /// Sets the interface to slot migration, once; until then no slot is being imported.
    pub fn set_slot_imports(&self, slot_imports: Box<dyn SlotImports>) {
        // As above.
        let _ = self.slot_imports.set(slot_imports);
    }

    /// Sets the interface to open slots, once; until then none is open.
    pub fn set_open_slots(&self, open_slots: Box<dyn OpenSlots>) {
        // As above.
        let _ = self.open_slots.set(open_slots);
    }

    /// The interface to open slots, in cluster mode.
    pub fn open_slots(&self) -> Option<&dyn OpenSlots> {
        self.open_slots.get().map(|open_slots| &**open_slots)
    }

    /// The interface to slot migration.
    pub fn slot_imports(&self) -> &dyn SlotImports {
        self.slot_imports.get().map_or(&NoSlotImports, |slot_imports| &**slot_imports)
    }

    /// The interface to replication.
    pub fn replication_view(&self) -> &dyn ReplicationView {
        self.replication.get().map_or(&NoReplication, |replication| &**replication)
    }

    /// A new replayer; `None` before the factory was set.
    pub fn replayer(&self, participant: Participant) -> Option<Box<dyn Replayer>> {
        self.make_replayer.get().map(|make| make(participant))
    }
}
