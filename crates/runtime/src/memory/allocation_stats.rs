//! How much memory is in use, to the byte and at any time: what all threads allocated, less what they freed.
//!
//! The allocator counts both for each thread, in plain words that the thread alone writes. Every thread of the server
//! [enrols](register_thread) when it begins, and then anybody may add the words up, which takes some ten nanoseconds per thread. What a
//! thread frees may have been allocated by another, so the balance of one thread means nothing by itself but for how it
//! changes.
//!
//! Invariants of the unsafe code here: the addresses in an [`Account`] are those that the allocator tells of the words of an
//! enrolled thread. They are valid while the thread lives, and it takes its account out of the books, under their lock,
//! before it ends. Nobody but the allocator writes there.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Stands for a count that the allocator does not keep.
static NOTHING: AtomicU64 = AtomicU64::new(0);

/// Where the counts of a thread are.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Account {
    allocated: *const AtomicU64,
    freed: *const AtomicU64,
}

// SAFETY: the words that it leads to are only read, and only while the thread that writes them lives.
unsafe impl Send for Account {}

impl Account {
    /// The calling thread's.
    fn own() -> Self {
        let word = |name: &str| super::read_control::<*const AtomicU64>(name.into()).unwrap_or(&raw const NOTHING);
        Account { allocated: word("thread.allocatedp\0"), freed: word("thread.deallocatedp\0") }
    }

    /// Bytes allocated and not freed by the thread, which lives.
    fn balance(self) -> i64 {
        // SAFETY: the words are aligned and valid while the thread lives, and a load sees a value that they had.
        let (allocated, freed) =
            unsafe { ((*self.allocated).load(Ordering::Relaxed), (*self.freed).load(Ordering::Relaxed)) };
        allocated.wrapping_sub(freed) as i64
    }
}

/// The accounts of threads that live, and the sum of those that have ended.
struct Books {
    open: Vec<Account>,
    closed: i64,
}

static BOOKS: Mutex<Books> = Mutex::new(Books { open: Vec::new(), closed: 0 });

/// A thread's entry in the books.
struct Enrolment(Account);

impl Enrolment {
    fn begin() -> Self {
        let account = Account::own();
        BOOKS.lock().open.push(account);
        Enrolment(account)
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        let mut books = BOOKS.lock();
        books.open.retain(|account| *account != self.0);
        books.closed += self.0.balance();
    }
}

thread_local! {
    static OWN: Enrolment = Enrolment::begin();
}

/// Has the calling thread counted, now and as long as it lives. A second call does nothing.
pub fn register_thread() {
    // A thread that is ending cannot, and need not.
    let _ = OWN.try_with(|_| ());
}

/// What the calling thread allocated and did not free, in bytes; enrols it.
#[inline]
pub fn own_balance() -> i64 {
    OWN.try_with(|own| own.0.balance()).unwrap_or(0)
}

/// Bytes that are in use.
pub fn in_use() -> usize {
    let books = BOOKS.lock();
    let sum = books.closed + books.open.iter().map(|account| account.balance()).sum::<i64>();
    // What one thread allocates and another frees while this adds up may make it a little less than nothing.
    usize::try_from(sum).unwrap_or(0)
}
