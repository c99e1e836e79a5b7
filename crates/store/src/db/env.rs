//! The context of a command besides its locks: time, settings, counters, and the effects it collects.

use crate::access::Access;
use crate::effects::Effects;
use crate::entry::Entry;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one worker. Only the owner writes them; other threads may read.
#[derive(Default)]
pub struct Counters {
    /// Lookups that found a key.
    pub hits: Counter,
    /// Lookups that found none.
    pub misses: Counter,
    /// Keys deleted because they had expired.
    pub expired: Counter,
    /// Fields of hashes deleted because they had expired.
    pub expired_fields: Counter,
    /// Keys evicted because the memory limit was reached.
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

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Resets the counter to zero.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// How a command treats expired keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenExpired {
    /// Deletes them.
    Drop,
    /// Hides them but keeps the data: during CLIENT PAUSE.
    Keep,
    /// Hides them but keeps the data, and also accepts an expiry in the past without
    /// deleting the key: in import mode, the source of the data deletes expired keys.
    Import,
    /// Like `Import`, for the source itself, which sees expired keys.
    ImportSource,
}

/// A key holds a value of another type than the command works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrongType;

/// The environment of a command, besides the locks.
pub struct Env<'a> {
    /// Current Unix time in milliseconds; constant during a command.
    pub now_ms: i64,
    /// How access is recorded.
    pub access: &'a Access,
    /// Whether reading a key updates its access clock.
    pub touch: bool,
    /// `lazyfree-lazy-expire`: whether large expired values are freed in the background.
    pub lazy_expire: bool,
    /// `lazyfree-lazy-server-del`: whether large overwritten values are freed in the background.
    pub lazy_overwrite: bool,
    /// How expired keys are treated.
    pub when_expired: WhenExpired,
    /// Where lookups are counted.
    pub counters: &'a Counters,
    /// Collects the changes that the command makes.
    pub effects: &'a mut Effects,
}

impl<'a> Env<'a> {
    /// For a client's command under the default settings: updates access clocks, deletes expired keys, and frees large
    /// values in the background.
    #[inline]
    pub fn command(now_ms: i64, access: &'a Access, counters: &'a Counters, effects: &'a mut Effects) -> Self {
        Env {
            now_ms,
            access,
            touch: true,
            lazy_expire: true,
            lazy_overwrite: true,
            when_expired: WhenExpired::Drop,
            counters,
            effects,
        }
    }

    /// For loading, saving and maintenance: sees all keys, including expired ones, as they are, and frees values at
    /// once.
    #[inline]
    pub fn background(now_ms: i64, access: &'a Access, counters: &'a Counters, effects: &'a mut Effects) -> Self {
        Env {
            now_ms,
            access,
            touch: false,
            lazy_expire: false,
            lazy_overwrite: false,
            when_expired: WhenExpired::ImportSource,
            counters,
            effects,
        }
    }

    /// Sets whether reading a key updates its access clock.
    #[inline]
    pub fn touch(mut self, touch: bool) -> Self {
        self.touch = touch;
        self
    }

    /// Sets whether large expired values are freed in the background.
    #[inline]
    pub fn lazy_expire(mut self, lazy: bool) -> Self {
        self.lazy_expire = lazy;
        self
    }

    /// Sets whether large overwritten values are freed in the background.
    #[inline]
    pub fn lazy_overwrite(mut self, lazy: bool) -> Self {
        self.lazy_overwrite = lazy;
        self
    }

    /// Sets how expired keys are treated.
    #[inline]
    pub fn when_expired(mut self, when_expired: WhenExpired) -> Self {
        self.when_expired = when_expired;
        self
    }
}

impl Env<'_> {
    /// Whether a key is hidden because it has expired.
    #[inline]
    pub(super) fn hides(&self, entry: &Entry<'_>) -> bool {
        entry.is_expired(self.now_ms) && self.when_expired != WhenExpired::ImportSource
    }
}
