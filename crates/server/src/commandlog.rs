//! COMMANDLOG: the latest commands that took long, or whose request or reply was large.

use crate::config::Values;
use crate::config::tables::logging;
use crate::session::Client;
use kvick_resp::Args;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};

/// Arguments of an entry, and bytes of each, that are kept.
const ARGS_MAX: usize = 32;
const ARG_BYTES_MAX: usize = 128;

/// What a log records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Commands that took long, in microseconds.
    Slow,
    /// Commands with large requests, in bytes.
    LargeRequest,
    /// Commands with large replies, in bytes.
    LargeReply,
}

/// From what on commands are recorded (negative: never), and how many entries are kept.
#[derive(Clone, Copy, Debug)]
pub struct Thresholds {
    /// Microseconds.
    pub slow_us: i64,
    /// Entries.
    pub slow_max: usize,
    /// Bytes.
    pub request_bytes: i64,
    /// Entries.
    pub request_max: usize,
    /// Bytes.
    pub reply_bytes: i64,
    /// Entries.
    pub reply_max: usize,
}

impl Thresholds {
    /// The thresholds among the settings.
    pub fn read(values: &Values) -> Self {
        Thresholds {
            slow_us: values.read(logging::COMMANDLOG_EXECUTION_SLOWER_THAN),
            slow_max: values.read(logging::COMMANDLOG_SLOW_EXECUTION_MAX_LEN) as usize,
            request_bytes: values.read(logging::COMMANDLOG_REQUEST_LARGER_THAN),
            request_max: values.read(logging::COMMANDLOG_LARGE_REQUEST_MAX_LEN) as usize,
            reply_bytes: values.read(logging::COMMANDLOG_REPLY_LARGER_THAN),
            reply_max: values.read(logging::COMMANDLOG_LARGE_REPLY_MAX_LEN) as usize,
        }
    }

    fn of(&self, kind: Kind) -> (i64, usize) {
        match kind {
            Kind::Slow => (self.slow_us, self.slow_max),
            Kind::LargeRequest => (self.request_bytes, self.request_max),
            Kind::LargeReply => (self.reply_bytes, self.reply_max),
        }
    }
}

/// A recorded command.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Unique within its log, ascending.
    pub id: i64,
    /// Unix time in seconds.
    pub time: i64,
    /// Microseconds or bytes.
    pub value: i64,
    /// Its arguments, shortened.
    pub args: Vec<Vec<u8>>,
    /// The client's address.
    pub peer: String,
    /// The client's name.
    pub name: Box<[u8]>,
}

/// The three logs.
#[derive(Default)]
pub struct CommandLog {
    logs: [Log; 3],
}

#[derive(Default)]
struct Log {
    entries: Mutex<VecDeque<Entry>>,
    next_id: AtomicI64,
}

impl CommandLog {
    fn log(&self, kind: Kind) -> &Log {
        &self.logs[kind as usize]
    }

    /// Records a command if its value reaches the threshold.
    pub fn offer(&self, kind: Kind, value: i64, args: Args<'_>, client: &Client, thresholds: &Thresholds) {
        let (threshold, max) = thresholds.of(kind);
        if threshold < 0 || value < threshold || max == 0 {
            return;
        }
        let log = self.log(kind);
        let entry = Entry {
            id: log.next_id.fetch_add(1, Ordering::Relaxed),
            time: crate::clock::unix_ms() / 1000,
            value,
            args: shortened(args),
            peer: client.info.peer.clone(),
            name: client.info.names.lock().name.clone(),
        };
        let mut entries = log.entries.lock();
        entries.push_front(entry);
        entries.truncate(max);
    }

    /// The latest entries, latest first.
    pub fn latest(&self, kind: Kind, count: usize) -> Vec<Entry> {
        self.log(kind).entries.lock().iter().take(count).cloned().collect()
    }

    /// How many entries there are.
    pub fn len(&self, kind: Kind) -> usize {
        self.log(kind).entries.lock().len()
    }

    /// Forgets all entries.
    pub fn reset(&self, kind: Kind) {
        self.log(kind).entries.lock().clear();
    }
}

fn shortened(args: Args<'_>) -> Vec<Vec<u8>> {
    let kept = if args.len() > ARGS_MAX { ARGS_MAX - 1 } else { args.len() };
    let mut shortened: Vec<Vec<u8>> = args.iter().take(kept).map(shorten).collect();
    if args.len() > ARGS_MAX {
        shortened.push(format!("... ({} more arguments)", args.len() - kept).into_bytes());
    }
    shortened
}

fn shorten(arg: &[u8]) -> Vec<u8> {
    if arg.len() <= ARG_BYTES_MAX {
        return arg.to_vec();
    }
    let mut short = arg[..ARG_BYTES_MAX].to_vec();
    short.extend_from_slice(format!("... ({} more bytes)", arg.len() - ARG_BYTES_MAX).as_bytes());
    short
}
