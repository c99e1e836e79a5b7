//! Checks of the machine's settings, at startup and by `--check-system`.
//!
//! Snapshots do not fork, so Linux's default overcommit heuristic causes no warning; strict accounting does, since it
//! refuses memory that is available.
//!
//! Huge pages are disabled: they do not make random reads measurably faster, and the kernel clears two megabytes on the
//! first access to a page. That takes at least a tenth of a millisecond, and several milliseconds if a virtual machine
//! must first obtain the memory from its host; the worker waits for it.

use kvick_config::Values;
use kvick_config::tables::network::TCP_BACKLOG;
use kvick_config::tables::process::DISABLE_THP;
use kvick_runtime::affinity::{Device, Machine, default_workers};
use kvick_runtime::clock;
use kvick_runtime::logging;
use std::fmt::Write;
use std::fs;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

const CLOCKSOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
const OVERCOMMIT: &str = "/proc/sys/vm/overcommit_memory";
const HUGE_PAGES: &str = "/sys/kernel/mm/transparent_hugepage/enabled";
const BACKLOG_MAX: &str = "/proc/sys/net/core/somaxconn";

/// The outcome of a check.
enum Outcome {
    /// All is well.
    Fine,
    /// The check was impossible, or does not apply here.
    Skipped,
    /// A problem, and how to fix it.
    Bad(String),
}

type Check = fn() -> Outcome;

/// `--check-system`: runs all checks and prints their outcomes. Fails if one of them fails.
pub fn report() -> ExitCode {
    clock::calibrate();
    let checks: [(&str, Check); 4] = [
        ("slow-clocksource", clock_speed),
        ("xen-clocksource", xen_clock),
        ("overcommit", overcommit),
        ("THP", huge_pages),
    ];
    let mut code = ExitCode::SUCCESS;
    for (name, check) in checks {
        match check() {
            Outcome::Fine => println!("[{name}]...OK"),
            Outcome::Skipped => println!("[{name}]...skipped"),
            Outcome::Bad(advice) => {
                println!("[{name}]...WARNING:\n{advice}");
                code = ExitCode::FAILURE;
            }
        }
    }
    print!("{}", placement(Machine::look().as_ref()));
    code
}

/// Tells which CPUs serve interrupts of network devices, and how many workers can leave them alone.
fn placement(machine: Option<&Machine>) -> String {
    let Some(machine) = machine else { return "[CPUs]...skipped\n".into() };
    let mut text = "[CPUs]...OK\n".to_string();
    for Device { name, cpus } in &machine.devices {
        _ = writeln!(text, "Interrupts of {name}: CPUs {cpus}.");
    }
    let (present, interrupted) = (machine.present, machine.interrupted());
    let rest = present.difference(&interrupted);
    _ = match (interrupted.is_empty(), rest.len()) {
        (true, _) => writeln!(text, "Workers run on CPUs {present}: none of them serves interrupts of the network."),
        (false, 0) => writeln!(text, "Workers run on CPUs {present}: all of them serve interrupts of the network."),
        (false, count) => writeln!(
            text,
            "Workers run on CPUs {rest}, without those of the network, if io-threads is at most {count}, and on CPUs \
             {present} otherwise."
        ),
    };
    _ = writeln!(text, "io-threads is {} by default. server-cpulist sets the CPUs of workers.", default_workers());
    text
}

/// Runs the checks of every startup.
pub fn warn() {
    for outcome in [xen_clock(), overcommit()] {
        if let Outcome::Bad(advice) = outcome {
            logging::warning(format_args!("WARNING {advice}"));
        }
    }
}

/// Warns if the kernel's listen backlog is shorter than the setting.
pub fn warn_of_backlog(values: &Values) {
    let wanted = values.read(TCP_BACKLOG);
    let allowed = fs::read_to_string(BACKLOG_MAX).ok().and_then(|text| text.trim().parse::<i32>().ok());
    if let Some(allowed) = allowed.filter(|allowed| (1..wanted).contains(allowed)) {
        logging::warning(format_args!(
            "WARNING: The TCP backlog setting of {wanted} cannot be enforced because {BACKLOG_MAX} is set to the lower \
             value of {allowed}."
        ));
    }
}

/// Measures how much of the time spent reading the clock is spent in the kernel.
fn clock_speed() -> Outcome {
    const WHILE: Duration = Duration::from_millis(50);
    let Some(before) = cpu_times() else { return Outcome::Skipped };
    let began = Instant::now();
    while began.elapsed() < WHILE {
        std::hint::black_box(SystemTime::now());
    }
    let Some(after) = cpu_times() else { return Outcome::Skipped };
    let (user, kernel) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
    if kernel * 10 <= user + kernel {
        return Outcome::Fine;
    }
    let source = fs::read_to_string(CLOCKSOURCE).unwrap_or_default();
    Outcome::Bad(format!(
        "Reading the clock takes a system call on this machine, which slows every command down. The clock source is \
         '{}'. Choose one that needs no system call, such as tsc or kvm-clock: write its name to {CLOCKSOURCE}, or set \
         the kernel parameter 'clocksource='.",
        source.trim()
    ))
}

/// User and system time of this process.
fn cpu_times() -> Option<(Duration, Duration)> {
    // SAFETY: all-zero bytes are a valid `rusage`.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the argument points to a value of ours that lives through the call.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) } != 0 {
        return None;
    }
    let duration = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Some((duration(usage.ru_utime), duration(usage.ru_stime)))
}

fn xen_clock() -> Outcome {
    match fs::read_to_string(CLOCKSOURCE) {
        Err(_) => Outcome::Skipped,
        Ok(source) if source.trim() == "xen" => Outcome::Bad(
            "The clock source of this machine is 'xen', which may be slow. Run 'kvick-server --check-system' to \
             measure it: see the result of [slow-clocksource]."
                .into(),
        ),
        Ok(_) => Outcome::Fine,
    }
}

fn overcommit() -> Outcome {
    match fs::read_to_string(OVERCOMMIT) {
        Err(_) => Outcome::Skipped,
        Ok(mode) if mode.trim() == "2" => Outcome::Bad(
            "Memory overcommit is disabled (vm.overcommit_memory = 2), so allocations may fail although memory is \
             free. Run 'sysctl vm.overcommit_memory=1', and add 'vm.overcommit_memory = 1' to /etc/sysctl.conf to keep \
             the setting after a reboot."
                .into(),
        ),
        Ok(_) => Outcome::Fine,
    }
}

fn huge_pages() -> Outcome {
    match fs::read_to_string(HUGE_PAGES) {
        Err(_) => Outcome::Skipped,
        Ok(_) if disable_huge_pages() => Outcome::Fine,
        Ok(modes) if modes.contains("[always]") => Outcome::Bad(format!(
            "Transparent huge pages are enabled for all processes, and the server cannot disable them for itself. They \
             cause latency, because the kernel clears a whole huge page on its first use. Run 'echo madvise > \
             {HUGE_PAGES}' as root, add the command to the boot scripts, and restart the server."
        )),
        Ok(_) => Outcome::Fine,
    }
}

/// Disables huge pages for this process, unless `disable-thp no` is set.
pub fn turn_off_huge_pages(values: &Values) {
    if values.read(DISABLE_THP)
        && let Outcome::Bad(advice) = huge_pages()
    {
        logging::warning(format_args!("WARNING {advice}"));
    }
}

/// Disables huge pages. Returns whether the kernel accepted it.
fn disable_huge_pages() -> bool {
    // SAFETY: the call takes numbers alone, and changes nothing but how the kernel maps what is allocated.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_runtime::affinity::CpuSet;

    #[test]
    fn placement_tells_how_many_workers_leave_the_network_alone() {
        let set = |list: &str| CpuSet::parse(list).expect("a list");
        let text = |lists: &[&str]| {
            let devices = lists.iter().map(|list| Device { name: "eth0".into(), cpus: set(list) }).collect();
            placement(Some(&Machine { present: set("0-7"), devices }))
        };
        let some = text(&["0-1"]);
        assert!(some.contains("Interrupts of eth0: CPUs 0-1.\n"), "{some}");
        assert!(
            some.contains("on CPUs 2-7, without those of the network, if io-threads is at most 6, and on"),
            "{some}"
        );
        assert!(text(&["0-9"]).contains("Workers run on CPUs 0-7: all of them serve"));
        assert!(text(&[]).contains("Workers run on CPUs 0-7: none of them serves"));
        assert_eq!(placement(None), "[CPUs]...skipped\n");
    }
}
