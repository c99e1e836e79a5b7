//! CPU affinity of threads: `server-cpulist` for the threads that execute commands, `bgsave-cpulist` for the thread
//! that walks snapshots, `bio-cpulist` for all other threads.
//!
//! Without `server-cpulist`, the threads that execute commands leave the CPUs alone that serve the interrupts of
//! network devices, as long as there are enough others.
//!
//! A new thread inherits the affinity of its parent, so threads of the first two roles [set their role](set) when they
//! start. Background threads that a worker may have started do so too.

mod cpu_set;
mod interrupts;

pub use cpu_set::CpuSet;
pub use interrupts::Device;

use crate::logging;
use parking_lot::Mutex;
use std::cell::RefCell;
use std::num::NonZero;
use std::path::Path;
use std::sync::OnceLock;

/// With fewer CPUs than this, there are as many workers as CPUs unless the configuration says otherwise.
const CPUS_TO_SPARE_MIN: usize = 8;
/// More of the CPUs than one of this many are not left alone by default.
const CPUS_PER_SPARED_CPU: usize = 4;

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

/// The CPUs of each role.
struct Plan {
    sets: [CpuSet; 3],
    /// The CPUs of serving threads if they leave none alone; none if they are configured.
    unspared: Option<CpuSet>,
    /// Serving threads, by their numbers in the kernel.
    serving: Vec<libc::pid_t>,
}

/// Unset if no CPU list is configured and no CPU is to be left alone.
static PLAN: OnceLock<Mutex<Plan>> = OnceLock::new();

/// CPUs that this process may use, and those of network devices.
pub struct Machine {
    /// The CPUs of this process.
    pub present: CpuSet,
    /// Network devices with interrupts.
    pub devices: Vec<Device>,
}

impl Machine {
    /// Looks at the machine; `None` if the kernel does not tell.
    pub fn look() -> Option<Machine> {
        Some(Machine { present: CpuSet::present()?, devices: interrupts::network_devices(Path::new("/")) })
    }

    /// The CPUs of this process that serve interrupts of network devices.
    pub fn interrupted(&self) -> CpuSet {
        let mut all = CpuSet::none();
        self.devices.iter().for_each(|device| all.extend(&device.cpus));
        self.present.intersection(&all)
    }

    /// The CPUs for this number of workers, if some can be left alone.
    pub fn spared(&self, workers: usize) -> Option<CpuSet> {
        let rest = self.present.difference(&self.interrupted());
        (rest != self.present && rest.len() >= workers.max(1)).then_some(rest)
    }

    /// The number of workers without a setting: `cores`, without the CPUs of network devices if those are few.
    pub fn default_workers(&self, cores: usize) -> usize {
        let spared = self.interrupted().len();
        let is_few = self.present.len() >= CPUS_TO_SPARE_MIN && spared * CPUS_PER_SPARED_CPU <= self.present.len();
        if is_few { cores.min(self.present.len() - spared) } else { cores }
    }
}

/// The number of workers without a setting.
pub fn default_workers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    if cores < CPUS_TO_SPARE_MIN {
        return cores;
    }
    Machine::look().map_or(cores, |machine| machine.default_workers(cores))
}

/// Assigns a CPU list to each [`Role`], in the order of the enum, and moves the calling thread to the CPUs of
/// background threads. Call it before any other thread starts. `workers` is the number of active workers at most.
pub fn begin(lists: [Option<String>; 3], workers: usize) {
    let Some(machine) = Machine::look() else { return };
    let is_automatic = lists[Role::Serving as usize].is_none();
    if lists.iter().all(Option::is_none) && machine.interrupted().is_empty() {
        return;
    }
    let read = |list: Option<String>| match list {
        None => machine.present,
        Some(list) => CpuSet::parse(&list).unwrap_or_else(|| {
            logging::warning(format_args!("WARNING: Ignoring invalid CPU list '{list}' (expected e.g. 0-3,8)"));
            machine.present
        }),
    };
    let plan = Plan { sets: lists.map(read), unspared: is_automatic.then_some(machine.present), serving: Vec::new() };
    // Set once, at startup.
    let _ = PLAN.set(Mutex::new(plan));
    adapt(workers);
    set(Role::Background);
}

/// Chooses the CPUs of serving threads for this number of workers at most, unless they are configured.
pub fn adapt(workers: usize) {
    let Some(plan) = PLAN.get() else { return };
    let mut plan = plan.lock();
    let Some(unspared) = plan.unspared else { return };
    let Some(devices) = Machine::look().map(|machine| machine.devices) else { return };
    let machine = Machine { present: unspared, devices };
    let spared = machine.spared(workers);
    let set = spared.unwrap_or(unspared);
    if std::mem::replace(&mut plan.sets[Role::Serving as usize], set) == set {
        return;
    }
    match spared {
        Some(set) => logging::notice(format_args!(
            "Workers run on CPUs {set}: CPUs {} serve the interrupts of network devices",
            machine.interrupted()
        )),
        None => logging::notice(format_args!("Workers run on all CPUs: {workers} of them leave none to the network")),
    }
    // A thread that ends meanwhile needs no CPU.
    plan.serving.iter().for_each(|thread| _ = set.apply(*thread));
}

/// Restricts the calling thread to the CPUs of its role.
pub fn set(role: Role) {
    let Some(plan) = PLAN.get() else { return };
    let mut plan = plan.lock();
    if matches!(role, Role::Serving) {
        // SAFETY: the call has no arguments.
        let number = unsafe { libc::gettid() };
        plan.serving.push(number);
        SERVING.with(|serving| *serving.borrow_mut() = Some(Serving(number)));
    }
    if let Err(error) = plan.sets[role as usize].apply(0) {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("a thread");
        logging::warning(format_args!("WARNING: Cannot pin thread '{name}' to its configured CPU list: {error}"));
    }
}

thread_local! {
    static SERVING: RefCell<Option<Serving>> = const { RefCell::new(None) };
}

/// A serving thread, until it ends.
struct Serving(libc::pid_t);

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(plan) = PLAN.get() {
            plan.lock().serving.retain(|thread| *thread != self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(present: &str, devices: &[&str]) -> Machine {
        let set = |list: &&str| CpuSet::parse(list).expect("a list");
        let devices = devices.iter().map(|list| Device { name: "eth".into(), cpus: set(list) }).collect();
        Machine { present: set(&present), devices }
    }

    #[test]
    fn workers_leave_the_cpus_of_network_devices_alone_if_there_are_enough_others() {
        let spared = |machine: &Machine, workers| machine.spared(workers).map(|set| set.to_string());
        let eight = machine("0-7", &["0", "0-1", "9"]);
        assert_eq!(spared(&eight, 1).as_deref(), Some("2-7"));
        assert_eq!(spared(&eight, 6).as_deref(), Some("2-7"));
        assert_eq!(spared(&eight, 7), None);
        // Each CPU has a queue of the device, or none of this process.
        assert_eq!(spared(&machine("0-7", &["0-7"]), 1), None);
        assert_eq!(spared(&machine("4-7", &["0-1"]), 1), None);
        assert_eq!(spared(&machine("0-7", &[]), 1), None);
        assert_eq!(spared(&machine("0-1", &["1"]), 1).as_deref(), Some("0"));
    }

    #[test]
    fn by_default_few_cpus_are_left_alone() {
        assert_eq!(machine("0-7", &["0-1"]).default_workers(8), 6);
        assert_eq!(machine("0-7", &["0-2"]).default_workers(8), 8);
        assert_eq!(machine("0-3", &["0"]).default_workers(4), 4);
        assert_eq!(machine("0-63", &["0-7"]).default_workers(64), 56);
        // A limit of CPU time allows fewer than there are.
        assert_eq!(machine("0-63", &["0-7"]).default_workers(8), 8);
        assert_eq!(machine("0-63", &["0-63"]).default_workers(64), 64);
    }
}
