//! Memory statistics of the process: the allocator's figures, the kernel's, and the overhead beyond the data.
//!
//! The memory in use is available at any time, see [`allocation_stats`]. The allocator, jemalloc, computes all other
//! figures on request. That takes some ten microseconds, so it is done once per report, never during commands.
//!
//! Invariants of the unsafe code here: each name is that of a documented control of the allocator, ends with a zero
//! byte, and is read with the type documented for it.

mod ahead;
mod allocation_stats;
mod returning;
mod slabs;

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tikv_jemalloc_ctl::{epoch, raw, stats};

pub use ahead::Ahead;
pub use allocation_stats::{in_use, register_thread, settle, settled, thread_balance, unsettle};
pub use returning::Returning;
pub use slabs::Slabs;

/// The allocator's index for all of its arenas together.
const ALL_ARENAS: usize = 4096;

/// The allocator's and the kernel's figures, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Bytes that the server has in use.
    pub used: usize,
    /// Allocated bytes including the per-thread caches.
    pub allocated: usize,
    /// Bytes of pages that contain allocations.
    pub active: usize,
    /// Bytes of pages that the allocator keeps in memory.
    pub resident: usize,
    /// Bytes of pages that the kernel may reclaim.
    pub muzzy: usize,
    /// Free bytes within the slabs of small allocations.
    pub small_free: usize,
    /// Resident set size of the process.
    pub rss: usize,
}

impl Figures {
    /// Reads the current figures.
    pub fn read() -> Self {
        refresh();
        let rss = resident_set();
        // Reading fails only for controls that this build of the allocator lacks.
        let allocated = stats::allocated::read().unwrap_or(0);
        Figures {
            used: in_use(),
            allocated,
            active: stats::active::read().unwrap_or(0),
            resident: stats::resident::read().unwrap_or(0),
            muzzy: read_control::<usize>(format!("stats.arenas.{ALL_ARENAS}.pmuzzy\0")).unwrap_or(0) * page_size(),
            small_free: small_free().unwrap_or(0),
            rss,
        }
    }
}

fn refresh() {
    // On failure, the figures are those of the previous call.
    let _ = epoch::advance();
}

/// Returns unused pages of the allocator to the kernel.
pub fn purge() -> bool {
    // SAFETY: the control exists and carries no data.
    let is_flushed = unsafe { command(b"thread.tcache.flush\0") };
    is_flushed && purge_pages()
}

/// The same without the thread's cache of small allocations.
pub fn purge_pages() -> bool {
    let purge = format!("arena.{ALL_ARENAS}.purge\0");
    // SAFETY: the control exists and carries no data.
    unsafe { command(purge.as_bytes()) }
}

/// Lets a thread of the allocator return unused pages to the kernel, or those threads that allocate and free. Returning
/// the pages of a gigabyte takes some 150 ms, for which a worker would not answer. False if the allocator cannot do it.
pub fn purge_in_background(enabled: bool) -> bool {
    // SAFETY: the control is a flag.
    unsafe { raw::write(b"background_thread\0", enabled) }.is_ok()
}

/// The allocator's own statistics report.
pub fn report() -> Vec<u8> {
    let mut text = Vec::new();
    // Writing to memory does not fail.
    let _ = tikv_jemalloc_ctl::stats_print::stats_print(&mut text, Default::default());
    text
}

/// Runs a control that carries no data.
///
/// # Safety
/// The name ends with a zero byte and belongs to a control that neither reads nor writes a value.
unsafe fn command(name: &[u8]) -> bool {
    use std::ptr::null_mut;
    // SAFETY: guaranteed by the caller; no value is passed in either direction.
    unsafe { tikv_jemalloc_sys::mallctl(name.as_ptr().cast(), null_mut(), null_mut(), null_mut(), 0) == 0 }
}

fn read_control<T: Copy>(name: String) -> Option<T> {
    debug_assert!(name.ends_with('\0'));
    // SAFETY: by the module's invariants; a size that does not fit the type is an error.
    unsafe { raw::read(name.as_bytes()) }.ok()
}

/// Reads a control of the allocator that is a number of any width.
pub fn control_number(name: &[u8]) -> Option<i64> {
    // A NUL byte would end the name early, and no control has such a long name.
    if name.contains(&0) || name.len() > 256 {
        return None;
    }
    let name = format!("{}\0", std::str::from_utf8(name).ok()?);
    let (wide, narrow, flag) = (read_control::<i64>, read_control::<i32>, read_control::<u8>);
    wide(name.clone()).or_else(|| narrow(name.clone()).map(i64::from)).or_else(|| flag(name).map(i64::from))
}

/// Reads a control of the allocator that is a string.
pub fn control_text(name: &[u8]) -> Option<Vec<u8>> {
    /// Reading any other control here would treat a number as an address.
    const STRING_CONTROLS: [&str; 7] = [
        "version",
        "config.malloc_conf",
        "opt.dss",
        "opt.metadata_thp",
        "opt.percpu_arena",
        "opt.thp",
        "opt.zero_realloc",
    ];
    let name = STRING_CONTROLS.into_iter().find(|known| known.as_bytes() == name)?;
    let text: *const c_char = read_control(format!("{name}\0"))?;
    // SAFETY: these controls point to strings that end with a zero byte and live as long as the process.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes().to_vec())
}

/// Free bytes within the slabs of small allocations.
fn small_free() -> Option<usize> {
    let bins: u32 = read_control("arenas.nbins\0".into())?;
    (0..bins).map(small_free_in).sum()
}

fn small_free_in(bin: u32) -> Option<usize> {
    let size: usize = read_control(format!("arenas.bin.{bin}.size\0"))?;
    let regions: u32 = read_control(format!("arenas.bin.{bin}.nregs\0"))?;
    let slabs: usize = read_control(format!("stats.arenas.{ALL_ARENAS}.bins.{bin}.curslabs\0"))?;
    let taken: usize = read_control(format!("stats.arenas.{ALL_ARENAS}.bins.{bin}.curregs\0"))?;
    Some((slabs * regions as usize).saturating_sub(taken) * size)
}

fn resident_set() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * page_size()
}

fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    // SAFETY: the call only returns a number.
    *SIZE.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

/// Physical memory of the machine.
pub fn system_total() -> usize {
    // SAFETY: the call only returns a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) }).unwrap_or(0) * page_size()
}

/// Peak and initial memory use of the process.
#[derive(Default)]
pub struct Monitor {
    startup: AtomicUsize,
    peak: AtomicUsize,
}

impl Monitor {
    /// Records the memory in use at startup, before any data is added.
    pub fn record_startup(&self) {
        let now = in_use();
        self.startup.store(now, Ordering::Relaxed);
        self.note(now);
    }

    /// Records the memory in use now.
    pub fn sample(&self) {
        self.note(in_use());
    }

    /// Updates the peak.
    pub fn note(&self, used: usize) {
        self.peak.fetch_max(used, Ordering::Relaxed);
    }

    /// Memory in use at startup.
    pub fn startup(&self) -> usize {
        self.startup.load(Ordering::Relaxed)
    }

    /// The highest memory use recorded.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }
}

/// Free memory within the slabs of small allocations.
#[derive(Clone, Copy, Debug)]
pub struct SlabFragmentation {
    /// Bytes.
    pub bytes: usize,
    /// Percent of the allocated bytes.
    pub percent: f64,
}

impl SlabFragmentation {
    /// Measures the current value, which takes some ten microseconds.
    pub fn measure() -> Self {
        refresh();
        let (bytes, allocated) = (small_free().unwrap_or(0), stats::allocated::read().unwrap_or(0));
        SlabFragmentation { bytes, percent: percent(bytes, allocated) }
    }
}

/// The ratio of `part` to `whole`; 0 if `whole` is 0.
pub fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// `part` in percent of `whole`; 0 if `whole` is 0.
pub fn percent(part: usize, whole: usize) -> f64 {
    ratio(part, whole) * 100.0
}

/// How much one amount of memory exceeds another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Excess {
    /// The ratio of both; 0 if the other amount is 0.
    pub ratio: f64,
    /// The difference in bytes.
    pub bytes: i64,
}

/// The excess of `more` over `less`.
pub fn excess(more: usize, less: usize) -> Excess {
    Excess { ratio: ratio(more, less), bytes: more as i64 - less as i64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_figures_are_ordered() {
        // The allocator computes the figures one after another while other threads allocate and free.
        let is_consistent =
            |figures: &Figures| figures.allocated <= figures.active && figures.active <= figures.resident;
        let figures = (0..1000)
            .map(|_| Figures::read())
            .find(is_consistent)
            .expect("figures of a moment in which little happens");
        assert!(figures.rss > 1 << 20 && figures.rss < system_total(), "{figures:?}");
    }

    #[test]
    fn the_allocator_can_be_purged_and_reports() {
        assert!(purge());
        assert!(String::from_utf8_lossy(&report()).contains("jemalloc statistics"));
        assert!(small_free().is_some());
    }

    #[test]
    fn allocator_controls_can_be_read_by_name() {
        assert_eq!(control_number(b"arenas.page"), Some(page_size() as i64));
        assert_eq!(control_number(b"arenas.quantum"), Some(kvick_store::memory::QUANTUM as i64));
        assert_eq!(control_number(b"opt.abort"), Some(0));
        assert!(
            [&b"no.such"[..], b"", b"arenas.page\0", b"version\xff"].iter().all(|name| control_number(name).is_none())
        );
        assert!(control_text(b"version").is_some_and(|version| version.starts_with(b"5.")));
        assert!(control_text(b"arenas.page").is_none());
    }

    #[test]
    fn the_peak_only_rises() {
        let monitor = Monitor::default();
        [5, 9, 2].into_iter().for_each(|bytes| monitor.note(bytes));
        assert_eq!(monitor.peak(), 9);
        monitor.record_startup();
        assert!(monitor.peak() >= monitor.startup());
    }
}
