//! The world lock: lets one command run while no other does, at the price of one store and one load per batch.
//!
//! Each participant (a worker, or another thread that takes partition locks) has a flag of its own that it holds up
//! while it executes a batch. Whoever wants the world raises `wanted` and waits until all flags are down. A participant
//! that finds `wanted` raised lowers its flag again and waits at the gate. Both sides store first and look at the other's
//! flag afterwards, in sequentially consistent order, so at least one of them sees the other.
//!
//! A script may find only on its way that it needs the world, when it holds partitions already and cannot leave its batch
//! any more. It takes the world [from within](GlobalLock::take_from_within): whoever waits for the world from outside gives way
//! to it. That ends as long as no participant waits within its batch for what the script holds: one that has to wait for a
//! lock leaves its batch when the world [is wanted](GlobalLock::is_wanted).
//!
//! Where there is one worker, nearly all batches are its own, and it need not lock the partitions that nobody else could
//! touch. It is the [`BiasOwner`] then, all others are visitors, who are counted. Within a batch the resident may
//! [be alone](GlobalLock::become_exclusive) when there is no visitor, and a visitor waits until it is so no more, again by storing first and
//! looking afterwards. After visits the resident stays sociable for some batches, so that who comes often need not
//! wait.

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

/// Most participants that one process may have: two for each worker, and some.
pub const PARTICIPANTS_MAX: usize = 1024;

/// How often who waits at the gate looks whether it still wants to.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What a participant does: nothing that concerns others;
const OUT: u8 = 0;
/// it executes a batch;
const IN: u8 = 1;
/// the same, as a visitor;
const VISITING: u8 = 2;
/// the same, as the resident, and touches partitions without their locks.
const ALONE: u8 = 3;

/// Batches for which the resident lets visitors in after the last that it noticed.
const SOCIABLE: u32 = 64;
/// In the word that counts visits, those who are there stand below the number of arrivals.
const ARRIVAL: u64 = 1 << 32;
/// Nobody is the resident.
const NOBODY: usize = usize::MAX;

#[repr(align(128))]
struct Flag(AtomicU8);

/// See the module's documentation.
#[repr(align(128))]
pub struct GlobalLock {
    wanted: AtomicBool,
    bias_owner: AtomicUsize,
    visits: AtomicU64,
    /// Somebody takes the world from within its batch.
    from_within: AtomicBool,
    /// Held by whoever has the world; waiting participants queue on it.
    admission: Mutex<()>,
    flags: Box<[Flag]>,
    participants: AtomicUsize,
}

/// A thread that takes partition locks.
#[derive(Clone, Copy, Debug)]
pub struct Participant(usize);

/// The participant whose batches nearly all are.
#[derive(Debug)]
pub struct BiasOwner {
    number: usize,
    /// The arrivals that it knows of.
    arrivals: u64,
    /// Batches for which it stays sociable.
    sociable: u32,
}

/// Proof that no other participant is in a batch, until it is given back or the batch ends.
#[derive(Debug)]
pub struct Exclusive(());

impl Default for GlobalLock {
    fn default() -> Self {
        GlobalLock {
            wanted: AtomicBool::new(false),
            bias_owner: AtomicUsize::new(NOBODY),
            visits: AtomicU64::new(0),
            from_within: AtomicBool::new(false),
            admission: Mutex::new(()),
            flags: (0..PARTICIPANTS_MAX).map(|_| Flag(AtomicU8::new(OUT))).collect(),
            participants: AtomicUsize::new(0),
        }
    }
}

impl GlobalLock {
    /// Registers a thread; `None` when there are [`PARTICIPANTS_MAX`] already.
    pub fn join(&self) -> Option<Participant> {
        let taken = self
            .participants
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| (n < PARTICIPANTS_MAX).then_some(n + 1));
        taken.ok().map(Participant)
    }

    /// Begins a batch: until it is left, nobody has the world.
    #[inline]
    pub fn enter(&self, participant: Participant) {
        while !self.enter_while(participant, || true) {}
    }

    /// The same, unless `patient` says otherwise while somebody has the world; whether the batch has begun.
    #[inline]
    pub fn enter_while(&self, participant: Participant, patient: impl Fn() -> bool) -> bool {
        let flag = &self.flags[participant.0].0;
        loop {
            flag.store(IN, Ordering::SeqCst);
            if !self.wanted.load(Ordering::SeqCst) {
                let bias_owner = self.bias_owner.load(Ordering::Relaxed);
                if bias_owner != NOBODY && bias_owner != participant.0 {
                    self.visit(participant, bias_owner);
                }
                return true;
            }
            flag.store(OUT, Ordering::SeqCst);
            while self.admission.try_lock_for(LOOK_EVERY).is_none() {
                if !patient() {
                    return false;
                }
            }
        }
    }

    /// Ends a batch.
    #[inline]
    pub fn leave(&self, participant: Participant) {
        let flag = &self.flags[participant.0].0;
        let visits = flag.load(Ordering::Relaxed) == VISITING;
        flag.store(OUT, Ordering::Release);
        if visits {
            self.visits.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Within a batch, which may count on it that the resident takes locks from here on.
    #[cold]
    fn visit(&self, participant: Participant, bias_owner: usize) {
        self.flags[participant.0].0.store(VISITING, Ordering::Relaxed);
        self.visits.fetch_add(ARRIVAL | 1, Ordering::SeqCst);
        let mut spins = 0u32;
        while self.flags[bias_owner].0.load(Ordering::SeqCst) == ALONE {
            spins += 1;
            if spins < 100 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Makes a participant, which is in no batch, the resident.
    pub fn settle(&self, participant: Participant) -> BiasOwner {
        // Those who are in batches now are not counted as visitors.
        let _guard = self.take();
        self.bias_owner.store(participant.0, Ordering::Relaxed);
        BiasOwner { number: participant.0, arrivals: 0, sociable: 0 }
    }

    /// Begins a batch of the resident in which it is alone; `None`, and no batch has begun, when somebody has the world or
    /// wants it, when there are visitors, and as long as it stays sociable.
    #[inline]
    pub fn enter_exclusive(&self, bias_owner: &BiasOwner) -> Option<Exclusive> {
        if bias_owner.sociable > 0 {
            return None;
        }
        let flag = &self.flags[bias_owner.number].0;
        flag.store(ALONE, Ordering::SeqCst);
        let wanted = self.wanted.load(Ordering::SeqCst);
        if !wanted && self.visits.load(Ordering::SeqCst) == bias_owner.arrivals {
            return Some(Exclusive(()));
        }
        flag.store(OUT, Ordering::SeqCst);
        None
    }

    /// Within the resident's batch: proof that it is alone, if it is and need not be sociable.
    #[inline]
    pub fn become_exclusive(&self, bias_owner: &mut BiasOwner) -> Option<Exclusive> {
        let arrivals = self.visits.load(Ordering::Relaxed) & !(ARRIVAL - 1);
        if arrivals != bias_owner.arrivals {
            (bias_owner.arrivals, bias_owner.sociable) = (arrivals, SOCIABLE);
        }
        if bias_owner.sociable > 0 {
            bias_owner.sociable -= 1;
            return None;
        }
        let flag = &self.flags[bias_owner.number].0;
        flag.store(ALONE, Ordering::SeqCst);
        if self.visits.load(Ordering::SeqCst) != arrivals {
            flag.store(IN, Ordering::SeqCst);
            return None;
        }
        Some(Exclusive(()))
    }

    /// Lets visitors in. The batch goes on, and takes locks.
    #[inline]
    pub fn receive(&self, bias_owner: Participant, _: Exclusive) {
        self.flags[bias_owner.0].0.store(IN, Ordering::Release);
    }

    /// Whether somebody has the world or waits for it: who is in a batch and waits for something should leave it.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Waits until no batch runs, and keeps others from beginning until the result is dropped. The calling thread must
    /// not be in a batch of its own.
    pub fn take(&self) -> GlobalGuard<'_> {
        loop {
            if let Some(guard) = self.take_while(|| true) {
                return guard;
            }
        }
    }

    /// The same, unless `patient` says otherwise while it waits.
    pub fn take_while(&self, patient: impl Fn() -> bool) -> Option<GlobalGuard<'_>> {
        loop {
            let Some(admission) = self.admission.try_lock_for(LOOK_EVERY) else {
                if patient() {
                    continue;
                }
                return None;
            };
            self.wanted.store(true, Ordering::SeqCst);
            let is_over = || self.from_within.load(Ordering::SeqCst) || !patient();
            if self.wait_for_batches(None, is_over) {
                return Some(GlobalGuard { global: self, _gate: admission });
            }
            self.wanted.store(false, Ordering::SeqCst);
            MutexGuard::unlock_fair(admission);
            if !patient() {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Takes the world from within the batch of `participant`, which goes on when the result is dropped. Only one
    /// participant at a time may do so, and what it holds meanwhile others may only wait for outside of their batches.
    pub fn take_from_within(&self, participant: Participant) -> GlobalGuard<'_> {
        self.from_within.store(true, Ordering::SeqCst);
        let admission = self.admission.lock();
        self.wanted.store(true, Ordering::SeqCst);
        self.wait_for_batches(Some(participant), || false);
        self.from_within.store(false, Ordering::SeqCst);
        GlobalGuard { global: self, _gate: admission }
    }

    /// Waits until all flags but that of `own` are down; false when `is_over` said so first.
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

/// The world, held.
pub struct GlobalGuard<'a> {
    global: &'a GlobalLock,
    _gate: MutexGuard<'a, ()>,
}

impl Drop for GlobalGuard<'_> {
    fn drop(&mut self) {
        self.global.wanted.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    struct Shared(GlobalLock, UnsafeCell<u64>, AtomicUsize);
    // SAFETY: the cell is only touched with the world taken.
    unsafe impl Sync for Shared {}

    #[test]
    fn whoever_has_the_world_is_alone() {
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
                            // SAFETY: nobody else has the world.
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
    fn the_resident_is_alone_while_there_is_no_visitor() {
        let shared = Arc::new(Shared(GlobalLock::default(), UnsafeCell::new(0), AtomicUsize::new(0)));
        let (rounds, lock) = (if cfg!(miri) { 30 } else { 20_000 }, Arc::new(Mutex::new(())));
        let home = shared.0.join().expect("room");
        let mut bias_owner = shared.0.settle(home);
        let revokers: Vec<_> = (0..2)
            .map(|_| {
                let (shared, lock) = (shared.clone(), lock.clone());
                std::thread::spawn(move || {
                    let me = shared.0.join().expect("room");
                    for round in 0..rounds / 10 {
                        if round % 50 == 0 {
                            let _guard = shared.0.take();
                            // SAFETY: nobody else has the world.
                            unsafe { *shared.1.get() += 1 };
                            continue;
                        }
                        shared.0.enter(me);
                        let held = lock.lock();
                        // SAFETY: the lock is held, and the resident is not alone.
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
            // SAFETY: the lock is held, or nobody else is in a batch.
            unsafe { *shared.1.get() += 1 };
            drop(held);
            done += 1;
            if let Some(exclusive) = exclusive.filter(|_| round % 2 == 0) {
                shared.0.receive(home, exclusive);
                let _held = lock.lock();
                // SAFETY: the lock is held.
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
    fn who_waits_for_the_world_gives_way_to_one_who_takes_it_from_within() {
        let global = Arc::new(GlobalLock::default());
        let within = global.join().expect("room");
        global.enter(within);
        let outside = {
            let global = global.clone();
            std::thread::spawn(move || drop(global.take()))
        };
        while !global.is_wanted() {
            std::thread::yield_now();
        }
        drop(global.take_from_within(within));
        global.leave(within);
        outside.join().expect("no panic");
    }

    #[test]
    fn who_has_no_patience_gets_neither_a_batch_nor_the_world() {
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
