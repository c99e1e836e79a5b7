//! How many monitors each worker has, and the order of what they are shown.
//!
//! Lines are put into all inboxes under one lock, so all monitors see the same order. As subscriptions do, each monitor
//! has a stamp, and lines are for stamps below their horizon: nobody is shown what was executed before he asked.

use crate::admission::{Admission, Reasons};
use parking_lot::Mutex;

/// See the module's documentation.
pub struct Monitors(Mutex<State>);

struct State {
    by_worker: Box<[usize]>,
    next_stamp: u64,
}

impl Monitors {
    /// Of a server with so many workers, without any.
    pub fn new(workers: usize) -> Self {
        Monitors(Mutex::new(State { by_worker: vec![0; workers].into(), next_stamp: 0 }))
    }

    /// Counts one that a worker has from now on; its stamp.
    pub(super) fn add(&self, worker: usize, admission: &Admission) -> u64 {
        let mut state = self.0.lock();
        state.by_worker[worker] += 1;
        admission.set(Reasons::MONITORED, true);
        state.next_stamp += 1;
        state.next_stamp - 1
    }

    /// A worker has one less.
    pub(super) fn remove(&self, worker: usize, admission: &Admission) {
        let mut state = self.0.lock();
        state.by_worker[worker] -= 1;
        let any = state.by_worker.iter().any(|count| *count > 0);
        admission.set(Reasons::MONITORED, any);
    }

    /// Tells `send` which workers have monitors, if any has, and the horizon of what is put into their inboxes meanwhile.
    pub(super) fn find(&self, send: impl FnOnce(&mut dyn Iterator<Item = usize>, u64)) {
        let state = self.0.lock();
        let mut workers = (0..state.by_worker.len()).filter(|worker| state.by_worker[*worker] > 0).peekable();
        if workers.peek().is_some() {
            send(&mut workers, state.next_stamp);
        }
    }
}
