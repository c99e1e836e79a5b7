//! Threads: CPU affinity, the work of an event loop turn, and the watchdog.

mod common;

use common::{Server, processors, processors_in, wait_until};
use redis::cmd;
use std::collections::BTreeMap;

/// The CPUs of each thread of a server, by name.
fn places(server: &Server) -> BTreeMap<String, String> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the server's threads");
    // A thread may end before it is looked at.
    let place = |task: std::fs::DirEntry| {
        let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
        let status = std::fs::read_to_string(task.path().join("status")).ok()?;
        Some((name.trim().to_string(), processors_in(&status)))
    };
    tasks.flatten().filter_map(place).collect()
}

#[test]
fn threads_run_on_the_configured_cpus() {
    let all = processors();
    let first = all.split(['-', ',']).next().expect("a processor").to_string();
    let last = all.rsplit(['-', ',']).next().expect("a processor").to_string();
    let args = ["--io-threads", "2", "--server-cpulist", &first, "--bio-cpulist", &last];
    let server = Server::start(&args);
    // A thread may have its name before it has its CPUs.
    let is_at = |names: &[&str], place: &str| {
        let places = places(&server);
        names.iter().all(|name| places.get(*name).is_some_and(|found| found == place))
    };
    wait_until("workers have their CPUs", || is_at(&["worker-0", "worker-1", "replication"], &first));
    wait_until("other threads have theirs", || is_at(&["log", "lazy-free", "aof", "migrator", "signals"], &last));
    // No setting is about it.
    wait_until("the snapshot has all", || is_at(&["snapshot"], &all));
}

#[test]
fn threads_keep_their_affinity_without_valid_lists() {
    let all = processors();
    // As many workers as CPUs: they leave none to the network.
    let workers = std::thread::available_parallelism().expect("the number of CPUs").to_string();
    let server = Server::start(&["--io-threads", &workers]);
    assert!(places(&server).values().all(|place| *place == all));
    let server = Server::start(&["--server-cpulist", "0-x"]);
    assert!(places(&server).values().all(|place| *place == all));
    assert!(server.log().contains("Ignoring invalid CPU list '0-x'"));
}

#[test]
fn the_watchdog_reports_a_stalled_worker() {
    let server = Server::start(&["--enable-debug-command", "yes", "--io-threads", "1"]);
    let mut client = server.client();
    let expired = || server.log().matches("--- WATCHDOG TIMER EXPIRED ---").count();
    let sleep = |client: &mut redis::Connection| {
        cmd("DEBUG").arg("SLEEP").arg(1).exec(client).expect("DEBUG SLEEP");
    };
    sleep(&mut client);
    assert_eq!(expired(), 0);
    cmd("CONFIG").arg("SET").arg("watchdog-period").arg(1).exec(&mut client).expect("CONFIG SET");
    sleep(&mut client);
    wait_until("it is told", || expired() == 1 && server.log().contains("worker-0 has not come round for"));
    cmd("CONFIG").arg("SET").arg("watchdog-period").arg(0).exec(&mut client).expect("CONFIG SET");
    wait_until("nobody watches any more", || !places(&server).contains_key("watchdog"));
}

#[test]
fn a_turn_accepts_no_more_connections_than_are_allowed() {
    const CONNECTIONS: usize = 60;
    let turns = |share: &str| {
        let args = ["--io-threads", "1", "--enable-debug-command", "yes", "--max-new-connections-per-cycle", share];
        let server = Server::start(&args);
        let mut client = server.client();
        let mut field = |name: &str| -> usize {
            let info: String = cmd("INFO").query(&mut client).expect("INFO");
            let text = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            text.expect("a field").parse().expect("a number")
        };
        let mut sleeper = server.raw();
        sleeper.ask(&["PING"], "+PONG\r\n");
        let (before, known) = (field("eventloop_cycles"), field("connected_clients"));
        sleeper.request(&["DEBUG", "SLEEP", "0.5"]);
        let _others: Vec<_> = (0..CONNECTIONS).map(|_| server.raw()).collect();
        sleeper.expect("+OK\r\n");
        wait_until("all are there", || field("connected_clients") == known + CONNECTIONS);
        field("eventloop_cycles") - before
    };
    let (many, few) = (turns("1"), turns("1000"));
    assert!(many >= CONNECTIONS && few < CONNECTIONS / 2, "{many} turns, and {few}");
}
