//! Limits of memory: of the data (`maxmemory`), and of what connections take (`maxmemory-clients`).
//!
//! The settings are read into [`Limits`]. Keys are evicted by the worker that is about to execute a command while memory is
//! short, see [`crate::worker::evicting`]: with a limit set, a bit of the [gate](crate::admission) makes the
//! dispatcher look before each command, and without one nothing is looked at. What one command allocates is seen by the next.
//! Connections are closed, the largest first, by [`clients`].

pub mod clients;
mod limits;

pub use limits::Limits;

use crate::Core;
use crate::tracking;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What all workers share of it.
#[derive(Default)]
pub struct Eviction {
    exceeded: Mutex<Exceeded>,
    /// Bytes of keys evicted since the start.
    freed: AtomicI64,
    /// Bytes that workers have for the replies of batches, where they are many.
    scratch: AtomicUsize,
    /// Bytes of the names of keys that have gone, while clients that cache them have yet to be told.
    untold: AtomicUsize,
    /// Memory of connections.
    pub clients: clients::ClientEviction,
}

/// For how long memory was above its limit.
#[derive(Default)]
struct Exceeded {
    since: Option<Instant>,
    before: Duration,
}

impl Eviction {
    /// Takes note of whether memory is above its limit.
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

    /// A worker has so many bytes for the replies of a batch, above what is usual, and had so many before.
    pub fn resize_scratch(&self, before: usize, after: usize) {
        // Around zero the sum is right again once all have been added.
        self.scratch.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// A worker has to tell of keys that have gone, whose names take so many bytes, and took so many before.
    pub fn resize_untold(&self, before: usize, after: usize) {
        self.untold.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    /// A key of so many bytes was evicted.
    pub fn add_freed(&self, bytes: usize) {
        self.freed.fetch_add(bytes as i64, Ordering::Relaxed);
    }

    /// Bytes of keys evicted since the start.
    pub fn freed(&self) -> i64 {
        self.freed.load(Ordering::Relaxed)
    }

    /// For how long memory has been above its limit, if it is, and for how long in all.
    pub fn exceeded(&self) -> (Duration, Duration) {
        let exceeded = self.exceeded.lock();
        let current = exceeded.since.map_or(Duration::ZERO, |since| since.elapsed());
        (current, exceeded.before + current)
    }

    /// Begins to count anew.
    pub fn reset(&self) {
        let mut exceeded = self.exceeded.lock();
        exceeded.before = Duration::ZERO;
        exceeded.since = exceeded.since.map(|_| Instant::now());
        self.clients.reset();
    }
}

/// Memory in use that eviction does not count, in bytes: what waits for those who read the write log, to be written from a
/// snapshot, and to be told to clients that cache keys, and the workers' buffers for replies, which are bounded. It goes by itself, and grows with every key that is evicted.
pub fn not_counted(core: &Core) -> usize {
    core.keyspace.log.excess()
        + core.snapshot_bytes.load(Ordering::Relaxed)
        + tracking::invalidation::unwritten_bytes()
        + core.eviction.scratch.load(Ordering::Relaxed)
        + core.eviction.untold.load(Ordering::Relaxed)
}

/// Bytes by which memory is above a limit, or below it if negative. If it is above, three things are subtracted:
/// memory that eviction does not count, memory that lazy freeing or a connection that is being closed is about to free,
/// and memory that other workers have allocated within the commands that they are executing.
pub fn excess(core: &Core, limit: u64) -> i64 {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let mut used = kvick_runtime::memory::in_use();
    if used > limit {
        // What goes while this adds up is in one of the sums and not in the other. Looked at before and after, it counts as
        // memory in neither order.
        let passing = || {
            let leaving = core.keyspace.lazy_free.pending_bytes() + core.eviction.clients.leaving();
            not_counted(core) + leaving
        };
        let before = passing();
        used = kvick_runtime::memory::settled();
        used = used.saturating_sub(before.max(passing()));
    }
    used as i64 - limit.min(i64::MAX as usize) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_above_the_limit_is_counted_until_it_is_over() {
        let eviction = Eviction::default();
        eviction.note(false);
        assert_eq!(eviction.exceeded(), (Duration::ZERO, Duration::ZERO));
        eviction.note(true);
        while eviction.exceeded().0 < Duration::from_micros(10) {}
        eviction.note(true);
        eviction.note(false);
        let (current, total) = eviction.exceeded();
        assert!(current == Duration::ZERO && total >= Duration::from_micros(10));
        assert_eq!(eviction.exceeded().1, total);
        eviction.reset();
        assert_eq!(eviction.exceeded(), (Duration::ZERO, Duration::ZERO));
    }
}
