//! The thread that owns the files: it writes what the log holds, syncs it, and carries out orders.
//!
//! Under load it avoids being woken by every turn of a worker: if its last sleep was short, or it had much to write, it
//! pauses briefly after each write instead of waiting to be woken, and so writes larger batches. Meanwhile the tail has
//! the records. If there is no tail, or with `appendfsync always`, replies wait for it, so it does not pause, except to
//! gather more of them for a sync.

use super::aof_dir::{AofDir, Logged, log_error, reason};
use super::commit::Commits;
use super::group_commit::GroupCommit;
use super::load::{self, Failed};
use super::rewrite;
use super::tail::Tail;
use super::{Aof, State, TimeMark};
use crate::DurableCore;
use kvick_config::tables::persistence::NO_APPENDFSYNC_ON_REWRITE;
use kvick_config::words::AppendFsync;
use kvick_core::admission::Reasons;
use kvick_runtime::logging;
use kvick_store::global_lock::Participant;
use kvick_store::log::{Follower, Piece};
use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::{Ordering, fence};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// A shorter sleep indicates load.
const SHORT_SLEEP: Duration = Duration::from_micros(60);
/// Writing more at a time indicates load too.
const LOAD_BYTES: u64 = 8 * 1024;
/// The pause between writes under load: if clients send much, it is longer, so that the thread seldom interrupts a
/// worker.
const PAUSE: Duration = Duration::from_millis(1);
const LONG_PAUSE: Duration = Duration::from_millis(4);
/// How often `everysec` syncs.
const SYNC_PERIOD: Duration = Duration::from_secs(1);
/// A longer sync counts as one that delayed writes.
const SYNC_DELAY: Duration = Duration::from_secs(2);
/// The delay before a failed write or sync is retried.
const RETRY: Duration = Duration::from_millis(100);
/// The interval of log messages about write errors.
const ERROR_LOG_PERIOD: Duration = Duration::from_secs(30);
/// The longest sleep.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// An order to the thread. Orders with a sender are answered.
pub enum Order {
    /// Read the manifest, and nothing else.
    ReadManifest(Sender<Result<(), Failed>>),
    /// Replay the files, if there are any.
    Load(Sender<Result<(), Failed>>),
    /// Start writing, with the present data set.
    Open(Sender<Result<(), Failed>>),
    /// Replay the files in place of the present data, and answer a client.
    Reload(load::Reload),
    /// The rewrite of this number begins.
    Begin(u64, rewrite::NextIncrement),
    /// The base of a rewrite is complete.
    Install(rewrite::FinishedBase),
    /// The rewrite of this number ended without a base: whether by failure, and the receiver of a notice.
    Abandon(u64, bool, Sender<()>),
    /// Use a received dump as the base, and send a notice when its file has been moved.
    Adopt(rewrite::ReceivedDump, Sender<()>),
    /// Write and sync everything; the answer is whether that succeeded.
    Flush(Sender<bool>),
    /// The same at the end of the process.
    Finish(Sender<bool>),
    /// The same, and stop writing.
    Stop(Sender<bool>),
    /// Delete history files, unless they must be kept.
    DeleteHistory(Sender<()>),
}

/// Starts the thread.
pub fn start(core: &'static DurableCore) -> io::Result<()> {
    let participant = core.keyspace.global_lock.join().ok_or_else(|| io::Error::other("too many workers"))?;
    let mut writer = Writer::new(core, participant);
    let thread = std::thread::Builder::new().name("aof".into()).spawn(move || {
        kvick_runtime::memory::register_thread();
        writer.run()
    })?;
    // Only a bug would call this twice.
    let _ = core.aof.thread.set(thread.thread().clone());
    Ok(())
}

/// The file being written.
pub(super) struct Increment {
    pub file: File,
    /// Its name in the AOF directory.
    pub name: Vec<u8>,
    /// Bytes in it.
    pub size: u64,
    /// The bytes that are durable, in the file or in the [journal](super::journal).
    pub synced: u64,
    /// Whether commits go to the journal.
    pub is_journaled: bool,
}

impl Increment {
    /// A file that is written and synced up to `size`.
    pub fn new(file: File, name: &[u8], size: u64) -> Increment {
        Increment { file, name: name.to_vec(), size, synced: size, is_journaled: false }
    }

    /// Appends all bytes, or none if possible. If a partial write cannot be undone, the error includes the bytes that
    /// remain.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), (usize, io::Error)> {
        let mut done = 0;
        while done < bytes.len() {
            let error = match self.file.write(&bytes[done..]) {
                Ok(0) => io::Error::from_raw_os_error(libc::ENOSPC),
                Ok(written) => {
                    done += written;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => error,
            };
            if done > 0 && self.file.set_len(self.size).is_ok() {
                done = 0;
            }
            self.size += done as u64;
            return Err((done, error));
        }
        self.size += done as u64;
        Ok(())
    }
}

/// See the module's documentation.
pub(super) struct Writer {
    pub core: &'static DurableCore,
    pub aof: &'static Aof,
    pub participant: Participant,
    pub aof_dir: AofDir,
    pub follower: Option<Follower>,
    pub increment: Option<Increment>,
    /// Bytes read from the log that could not be written.
    pub unwritten: Vec<u8>,
    /// The number of the rewrite whose base is being written.
    pub rewriting: Option<u64>,
    synced_at: Instant,
    error_logged_at: Option<Instant>,
    /// The timestamp to write before the next record.
    timestamp: Option<i64>,
    /// Whether the last sleep was short.
    busy: bool,
    group_commit: GroupCommit,
    pub commits: Commits,
    pub tail: Tail,
}

impl Writer {
    fn new(core: &'static DurableCore, participant: Participant) -> Writer {
        Writer {
            core,
            aof: &core.aof,
            participant,
            aof_dir: AofDir::new(core),
            follower: None,
            increment: None,
            unwritten: Vec::new(),
            rewriting: None,
            synced_at: Instant::now(),
            error_logged_at: None,
            timestamp: None,
            busy: false,
            group_commit: GroupCommit::new(),
            commits: Commits::default(),
            tail: Tail::default(),
        }
    }

    fn run(&mut self) {
        loop {
            while self.handle_order() {}
            self.update_tail();
            if self.aof.replies_await_fsync() {
                self.group_commit.wait(self.aof);
                self.group_commit.begin(self.aof);
            }
            let size = self.aof.current_size.load(Ordering::Relaxed);
            let wrote = self.write_available(u64::MAX);
            let is_loaded = self.aof.current_size.load(Ordering::Relaxed).saturating_sub(size) >= LOAD_BYTES;
            self.busy |= is_loaded;
            self.sync_if_due();
            self.aof.reply_to_waiting_clients(self.core);
            let due = self.update_journal().unwrap_or(SLEEP_MAX);
            if wrote && self.busy && self.core.keyspace.log.is_in_tail(u64::MAX) {
                std::thread::park_timeout(if is_loaded { LONG_PAUSE } else { PAUSE });
            } else {
                self.sleep(due);
            }
        }
    }

    /// Sleeps until woken or until something is due, at most for `due`.
    fn sleep(&mut self, due: Duration) {
        let began = Instant::now();
        let timeout = self.timeout().min(due);
        self.aof.is_sleeping.store(true, Ordering::Relaxed);
        // Either the thread that extends the log sees this thread asleep, or this thread sees the extended log.
        fence(Ordering::SeqCst);
        let has_new_records =
            self.unwritten.is_empty() && self.follower.as_ref().is_some_and(|follower| follower.lag() > 0);
        if !has_new_records && self.aof.orders.lock().is_empty() {
            std::thread::park_timeout(timeout);
        }
        self.aof.is_sleeping.store(false, Ordering::Relaxed);
        self.busy = began.elapsed() < SHORT_SLEEP;
    }

    /// The time until the next task is due, without orders.
    fn timeout(&self) -> Duration {
        let mut timeout = self.aof.until_deadline().unwrap_or(SLEEP_MAX);
        if !self.unwritten.is_empty() {
            timeout = timeout.min(RETRY);
        }
        if self.has_unsynced() && self.aof.policy() == AppendFsync::Everysec {
            timeout = timeout.min(SYNC_PERIOD.saturating_sub(self.synced_at.elapsed()).max(PAUSE));
        }
        timeout
    }

    pub fn has_unsynced(&self) -> bool {
        self.increment.as_ref().is_some_and(|increment| increment.synced < increment.size)
    }

    /// Carries out the next order, if there is one.
    fn handle_order(&mut self) -> bool {
        let Some(order) = self.aof.orders.lock().pop_front() else { return false };
        // The requester may be gone.
        match order {
            Order::ReadManifest(answer) => _ = answer.send(self.aof_dir.read().map_err(|Logged| Failed)),
            Order::Load(answer) => _ = answer.send(load::load_at_startup(self)),
            Order::Open(answer) => _ = answer.send(self.open().map_err(|Logged| Failed)),
            Order::Reload(reload) => load::reload(self, reload),
            Order::Begin(number, next_increment) => self.begin_rewrite(number, next_increment),
            Order::Install(finished) => self.install(finished),
            Order::Abandon(number, failed, answer) => {
                self.abandon(number, failed);
                let _ = answer.send(());
            }
            Order::Adopt(dump, answer) => {
                self.adopt(dump);
                let _ = answer.send(());
            }
            Order::Flush(answer) => _ = answer.send(self.flush()),
            Order::Finish(answer) => {
                let flushed = self.flush();
                if flushed {
                    self.end_tail();
                }
                let _ = answer.send(flushed);
            }
            Order::Stop(answer) => {
                let flushed = self.flush();
                self.close();
                let _ = answer.send(flushed);
            }
            Order::DeleteHistory(answer) => {
                self.aof_dir.remove_history();
                let _ = answer.send(());
            }
        }
        true
    }

    /// Writes what the log holds before `until`, up to its end when this begins. Returns whether there was anything.
    pub fn write_available(&mut self, until: u64) -> bool {
        if !self.unwritten.is_empty() && !self.retry_write() {
            return false;
        }
        let target = until.min(self.core.keyspace.log.offset());
        let mut wrote = false;
        if let Some(begun) = self.tail.begun_at().filter(|begun| *begun <= target) {
            if !self.write_until(begun, &mut wrote) {
                return false;
            }
            self.anchor_begun_tail();
        }
        if !self.write_until(target, &mut wrote) {
            return false;
        }
        if let Some(follower) = &self.follower {
            self.aof.written.store(follower.offset(), Ordering::SeqCst);
        }
        if wrote {
            self.release_tail();
        }
        wrote
    }

    /// Writes what the log holds before `target`. Returns whether that succeeded.
    fn write_until(&mut self, target: u64, wrote: &mut bool) -> bool {
        while let Some(piece) = self.next_piece(target) {
            *wrote = true;
            if !self.write_piece(&piece) {
                return false;
            }
        }
        true
    }

    /// The next bytes of the log before `target`, all from the same second.
    fn next_piece(&mut self, target: u64) -> Option<Piece> {
        let follower = self.follower.as_mut()?;
        loop {
            let mark = self.aof.marks.lock().front().copied();
            if let Some(TimeMark { offset, second }) = mark
                && offset <= follower.offset()
            {
                self.timestamp = Some(second);
                self.aof.marks.lock().pop_front();
                continue;
            }
            let end = mark.map_or(target, |mark| target.min(mark.offset));
            match follower.next(end) {
                Ok(Some(piece)) => return Some(piece),
                // Bytes before the mark do not belong in files.
                Ok(None) if mark.is_some_and(|mark| mark.offset <= follower.offset()) => {}
                Ok(None) => return None,
                Err(_) => {
                    self.close_and_schedule_rewrite();
                    return None;
                }
            }
        }
    }

    fn write_piece(&mut self, piece: &[u8]) -> bool {
        if let Some(second) = self.timestamp.take() {
            let annotation = format!("#TS:{second}\r\n");
            self.anchor_annotation(annotation.len());
            self.unwritten.extend_from_slice(annotation.as_bytes());
        }
        self.tail.advance(piece.len());
        if !self.unwritten.is_empty() {
            self.unwritten.extend_from_slice(piece);
            return self.retry_write();
        }
        let Some(written) = self.try_write(piece) else { return true };
        match written {
            Ok(()) => true,
            Err((done, error)) => {
                self.unwritten.extend_from_slice(&piece[done..]);
                self.write_failed(done, piece.len(), &error);
                false
            }
        }
    }

    /// Retries a failed write. Returns whether that succeeded.
    fn retry_write(&mut self) -> bool {
        let mut unwritten = std::mem::take(&mut self.unwritten);
        match self.try_write(&unwritten) {
            None | Some(Ok(())) => {
                if self.aof.status.lock().write_error.take().is_some() {
                    logging::notice(format_args!("AOF write error looks solved. The server can write again."));
                    self.update_admission();
                }
                unwritten.clear();
                self.unwritten = unwritten;
                true
            }
            Some(Err((done, error))) => {
                self.write_failed(done, unwritten.len(), &error);
                unwritten.drain(..done);
                self.unwritten = unwritten;
                false
            }
        }
    }

    fn try_write(&mut self, bytes: &[u8]) -> Option<Result<(), (usize, io::Error)>> {
        let increment = self.increment.as_mut()?;
        let sleep_us = self.aof.flush_sleep_us.load(Ordering::Relaxed);
        if sleep_us > 0 {
            std::thread::sleep(Duration::from_micros(sleep_us));
        }
        let (began, size) = (Instant::now(), increment.size);
        let written = increment.write(bytes);
        self.aof.current_size.fetch_add(increment.size - size, Ordering::Relaxed);
        let is_rewriting = self.core.persistence.status().running.is_some();
        self.aof_dir.record_latency(if is_rewriting { "aof-write-active-child" } else { "aof-write-alone" }, began);
        self.aof_dir.record_latency("aof-write", began);
        Some(written)
    }

    #[cold]
    fn write_failed(&mut self, done: usize, wanted: usize, error: &io::Error) {
        if self.error_logged_at.is_none_or(|at| at.elapsed() > ERROR_LOG_PERIOD) {
            self.error_logged_at = Some(Instant::now());
            match done {
                0 => logging::warning(format_args!("Error writing to the AOF file: {}", reason(error))),
                _ => logging::warning(format_args!(
                    "Short write while writing to the AOF file: (nwritten={done}, expected={wanted}), and it could not \
                     be undone. The server may refuse to load the AOF the next time it starts."
                )),
            }
        }
        if self.aof.is_always() {
            // Clients have been, or will be, answered; the changes cannot be undone.
            exit_with_error(format_args!(
                "Can't recover from AOF write error when the AOF fsync policy is 'always'. Exiting..."
            ));
        }
        self.aof.status.lock().write_error = Some(error.raw_os_error().unwrap_or(libc::EIO));
        self.update_admission();
    }

    /// Refuses write commands until writing succeeds again.
    fn update_admission(&self) {
        let status = self.aof.status.lock();
        self.aof.write_fails.store(status.write_error.is_some(), Ordering::SeqCst);
        let write_fails = status.state != State::Off && (status.write_error.is_some() || status.sync_failed);
        self.core.admission.set(Reasons::AOF_WRITE_FAILED, write_fails);
    }

    fn sync_if_due(&mut self) {
        let policy = self.aof.policy();
        if policy != AppendFsync::Always {
            self.wake_waiting_workers();
        }
        let is_due = match policy {
            AppendFsync::Always => true,
            AppendFsync::Everysec => self.synced_at.elapsed() >= SYNC_PERIOD,
            AppendFsync::No => return,
        };
        if !is_due || self.increment.is_none() {
            return;
        }
        let skips_sync =
            self.core.config.read(NO_APPENDFSYNC_ON_REWRITE) && self.core.persistence.status().running.is_some();
        if skips_sync {
            if self.unwritten.is_empty()
                && let Some(follower) = &self.follower
            {
                self.aof.released.store(follower.offset(), Ordering::SeqCst);
            }
            return self.wake_waiting_workers();
        }
        if self.has_unsynced() {
            self.sync(policy);
        }
        if !self.has_unsynced() {
            self.publish_synced();
        }
    }

    fn sync(&mut self, policy: AppendFsync) {
        let began = Instant::now();
        self.aof.sync_pending.store(policy == AppendFsync::Everysec, Ordering::Relaxed);
        match policy {
            AppendFsync::Always => self.commit(),
            // Errors are logged, and the write is retried.
            _ => _ = self.sync_increment(),
        }
        self.aof.sync_pending.store(false, Ordering::Relaxed);
        self.synced_at = began;
        if policy == AppendFsync::Always {
            self.aof_dir.record_latency("aof-fsync-always", began);
            self.group_commit.end(self.aof, began.elapsed());
        } else if began.elapsed() > SYNC_DELAY {
            self.aof.delayed_syncs.fetch_add(1, Ordering::Relaxed);
            logging::notice(format_args!(
                "Asynchronous AOF fsync is taking too long (disk is busy?). What was to be written had to wait, which \
                 may slow down the server."
            ));
        }
    }

    /// Waits until the written bytes are durable. With `always` an error ends the process, whatever the reason of this
    /// sync: the kernel reports a lost write only once, and the next sync may succeed without it.
    pub fn sync_increment(&mut self) -> Result<(), Logged> {
        self.exit_if_sync_failed();
        let has_unsynced = self.has_unsynced();
        let Some(increment) = &mut self.increment else { return Ok(()) };
        let synced = match increment.file.sync_data() {
            Ok(()) => {
                increment.synced = increment.size;
                self.clear_journal_frames();
                Ok(())
            }
            Err(error) if (has_unsynced || increment.is_journaled) && self.aof.is_always() => {
                self.force_journal_recovery();
                exit_with_error(format_args!(
                    "Can't persist AOF for fsync error when the AOF fsync policy is 'always': {}. Exiting...",
                    reason(&error)
                ))
            }
            Err(error) => Err(log_error(format_args!("Fail to fsync the AOF file: {}", reason(&error)))),
        };
        let failed = self.has_unsynced();
        let before = std::mem::replace(&mut self.aof.status.lock().sync_failed, failed);
        if before != failed {
            self.update_admission();
        }
        synced
    }

    /// Publishes that everything read from the log is durable.
    pub fn publish_synced(&mut self) {
        let Some(follower) = self.follower.as_ref().filter(|_| self.unwritten.is_empty()) else { return };
        let offset = follower.offset();
        if self.aof.status.lock().state == State::On {
            self.aof.synced.store(offset, Ordering::SeqCst);
        }
        self.aof.released.store(offset, Ordering::SeqCst);
        self.wake_waiting_workers();
    }

    /// Wakes the workers with withheld replies.
    fn wake_waiting_workers(&self) {
        for (worker, is_waiting) in self.aof.waiting_workers.iter().enumerate() {
            if is_waiting.load(Ordering::SeqCst) && is_waiting.swap(false, Ordering::SeqCst) {
                self.core.wake(worker);
            }
        }
    }

    /// Writes all that the log holds, and waits for the disk.
    pub fn flush(&mut self) -> bool {
        self.write_available(u64::MAX);
        if self.increment.is_none() {
            return true;
        }
        if self.sync_increment().is_err() {
            return false;
        }
        self.close_journal();
        self.publish_synced();
        self.unwritten.is_empty()
    }

    /// Starts writing what this follower reads.
    pub fn begin(&mut self, follower: Follower, increment: Increment) {
        // It is of another increment.
        self.end_tail();
        let offset = follower.offset();
        self.aof.written.store(offset, Ordering::SeqCst);
        self.aof.released.store(offset, Ordering::SeqCst);
        self.aof.marks.lock().clear();
        (self.follower, self.increment) = (Some(follower), Some(increment));
        self.unwritten.clear();
        self.synced_at = Instant::now();
        self.aof.follows_log.store(true, Ordering::SeqCst);
    }

    /// Another history with other data has begun: the files belong to the old one until a base of the new one is
    /// installed.
    #[cold]
    pub fn close_and_schedule_rewrite(&mut self) {
        self.close();
        let mut status = self.aof.status.lock();
        (status.state, status.scheduled) = (State::WaitRewrite, true);
    }

    /// Stops writing.
    pub fn close(&mut self) {
        if self.aof.status.lock().state == State::WaitRewrite && self.increment.is_some() {
            self.aof_dir.remove_temporary();
        }
        self.aof.follows_log.store(false, Ordering::SeqCst);
        self.end_tail();
        (self.follower, self.increment, self.rewriting) = (None, None, None);
        self.unwritten.clear();
        self.timestamp = None;
        self.aof.marks.lock().clear();
        self.aof.synced.store(0, Ordering::SeqCst);
        let mut status = self.aof.status.lock();
        (status.write_error, status.sync_failed) = (None, false);
        drop(status);
        self.update_admission();
        self.wake_waiting_workers();
    }
}

/// Ends the process at once: to continue would break the durability guarantee.
pub(super) fn exit_with_error(why: std::fmt::Arguments<'_>) -> ! {
    logging::warning(why);
    logging::stop();
    std::process::exit(1)
}
