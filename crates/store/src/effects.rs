//! What one command did to the keyspace: how much, what the write log gets, which events it caused.

use crate::keyspace::Key;
use crate::log::{Batch, WriteLog, encode};
use crate::tracking::{Changes, Stale};
use crate::value::{IntBuf, Str};
use crate::watching::{Watch, Watcher};
use bitflags::bitflags;
use kvick_resp::Args;
use std::ops::Range;
use std::sync::Arc;

bitflags! {
    /// Classes of keyspace notifications, each known by a letter in `notify-keyspace-events`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct EventClass: u32 {
        /// `g`: commands that are not about one type.
        const GENERIC = 1 << 0;
        /// `$`: strings.
        const STRING = 1 << 1;
        /// `x`: a key expired.
        const EXPIRED = 1 << 2;
        /// `n`: a key was created.
        const NEW = 1 << 3;
        /// `m`: a key was looked for and not found.
        const KEY_MISS = 1 << 4;
        /// `l`: lists.
        const LIST = 1 << 5;
        /// `s`: sets.
        const SET = 1 << 6;
        /// `h`: hashes.
        const HASH = 1 << 7;
        /// `z`: sorted sets.
        const SORTED_SET = 1 << 8;
        /// `t`: streams.
        const STREAM = 1 << 9;
        /// `e`: a key was evicted.
        const EVICTED = 1 << 10;
        /// No class of notifications: any change of a key, for clients that cache what they have not read (see
        /// [`tracking`](crate::tracking)).
        const CHANGE = 1 << 31;
    }
}

/// A keyspace event that somebody asked to hear of.
#[derive(Debug, PartialEq, Eq)]
pub struct Event {
    /// Number of the database.
    pub database: usize,
    /// Its name, such as "set" or "expired".
    pub name: &'static str,
    /// The key.
    pub key: Vec<u8>,
}

/// Room for records that is kept between commands, in bytes.
const RECORDS_KEPT: usize = 64 * 1024;

/// Who hears of events.
pub trait Listener: Send + Sync {
    /// A command caused these events, in this order. Called under its locks, so that the events of a key come in the order
    /// of its changes: nothing that the keyspace locks may be locked.
    fn hear(&self, events: &[Event]);
}

/// How the command itself goes to the log.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Propagation {
    #[default]
    /// If it changed something.
    AsItCame,
    /// Even if it changed nothing.
    Always,
    /// Not at all: its records say what it did.
    Instead,
}

/// Who is to get what commands do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reach {
    #[default]
    /// Everybody who reads the write log.
    Everybody,
    /// Replicas alone.
    Replicas,
    /// The append-only file alone.
    Files,
    /// Nobody.
    Nobody,
}

/// See the module's documentation. One is reused for all commands of a worker.
#[derive(Default)]
pub struct Effects {
    dirty: u64,
    propagation: Propagation,
    records: Vec<u8>,
    record_count: usize,
    /// Which of them only replicas get.
    replica_only: Vec<Range<usize>>,
    has_readers: bool,
    reach: Reach,
    /// Another server's log, of which this command is a part: its bytes, and whether they are asides. While there is one,
    /// nothing else is propagated.
    verbatim: Option<(Vec<u8>, bool)>,
    /// The client's database, which is that of the request.
    database: usize,
    /// The database that is worked on at the moment.
    working_on: usize,
    heard: EventClass,
    events: Vec<Event>,
    listener: Option<Arc<dyn Listener>>,
    /// Keys that changed and that somebody waits for, with their databases, in the order of their changes.
    awaited: Vec<(usize, Box<[u8]>)>,
    /// Who watches the keys that the command may have changed.
    watched: Vec<Arc<Watcher>>,
    /// What changed that clients may have cached.
    changes: Changes,
    /// The commands of a transaction, while one is executed.
    group: Option<Group>,
    /// Whether the present command left more than a number of changes: for most there is nothing else to look at.
    marked: bool,
}

/// What the commands of a transaction did, to be appended together.
#[derive(Default)]
struct Group {
    records: Vec<u8>,
    record_count: usize,
    replica_only: Vec<Range<usize>>,
    /// Records that only files get, and where they belong.
    aof_only: Vec<(usize, Vec<u8>)>,
    /// The database of the first record, and of the last.
    databases: Option<(usize, usize)>,
}

impl Effects {
    /// Tells a listener of events.
    pub fn with_listener(listener: Arc<dyn Listener>) -> Self {
        Effects { listener: Some(listener), ..Effects::default() }
    }

    /// Begins a command.
    #[inline]
    pub fn begin(&mut self, has_readers: bool, heard: EventClass, database: usize) {
        self.dirty = 0;
        self.has_readers = has_readers && self.verbatim.is_none();
        self.heard = heard;
        self.database = database;
        self.working_on = database;
        if self.marked {
            self.clear_marks();
        }
    }

    /// Forgets what the command before left.
    #[inline(never)]
    fn clear_marks(&mut self) {
        self.marked = false;
        self.propagation = Propagation::AsItCame;
        self.clear_records();
        self.events.clear();
        self.watched.clear();
        self.changes.begin();
    }

    /// Who is to get what the commands from here on do, until this is called again. Only within a
    /// [group](Effects::begin_group).
    pub fn set_reach(&mut self, reach: Reach) {
        self.reach = reach;
    }

    /// `n` changes were made. A command that made none is not propagated.
    #[inline]
    pub fn changed(&mut self, n: u64) {
        self.dirty += n;
    }

    /// Changes made so far.
    #[inline]
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    /// True when somebody reads the write log, and building words for [`Effects::propagate`] is worth it.
    #[inline]
    pub fn has_readers(&self) -> bool {
        self.has_readers
    }

    /// Propagates `words` instead of the command as it came; several calls propagate several requests.
    pub fn propagate(&mut self, words: &[&[u8]]) {
        self.propagate_nothing();
        self.record(words);
    }

    /// Propagates the command as it came even if it changed nothing.
    pub fn propagate_always(&mut self) {
        self.marked = true;
        self.propagation = Propagation::Always;
    }

    /// Propagates nothing although something changed.
    pub fn propagate_nothing(&mut self) {
        self.marked = true;
        self.propagation = Propagation::Instead;
    }

    /// Propagates `words` beside the command.
    pub(crate) fn record(&mut self, words: &[&[u8]]) {
        if self.has_readers {
            self.marked = true;
            encode(&mut self.records, words.iter().copied());
            self.record_count += 1;
        }
    }

    /// Propagates `words` beside the command, to replicas alone: it changes no data.
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

    /// Tells of a keyspace event.
    #[inline]
    pub fn notify(&mut self, class: EventClass, name: &'static str, key: &[u8]) {
        if self.heard.intersects(class) {
            self.note_event(name, key);
        }
    }

    #[cold]
    fn note_event(&mut self, name: &'static str, key: &[u8]) {
        self.marked = true;
        self.events.push(Event { database: self.working_on, name, key: key.to_vec() });
    }

    /// A key changed that somebody waits for.
    #[cold]
    pub(crate) fn awaited_changed(&mut self, database: usize, key: &[u8]) {
        if !self.awaited.iter().any(|(number, known)| *number == database && known.as_ref() == key) {
            self.awaited.push((database, key.into()));
        }
    }

    /// A key may have changed that these watch.
    pub(crate) fn watched_changed(&mut self, watches: &[Watch]) {
        self.marked = true;
        self.watched.extend(watches.iter().map(|watch| watch.watcher.clone()));
    }

    /// Whether all changes of keys are noted.
    #[inline]
    pub(crate) fn hears_changes(&self) -> bool {
        self.heard.contains(EventClass::CHANGE)
    }

    /// A key may have changed that clients may have cached.
    pub(crate) fn cached_changed(&mut self, database: usize, key: &[u8], has_readers: bool) {
        if has_readers || self.hears_changes() {
            self.marked = true;
            self.changes.note(database, key, has_readers);
        }
    }

    /// A key that clients may have cached went, or a part of it, by no command's will.
    pub(crate) fn cached_lost(&mut self, database: usize, key: &[u8], has_readers: bool) {
        if has_readers || self.hears_changes() {
            self.changes.lost(database, key, has_readers);
        }
    }

    /// All that anybody has cached is stale.
    pub(crate) fn all_changed(&mut self) {
        self.changes.all_stale = true;
    }

    /// Who runs the commands from here on, if that is a client that does not want to hear of what it changes itself; 0 for
    /// others. Who did before.
    pub fn set_author(&mut self, author: u64) -> u64 {
        std::mem::replace(&mut self.changes.author, author)
    }

    /// The changed keys that clients may have cached, in the order of their changes. They stay until taken, from command to
    /// command.
    pub fn take_stale(&mut self) -> Vec<Stale> {
        self.changes.lost_bytes = 0;
        std::mem::take(&mut self.changes.stale)
    }

    /// Bytes that those among them take that went by no command's will.
    pub fn lost_bytes(&self) -> usize {
        self.changes.lost_bytes
    }

    /// Whether since the last call something happened that makes all stale that anybody has cached.
    pub fn take_all_stale(&mut self) -> bool {
        std::mem::take(&mut self.changes.all_stale)
    }

    /// True when the commands so far concern clients that wait for keys or have them cached, and have yet to be dealt with.
    #[inline]
    pub fn concern_others(&self) -> bool {
        self.has_awaited() | self.changes.are_there()
    }

    /// True when there are changed keys that somebody waits for.
    #[inline]
    pub fn has_awaited(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// The changed keys that somebody waits for, with their databases. They stay until taken, from command to command.
    pub fn take_awaited(&mut self) -> Vec<(usize, Box<[u8]>)> {
        std::mem::take(&mut self.awaited)
    }

    /// Takes note that another database is worked on from here on; the one before.
    pub(crate) fn work_on(&mut self, database: usize) -> usize {
        std::mem::replace(&mut self.working_on, database)
    }

    /// Number of the database that is worked on.
    pub(crate) fn works_on(&self) -> usize {
        self.working_on
    }

    /// A key was dropped, freed in the background if `lazy`, because its time had come.
    pub(crate) fn expired(&mut self, key: Key<'_>, lazy: bool) {
        let elsewhere = self.working_on != self.database;
        let words = &[deletion(lazy), key.bytes];
        if self.reach != Reach::Everybody {
            self.record_for_everybody(self.working_on, words);
        } else if elsewhere {
            self.record_select(self.working_on);
            self.record(words);
            self.record_select(self.database);
        } else {
            self.record(words);
        }
        self.notify(EventClass::EXPIRED, "expired", key.bytes);
    }

    /// A key of the client's database was dropped, freed in the background if `lazy`, because memory was short.
    pub(crate) fn evicted(&mut self, key: Key<'_>, lazy: bool) {
        self.record(&[deletion(lazy), key.bytes]);
        self.notify(EventClass::EVICTED, "evicted", key.bytes);
    }

    /// The command itself dropped a key by giving it a time that has passed.
    pub(crate) fn expired_by_command(&mut self, key: Key<'_>, lazy: bool) {
        self.changed(1);
        self.propagate(&[deletion(lazy), key.bytes]);
        self.notify(EventClass::EXPIRED, "expired", key.bytes);
    }

    /// Fields of a hash were dropped because their time had come, and the hash with the last of them.
    pub(crate) fn fields_expired(&mut self, key: Key<'_>, fields: &[Vec<u8>], emptied: bool, lazy: bool) {
        let words = [b"HDEL", key.bytes].into_iter().chain(fields.iter().map(Vec::as_slice));
        let words = words.collect::<Vec<_>>();
        match self.reach {
            Reach::Everybody => self.record(&words),
            _ => self.record_for_everybody(self.database, &words),
        }
        self.notify(EventClass::EXPIRED, "hexpired", key.bytes);
        if emptied {
            match self.reach {
                Reach::Everybody => self.record(&[deletion(lazy), key.bytes]),
                _ => self.record_for_everybody(self.database, &[deletion(lazy), key.bytes]),
            }
            self.notify(EventClass::GENERIC, "del", key.bytes);
        }
    }

    /// Propagates what is no command's will, and so reaches everybody, in front of what the command does.
    #[cold]
    fn record_for_everybody(&mut self, database: usize, words: &[&[u8]]) {
        if let Some(group) = &mut self.group
            && self.has_readers
        {
            let mut record = Vec::new();
            encode(&mut record, words.iter().copied());
            group.add(database, &record, 1, &[], Reach::Everybody);
        }
    }

    fn record_select(&mut self, database: usize) {
        self.record(&[b"SELECT", Str::Int(database as i64).bytes(&mut IntBuf::default())]);
    }

    /// Events that the command caused and that no listener has been told of, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Appends what was recorded beside the command so far: for a command that lets go of locks on its way, or whose
    /// records need not stand together.
    pub(crate) fn commit_records(&mut self, log: &WriteLog) {
        self.append(log, None);
        self.clear_records();
    }

    /// Ends the command: appends what it did to the log, or to the transaction that it is part of, and tells of its events.
    /// Called under its locks. Whether there was something to append.
    #[inline]
    pub fn commit(&mut self, log: &WriteLog, request: Args<'_>) -> bool {
        let is_plain = !self.marked && self.verbatim.is_none();
        let is_unsaid = !self.has_readers || self.dirty == 0;
        match is_plain {
            true if is_unsaid => false,
            true => self.commit_request(log, request),
            false => self.commit_marks(log, request),
        }
    }

    /// Appends the command as it came, and nothing else.
    fn commit_request(&mut self, log: &WriteLog, request: Args<'_>) -> bool {
        match request.encoded() {
            Some(records) if self.group.is_none() => {
                let databases = (self.database, self.database);
                log.append(&Batch { databases, records, record_count: 1, replica_only: &[], aof_only: &[] });
                true
            }
            _ => self.append(log, Some(request)),
        }
    }

    #[inline(never)]
    fn commit_marks(&mut self, log: &WriteLog, request: Args<'_>) -> bool {
        if !self.events.is_empty() | !self.watched.is_empty() | self.changes.has_noted() {
            self.tell();
        }
        if !self.has_readers {
            return self.commit_verbatim(log);
        }
        let as_it_came = match self.propagation {
            Propagation::AsItCame => self.dirty > 0,
            Propagation::Always => true,
            Propagation::Instead => false,
        };
        self.append(log, as_it_came.then_some(request))
    }

    #[cold]
    fn tell(&mut self) {
        if let Some(listener) = &self.listener {
            listener.hear(&self.events);
            self.events.clear();
        }
        if self.dirty > 0 {
            self.watched.iter().for_each(|watcher| watcher.touch());
            self.changes.commit();
        }
    }

    /// Has whatever is done from here on propagated as other servers' logs have it: with [`Effects::repeat`].
    pub fn repeat_others(&mut self) {
        self.verbatim = Some(Default::default());
    }

    /// What is committed next is this part of another server's log; with `replica_only` it changes no data.
    pub fn repeat(&mut self, bytes: &[u8], replica_only: bool) {
        let (verbatim, was_replica_only) = self.verbatim.get_or_insert_default();
        *was_replica_only = replica_only && (verbatim.is_empty() || *was_replica_only);
        verbatim.extend_from_slice(bytes);
    }

    /// Appends what was to be repeated and is not yet appended. Called where nobody else changes what it is about.
    /// Whether there was something.
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

    fn append(&mut self, log: &WriteLog, request: Option<Args<'_>>) -> bool {
        if let Some(args) = request {
            self.marked = true;
            encode(&mut self.records, args.iter());
            self.record_count += 1;
        }
        if self.record_count == 0 {
            return false;
        }
        let Effects { database, records, record_count, replica_only, group, reach, .. } = self;
        match group {
            None => {
                let databases = (*database, *database);
                log.append(&Batch { databases, records, record_count: *record_count, replica_only, aof_only: &[] });
            }
            Some(group) => group.add(*database, records, *record_count, replica_only, *reach),
        }
        true
    }

    /// Whether a transaction has begun.
    pub fn in_group(&self) -> bool {
        self.group.is_some()
    }

    /// Begins a transaction or a script: what its commands do is kept until [`Effects::end_group`].
    pub fn begin_group(&mut self) {
        self.group = Some(Group::default());
    }

    /// Ends a transaction: appends what its commands did. Called under its locks.
    pub fn end_group(&mut self, log: &WriteLog) {
        if let Some(Group { records, record_count, replica_only, aof_only, databases: Some(databases) }) =
            self.group.take()
        {
            log.append(&Batch {
                databases,
                records: &records,
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
        reach: Reach,
    ) {
        if reach == Reach::Nobody {
            return;
        }
        let (first, last) = self.databases.unwrap_or((database, database));
        if last != database {
            let number = Str::Int(database as i64);
            encode(&mut self.records, [b"SELECT", number.bytes(&mut IntBuf::default())].into_iter());
        }
        self.databases = Some((first, database));
        let start = self.records.len();
        match reach {
            Reach::Everybody => {
                self.replica_only.extend(
                    replica_only.iter().map(|replica_only| start + replica_only.start..start + replica_only.end),
                );
            }
            Reach::Replicas => self.replica_only.push(start..start + records.len()),
            Reach::Files => {
                let data = without(records, replica_only);
                if !data.is_empty() {
                    self.aof_only.push((start, data));
                }
                return;
            }
            Reach::Nobody => {}
        }
        self.records.extend_from_slice(records);
        self.record_count += record_count;
    }
}

/// Records without those that stand in these places, which are in order.
fn without(records: &[u8], places: &[Range<usize>]) -> Vec<u8> {
    let starts = std::iter::once(0).chain(places.iter().map(|place| place.end));
    let ends = places.iter().map(|place| place.start).chain(std::iter::once(records.len()));
    starts.zip(ends).flat_map(|(start, end)| &records[start..end]).copied().collect()
}

/// The command that a deletion is propagated as.
fn deletion(lazy: bool) -> &'static [u8] {
    if lazy { b"UNLINK" } else { b"DEL" }
}
