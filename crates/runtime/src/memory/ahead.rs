//! Memory that is made resident before a thread allocates it.
//!
//! The kernel clears a page when it is first accessed, while the thread waits. For a thread that stores values of a
//! kilobyte as fast as they arrive, that is a third of its time. So another thread allocates pieces of memory in the
//! same arena and makes the kernel clear them. Each time the first thread has allocated as much as a piece, it frees
//! one: the allocator uses freed pages that are still resident before any others.
//!
//! The allocator does not split a free extent for a request of less than a 64th of its size, and it joins adjacent
//! ones. Hence the size of a piece, and that few are free at a time.
//!
//! # Safety
//!
//! A [`Piece`] owns one allocation of [`PIECE`] bytes and frees it with that size. The allocator gives whole pages to
//! an allocation of this size, so no other allocation shares the pages that are made resident.

use super::{page_size, read_control, register_thread, thread_balance};
use crate::time_slice::Turns;
use crate::{affinity, logging};
use std::ptr::NonNull;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use tikv_jemalloc_sys as jemalloc;

/// Bytes of a piece.
const PIECE: usize = 64 * 1024;
/// Allocated bytes after which the next piece is freed. The rest of a piece is what the allocator's sizes leave unused.
const PIECE_LASTS: i64 = 60 * 1024;
/// Pieces that are freed at once, at most.
const AT_ONCE: i64 = 3;
/// Pieces that are passed from thread to thread together. There are up to three times as many.
const GROUP: usize = 8;
/// Allocated bytes from which on it is worth a thread.
const BEGIN_AT: i64 = 4 * 1024 * 1024;

/// A piece of resident memory.
struct Piece(NonNull<u8>);

// SAFETY: a piece is an allocation that nobody else refers to, and any thread may free it.
unsafe impl Send for Piece {}

impl Piece {
    /// Allocates a piece in an arena and makes it resident. `None` if there is no memory or the kernel cannot.
    fn new(arena: usize) -> Option<Piece> {
        let flags = jemalloc::MALLOCX_ARENA(arena) | jemalloc::MALLOCX_TCACHE_NONE;
        // SAFETY: the size is not zero.
        let piece = Piece(NonNull::new(unsafe { jemalloc::mallocx(PIECE, flags) }.cast())?);
        let page = page_size();
        // The allocation may begin in the middle of a page.
        let begin = piece.0.as_ptr().addr() & !(page - 1);
        let end = (piece.0.as_ptr().addr() + PIECE).next_multiple_of(page);
        let begin = piece.0.as_ptr().with_addr(begin);
        // SAFETY: the pages belong to the allocation, and their contents do not change.
        let refused = unsafe { libc::madvise(begin.cast(), end - begin.addr(), libc::MADV_POPULATE_WRITE) };
        (refused == 0).then_some(piece)
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this size, and is not used again.
        unsafe { jemalloc::sdallocx(self.0.as_ptr().cast(), PIECE, jemalloc::MALLOCX_TCACHE_NONE) }
    }
}

/// Pieces that another thread makes resident.
struct Supply {
    /// The balance of the thread at which the next piece is freed.
    next: i64,
    pieces: Vec<Piece>,
    ready: Receiver<Vec<Piece>>,
}

impl Supply {
    /// Frees a piece, or some if the thread has allocated so much. False if there will be none any more.
    fn free(&mut self, balance: i64) -> bool {
        let count = (balance - self.next) / PIECE_LASTS + 1;
        for _ in 0..count.min(AT_ONCE) {
            if self.pieces.is_empty() {
                match self.ready.try_recv() {
                    Ok(pieces) => self.pieces = pieces,
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => return false,
                }
            }
            self.pieces.pop();
        }
        // What the thread has allocated without a piece is resident by now. Freed pieces count in its balance.
        self.next = thread_balance() + PIECE_LASTS;
        true
    }
}

/// What a thread that allocates much has of resident memory. The default has none.
#[derive(Default)]
pub struct Ahead {
    state: State,
}

#[derive(Default)]
enum State {
    #[default]
    Idle,
    /// Nothing is ahead until the thread has allocated so much, as a balance.
    Waiting(i64),
    Running(Supply),
    /// It is not possible here.
    Impossible,
}

impl Ahead {
    /// Keeps up with what the calling thread allocates. Call it after a few kilobytes at most.
    #[inline]
    pub fn follow(&mut self) {
        let balance = thread_balance();
        match &mut self.state {
            State::Idle => self.state = State::Waiting(balance + BEGIN_AT),
            State::Waiting(begin_at) if balance >= *begin_at => self.begin(balance),
            State::Running(supply) if balance >= supply.next => {
                if !supply.free(balance) {
                    self.state = State::Impossible;
                }
            }
            State::Waiting(_) | State::Running(_) | State::Impossible => {}
        }
    }

    /// Ends it: the thread does not allocate much any more.
    pub fn end(&mut self) {
        if !matches!(self.state, State::Impossible) {
            self.state = State::Idle;
        }
    }

    #[cold]
    fn begin(&mut self, balance: i64) {
        let Some(arena) = read_control::<u32>("thread.arena\0".into()) else {
            self.state = State::Impossible;
            return;
        };
        let (sender, ready) = sync_channel(1);
        let thread = std::thread::Builder::new().name("memory-ahead".into());
        match thread.spawn(move || fill(arena as usize, &sender)) {
            Ok(_) => self.state = State::Running(Supply { next: balance, pieces: Vec::new(), ready }),
            Err(error) => {
                self.state = State::Impossible;
                logging::warning(format_args!("A thread that prepares memory cannot be started: {error}"));
            }
        }
    }
}

/// Makes groups of pieces until the receiver is gone.
fn fill(arena: usize, sender: &SyncSender<Vec<Piece>>) {
    register_thread();
    affinity::set(affinity::Role::Background);
    let mut turns = Turns::begin();
    loop {
        let mut group = Vec::with_capacity(GROUP);
        for _ in 0..GROUP {
            let Some(piece) = Piece::new(arena) else { return };
            group.push(piece);
            turns.end_if_over();
        }
        if sender.send(group).is_err() {
            return;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::allocator::Allocator;
    use crate::memory::in_use;
    use std::alloc::{GlobalAlloc, Layout};
    use std::time::{Duration, Instant};

    const VALUES: usize = 100_000;
    const VALUE: Layout = Layout::new::<[u8; 1024]>();
    /// Values that the thread allocates at once.
    const BATCH: usize = 16;

    /// Page faults of this thread so far, without those that read from the disk.
    pub(in crate::memory) fn page_faults() -> i64 {
        // SAFETY: the call writes the structure, which may be zero.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
            usage.ru_minflt
        }
    }

    /// Stores values on a thread of its own, and calls `after_batch` in between. Returns the page faults of the thread.
    fn store(mut after_batch: impl FnMut() + Send) -> i64 {
        let run = move || {
            let before = page_faults();
            let mut values = Vec::with_capacity(VALUES);
            while values.len() < VALUES {
                for _ in 0..BATCH {
                    // SAFETY: the layout has a size.
                    let value = unsafe { Allocator.alloc(VALUE) };
                    // SAFETY: it is allocated with room for a byte.
                    unsafe { value.write(1) };
                    values.push(value);
                }
                after_batch();
            }
            let faults = page_faults() - before;
            // SAFETY: they were allocated with this layout, and are not used again.
            values.into_iter().for_each(|value| unsafe { Allocator.dealloc(value, VALUE) });
            faults
        };
        std::thread::scope(|scope| scope.spawn(run).join().expect("an end without panic"))
    }

    #[test]
    fn a_thread_with_memory_ahead_waits_for_few_pages_and_keeps_none() {
        register_thread();
        let before = in_use();
        let alone = store(|| {});
        // The pages of values that were freed may still be resident.
        crate::memory::purge();
        let mut ahead = Ahead::default();
        let began = Instant::now();
        let helped = store(|| {
            ahead.follow();
            // The other thread may have no core at the moment.
            while let State::Running(supply) = &mut ahead.state
                && supply.pieces.is_empty()
                && began.elapsed() < Duration::from_secs(20)
            {
                match supply.ready.try_recv() {
                    Ok(pieces) => supply.pieces = pieces,
                    Err(TryRecvError::Empty) => std::thread::yield_now(),
                    Err(TryRecvError::Disconnected) => break,
                }
            }
        });
        if matches!(ahead.state, State::Impossible) {
            return eprintln!("LEFT OUT: this kernel cannot make memory resident.");
        }
        assert!(helped < alone / 2, "{helped} page faults, {alone} without memory ahead");
        let wait = |what: &str, holds: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !holds() {
                assert!(began.elapsed() < Duration::from_secs(20), "waited in vain until {what}");
                std::thread::yield_now();
            }
        };
        wait("memory is ahead", &|| in_use() > before + PIECE);
        ahead.end();
        wait("no memory is kept", &|| in_use() <= before + PIECE);
    }
}
