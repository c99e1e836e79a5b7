//! The world lock: lets one command run while no other does, at the price of one store and one load per batch.
//!
//! Each participant (a worker, or another thread that takes partition locks) has a flag of its own that it holds up
//! while it executes a batch. Whoever wants the world raises `wanted` and waits until all flags are down. A participant
//! that finds `wanted` raised lowers its flag again and waits at the gate. Both sides store first and look at the other's
//! flag afterwards, in sequentially consistent order, so at least one of them sees the other.
//!
//! A script may find only on its way that it needs the world, when it holds partitions already and cannot leave its batch
//! any more. It takes the world [from within](World::take_from_within): whoever waits for the world from outside gives way
//! to it. That ends as long as no participant waits within its batch for what the script holds: one that has to wait for a
//! lock leaves its batch when the world [is wanted](World::is_wanted).

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Most participants that one process may have: two for each worker, and some.
pub const PARTICIPANTS_MAX: usize = 1024;

/// How often who waits at the gate looks whether it still wants to.
const LOOK_EVERY: Duration = Duration::from_millis(1);

#[repr(align(128))]
struct Flag(AtomicBool);

/// See the module's documentation.
pub struct World {
    wanted: AtomicBool,
    /// Somebody takes the world from within its batch.
    from_within: AtomicBool,
    /// Held by whoever has the world; waiting participants queue on it.
    gate: Mutex<()>,
    flags: Box<[Flag]>,
    participants: AtomicUsize,
}

/// A thread that takes partition locks.
#[derive(Clone, Copy, Debug)]
pub struct Participant(usize);

impl Default for World {
    fn default() -> Self {
        World {
            wanted: AtomicBool::new(false),
            from_within: AtomicBool::new(false),
            gate: Mutex::new(()),
            flags: (0..PARTICIPANTS_MAX).map(|_| Flag(AtomicBool::new(false))).collect(),
            participants: AtomicUsize::new(0),
        }
    }
}

impl World {
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
            flag.store(true, Ordering::SeqCst);
            if !self.wanted.load(Ordering::SeqCst) {
                return true;
            }
            flag.store(false, Ordering::SeqCst);
            while self.gate.try_lock_for(LOOK_EVERY).is_none() {
                if !patient() {
                    return false;
                }
            }
        }
    }

    /// Ends a batch.
    #[inline]
    pub fn leave(&self, participant: Participant) {
        self.flags[participant.0].0.store(false, Ordering::Release);
    }

    /// Whether somebody has the world or waits for it: who is in a batch and waits for something should leave it.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Waits until no batch runs, and keeps others from beginning until the result is dropped. The calling thread must
    /// not be in a batch of its own.
    pub fn take(&self) -> WorldGuard<'_> {
        loop {
            if let Some(guard) = self.take_while(|| true) {
                return guard;
            }
        }
    }

    /// The same, unless `patient` says otherwise while it waits.
    pub fn take_while(&self, patient: impl Fn() -> bool) -> Option<WorldGuard<'_>> {
        loop {
            let Some(gate) = self.gate.try_lock_for(LOOK_EVERY) else {
                if patient() {
                    continue;
                }
                return None;
            };
            self.wanted.store(true, Ordering::SeqCst);
            let is_over = || self.from_within.load(Ordering::SeqCst) || !patient();
            if self.wait_for_batches(None, is_over) {
                return Some(WorldGuard { world: self, _gate: gate });
            }
            self.wanted.store(false, Ordering::SeqCst);
            MutexGuard::unlock_fair(gate);
            if !patient() {
                return None;
            }
            std::thread::yield_now();
        }
    }

    /// Takes the world from within the batch of `participant`, which goes on when the result is dropped. Only one
    /// participant at a time may do so, and what it holds meanwhile others may only wait for outside of their batches.
    pub fn take_from_within(&self, participant: Participant) -> WorldGuard<'_> {
        self.from_within.store(true, Ordering::SeqCst);
        let gate = self.gate.lock();
        self.wanted.store(true, Ordering::SeqCst);
        self.wait_for_batches(Some(participant), || false);
        self.from_within.store(false, Ordering::SeqCst);
        WorldGuard { world: self, _gate: gate }
    }

    /// Waits until all flags but that of `own` are down; false when `is_over` said so first.
    fn wait_for_batches(&self, own: Option<Participant>, is_over: impl Fn() -> bool) -> bool {
        let joined = self.participants.load(Ordering::SeqCst);
        for (number, flag) in self.flags[..joined].iter().enumerate() {
            let mut spins = 0u32;
            while own.is_none_or(|own| own.0 != number) && flag.0.load(Ordering::SeqCst) {
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
pub struct WorldGuard<'a> {
    world: &'a World,
    _gate: MutexGuard<'a, ()>,
}

impl Drop for WorldGuard<'_> {
    fn drop(&mut self) {
        self.world.wanted.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::UnsafeCell;
    use std::sync::Arc;

    struct Shared(World, UnsafeCell<u64>, AtomicUsize);
    // SAFETY: the cell is only touched with the world taken.
    unsafe impl Sync for Shared {}

    #[test]
    fn whoever_has_the_world_is_alone() {
        let shared = Arc::new(Shared(World::default(), UnsafeCell::new(0), AtomicUsize::new(0)));
        let rounds: u64 = if cfg!(miri) { 20 } else { 2_000 };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let shared = shared.clone();
                std::thread::spawn(move || {
                    let Shared(world, cell, inside) = &*shared;
                    let me = world.join().expect("room for four");
                    for round in 0..rounds {
                        if round % 10 == 0 {
                            let _guard = world.take();
                            assert_eq!(inside.load(Ordering::SeqCst), 0);
                            // SAFETY: nobody else has the world.
                            unsafe { *cell.get() += 1 };
                        } else {
                            world.enter(me);
                            inside.fetch_add(1, Ordering::SeqCst);
                            inside.fetch_sub(1, Ordering::SeqCst);
                            world.leave(me);
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
    fn who_waits_for_the_world_gives_way_to_one_who_takes_it_from_within() {
        let world = Arc::new(World::default());
        let within = world.join().expect("room");
        world.enter(within);
        let outside = {
            let world = world.clone();
            std::thread::spawn(move || drop(world.take()))
        };
        while !world.is_wanted() {
            std::thread::yield_now();
        }
        drop(world.take_from_within(within));
        world.leave(within);
        outside.join().expect("no panic");
    }

    #[test]
    fn who_has_no_patience_gets_neither_a_batch_nor_the_world() {
        let world = World::default();
        let [one, other] = [(); 2].map(|()| world.join().expect("room"));
        world.enter(one);
        assert!(world.take_while(|| false).is_none());
        assert!(world.enter_while(other, || false), "nobody has the world");
        world.leave(other);
        let guard = world.take_from_within(one);
        assert!(!world.enter_while(other, || false) && world.take_while(|| false).is_none());
        drop(guard);
        assert!(world.enter_while(other, || false));
    }
}
