//! The thread that carries out the actions of the jobs, in order, and tells them the time.

use super::export::{self, Order};
use super::{SlotMigration, cleanup};
use crate::ReplicatedCore;
use kvick_cluster::migration::{Action, Direction, JobName, Jobs, Level, Message, RangeList};
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

/// Where jobs have their connections.
#[derive(Default)]
pub(super) struct Handles {
    pub(super) exports: Mutex<Vec<(JobName, export::Handle)>>,
    pub(super) imports: Mutex<Vec<(JobName, Arc<ClientInfo>)>>,
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
        run(core);
    })?;
    Ok(())
}

fn run(core: &'static ReplicatedCore) {
    let migration = &core.slot_migration;
    let mut ticked_at = Instant::now();
    let mut loaded_ms = core.admission.loading_since_ms();
    while !core.is_shutting_down() {
        if ticked_at.elapsed() >= TICK {
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
            let left = TICK.saturating_sub(ticked_at.elapsed());
            migration.has_actions.wait_for(&mut machine, left);
        }
        let Some(action) = machine.actions.pop_front() else { continue };
        drop(machine);
        perform(core, migration, action);
    }
}

fn tick(core: &ReplicatedCore, migration: &SlotMigration) {
    let heard: Vec<(JobName, u64)> = {
        let imports = migration.handles.imports.lock();
        let heard_s = |info: &ClientInfo| u64::try_from(info.active_ms.load(Ordering::Relaxed) / 1000).unwrap_or(0);
        imports.iter().map(|(job, info)| (*job, heard_s(info))).collect()
    };
    migration.with(core, |jobs, context| {
        heard.into_iter().for_each(|(job, at_s)| jobs.heard(job, at_s));
        jobs.tick(context);
    });
}

fn perform(core: &'static ReplicatedCore, migration: &'static SlotMigration, action: Action) {
    let handles = &migration.handles;
    match action {
        Action::Log(Level::Notice, line) => logging::notice(format_args!("{line}")),
        Action::Log(Level::Warning, line) => logging::warning(format_args!("{line}")),
        Action::Connect { job, address, port, .. } => connect(core, migration, job, address, port),
        Action::Authenticate { job } => handles.order(job, Order::Authenticate),
        Action::Establish { job, request } => handles.order(job, Order::Establish(request)),
        Action::StartSnapshot { job, slots } => handles.order(job, Order::StartSnapshot(slots)),
        Action::PauseWrites { job, slots } => handles.order(job, Order::PauseWrites(slots)),
        Action::GrantFailover { job } => handles.order(job, Order::Send(Message::FailoverGranted)),
        Action::Send { job, message } => send(core, migration, job, message),
        Action::ResumeWrites { job, slots } => {
            handles.order(job, Order::ForgetPause);
            core.pause.slots.release(slots.slots());
            core.send_all(|| message::Message::Resume);
        }
        Action::SetImporting { slots, importing } => set_importing(core, &slots, importing),
        Action::Claim { job, slots } => {
            let claimed = migration.membership.get().is_some_and(|membership| membership.claim(&slots));
            migration.with(core, |jobs, context| jobs.claimed(job, claimed, context));
        }
        Action::DeleteKeys { job, number, slots } => cleanup::start(core, job, number, slots),
        Action::Propagate { words } => propagate(core, &words),
        Action::Disconnect { job } => disconnect(core, handles, job),
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

fn send(core: &ReplicatedCore, migration: &SlotMigration, job: JobName, message: Message) {
    let direction = migration.view(|jobs| jobs.get(job).map(|job| job.direction()));
    if direction == Some(Direction::Export) {
        return migration.handles.order(job, Order::Send(message));
    }
    let import = migration.handles.imports.lock().iter().find(|(name, _)| *name == job).map(|(_, info)| info.clone());
    if let Some(info) = import {
        core.put(info.worker, Delivery::ToSource(info, message.encode()));
    }
}

fn disconnect(core: &ReplicatedCore, handles: &Handles, job: JobName) {
    handles.order(job, Order::Disconnect);
    handles.exports.lock().retain(|(name, _)| *name != job);
    let mut imports = handles.imports.lock();
    let Some(index) = imports.iter().position(|(name, _)| *name == job) else { return };
    let (_, info) = imports.swap_remove(index);
    drop(imports);
    if !info.doomed.swap(true, Ordering::SeqCst) {
        core.send(info.worker, message::Message::Close(info));
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
    let batch = Batch { databases: (0, 0), records: &records, record_count: 1, replica_only: &[], aof_only: &[] };
    core.keyspace.log.append(&batch);
    drop(global);
    core.on_log_appended(None);
}
