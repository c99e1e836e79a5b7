//! ACL LOG: the latest refused requests, latest first.
//!
//! A refusal that repeats one of the latest few entries within a minute increments the count of that entry and moves it
//! to the front.

use super::check::Reason;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of latest entries that are searched for a repetition.
const DEDUP_ENTRIES_MAX: usize = 10;
/// Refusals further apart than this get separate entries.
const DEDUP_MS_MAX: u64 = 60_000;

/// The kind of refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// Authentication failed.
    Auth,
    /// The user may not execute the command.
    Denied(Reason),
    /// The name in a client certificate is not a valid user.
    TlsCertificate,
}

impl Cause {
    /// Number of causes.
    const COUNT: usize = 6;

    /// All causes with their names in INFO, in the order of INFO.
    pub const NAMES: [(Cause, &'static str); Cause::COUNT] = [
        (Cause::Auth, "auth"),
        (Cause::Denied(Reason::Command), "cmd"),
        (Cause::Denied(Reason::Key), "key"),
        (Cause::Denied(Reason::Channel), "channel"),
        (Cause::TlsCertificate, "tls_cert"),
        (Cause::Denied(Reason::Database), "db"),
    ];

    /// Its name in ACL LOG.
    pub fn name(self) -> &'static str {
        match self {
            Cause::Auth => "auth",
            Cause::Denied(Reason::Command) => "command",
            Cause::Denied(Reason::Key) => "key",
            Cause::Denied(Reason::Channel) => "channel",
            Cause::Denied(Reason::Database) => "database",
            Cause::TlsCertificate => "tls-cert",
        }
    }

    fn number(self) -> usize {
        Cause::NAMES.iter().position(|(cause, _)| *cause == self).unwrap_or_default()
    }
}

/// The context of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Context {
    /// A request of a client.
    TopLevel,
    /// In a transaction, while it was queued or executed.
    Multi,
    /// A command called by a script.
    Lua,
}

impl Context {
    /// Its name in ACL LOG.
    pub fn name(self) -> &'static str {
        match self {
            Context::TopLevel => "toplevel",
            Context::Multi => "multi",
            Context::Lua => "lua",
        }
    }
}

/// A refusal.
#[derive(Clone, Copy)]
pub struct Event<'a> {
    /// The cause.
    pub cause: Cause,
    /// The context.
    pub context: Context,
    /// The key, the channel, the database, or the command.
    pub object: &'a [u8],
    /// The user.
    pub user: &'a [u8],
    /// Unix time in ms.
    pub now_ms: i64,
}

/// An entry of ACL LOG: a refusal that occurred once or more.
#[derive(Clone)]
pub struct Entry {
    /// Number of occurrences.
    pub count: u64,
    /// The cause.
    pub cause: Cause,
    /// The context.
    pub context: Context,
    /// The key, the channel, the database, or the command.
    pub object: Box<[u8]>,
    /// The user.
    pub user: Box<[u8]>,
    /// The connection of the latest occurrence, in the form of CLIENT LIST.
    pub client: Vec<u8>,
    /// Unique since the start of the server.
    pub id: u64,
    /// Unix time in ms of the first occurrence.
    pub created_ms: i64,
    /// Unix time in ms of the latest occurrence.
    pub updated_ms: i64,
}

impl Entry {
    fn is_duplicate(&self, event: &Event<'_>) -> bool {
        self.cause == event.cause
            && self.context == event.context
            && event.now_ms.abs_diff(self.updated_ms) <= DEDUP_MS_MAX
            && *self.object == *event.object
            && *self.user == *event.user
    }
}

/// See the module's documentation.
#[derive(Default)]
pub struct AclLog {
    entries: Mutex<Entries>,
    counts: [AtomicU64; Cause::COUNT],
}

#[derive(Default)]
struct Entries {
    latest_first: VecDeque<Entry>,
    next_id: u64,
}

impl AclLog {
    /// Records a refusal and keeps at most `len_max` entries. `client` describes the connection.
    pub fn record(&self, event: &Event<'_>, len_max: u64, client: impl FnOnce() -> Vec<u8>) {
        self.counts[event.cause.number()].fetch_add(1, Ordering::Relaxed);
        let len_max = usize::try_from(len_max).unwrap_or(usize::MAX);
        let mut entries = self.entries.lock();
        let Entries { latest_first, next_id } = &mut *entries;
        if len_max > 0 {
            let known = latest_first.iter().take(DEDUP_ENTRIES_MAX).position(|entry| entry.is_duplicate(event));
            let entry = match known.and_then(|at| latest_first.remove(at)) {
                Some(entry) => Entry { count: entry.count + 1, client: client(), updated_ms: event.now_ms, ..entry },
                None => {
                    *next_id += 1;
                    Entry {
                        count: 1,
                        cause: event.cause,
                        context: event.context,
                        object: event.object.into(),
                        user: event.user.into(),
                        client: client(),
                        id: *next_id - 1,
                        created_ms: event.now_ms,
                        updated_ms: event.now_ms,
                    }
                }
            };
            latest_first.push_front(entry);
        }
        latest_first.truncate(len_max);
    }

    /// The latest entries, latest first.
    pub fn latest(&self, count: usize) -> Vec<Entry> {
        self.entries.lock().latest_first.iter().take(count).cloned().collect()
    }

    /// Deletes all entries.
    pub fn clear(&self) {
        self.entries.lock().latest_first.clear();
    }

    /// Number of refusals with this cause, for INFO.
    pub fn count(&self, cause: Cause) -> u64 {
        self.counts[cause.number()].load(Ordering::Relaxed)
    }

    /// Resets the counts.
    pub fn reset_counts(&self) {
        self.counts.iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(object: &'static str, now_ms: i64) -> Event<'static> {
        let cause = Cause::Denied(Reason::Key);
        Event { cause, context: Context::TopLevel, object: object.as_bytes(), user: b"bob", now_ms }
    }

    fn shown(log: &AclLog) -> Vec<(String, u64, u64)> {
        let entries = log.latest(usize::MAX).into_iter();
        entries.map(|entry| (String::from_utf8_lossy(&entry.object).into_owned(), entry.count, entry.id)).collect()
    }

    fn entry(object: &str, count: u64, id: u64) -> (String, u64, u64) {
        (object.to_string(), count, id)
    }

    #[test]
    fn repeated_denials_are_counted_and_move_to_the_front() {
        let log = AclLog::default();
        for object in ["a", "b", "a"] {
            log.record(&event(object, 1000), 10, Vec::new);
        }
        assert_eq!(shown(&log), [entry("a", 2, 0), entry("b", 1, 1)]);
        log.record(&event("a", 1000 + 60_001), 10, Vec::new);
        assert_eq!(shown(&log), [entry("a", 1, 2), entry("a", 2, 0), entry("b", 1, 1)]);
        assert_eq!(log.count(Cause::Denied(Reason::Key)), 4);
    }

    #[test]
    fn entries_differ_by_context_and_client() {
        let log = AclLog::default();
        log.record(&event("a", 0), 10, Vec::new);
        log.record(&Event { context: Context::Multi, ..event("a", 0) }, 10, Vec::new);
        log.record(&Event { user: b"al", ..event("a", 0) }, 10, Vec::new);
        log.record(&Event { cause: Cause::Auth, ..event("a", 0) }, 10, Vec::new);
        assert_eq!(log.latest(9).len(), 4);
    }

    #[test]
    fn the_log_keeps_at_most_the_configured_entries() {
        let log = AclLog::default();
        ["a", "b", "c"].into_iter().for_each(|object| log.record(&event(object, 0), 2, Vec::new));
        assert_eq!(shown(&log), [entry("c", 1, 2), entry("b", 1, 1)]);
        log.record(&event("d", 0), 0, || unreachable!("nothing is kept"));
        assert!(shown(&log).is_empty());
        assert_eq!(log.count(Cause::Denied(Reason::Key)), 4);
    }

    #[test]
    fn each_cause_has_its_own_counter() {
        for (number, (cause, _)) in Cause::NAMES.into_iter().enumerate() {
            assert_eq!(cause.number(), number);
        }
    }
}
