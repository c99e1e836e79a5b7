//! The section on processor time.
//!
//! Invariant of the unsafe code here: the kernel fills a structure of ours, for a valid target.

use super::Context;
use super::page::{Page, seconds};
use kvick_config::tables::network::IO_THREADS;
use libc::{RUSAGE_CHILDREN, RUSAGE_SELF, RUSAGE_THREAD, c_int, rusage, timeval};

pub fn write(context: &Context, page: &mut Page) {
    let workers = context.server.totals();
    let configured = context.server.config.read(IO_THREADS) as usize;
    page.section("CPU");
    for (target, suffix) in [(RUSAGE_SELF, ""), (RUSAGE_CHILDREN, "_children"), (RUSAGE_THREAD, "_main_thread")] {
        let (system_us, user_us) = used(target);
        page.field(format_args!("used_cpu_sys{suffix}"), seconds(system_us));
        page.field(format_args!("used_cpu_user{suffix}"), seconds(user_us));
    }
    for (number, totals) in workers.iter().take(configured).enumerate() {
        match number {
            0 => page.field("used_active_time_main_thread", seconds(totals.busy_us)),
            _ => page.field(format_args!("used_active_time_io_thread_{number}"), seconds(totals.busy_us)),
        }
    }
    for (number, totals) in workers.iter().enumerate() {
        page.field(
            format_args!("kvick_worker_{number}"),
            format_args!("busy_usec={},turns={},commands={}", totals.busy_us, totals.turns, totals.requests),
        );
    }
}

/// System and user time in microseconds; `None` if the kernel does not report them.
fn used(target: c_int) -> (u64, u64) {
    let zero = timeval { tv_sec: 0, tv_usec: 0 };
    // SAFETY: all-zero bytes are a valid value of this structure of integers.
    let mut usage: rusage = unsafe { std::mem::zeroed() };
    // SAFETY: by the module's invariant.
    if unsafe { libc::getrusage(target, &mut usage) } != 0 {
        (usage.ru_stime, usage.ru_utime) = (zero, zero);
    }
    (microseconds(usage.ru_stime), microseconds(usage.ru_utime))
}

fn microseconds(time: timeval) -> u64 {
    time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64
}
