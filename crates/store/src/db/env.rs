//! The context of a command besides its locks: time, settings, counters, and the effects it collects.

use crate::access::Access;
use crate::effects::Effects;
use crate::entry::Entry;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one worker. Only their owner writes them; others may read.
#[derive(Default)]
pub struct Counters {
    /// Lookups that found a key.
    pub hits: Counter,
    /// Lookups that found none.
    pub misses: Counter,
    /// Keys dropped because their time had come.
    pub expired: Counter,
    /// Fields of hashes dropped because their time had come.
    pub expired_fields: Counter,
    /// Keys dropped because memory was short.
    pub evicted: Counter,
}

/// A counter with one writer.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. Only the owner may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Begins at zero again.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// What becomes of a key's expiry when its value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// It has none.
    None,
    /// It keeps the one it has.
    Keep,
    /// Unix time in milliseconds.
    At(i64),
}

/// What becomes of keys whose time has come when a command meets them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenExpired {
    /// They are dropped.
    Drop,
    /// They stay, unseen: CLIENT PAUSE keeps the data as it is.
    Keep,
    /// They stay, unseen, and so do keys that are given a time that has passed: in import mode the source of the data
    /// says when they go.
    Import,
    /// The same for the source itself, which sees them.
    ImportSource,
}

/// A key holds a value of another type than the command works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

/// What a command runs with, besides the locks.
pub struct Env<'a> {
    /// Present Unix time in milliseconds; fixed during a command.
    pub now_ms: i64,
    /// How access is recorded.
    pub access: &'a Access,
    /// Whether looking at a key touches its access clock.
    pub touch: bool,
    /// `lazyfree-lazy-expire`: whether large values whose time has come are freed in the background.
    pub lazy_expire: bool,
    /// `lazyfree-lazy-server-del`: whether large values that are overwritten are freed in the background.
    pub lazy_overwrite: bool,
    /// What becomes of keys whose time has come.
    pub when_expired: WhenExpired,
    /// Where lookups are counted.
    pub counters: &'a Counters,
    /// What the command did.
    pub effects: &'a mut Effects,
}

impl Env<'_> {
    /// Whether a key is not to be seen because its time has come.
    #[inline]
    pub(super) fn hides(&self, entry: &Entry<'_>) -> bool {
        entry.is_expired(self.now_ms) && self.when_expired != WhenExpired::ImportSource
    }
}
