//! The global lock: lets one command run while no other does. A batch of commands pays one store and one load for it.
//!
//! Each participant (a worker, or another thread that takes partition locks) has its own flag, which it sets while it
//! executes a batch. To acquire the global lock, a thread sets `requested` and waits until all flags are clear. A
//! participant that finds `requested` set clears its flag again and waits on the `admission` mutex. Both sides store
//! first and load the other's flag afterwards, in sequentially consistent order, so at least one of them sees the
//! other.
//!
//! A script may discover that it needs the global lock when it already holds partitions and can no
//! longer leave its batch. It acquires the lock [from within its batch](GlobalLock::take_from_within);
//! threads that wait for the lock outside a batch yield to it. This terminates provided that no
//! participant waits inside its batch for a partition the script holds: a participant that has to wait
//! for a partition lock leaves its batch when the global lock [is requested](GlobalLock::is_requested).
//!
//! # Biased locking
//!
//! With one worker, nearly all batches belong to that worker, and it can skip partition locks while no
//! other thread runs a batch. That worker becomes the [`BiasOwner`]. Every other participant is a revoker:
//! it counts itself in `revokers` when it enters a batch. Within a batch, the owner may become
//! [exclusive](GlobalLock::become_exclusive) if no revoker has entered, and a revoker waits until the owner
//! is no longer exclusive. Again both sides store first and load afterwards. After a revocation, the owner
//! takes partition locks for the next `SHARED_BATCHES` batches, so that frequent revokers do not have to wait.

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Maximum number of participants in a process: two per worker, plus a margin.
pub const PARTICIPANTS_MAX: usize = 1024;

/// How often a thread that waits for the global lock checks whether to give up.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// State of a participant's flag: not in a batch.
const OUT: u8 = 0;
/// In a batch.
const IN: u8 = 1;
/// In a batch, counted as a revoker.
const REVOKER: u8 = 2;
/// In a batch as the exclusive bias owner: accesses partitions without their locks.
const EXCLUSIVE: u8 = 3;

/// Number of batches for which the bias owner takes locks after it last noticed a revoker.
const SHARED_BATCHES: u32 = 64;
/// `revokers` counts present revokers in its low 32 bits and all revocations in its high 32 bits.
const REVOCATION: u64 = 1 << 32;
/// Value of `bias_owner` while there is none.
const NO_OWNER: usize = usize::MAX;

#[repr(align(128))]
struct Flag(AtomicU8);

/// The lock. See the module documentation.
#[repr(align(128))]
pub struct GlobalLock {
    requested: AtomicBool,
    bias_owner: AtomicUsize,
    revokers: AtomicU64,
    /// A participant is acquiring the lock from within its batch.
    from_within: AtomicBool,
    /// Held by the thread that holds the global lock; waiting participants queue on it.
    admission: Mutex<()>,
    flags: Box<[Flag]>,
    participants: AtomicUsize,
}

/// A thread that takes partition locks.
#[derive(Clone, Copy, Debug)]
pub struct Participant(usize);

/// The participant that executes nearly all batches and may skip partition locks. See the module documentation.
#[derive(Debug)]
pub struct BiasOwner {
    number: usize,
    /// The arrivals of revokers that it has seen.
    revocations: u64,
    /// Remaining batches in which it must take partition locks.
    shared_batches_left: u32,
}

/// Proof that no other participant is in a batch. Valid until it is given up or the batch ends.
#[derive(Debug)]
pub struct Exclusive(());

impl Default for GlobalLock {
    fn default() -> Self {
        GlobalLock {
            requested: AtomicBool::new(false),
            bias_owner: AtomicUsize::new(NO_OWNER),
            revokers: AtomicU64::new(0),
            from_within: AtomicBool::new(false),
            admission: Mutex::new(()),
            flags: (0..PARTICIPANTS_MAX).map(|_| Flag(AtomicU8::new(OUT))).collect(),
            participants: AtomicUsize::new(0),
        }
    }
}

impl GlobalLock {
    /// Registers a thread; `None` if [`PARTICIPANTS_MAX`] threads are registered.
    pub fn join(&self) -> Option<Participant> {
        let taken = self
            .participants
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n < PARTICIPANTS_MAX).then_some(n + 1));
        taken.ok().map(Participant)
    }

    /// Begins a batch. No other thread acquires the global lock until the batch ends.
    #[inline]
    pub fn enter(&self, participant: Participant) {
        while !self.enter_while(participant, || true) {}
    }

    /// Like [`enter`](Self::enter), but gives up when `keep_waiting` returns false while another thread holds the global
    /// lock, or the bias owner is exclusive. Returns whether the batch has begun.
    #[inline]
    pub fn enter_while(&self, participant: Participant, keep_waiting: impl Fn() -> bool) -> bool {
        let flag = &self.flags[participant.0].0;
        loop {
            flag.store(IN, Ordering::SeqCst);
            if !self.requested.load(Ordering::SeqCst) {
                let bias_owner = self.bias_owner.load(Ordering::Relaxed);
                if bias_owner != NO_OWNER && bias_owner != participant.0 {
                    return self.revoke_bias(participant, bias_owner, keep_waiting);
                }
                return true;
            }
            flag.store(OUT, Ordering::SeqCst);
            while self.admission.try_lock_for(CHECK_INTERVAL).is_none() {
                if !keep_waiting() {
                    return false;
                }
            }
        }
    }

    /// Ends a batch.
    #[inline]
    pub fn leave(&self, participant: Participant) {
        let flag = &self.flags[participant.0].0;
        let revokers = flag.load(Ordering::Relaxed) == REVOKER;
        flag.store(OUT, Ordering::Release);
        if revokers {
            self.revokers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Revokes the bias: counts this batch as a revoker's and waits until the owner takes partition locks again. Ends
    /// the batch, and returns false, if `keep_waiting` does so first.
    #[cold]
    fn revoke_bias(&self, participant: Participant, bias_owner: usize, keep_waiting: impl Fn() -> bool) -> bool {
        self.flags[participant.0].0.store(REVOKER, Ordering::Relaxed);
        self.revokers.fetch_add(REVOCATION | 1, Ordering::SeqCst);
        let mut spins = 0u32;
        while self.flags[bias_owner].0.load(Ordering::SeqCst) == EXCLUSIVE {
            spins += 1;
            if spins < 100 {
                std::hint::spin_loop();
            } else if keep_waiting() {
                std::thread::yield_now();
            } else {
                self.leave(participant);
                return false;
            }
        }
        true
    }

    /// Makes a participant, which must not be in a batch, the bias owner.
    pub fn set_bias_owner(&self, participant: Participant) -> BiasOwner {
        // Participants that are in a batch now were not counted as revokers, so wait for them.
        let _guard = self.take();
        self.bias_owner.store(participant.0, Ordering::Relaxed);
        BiasOwner { number: participant.0, revocations: 0, shared_batches_left: 0 }
    }

    /// Ends the bias. The owner must not be in a batch.
    pub fn clear_bias_owner(&self, bias_owner: BiasOwner) {
        debug_assert_eq!(self.flags[bias_owner.number].0.load(Ordering::Relaxed), OUT);
        self.bias_owner.store(NO_OWNER, Ordering::Relaxed);
    }

    /// Begins an exclusive batch of the bias owner. Returns `None`, without beginning a batch, if another thread holds
    /// or wants the global lock, if there are revokers, or while the owner still has to take locks after a revocation.
    #[inline]
    pub fn enter_exclusive(&self, bias_owner: &BiasOwner) -> Option<Exclusive> {
        if bias_owner.shared_batches_left > 0 {
            return None;
        }
        let flag = &self.flags[bias_owner.number].0;
        flag.store(EXCLUSIVE, Ordering::SeqCst);
        let requested = self.requested.load(Ordering::SeqCst);
        if !requested && self.revokers.load(Ordering::SeqCst) == bias_owner.revocations {
            return Some(Exclusive(()));
        }
        flag.store(OUT, Ordering::SeqCst);
        None
    }

    /// Called within the owner's batch: returns proof of exclusivity if there are no revokers and no recent revocation.
    #[inline]
    pub fn become_exclusive(&self, bias_owner: &mut BiasOwner) -> Option<Exclusive> {
        let revocations = self.revokers.load(Ordering::Relaxed) & !(REVOCATION - 1);
        if revocations != bias_owner.revocations {
            (bias_owner.revocations, bias_owner.shared_batches_left) = (revocations, SHARED_BATCHES);
        }
        if bias_owner.shared_batches_left > 0 {
            bias_owner.shared_batches_left -= 1;
            return None;
        }
        let flag = &self.flags[bias_owner.number].0;
        flag.store(EXCLUSIVE, Ordering::SeqCst);
        if self.revokers.load(Ordering::SeqCst) != revocations {
            flag.store(IN, Ordering::SeqCst);
            return None;
        }
        Some(Exclusive(()))
    }

    /// Ends exclusivity and lets revokers in. The batch continues and takes partition locks.
    #[inline]
    pub fn end_exclusive(&self, bias_owner: Participant, _: Exclusive) {
        self.flags[bias_owner.0].0.store(IN, Ordering::Release);
    }

    /// Whether a thread holds the global lock or waits for it. A
    /// participant that waits inside its batch should then leave it.
    #[inline]
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::SeqCst)
    }

    /// Waits until no batch runs, and prevents new ones until the
    /// result is dropped. The calling thread must not be in a batch.
    pub fn take(&self) -> GlobalGuard<'_> {
        loop {
            if let Some(guard) = self.take_while(|| true) {
                return guard;
            }
        }
    }

    /// Like [`take`](Self::take), but gives up and returns `None` when `keep_waiting` returns false.
    pub fn take_while(&self, keep_waiting: impl Fn() -> bool) -> Option<GlobalGuard<'_>> {
        loop {
            let Some(admission) = self.admission.try_lock_for(CHECK_INTERVAL) else {
                if keep_waiting() {
                    continue;
                }
                return None;
            };
            self.requested.store(true, Ordering::SeqCst);
            let is_over = || self.from_within.load(Ordering::SeqCst) || !keep_waiting();
            if self.wait_for_batches(None, is_over) {
                return Some(GlobalGuard { global: self, _admission: admission });
            }
            self.requested.store(false, Ordering::SeqCst);
            MutexGuard::unlock_fair(admission);
            if !keep_waiting() {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Acquires the global lock from within the batch of `participant`, which continues
    /// when the result is dropped. Only one participant at a time may do this, and the
    /// others may wait for its partition locks only outside their batches.
    pub fn take_from_within(&self, participant: Participant) -> GlobalGuard<'_> {
        self.from_within.store(true, Ordering::SeqCst);
        let admission = self.admission.lock();
        self.requested.store(true, Ordering::SeqCst);
        self.wait_for_batches(Some(participant), || false);
        self.from_within.store(false, Ordering::SeqCst);
        GlobalGuard { global: self, _admission: admission }
    }

    /// Waits until all flags except that of `own` are clear; returns false if `is_over` returned true first.
    fn wait_for_batches(&self, own: Option<Participant>, is_over: impl Fn() -> bool) -> bool {
        let joined = self.participants.load(Ordering::SeqCst);
        for (number, flag) in self.flags[..joined].iter().enumerate() {
            let mut spins = 0u32;
            while own.is_none_or(|own| own.0 != number) && flag.0.load(Ordering::SeqCst) != OUT {
                spins += 1;
                if spins < 100 {
                    std::hint::spin_loop();
                } else if is_over() {
                    return false;
                } else {
                    std::thread::yield_now();
                }
            }
        }
        true
    }
}

/// The held global lock; dropping it releases the lock.
pub struct GlobalGuard<'a> {
    global: &'a GlobalLock,
    _admission: MutexGuard<'a, ()>,
}

impl Drop for GlobalGuard<'_> {
    fn drop(&mut self) {
        self.global.requested.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    struct Shared(GlobalLock, UnsafeCell<u64>, AtomicUsize);
    // SAFETY: the cell is accessed only with the global lock held.
    unsafe impl Sync for Shared {}

    #[test]
    fn global_lock_is_exclusive() {
        let shared = Arc::new(Shared(GlobalLock::default(), UnsafeCell::new(0), AtomicUsize::new(0)));
        let rounds: u64 = if cfg!(miri) { 20 } else { 2_000 };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let Shared(global, cell, inside) = &*shared;
                    let me = global.join().expect("room for four");
                    for round in 0..rounds {
                        if round % 10 == 0 {
                            let _guard = global.take();
                            assert_eq!(inside.load(Ordering::SeqCst), 0);
                            // SAFETY: the global lock is held.
                            unsafe { *cell.get() += 1 };
                        } else {
                            global.enter(me);
                            inside.fetch_add(1, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            global.leave(me);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().expect("no panic"));
        let _guard = shared.0.take();
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *shared.1.get() }, 4 * rounds.div_ceil(10));
    }

    #[test]
    fn revoker_may_give_up_while_the_owner_is_exclusive() {
        let global = GlobalLock::default();
        let [home, other] = [0, 1].map(|_| global.join().expect("room"));
        let mut bias_owner = global.set_bias_owner(home);
        global.enter(home);
        let exclusive = global.become_exclusive(&mut bias_owner).expect("nobody else is in a batch");
        assert!(!global.enter_while(other, || false));
        global.end_exclusive(home, exclusive);
        assert!(global.enter_while(other, || false), "the owner takes locks now");
        assert!(global.become_exclusive(&mut bias_owner).is_none());
        global.leave(other);
        global.leave(home);
        assert!(global.take_while(|| false).is_some(), "nobody is in a batch");
    }

    #[test]
    fn bias_owner_is_exclusive_without_revokers() {
        let shared = Arc::new(Shared(GlobalLock::default(), UnsafeCell::new(0), AtomicUsize::new(0)));
        let (rounds, lock) = (if cfg!(miri) { 30 } else { 20_000 }, Arc::new(Mutex::new(())));
        let home = shared.0.join().expect("room");
        let mut bias_owner = shared.0.set_bias_owner(home);
        let revokers: Vec<_> = (0..2)
            .map(|_| {
                let (shared, lock) = (shared.clone(), lock.clone());
                std::thread::spawn(move || {
                    let me = shared.0.join().expect("room");
                    for round in 0..rounds / 10 {
                        if round % 50 == 0 {
                            let _guard = shared.0.take();
                            // SAFETY: the global lock is held.
                            unsafe { *shared.1.get() += 1 };
                            continue;
                        }
                        shared.0.enter(me);
                        let held = lock.lock();
                        // SAFETY: the mutex is held, and the bias owner is not exclusive.
                        unsafe { *shared.1.get() += 1 };
                        drop(held);
                        shared.0.leave(me);
                        if round % 7 == 0 {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut done = 0;
        for round in 0..rounds {
            let exclusive = shared.0.enter_exclusive(&bias_owner).or_else(|| {
                shared.0.enter(home);
                shared.0.become_exclusive(&mut bias_owner)
            });
            let held = exclusive.is_none().then(|| lock.lock());
            // SAFETY: the mutex is held, or no other participant is in a batch.
            unsafe { *shared.1.get() += 1 };
            drop(held);
            done += 1;
            if let Some(exclusive) = exclusive.filter(|_| round % 2 == 0) {
                shared.0.end_exclusive(home, exclusive);
                let _held = lock.lock();
                // SAFETY: the mutex is held.
                unsafe { *shared.1.get() += 1 };
                done += 1;
            }
            shared.0.leave(home);
        }
        revokers.into_iter().for_each(|thread| thread.join().expect("no panic"));
        let _guard = shared.0.take();
        // SAFETY: all threads have ended.
        assert_eq!(unsafe { *shared.1.get() }, done + 2 * (rounds / 10));
    }

    #[test]
    fn global_lock_waiter_yields_to_acquisition_from_within_a_batch() {
        let global = Arc::new(GlobalLock::default());
        let within = global.join().expect("room");
        global.enter(within);
        let outside = {
            let global = global.clone();
            std::thread::spawn(move || drop(global.take()))
        };
        while !global.is_requested() {
            std::thread::yield_now();
        }
        drop(global.take_from_within(within));
        global.leave(within);
        outside.join().expect("no panic");
    }

    #[test]
    fn impatient_caller_gets_neither_batch_nor_global_lock() {
        let global = GlobalLock::default();
        let [one, other] = [(); 2].map(|()| global.join().expect("room"));
        global.enter(one);
        assert!(global.take_while(|| false).is_none());
        assert!(global.enter_while(other, || false), "nobody has the world");
        global.leave(other);
        let guard = global.take_from_within(one);
        assert!(!global.enter_while(other, || false) && global.take_while(|| false).is_none());
        drop(guard);
        assert!(global.enter_while(other, || false));
    }
}
