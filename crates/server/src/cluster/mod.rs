//! This server as a node of a cluster: connects the state machine and the bus to the rest of the server.
//!
//! ```text
//! commands (workers, under the global lock) --+            +--> actions for the bus: send, connect, save
//!                                             v            |
//!                          state machine (kvick_cluster) --+
//!                                             ^            |
//! cluster bus (its thread) -------------------+            +--> changes of this server: role, slot map, keys, pauses
//! ```
//!
//! Changes of this server need the global lock, which the bus thread must not wait for: a long script would make the
//! node look dead. They are queued in order, and the thread `cluster` makes them. A command that changes the cluster
//! holds the global lock and makes them itself, before it replies; so its effects are visible to the next command.
//!
//! Lock order: global lock, state machine, queue of changes.

mod changes;
mod facts;
pub mod replies;
mod set_slot;
mod settings;
mod shutdown;
mod slot_migration;
mod start;
pub mod turns;

pub use replies::{Published, Viewer};
pub use start::{StartError, start};

use crate::server::Server;
use kvick_cluster::migration::Jobs;
use kvick_cluster::state::{Action, Cluster, DebugSettings, Facts, Settings};
use kvick_cluster_bus::Bus;
use kvick_core::inbox::Served;
use kvick_core::routing;
use kvick_engine::session::Session;
use kvick_resp::Reply;
use kvick_store::{Kind, Locked, Waiter};
use parking_lot::{Condvar, Mutex, RwLock};
use set_slot::PendingSetSlot;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use turns::Turns;

/// How often the thread `cluster` checks waiting commands.
const WAIT_CHECK: Duration = Duration::from_millis(2);

/// In [`ClusterNode::full_sync_generation`]: the role change is queued.
const FULL_SYNC_QUEUED: u64 = u64::MAX;

/// See the module's documentation.
pub struct ClusterNode {
    server: &'static Server,
    bus: &'static Bus,
    published: RwLock<Arc<Published>>,
    queue: Mutex<Queue>,
    queued: Condvar,
    /// Whether a database had keys when that was last checked; the bus need not know it exactly.
    had_keys: AtomicBool,
    /// Whether the data at the start is loaded, or was found to be missing.
    is_loaded: AtomicBool,
    /// The generation of the primary that has another history, so that this server's data counts only after a full
    /// sync from it; 0 if there was none since this server was a primary.
    full_sync_generation: AtomicU64,
    turns: Turns,
    debug: Mutex<DebugSettings>,
}

#[derive(Default)]
struct Queue {
    changes: VecDeque<Action>,
    /// Slots that were lost, whose keys are deleted once the slot map says so.
    lost: Vec<u16>,
    /// SETSLOT commands that wait for replicas.
    set_slots: Vec<PendingSetSlot>,
}

impl ClusterNode {
    /// Runs `change` on the state machine, and makes the changes of this server that follow from it. The caller holds
    /// the global lock.
    pub fn change<T>(&'static self, global: &mut Locked, change: impl FnOnce(&mut Cluster, &Facts<'_>) -> T) -> T {
        self.note_keys();
        let result = self.bus.with(change);
        self.make_changes(global);
        result
    }

    /// Reads from the state machine. Changes that `read` makes regardless are made later.
    pub fn read<T>(&self, read: impl FnOnce(&mut Cluster, &Facts<'_>) -> T) -> T {
        self.bus.with(read)
    }

    /// The current topology.
    pub fn published(&self) -> Arc<Published> {
        self.published.read().clone()
    }

    /// The current topology with present replication offsets, which are not published when they change.
    pub fn fresh(&self) -> Arc<Published> {
        let published = self.published();
        if published.is_fresh() {
            return published;
        }
        let topology = self.bus.with(|cluster, facts| cluster.topology(facts));
        let fresh = Arc::new(Published::new(topology, published.preferred));
        *self.published.write() = fresh.clone();
        fresh
    }

    /// The text of CLUSTER INFO. When it says that the cluster is ok, commands are executed.
    pub fn info_text(&self) -> String {
        let routing = self.server.routing.as_ref();
        let is_served = routing.is_some_and(|routing| routing.current().state == routing::ClusterState::Ok);
        self.read(|cluster, _| cluster.info_text(is_served))
    }

    /// Saves `nodes.conf`, and answers the client when it is on disk.
    pub fn save_for(&self, cx: &mut Session<'_>) {
        let waiter = Waiter::new(Kind::String, false, 0, Box::new(()));
        let (client, ticket, version, server) =
            (cx.client.info.clone(), waiter.ticket(), cx.client.version, self.server);
        self.bus.save(move |saved| {
            let mut reply = Vec::new();
            let mut writer = Reply::new(&mut reply, version);
            match saved {
                true => writer.ok(),
                false => writer.error("ERR error saving the cluster node config: see the log"),
            }
            server.answer(Served { client, ticket, reply, is_last: false });
        });
        *cx.waits = Some(waiter);
    }

    /// The bus.
    pub fn bus(&self) -> &'static Bus {
        self.bus
    }

    /// Applies changed settings. The caller holds the global lock.
    pub fn reconfigure(&'static self, global: &mut Locked) {
        let values = self.server.config.values();
        let settings = Settings { debug: *self.debug.lock(), ..settings::of(&values) };
        self.bus.tolerate_failed_saves(settings::tolerates_failed_saves(&values));
        self.bus.with(|cluster, _| cluster.set_settings(settings));
        self.queue.lock().changes.push_back(Action::TopologyChanged);
        self.make_changes(global);
    }

    /// Changes what DEBUG has set. The caller holds the global lock.
    pub fn debug(&'static self, global: &mut Locked, change: impl FnOnce(&mut DebugSettings)) {
        change(&mut self.debug.lock());
        self.reconfigure(global);
    }

    /// The data is loaded, or there was none.
    pub fn data_loaded(&'static self) {
        self.note_keys();
        self.server.slot_migration.with(self.server, Jobs::load_ended);
        self.bus.with(|cluster, facts| cluster.data_loaded(facts));
        self.is_loaded.store(true, Ordering::SeqCst);
    }

    /// Whether replicas may copy the data: not before it is loaded, nor while a replica is to take over because there
    /// is none.
    pub fn has_data_for_replicas(&self) -> bool {
        self.is_loaded.load(Ordering::SeqCst) && !self.read(|cluster, _| cluster.waits_for_takeover())
    }

    /// The thread `cluster`: makes changes of this server.
    fn run(&'static self) {
        loop {
            {
                let mut queue = self.queue.lock();
                while queue.changes.is_empty() {
                    if queue.set_slots.is_empty() {
                        self.queued.wait(&mut queue);
                    } else if self.queued.wait_for(&mut queue, WAIT_CHECK).timed_out() {
                        break;
                    }
                }
            }
            if self.server.is_shutting_down() {
                return;
            }
            let mut global = self.server.keyspace.lock_global();
            self.make_changes(&mut global);
            self.continue_set_slots(&mut global);
        }
    }
}
