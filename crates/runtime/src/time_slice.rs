//! Short time slices for threads that others wait for.
//!
//! A thread that has to run for some microseconds only, but that clients wait for, should not wait until another thread
//! has used up its time slice of milliseconds. Linux lets it run earlier if it asks for a short slice itself; its share
//! of the processors stays the same. Kernels before 6.12 ignore the request.
//!
//! A thread that has much to do takes [`Turns`] with others instead: one in the background, or one of several workers
//! on a core.

use crate::clock::{Ticks, us_to_ticks};
use std::thread;

/// The slice, in nanoseconds: a tenth of a millisecond is the least that Linux grants.
const SHORT_NS: u64 = 100_000;

/// Length of a [turn](Turns) of a thread in the background, in microseconds.
const TURN_US: u64 = 30;

/// The parameters of `sched_setattr(2)`, in the version that has 48 bytes.
#[repr(C)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// With the normal policy: the time slice.
    runtime: u64,
    deadline: u64,
    period: u64,
}

/// Gives the calling thread short time slices, unless it runs under another policy than the normal one.
pub fn shorten() {
    request(SHORT_NS);
}

/// Requests time slices of so many nanoseconds; 0: of the length that the system has chosen.
fn request(slice_ns: u64) {
    // SAFETY: these calls have no memory of this process as arguments.
    let (policy, nice) = unsafe { (libc::sched_getscheduler(0), libc::getpriority(libc::PRIO_PROCESS, 0)) };
    if policy != libc::SCHED_OTHER {
        return;
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice,
        priority: 0,
        runtime: slice_ns,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the pointer refers to attributes of the size that they state, which live through the call. A refusal
    // leaves the thread as it is.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Turns of a thread with much work in small steps: it offers its core to other threads after each of them. Otherwise a
/// thread that is woken on the same core would wait until the scheduler's next tick, for up to 4 ms.
pub struct Turns {
    began: Ticks,
    /// Length of a turn.
    ticks: u64,
}

impl Turns {
    /// Begins the first turn of the calling thread, which works in the background. Its time slices are
    /// [short](shorten) from now on.
    pub fn begin() -> Turns {
        Turns::begin_of(TURN_US)
    }

    /// The same with turns of a length in microseconds.
    pub fn begin_of(us: u64) -> Turns {
        shorten();
        Turns { began: Ticks::now(), ticks: us_to_ticks(us) }
    }

    /// Ends the turn if it is over, and begins the next one. Called between two steps, without locks.
    pub fn end_if_over(&mut self) {
        if Ticks::now().since(self.began) >= self.ticks {
            thread::yield_now();
            self.began = Ticks::now();
        }
    }

    /// Gives the thread time slices of the usual length again.
    pub fn end(self) {
        request(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_accepts_the_request_and_keeps_the_priority() {
        // SAFETY: no memory of this process is an argument.
        let nice = || unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
        let before = nice();
        shorten();
        assert_eq!(nice(), before);
    }

    #[test]
    fn a_turn_ends_after_its_time() {
        let mut turns = Turns::begin();
        let first = turns.began;
        turns.ticks = u64::MAX;
        turns.end_if_over();
        assert_eq!(turns.began.since(first), 0);
        turns.ticks = 0;
        turns.end_if_over();
        assert!(turns.began.since(first) > 0);
    }
}
