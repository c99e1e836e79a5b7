//! Keeps scripts that run in parallel apart from everything that scripts must not overlap.
//!
//! A **confined** script accesses only the keys that it declares, so several may run at a time, one per worker. Each
//! worker has a flag that it sets while it runs one. A thread that excludes them [closes](Gate::close) the gate and
//! waits until all flags are clear. Both sides store first and load the other's word afterwards, in sequentially
//! consistent order: either the worker sees the closed gate, or the other thread sees the flag.
//!
//! **No deadlock**: [`Gate::enter`] never waits. A worker that holds partition locks and finds the gate closed clears
//! its flag, releases the locks, and queues for a [shared turn](crate::SharedTurn) before it tries again. Between `enter` and
//! the end of the script it takes no further lock, so its flag becomes clear however long others wait for it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The gate; see the module's documentation.
pub struct Gate {
    /// Number of threads that exclude confined scripts.
    closed: AtomicUsize,
    flags: Box<[Flag]>,
}

/// Whether a worker runs a confined script.
#[repr(align(128))]
struct Flag(AtomicBool);

/// The right to run a confined script.
pub struct Entered<'a>(&'a AtomicBool);

/// While this exists, no confined script starts.
pub struct Closed<'a>(&'a Gate);

impl Gate {
    /// A gate for workers with numbers below `workers`.
    pub fn new(workers: usize) -> Self {
        Gate { closed: AtomicUsize::new(0), flags: (0..workers).map(|_| Flag(AtomicBool::new(false))).collect() }
    }

    /// Enters with a script of this worker, unless the gate is closed or the worker runs another one.
    #[inline]
    pub fn enter(&self, worker: usize) -> Option<Entered<'_>> {
        let flag = &self.flags[worker].0;
        if flag.swap(true, Ordering::SeqCst) {
            return None;
        }
        let entered = Entered(flag);
        (self.closed.load(Ordering::SeqCst) == 0).then_some(entered)
    }

    /// Prevents confined scripts from starting. Some may still run, until the result is [quiet](Closed::is_quiet).
    pub fn close(&self) -> Closed<'_> {
        self.closed.fetch_add(1, Ordering::SeqCst);
        Closed(self)
    }
}

impl Closed<'_> {
    /// Whether no confined script runs.
    pub fn is_quiet(&self) -> bool {
        self.0.flags.iter().all(|flag| !flag.0.load(Ordering::SeqCst))
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.closed.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI64;

    #[test]
    fn a_closed_gate_lets_none_in() {
        let gate = Gate::new(2);
        let entered = gate.enter(0).expect("an open gate");
        let closed = gate.close();
        assert!(!closed.is_quiet() && gate.enter(1).is_none() && gate.enter(0).is_none());
        drop(entered);
        assert!(closed.is_quiet() && gate.enter(0).is_none() && closed.is_quiet());
        drop(closed);
        assert!(gate.enter(1).is_some());
    }

    #[test]
    fn confined_scripts_and_others_exclude_each_other() {
        const ROUNDS: usize = 20_000;
        let (gate, inside) = (Gate::new(3), AtomicI64::new(0));
        std::thread::scope(|scope| {
            for worker in 0..3 {
                let (gate, inside) = (&gate, &inside);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        if let Some(_entered) = gate.enter(worker) {
                            assert!(inside.fetch_add(1, Ordering::SeqCst) >= 0);
                            inside.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                });
            }
            for _ in 0..ROUNDS / 10 {
                let closed = gate.close();
                while !closed.is_quiet() {
                    std::thread::yield_now();
                }
                assert_eq!(inside.fetch_sub(1_000, Ordering::SeqCst), 0);
                inside.fetch_add(1_000, Ordering::SeqCst);
            }
        });
    }
}
