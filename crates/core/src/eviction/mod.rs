//! Memory limits: of the data (`maxmemory`) and of the connections (`maxmemory-clients`).
//!
//! The settings are read into [`Limits`]. The worker that is about to execute a command evicts keys while memory is
//! above the limit (`worker::evicting` in the server crate). While a limit is set, a bit of the [admission
//! word](crate::admission) makes the dispatcher check memory before each command; without a limit, commands check
//! nothing. The next command sees what one command allocated. [`clients`] closes connections, the largest first.

pub mod clients;
mod limits;

pub use limits::Limits;

use crate::Core;
use crate::tracking;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The state of eviction that all workers share.
#[derive(Default)]
pub struct Eviction {
    exceeded: Mutex<Exceeded>,
    /// Bytes of keys evicted since the start.
    freed: AtomicI64,
    /// Bytes of the workers' reply buffers beyond the usual size.
    scratch: AtomicUsize,
    /// Bytes of the names of evicted keys whose invalidations have not been sent yet.
    pending_invalidations: AtomicUsize,
    /// Memory of connections.
    pub clients: clients::ClientEviction,
}

/// How long memory was above its limit.
#[derive(Default)]
struct Exceeded {
    since: Option<Instant>,
    before: Duration,
}

/// How long memory has been above its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExceededTime {
    /// Without a break until now.
    pub current: Duration,
    /// In total.
    pub total: Duration,
}

impl Eviction {
    /// Records whether memory is above its limit.
    pub fn note(&self, is_above: bool) {
        let mut exceeded = self.exceeded.lock();
        if !is_above {
            if let Some(since) = exceeded.since.take() {
                exceeded.before += since.elapsed();
            }
        } else if exceeded.since.is_none() {
            exceeded.since = Some(Instant::now());
        }
    }

    /// Updates the size of a worker's reply buffer: the bytes beyond the usual size, before and after.
    pub fn resize_scratch(&self, before: usize, after: usize) {
        // Wrapping is harmless: the sum is correct once all updates are applied.
        self.scratch.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Updates the size of a worker's unsent invalidations of evicted keys: bytes of the names, before and after.
    pub fn resize_pending_invalidations(&self, before: usize, after: usize) {
        self.pending_invalidations.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Counts an evicted key of this many bytes.
    pub fn add_freed(&self, bytes: usize) {
        self.freed.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// Bytes of keys evicted since the start.
    pub fn freed(&self) -> i64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// How long memory has been above its limit.
    pub fn exceeded(&self) -> ExceededTime {
        let exceeded = self.exceeded.lock();
        let current = exceeded.since.map_or(Duration::ZERO, |since| since.elapsed());
        ExceededTime { current, total: exceeded.before + current }
    }

    /// Restarts the count of time above the limit.
    pub fn reset(&self) {
        let mut exceeded = self.exceeded.lock();
        exceeded.before = Duration::ZERO;
        exceeded.since = exceeded.since.map(|_| Instant::now());
        self.clients.reset();
    }
}

/// Memory in use that eviction does not count, in bytes: buffers for the readers of the write log, captured snapshot
/// data, unsent invalidations, and the workers' reply buffers. They are bounded and drain without eviction, and
/// evicting keys makes them grow.
pub fn not_counted_for_evict(core: &Core) -> usize {
    core.keyspace.log.excess()
        + core.snapshot_bytes.load(Ordering::Relaxed)
        + tracking::invalidation::unwritten_bytes()
        + core.eviction.scratch.load(Ordering::Relaxed)
        + core.eviction.pending_invalidations.load(Ordering::Relaxed)
}

/// Bytes by which memory is above a limit, or below it if negative. If it is above, three things are subtracted:
/// memory that eviction does not count, memory that lazy freeing or a connection that is being closed is about to free,
/// and memory that other workers have allocated within the commands that they are executing.
pub fn excess(core: &Core, limit: u64) -> i64 {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut used = kvick_runtime::memory::in_use();
    if used > limit {
        // Memory that is freed during this computation may be missing from one of the sums. Reading them before and
        // after and taking the larger one keeps it from counting as used.
        let excluded = || {
            let pending = core.keyspace.lazy_free.pending_bytes() + core.eviction.clients.closing_bytes();
            not_counted_for_evict(core) + pending
        };
        let before = excluded();
        used = kvick_runtime::memory::settled();
        used = used.saturating_sub(before.max(excluded()));
    }
    used as i64 - limit.min(i64::MAX as usize) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_above_the_limit_is_counted() {
        let eviction = Eviction::default();
        eviction.note(false);
        assert_eq!(eviction.exceeded(), ExceededTime::default());
        eviction.note(true);
        while eviction.exceeded().current < Duration::from_micros(10) {}
        eviction.note(true);
        eviction.note(false);
        let ExceededTime { current, total } = eviction.exceeded();
        assert!(current == Duration::ZERO && total >= Duration::from_micros(10));
        assert_eq!(eviction.exceeded().total, total);
        eviction.reset();
        assert_eq!(eviction.exceeded(), ExceededTime::default());
    }
}
