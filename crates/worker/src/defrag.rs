//! One worker's part of active defragmentation: when its next slice begins, and how far it has come. See
//! [`kvick_engine::defrag`].

use kvick_engine::defrag::Defrag;
use kvick_runtime::memory::Slabs;
use kvick_scripting::Scripting;
use kvick_store::defrag::walk::Walk;
use kvick_store::defrag::{Mover, Work};
use std::time::{Duration, Instant};

/// Script texts examined per lock acquisition.
const SCRIPTS_PER_LOCK: usize = 256;
/// Minimum length of a slice in microseconds.
const CYCLE_US_MIN: u64 = 50;
/// A delayed worker extends its slice to at most this multiple.
const STRETCHES_MAX: u64 = 4;

/// One worker's state of defragmentation.
#[derive(Default)]
pub struct DefragState {
    /// The worker's round, and whether it has finished its share.
    round: u64,
    is_done: bool,
    /// The position in its share.
    pub walk: Walk,
    /// The first worker's position in the script texts, which follow its share; `None` when it has finished them.
    pub scripts_from: Option<usize>,
    /// The allocator's slabs as of the last measurement.
    pub slabs: Slabs,
    measured_at: Option<Instant>,
    /// When the next slice begins.
    next: Option<Instant>,
}

impl DefragState {
    /// Interval at which a worker measures slab usage.
    const MEASURE_EVERY: Duration = Duration::from_millis(100);

    /// Time until the next slice; `None` while there is nothing to do.
    pub fn wait(&self, defrag: &Defrag) -> Option<Duration> {
        if defrag.percent() == 0 || self.round == defrag.round() && self.is_done {
            return None;
        }
        Some(self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now())))
    }

    /// Deadline of the slice that begins now; `None` if none is due.
    pub fn begin(&mut self, defrag: &Defrag, cycle_us: u64) -> Option<Instant> {
        if !self.wait(defrag)?.is_zero() {
            return None;
        }
        let round = defrag.round();
        if self.round != round {
            (self.round, self.is_done, self.walk, self.measured_at) = (round, false, Walk::default(), None);
            self.scripts_from = Some(0);
        }
        let now = Instant::now();
        if self.measured_at.is_none_or(|at| now.duration_since(at) > Self::MEASURE_EVERY) {
            self.slabs.look();
            self.measured_at = Some(now);
        }
        let cycle_us = cycle_us.max(CYCLE_US_MIN);
        let late_us = self.next.map_or(0, |next| now.saturating_duration_since(next).as_micros() as u64);
        let owed_us = late_us * u64::from(defrag.percent()) / 100;
        Some(now + Duration::from_micros((cycle_us + owed_us).min(STRETCHES_MAX * cycle_us)))
    }

    /// Continues with the script texts until the deadline. Returns whether all are done.
    pub fn defragment_scripts(&mut self, scripting: &Scripting, deadline: Instant, work: &mut Work) -> bool {
        while let Some(from) = self.scripts_from {
            let mut mover = Mover::new(&mut self.slabs, SCRIPTS_PER_LOCK, 0);
            self.scripts_from = scripting.scripts.lock().relocate(from, &mut mover);
            work.moved += mover.moved();
            work.kept += mover.kept();
            if Instant::now() >= deadline {
                break;
            }
        }
        self.scripts_from.is_none()
    }

    /// Records a slice that started at `began`, and whether it finished the worker's share.
    pub fn end(&mut self, defrag: &Defrag, began: Instant, is_done: bool) {
        let percent = defrag.percent().clamp(1, 99);
        let took = began.elapsed();
        self.next = (!is_done).then(|| Instant::now() + took * (100 - percent) / percent);
        let has_ended = is_done && !std::mem::replace(&mut self.is_done, is_done);
        if has_ended {
            defrag.finish_share(self.round);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_pauses_between_slices_and_reports_once() {
        let (defrag, mut worker) = (Defrag::default(), DefragState::default());
        assert!(worker.wait(&defrag).is_none(), "it does not run");
        defrag.begin_round_at(1);
        assert!(worker.begin(&defrag, 500).is_some_and(|until| until > Instant::now()));
        worker.end(&defrag, Instant::now() - Duration::from_millis(500), false);
        assert!(worker.wait(&defrag).is_some_and(|wait| wait > Duration::from_secs(40)));
        assert!(worker.begin(&defrag, 500).is_none());
        worker.end(&defrag, Instant::now(), true);
        worker.end(&defrag, Instant::now(), true);
        assert_eq!(defrag.finished(), 1);
        assert!(worker.wait(&defrag).is_none());
        defrag.begin_round_at(1);
        assert!(worker.begin(&defrag, 500).is_some());
    }
}
