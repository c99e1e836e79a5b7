//! COMMANDLOG: the latest commands that were slow, or whose request or reply was large.

use crate::clients::ClientInfo;
use crate::slow_commands::{SlowCommand, SlowCommands};
use kvick_config::Values;
use kvick_config::tables::logging;
use kvick_resp::Args;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Limits of a log entry: the number of arguments, and the bytes of each.
const ARGS_MAX: usize = 32;
const ARG_BYTES_MAX: usize = 128;
/// Replaces secret arguments.
pub const REDACTED: &[u8] = b"(redacted)";
/// Upper bound of the bytes that the protocol adds to an argument: the length in decimal, a dollar sign and two line
/// ends.
const FRAMING_MAX: usize = 25;

/// The kinds of logs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Slow commands, in microseconds.
    Slow,
    /// Commands with large requests, in bytes.
    LargeRequest,
    /// Commands with large replies, in bytes.
    LargeReply,
}

/// The minimum values that are logged (negative: nothing is logged), and the maximum number of entries.
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

/// The limits of one log.
struct Limits {
    /// The minimum value of a recorded command; negative to record none.
    threshold: i64,
    entries_max: usize,
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

    fn of(&self, kind: Kind) -> Limits {
        let (threshold, entries_max) = match kind {
            Kind::Slow => (self.slow_us, self.slow_max),
            Kind::LargeRequest => (self.request_bytes, self.request_max),
            Kind::LargeReply => (self.reply_bytes, self.reply_max),
        };
        Limits { threshold, entries_max }
    }

    /// The minimum value that the log records; `usize::MAX` if it records nothing.
    pub fn bytes_min(&self, kind: Kind) -> usize {
        match self.of(kind) {
            Limits { entries_max: 0, .. } => usize::MAX,
            Limits { threshold, .. } => usize::try_from(threshold).unwrap_or(usize::MAX),
        }
    }
}

/// The length in the protocol of an array of these strings.
pub fn bytes_of_words<'a>(words: impl ExactSizeIterator<Item = &'a [u8]>) -> usize {
    let framed = |len: usize| decimal_digits(len) + b"$\r\n\r\n".len() + len;
    decimal_digits(words.len()) + b"*\r\n".len() + words.map(|word| framed(word.len())).sum::<usize>()
}

/// An executed command, as input of the logs.
#[derive(Clone, Copy)]
pub struct Executed<'a> {
    /// Its arguments.
    pub args: Args<'a>,
    /// The client that sent it.
    pub client: &'a ClientInfo,
    /// Secret arguments, as bits.
    pub redacted: u32,
    /// The database that it was executed in.
    pub db: usize,
    /// The error with which it ended.
    pub error: Option<&'a [u8]>,
}

impl<'a> Executed<'a> {
    /// A cheap upper bound of the length of the request.
    #[inline]
    pub fn bytes_max(&self) -> usize {
        Self::bytes_max_of(self.args)
    }

    /// The same for the arguments of a request.
    #[inline]
    pub fn bytes_max_of(args: Args<'_>) -> usize {
        args.bytes_max() + (args.len() + 1) * FRAMING_MAX
    }

    /// The length in the protocol of a request with these arguments.
    pub fn bytes_of(args: Args<'_>) -> usize {
        bytes_of_words(args.iter())
    }

    /// The length of the request in the protocol.
    fn bytes(&self) -> usize {
        Self::bytes_of(self.args)
    }

    fn truncated(&self) -> Vec<Vec<u8>> {
        let len = self.args.len();
        let kept = if len > ARGS_MAX { ARGS_MAX - 1 } else { len };
        let mut truncated: Vec<Vec<u8>> = (0..kept).map(|index| self.truncate(index)).collect();
        if len > ARGS_MAX {
            truncated.push(format!("... ({} more arguments)", len - kept).into_bytes());
        }
        truncated
    }

    fn truncate(&self, index: usize) -> Vec<u8> {
        if self.redacted >> index & 1 == 1 {
            return REDACTED.to_vec();
        }
        let bytes = self.args.get(index).unwrap_or_default();
        let len = bytes.len();
        let mut short = bytes[..bytes.len().min(ARG_BYTES_MAX)].to_vec();
        if len > ARG_BYTES_MAX {
            short.extend_from_slice(format!("... ({} more bytes)", len - ARG_BYTES_MAX).as_bytes());
        }
        short
    }
}

fn decimal_digits(n: usize) -> usize {
    n.checked_ilog10().unwrap_or(0) as usize + 1
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
    logs: [Mutex<Log>; 3],
    /// The new entries of the log of slow commands, for tracing.
    pub slow: SlowCommands,
}

#[derive(Default)]
struct Log {
    /// Latest first.
    entries: VecDeque<Entry>,
    next_id: i64,
}

impl CommandLog {
    fn log(&self, kind: Kind) -> &Mutex<Log> {
        &self.logs[kind as usize]
    }

    /// Offers a command that took `us` microseconds, and whose reply has `reply_bytes` bytes, to all logs.
    pub fn record_all(&self, us: u64, reply_bytes: usize, executed: Executed<'_>, thresholds: &Thresholds) {
        self.record_slow(us, executed, thresholds);
        self.record_request(executed, thresholds);
        self.record_reply(reply_bytes, executed, thresholds);
    }

    /// Logs a command that took `us` microseconds if it reaches the threshold.
    pub fn record_slow(&self, us: u64, executed: Executed<'_>, thresholds: &Thresholds) {
        self.record(Kind::Slow, i64::try_from(us).unwrap_or(i64::MAX), executed, thresholds);
    }

    /// Logs a command if its request reaches the threshold.
    pub fn record_request(&self, executed: Executed<'_>, thresholds: &Thresholds) {
        self.record(Kind::LargeRequest, executed.bytes() as i64, executed, thresholds);
    }

    /// Logs a command whose reply has `bytes` bytes if it reaches the threshold.
    pub fn record_reply(&self, bytes: usize, executed: Executed<'_>, thresholds: &Thresholds) {
        self.record(Kind::LargeReply, bytes as i64, executed, thresholds);
    }

    fn record(&self, kind: Kind, value: i64, executed: Executed<'_>, thresholds: &Thresholds) {
        let Limits { threshold, entries_max } = thresholds.of(kind);
        if threshold < 0 || value < threshold || entries_max == 0 {
            return;
        }
        let mut entry = Entry {
            id: 0,
            time: kvick_runtime::clock::unix_ms() / 1000,
            value,
            args: executed.truncated(),
            peer: executed.client.peer.clone(),
            name: executed.client.names.lock().name.clone(),
        };
        let mut log = self.log(kind).lock();
        entry.id = log.next_id;
        log.next_id += 1;
        if kind == Kind::Slow && self.slow.are_wanted() {
            self.slow.add(|| SlowCommand::new(&entry, executed));
        }
        log.entries.push_front(entry);
        log.entries.truncate(entries_max);
    }

    /// The latest entries, latest first.
    pub fn latest(&self, kind: Kind, count: usize) -> Vec<Entry> {
        self.log(kind).lock().entries.iter().take(count).cloned().collect()
    }

    /// How many entries there are.
    pub fn len(&self, kind: Kind) -> usize {
        self.log(kind).lock().entries.len()
    }

    /// Deletes all entries. Ids continue to ascend.
    pub fn reset(&self, kind: Kind) {
        self.log(kind).lock().entries.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::ClientInfo;
    use kvick_resp::OwnedArgs;
    use std::sync::Arc;

    const ALL: Thresholds =
        Thresholds { slow_us: 0, slow_max: 2, request_bytes: 0, request_max: 9, reply_bytes: -1, reply_max: 9 };

    fn client() -> Arc<ClientInfo> {
        Arc::new(ClientInfo::new(1, 0, -1, "127.0.0.1:1".into(), "127.0.0.1:2".into(), true, 0))
    }

    fn record(log: &CommandLog, client: &ClientInfo, args: &[&[u8]], redacted: u32) -> Entry {
        let owned = OwnedArgs::new(args);
        let executed = Executed { args: owned.args(), client, redacted, db: 0, error: None };
        log.record_request(executed, &ALL);
        assert!(executed.bytes() <= executed.bytes_max());
        log.latest(Kind::LargeRequest, 1).remove(0)
    }

    #[test]
    fn request_size_is_its_length_in_the_protocol() {
        let entry = record(&CommandLog::default(), &client(), &[b"set", b"key", b"0123456789"], 0);
        assert_eq!(entry.value as usize, b"*3\r\n$3\r\nset\r\n$3\r\nkey\r\n$10\r\n0123456789\r\n".len());
    }

    #[test]
    fn long_arguments_and_argument_lists_are_truncated() {
        let (log, client, long) = (CommandLog::default(), client(), [b'A'; 130]);
        assert!(record(&log, &client, &[b"set", &long], 0).args[1].ends_with(b"AAA... (2 more bytes)"));
        let many = [&b"a"[..]; 33];
        let args = record(&log, &client, &many, 0).args;
        assert_eq!((args.len(), &args[31][..]), (32, &b"... (2 more arguments)"[..]));
        assert_eq!(record(&log, &client, &many[..32], 0).args.len(), 32);
    }

    #[test]
    fn secret_arguments_are_redacted() {
        let client = client();
        let entry = record(&CommandLog::default(), &client, &[b"auth", b"secret"], 1 << 1);
        assert_eq!(entry.args, [&b"auth"[..], REDACTED]);
    }

    #[test]
    fn oldest_entries_are_dropped_and_ids_keep_ascending() {
        let (log, client, owned) = (CommandLog::default(), client(), OwnedArgs::new([b"ping"]));
        let executed = Executed { args: owned.args(), client: &client, redacted: 0, db: 0, error: None };
        (0..3).for_each(|us| log.record_slow(us, executed, &ALL));
        log.record_reply(1, executed, &ALL);
        let ids = |log: &CommandLog| log.latest(Kind::Slow, 9).iter().map(|entry| entry.id).collect::<Vec<_>>();
        assert_eq!((ids(&log), log.len(Kind::LargeReply)), (vec![2, 1], 0));
        log.reset(Kind::Slow);
        log.record_slow(7, executed, &ALL);
        assert_eq!(ids(&log), [3]);
    }
}
