//! HOTKEYS: the keys that are used most, as detected while `hotkeys-top-k` is set.

use super::help;
use super::slot_stats::parse_slot_range;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_core::Core;
use kvick_core::hot_keys::report::{HotKey, Rates, Report};
use kvick_core::hot_keys::summary::Metric;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::hash::slot_of;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[HOTKEYS];

const ADMIN: &[Flags] = &[Flags::ADMIN, Flags::LOADING, Flags::STALE];

/// HOTKEYS
pub const HOTKEYS: Command<SessionHandler> = Command::container(
    Spec::new("hotkeys", -2).doc(
        Group::Server,
        "9.2.0",
        "Depends on subcommand.",
        "A container for commands about hot keys.",
    ),
    &[
        Command::new(
            Spec::new("get", -2)
                .flags(ADMIN)
                .doc(
                    Group::Server,
                    "9.2.0",
                    "O(N*log(N)), N being the tracked keys",
                    "Returns the keys that were used most in the last completed window.",
                )
                .args(&[
                    Arg::one_of(
                        "metric",
                        &[Arg::word("qps", "QPS"), Arg::word("cpu", "CPU"), Arg::word("bytes", "BYTES")],
                    )
                    .token("BY")
                    .optional(),
                    Arg::integer("count").token("COUNT").optional(),
                    Arg::block("slots", &[Arg::integer("start-slot"), Arg::integer("end-slot")])
                        .token("SLOTSRANGE")
                        .optional(),
                ]),
            get,
        ),
        Command::new(
            Spec::new("reset", 2).flags(ADMIN).doc(
                Group::Server,
                "9.2.0",
                "O(N), N being the tracked keys",
                "Forgets all hot keys.",
            ),
            reset,
        ),
        Command::new(
            Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).acl(&[Categories::SLOW]).doc(
                Group::Server,
                "9.2.0",
                "O(1)",
                "Returns help about the subcommands.",
            ),
            hot_keys_help,
        ),
    ],
);

/// A hot key of the last window as it is shown.
pub struct Shown<'a> {
    /// The key.
    pub hot: &'a HotKey,
    /// Its slot, in cluster mode.
    pub slot: Option<u16>,
    /// What it used.
    pub rates: Rates,
}

/// The last completed window, once the one before is over. `None` if there is none.
pub fn last_window(core: &Core) -> Option<Arc<Report>> {
    core.hot_keys.end_window_if_due(Instant::now());
    core.hot_keys.report()
}

/// The keys of a report by a metric, the hottest first. Leaves out those whose database was emptied since, and in
/// cluster mode those in slots that this node does not serve any more.
pub fn shown<'a>(core: &'a Core, report: &'a Report, by: Metric) -> impl Iterator<Item = Shown<'a>> {
    let routing = core.routing.as_ref();
    let shown = move |hot: &'a HotKey| {
        let slot = routing.map(|_| slot_of(hot.hash));
        Shown { hot, slot, rates: report.rates(hot, by) }
    };
    let is_current = move |shown: &Shown<'_>| {
        let is_served = routing.is_none_or(|routing| shown.slot.is_some_and(|slot| routing.serves(slot)));
        is_served && core.keyspace.flushes(shown.hot.home.db as usize) == shown.hot.home.flushes
    };
    report.top(by).iter().map(shown).filter(is_current)
}

/// The options of HOTKEYS GET.
#[derive(PartialEq, Eq, Debug)]
struct Options {
    by: Metric,
    count: usize,
    slots: Option<RangeInclusive<u16>>,
}

impl Options {
    fn parse(words: Args<'_>, is_cluster: bool) -> Result<Options, Error> {
        let mut options = Options { by: Metric::Accesses, count: usize::MAX, slots: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut next = || words.next().ok_or(Error::SYNTAX);
            if word.eq_ignore_ascii_case(b"by") {
                options.by = match next()?.to_ascii_lowercase().as_slice() {
                    b"qps" => Metric::Accesses,
                    b"cpu" => Metric::Cpu,
                    b"bytes" => Metric::Bytes,
                    _ => return Err(Error::text("ERR BY must be QPS, CPU or BYTES")),
                };
            } else if word.eq_ignore_ascii_case(b"count") {
                let count = parse_i64(next()?).ok_or(Error::NOT_INTEGER)?;
                let count = usize::try_from(count).ok().filter(|count| *count > 0);
                options.count = count.ok_or(Error::text("ERR COUNT must be greater than 0"))?;
            } else if word.eq_ignore_ascii_case(b"slotsrange") {
                let (first, last) = (next()?, next()?);
                if !is_cluster {
                    return Err(Error::text("ERR This instance has cluster support disabled"));
                }
                options.slots = Some(parse_slot_range(first, last)?);
            } else {
                return Err(Error::SYNTAX);
            }
        }
        Ok(options)
    }
}

/// HOTKEYS GET [BY QPS | CPU | BYTES] [COUNT count] [SLOTSRANGE start-slot end-slot]
fn get(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let core: &Core = cx.server;
    let options = Options::parse(args.slice_from(2), core.routing.is_some())?;
    let Some(report) = last_window(core) else {
        cx.reply.array(0);
        return Ok(());
    };
    let is_wanted = |shown: &Shown<'_>| {
        let slots = options.slots.as_ref();
        slots.is_none_or(|slots| shown.slot.is_some_and(|slot| slots.contains(&slot)))
    };
    let keys: Vec<Shown<'_>> = shown(core, &report, options.by).filter(is_wanted).take(options.count).collect();
    // Without options the reply is that of the reference.
    let is_detailed = args.len() > 2;
    let reply = &mut cx.reply;
    reply.array(keys.len());
    for Shown { hot, slot, rates } in keys {
        let numbers: &[(&str, u64)] =
            &[("qps", rates.accesses), ("cpu-usec-per-sec", rates.cpu_us), ("net-bytes-per-sec", rates.bytes)];
        let numbers = if is_detailed { numbers } else { &numbers[..1] };
        let slot = slot.filter(|_| is_detailed);
        reply.map(2 + usize::from(slot.is_some()) + numbers.len());
        reply.bulk(b"key");
        reply.bulk(&hot.key);
        reply.bulk(b"db");
        reply.uint(hot.home.db.into());
        if let Some(slot) = slot {
            reply.bulk(b"slot");
            reply.uint(slot.into());
        }
        for (name, number) in numbers {
            reply.bulk(name.as_bytes());
            reply.uint(*number);
        }
    }
    Ok(())
}

/// HOTKEYS RESET
fn reset(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.server.hot_keys.reset();
    cx.reply.ok();
    Ok(())
}

fn hot_keys_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    const LINES: &[&str] = &[
        "GET [BY (QPS | CPU | BYTES)] [COUNT <count>] [SLOTSRANGE <start-slot> <end-slot>]",
        "    Show the keys that were used most in the last completed window, with their",
        "    database and estimated accesses per second. With an option, also with the",
        "    microseconds of execution time and the bytes of requests and replies per",
        "    second, and in cluster mode with their slot. Detection is enabled by the",
        "    setting hotkeys-top-k.",
        "RESET",
        "    Forget all hot keys.",
    ];
    help::reply(cx, "HOTKEYS", LINES);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::OwnedArgs;

    fn parse(line: &str, is_cluster: bool) -> Result<Options, String> {
        let words = OwnedArgs::new(line.split_whitespace());
        Options::parse(words.args(), is_cluster).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_checked() {
        let options = |by, count, slots| Ok(Options { by, count, slots });
        assert_eq!(parse("", false), options(Metric::Accesses, usize::MAX, None));
        assert_eq!(parse("count 5 BY cpu", false), options(Metric::Cpu, 5, None));
        assert_eq!(parse("by BYTES slotsrange 1 16383", true), options(Metric::Bytes, usize::MAX, Some(1..=16383)));
        for (line, error) in [
            ("by", "ERR syntax error"),
            ("count", "ERR syntax error"),
            ("slotsrange 1", "ERR syntax error"),
            ("other", "ERR syntax error"),
            ("by memory", "ERR BY must be QPS, CPU or BYTES"),
            ("count x", "ERR value is not an integer or out of range"),
            ("count 0", "ERR COUNT must be greater than 0"),
            ("slotsrange 5 4", "ERR Start slot number 5 is greater than end slot number 4"),
        ] {
            assert_eq!(parse(line, true), Err(error.into()), "{line}");
        }
        assert!(parse("slotsrange 0 16384", true).is_err());
        assert_eq!(parse("slotsrange 0 1", false).unwrap_err(), "ERR This instance has cluster support disabled");
    }
}
