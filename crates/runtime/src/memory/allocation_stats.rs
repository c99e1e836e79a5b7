//! Memory in use, exact and available at any time: the bytes that all threads allocated minus the bytes that they
//! freed.
//!
//! The allocator counts both per thread, in words that only the thread itself writes. Every thread of the server calls
//! [`register_thread`] when it starts; any thread can then add up the words, which takes about ten nanoseconds per
//! thread. A thread may free memory that another thread allocated, so only the change of a single thread's balance is
//! meaningful, not its value.
//!
//! Invariants of the unsafe code here: the addresses in an [`Account`] are those that the allocator reports for the
//! words of a registered thread. They are valid while the thread lives, and the thread removes its account, under the
//! lock, before it ends. Only the allocator writes to them.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Replaces a count that the allocator does not keep.
static NOTHING: AtomicU64 = AtomicU64::new(0);

/// The addresses of a thread's counts.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Account {
    allocated: *const AtomicU64,
    freed: *const AtomicU64,
}

// SAFETY: the words behind the pointers are only read, and only while the thread that writes them lives.
unsafe impl Send for Account {}

impl Account {
    /// The account of the calling thread.
    fn own() -> Self {
        let word = |name: &str| super::read_control::<*const AtomicU64>(name.into()).unwrap_or(&raw const NOTHING);
        Account { allocated: word("thread.allocatedp\0"), freed: word("thread.deallocatedp\0") }
    }

    /// Bytes allocated minus bytes freed by the thread, which must be alive.
    fn balance(self) -> i64 {
        // SAFETY: the words are aligned and valid while the thread lives, and an atomic load returns a value that they
        // held.
        let (allocated, freed) =
            unsafe { ((*self.allocated).load(Ordering::Relaxed), (*self.freed).load(Ordering::Relaxed)) };
        allocated.wrapping_sub(freed) as i64
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

/// Bytes in use.
pub fn in_use() -> usize {
    let books = BOOKS.lock();
    let sum = books.closed + books.open.iter().map(|account| account.balance()).sum::<i64>();
    // The sum may be slightly negative if one thread allocates and another frees during the addition.
    usize::try_from(sum).unwrap_or(0)
}
