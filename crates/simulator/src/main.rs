//! Runs seeds of the simulator. See `docs/simulation.md`.

use kvick_runtime::allocator::Allocator;
use kvick_simulator::{Options, Workload, kill_half, run};
use std::process::ExitCode;
use std::time::Instant;

// A run allocates and frees millions of messages and connections: with the usual allocator it takes a third longer.
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const USAGE: &str = "usage: kvick-simulator --seed N [--nodes N] [--workload NAME] [--steps] [--trace]
       kvick-simulator --seeds FROM..TO [--nodes N] [--workload NAME] [--steps]
       kvick-simulator --kill-half SHARDS [--timeout MS] [--seed N]

  --seed N         run this seed
  --seeds FROM..TO run these seeds, without TO; stops at the first violation unless --all is given
  --all            goes on after a violation
  --nodes N        number of nodes (default: 3 to 30, by seed)
  --workload NAME  failover, manual, takeover, reset, address, rolling, reshard, migration, empty, mixed,
                   atomic or atomic-faults (default: by seed)
  --steps          print a line for each seed
  --trace          print all events
  --kill-half N    kill half of N primaries with one replica each, and report the time until all is well
  --timeout MS     cluster-node-timeout for that (default: 15000)";

#[derive(Default)]
struct Arguments {
    seeds: std::ops::Range<u64>,
    options: Options,
    steps: bool,
    all: bool,
    kill_half: Option<usize>,
    timeout_ms: Option<u64>,
}

fn main() -> ExitCode {
    let arguments = match parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("{problem}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let Some(shards) = arguments.kill_half {
        let timeout_ms = arguments.timeout_ms.unwrap_or(15_000);
        let start = Instant::now();
        let outcome = kill_half(arguments.seeds.start, shards, timeout_ms, 600_000);
        println!("{outcome:?}, {:.1} s", start.elapsed().as_secs_f64());
        return if outcome.violation.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    run_seeds(&arguments)
}

fn run_seeds(arguments: &Arguments) -> ExitCode {
    let (mut failed, mut runs, mut virtual_ms, mut steps, mut elections) = (0, 0u64, 0, 0, 0);
    let start = Instant::now();
    for seed in arguments.seeds.clone() {
        let options = Options { seed, ..arguments.options };
        let seed_start = Instant::now();
        let outcome = run(&options);
        runs += 1;
        virtual_ms += outcome.virtual_ms;
        steps += outcome.steps;
        elections += outcome.elections;
        if arguments.steps {
            println!("{outcome}, {:.3} s", seed_start.elapsed().as_secs_f64());
        }
        if outcome.violation.is_some() {
            failed += 1;
            report(&options);
            if !arguments.all {
                break;
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{runs} runs, {failed} with violations; {} virtual seconds, {steps} steps, {elections} elections in \
         {seconds:.1} s ({:.0} virtual ms per ms)",
        virtual_ms / 1000,
        virtual_ms as f64 / 1000.0 / seconds
    );
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Repeats a run that has failed, now with its events.
fn report(options: &Options) {
    let outcome = run(&Options { keep_events: true, trace: false, ..*options });
    let Some(violation) = &outcome.violation else {
        println!("seed {}: the violation did not occur again: the run is not deterministic", options.seed);
        return;
    };
    let events = &violation.events;
    for line in events.iter().skip(events.len().saturating_sub(60)) {
        println!("{line}");
    }
    println!("VIOLATION at {:.3} virtual seconds: {}", violation.at_ms as f64 / 1000.0, violation.what);
    println!("{outcome}");
    let nodes = options.nodes.map(|nodes| format!(" --nodes {nodes}")).unwrap_or_default();
    let workload = options.workload.map(|workload| format!(" --workload {workload}")).unwrap_or_default();
    println!("repeat: cargo run -p kvick-simulator --release -- --seed {}{nodes}{workload} --trace", options.seed);
}

fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Arguments, String> {
    let mut parsed = Arguments { seeds: 1..1, ..Arguments::default() };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{name} needs a value"));
        match name.as_str() {
            "--seed" => {
                let seed = number(&value()?)?;
                parsed.seeds = seed..seed + 1;
            }
            "--seeds" => {
                let value = value()?;
                let (from, to) = value.split_once("..").ok_or("--seeds needs FROM..TO")?;
                parsed.seeds = number(from)?..number(to)?;
            }
            "--nodes" => parsed.options.nodes = Some(number(&value()?)? as usize),
            "--workload" => parsed.options.workload = Some(value()?.parse::<Workload>()?),
            "--steps" => parsed.steps = true,
            "--all" => parsed.all = true,
            "--trace" => parsed.options.trace = true,
            "--kill-half" => parsed.kill_half = Some(number(&value()?)? as usize),
            "--timeout" => parsed.timeout_ms = Some(number(&value()?)?),
            _ => return Err(format!("unknown argument {name}")),
        }
    }
    if parsed.seeds.is_empty() && parsed.kill_half.is_none() {
        return Err("nothing to run".to_owned());
    }
    Ok(parsed)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("'{text}' is not a number"))
}
