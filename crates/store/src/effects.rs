//! The effects of one command on the keyspace: the number of changes, the records for the write log, and the events.

pub(crate) mod event_class;

pub use event_class::EventClass;

use crate::hash::Key;
use crate::log::{Batch, WriteLog, encode};
use crate::tracking::{Changes, Stale};
use crate::value::{IntBuf, Str};
use crate::watching::{Watch, Watcher};
use kvick_resp::Args;
use std::ops::Range;
use std::sync::Arc;

/// A keyspace event that is to be published.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the database.
    pub database: usize,
    /// Its name, such as "set" or "expired".
    pub name: &'static str,
    /// The key.
    pub key: Vec<u8>,
}

/// Capacity for records that is kept between commands, in bytes.
const RECORDS_KEPT: usize = 64 * 1024;

/// Receives keyspace events.
pub trait Listener: Send + Sync {
    /// Receives the events of one command, in order. Called under the command's locks, so that the events of
    /// a key arrive in the order of its changes: the implementation must not take any lock of the keyspace.
    fn on_events(&self, events: &[Event]);
}

/// How the command itself is propagated to the log.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Propagation {
    #[default]
    /// As received, if it changed something.
    AsReceived,
    /// As received, even if it changed nothing.
    Always,
    /// Not at all: its records replace it.
    Instead,
}

/// Which readers of the log receive the effects of commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PropagationTargets {
    #[default]
    /// All readers of the write log.
    All,
    /// Only replicas.
    Replicas,
    /// Only the append-only file.
    AofOnly,
    /// None.
    None,
}

/// The effects of one command. See the module documentation. A worker reuses one value for all its commands.
#[derive(Default)]
pub struct Effects {
    dirty: u64,
    /// Bytes appended to the log.
    logged_bytes: usize,
    propagation: Propagation,
    records: Vec<u8>,
    record_count: usize,
    /// The ranges in `records` that only replicas receive.
    replica_only: Vec<Range<usize>>,
    has_readers: bool,
    targets: PropagationTargets,
    /// On a replica: the bytes of the primary's log that this command executes, and
    /// whether they are for replicas only. While this is set, nothing else is propagated.
    verbatim: Option<(Vec<u8>, bool)>,
    /// The database that the client has selected.
    database: usize,
    /// The database currently being modified.
    current_database: usize,
    event_mask: EventClass,
    events: Vec<Event>,
    listener: Option<Arc<dyn Listener>>,
    /// Changed keys that clients wait for, with their databases, in the order of their changes.
    ready_keys: Vec<(usize, Box<[u8]>)>,
    /// The watchers of keys that the command may have changed.
    watched: Vec<Arc<Watcher>>,
    /// Changed keys that clients may have cached.
    changes: Changes,
    /// The commands of a transaction, while one is executed.
    group: Option<Group>,
    /// Whether the current command left anything besides a number of changes: most do not, and need no further checks.
    marked: bool,
}

/// The effects of the commands of a transaction, to be appended together.
#[derive(Default)]
struct Group {
    records: Vec<u8>,
    record_count: usize,
    replica_only: Vec<Range<usize>>,
    /// Records that only the append-only file receives, with their positions in `records`.
    aof_only: Vec<(usize, Vec<u8>)>,
    /// The databases of the first and of the last record.
    databases: Option<(usize, usize)>,
}

impl Effects {
    /// Effects that pass events to a listener.
    pub fn with_listener(listener: Arc<dyn Listener>) -> Self {
        Effects { listener: Some(listener), ..Effects::default() }
    }

    /// Begins a command.
    #[inline]
    pub fn begin(&mut self, has_readers: bool, event_mask: EventClass, database: usize) {
        self.dirty = 0;
        self.has_readers = has_readers && self.verbatim.is_none();
        self.event_mask = event_mask;
        self.database = database;
        self.current_database = database;
        if self.marked {
            self.clear_marks();
        }
    }

    /// Clears the effects of the previous command.
    #[inline(never)]
    fn clear_marks(&mut self) {
        self.marked = false;
        self.propagation = Propagation::AsReceived;
        self.clear_records();
        self.events.clear();
        self.watched.clear();
        self.changes.begin();
    }

    /// Bytes appended to the log since the last call, without the records that select databases.
    pub fn take_logged_bytes(&mut self) -> usize {
        std::mem::take(&mut self.logged_bytes)
    }

    /// Sets which readers of the log receive the effects of the following
    /// commands. Valid only within a [group](Effects::begin_group).
    pub fn set_propagation_targets(&mut self, targets: PropagationTargets) {
        self.targets = targets;
    }

    /// Counts `n` changes. A command that made none is not propagated.
    #[inline]
    pub fn changed(&mut self, n: u64) {
        self.dirty += n;
    }

    /// Number of changes so far.
    #[inline]
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    /// True if the write log has readers, so that records for [`Effects::propagate`] are needed.
    #[inline]
    pub fn has_readers(&self) -> bool {
        self.has_readers
    }

    /// Propagates the request `words` instead of the command; several calls propagate several requests.
    pub fn propagate(&mut self, words: &[&[u8]]) {
        self.propagate_nothing();
        self.record(words);
    }

    /// Propagates the command as received even if it changed nothing.
    pub fn propagate_always(&mut self) {
        self.marked = true;
        self.propagation = Propagation::Always;
    }

    /// Propagates nothing, even if something changed.
    pub fn propagate_nothing(&mut self) {
        self.marked = true;
        self.propagation = Propagation::Instead;
    }

    /// Propagates the request `words` in addition to the command.
    pub(crate) fn record(&mut self, words: &[&[u8]]) {
        if self.has_readers {
            self.marked = true;
            encode(&mut self.records, words.iter().copied());
            self.record_count += 1;
        }
    }

    /// Propagates the request `words` in addition to the command, to replicas only: it changes no data.
    pub fn propagate_replica_only(&mut self, words: &[&[u8]]) {
        let start = self.records.len();
        self.record(words);
        if self.has_readers {
            self.replica_only.push(start..self.records.len());
        }
    }

    fn clear_records(&mut self) {
        self.records.clear();
        self.records.shrink_to(RECORDS_KEPT);
        self.replica_only.clear();
        self.record_count = 0;
    }

    /// Fires a keyspace event.
    #[inline]
    pub fn notify(&mut self, class: EventClass, name: &'static str, key: &[u8]) {
        if self.event_mask.intersects(class) {
            self.note_event(name, key);
        }
    }

    #[cold]
    fn note_event(&mut self, name: &'static str, key: &[u8]) {
        self.marked = true;
        self.events.push(Event { database: self.current_database, name, key: key.to_vec() });
    }

    /// Records a change of a key that clients wait for.
    #[cold]
    pub(crate) fn note_ready_key(&mut self, database: usize, key: &[u8]) {
        if !self.ready_keys.iter().any(|(number, known)| *number == database && known.as_ref() == key) {
            self.ready_keys.push((database, key.into()));
        }
    }

    /// Records the watchers of a key that may have changed.
    pub(crate) fn note_watched_change(&mut self, watches: &[Watch]) {
        self.marked = true;
        self.watched.extend(watches.iter().map(|watch| watch.watcher.clone()));
    }

    /// The command changed only parts of values that are not covered by WATCH and client-side caching (consumer
    /// groups): its changes so far are neither. Keys that expired meanwhile remain.
    pub fn forget_noted_changes(&mut self) {
        self.watched.clear();
        self.changes.begin();
    }

    /// Whether all changed keys are noted.
    #[inline]
    pub(crate) fn notes_all_changes(&self) -> bool {
        self.event_mask.contains(EventClass::CHANGE)
    }

    /// Notes that a key that clients may have cached may have changed.
    pub(crate) fn note_cached_change(&mut self, database: usize, key: &[u8], has_readers: bool) {
        if has_readers || self.notes_all_changes() {
            self.marked = true;
            self.changes.note(database, key, has_readers);
        }
    }

    /// Records that a key that clients may have cached expired or was evicted, in whole or in part.
    pub(crate) fn note_cached_reclaimed(&mut self, database: usize, key: &[u8], has_readers: bool) {
        if has_readers || self.notes_all_changes() {
            self.changes.reclaimed(database, key, has_readers);
        }
    }

    /// Records that everything clients have cached is stale.
    pub(crate) fn all_changed(&mut self) {
        self.changes.all_stale = true;
    }

    /// Sets the client that runs the following commands, if it uses
    /// NOLOOP tracking; 0 for other clients. Returns the previous one.
    pub fn set_noloop_writer(&mut self, noloop_writer: u64) -> u64 {
        std::mem::replace(&mut self.changes.noloop_writer, noloop_writer)
    }

    /// Sets whether a script calls the following commands.
    pub fn set_by_script(&mut self, by_script: bool) {
        self.changes.by_script = by_script;
    }

    /// The changed keys that clients may have cached, in the order of
    /// their changes. They accumulate across commands until taken.
    pub fn take_stale(&mut self) -> Vec<Stale> {
        self.changes.reclaimed_bytes = 0;
        std::mem::take(&mut self.changes.stale)
    }

    /// Bytes of those among them that expired or were evicted.
    pub fn reclaimed_bytes(&self) -> usize {
        self.changes.reclaimed_bytes
    }

    /// Whether everything that clients have cached became stale since the last call.
    pub fn take_all_stale(&mut self) -> bool {
        std::mem::take(&mut self.changes.all_stale)
    }

    /// True if changes are pending for clients that wait for keys or have cached them.
    #[inline]
    pub fn has_pending_notifications(&self) -> bool {
        self.has_ready_keys() | self.changes.is_pending()
    }

    /// True if keys that clients wait for have changed.
    #[inline]
    pub fn has_ready_keys(&self) -> bool {
        !self.ready_keys.is_empty()
    }

    /// The changed keys that clients wait for, with their databases. They accumulate across commands until taken.
    pub fn take_ready_keys(&mut self) -> Vec<(usize, Box<[u8]>)> {
        std::mem::take(&mut self.ready_keys)
    }

    /// Sets the database being modified; returns the previous one.
    pub(crate) fn set_current_database(&mut self, database: usize) -> usize {
        std::mem::replace(&mut self.current_database, database)
    }

    /// Number of the database being modified.
    pub(crate) fn current_database(&self) -> usize {
        self.current_database
    }

    /// A key was deleted because it had expired; its value is freed in the background if `lazy`.
    pub(crate) fn expired(&mut self, key: Key<'_>, lazy: bool) {
        let elsewhere = self.current_database != self.database;
        let words = &[deletion(lazy), key.bytes];
        if self.targets != PropagationTargets::All {
            self.record_for_all(self.current_database, words);
        } else if elsewhere {
            self.record_select(self.current_database);
            self.record(words);
            self.record_select(self.database);
        } else {
            self.record(words);
        }
        self.notify(EventClass::EXPIRED, "expired", key.bytes);
    }

    /// A key of the client's database was evicted; its value is freed in the background if `lazy`.
    pub(crate) fn evicted(&mut self, key: Key<'_>, lazy: bool) {
        self.record(&[deletion(lazy), key.bytes]);
        self.notify(EventClass::EVICTED, "evicted", key.bytes);
    }

    /// The command itself deleted a key by giving it an expiry in the past.
    pub(crate) fn expired_by_command(&mut self, key: Key<'_>, lazy: bool) {
        self.changed(1);
        self.propagate(&[deletion(lazy), key.bytes]);
        self.notify(EventClass::EXPIRED, "expired", key.bytes);
    }

    /// Fields of a hash were deleted because they had expired, and the hash with the last of them if `emptied`.
    pub(crate) fn fields_expired(&mut self, key: Key<'_>, fields: &[Vec<u8>], emptied: bool, lazy: bool) {
        let words = [b"HDEL", key.bytes].into_iter().chain(fields.iter().map(Vec::as_slice));
        let words = words.collect::<Vec<_>>();
        match self.targets {
            PropagationTargets::All => self.record(&words),
            _ => self.record_for_all(self.database, &words),
        }
        self.notify(EventClass::EXPIRED, "hexpired", key.bytes);
        if emptied {
            match self.targets {
                PropagationTargets::All => self.record(&[deletion(lazy), key.bytes]),
                _ => self.record_for_all(self.database, &[deletion(lazy), key.bytes]),
            }
            self.notify(EventClass::GENERIC, "del", key.bytes);
        }
    }

    /// Propagates a change that no command asked for, and so goes to all readers, before the effects of the command.
    #[cold]
    fn record_for_all(&mut self, database: usize, words: &[&[u8]]) {
        if let Some(group) = &mut self.group
            && self.has_readers
        {
            let mut record = Vec::new();
            encode(&mut record, words.iter().copied());
            group.add(database, &record, 1, &[], PropagationTargets::All);
        }
    }

    fn record_select(&mut self, database: usize) {
        self.record(&[b"SELECT", Str::Int(database as i64).bytes(&mut IntBuf::default())]);
    }

    /// Events that the command caused and that were not passed to a listener, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Appends the records so far. For a command that releases
    /// locks while it runs, or whose records need not be adjacent.
    pub(crate) fn commit_records(&mut self, log: &WriteLog) {
        self.append(log, None);
        self.clear_records();
    }

    /// Ends the command: appends its effects to the log, or to the transaction that it is part of,
    /// and fires its events. Called under its locks. Returns whether there was anything to append.
    #[inline]
    pub fn commit(&mut self, log: &WriteLog, request: Args<'_>) -> bool {
        let is_plain = !self.marked && self.verbatim.is_none();
        let is_unpropagated = !self.has_readers || self.dirty == 0;
        match is_plain {
            true if is_unpropagated => false,
            true => self.commit_request(log, request),
            false => self.commit_marks(log, request),
        }
    }

    /// Appends the command as received, and nothing else.
    fn commit_request(&mut self, log: &WriteLog, request: Args<'_>) -> bool {
        match request.encoded() {
            Some(records) if self.group.is_none() => {
                let databases = (self.database, self.database);
                self.append_request(log, databases, &[records]);
                true
            }
            _ => self.append(log, Some(request)),
        }
    }

    #[inline(never)]
    fn commit_marks(&mut self, log: &WriteLog, request: Args<'_>) -> bool {
        if !self.events.is_empty() | !self.watched.is_empty() | self.changes.has_noted() {
            self.notify_listeners();
        }
        if !self.has_readers {
            return self.commit_verbatim(log);
        }
        let as_received = match self.propagation {
            Propagation::AsReceived => self.dirty > 0,
            Propagation::Always => true,
            Propagation::Instead => false,
        };
        self.append(log, as_received.then_some(request))
    }

    #[cold]
    fn notify_listeners(&mut self) {
        if let Some(listener) = &self.listener {
            listener.on_events(&self.events);
            self.events.clear();
        }
        if self.dirty > 0 {
            self.watched.iter().for_each(|watcher| watcher.touch());
            self.changes.commit();
        }
    }

    /// From now on, propagates only the primary's log as received: see [`Effects::relay`].
    pub fn relay_only(&mut self) {
        self.verbatim = Some(Default::default());
    }

    /// Sets the part of the primary's log to be committed next; with `replica_only`, it changes no data.
    pub fn relay(&mut self, bytes: &[u8], replica_only: bool) {
        let (verbatim, was_replica_only) = self.verbatim.get_or_insert_default();
        *was_replica_only = replica_only && (verbatim.is_empty() || *was_replica_only);
        verbatim.extend_from_slice(bytes);
    }

    /// Appends the pending part of the primary's log. Must be called where no
    /// other thread changes the keys it affects. Returns whether there was any.
    #[inline]
    pub fn commit_verbatim(&mut self, log: &WriteLog) -> bool {
        if let Some((bytes, replica_only)) = &mut self.verbatim
            && self.group.is_none()
            && !bytes.is_empty()
        {
            log.append_raw(bytes, *replica_only);
            bytes.clear();
            bytes.shrink_to(RECORDS_KEPT);
            return true;
        }
        false
    }

    /// Appends one request, given in pieces.
    fn append_request(&mut self, log: &WriteLog, databases: (usize, usize), records: &[&[u8]]) {
        self.logged_bytes += records.iter().map(|piece| piece.len()).sum::<usize>();
        log.append(&Batch { databases, records, record_count: 1, replica_only: &[], aof_only: &[] });
    }

    /// Appends a request with large arguments, which are copied only into the log.
    #[cold]
    fn append_large(&mut self, log: &WriteLog, request: Args<'_>) {
        let mut pieces = Vec::new();
        let small = encode_small(request);
        for (before, large) in small.iter().zip((0..request.len()).filter_map(|i| request.shared(i))) {
            pieces.extend([&before[..], large]);
        }
        pieces.extend(small.last().map(Vec::as_slice));
        self.append_request(log, (self.database, self.database), &pieces);
    }

    fn append(&mut self, log: &WriteLog, request: Option<Args<'_>>) -> bool {
        if let Some(args) = request
            && self.record_count == 0
            && self.group.is_none()
            && args.has_shared()
        {
            self.append_large(log, args);
            return true;
        }
        if let Some(args) = request {
            self.marked = true;
            encode(&mut self.records, args.iter());
            self.record_count += 1;
        }
        if self.record_count == 0 {
            return false;
        }
        let Effects { database, records, record_count, replica_only, group, targets, logged_bytes, .. } = self;
        match group {
            None => {
                let databases = (*database, *database);
                *logged_bytes += records.len();
                let (records, record_count) = (&[&records[..]], *record_count);
                log.append(&Batch { databases, records, record_count, replica_only, aof_only: &[] });
            }
            Some(group) => group.add(*database, records, *record_count, replica_only, *targets),
        }
        true
    }

    /// Whether a transaction has begun.
    pub fn in_group(&self) -> bool {
        self.group.is_some()
    }

    /// Begins a transaction or a script: the effects of its commands are kept until [`Effects::end_group`].
    pub fn begin_group(&mut self) {
        self.group = Some(Group::default());
    }

    /// Ends a transaction: appends the effects of its commands. Called under its locks.
    pub fn end_group(&mut self, log: &WriteLog) {
        if let Some(Group { records, record_count, replica_only, aof_only, databases: Some(databases) }) =
            self.group.take()
        {
            self.logged_bytes += records.len();
            log.append(&Batch {
                databases,
                records: &[&records],
                record_count,
                replica_only: &replica_only,
                aof_only: &aof_only,
            });
        }
        self.commit_verbatim(log);
    }
}

impl Group {
    fn add(
        &mut self,
        database: usize,
        records: &[u8],
        record_count: usize,
        replica_only: &[Range<usize>],
        targets: PropagationTargets,
    ) {
        if targets == PropagationTargets::None {
            return;
        }
        let (first, last) = self.databases.unwrap_or((database, database));
        if last != database {
            let number = Str::Int(database as i64);
            encode(&mut self.records, [b"SELECT", number.bytes(&mut IntBuf::default())].into_iter());
        }
        self.databases = Some((first, database));
        let start = self.records.len();
        match targets {
            PropagationTargets::All => {
                self.replica_only.extend(
                    replica_only.iter().map(|replica_only| start + replica_only.start..start + replica_only.end),
                );
            }
            PropagationTargets::Replicas => self.replica_only.push(start..start + records.len()),
            PropagationTargets::AofOnly => {
                let data = without(records, replica_only);
                if !data.is_empty() {
                    self.aof_only.push((start, data));
                }
                return;
            }
            PropagationTargets::None => {}
        }
        self.records.extend_from_slice(records);
        self.record_count += record_count;
    }
}

/// The request in RESP without the bytes of its large arguments: what precedes each of them, and what follows the last.
fn encode_small(request: Args<'_>) -> Vec<Vec<u8>> {
    let (mut pieces, mut piece, mut number) = (Vec::new(), Vec::new(), itoa::Buffer::new());
    piece.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
    for (i, word) in request.iter().enumerate() {
        piece.push(b'$');
        piece.extend_from_slice(number.format(word.len()).as_bytes());
        piece.extend_from_slice(b"\r\n");
        match request.shared(i) {
            Some(_) => pieces.push(std::mem::take(&mut piece)),
            None => piece.extend_from_slice(word),
        }
        piece.extend_from_slice(b"\r\n");
    }
    pieces.push(piece);
    pieces
}

/// Returns the records without the given ranges, which are in order.
fn without(records: &[u8], places: &[Range<usize>]) -> Vec<u8> {
    let starts = std::iter::once(0).chain(places.iter().map(|place| place.end));
    let ends = places.iter().map(|place| place.start).chain(std::iter::once(records.len()));
    starts.zip(ends).flat_map(|(start, end)| &records[start..end]).copied().collect()
}

/// The command that propagates a deletion.
fn deletion(lazy: bool) -> &'static [u8] {
    if lazy { b"UNLINK" } else { b"DEL" }
}
