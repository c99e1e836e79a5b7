//! Sets of CPUs.

use std::fmt;

/// A set of CPUs by number.
#[derive(Clone, Copy)]
pub struct CpuSet(libc::cpu_set_t);

impl CpuSet {
    /// No CPU.
    pub fn none() -> Self {
        // SAFETY: all-zero bytes are the empty set.
        CpuSet(unsafe { std::mem::zeroed() })
    }

    /// The CPUs that the calling thread may run on.
    pub fn present() -> Option<Self> {
        let mut set = CpuSet::none();
        // SAFETY: the pointer refers to a set of the given size that lives through the call.
        (unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set.0) } == 0).then_some(set)
    }

    /// Restricts a thread of this process to these CPUs, the calling thread if `thread` is 0.
    pub(super) fn apply(&self, thread: libc::pid_t) -> std::io::Result<()> {
        // SAFETY: the pointer refers to a set of the given size that lives through the call.
        match unsafe { libc::sched_setaffinity(thread, size_of::<libc::cpu_set_t>(), &self.0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    }

    /// Parses a list like `0,2-3` or `0-7:2`; the latter is every second CPU from 0 to 7.
    pub fn parse(list: &str) -> Option<Self> {
        let mut set = CpuSet::none();
        for part in list.split(',') {
            let (range, step) = part.split_once(':').unwrap_or((part, "1"));
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (first, last, step) = (number(first)?, number(last)?, number(step)?);
            if first > last || step == 0 || (range == first.to_string() && part.contains(':')) {
                return None;
            }
            (first..=last).step_by(step).for_each(|cpu| set.add(cpu));
        }
        Some(set)
    }

    fn add(&mut self, cpu: usize) {
        if cpu < libc::CPU_SETSIZE as usize {
            // SAFETY: the number is below the set's size.
            unsafe { libc::CPU_SET(cpu, &mut self.0) };
        }
    }

    fn has(&self, cpu: usize) -> bool {
        // SAFETY: the number is below the set's size.
        cpu < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(cpu, &self.0) }
    }

    /// The numbers of the CPUs, in order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        (0..libc::CPU_SETSIZE as usize).filter(|cpu| self.has(*cpu))
    }

    /// How many CPUs there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Whether there is no CPU.
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Adds the CPUs of another set.
    pub fn extend(&mut self, other: &CpuSet) {
        other.iter().for_each(|cpu| self.add(cpu));
    }

    /// The CPUs that are in both sets.
    pub fn intersection(&self, other: &CpuSet) -> CpuSet {
        self.iter().filter(|cpu| other.has(*cpu)).collect()
    }

    /// The CPUs that are not in the other set.
    pub fn difference(&self, other: &CpuSet) -> CpuSet {
        self.iter().filter(|cpu| !other.has(*cpu)).collect()
    }
}

impl PartialEq for CpuSet {
    fn eq(&self, other: &CpuSet) -> bool {
        // SAFETY: the call reads both sets alone.
        unsafe { libc::CPU_EQUAL(&self.0, &other.0) }
    }
}

impl Eq for CpuSet {}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = CpuSet::none();
        cpus.into_iter().for_each(|cpu| set.add(cpu));
        set
    }
}

/// As a list like `0,2-3`.
impl fmt::Display for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let starts = self.iter().filter(|cpu| *cpu == 0 || !self.has(cpu - 1));
        for (index, first) in starts.enumerate() {
            let last = (first..).take_while(|cpu| self.has(*cpu)).last().unwrap_or(first);
            let comma = if index > 0 { "," } else { "" };
            match first == last {
                true => write!(out, "{comma}{first}")?,
                false => write!(out, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Parses the number of a CPU that fits into a set.
fn number(text: &str) -> Option<usize> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && *number < libc::CPU_SETSIZE as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(list: &str) -> Option<Vec<usize>> {
        CpuSet::parse(list).map(|set| set.iter().collect())
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

    #[test]
    fn sets_are_shown_as_the_lists_that_they_were_read_from() {
        for list in ["0", "0-3", "1,3,5-1023", "7"] {
            assert_eq!(CpuSet::parse(list).expect("a list").to_string(), list);
        }
        assert_eq!(CpuSet::none().to_string(), "");
    }

    #[test]
    fn sets_have_differences_and_intersections() {
        let (some, others) = (CpuSet::parse("0-5").expect("a list"), CpuSet::parse("4-9").expect("a list"));
        assert_eq!(some.difference(&others).to_string(), "0-3");
        assert_eq!(some.intersection(&others).to_string(), "4-5");
        assert_eq!((some.len(), some.is_empty(), some.difference(&some).is_empty()), (6, false, true));
    }
}
