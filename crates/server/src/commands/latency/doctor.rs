//! LATENCY DOCTOR: the slow events, and what to do about them. Events and limits are those of the reference.

use kvick_config::Values;
use kvick_config::tables::{logging, persistence, process};
use kvick_config::words::AppendFsync;
use kvick_core::latency::Series;
use std::collections::BTreeMap;

/// A sufficient rate of background passes for expiry.
const HZ_SUFFICIENT: u32 = 100;

/// The settings that advice depends on, and the state of the process.
pub(super) struct Circumstances {
    threshold_ms: u64,
    /// The limit of the slow log in microseconds; `None` if it records nothing.
    slow_log_us: Option<i64>,
    hz: u32,
    syncs_always: bool,
    /// Whether the kernel has given the process huge pages.
    has_huge_pages: bool,
}

impl Circumstances {
    pub(super) fn of(values: &Values) -> Self {
        let slow_us = values.read(logging::COMMANDLOG_EXECUTION_SLOWER_THAN);
        let records = slow_us >= 0 && values.read(logging::COMMANDLOG_SLOW_EXECUTION_MAX_LEN) > 0;
        Circumstances {
            threshold_ms: values.read(logging::LATENCY_MONITOR_THRESHOLD),
            slow_log_us: records.then_some(slow_us),
            hz: values.read(process::HZ),
            syncs_always: values.read(persistence::APPENDFSYNC) == AppendFsync::Always,
            // The process has none if it has disabled them, and asking the kernel takes long with much memory.
            has_huge_pages: !values.read(process::DISABLE_THP) && huge_page_kb() > 0,
        }
    }
}

/// Kilobytes of the process in transparent huge pages.
fn huge_page_kb() -> u64 {
    let summary = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap_or_default();
    let line = summary.lines().find_map(|line| line.strip_prefix("AnonHugePages:"));
    line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse().ok()).unwrap_or(0)
}

/// The report. `now` is the Unix time in seconds.
pub(super) fn report(all: &BTreeMap<&'static str, Series>, circumstances: &Circumstances, now: i64) -> String {
    if all.is_empty() && circumstances.threshold_ms == 0 {
        return "Latency monitoring is disabled. Run \"CONFIG SET latency-monitor-threshold <milliseconds>\" to \
                enable it.\n"
            .into();
    }
    let advice = advice(|event| all.contains_key(event), circumstances);
    let mut report = String::new();
    if !all.is_empty() {
        report += "Latency spikes were observed.\n\n";
    } else if advice.is_empty() {
        return "No latency spikes were observed.\n".into();
    }
    for (number, (event, series)) in all.iter().enumerate() {
        let summary = series.summary(now);
        report += &format!(
            "{}. {event}: {} latency spikes (average {} ms, mean deviation {} ms, period {:.2} s). The longest took {} \
             ms.\n",
            number + 1,
            series.samples.len(),
            summary.average_ms,
            summary.deviation_ms,
            summary.period_s,
            series.max_ms
        );
    }
    if advice.is_empty() {
        return report + "\nThere is no general advice for these events.\n";
    }
    report += "\nAdvice:\n";
    advice.iter().for_each(|text| report += &format!("\n- {text}\n"));
    report
}

/// The advice for the events that were seen.
fn advice(seen: impl Fn(&str) -> bool, circumstances: &Circumstances) -> Vec<String> {
    let Circumstances { threshold_ms, slow_log_us, hz, syncs_always, has_huge_pages } = *circumstances;
    let any = |events: &[&str]| events.iter().any(|event| seen(event));
    let threshold_us = threshold_ms.saturating_mul(1000);
    let is_slow_log_coarse = slow_log_us.is_some_and(|us| us / 1000 > threshold_ms as i64);
    let advice = [
        (
            seen("command") && (slow_log_us.is_none() || is_slow_log_coarse),
            &*format!(
                "The slow log does not record all of these commands. Run \"CONFIG SET slowlog-log-slower-than \
                {threshold_us}\" to record them."
            ),
        ),
        (seen("command"), "The slow log shows which commands were slow: see SLOWLOG GET."),
        (
            seen("fast-command"),
            "Fast commands were slow, so the process does not get enough CPU time. Check for other processes on this \
             machine and other guests of the host. valkey-cli --intrinsic-latency measures their effect.",
        ),
        (
            any(&["aof-write-pending-fsync", "aof-write-alone", "aof-fstat", "rdb-unlink-temp-file", "aof-rename"]),
            "The disk is slow. Use a local disk: network storage has a higher latency.",
        ),
        (
            any(&["aof-write-pending-fsync", "aof-write-active-child", "aof-write-alone", "aof-rename"]),
            "An SSD takes less time for fsync, snapshots and rewrites of the append-only file.",
        ),
        (
            any(&["aof-write-pending-fsync", "aof-write-active-child", "aof-write-alone", "aof-rename"]),
            "An ext4 file system with data=writeback is faster than with data=ordered, but after a power failure the \
             end of the append-only file may be damaged and need kvick-check-aof.",
        ),
        (
            any(&["aof-write-pending-fsync", "aof-fstat", "rdb-unlink-temp-file"]),
            "Check which other processes use the disk, including other servers of this kind.",
        ),
        (
            seen("aof-write-active-child"),
            "If losing some seconds of writes is acceptable, set no-appendfsync-on-rewrite: then the file is not \
             synced during saves and rewrites.",
        ),
        (
            seen("aof-fsync-always") && syncs_always,
            "appendfsync is \"always\", so that each write waits for the disk. \"everysec\" does not, and may lose \
             the last second.",
        ),
        (
            seen("aof-rename"),
            "Much is written while the append-only file is rewritten. Fewer and larger commands, or scripts, make it \
             grow more slowly.",
        ),
        (
            seen("expire-cycle") && hz < HZ_SUFFICIENT,
            "Cycles of active expiry are long. Run \"CONFIG SET hz 100\" to spread the work.",
        ),
        (
            any(&["command", "expire-cycle", "eviction-del"]),
            "Deleting large values may be slow. Use smaller values, UNLINK, or the lazyfree settings.",
        ),
        (
            seen("eviction-cycle"),
            "Many keys were evicted at once. The usual reasons are a lower maxmemory, commands that store large \
             results, and keys that arrive from other servers.",
        ),
        (
            has_huge_pages,
            "The kernel gives this process transparent huge pages, which make some page faults slow. Set \"disable-thp \
             yes\", or write \"never\" to /sys/kernel/mm/transparent_hugepage/enabled, and restart the server.",
        ),
    ];
    advice.iter().filter(|(applies, _)| *applies).map(|(_, text)| text.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_core::latency::LatencyMonitor;

    fn calm() -> Circumstances {
        Circumstances { threshold_ms: 10, slow_log_us: Some(10_000), hz: 10, syncs_always: true, has_huge_pages: false }
    }

    fn report_of(events: &[&'static str], circumstances: &Circumstances) -> String {
        let monitor = LatencyMonitor::default();
        events.iter().for_each(|event| monitor.record(event, 20, 1));
        report(&monitor.all(), circumstances, kvick_runtime::clock::unix_ms() / 1000)
    }

    #[track_caller]
    fn check(events: &[&'static str], circumstances: &Circumstances, expected: &[&str]) {
        let report = report_of(events, circumstances);
        let (_, advice) = report.split_once("\nAdvice:\n").expect("advice");
        assert_eq!(advice.matches("\n- ").count(), expected.len(), "{events:?}: {report}");
        for words in expected {
            assert!(advice.contains(words), "{events:?}, {words}: {report}");
        }
    }

    #[test]
    fn each_event_has_its_advice() {
        check(&["command"], &calm(), &["SLOWLOG GET", "UNLINK"]);
        let coarse = Circumstances { slow_log_us: Some(11_000), ..calm() };
        check(&["command"], &coarse, &["slowlog-log-slower-than 10000", "SLOWLOG GET", "UNLINK"]);
        let off = Circumstances { slow_log_us: None, ..calm() };
        check(&["command"], &off, &["slowlog-log-slower-than 10000", "SLOWLOG GET", "UNLINK"]);
        check(&["fast-command"], &calm(), &["CPU time"]);
        check(&["aof-write-pending-fsync"], &calm(), &["local disk", "other processes", "SSD", "data=writeback"]);
        check(&["aof-write-active-child"], &calm(), &["no-appendfsync-on-rewrite", "SSD", "data=writeback"]);
        check(&["aof-write-alone"], &calm(), &["local disk", "SSD", "data=writeback"]);
        check(&["aof-fsync-always"], &calm(), &["appendfsync"]);
        for event in ["aof-fstat", "rdb-unlink-temp-file"] {
            check(&[event], &calm(), &["local disk", "other processes"]);
        }
        check(&["aof-rename"], &calm(), &["rewritten", "local disk", "SSD", "data=writeback"]);
        check(&["expire-cycle"], &calm(), &["hz 100", "UNLINK"]);
        check(&["expire-cycle"], &Circumstances { hz: 100, ..calm() }, &["UNLINK"]);
        check(&["eviction-del", "eviction-cycle"], &calm(), &["UNLINK", "evicted at once"]);
        check(&[], &Circumstances { has_huge_pages: true, ..calm() }, &["huge pages"]);
    }

    #[test]
    fn a_report_without_advice_says_so() {
        assert!(report_of(&[], &Circumstances { threshold_ms: 0, ..calm() }).starts_with("Latency monitoring is dis"));
        assert_eq!(report_of(&[], &calm()), "No latency spikes were observed.\n");
        let relaxed = Circumstances { syncs_always: false, ..calm() };
        let report = report_of(&["aof-fsync-always", "aof-write"], &relaxed);
        assert!(report.contains("1. aof-fsync-always: 1 latency spikes (average 20 ms, "), "{report}");
        assert!(report.contains("2. aof-write: 1 latency spikes ") && report.contains("no general advice"), "{report}");
    }
}
