//! What one command did to the keyspace: how much, what the write log gets, which events it caused.

use crate::keyspace::Key;
use crate::log::{Batch, WriteLog, encode};
use bitflags::bitflags;
use kvick_resp::Args;

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

/// How the command itself goes to the log.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Propagation {
    #[default]
    AsItCame,
    Instead,
}

/// See the module's documentation. One is reused for all commands of a worker.
#[derive(Default)]
pub struct Effects {
    dirty: u64,
    propagation: Propagation,
    records: Vec<u8>,
    record_count: usize,
    followed: bool,
    database: usize,
    heard: EventClass,
    events: Vec<Event>,
}

impl Effects {
    /// Begins a command.
    #[inline]
    pub fn begin(&mut self, followed: bool, heard: EventClass, database: usize) {
        self.dirty = 0;
        self.propagation = Propagation::AsItCame;
        self.record_count = 0;
        self.records.clear();
        self.followed = followed;
        self.heard = heard;
        self.database = database;
        self.events.clear();
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
    pub fn followed(&self) -> bool {
        self.followed
    }

    /// Propagates `words` instead of the command as it came; several calls propagate several requests.
    pub fn propagate(&mut self, words: &[&[u8]]) {
        self.propagation = Propagation::Instead;
        self.record(words);
    }

    /// Propagates nothing although something changed.
    pub fn propagate_nothing(&mut self) {
        self.propagation = Propagation::Instead;
    }

    /// Propagates `words` beside the command.
    pub(crate) fn record(&mut self, words: &[&[u8]]) {
        if self.followed {
            encode(&mut self.records, words.iter().copied());
            self.record_count += 1;
        }
    }

    /// Tells of a keyspace event.
    #[inline]
    pub fn notify(&mut self, class: EventClass, name: &'static str, key: &[u8]) {
        if self.heard.intersects(class) {
            self.events.push(Event { database: self.database, name, key: key.to_vec() });
        }
    }

    /// A key was dropped because its time had come.
    pub(crate) fn expired(&mut self, key: Key<'_>) {
        self.record(&[b"UNLINK", key.bytes]);
        self.notify(EventClass::EXPIRED, "expired", key.bytes);
    }

    /// Events that the command caused, in order.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Ends the command: appends what it did to the log. Called under its locks.
    #[inline]
    pub fn commit(&mut self, log: &WriteLog, request: Args<'_>) {
        if !self.followed || (self.dirty == 0 && self.record_count == 0) {
            return;
        }
        let as_it_came = self.propagation == Propagation::AsItCame && self.dirty > 0;
        log.append(&Batch {
            database: self.database,
            request: as_it_came.then_some(request),
            records: &self.records,
            record_count: self.record_count,
        });
    }
}
