//! The writes to the slots, from the write log to the target.
//!
//! The log contains the writes to all slots. The export filters the writes to its slots at once, and buffers them until
//! the snapshot is sent and the target accepts them. So writes to other slots do not count as bytes left to send.

use super::super::filter::{Filter, Unfit};
use super::super::throttle::{Band, Throttle};
use super::connection::{Connection, Lost};
use super::probe::Probe;
use crate::ReplicatedCore;
use kvick_cluster::migration::{JobName, Message, Progress, RangeList, State};
use kvick_config::tables::network::CLIENT_OUTPUT_BUFFER_LIMIT;
use kvick_config::tables::replication::REPL_BACKLOG_SIZE;
use kvick_core::clients::ClientInfo;
use kvick_core::message;
use kvick_runtime::logging;
use kvick_store::log::Follower;
use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes of the log that are examined before the connection is served again.
const TAKEN_AT_ONCE: u64 = 1024 * 1024;

/// Bytes that any network carries within a few milliseconds.
const CLOSE_BYTES: u64 = 64 * 1024;

/// The time within which what is left can be sent, for a pause to begin.
const CLOSE_TIME: Duration = Duration::from_millis(2);

/// A target that takes nothing for this long hangs.
const HANGS_AFTER: Duration = Duration::from_millis(500);

/// How long little but not nothing is left before writes pause.
const LITTLE_FOR: Duration = Duration::from_millis(100);

/// How long the target may lag before writes pause nevertheless.
const PATIENCE_MAX: Duration = Duration::from_secs(6);

/// The part of the time for which writers are held from which on the log and GETSLOTMIGRATIONS say so.
const SHARE_SHOWN_MIN: f64 = 0.01;

/// How often the log says that writers are slowed.
const SLOWED_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// See the module's documentation. Dropping it lets writers go that it has slowed, but not a pause of writes.
pub(super) struct Stream {
    core: &'static ReplicatedCore,
    job: JobName,
    slots: RangeList,
    filter: Filter,
    /// Gone after the grant.
    follower: Option<Follower>,
    /// Whether the snapshot was sent.
    has_begun: bool,
    /// Whether all writes up to some moment after that were passed on.
    has_caught_up: bool,
    /// Writes to the slots that were taken from the log, in pieces.
    pending: VecDeque<Vec<u8>>,
    pending_bytes: usize,
    /// The offset of the log at which writes were paused, until PAUSED was sent.
    pause_at: Option<u64>,
    is_paused: bool,
    throttle: Throttle,
    /// Whether writes are held by the throttle.
    slows: bool,
    slowed_logged_at: Option<Instant>,
    is_slowed_shown: bool,
    /// Bytes taken from the log since `rated_at`, and the rate before, in bytes per second.
    taken: u64,
    rated_at: Instant,
    rate: f64,
    probe: Probe,
    /// Since when little is left to send.
    little_since: Option<Instant>,
    /// When the target began to wait for a pause.
    waits_since: Option<Instant>,
    over_soft_limit_since: Option<Instant>,
    reported: Option<u64>,
}

impl Stream {
    pub(super) fn new(core: &'static ReplicatedCore, job: JobName, slots: RangeList, follower: Follower) -> Stream {
        let now = Instant::now();
        Stream {
            core,
            job,
            filter: Filter::new(core.catalogue, &slots),
            slots,
            follower: Some(follower),
            has_begun: false,
            has_caught_up: false,
            pending: VecDeque::new(),
            pending_bytes: 0,
            pause_at: None,
            is_paused: false,
            throttle: Throttle::new(now),
            slows: false,
            slowed_logged_at: None,
            is_slowed_shown: false,
            taken: 0,
            rated_at: now,
            rate: 0.0,
            probe: Probe::default(),
            little_since: None,
            waits_since: None,
            over_soft_limit_since: None,
            reported: None,
        }
    }

    /// The snapshot was sent: from now on, writes are.
    pub(super) fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Nothing more is sent.
    pub(super) fn end(&mut self) {
        self.follower = None;
        self.forget_pending();
    }

    /// Holds writes to the slots, and sends PAUSED after all writes so far.
    pub(super) fn pause(&mut self, slots: &RangeList) {
        self.slows = false;
        self.is_paused = true;
        // No command is in progress while the global lock is held: each is either before this offset or held.
        let global = self.core.keyspace.lock_global();
        self.core.pause.slots.hold(slots.slots());
        self.pause_at = Some(self.core.keyspace.log.offset());
        drop(global);
    }

    /// The target is about to be allowed to take the slots over: nothing is sent any more, and reads of the slots are
    /// held as well. They could miss writes that the target executes.
    pub(super) fn grant(&mut self) {
        self.end();
        let global = self.core.keyspace.lock_global();
        self.core.pause.slots.hold_reads(self.slots.slots());
        drop(global);
    }

    /// Writes to the slots have been released.
    pub(super) fn forget_pause(&mut self) {
        (self.is_paused, self.pause_at, self.slows) = (false, None, false);
    }

    /// Whether there is something to take from the log, or to give to a connection that has room.
    pub(super) fn has_more(&self, connection: &Connection) -> bool {
        self.lag() > 0 || (self.has_begun && !self.pending.is_empty() && connection.has_room())
    }

    fn lag(&self) -> u64 {
        self.follower.as_ref().map_or(0, Follower::lag)
    }

    /// Takes the writes to the slots from the log, and passes them on if the snapshot was sent and there is room.
    pub(super) fn feed(&mut self, connection: &mut Connection) -> Result<(), Lost> {
        self.take()?;
        if !self.has_begun {
            return Ok(());
        }
        while connection.has_room()
            && let Some(piece) = self.pending.pop_front()
        {
            self.count_pending(self.pending_bytes - piece.len());
            connection.send(&piece);
        }
        if self.pending.is_empty() && !self.has_caught_up {
            self.has_caught_up = true;
            // What the writes during the snapshot took, which can be tens of megabytes, goes back to the kernel now.
            // Otherwise it would be returned with the first deleted keys, while clients wait for the hand-over.
            kvick_runtime::memory::purge_pages();
        }
        if let (Some(at), Some(follower)) = (self.pause_at, &self.follower)
            && follower.offset() >= at
            && self.pending.is_empty()
        {
            self.pause_at = None;
            connection.send(&Message::Paused.encode());
        }
        Ok(())
    }

    /// Takes the writes to the slots from the log, up to a limit per call.
    fn take(&mut self) -> Result<(), Lost> {
        let before = self.taken;
        while self.taken - before < TAKEN_AT_ONCE
            && let Some(follower) = &mut self.follower
        {
            let until = self.pause_at.unwrap_or(u64::MAX);
            let Ok(bytes) = follower.next(until) else { return Err(Lost("the write log begins anew".into())) };
            let Some(bytes) = bytes else { return Ok(()) };
            self.taken += bytes.len() as u64;
            let mut piece = Vec::new();
            if let Err(unfit) = self.filter.feed(&bytes, &mut piece) {
                self.fail(unfit);
                self.follower = None;
                self.forget_pending();
                return Ok(());
            }
            if !piece.is_empty() {
                self.count_pending(self.pending_bytes + piece.len());
                self.pending.push_back(piece);
            }
        }
        Ok(())
    }

    fn forget_pending(&mut self) {
        self.pending.clear();
        self.count_pending(0);
    }

    /// Eviction must not count what waits for the target: evicting keys would only add to it.
    fn count_pending(&mut self, bytes: usize) {
        self.core.snapshot_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.core.snapshot_bytes.fetch_sub(self.pending_bytes, Ordering::Relaxed);
        self.pending_bytes = bytes;
    }

    fn fail(&self, unfit: Unfit) {
        let message = match unfit {
            Unfit::Flushed => "Data was flushed",
            Unfit::CrossSlot => "A command wrote to migrating and other slots",
            Unfit::Malformed => "The write log could not be read",
        };
        self.core.slot_migration.with(self.core, |jobs, context| jobs.export_failed(self.job, message, context));
    }

    /// Tells the job how much is left, fails if it is too much, and slows writers if necessary.
    pub(super) fn report(&mut self, connection: &mut Connection, info: &ClientInfo) -> Result<(), Lost> {
        let now = Instant::now();
        let remaining = self.lag() + (self.pending_bytes + connection.unsent()) as u64;
        info.output.store(usize::try_from(remaining).unwrap_or(usize::MAX), Ordering::Relaxed);
        info.output_memory.store(connection.memory() + self.pending_bytes, Ordering::Relaxed);
        self.check_limits(remaining, info, now)?;
        let state = self.core.slot_migration.view(|jobs| jobs.get(self.job).map(|job| job.state()));
        let waits = state == Some(State::ExportWaitingToPause);
        let since = self.waits_since.get_or_insert(now);
        if !waits {
            *since = now;
        }
        let waited = if waits { now.duration_since(*since) } else { Duration::ZERO };
        self.rate(now);
        if waits && self.probe.is_due(now) {
            connection.send(&Message::Capa.encode());
        }
        if waits || self.reported != Some(remaining) {
            self.reported = Some(remaining);
            let target_lags = self.probe.target_lags(now) && waited < PATIENCE_MAX;
            let is_close = self.is_little(remaining, now) && self.probe.is_close(now);
            let progress = Progress { remaining_bytes: remaining, is_close, target_lags };
            self.core.slot_migration.with(self.core, |jobs, context| jobs.progressed(self.job, progress, context));
        }
        let prevented = self.core.slot_migration.prevent_pause.load(Ordering::Relaxed);
        // Slower writers would not help a target that hangs.
        let hangs = connection.stalled_for() >= HANGS_AFTER;
        let waited = if prevented || hangs { Duration::ZERO } else { waited };
        self.slow(if hangs { 0 } else { remaining }, waited, now);
        Ok(())
    }

    fn rate(&mut self, now: Instant) {
        let elapsed = now.duration_since(self.rated_at);
        if elapsed >= Duration::from_millis(20) {
            self.rate = 0.5 * self.rate + 0.5 * (self.taken as f64 / elapsed.as_secs_f64());
            (self.taken, self.rated_at) = (0, now);
        }
    }

    /// Whether what is left can be sent within a few milliseconds, and this has been so for a while without that it
    /// became nothing: the writes go on.
    fn is_little(&mut self, remaining: u64, now: Instant) -> bool {
        if remaining > CLOSE_BYTES.max((self.rate * CLOSE_TIME.as_secs_f64()) as u64) {
            self.little_since = None;
            return false;
        }
        now.duration_since(*self.little_since.get_or_insert(now)) >= LITTLE_FOR
    }

    /// The target has executed what was sent before the last probe.
    pub(super) fn probe_returned(&mut self) {
        self.probe.returned(Instant::now());
    }

    fn output_limit(&self) -> u64 {
        let values = self.core.config.values();
        let hard = values.read(CLIENT_OUTPUT_BUFFER_LIMIT).replica.hard_bytes;
        if hard == 0 { 0 } else { hard.max(values.read(REPL_BACKLOG_SIZE)) }
    }

    /// Fails if more is left to send than `client-output-buffer-limit` allows for replicas.
    fn check_limits(&mut self, remaining: u64, info: &ClientInfo, now: Instant) -> Result<(), Lost> {
        let values = self.core.config.values();
        let limit = values.read(CLIENT_OUTPUT_BUFFER_LIMIT).replica;
        let hard = self.output_limit();
        let soft = if limit.soft_bytes == 0 { 0 } else { limit.soft_bytes.max(values.read(REPL_BACKLOG_SIZE)) };
        let is_over_soft = soft != 0 && remaining >= soft;
        let since = *self.over_soft_limit_since.get_or_insert(now);
        if !is_over_soft {
            self.over_soft_limit_since = None;
        }
        let is_over_soft_long =
            is_over_soft && now.duration_since(since) > Duration::from_secs(limit.soft_seconds.into());
        if (hard != 0 && remaining >= hard) || is_over_soft_long {
            let client = info.described(true);
            logging::warning(format_args!(
                "Client {client} scheduled to be closed ASAP for overcoming of output buffer limits."
            ));
            return Err(Lost("too many bytes are left to send".into()));
        }
        Ok(())
    }

    fn slow(&mut self, remaining: u64, waited: Duration, now: Instant) {
        if self.is_paused {
            return;
        }
        self.throttle.update(remaining, Band::below(self.output_limit()), waited);
        let slows = self.follower.is_some() && self.throttle.holds(now);
        if slows && !self.slows {
            self.core.pause.slots.hold(self.slots.slots());
        } else if !slows && self.slows {
            self.release();
        }
        self.slows = slows;
        self.show_slowed(remaining, now);
    }

    fn show_slowed(&mut self, remaining: u64, now: Instant) {
        let share = self.throttle.share();
        let is_slowed = share >= SHARE_SHOWN_MIN;
        let log_is_due = self.slowed_logged_at.is_none_or(|at| now.duration_since(at) >= SLOWED_LOG_INTERVAL);
        if is_slowed && log_is_due {
            self.slowed_logged_at = Some(now);
            logging::notice(format_args!(
                "Slot migration {} cannot keep up with the writes to its slots ({remaining} bytes are left to send): \
                 they are held for {:.0}% of the time",
                self.job,
                share * 100.0
            ));
        }
        if is_slowed != self.is_slowed_shown {
            self.is_slowed_shown = is_slowed;
            let note = is_slowed.then_some("Slowing writes to the slots");
            self.core.slot_migration.with(self.core, |jobs, _| jobs.note(self.job, note));
        }
    }

    fn release(&self) {
        self.core.pause.slots.release(self.slots.slots());
        self.core.send_all(|| message::Message::Resume);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.forget_pending();
        if self.slows && !self.is_paused {
            self.release();
        }
    }
}
