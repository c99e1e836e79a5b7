//! The append-only file: every change of the data, on disk as commands.
//!
//! One thread owns the files. It follows the [write log](kvick_store::log), appends new records to the last increment,
//! and syncs it as `appendfsync` requires; workers never touch a file. They send [`Order`]s, and notify the thread when
//! a turn has extended the log.
//!
//! - [`writer`]: the thread. [`group_commit`]: group commit. [`aof_dir`]: the directory and its manifest. [`mod@load`]:
//!   replay of the files.
//! - [`commit`] and [`journal`]: how bytes become durable with `appendfsync always`.
//! - [`tail`]: how acknowledged records outlive the process with `everysec` and `no`.
//! - [`rewrite`]: a new base from a [snapshot](crate::persistence::snapshots), which limits the size of the files. The
//!   snapshot belongs to one offset of the log; later records go to a new increment.
//! - [`switch`]: `CONFIG SET appendonly`.
//! - [`mod@waiting`] serves WAIT and WAITAOF: clients that wait until replicas or disks have their writes.
//!
//! With `appendfsync always` a worker holds the replies of a turn until the log's end at that turn is durable; it
//! executes further turns meanwhile, so one sync serves all of them. With `everysec` and `no` replies wait only if the
//! thread was idle, and only until it has written, which it then does at once; under load they do not wait, because the
//! tail has the records. If the thread falls too far behind because the disk is slow, workers pause: see
//! [`Aof::is_behind`].
//!
//! **Invariant**: the manifest lists a file only after the complete content of the files before it is on disk, so only
//! the last file can be truncated. An increment begins at exactly the offset at which the base before it ends.

mod aof_dir;
mod commit;
mod group_commit;
mod journal;
mod load;
pub mod rewrite;
pub mod switch;
mod tail;
pub mod waiting;
mod writer;

use crate::DurableCore;
use kvick_config::words::AppendFsync;
use kvick_store::log::WriteLog;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering, fence};
use std::thread::Thread;
use waiting::WaitingClient;

pub use load::{Failed, Reload, request_reload};
use writer::Order;
pub use writer::start;

/// The backlog of unwritten log, in bytes, beyond which workers pause.
const LAG_MAX: u64 = 64 << 20;

const ALWAYS: u8 = AppendFsync::Always as u8;
const NO: u8 = AppendFsync::No as u8;

/// Whether the append-only file is enabled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No.
    Off,
    /// Not yet: the first base is being written.
    WaitRewrite,
    /// Yes.
    On,
}

/// A server's append-only file.
pub struct Aof {
    /// Whether the thread follows the log.
    follows_log: AtomicBool,
    /// `appendfsync`.
    policy: AtomicU8,
    /// The log offset up to which the files are written.
    written: AtomicU64,
    /// The log offset up to which replies need not wait.
    released: AtomicU64,
    /// The log offset up to which the files are synced.
    synced: AtomicU64,
    /// Whether writes fail at present.
    write_fails: AtomicBool,
    /// Whether the thread sleeps until it is woken.
    is_sleeping: AtomicBool,
    thread: OnceLock<Thread>,
    orders: Mutex<VecDeque<Order>>,
    status: Mutex<Status>,
    /// Workers with withheld replies.
    waiting_workers: Box<[AtomicBool]>,
    /// Replies withheld since startup.
    withheld: AtomicU64,
    /// With `aof-timestamp-enabled`: the beginnings of seconds in the log.
    marks: Mutex<VecDeque<TimeMark>>,
    /// The second of the last timestamp.
    marked_s: AtomicI64,
    /// Clients that wait for the disk.
    waiting: Mutex<Vec<WaitingClient>>,
    /// DEBUG AOF-FLUSH-SLEEP, in microseconds.
    pub flush_sleep_us: AtomicU64,
    /// Bytes of the base and the increments.
    pub current_size: AtomicU64,
    /// The total size after the last rewrite.
    pub base_size: AtomicU64,
    /// Whether a background sync is running.
    pub sync_pending: AtomicBool,
    /// Slow syncs that delayed writes.
    pub delayed_syncs: AtomicU64,
}

/// The beginning of a second in the log.
#[derive(Clone, Copy)]
struct TimeMark {
    /// The log offset.
    offset: u64,
    /// The second, as a Unix time.
    second: i64,
}

/// Status of the files and their rewrites. Times are Unix times in seconds.
#[derive(Clone, Debug)]
pub struct Status {
    /// Whether there are files.
    pub state: State,
    /// Whether a rewrite will begin as soon as possible.
    pub scheduled: bool,
    /// Rewrites that were begun.
    pub rewrites: u64,
    /// Whether the last rewrite succeeded.
    pub last_rewrite_ok: bool,
    /// Failures since the last success.
    pub failures: u32,
    /// When the present one was begun.
    pub started_s: i64,
    /// Seconds that the last one took; -1 before the first.
    pub last_duration_s: i64,
    /// The system's error number while writes fail.
    pub write_error: Option<i32>,
    /// Whether the last sync failed.
    pub sync_failed: bool,
    /// Numbers rewrites.
    last_rewrite: u64,
    /// After failures: the length of the pause, and its end.
    pause_minutes: i64,
    pause_until_s: i64,
}

impl Aof {
    /// For a server with this number of workers.
    pub fn new(workers: usize, policy: AppendFsync) -> Self {
        let status = Status {
            state: State::Off,
            scheduled: false,
            rewrites: 0,
            last_rewrite_ok: true,
            failures: 0,
            started_s: 0,
            last_duration_s: -1,
            write_error: None,
            sync_failed: false,
            last_rewrite: 0,
            pause_minutes: 0,
            pause_until_s: 0,
        };
        Aof {
            follows_log: AtomicBool::new(false),
            policy: AtomicU8::new(policy as u8),
            written: AtomicU64::new(0),
            released: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            write_fails: AtomicBool::new(false),
            is_sleeping: AtomicBool::new(false),
            thread: OnceLock::new(),
            orders: Mutex::default(),
            status: Mutex::new(status),
            waiting_workers: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            withheld: AtomicU64::new(0),
            marks: Mutex::default(),
            marked_s: AtomicI64::new(0),
            waiting: Mutex::default(),
            flush_sleep_us: AtomicU64::new(0),
            current_size: AtomicU64::new(0),
            base_size: AtomicU64::new(0),
            sync_pending: AtomicBool::new(false),
            delayed_syncs: AtomicU64::new(0),
        }
    }

    /// The status that INFO shows.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// Applies new values of `appendfsync` and `aof-journal`.
    pub fn set_policy(&self, policy: AppendFsync) {
        self.policy.store(policy as u8, Ordering::Relaxed);
        self.wake();
    }

    fn policy(&self) -> AppendFsync {
        match self.policy.load(Ordering::Relaxed) {
            ALWAYS => AppendFsync::Always,
            NO => AppendFsync::No,
            _ => AppendFsync::Everysec,
        }
    }

    fn is_always(&self) -> bool {
        self.policy.load(Ordering::Relaxed) == ALWAYS
    }

    /// Bytes of the log that have not been written.
    pub fn unwritten(&self, log: &WriteLog) -> u64 {
        match self.follows_log.load(Ordering::Relaxed) {
            true => log.offset().saturating_sub(self.written.load(Ordering::Relaxed)),
            false => 0,
        }
    }

    /// Whether the thread is so far behind that workers must wait for it. While writes fail, workers continue, because
    /// write commands are refused then.
    #[inline]
    pub fn is_behind(&self, log: &WriteLog) -> bool {
        let is_behind = self.unwritten(log) > LAG_MAX && !self.write_fails.load(Ordering::Relaxed);
        if is_behind {
            // It may sleep if it followed another history.
            self.wake();
        }
        is_behind
    }

    /// Whether replies have to wait for the disk.
    #[inline]
    pub fn replies_await_fsync(&self) -> bool {
        self.is_always() && self.follows_log.load(Ordering::Relaxed)
    }

    /// Whether withheld replies may be sent that were made when the log ended at `offset`.
    pub fn is_released(&self, offset: u64) -> bool {
        if !self.follows_log.load(Ordering::SeqCst) {
            return true;
        }
        if self.is_always() {
            return offset <= self.released.load(Ordering::SeqCst);
        }
        offset <= self.written.load(Ordering::SeqCst) || self.write_fails.load(Ordering::SeqCst)
    }

    /// Counts replies that have to wait.
    pub fn count_withheld(&self, replies: usize) {
        self.withheld.fetch_add(replies as u64, Ordering::Relaxed);
    }

    /// Registers a worker to be woken when replies may be sent. The worker must check again after the registration.
    pub fn wake_on_release(&self, worker: usize) {
        self.waiting_workers[worker].store(true, Ordering::SeqCst);
    }

    /// Whether the log is synced up to an offset. False while the append-only file is disabled.
    pub fn is_synced(&self, offset: u64) -> bool {
        self.status.lock().state != State::Off && self.synced() >= offset
    }

    /// The log offset that has been synced, if the append-only file is enabled.
    pub fn synced(&self) -> u64 {
        self.synced.load(Ordering::SeqCst)
    }

    /// Notes the second of what is appended from here on. Called before the commands of a turn.
    #[inline]
    pub fn mark_time(&self, log: &WriteLog, now_s: i64) {
        if self.marked_s.load(Ordering::Relaxed) < now_s {
            let mut marks = self.marks.lock();
            self.marked_s.store(now_s, Ordering::Relaxed);
            let offset = log.offset();
            // Nothing was appended in the previous seconds.
            if marks.back().is_some_and(|mark| mark.offset == offset) {
                marks.pop_back();
            }
            marks.push_back(TimeMark { offset, second: now_s });
        }
    }

    /// The log has grown. Returns true if replies have to wait until the thread has written: because the tail lacks
    /// records, or because this woke the thread. It then writes at once, so that a client alone with the server finds
    /// acknowledged writes in the file.
    #[inline]
    pub fn on_log_appended(&self, log: &WriteLog) -> bool {
        // Either the thread sees the log's new end after it has announced its sleep, or this call sees the
        // announcement.
        fence(Ordering::SeqCst);
        if !self.follows_log.load(Ordering::Relaxed) {
            return false;
        }
        let sleeps = self.is_sleeping.load(Ordering::Relaxed);
        if sleeps {
            self.wake();
        }
        !log.seal_tail() || sleeps
    }

    /// Sends an order.
    fn order(&self, order: Order) {
        self.orders.lock().push_back(order);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }
}

/// Waits until the whole log has been synced. Errors have been logged.
pub fn flush(core: &'static DurableCore) -> bool {
    let (answer, outcome) = std::sync::mpsc::channel();
    core.aof.order(Order::Flush(answer));
    outcome.recv().unwrap_or(false)
}

/// The same at the end of the process, and deletes the [tail].
pub fn finish(core: &'static DurableCore) -> bool {
    let (answer, outcome) = std::sync::mpsc::channel();
    core.aof.order(Order::Finish(answer));
    outcome.recv().unwrap_or(false)
}

/// Replays the files at startup. Workers may be running, but must not access the data meanwhile.
pub fn load(core: &'static DurableCore) -> Result<(), Failed> {
    let (answer, outcome) = std::sync::mpsc::channel();
    core.aof.order(Order::Load(answer));
    outcome.recv().unwrap_or(Err(Failed))
}

/// Starts writing to the files, at startup.
pub fn open(core: &'static DurableCore) -> Result<(), Failed> {
    let (answer, outcome) = std::sync::mpsc::channel();
    core.aof.order(Order::Open(answer));
    outcome.recv().unwrap_or(Err(Failed))
}

/// Reads the manifest without loading the files.
pub fn read_manifest(core: &'static DurableCore) -> Result<(), Failed> {
    let (answer, outcome) = std::sync::mpsc::channel();
    core.aof.order(Order::ReadManifest(answer));
    outcome.recv().unwrap_or(Err(Failed))
}

/// Deletes history files, unless they must be kept.
pub fn delete_history(core: &'static DurableCore) {
    let (answer, done) = std::sync::mpsc::channel();
    core.aof.order(Order::DeleteHistory(answer));
    // The thread lasts as long as the process.
    let _ = done.recv();
}

/// Resets the counters that CONFIG RESETSTAT resets.
pub fn reset_stats(aof: &Aof) {
    aof.status.lock().rewrites = 0;
    aof.delayed_syncs.store(0, Ordering::Relaxed);
}
