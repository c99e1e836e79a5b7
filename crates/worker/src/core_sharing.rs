//! When a worker offers its core to other threads.
//!
//! The scheduler lets a busy thread run for up to 4 ms, also if others wait for the core. Two kinds of work must not
//! keep clients waiting for that long: slots that are imported, or whose keys are deleted after they have left, while
//! other nodes and clients use the same cores; and requests, if there are more workers than cores. With four busy
//! workers on one core, the last one would begin after 12 ms.

use kvick_runtime::affinity::CpuSet;
use kvick_runtime::time_slice::Turns;

/// Length of the turns of workers that share a core, in microseconds. Shorter ones cost more than they save: with 30,
/// GET and SET without pipelining took a tenth more CPU time.
const SHARED_CORE_US: u64 = 200;

/// Why a worker takes turns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    Slots,
    Crowded,
}

/// The turns of a worker with other threads.
#[derive(Default)]
pub(super) struct CoreSharing {
    workers: usize,
    /// Cores on which they may run.
    cores: usize,
    is_importing: bool,
    is_deleting: bool,
    turns: Option<(Reason, Turns)>,
}

impl CoreSharing {
    /// Takes into account how many workers there are. The cores of workers change only together with their number.
    pub(super) fn set_workers(&mut self, workers: usize) {
        if workers != self.workers {
            self.set_numbers(workers, CpuSet::present().map_or(usize::MAX, |cores| cores.len()));
        }
    }

    fn set_numbers(&mut self, workers: usize, cores: usize) {
        (self.workers, self.cores) = (workers, cores);
        self.choose();
    }

    /// Slots are imported from now on, or not any more.
    pub(super) fn set_importing(&mut self, is_importing: bool) {
        if is_importing != self.is_importing {
            self.is_importing = is_importing;
            self.choose();
        }
    }

    /// Keys of slots that have left are deleted from now on, or not any more.
    #[inline]
    pub(super) fn set_deleting(&mut self, is_deleting: bool) {
        if is_deleting != self.is_deleting {
            self.is_deleting = is_deleting;
            self.choose();
        }
    }

    fn choose(&mut self) {
        let reason = match self.is_importing || self.is_deleting {
            true => Some(Reason::Slots),
            false => (self.workers > self.cores).then_some(Reason::Crowded),
        };
        if reason == self.reason() {
            return;
        }
        if let Some((_, turns)) = self.turns.take() {
            turns.end();
        }
        self.turns = reason.map(|reason| match reason {
            Reason::Slots => (reason, Turns::begin()),
            Reason::Crowded => (reason, Turns::begin_of(SHARED_CORE_US)),
        });
    }

    /// Offers the core to other threads if the turn is over.
    #[inline]
    pub(super) fn end_turn_if_over(&mut self) {
        if let Some((_, turns)) = &mut self.turns {
            turns.end_if_over();
        }
    }

    fn reason(&self) -> Option<Reason> {
        self.turns.as_ref().map(|(reason, _)| *reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_take_turns_while_slots_move_or_if_they_are_more_than_the_cores() {
        let mut sharing = CoreSharing::default();
        sharing.set_numbers(2, 2);
        assert_eq!(sharing.reason(), None);
        sharing.set_numbers(3, 2);
        assert_eq!(sharing.reason(), Some(Reason::Crowded));
        sharing.set_importing(true);
        assert_eq!(sharing.reason(), Some(Reason::Slots));
        sharing.set_numbers(2, 2);
        assert_eq!(sharing.reason(), Some(Reason::Slots));
        sharing.set_deleting(true);
        sharing.set_importing(false);
        assert_eq!(sharing.reason(), Some(Reason::Slots));
        sharing.set_deleting(false);
        assert_eq!(sharing.reason(), None);
        sharing.set_numbers(3, 2);
        assert_eq!(sharing.reason(), Some(Reason::Crowded));
        sharing.set_numbers(1, 2);
        assert_eq!(sharing.reason(), None);
    }

    #[test]
    fn a_worker_knows_its_cores() {
        let mut sharing = CoreSharing::default();
        sharing.set_workers(1);
        assert_eq!((sharing.cores > 0, sharing.reason()), (true, None));
        sharing.set_workers(sharing.cores + 1);
        assert_eq!(sharing.reason(), Some(Reason::Crowded));
    }
}
