//! On which processors threads may run: `server-cpulist` for those that execute commands, `bgsave-cpulist` for the one that
//! walks through snapshots, `bio-cpulist` for the others.
//!
//! A thread begins where the one that started it may run, so each of the first two kinds says [what it is](set) when it
//! begins, and so does a background thread that a worker may have started.

use crate::logging;
use std::sync::OnceLock;

/// What a thread is for.
#[derive(Clone, Copy, Debug)]
pub enum Role {
    /// It executes commands.
    Serving,
    /// It writes snapshots.
    Saving,
    /// Something else.
    Background,
}

/// Processors by their numbers.
#[derive(Clone, Copy)]
struct Processors(libc::cpu_set_t);

/// Where each role may run; there is none as long as no setting says anything.
static PLACES: OnceLock<[Processors; 3]> = OnceLock::new();

impl Processors {
    fn none() -> Self {
        // SAFETY: all-zero bytes are the empty set.
        Processors(unsafe { std::mem::zeroed() })
    }

    /// Those on which the calling thread may run.
    fn present() -> Option<Self> {
        let mut set = Processors::none();
        // SAFETY: the set is as large as is said, and lives through the call.
        (unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set.0) } == 0).then_some(set)
    }

    /// Has the calling thread run on these.
    fn apply(&self) -> std::io::Result<()> {
        // SAFETY: the set is as large as is said, and lives through the call.
        match unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Reads a list like `0,2-3` or `0-7:2`, whose last is every second from 0 to 7.
    fn parse(list: &str) -> Option<Self> {
        let mut set = Processors::none();
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

/// The number of a processor that a set can have.
fn number(text: &str) -> Option<usize> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number < libc::CPU_SETSIZE as usize)
}

/// Assigns each [`Role`], in its order, a CPU list, and moves the calling thread to the CPUs of background threads. Call
/// it before any other thread starts.
pub fn begin(lists: [Option<String>; 3]) {
    if lists.iter().all(Option::is_none) {
        return;
    }
    let Some(present) = Processors::present() else { return };
    let read = |list: Option<String>| match list {
        None => present,
        Some(list) => Processors::parse(&list).unwrap_or_else(|| {
            logging::warning(format_args!("WARNING: Ignoring invalid CPU list '{list}' (expected e.g. 0-3,8)"));
            present
        }),
    };
    // It is set once: there is one beginning.
    let _ = PLACES.set(lists.map(read));
    set(Role::Background);
}

/// Has the calling thread run where threads of its role may.
pub fn set(role: Role) {
    if let Some(places) = PLACES.get()
        && let Err(error) = places[role as usize].apply()
    {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread");
        logging::warning(format_args!("WARNING: {name} cannot run on the processors that the settings name: {error}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str) -> Option<Vec<usize>> {
        let set = Processors::parse(list)?;
        // SAFETY: the numbers are below the set's size.
        Some((0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set.0) }).collect())
    }

    #[test]
    fn lists_name_processors_ranges_and_steps() {
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
