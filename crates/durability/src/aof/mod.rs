//! The append-only file: every change of the data, on the disk in the form of commands.
//!
//! One thread has the files. It follows the [write log](kvick_store::log), writes what it finds there to the last
//! increment, and has the disk take it as `appendfsync` says; workers never touch a file. They leave [`Order`]s, and
//! tell the thread when a turn has moved the log.
//!
//! - [`writer`]: the thread. [`gather`]: whom a sync waits for. [`aof_dir`]: the folder with its manifest. [`load`]:
//!   replaying what the files hold.
//! - [`commit`] and [`journal`]: where the disk has what is written with `appendfsync always`.
//! - [`rewrite`]: a new base from a [snapshot](crate::persistence::snapshots), so that the file does not grow for ever.
//!   The snapshot is of one offset of the log; what comes behind that goes to a new increment.
//! - [`switch`]: `CONFIG SET appendonly`.
//! - [`mod@waiting`] serves WAIT and WAITAOF: clients that wait for what they wrote to be elsewhere.
//!
//! With `appendfsync always` the replies of a turn wait in the worker until all is on the disk that was in the log when
//! the turn ended; further turns are executed meanwhile, so one sync serves all of them. With `everysec` and `no`
//! replies wait only when the thread had nothing to do, and only until it has written, which it does at once then;
//! under load they wait for nothing. A thread that falls too far behind, because the disk is slow, has the workers
//! rest: see [`Aof::is_behind`].
//!
//! **What always holds**: the manifest lists a file only when all that the files before it are to hold is on the disk;
//! so nothing but the last file may be cut off. An increment begins at exactly the offset that the base before it ends
//! at.

mod aof_dir;
mod commit;
mod gather;
mod journal;
mod load;
pub mod rewrite;
pub mod switch;
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
use waiting::Waiting;

pub use load::{Failed, Reload, order_reload};
use writer::Order;
pub use writer::start;

/// Bytes of the log that the thread may lie behind before workers rest.
const LAG_MAX: u64 = 64 << 20;

const ALWAYS: u8 = AppendFsync::Always as u8;
const NO: u8 = AppendFsync::No as u8;

/// Whether the data is kept in files.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No.
    Off,
    /// Not yet: the first base is being written.
    Waiting,
    /// Yes.
    On,
}

/// What a server knows of its append-only file.
pub struct Aof {
    /// Whether the thread follows the log.
    follows: AtomicBool,
    /// `appendfsync`.
    policy: AtomicU8,
    /// Up to here the log is written.
    written: AtomicU64,
    /// Up to here replies need not wait.
    released: AtomicU64,
    /// Up to here the log is on the disk.
    synced: AtomicU64,
    /// Whether nothing can be written at present.
    fails: AtomicBool,
    /// Whether the thread sleeps until somebody wakes it.
    asleep: AtomicBool,
    thread: OnceLock<Thread>,
    orders: Mutex<VecDeque<Order>>,
    status: Mutex<Status>,
    /// Workers that have replies which wait.
    holders: Box<[AtomicBool]>,
    /// Replies that had to wait, since the start.
    held: AtomicU64,
    /// With `aof-timestamp-enabled`, the offsets from which on the log is of a second.
    marks: Mutex<VecDeque<(u64, i64)>>,
    /// The second of the last mark.
    marked_s: AtomicI64,
    /// Clients that wait for the disk.
    waiting: Mutex<Vec<Waiting>>,
    /// DEBUG AOF-FLUSH-SLEEP, in microseconds.
    pub flush_sleep_us: AtomicU64,
    /// Bytes of the base and the increments.
    pub current_size: AtomicU64,
    /// What that was after the last rewrite.
    pub base_size: AtomicU64,
    /// Whether a sync that nobody waits for is under way.
    pub sync_pending: AtomicBool,
    /// Syncs that took so long that writing was held up.
    pub delayed_syncs: AtomicU64,
}

/// What is known of the files and their rewrites. Times are Unix times in seconds.
#[derive(Clone, Debug)]
pub struct Status {
    /// Whether there are files.
    pub state: State,
    /// Whether a rewrite is to begin as soon as possible.
    pub scheduled: bool,
    /// Rewrites that were begun.
    pub rewrites: u64,
    /// Whether the last one went well.
    pub last_rewrite_ok: bool,
    /// Those that failed since the last that went well.
    pub failures: u32,
    /// When the present one was begun.
    pub started_s: i64,
    /// Seconds that the last one took; -1 before the first.
    pub last_duration_s: i64,
    /// The system's error number, while nothing can be written.
    pub write_error: Option<i32>,
    /// Whether the last sync failed.
    pub sync_failed: bool,
    /// Numbers rewrites.
    last_rewrite: u64,
    /// After failures: the pause, and its end.
    pause_minutes: i64,
    pause_until_s: i64,
}

impl Aof {
    /// Of a server with so many workers.
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
            follows: AtomicBool::new(false),
            policy: AtomicU8::new(policy as u8),
            written: AtomicU64::new(0),
            released: AtomicU64::new(0),
            synced: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            thread: OnceLock::new(),
            orders: Mutex::default(),
            status: Mutex::new(status),
            holders: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            held: AtomicU64::new(0),
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

    /// What INFO shows.
    pub fn status(&self) -> Status {
        self.status.lock().clone()
    }

    /// `appendfsync` is this from now on, or `aof-journal` is something else.
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

    /// Bytes of the log that are not written.
    pub fn unwritten(&self, log: &WriteLog) -> u64 {
        match self.follows.load(Ordering::Relaxed) {
            true => log.offset().saturating_sub(self.written.load(Ordering::Relaxed)),
            false => 0,
        }
    }

    /// Whether the thread lies so far behind that workers have to wait for it. While nothing can be written at all they
    /// go on: writes are refused then.
    #[inline]
    pub fn is_behind(&self, log: &WriteLog) -> bool {
        let is_behind = self.unwritten(log) > LAG_MAX && !self.fails.load(Ordering::Relaxed);
        if is_behind {
            // It may sleep if it was another history that it followed.
            self.wake();
        }
        is_behind
    }

    /// Whether replies have to wait for the disk.
    #[inline]
    pub fn holds_all(&self) -> bool {
        self.is_always() && self.follows.load(Ordering::Relaxed)
    }

    /// Whether replies that wait, and were made when the log ended at `offset`, may be sent.
    pub fn is_released(&self, offset: u64) -> bool {
        if !self.follows.load(Ordering::SeqCst) {
            return true;
        }
        if self.is_always() {
            return offset <= self.released.load(Ordering::SeqCst);
        }
        offset <= self.written.load(Ordering::SeqCst) || self.fails.load(Ordering::SeqCst)
    }

    /// Takes note that so many replies have to wait.
    pub fn count_held(&self, replies: usize) {
        self.held.fetch_add(replies as u64, Ordering::Relaxed);
    }

    /// Has a worker woken when replies may be sent; it looks once more afterwards whether that is so already.
    pub fn hold_for(&self, worker: usize) {
        self.holders[worker].store(true, Ordering::SeqCst);
    }

    /// Up to here the log is on the disk, if it is to be kept there.
    pub fn synced(&self) -> u64 {
        self.synced.load(Ordering::SeqCst)
    }

    /// Takes note that what is appended from here on is of this second. Called before the commands of a turn.
    #[inline]
    pub fn mark_time(&self, log: &WriteLog, now_s: i64) {
        if self.marked_s.load(Ordering::Relaxed) < now_s {
            let mut marks = self.marks.lock();
            self.marked_s.store(now_s, Ordering::Relaxed);
            let offset = log.offset();
            // Nothing was appended in the seconds before.
            if marks.back().is_some_and(|(at, _)| *at == offset) {
                marks.pop_back();
            }
            marks.push_back((offset, now_s));
        }
    }

    /// The log has moved. True if the thread was woken for that: then it writes at once, and replies do well to wait
    /// for it, so that whoever is alone with the server finds in the file what it was answered.
    #[inline]
    pub fn log_moved(&self) -> bool {
        // The log's end is seen by the thread when it has said that it sleeps, or this sees that it does.
        fence(Ordering::SeqCst);
        let sleeps = self.asleep.load(Ordering::Relaxed) && self.follows.load(Ordering::Relaxed);
        if sleeps {
            self.wake();
        }
        sleeps
    }

    /// Leaves an order.
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

/// Waits until all that is in the log is on the disk. On an error the log has told why.
pub fn flush(core: &'static DurableCore) -> bool {
    let (answer, outcome) = std::sync::mpsc::channel();
    core.aof.order(Order::Flush(answer));
    outcome.recv().unwrap_or(false)
}

/// Replays the files at the start. Workers may be running, and must not touch the data meanwhile.
pub fn load(core: &'static DurableCore) -> Result<(), Failed> {
    let (answer, outcome) = std::sync::mpsc::channel();
    core.aof.order(Order::Load(answer));
    outcome.recv().unwrap_or(Err(Failed))
}

/// Begins to write to the files, at the start.
pub fn open(core: &'static DurableCore) -> Result<(), Failed> {
    let (answer, outcome) = std::sync::mpsc::channel();
    core.aof.order(Order::Open(answer));
    outcome.recv().unwrap_or(Err(Failed))
}

/// Reads the manifest, where the files are not loaded.
pub fn look(core: &'static DurableCore) -> Result<(), Failed> {
    let (answer, outcome) = std::sync::mpsc::channel();
    core.aof.order(Order::Look(answer));
    outcome.recv().unwrap_or(Err(Failed))
}

/// Deletes what is history, if it need not be kept.
pub fn collect_history(core: &'static DurableCore) {
    let (answer, done) = std::sync::mpsc::channel();
    core.aof.order(Order::CollectHistory(answer));
    // The thread lasts as long as the process.
    let _ = done.recv();
}

/// Counts what CONFIG RESETSTAT resets anew.
pub fn reset_stats(aof: &Aof) {
    aof.status.lock().rewrites = 0;
    aof.delayed_syncs.store(0, Ordering::Relaxed);
}
