//! CPU affinity of threads: `server-cpulist` for the threads that execute commands, `bgsave-cpulist` for the thread
//! that walks snapshots, `bio-cpulist` for all other threads.
//!
//! A new thread inherits the affinity of its parent, so threads of the first two roles [set their role](set) when they
//! start. Background threads that a worker may have started do so too.

use crate::logging;
use std::sync::OnceLock;

/// The role of a thread.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// Executes commands.
    Serving,
    /// Writes snapshots.
    Saving,
    /// Any other thread.
    Background,
}

/// A set of CPUs by number.
#[derive(Clone, Copy)]
struct CpuSet(libc::cpu_set_t);

/// The CPUs of each role; unset if no CPU list is configured.
static CPU_SETS: OnceLock<[CpuSet; 3]> = OnceLock::new();

impl CpuSet {
    fn none() -> Self {
        // SAFETY: all-zero bytes are the empty set.
        CpuSet(unsafe { std::mem::zeroed() })
    }

    /// The CPUs that the calling thread may run on.
    fn present() -> Option<Self> {
        let mut set = CpuSet::none();
        // SAFETY: the pointer refers to a set of the given size that lives through the call.
        (unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set.0) } == 0).then_some(set)
    }

    /// Restricts the calling thread to these CPUs.
    fn apply(&self) -> std::io::Result<()> {
        // SAFETY: the pointer refers to a set of the given size that lives through the call.
        match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Parses a list like `0,2-3` or `0-7:2`; the latter is every second CPU from 0 to 7.
    fn parse(list: &str) -> Option<Self> {
        let mut set = CpuSet::none();
        for part in list.split(',') {
            let (range, step) = part.split_once(':').unwrap_or((part, "1"));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last, step) = (number(first)?, number(last)?, number(step)?);
            if first > last || step == 0 || (range == first.to_string() && part.contains(':')) {
                return None;
            }
            for cpu in (first..=last).step_by(step) {
                // SAFETY: the number is below the set's size, see `number`.
                unsafe { libc::CPU_SET(cpu, &mut set.0) };
            }
        }
        Some(set)
    }
}

/// Parses the number of a CPU that fits into a set.
fn number(text: &str) -> Option<usize> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number < libc::CPU_SETSIZE as usize)
}

/// Assigns a CPU list to each [`Role`], in the order of the enum, and moves the calling thread to the CPUs of
/// background threads. Call it before any other thread starts.
pub fn begin(lists: [Option<String>; 3]) {
    if lists.iter().all(Option::is_none) {
        return;
    }
    let Some(present) = CpuSet::present() else { return };
    let read = |list: Option<String>| match list {
        None => present,
        Some(list) => CpuSet::parse(&list).unwrap_or_else(|| {
            logging::warning(format_args!("WARNING: Ignoring invalid CPU list '{list}' (expected e.g. 0-3,8)"));
            present
        }),
    };
    // Set once, at startup.
    let _ = CPU_SETS.set(lists.map(read));
    set(Role::Background);
}

/// Restricts the calling thread to the CPUs of its role.
pub fn set(role: Role) {
    if let Some(sets) = CPU_SETS.get()
        && let Err(error) = sets[role as usize].apply()
    {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread");
        logging::warning(format_args!("WARNING: Cannot pin thread '{name}' to its configured CPU list: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str) -> Option<Vec<usize>> {
        let set = CpuSet::parse(list)?;
        // SAFETY: the numbers are below the set's size.
        Some((0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set.0) }).collect())
    }

    #[test]
    fn cpu_lists_have_numbers_ranges_and_steps() {
        assert_eq!(read("0"), Some(vec![0]));
        assert_eq!(read("0,2-3"), Some(vec![0, 2, 3]));
        assert_eq!(read("0-7:2,1"), Some(vec![0, 1, 2, 4, 6]));
        assert_eq!(read("5-5"), Some(vec![5]));
        for list in ["", "a", "1,", "3-1", "0-3:0", "1-", "-1", "+1", "1024", "99999999999999999999", "1:2", "0-1:2:3"]
        {
            assert_eq!(read(list), None, "{list}");
        }
    }
}
