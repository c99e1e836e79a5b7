//! The world lock: lets one command run while no other does, at the price of one store and one load per batch.
//!
//! Each participant (a worker, or another thread that takes partition locks) has a flag of its own that it holds up
//! while it executes a batch. Whoever wants the world raises `wanted` and waits until all flags are down. A participant
//! that finds `wanted` raised lowers its flag again and waits at the gate. Both sides store first and look at the other's
//! flag afterwards, in sequentially consistent order, so at least one of them sees the other.

use parking_lot::{Mutex, MutexGuard};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Most participants that one process may have.
pub const PARTICIPANTS_MAX: usize = 512;

#[repr(align(128))]
struct Flag(AtomicBool);

/// See the module's documentation.
pub struct World {
    wanted: AtomicBool,
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
        let flag = &self.flags[participant.0].0;
        loop {
            flag.store(true, Ordering::SeqCst);
            if !self.wanted.load(Ordering::SeqCst) {
                return;
            }
            flag.store(false, Ordering::SeqCst);
            drop(self.gate.lock());
        }
    }

    /// Ends a batch.
    #[inline]
    pub fn leave(&self, participant: Participant) {
        self.flags[participant.0].0.store(false, Ordering::Release);
    }

    /// Waits until no batch runs, and keeps others from beginning until the result is dropped. The calling thread must
    /// not be in a batch of its own.
    pub fn take(&self) -> WorldGuard<'_> {
        let gate = self.gate.lock();
        self.wanted.store(true, Ordering::SeqCst);
        let joined = self.participants.load(Ordering::SeqCst);
        for flag in &self.flags[..joined] {
            let mut spins = 0u32;
            while flag.0.load(Ordering::SeqCst) {
                spins += 1;
                if spins < 100 { std::hint::spin_loop() } else { std::thread::yield_now() }
            }
        }
        WorldGuard { world: self, _gate: gate }
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
}
