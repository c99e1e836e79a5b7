//! A server that is stopped for 200 ms: the response time shows it. That of `valkey-benchmark` is printed beside it.

mod common;

use common::{AtInterval, run_with, start};
use kvick_load::result::Measured;
use kvick_testing::servers::Server;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const STALL: Duration = Duration::from_millis(200);

fn stall(server: &Server) {
    server.signal(libc::SIGSTOP);
    std::thread::sleep(STALL);
    server.signal(libc::SIGCONT);
}

#[test]
fn a_stall_of_the_server_is_in_the_response_time() {
    let Some(server) = start(&[]) else { return };
    let text = "[general]\nduration = 3\n[client]\npoolsize = 10\n[workload.ratelimit]\nstart = 2000\n\
                [[workload.keyspace]]\ncommands = [{ verb = 'set' }]";
    let mut observer = AtInterval(|interval| {
        if interval.index == 0 {
            stall(&server);
        }
    });
    let result = run_with(server.port(), text, &mut observer);
    assert_eq!(result.counters.answered, result.counters.scheduled);
    // The arrivals of 200 ms, 400 of 6,000, waited: the slowest 60 of them for nearly all of it.
    let (response, service) = (&result.response.summary, &result.service.summary);
    println!(
        "kvick-load:       p50 {:.3}  p99 {:.3}  p99.9 {:.3} ms",
        response.p50_ms, response.p99_ms, response.p999_ms
    );
    assert!(response.p999_ms >= 150.0, "{response:?}");
    assert!(response.p99_ms >= 150.0, "{response:?}");
    // Only the ten requests that were under way when the server stopped were served that slowly. A busy machine may add
    // some, to both.
    let late = |times: &Measured| times.summary.count - times.histogram.histogram().count_between(0, 150_000_000);
    assert!(2 * late(&result.service) < late(&result.response), "{service:?}, {response:?}");
    println!("its service time: p50 {:.3}  p99 {:.3}  p99.9 {:.3} ms", service.p50_ms, service.p99_ms, service.p999_ms);
    print_valkey_benchmark(&server);
}

/// Runs `valkey-benchmark`, if there is one, through the same stall.
fn print_valkey_benchmark(server: &Server) {
    let dirs = std::env::var_os("VALKEY_BIN_DIR").map(PathBuf::from).into_iter();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut all = dirs.chain(std::env::split_paths(&path)).map(|dir| dir.join("valkey-benchmark"));
    let Some(program) = all.find(|program| program.is_file()) else {
        println!("LEFT OUT: valkey-benchmark is absent (VALKEY_BIN_DIR, PATH).");
        return;
    };
    let mut command = Command::new(program);
    let port = server.port().to_string();
    command.args(["-p", &port, "-c", "10", "-n", "60000", "--rps", "20000", "-t", "set"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let child = child.expect("valkey-benchmark");
    std::thread::sleep(Duration::from_secs(1));
    stall(server);
    let output = child.wait_with_output().expect("its output");
    // Its last table of latencies has a header and a line of figures; the lines above have the percentiles.
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "\n");
    let is_figure = |line: &&str| line.contains("% <=") && line.contains("cumulative") || line.starts_with("99.9");
    println!("valkey-benchmark:");
    text.lines()
        .filter(is_figure)
        .chain(text.lines().skip_while(|line| !line.contains("avg")))
        .for_each(|line| println!("  {line}"));
}
