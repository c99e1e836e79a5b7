//! Atomic slot migration: the transport of the [jobs](kvick_cluster::migration) of this node.
//!
//! ```text
//! commands, messages, topology, clock --> Jobs --> actions --> driver --> export threads, workers, membership
//! ```
//!
//! All events go to [`SlotMigration::with`], from any thread, and cause actions, which are carried out in order. Those
//! that only pass something on are carried out at once, since writers may wait for them; all that may take time is left
//! to one thread, the [driver](mod@driver). Each export has a thread of its own, which sends a snapshot of
//! the slots and then the writes to them, from the write log. An import is a client of a worker, whose commands are
//! executed like those of a primary.
//!
//! **A write is never lost between two owners.** Writes to the slots are held from a point of the write log, chosen
//! under the global lock, until the target owns them or the job has ended. PAUSED follows the last write before that
//! point, and nothing follows FAILOVER-GRANTED.

mod cleanup;
mod driver;
mod export;
mod filter;
mod replicas;
mod throttle;

use crate::ReplicatedCore;
use driver::{Handles, Import};
use kvick_cluster::migration::{
    Action, CommandError, Context, Direction, Job, JobName, Jobs, Origin, RangeList, Settings, State, Topology,
};
use kvick_cluster::{NodeId, Slots};
use kvick_config::tables::{cluster, replication};
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientInfo;
use kvick_durability::slot_imports::{SlotImport, SlotImports};
use kvick_runtime::clock;
use kvick_store::global_lock::Participant;
use parking_lot::{Condvar, Mutex, RwLock};
use replicas::WaitingImports;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

pub use driver::start;

/// The state machine of the cluster, as slot migration sees it.
pub trait Membership: Send + Sync {
    /// The cluster as it is now.
    fn topology(&self) -> Arc<dyn Topology + Send + Sync>;

    /// Makes this node the owner of these slots with a new epoch, publishes the new slot map, and tells all nodes.
    /// Returns once clients are served, or false if this node is no longer a primary.
    fn claim(&self, slots: &RangeList) -> bool;

    /// Takes an epoch above that of a late claim of a target. See
    /// [`Action::WithdrawGrant`](kvick_cluster::migration::Action).
    fn withdraw_grant(&self);

    /// Whether a replica is about to replace this primary.
    fn is_failing_over(&self) -> bool;
}

/// The slot migrations of a server.
#[derive(Default)]
pub struct SlotMigration {
    membership: OnceLock<Box<dyn Membership>>,
    /// When the clock of the jobs began.
    started: OnceLock<Instant>,
    machine: Mutex<Machine>,
    /// Whether a job has not ended.
    is_active: AtomicBool,
    /// The slots of jobs that have not ended.
    slot_sets: RwLock<Arc<SlotSets>>,
    /// Signals that there are actions.
    has_actions: Condvar,
    handles: Handles,
    /// Imports that wait for replicas.
    waiting: WaitingImports,
    /// Participants in the global lock that no thread uses at present.
    participants: Mutex<Vec<Participant>>,
    /// DEBUG SLOTMIGRATION PREVENT-PAUSE.
    pub prevent_pause: AtomicBool,
    /// DEBUG SLOTMIGRATION PREVENT-FAILOVER.
    pub prevent_failover: AtomicBool,
}

/// The slots of jobs that have not ended.
#[derive(Clone, Debug)]
pub struct SlotSets {
    /// Slots that this node, or its primary, imports.
    pub importing: Slots,
    /// Slots that this node exports.
    pub exporting: Slots,
    /// The slots of each export whose target was allowed to take them over.
    pub granted: Vec<(NodeId, Slots)>,
}

impl Default for SlotSets {
    fn default() -> Self {
        SlotSets { importing: Slots::EMPTY, exporting: Slots::EMPTY, granted: Vec::new() }
    }
}

#[derive(Default)]
struct Machine {
    jobs: Jobs,
    /// Actions for the driver.
    actions: VecDeque<Action>,
    /// Whether the driver is carrying out an action that others must follow.
    is_performing: bool,
}

impl Machine {
    /// Whether the next action may be carried out now. The place of log lines among actions does not matter.
    fn has_no_action(&self) -> bool {
        !self.is_performing && self.actions.iter().all(|action| matches!(action, Action::Log(..)))
    }
}

impl SlotMigration {
    /// Sets the cluster's state machine, once. Without one there are no migrations.
    pub fn set_membership(&self, membership: Box<dyn Membership>) {
        // A second call would be a mistake of the process's start alone; the first stays.
        let _ = self.membership.set(membership);
    }

    /// Gives `call` access to the jobs, and performs the actions that follow or queues them for the driver. `None`
    /// outside of cluster mode. The caller may hold locks of the keyspace.
    pub fn with<T>(&self, core: &ReplicatedCore, call: impl FnOnce(&mut Jobs, &Context<'_>) -> T) -> Option<T> {
        self.with_loading(core, core.admission.has(Reasons::LOADING), call)
    }

    fn with_loading<T>(
        &self,
        core: &ReplicatedCore,
        loading: bool,
        call: impl FnOnce(&mut Jobs, &Context<'_>) -> T,
    ) -> Option<T> {
        let topology = self.membership.get()?.topology();
        let settings = self.settings(core);
        let now_ms = u64::try_from(clock::unix_ms()).unwrap_or_default();
        let mono_ms = self.mono_ms();
        let context = Context { topology: &*topology, settings: &settings, now_ms, mono_ms, loading };
        let mut machine = self.machine.lock();
        let result = call(&mut machine.jobs, &context);
        let actions = machine.jobs.take_actions();
        if !actions.is_empty() {
            self.note_slots(&machine.jobs);
            for action in actions {
                let left = match machine.has_no_action() {
                    true => driver::pass_on(core, &self.handles, action),
                    false => Some(action),
                };
                machine.actions.extend(left);
            }
            self.has_actions.notify_one();
        }
        Some(result)
    }

    /// Keeps the slots of the jobs where the bus finds them without a lock of the jobs.
    fn note_slots(&self, jobs: &Jobs) {
        let mut sets = SlotSets::default();
        for job in jobs.iter().filter(|job| !job.state().is_finished()) {
            let set = match job.direction() {
                Direction::Import => &mut sets.importing,
                Direction::Export => &mut sets.exporting,
            };
            let slots = job.ranges().to_slots();
            set.insert_all(slots.view());
            if let (State::ExportFailoverGranted, Some(target)) = (job.state(), job.target()) {
                sets.granted.push((target, slots));
            }
        }
        self.is_active.store(!sets.importing.is_empty() || !sets.exporting.is_empty(), Ordering::SeqCst);
        *self.slot_sets.write() = Arc::new(sets);
    }

    /// Whether a job has not ended.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// The slots of jobs that have not ended.
    pub fn slot_sets(&self) -> Arc<SlotSets> {
        self.slot_sets.read().clone()
    }

    /// Data of this node were flushed.
    pub fn flushed(&self, core: &ReplicatedCore) {
        self.with(core, Jobs::flushed);
    }

    /// Looks at the jobs.
    pub fn view<T>(&self, look: impl FnOnce(&Jobs) -> T) -> T {
        look(&self.machine.lock().jobs)
    }

    fn settings(&self, core: &ReplicatedCore) -> Settings {
        let values = core.config.values();
        let limit = values.read(cluster::SLOT_MIGRATION_MAX_FAILOVER_REPL_BYTES);
        Settings {
            repl_timeout_s: values.read(replication::REPL_TIMEOUT).into(),
            manual_failover_timeout_ms: values.read(cluster::CLUSTER_MANUAL_FAILOVER_TIMEOUT).into(),
            max_failover_repl_bytes: u64::try_from(limit).ok(),
            node_timeout_ms: values.read(cluster::CLUSTER_NODE_TIMEOUT),
            log_max_len: usize::try_from(values.read(cluster::CLUSTER_SLOT_MIGRATION_LOG_MAX_LEN))
                .unwrap_or(usize::MAX),
            authenticates: values.read(replication::PRIMARYAUTH).is_some(),
            takeover_replicas: values.read(cluster::CLUSTER_SLOT_TAKEOVER_REPLICAS),
            prevent_pause: self.prevent_pause.load(Ordering::Relaxed),
            prevent_failover: self.prevent_failover.load(Ordering::Relaxed),
        }
    }

    /// The slot map, or the role of this node, has changed, and the new one is published.
    pub fn topology_changed(&self, core: &ReplicatedCore) {
        self.with(core, Jobs::topology_changed);
    }

    /// CLUSTER SYNCSLOTS ESTABLISH. Without a client, the job is only tracked; otherwise the client's connection then
    /// belongs to it.
    pub fn establish(
        &self,
        core: &ReplicatedCore,
        arguments: &[&[u8]],
        client: Option<&Arc<ClientInfo>>,
    ) -> Option<Result<(), CommandError>> {
        let origin = if client.is_some() { Origin::Source } else { Origin::Stream };
        self.with(core, |jobs, context| {
            let job = jobs.establish(arguments, origin, context)?;
            if let Some(client) = client {
                self.handles.imports.lock().push(Import::new(job, client.clone()));
            }
            Ok(())
        })
    }

    /// The import of a client.
    pub fn import_of(&self, client: u64) -> Option<JobName> {
        let imports = self.handles.imports.lock();
        imports.iter().find(|import| import.info.id == client).map(|import| import.job)
    }

    /// The connection of an import is closed.
    pub fn import_closed(&self, core: &ReplicatedCore, client: u64) {
        let mut imports = self.handles.imports.lock();
        let Some(index) = imports.iter().position(|import| import.info.id == client) else { return };
        let mut import = imports.swap_remove(index);
        drop(imports);
        import.count(core);
        let job = import.job;
        self.with(core, |jobs, context| jobs.disconnected(job, context));
    }

    /// A replica has acknowledged more.
    pub fn on_replica_ack(&self, core: &ReplicatedCore) {
        for job in self.waiting.take_replicated(core) {
            self.with(core, |jobs, context| jobs.replicated(job, context));
        }
    }

    /// Adds what imports have received to the statistics.
    pub fn count_imported(&self, core: &ReplicatedCore) {
        self.handles.imports.lock().iter_mut().for_each(|import| import.count(core));
    }

    /// A command of an import has failed with this error.
    pub fn import_failed(&self, core: &ReplicatedCore, client: u64, error: &str) {
        let Some(job) = self.import_of(client) else { return };
        self.with(core, |jobs, context| match error.starts_with("-OOM") {
            true => jobs.out_of_memory(job, context),
            false => jobs.command_failed(job, context),
        });
    }

    /// Milliseconds until the longest pause of writes ends at the latest.
    pub fn pause_left_ms(&self) -> Option<u64> {
        let end_ms = self.view(Jobs::pause_end_ms)?;
        Some(end_ms.saturating_sub(self.mono_ms()))
    }

    /// The monotonic clock of the jobs.
    fn mono_ms(&self) -> u64 {
        u64::try_from(self.started.get_or_init(Instant::now).elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// A participant in the global lock for a thread, which gives it [back](Self::return_participant).
    fn participant(&self, core: &ReplicatedCore) -> Option<Participant> {
        let spare = self.participants.lock().pop();
        spare.or_else(|| core.keyspace.global_lock.join())
    }

    fn return_participant(&self, participant: Participant) {
        self.participants.lock().push(participant);
    }
}

/// What dumps and the append-only file know of imports.
pub(crate) struct RecordedImports(pub &'static ReplicatedCore);

impl SlotImports for RecordedImports {
    fn unfinished(&self) -> Vec<SlotImport> {
        self.0.slot_migration.view(|jobs| {
            let import = |job: &Job| SlotImport {
                name: *job.name().as_bytes(),
                ranges: job.ranges().ranges().iter().map(|range| (range.first, range.last)).collect(),
            };
            jobs.unfinished_imports().map(import).collect()
        })
    }

    fn load_began(&self) {
        self.0.slot_migration.with_loading(self.0, true, Jobs::load_began);
    }

    fn loaded(&self, import: SlotImport) {
        let ranges = import.ranges.iter().map(|(first, last)| (u64::from(*first), u64::from(*last)));
        let (Some(name), Some(ranges)) = (JobName::new(&import.name), RangeList::new(ranges)) else { return };
        self.0.slot_migration.with_loading(self.0, true, |jobs, context| jobs.load_import(name, ranges, context));
    }
}
