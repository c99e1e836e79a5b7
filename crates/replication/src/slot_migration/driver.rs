//! The thread that carries out the actions of the jobs that may take time, in order, and tells them the time.

use super::export::{self, Order};
use super::{SlotMigration, cleanup};
use crate::ReplicatedCore;
use kvick_cluster::migration::{Action, JobName, Jobs, Level, Message, RangeList};
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientInfo;
use kvick_core::inbox::Delivery;
use kvick_core::message;
use kvick_runtime::logging;
use kvick_store::log::{Batch, encode};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often the jobs learn the time.
const TICK: Duration = Duration::from_millis(100);
/// The same if all of them have ended.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// Where jobs have their connections.
#[derive(Default)]
pub(super) struct Handles {
    pub(super) exports: Mutex<Vec<(JobName, export::Handle)>>,
    pub(super) imports: Mutex<Vec<Import>>,
}

/// The connection of an import.
pub(super) struct Import {
    pub(super) job: JobName,
    pub(super) info: Arc<ClientInfo>,
    /// Bytes received that are in the statistics.
    counted: u64,
}

impl Import {
    pub(super) fn new(job: JobName, info: Arc<ClientInfo>) -> Import {
        let counted = info.bytes_in.get();
        Import { job, info, counted }
    }

    /// Adds what was received since the last call to the statistics.
    pub(super) fn count(&mut self, core: &ReplicatedCore) {
        let before = std::mem::replace(&mut self.counted, self.info.bytes_in.get());
        core.replication.counts.slot_bytes_in.fetch_add(self.counted.saturating_sub(before), Ordering::Relaxed);
    }
}

impl Handles {
    fn order(&self, job: JobName, order: Order) {
        if let Some((_, export)) = self.exports.lock().iter().find(|(name, _)| *name == job) {
            export.order(order);
        }
    }
}

/// Starts the driver, after [`SlotMigration::set_membership`].
pub fn start(core: &'static ReplicatedCore) -> io::Result<()> {
    std::thread::Builder::new().name("slot-migration".into()).spawn(move || {
        kvick_runtime::memory::register_thread();
        kvick_runtime::time_slice::shorten();
        run(core);
    })?;
    Ok(())
}

fn run(core: &'static ReplicatedCore) {
    let migration = &core.slot_migration;
    let mut ticked_at = Instant::now();
    let mut loaded_ms = core.admission.loading_since_ms();
    while !core.is_shutting_down() {
        let interval = if migration.is_active() { TICK } else { IDLE_TICK };
        if ticked_at.elapsed() >= interval {
            ticked_at = Instant::now();
            let loading_ms = core.admission.loading_since_ms();
            if loading_ms != loaded_ms && !core.admission.has(Reasons::LOADING) {
                loaded_ms = loading_ms;
                migration.with(core, Jobs::load_ended);
            }
            tick(core, migration);
        }
        let mut machine = migration.machine.lock();
        if machine.actions.is_empty() {
            let left = interval.saturating_sub(ticked_at.elapsed());
            migration.has_actions.wait_for(&mut machine, left);
        }
        let Some(action) = machine.actions.pop_front() else { continue };
        machine.is_performing = !matches!(action, Action::Log(..));
        drop(machine);
        if let Some(action) = pass_on(core, &migration.handles, action) {
            perform(core, migration, action);
        }
        migration.machine.lock().is_performing = false;
    }
}

fn tick(core: &ReplicatedCore, migration: &SlotMigration) {
    let heard: Vec<(JobName, u64)> = {
        let mut imports = migration.handles.imports.lock();
        imports.iter_mut().for_each(|import| import.count(core));
        let heard_s = |info: &ClientInfo| u64::try_from(info.active_ms.load(Ordering::Relaxed) / 1000).unwrap_or(0);
        imports.iter().map(|import| (import.job, heard_s(&import.info))).collect()
    };
    migration.with(core, |jobs, context| {
        heard.into_iter().for_each(|(job, at_s)| jobs.heard(job, at_s));
        jobs.tick(context);
    });
}

/// Carries out an action that only passes something on to another thread. Returns any other. The caller may have the
/// lock of the jobs.
pub(super) fn pass_on(core: &ReplicatedCore, handles: &Handles, action: Action) -> Option<Action> {
    match action {
        Action::Authenticate { job } => handles.order(job, Order::Authenticate),
        Action::Establish { job, request } => handles.order(job, Order::Establish(request)),
        Action::StartSnapshot { job, slots } => handles.order(job, Order::StartSnapshot(slots)),
        Action::PauseWrites { job, slots } => handles.order(job, Order::PauseWrites(slots)),
        Action::GrantFailover { job } => {
            // A manual failover may have begun since the jobs looked. From now on it sees the grant, and waits.
            let membership = core.slot_migration.membership.get();
            if membership.is_some_and(|membership| !membership.is_failing_over()) {
                handles.order(job, Order::Send(Message::FailoverGranted));
            }
        }
        Action::Send { job, message } => send(core, handles, job, message),
        Action::ResumeWrites { job, slots } => {
            handles.order(job, Order::ForgetPause);
            core.pause.slots.release(slots.slots());
            core.send_all(|| message::Message::Resume);
        }
        Action::Disconnect { job } => disconnect(core, handles, job),
        action => return Some(action),
    }
    None
}

/// Carries out an action that may take time.
fn perform(core: &'static ReplicatedCore, migration: &'static SlotMigration, action: Action) {
    match action {
        Action::Log(Level::Notice, line) => logging::notice(format_args!("{line}")),
        Action::Log(Level::Warning, line) => logging::warning(format_args!("{line}")),
        Action::Connect { job, address, port, .. } => connect(core, migration, job, address, port),
        Action::SetImporting { slots, importing } => set_importing(core, &slots, importing),
        Action::AwaitReplicas { job, replicas } => {
            migration.waiting.add(core, job, replicas);
            migration.on_replica_ack(core);
        }
        Action::Claim { job, slots } => {
            let may_claim = migration.with(core, |jobs, context| jobs.may_claim(job, context));
            let membership = migration.membership.get().filter(|_| may_claim == Some(true));
            if let Some(membership) = membership {
                let claimed = membership.claim(&slots);
                migration.with(core, |jobs, context| jobs.claimed(job, claimed, context));
            }
        }
        Action::WithdrawGrant { .. } => {
            if let Some(membership) = migration.membership.get() {
                membership.withdraw_grant();
            }
        }
        Action::DeleteKeys { job, number, slots } => cleanup::start(core, job, number, slots),
        Action::Propagate { words } => propagate(core, &words),
        action => debug_assert!(false, "{action:?} is passed on"),
    }
}

fn connect(core: &'static ReplicatedCore, migration: &SlotMigration, job: JobName, address: String, port: u16) {
    match export::start(core, job, address, port) {
        Ok(handle) => migration.handles.exports.lock().push((job, handle)),
        Err(error) => {
            migration.with(core, |jobs, context| jobs.connect_failed(job, &error.to_string(), context));
        }
    }
}

fn send(core: &ReplicatedCore, handles: &Handles, job: JobName, message: Message) {
    let imports = handles.imports.lock();
    let info = imports.iter().find(|import| import.job == job).map(|import| import.info.clone());
    drop(imports);
    match info {
        Some(info) => core.put(info.worker(), Delivery::ToSource(info, message.encode())),
        None => handles.order(job, Order::Send(message)),
    }
}

fn disconnect(core: &ReplicatedCore, handles: &Handles, job: JobName) {
    core.slot_migration.waiting.remove(job);
    handles.order(job, Order::Disconnect);
    handles.exports.lock().retain(|(name, _)| *name != job);
    let mut imports = handles.imports.lock();
    let Some(index) = imports.iter().position(|import| import.job == job) else { return };
    let mut import = imports.swap_remove(index);
    drop(imports);
    import.count(core);
    let info = import.info;
    if !info.doomed.swap(true, Ordering::SeqCst) {
        core.send(info.worker(), message::Message::Close(info));
    }
}

fn set_importing(core: &ReplicatedCore, slots: &RangeList, importing: bool) {
    core.keyspace.set_hidden(slots.slots().map(usize::from), importing);
}

/// Appends a request to the write log, behind all commands so far.
fn propagate(core: &ReplicatedCore, words: &[Vec<u8>]) {
    let mut records = Vec::new();
    encode(&mut records, words.iter().map(Vec::as_slice));
    let global = core.keyspace.lock_global();
    let batch = Batch { databases: (0, 0), records: &[&records], record_count: 1, replica_only: &[], aof_only: &[] };
    core.keyspace.log.append(&batch);
    drop(global);
    core.on_log_appended(None);
}
