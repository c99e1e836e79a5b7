//! Memory in use, exact and available at any time: the bytes that all threads allocated minus the bytes that they
//! freed.
//!
//! The allocator counts both per thread, in words that only the thread itself writes. Every thread of the server calls
//! [`register_thread`] when it starts; any thread can then add up the words, which takes about ten nanoseconds per
//! thread. A thread may free memory that another thread allocated, so only the change of a single thread's balance is
//! meaningful, not its value.
//!
//! A command in progress may hold memory that it frees before it ends, for example while a buffer grows, or memory
//! that is not yet accounted to a connection. Other workers must not evict keys because of that. So while there is a
//! limit of memory, each worker [settles](settle) its balance between commands, and [`settled`] ignores allocations
//! made since.
//!
//! Invariants of the unsafe code here: the addresses in an [`Counters`] are those that the allocator reports for the
//! words of a registered thread. They are valid while the thread lives, and the thread removes its account, under the
//! lock, before it ends. Only the allocator writes to them.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Replaces a count that the allocator does not keep.
static MISSING_COUNT: AtomicU64 = AtomicU64::new(0);

/// The addresses of a thread's counts.
#[derive(Clone)]
struct Counters {
    allocated: *const AtomicU64,
    freed: *const AtomicU64,
    /// The balance when the thread last settled it; `i64::MAX` if it does not.
    settled: Arc<AtomicI64>,
}

// SAFETY: the words behind the pointers are only read, and only while the thread that writes them lives.
unsafe impl Send for Counters {}

impl Counters {
    /// The account of the calling thread.
    fn of_current_thread() -> Self {
        let word =
            |name: &str| super::read_control::<*const AtomicU64>(name.into()).unwrap_or(&raw const MISSING_COUNT);
        Counters {
            allocated: word("thread.allocatedp\0"),
            freed: word("thread.deallocatedp\0"),
            settled: Arc::new(AtomicI64::new(i64::MAX)),
        }
    }

    /// Bytes allocated minus bytes freed by the thread, which must be alive.
    fn balance(&self) -> i64 {
        // SAFETY: the words are aligned and valid while the thread lives, and an atomic load returns a value that they
        // held.
        let (allocated, freed) =
            unsafe { ((*self.allocated).load(Ordering::Relaxed), (*self.freed).load(Ordering::Relaxed)) };
        allocated.wrapping_sub(freed) as i64
    }

    /// The balance without allocations that the thread made since it last settled. Memory freed since then is
    /// subtracted.
    fn settled_balance(&self) -> i64 {
        // Acquire: what the thread published before it settled, such as the memory of connections, is visible here.
        self.settled.load(Ordering::Acquire).min(self.balance())
    }
}

/// The accounts of live threads, and the sum of the balances of ended threads.
struct Registry {
    live: Vec<Counters>,
    ended_balance: i64,
}

static REGISTRY: Mutex<Registry> = Mutex::new(Registry { live: Vec::new(), ended_balance: 0 });

/// The registration of a thread, which ends when the thread does.
struct Registration(Counters);

impl Registration {
    fn begin() -> Self {
        let counters = Counters::of_current_thread();
        REGISTRY.lock().live.push(counters.clone());
        Registration(counters)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut registry = REGISTRY.lock();
        registry.live.retain(|counters| !Arc::ptr_eq(&counters.settled, &self.0.settled));
        registry.ended_balance += self.0.balance();
    }
}

thread_local! {
    static REGISTRATION: Registration = Registration::begin();
}

/// Registers the calling thread until it ends. Further calls have no effect.
pub fn register_thread() {
    // A thread that is ending cannot be registered and does not need to be.
    let _ = REGISTRATION.try_with(|_| ());
}

/// Bytes that the calling thread allocated minus bytes that it freed. Registers the thread.
#[inline]
pub fn thread_balance() -> i64 {
    REGISTRATION.try_with(|registration| registration.0.balance()).unwrap_or(0)
}

/// Settles the calling thread's balance. Workers do so between two commands.
#[inline]
pub fn settle() {
    let _ =
        REGISTRATION.try_with(|registration| registration.0.settled.store(registration.0.balance(), Ordering::Release));
}

/// Ends settling in the calling thread: from now on [`settled`] includes all of its allocations at once.
pub fn unsettle() {
    let _ = REGISTRATION.try_with(|registration| registration.0.settled.store(i64::MAX, Ordering::Release));
}

/// Bytes in use.
pub fn in_use() -> usize {
    sum(Counters::balance)
}

/// Bytes that are in use, without those that threads have allocated since they last settled their balance.
pub fn settled() -> usize {
    sum(Counters::settled_balance)
}

fn sum(balance: impl Fn(&Counters) -> i64) -> usize {
    let registry = REGISTRY.lock();
    let sum = registry.ended_balance + registry.live.iter().map(balance).sum::<i64>();
    // The sum may be slightly negative if one thread allocates and another frees during the addition.
    usize::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_settled_balance_includes_memory_freed_since_but_not_memory_allocated_since() {
        let (allocated, freed) = (AtomicU64::new(500), AtomicU64::new(100));
        let settled = Arc::new(AtomicI64::new(i64::MAX));
        let counters = Counters { allocated: &raw const allocated, freed: &raw const freed, settled };
        assert_eq!(counters.settled_balance(), 400);
        counters.settled.store(counters.balance(), Ordering::Release);
        allocated.fetch_add(50, Ordering::Relaxed);
        assert_eq!((counters.balance(), counters.settled_balance()), (450, 400));
        freed.fetch_add(200, Ordering::Relaxed);
        assert_eq!((counters.balance(), counters.settled_balance()), (250, 250));
    }
}
