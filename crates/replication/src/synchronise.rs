//! Full sync on the primary: takes the snapshots for replicas, and manages the backlog.
//!
//! Replicas that want the same dump share one. Those that want a different one, in an older format or of part of the
//! data, wait for the next; so a value that an old format cannot represent does not delay the others.

use super::disk_backed::DiskBackedSync;
use super::pause_after_fork::StopAfterDump;
use super::replicas::{Replica, Stage};
use super::transfer::{Ended, Reader, Transfer};
use crate::ReplicatedCore;
use kvick_config::tables::persistence::SAVE;
use kvick_config::tables::replication as settings;
use kvick_core::admission::Reasons;
use kvick_durability::persistence::file::{self, SaveError};
use kvick_durability::persistence::format::{Format, Parts, dump_version};
use kvick_durability::persistence::snapshots::{self, Destination, Purpose, Request};
use kvick_rdb::{VERSION, VERSION_REDIS};
use kvick_runtime::logging;
use kvick_store::log::{Audience, Follower};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A full sync that has begun; the replica's worker takes it.
pub struct PendingFullSync {
    /// The replication ID of the snapshot.
    pub history: String,
    /// The offset.
    pub offset: u64,
    /// The database selected at that offset, if the log does not select one itself: that of a replica's primary.
    pub database: usize,
    /// The dump.
    pub reader: Reader,
    /// The log after the dump; `None` if the replica wants the dump only.
    pub follower: Option<Follower>,
    /// Whether the length is unknown: the replica then reports when it has loaded the dump.
    pub is_streamed: bool,
    /// Pauses commands, and stops the process once the dump is sent: DEBUG PAUSE-AFTER-FORK.
    pub stop_after_dump: Option<Arc<StopAfterDump>>,
}

/// Full syncs to be taken by the replicas' workers.
#[derive(Default)]
pub struct PendingFullSyncs {
    /// By the IDs of their clients.
    waiting: Mutex<Vec<(u64, PendingFullSync)>>,
    current: Mutex<Option<CurrentDump>>,
}

/// The current or last dump for replicas.
struct CurrentDump {
    transfer: Arc<Transfer>,
    is_streamed: bool,
    history: String,
    offset: u64,
    database: usize,
    spec: DumpSpec,
    /// The replicas that wait for it, if it goes through a file.
    replicas: Arc<Mutex<Vec<Arc<Replica>>>>,
}

/// The properties in which dumps for replicas differ.
#[derive(Clone, Copy, PartialEq, Eq)]
struct DumpSpec {
    /// The version of the format.
    version: u16,
    parts: Parts,
}

impl DumpSpec {
    /// A replica's request. A replica that does not announce its version gets an old format.
    fn requested_by(replica: &Replica) -> DumpSpec {
        const FORMAT_SINCE_VERSION: u32 = 9 << 16;
        let is_new = replica.version.load(Ordering::Relaxed) >= FORMAT_SINCE_VERSION;
        DumpSpec { version: if is_new { VERSION } else { VERSION_REDIS }, parts: *replica.requested_parts.lock() }
    }
}

impl PendingFullSyncs {
    /// Offers an attached replica its full sync. Does nothing if the replica has disconnected meanwhile.
    fn offer(&self, core: &ReplicatedCore, replica: &Arc<Replica>, full_sync: PendingFullSync) {
        self.waiting.lock().push((replica.client.id, full_sync));
        // A disconnection detaches the replica first, and then takes what is offered.
        if !core.replication.replicas.is_attached(replica) {
            drop(self.take(replica.client.id));
        }
    }

    /// Takes a replica's full sync, if its snapshot has begun.
    pub fn take(&self, client: u64) -> Option<PendingFullSync> {
        let mut all = self.waiting.lock();
        let at = all.iter().position(|(id, _)| *id == client)?;
        Some(all.swap_remove(at).1)
    }
}

/// Registers a replica for a full sync. It joins the running dump if possible. The caller holds the global lock.
pub fn register_for_full_sync(core: &ReplicatedCore, replica: &Arc<Replica>) {
    if replica.is_dump_channel.load(Ordering::Relaxed) {
        let is_empty = core.keyspace.log.backlog().is_empty();
        logging::debug(format_args!(
            "Dual channel replication: Add rdb replica {} to waiting psync, with cid {}, {}",
            replica.name(),
            replica.client.id,
            if is_empty { "no repl-backlog to track" } else { "tracking repl-backlog tail" }
        ));
    }
    let Some(purpose) = core.persistence.status().running.map(|running| running.purpose) else {
        if is_streamed(core, std::slice::from_ref(replica)) && core.config.read(settings::REPL_DISKLESS_SYNC_DELAY) > 0
        {
            logging::notice(format_args!("Delay next BGSAVE for diskless SYNC"));
        }
        return;
    };
    let current = core.replication.pending_full_syncs.current.lock();
    match current.as_ref().filter(|_| purpose == Purpose::Replicas) {
        None => logging::notice(format_args!(
            "No BGSAVE in progress, but another BG operation is active. BGSAVE for replication delayed"
        )),
        Some(current) if current.is_streamed => {
            logging::notice(format_args!("Current BGSAVE has socket target. Waiting for next BGSAVE for SYNC"));
        }
        Some(current) => {
            let can =
                if join(core, current, replica) { "" } else { "Can't attach the replica to the current BGSAVE. " };
            let which = if can.is_empty() { "end of" } else { "next" };
            logging::notice(format_args!("{can}Waiting for {which} BGSAVE for SYNC"));
        }
    }
}

/// Adds a replica to a dump that is being written to a file; false if that is impossible.
fn join(core: &ReplicatedCore, current: &CurrentDump, replica: &Arc<Replica>) -> bool {
    let pending_full_syncs = &core.replication.pending_full_syncs;
    if DumpSpec::requested_by(replica) != current.spec
        || replica.is_dump_only.load(Ordering::Relaxed)
        || current.transfer.readers() == 0
    {
        return false;
    }
    // The log is retained from there on for the waiting replicas.
    let Some(follower) = core.keyspace.log.follow_from(current.offset, Audience::All) else { return false };
    let Some(reader) = current.transfer.reader() else { return false };
    let (history, offset, database) = (current.history.clone(), current.offset, current.database);
    let full_sync = PendingFullSync {
        history,
        offset,
        database,
        reader,
        follower: Some(follower),
        is_streamed: false,
        stop_after_dump: None,
    };
    current.replicas.lock().push(replica.clone());
    // The replica's worker is executing its request: the replica is attached after it.
    pending_full_syncs.waiting.lock().push((replica.client.id, full_sync));
    replica.set_stage(Stage::Saving);
    core.wake(replica.client.worker());
    true
}

/// A replica has disconnected: cancels a dump that no replica waits for, unless save points would also require it.
pub fn replica_disconnected(core: &ReplicatedCore) {
    let mut current = core.replication.pending_full_syncs.current.lock();
    let Some(found) = current.as_ref().filter(|current| current.transfer.readers() == 0) else { return };
    if found.is_streamed || is_only_for_replicas(core) {
        let (transfer, is_streamed) = (found.transfer.clone(), found.is_streamed);
        *current = None;
        drop(current);
        if core.persistence.status().running_for(Purpose::Replicas).is_some() {
            log_abandoned(&transfer, is_streamed);
            snapshots::cancel(&core.persistence, Purpose::Replicas);
        }
    }
}

/// Logs once that no replica waits for a dump any more: by the worker that loses the last one, or by the writing
/// thread.
pub fn log_abandoned(transfer: &Transfer, is_streamed: bool) {
    if transfer.abandon() {
        let what = if is_streamed { "Diskless rdb transfer" } else { "Background saving, persistence disabled" };
        logging::notice(format_args!("{what}, last replica dropped, killing fork child."));
    }
}

/// Whether a dump's file is needed for replicas only.
pub fn is_only_for_replicas(core: &ReplicatedCore) -> bool {
    core.config.read(SAVE).points().is_empty()
}

/// Called ten times a second.
pub fn tick(core: &'static ReplicatedCore) {
    let mut waiting = core.replication.replicas.all();
    waiting.retain(|replica| replica.stage() == Stage::Waiting);
    let Some(spec) = waiting.first().map(|first| DumpSpec::requested_by(first)) else { return };
    waiting.retain(|replica| DumpSpec::requested_by(replica) == spec);
    if is_due(core, &waiting) {
        begin(core, &waiting, spec);
    }
}

/// Whether the replicas have waited long enough for others to arrive.
fn is_due(core: &ReplicatedCore, waiting: &[Arc<Replica>]) -> bool {
    let values = core.config.values();
    let delay_ms = i64::from(values.read(settings::REPL_DISKLESS_SYNC_DELAY)) * 1000;
    let enough = values.read(settings::REPL_DISKLESS_SYNC_MAX_REPLICAS) as usize;
    let now_ms = kvick_runtime::clock::unix_ms();
    let longest = waiting.iter().map(|replica| replica.since_ack_ms(now_ms)).max().unwrap_or(0);
    let waits = values.read(settings::REPL_DISKLESS_SYNC) && is_streamed(core, waiting);
    !waits || longest >= delay_ms || (enough > 0 && waiting.len() >= enough)
}

/// Takes a snapshot for replicas that all want the same dump.
fn begin(core: &'static ReplicatedCore, waiting: &[Arc<Replica>], spec: DumpSpec) {
    let mut global = core.keyspace.lock_global();
    if core.admission.has(Reasons::LOADING) {
        // DEBUG LOADAOF: the data is incomplete, and replicas would not receive the rest.
        return;
    }
    let transfer = Arc::new(Transfer::default());
    let readers: Vec<Reader> = waiting.iter().filter_map(|_| transfer.reader()).collect();
    let is_streamed = is_streamed(core, waiting);
    let (log, replicas) = (&core.keyspace.log, Arc::new(Mutex::new(waiting.to_vec())));
    let destination: Box<dyn Destination> = match is_streamed {
        true => Box::new(DisklessSync { core, transfer: transfer.clone(), mark: super::history::random_id() }),
        false => Box::new(DiskBackedSync::new(core, transfer.clone(), replicas.clone())),
    };
    let format = Format::for_replicas(core, spec.version, spec.parts);
    let request = Request { purpose: Purpose::Replicas, format, destinations: vec![destination] };
    // The log for replicas starts at the snapshot.
    let followers: Vec<Follower> = waiting.iter().map(|_| log.follow(Audience::All)).collect();
    let mut current = core.replication.pending_full_syncs.current.lock();
    let Ok(offset) = snapshots::begin(core, &mut global, request) else { return };
    let history = core.replication.history.lock().id.clone();
    let upstream = &core.replication.upstream;
    let database = if upstream.is_replica() { upstream.database.load(Ordering::Relaxed) } else { 0 };
    *current = Some(CurrentDump { transfer, is_streamed, history: history.clone(), offset, database, spec, replicas });
    drop(current);
    let has_channels = waiting.iter().any(|replica| replica.is_dump_channel.load(Ordering::Relaxed));
    let stops = has_channels && core.replication.pauses_after_fork.load(Ordering::Relaxed);
    let stop = stops.then(|| StopAfterDump::begin(core));
    for ((replica, reader), follower) in waiting.iter().zip(readers).zip(followers) {
        let (history, mut follower, mut stop_after_dump) = (history.clone(), Some(follower), None);
        if replica.is_dump_channel.load(Ordering::Relaxed) {
            *replica.pin.lock() = follower.take();
            stop_after_dump = stop.clone();
            logging::debug(format_args!(
                "Dual channel replication: Attach replica rdb client {} to repl buf block",
                replica.client.id
            ));
        } else if replica.is_dump_only.load(Ordering::Relaxed) {
            follower = None;
        }
        let full_sync = PendingFullSync { history, offset, database, reader, follower, is_streamed, stop_after_dump };
        core.replication.pending_full_syncs.offer(core, replica, full_sync);
        replica.set_stage(Stage::Saving);
        core.wake(replica.client.worker());
    }
    let target = if is_streamed { "replicas sockets" } else { "disk" };
    let using = if has_channels { "dual-channel" } else { "normal sync" };
    logging::notice(format_args!("Starting BGSAVE for SYNC with target: {target} using: {using}"));
    if is_streamed {
        let (pid, way) =
            (std::process::id(), if has_channels { "direct socket to replica" } else { "pipe through parent process" });
        logging::notice(format_args!("Background RDB transfer started by pid {pid} to {way}"));
    } else {
        logging::notice(format_args!("Background saving started by pid {}", std::process::id()));
    }
}

/// Whether the dump is streamed: if the settings require it or the server must not keep this dump as a file, and all of
/// the replicas accept an unknown length.
fn is_streamed(core: &ReplicatedCore, replicas: &[Arc<Replica>]) -> bool {
    let kept = DumpSpec { version: dump_version(core), parts: Parts::ALL };
    let is_kept = replicas.iter().all(|replica| DumpSpec::requested_by(replica) == kept);
    (core.config.read(settings::REPL_DISKLESS_SYNC) || !is_kept)
        && replicas.iter().all(|replica| replica.supports_eof.load(Ordering::Relaxed))
}

/// A streamed dump: its length is unknown, so a mark delimits it.
struct DisklessSync {
    core: &'static ReplicatedCore,
    transfer: Arc<Transfer>,
    mark: String,
}

impl Destination for DisklessSync {
    fn open(&mut self) -> Result<(), SaveError> {
        self.write(format!("$EOF:{}\r\n", self.mark).as_bytes()).map_err(|error| SaveError::Write("replicas", error))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.transfer.write(bytes).inspect_err(|_| log_abandoned(&self.transfer, true))?;
        self.core.replication.wake_feeders(self.core, None);
        Ok(())
    }

    fn finish(mut self: Box<Self>, outcome: Result<(), SaveError>) -> Result<(), SaveError> {
        let mark = std::mem::take(&mut self.mark);
        let outcome = outcome
            .and_then(|()| self.transfer.write(mark.as_bytes()).map_err(|error| SaveError::Write("replicas", error)));
        match &outcome {
            Ok(()) => {
                let left = self.transfer.readers();
                logging::notice(format_args!(
                    "Diskless rdb transfer, done reading from pipe, {left} replicas still up."
                ));
                logging::notice(format_args!("Background RDB transfer terminated with success"));
            }
            Err(error) => {
                if matches!(error, SaveError::Unrepresentable(_)) {
                    file::log_save_error(error);
                }
                logging::warning(format_args!("Background RDB transfer error"));
            }
        }
        self.transfer.end(if outcome.is_ok() { Ended::Complete } else { Ended::Failed });
        self.core.replication.wake_feeders(self.core, None);
        outcome
    }
}

/// Manages the backlog: it exists from the first replica on, until some time after the last.
pub fn keep_backlog(core: &ReplicatedCore) {
    let replication = &core.replication;
    if !replication.has_backlog.swap(true, Ordering::SeqCst) {
        // Changes without replicas were not logged: the data belongs to no known history.
        replication.history.lock().change_id();
        let id = replication.history.lock().id.clone();
        logging::notice(format_args!(
            "Replication backlog created, my new replication IDs are '{id}' and '{}'",
            "0".repeat(id.len())
        ));
        core.keyspace.log.keep_backlog(core.config.read(settings::REPL_BACKLOG_SIZE));
    }
}
