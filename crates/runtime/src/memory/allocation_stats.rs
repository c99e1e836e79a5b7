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
//! Invariants of the unsafe code here: the addresses in an [`Account`] are those that the allocator reports for the
//! words of a registered thread. They are valid while the thread lives, and the thread removes its account, under the
//! lock, before it ends. Only the allocator writes to them.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Replaces a count that the allocator does not keep.
static NOTHING: AtomicU64 = AtomicU64::new(0);

/// The addresses of a thread's counts.
#[derive(Clone)]
struct Account {
    allocated: *const AtomicU64,
    freed: *const AtomicU64,
    /// The balance when the thread last settled it; `i64::MAX` if it does not.
    settled: Arc<AtomicI64>,
}

// SAFETY: the words behind the pointers are only read, and only while the thread that writes them lives.
unsafe impl Send for Account {}

impl Account {
    /// The account of the calling thread.
    fn own() -> Self {
        let word = |name: &str| super::read_control::<*const AtomicU64>(name.into()).unwrap_or(&raw const NOTHING);
        Account {
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
struct Books {
    open: Vec<Account>,
    closed: i64,
}

static BOOKS: Mutex<Books> = Mutex::new(Books { open: Vec::new(), closed: 0 });

/// The registration of a thread, which ends when the thread does.
struct Enrolment(Account);

impl Enrolment {
    fn begin() -> Self {
        let account = Account::own();
        BOOKS.lock().open.push(account.clone());
        Enrolment(account)
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        let mut books = BOOKS.lock();
        books.open.retain(|account| !Arc::ptr_eq(&account.settled, &self.0.settled));
        books.closed += self.0.balance();
    }
}

thread_local! {
    static OWN: Enrolment = Enrolment::begin();
}

/// Registers the calling thread until it ends. Further calls have no effect.
pub fn register_thread() {
    // A thread that is ending cannot be registered and does not need to be.
    let _ = OWN.try_with(|_| ());
}

/// Bytes that the calling thread allocated minus bytes that it freed. Registers the thread.
#[inline]
pub fn own_balance() -> i64 {
    OWN.try_with(|own| own.0.balance()).unwrap_or(0)
}

/// Settles the calling thread's balance. Workers do so between two commands.
#[inline]
pub fn settle() {
    let _ = OWN.try_with(|own| own.0.settled.store(own.0.balance(), Ordering::Release));
}

/// Ends settling in the calling thread: from now on [`settled`] includes all of its allocations at once.
pub fn unsettle() {
    let _ = OWN.try_with(|own| own.0.settled.store(i64::MAX, Ordering::Release));
}

/// Bytes in use.
pub fn in_use() -> usize {
    sum(Account::balance)
}

/// Bytes that are in use, without those that threads have allocated since they last settled their balance.
pub fn settled() -> usize {
    sum(Account::settled_balance)
}

fn sum(balance: impl Fn(&Account) -> i64) -> usize {
    let books = BOOKS.lock();
    let sum = books.closed + books.open.iter().map(balance).sum::<i64>();
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
        let account = Account { allocated: &raw const allocated, freed: &raw const freed, settled };
        assert_eq!(account.settled_balance(), 400);
        account.settled.store(account.balance(), Ordering::Release);
        allocated.fetch_add(50, Ordering::Relaxed);
        assert_eq!((account.balance(), account.settled_balance()), (450, 400));
        freed.fetch_add(200, Ordering::Relaxed);
        assert_eq!((account.balance(), account.settled_balance()), (250, 250));
    }
}
