//! The number of monitors of each worker, and the order of their lines.
//!
//! Lines are put into all inboxes under one lock, so all monitors receive them in the same order. Like a subscription,
//! each monitor has a stamp, and lines are for stamps below their horizon: a monitor does not receive commands executed
//! before it started.

use crate::admission::{Admission, Reasons};
use parking_lot::Mutex;

/// See the module's documentation.
pub struct Monitors(Mutex<State>);

struct State {
    by_worker: Box<[usize]>,
    next_stamp: u64,
}

impl Monitors {
    /// For a server with this many workers; without monitors.
    pub fn new(workers: usize) -> Self {
        Monitors(Mutex::new(State { by_worker: vec![0; workers].into(), next_stamp: 0 }))
    }

    /// Counts a new monitor of a worker; returns its stamp.
    pub(super) fn add(&self, worker: usize, admission: &Admission) -> u64 {
        let mut state = self.0.lock();
        state.by_worker[worker] += 1;
        admission.set(Reasons::MONITORED, true);
        state.next_stamp += 1;
        state.next_stamp - 1
    }

    /// Moves a monitor to another worker; returns its new stamp.
    pub(super) fn transfer(&self, from: usize, to: usize) -> u64 {
        let mut state = self.0.lock();
        state.by_worker[from] -= 1;
        state.by_worker[to] += 1;
        state.next_stamp += 1;
        state.next_stamp - 1
    }

    /// Removes a monitor of a worker.
    pub(super) fn remove(&self, worker: usize, admission: &Admission) {
        let mut state = self.0.lock();
        state.by_worker[worker] -= 1;
        let any = state.by_worker.iter().any(|count| *count > 0);
        admission.set(Reasons::MONITORED, any);
    }

    /// Calls `send` with the workers that have monitors, if there are any, and the horizon of the lines that it puts
    /// into their inboxes.
    pub(super) fn find(&self, send: impl FnOnce(&mut dyn Iterator<Item = usize>, u64)) {
        let state = self.0.lock();
        let mut workers = (0..state.by_worker.len()).filter(|worker| state.by_worker[*worker] > 0).peekable();
        if workers.peek().is_some() {
            send(&mut workers, state.next_stamp);
        }
    }
}
