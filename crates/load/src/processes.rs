//! A run by several processes, for rates that one process cannot send.
//!
//! The first process starts the others and sends each the configuration, as a line of JSON on its standard input. They
//! answer with lines of JSON: that they are ready, their intervals, and their result. They begin when all are ready.

use crate::config::Config;
use crate::metrics::Interval;
use crate::result::RunResult;
use crate::run::{Collector, Observer, RunError, Share, profile, run};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, Sender, channel};

/// The hidden subcommand of the other processes.
pub const SUBCOMMAND: &str = "process";

/// What a process has to do.
#[derive(Serialize, Deserialize)]
struct Order {
    config: Config,
    process: usize,
    processes: usize,
}

/// What a process says.
#[derive(Serialize, Deserialize)]
enum Message {
    Ready,
    Interval(Box<Interval>),
    Done(Box<RunResult>),
    Failed(String),
}

/// Ends processes that still run.
struct Children(Vec<(Child, ChildStdin)>);

impl Drop for Children {
    fn drop(&mut self) {
        for (child, _) in &mut self.0 {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Runs a configuration in as many processes as it says.
pub fn run_all(
    config: &Config,
    label: &str,
    stop: &Arc<AtomicBool>,
    observer: &mut dyn Observer,
) -> Result<RunResult, RunError> {
    let processes = config.client.processes.min(config.client.poolsize);
    if processes == 1 {
        return run(config, label, Share::ALL, stop, observer);
    }
    config.check()?;
    let mut config = config.clone();
    let seed = config.general.initial_seed.unwrap_or_else(|| fastrand::u64(..) >> 1);
    // TOML and JSON have no larger integers.
    config.general.initial_seed = Some(seed & i64::MAX as u64);
    let (sender, messages) = channel();
    let mut children = Children(Vec::new());
    for process in 0..processes {
        children.0.push(spawn(&Order { config: config.clone(), process, processes }, &sender)?);
    }
    drop(sender);
    for _ in 0..processes {
        match messages.recv() {
            Ok(Message::Ready) => {}
            Ok(Message::Failed(error)) => return Err(RunError(error)),
            _ => return Err(RunError("a process ended before it was ready".to_owned())),
        }
    }
    observer.ready();
    for (_, input) in &mut children.0 {
        writeln!(input, "start")?;
    }
    let profile = config
        .workload
        .ratelimit
        .as_ref()
        .map(|rate| profile(rate, config.general.warmup.0.as_secs_f64(), config.duration_s(), seed));
    let result = RunResult::new(label, &config, profile.as_ref());
    collect(result, processes, &messages, observer)
}

fn spawn(order: &Order, sender: &Sender<Message>) -> Result<(Child, ChildStdin), RunError> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg(SUBCOMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let no_pipe = || RunError("a process has no pipe".to_owned());
    let mut input = child.stdin.take().ok_or_else(no_pipe)?;
    let output = child.stdout.take().ok_or_else(no_pipe)?;
    writeln!(input, "{}", serde_json::to_string(order).map_err(std::io::Error::other)?)?;
    let sender = sender.clone();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            let message = serde_json::from_str(&line);
            let message = message.unwrap_or_else(|error| Message::Failed(format!("a process says {line:?}: {error}")));
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    Ok((child, input))
}

fn collect(
    mut result: RunResult,
    processes: usize,
    messages: &Receiver<Message>,
    observer: &mut dyn Observer,
) -> Result<RunResult, RunError> {
    let mut collector = Collector::new(processes);
    let mut done = 0;
    while done < processes {
        match messages.recv() {
            Ok(Message::Interval(interval)) => collector.add(*interval, &mut |interval| {
                observer.interval(interval);
                result.add(interval);
            }),
            Ok(Message::Done(part)) => {
                done += 1;
                result.cpu_s += part.cpu_s;
                result.seconds = result.seconds.max(part.seconds);
                if let Some(check) = part.check {
                    result.check.get_or_insert_default().add(&check);
                }
            }
            Ok(Message::Failed(error)) => return Err(RunError(error)),
            Ok(Message::Ready) => {}
            Err(_) => return Err(RunError("a process ended before its result".to_owned())),
        }
    }
    collector.finish(&mut |interval| {
        observer.interval(interval);
        result.add(interval);
    });
    Ok(result)
}

/// Passes what happens to the first process.
struct Reporter;

impl Reporter {
    fn say(message: &Message) {
        if let Ok(line) = serde_json::to_string(message) {
            // Without a first process, nobody needs the message.
            let _ = writeln!(std::io::stdout(), "{line}");
        }
    }
}

impl Observer for Reporter {
    fn ready(&mut self) {
        Reporter::say(&Message::Ready);
        let mut line = String::new();
        // At the end of the input the first process has gone; then the run is short-lived, since nobody reads it.
        let _ = std::io::stdin().lock().read_line(&mut line);
    }

    fn interval(&mut self, interval: &Interval) {
        Reporter::say(&Message::Interval(Box::new(interval.clone())));
    }
}

/// What the other processes do.
pub fn run_part(stop: &Arc<AtomicBool>) -> Result<(), RunError> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let order: Order = serde_json::from_str(&line).map_err(|error| RunError(error.to_string()))?;
    let share = Share { process: order.process, processes: order.processes };
    match run(&order.config, "", share, stop, &mut Reporter) {
        Ok(result) => Reporter::say(&Message::Done(Box::new(result))),
        Err(error) => Reporter::say(&Message::Failed(error.0)),
    }
    Ok(())
}
