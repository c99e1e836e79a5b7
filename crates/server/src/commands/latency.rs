//! LATENCY: slow events, and the latencies of commands.

mod doctor;

use super::help;
use doctor::Circumstances;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, Spec};
use kvick_commands::table::CommandInfo;
use kvick_core::latency::{Sample, Series, graph};
use kvick_engine::services::Services;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_runtime::histogram::Distribution;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[LATENCY];

const ADMIN: &[Flags] = &[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE];
const TIPS: &[&str] = &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"];

/// LATENCY
pub const LATENCY: Command<SessionHandler> = Command::container(
    Spec::new("latency", -2).doc(
        Group::Server,
        "2.8.13",
        "Depends on subcommand.",
        "A container for latency diagnostics commands.",
    ),
    &[
        Command::new(
            Spec::new("latest", 2)
                .flags(ADMIN)
                .doc(Group::Server, "2.8.13", "O(1)", "Returns the latest latency sample of each event.")
                .tips(TIPS),
            latest,
        ),
        Command::new(
            Spec::new("history", 3)
                .flags(ADMIN)
                .doc(Group::Server, "2.8.13", "O(1)", "Returns the latency samples of an event.")
                .tips(TIPS)
                .args(&[Arg::string("event")]),
            history,
        ),
        Command::new(
            Spec::new("reset", -2)
                .flags(ADMIN)
                .doc(Group::Server, "2.8.13", "O(1)", "Resets the latency samples of some or all events.")
                .tips(&["request_policy:all_nodes", "response_policy:agg_sum"])
                .args(&[Arg::string("event").optional().multiple()]),
            reset,
        ),
        Command::new(
            Spec::new("graph", 3)
                .flags(ADMIN)
                .doc(Group::Server, "2.8.13", "O(1)", "Returns a graph of the latency samples of an event.")
                .tips(TIPS)
                .args(&[Arg::string("event")]),
            draw,
        ),
        Command::new(
            Spec::new("doctor", 2)
                .flags(ADMIN)
                .doc(Group::Server, "2.8.13", "O(1)", "Returns a latency analysis report.")
                .tips(TIPS),
            diagnose,
        ),
        Command::new(
            Spec::new("histogram", -2)
                .flags(ADMIN)
                .doc(
                    Group::Server,
                    "7.0.0",
                    "O(N) where N is the number of commands with latency information being retrieved.",
                    "Returns latency histograms of commands.",
                )
                .tips(TIPS)
                .args(&[Arg::string("command").optional().multiple()]),
            histogram,
        ),
        Command::new(
            Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).doc(
                Group::Server,
                "2.8.13",
                "O(1)",
                "Returns help about the subcommands.",
            ),
            latency_help,
        ),
    ],
);

fn latest(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let all = cx.server.latency.all();
    let all: Vec<(&str, Sample, Series)> =
        all.into_iter().filter_map(|(event, series)| Some((event, *series.samples.back()?, series))).collect();
    cx.reply.array(all.len());
    for (event, last, series) in all {
        cx.reply.array(6);
        cx.reply.bulk(event.as_bytes());
        cx.reply.int(last.time);
        [last.ms, series.max_ms, series.sum_ms, series.count].into_iter().for_each(|number| cx.reply.uint(number));
    }
    Ok(())
}

fn history(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let series = cx.server.latency.get(&args[2]).unwrap_or_default();
    cx.reply.array(series.samples.len());
    for sample in series.samples {
        cx.reply.array(2);
        cx.reply.int(sample.time);
        cx.reply.uint(sample.ms);
    }
    Ok(())
}

fn reset(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.reply.uint(cx.server.latency.reset(args.slice_from(2).iter()) as u64);
    Ok(())
}

fn draw(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let Some(series) = cx.server.latency.get(&args[2]) else {
        return Err(Error::quoting(&[b"ERR No samples available for event '", &args[2], b"'"]));
    };
    let event = String::from_utf8_lossy(&args[2]);
    let text = graph::draw(&event, &series, cx.now_ms / 1000);
    cx.reply.verbatim(text.as_bytes(), "txt");
    Ok(())
}

fn diagnose(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let circumstances = Circumstances::of(&cx.server.config.values());
    let text = doctor::report(&cx.server.latency.all(), &circumstances, cx.now_ms / 1000);
    cx.reply.verbatim(text.as_bytes(), "txt");
    Ok(())
}

fn histogram(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let server = cx.server;
    let named = args.slice_from(2);
    let commands: Vec<&CommandInfo> = if named.is_empty() {
        server.catalogue.all().iter().collect()
    } else {
        let found = named.iter().filter_map(|name| server.catalogue.by_full_name(name));
        let with_subcommands = |command: &'static CommandInfo| {
            let subcommands = command.subcommands.iter().filter_map(|id| server.catalogue.get(*id));
            std::iter::once(command).chain(subcommands)
        };
        found.flat_map(with_subcommands).collect()
    };
    let distributions = commands.into_iter().map(|command| (command, durations(server, command)));
    let distributions: Vec<_> = distributions.filter(|(_, distribution)| distribution.count() > 0).collect();
    cx.reply.map(distributions.len());
    for (command, distribution) in distributions {
        cx.reply.bulk(command.full_name.as_bytes());
        cx.reply.map(2);
        cx.reply.bulk(b"calls");
        cx.reply.uint(distribution.count());
        cx.reply.bulk(b"histogram_usec");
        let steps = distribution.by_powers_of_two();
        cx.reply.map(steps.len());
        for (limit_us, count) in steps {
            cx.reply.uint(limit_us);
            cx.reply.uint(count);
        }
    }
    Ok(())
}

/// A command's latencies on all workers.
pub fn durations(server: &Services, command: &CommandInfo) -> Distribution {
    Distribution::of(server.stats.iter().map(|stats| &stats.commands[command.id as usize].durations))
}

fn latency_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    const LINES: &[&str] = &[
        "DOCTOR",
        "    Return a latency analysis report, with advice.",
        "GRAPH <event>",
        "    Return a graph of the latency of <event>.",
        "HISTORY <event>",
        "    Show the time and milliseconds of each sample of <event>.",
        "LATEST",
        "    Show the latest sample of each event.",
        "RESET [<event> ...]",
        "    Reset the samples of some events.",
        "    (default: of all events)",
        "HISTOGRAM [COMMAND ...]",
        "    Show how many calls of each command took less than each power of two of microseconds.",
        "    Without names, all commands that were called are shown.",
    ];
    help::reply(cx, "LATENCY", LINES);
    Ok(())
}
