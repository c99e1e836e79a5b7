//! A million entries through consumer groups: checks that every entry is delivered once, and measures the latency of
//! other clients of the server.
//!
//!     cargo bench -p kvick-server --bench streams                  # a million entries, some minutes
//!     cargo bench -p kvick-server --bench streams -- 50000         # fewer
//!
//! The server has four workers. 32 consumers block for entries (XREADGROUP with BLOCK), each on its own connection, and
//! 32 others poll on one shared connection. First the entries are sent as fast as the server accepts them, through two
//! groups, one of blocking and one of polling consumers, and then through a single group. The program fails unless each
//! group gets each entry exactly once and nothing stays pending. Then SET and GET are timed on another connection at a
//! fixed rate of entries: with the producer alone, and with consumers.
//!
//! Server and load share the machine. The server and the timing thread get real-time priority if that is permitted
//! (for example to root); otherwise the latencies are mostly those of the scheduler.

#[path = "../crates/server/tests/common/mod.rs"]
mod common;

use common::Server;
use common::groups::{Done, Work};
use redis::cmd;
use std::os::unix::process::CommandExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ENTRIES: usize = 1_000_000;
const CONSUMERS: usize = 32;
/// Timed runs of each kind.
const ROUNDS: usize = 7;
/// The entries of a timed run, and how many are added each second.
const TIMED_ENTRIES: usize = 4_000;
const TIMED_PER_SECOND: u32 = 2_000;
/// From one timed command to the next.
const PROBE_EVERY: Duration = Duration::from_micros(500);

fn main() {
    // Cargo adds an argument of its own.
    let entries = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(ENTRIES);
    let server = Server::start_prepared(&["--io-threads", "4"], &mut |command| {
        // SAFETY: between fork and exec this makes one system call.
        unsafe { command.pre_exec(prefer_this_thread) };
    });
    let soak = Work {
        entries,
        burst: 100,
        every: Duration::ZERO,
        waiting: CONSUMERS,
        polling: CONSUMERS,
        pause: Duration::ZERO,
        apart: true,
    };
    deliver("two groups", &server, soak);
    deliver("one group", &server, Work { apart: false, ..soak });
    time_others(&server, soak);
}

/// Puts entries through groups and tells what that took.
fn deliver(name: &str, server: &Server, work: Work) {
    let before = server.cpu();
    let done = work.run(server);
    let used = server.cpu() - before;
    done.check(server);
    let Done { took, waits, polls, .. } = done;
    let per_entry_us = used.as_secs_f64() * 1e6 / work.entries as f64;
    println!(
        "{name}: {} entries, each delivered once, none pending; {:.1} s, {waits} waits, {polls} polls, server CPU \
         {per_entry_us:.1} us per entry",
        work.entries,
        took.as_secs_f64(),
    );
}

/// Times SET and GET beside consumers, in rounds, so that what else the machine does meets all alike.
fn time_others(server: &Server, soak: Work) {
    let burst = 2;
    let every = Duration::from_secs(1) * burst / TIMED_PER_SECOND;
    let timed = Work { entries: TIMED_ENTRIES, burst: burst as usize, every, ..soak };
    let alone = Work { waiting: 0, polling: 0, ..timed };
    let mut kinds = [
        ("beside the producer alone", alone, Vec::new()),
        ("with those who wait", Work { polling: 0, apart: false, ..timed }, Vec::new()),
        ("with all, polls 1 ms apart", Work { pause: Duration::from_millis(1), ..timed }, Vec::new()),
        ("with all, polls without a pause", timed, Vec::new()),
    ];
    for _ in 0..ROUNDS {
        for (_, work, latencies) in &mut kinds {
            latencies.push(time_beside(server, || {
                let done = work.run(server);
                if work.waiting > 0 {
                    done.check(server);
                }
            }));
        }
    }
    let p99 = |latencies: &[Latencies]| median(latencies.iter().map(|round| round.quantile_us(0.99)));
    let base = p99(&kinds[0].2);
    println!("SET and GET on a connection, {ROUNDS} rounds, medians:");
    for (name, _, latencies) in &kinds {
        let p50 = median(latencies.iter().map(|round| round.quantile_us(0.5)));
        println!("  {name}: p50 {p50:.0} us, p99 {:.0} us, {:.2} of the first", p99(latencies), p99(latencies) / base);
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Latencies of commands, in order.
struct Latencies(Vec<Duration>);

impl Latencies {
    fn quantile_us(&self, share: f64) -> f64 {
        let index = (self.0.len() as f64 * share) as usize;
        self.0.get(index.min(self.0.len() - 1)).expect("a sample").as_secs_f64() * 1e6
    }
}

/// Times SET and GET on a connection while something else is done.
fn time_beside(server: &Server, work: impl FnOnce()) -> Latencies {
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let probe = scope.spawn(|| probe(server, &ended));
        work();
        ended.store(true, Ordering::Relaxed);
        probe.join().expect("no panic")
    })
}

fn probe(server: &Server, ended: &AtomicBool) -> Latencies {
    prefer_this_thread().expect("it does not fail");
    let mut client = server.client();
    let mut took = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        for command in [cmd("SET").arg("probe").arg("value"), cmd("GET").arg("probe")] {
            let began = Instant::now();
            let _: String = command.query(&mut client).expect("a reply");
            took.push(began.elapsed());
            std::thread::sleep(PROBE_EVERY);
        }
    }
    took.sort_unstable();
    Latencies(took)
}

/// Has this thread, and those it starts, run before others: the server, and the thread that times it, are to wait for
/// each other and not for the load's turn on a core, as if the load were on another machine. Where that is not
/// permitted, the latencies are what the scheduler makes of them.
fn prefer_this_thread() -> std::io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters live through the call, and 0 is the calling thread.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) };
    Ok(())
}
