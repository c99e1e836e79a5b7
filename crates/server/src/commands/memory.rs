//! MEMORY: memory use of keys and of the server.

use super::big_keys::BIGKEYS;
use super::help;
use crate::memory::Overview;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_runtime::memory::Excess;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[MEMORY];

const SURVEY_TIPS: &[&str] = &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];
/// A key's share of a table: one slot.
const SLOT: usize = size_of::<u64>();
/// Below this, memory use is not diagnosed.
const EMPTY_BYTES_MAX: usize = 5 << 20;
/// Smaller waste is ignored.
const OVERHEAD_BYTES_MIN: i64 = 10 << 20;
/// Acceptable average memory per client, in bytes.
const CLIENT_MAX: usize = 200 << 10;
/// Acceptable memory of all replicas' connections, in bytes.
const REPLICAS_MAX: usize = 10 << 20;
/// Acceptable number of cached scripts.
const SCRIPTS_MAX: usize = 1_000;

/// MEMORY
pub const MEMORY: Command<SessionHandler> = Command::container(
    Spec::new("memory", -2).doc(
        Group::Server,
        "4.0.0",
        "Depends on subcommand.",
        "A container for memory diagnostics commands.",
    ),
    &[
        BIGKEYS,
        Command::new(
            Spec::new("usage", -3)
                .flags(&[Flags::READONLY])
                .keys(&[KeySpec::at(2, &[KeyFlags::RO])])
                .doc(
                    Group::Server,
                    "4.0.0",
                    "O(N) where N is the number of samples.",
                    "Estimates the memory usage of a key.",
                )
                .args(&[Arg::key("key"), Arg::integer("count").token("SAMPLES").optional()]),
            usage,
        ),
        Command::new(
            Spec::new("stats", 2)
                .doc(Group::Server, "4.0.0", "O(1)", "Returns memory usage statistics.")
                .tips(SURVEY_TIPS),
            stats,
        ),
        Command::new(
            Spec::new("doctor", 2)
                .doc(Group::Server, "4.0.0", "O(1)", "Returns a memory problems report.")
                .tips(SURVEY_TIPS),
            doctor,
        ),
        Command::new(
            Spec::new("purge", 2)
                .flags(&[Flags::LOADING])
                .doc(
                    Group::Server,
                    "4.0.0",
                    "Depends on how much memory is allocated, could be slow",
                    "Asks the allocator to release unused memory.",
                )
                .tips(&["request_policy:all_shards", "response_policy:all_succeeded"]),
            purge,
        ),
        Command::new(
            Spec::new("malloc-stats", 2)
                .flags(&[Flags::LOADING])
                .doc(
                    Group::Server,
                    "4.0.0",
                    "Depends on how much memory is allocated, could be slow",
                    "Returns the allocator statistics.",
                )
                .tips(SURVEY_TIPS),
            malloc_stats,
        ),
        Command::new(
            Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).doc(
                Group::Server,
                "4.0.0",
                "O(1)",
                "Returns help about the subcommands.",
            ),
            memory_help,
        ),
    ],
);

/// Default number of sampled elements of MEMORY USAGE.
const SAMPLES: usize = 5;

fn usage(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let options = args.slice_from(3);
    let mut samples = SAMPLES;
    for at in (0..options.len()).step_by(2) {
        let count =
            options.get(at + 1).filter(|_| options[at].eq_ignore_ascii_case(b"samples")).ok_or(Error::SYNTAX)?;
        let count = parse_i64(count).ok_or(Error::NOT_INTEGER)?;
        samples = usize::try_from(count).map_err(|_| Error::SYNTAX)?;
    }
    let number = cx.client.db;
    let mut db = cx.db(number);
    let bytes = db.peek(db.key(&args[2])).map(|entry| entry.memory(samples) + SLOT);
    match bytes {
        Some(bytes) => cx.reply.uint(bytes as u64),
        None => cx.reply.null(),
    }
    Ok(())
}

/// A figure of MEMORY STATS.
enum Value {
    Bytes(usize),
    Signed(i64),
    Ratio(f64),
}

fn stats(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let overview = Overview::of(cx.server);
    let (before, after) = figures(&overview, cx.server.scripting.text_memory());
    cx.reply.map(before.len() + overview.databases.len() + after.len());
    reply_values(cx, &before);
    for (number, usage) in &overview.databases {
        cx.reply.bulk(format!("db.{number}").as_bytes());
        cx.reply.map(2);
        // Entries contain their expiry: there is no second table.
        reply_values(
            cx,
            &[
                ("overhead.hashtable.main", Value::Bytes(usage.table_bytes)),
                ("overhead.hashtable.expires", Value::Bytes(0)),
            ],
        );
    }
    reply_values(cx, &after);
    Ok(())
}

fn reply_values(cx: &mut Session<'_>, figures: &[(&str, Value)]) {
    for (name, figure) in figures {
        cx.reply.bulk(name.as_bytes());
        match figure {
            Value::Bytes(bytes) => cx.reply.uint(*bytes as u64),
            Value::Signed(bytes) => cx.reply.int(*bytes),
            Value::Ratio(ratio) => cx.reply.double(*ratio),
        }
    }
}

type Figures = Vec<(&'static str, Value)>;

/// The figures before and after those of the databases, and the memory of script and library sources.
fn figures(overview: &Overview, [scripts, libraries]: [usize; 2]) -> (Figures, Figures) {
    use Value::{Bytes, Ratio, Signed};
    let figures = &overview.figures;
    let (fragmentation, allocator_rss) = (overview.fragmentation(), overview.allocator_rss());
    let (rss_overhead, total) = (overview.rss_overhead(), overview.total_fragmentation());
    let before = vec![
        ("peak.allocated", Bytes(overview.peak)),
        ("total.allocated", Bytes(figures.used)),
        ("startup.allocated", Bytes(overview.startup)),
        ("replication.backlog", Bytes(overview.backlog)),
        ("replicas.repl.buffer", Bytes(overview.kept)),
        ("clients.slaves", Bytes(overview.connections.replicas)),
        ("clients.normal", Bytes(overview.connections.clients)),
        ("cluster.links", Bytes(0)),
        ("cluster.slot_import", Bytes(overview.connections.slot_imports)),
        ("cluster.slot_export", Bytes(overview.connections.slot_exports)),
        ("aof.buffer", Bytes(0)),
        ("lua.caches", Bytes(scripts)),
        ("functions.caches", Bytes(libraries)),
    ];
    let tables = overview.databases.iter().map(|(_, usage)| usage.table_bytes).sum();
    let keys = overview.keys();
    let after = vec![
        ("overhead.db.hashtable.lut", Bytes(tables)),
        ("overhead.db.hashtable.rehashing", Bytes(0)),
        ("overhead.total", Bytes(overview.overhead())),
        ("db.dict.rehashing.count", Bytes(0)),
        ("keys.count", Bytes(keys)),
        ("keys.bytes-per-key", Bytes(overview.dataset().checked_div(keys).unwrap_or(0))),
        ("dataset.bytes", Bytes(overview.dataset())),
        ("dataset.percentage", Ratio(overview.dataset_percent())),
        ("peak.percentage", Ratio(overview.peak_percent())),
        ("allocator.allocated", Bytes(figures.allocated)),
        ("allocator.active", Bytes(figures.active)),
        ("allocator.resident", Bytes(figures.resident)),
        ("allocator.muzzy", Bytes(figures.muzzy)),
        ("allocator-fragmentation.ratio", Ratio(fragmentation.ratio)),
        ("allocator-fragmentation.bytes", Signed(fragmentation.bytes)),
        ("allocator-rss.ratio", Ratio(allocator_rss.ratio)),
        ("allocator-rss.bytes", Signed(allocator_rss.bytes)),
        ("rss-overhead.ratio", Ratio(rss_overhead.ratio)),
        ("rss-overhead.bytes", Signed(rss_overhead.bytes)),
        ("fragmentation", Ratio(total.ratio)),
        ("fragmentation.bytes", Signed(total.bytes)),
    ];
    (before, after)
}

fn doctor(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let overview = Overview::of(cx.server);
    let text = diagnosis(&overview, cx.server.scripting.scripts.lock().len());
    cx.reply.verbatim(text.as_bytes(), "txt");
    Ok(())
}

/// Diagnoses memory use, with the reference's limits.
fn diagnosis(overview: &Overview, scripts: usize) -> String {
    let allocated = overview.figures.used;
    if allocated < EMPTY_BYTES_MAX {
        return "The data set is too small for a diagnosis. Run MEMORY DOCTOR again when the server has more data.\n"
            .into();
    }
    let exceeds = |excess: Excess, ratio: f64| excess.ratio > ratio && excess.bytes > OVERHEAD_BYTES_MIN;
    let findings = [
        (
            overview.peak as f64 / allocated as f64 > 1.5,
            "Peak: peak memory use was over 1.5 times the current use. The allocator may keep these pages, and reuses \
             them when the data set grows. MEMORY PURGE releases unused pages.",
        ),
        (
            exceeds(overview.total_fragmentation(), 1.4),
            "Fragmentation: the resident memory of the process is over 1.4 times the allocated memory. This is \
             expected after a peak; otherwise the usual reason is values whose sizes change often.",
        ),
        (
            exceeds(overview.fragmentation(), 1.1),
            "Small allocations: over 10% of the memory for small values is free but cannot be released. Consider \
             activedefrag.",
        ),
        (
            exceeds(overview.allocator_rss(), 1.1),
            "Pages: the allocator keeps over 10% more pages than are in use. MEMORY PURGE releases them.",
        ),
        (
            exceeds(overview.rss_overhead(), 1.1),
            "Overhead: over 10% of the memory of the process was not allocated by the allocator.",
        ),
        (
            overview.connections.clients / overview.connections.clients_count.max(1) > CLIENT_MAX,
            "Clients: their buffers take more than 200 KB each on average. The usual reasons are unread replies and \
             large pipelines. CLIENT LIST shows the buffers of each client.",
        ),
        (
            overview.connections.replicas > REPLICAS_MAX,
            "Replicas: their buffers take more than 10 MB, so a replica or its network is slower than the writes. INFO \
             replication shows their lag, and CLIENT LIST their buffers.",
        ),
        (
            scripts > SCRIPTS_MAX,
            "Scripts: more than 1000 scripts are cached. The usual reason is values in the text of scripts; pass them \
             as KEYS and ARGV. SCRIPT FLUSH empties the cache.",
        ),
    ];
    let findings: Vec<&str> = findings.iter().filter(|(found, _)| *found).map(|(_, text)| *text).collect();
    if findings.is_empty() {
        return "No memory problems found.\n".into();
    }
    format!("Memory problems found:\n\n * {}\n", findings.join("\n\n * "))
}

fn purge(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    if !kvick_runtime::memory::purge() {
        return Err(Error::text("ERR Error purging dirty pages"));
    }
    cx.reply.ok();
    Ok(())
}

fn malloc_stats(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.verbatim(&kvick_runtime::memory::report(), "txt");
    Ok(())
}

fn memory_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    const LINES: &[&str] = &[
        "BIGKEYS [BY (BYTES | ELEMENTS)] [TYPE <type>] [COUNT <count>]",
        "    Show the largest keys that the search in the background has found, at most 16",
        "    of each type.",
        "DOCTOR",
        "    Return a report on memory problems.",
        "MALLOC-STATS",
        "    Show the allocator statistics.",
        "PURGE",
        "    Ask the allocator to release unused pages.",
        "STATS",
        "    Show memory usage statistics.",
        "USAGE <key> [SAMPLES <count>]",
        "    Show how many bytes <key> and its value take. In collections, <count> elements",
        "    are sampled (default: 5, 0 for all).",
    ];
    help::reply(cx, "MEMORY", LINES);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Connections;
    use kvick_runtime::memory::Figures;

    fn overview(figures: Figures, peak: usize) -> Overview {
        Overview {
            figures,
            not_counted: 0,
            peak,
            startup: 1 << 20,
            connections: Connections { clients: 1000, clients_count: 1, ..Connections::default() },
            backlog: 0,
            kept: 0,
            databases: Vec::new(),
        }
    }

    const MB: usize = 1 << 20;

    fn healthy() -> Figures {
        Figures {
            used: 100 * MB,
            allocated: 100 * MB,
            active: 101 * MB,
            resident: 102 * MB,
            rss: 104 * MB,
            muzzy: 0,
            small_free: MB,
        }
    }

    #[test]
    fn the_doctor_finds_what_is_wrong_and_nothing_else() {
        assert!(diagnosis(&overview(Figures { used: MB, allocated: MB, ..healthy() }, MB), 9999).contains("too small"));
        assert!(diagnosis(&overview(healthy(), 100 * MB), 1_000).contains("No memory problems"));
        let peak = diagnosis(&overview(healthy(), 200 * MB), 1);
        assert!(peak.contains("Peak") && !peak.contains("Fragmentation"));
        let all = Figures { active: 110 * MB, resident: 150 * MB, rss: 200 * MB, small_free: 20 * MB, ..healthy() };
        let connections =
            Connections { clients: 300 << 10, clients_count: 1, replicas: 11 * MB, ..Connections::default() };
        let buffers = Overview { connections, ..overview(all, 200 * MB) };
        let text = diagnosis(&buffers, 1_001);
        let headings = ["Peak", "Fragmentation", "Small", "Pages", "Overhead", "Clients", "Replicas", "Scripts"];
        assert!(headings.iter().all(|heading| text.contains(&format!(" * {heading}"))), "{text}");
    }

    #[test]
    fn memory_stats_has_as_many_fields_as_valkey() {
        let (before, after) = figures(&overview(healthy(), 100 * MB), [0, 0]);
        assert_eq!(before.len() + after.len(), 34);
    }
}
