//! SIGKILL at random moments, with `appendfsync everysec` and `no`: no acknowledged write is missing, none is doubled,
//! and transactions and scripts are there completely or not at all.
//!
//! A seed determines the settings of a round and the moment. Scheduling is not controlled, so a repeated round may run
//! differently. Rounds in a row cover all combinations of settings.
//!
//! - `KVICK_TEST_ROUNDS`: the number of rounds (8).
//! - `KVICK_TEST_SEED`: the first seed (1).

mod common;

use common::line::ok;
use common::{Server, wait_until};
use redis::{Commands, Connection};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Clients that write at a time.
const WRITERS: usize = 4;
/// Steps that a client sends at once if it pipelines.
const PIPELINED_STEPS: usize = 16;
/// Replies that arrive before a round's time begins.
const ACKNOWLEDGED_MIN: u64 = 100;
/// Changes two keys at once.
const PAIR: &str = "redis.call('INCR', KEYS[1]) redis.call('RPUSH', KEYS[2], ARGV[1]) return 1";

/// What a round does besides writing.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Condition {
    Usual,
    /// Each write of the append-only file takes this many microseconds longer.
    SlowFile(u32),
    /// The same, and each step has a large value, so that the tail is too small.
    FullTail(u32),
    /// A rewrite begins at a random moment.
    Rewrite,
    /// The tail cannot be created.
    NoTail,
    /// The append-only file is switched on at run time.
    SwitchedOn,
}

/// The settings of a round.
#[derive(Debug)]
struct Round {
    workers: &'static str,
    appendfsync: &'static str,
    is_pipelined: bool,
    has_timestamps: bool,
    condition: Condition,
    kill_after: Duration,
}

impl Round {
    fn new(seed: u64) -> Round {
        let mixed = (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % 150;
        let conditions = [
            Condition::Usual,
            Condition::SlowFile(20_000),
            Condition::Rewrite,
            Condition::FullTail(5_000),
            Condition::NoTail,
            Condition::SlowFile(200),
            Condition::SwitchedOn,
        ];
        Round {
            workers: if seed & 1 == 0 { "1" } else { "4" },
            appendfsync: if seed & 2 == 0 { "everysec" } else { "no" },
            is_pipelined: seed & 4 == 0 || seed.is_multiple_of(3),
            has_timestamps: seed & 8 == 0,
            condition: conditions[(seed % 7) as usize],
            kill_after: Duration::from_millis(50 + mixed),
        }
    }
}

/// What a client has sent, and what has been acknowledged: the number of the last step for each of its keys.
#[derive(Clone, Copy, Default, Debug)]
struct Progress {
    sent: u64,
    counted: u64,
    pushed: u64,
    paired: u64,
}

fn request(out: &mut Vec<u8>, words: &[&str]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

/// The requests of a step, each with the number of lines of its reply.
fn step(writer: usize, number: u64, padding: &str) -> Vec<(Vec<u8>, usize)> {
    let text = number.to_string();
    let [counter, list, left, right, pad] =
        ["counter", "list", "left", "right", "pad"].map(|name| format!("{name}:{writer}"));
    let pair: (&[&[&str]], usize) = match number % 2 {
        0 => (&[&["MULTI"], &["INCR", &left], &["RPUSH", &right, &text], &["EXEC"]], 6),
        _ => (&[&["EVAL", PAIR, "2", &left, &right, &text]], 1),
    };
    let requests: [(&[&[&str]], usize); 3] = [
        (&[&["SELECT", "0"], &["SET", &pad, padding], &["INCR", &counter]], 3),
        (&[&["RPUSH", &list, &text]], 1),
        pair,
    ];
    let encoded = |requests: &[&[&str]]| {
        let mut out = Vec::new();
        requests.iter().for_each(|words| request(&mut out, words));
        out
    };
    requests.into_iter().map(|(requests, lines)| (encoded(requests), lines)).collect()
}

/// Writes until the server is gone.
fn write(port: u16, writer: usize, round: &Round, acknowledged: &AtomicU64) -> Progress {
    let mut progress = Progress::default();
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return progress };
    let mut replies = BufReader::new(stream.try_clone().expect("a second handle"));
    let padding = if let Condition::FullTail(_) = round.condition { "x".repeat(60_000) } else { String::new() };
    let steps = if round.is_pipelined { PIPELINED_STEPS } else { 1 };
    loop {
        let first = progress.sent + 1;
        progress.sent += steps as u64;
        let requests: Vec<_> = (first..=progress.sent).flat_map(|number| step(writer, number, &padding)).collect();
        // Either all at once, or each after the reply to the one before it.
        let together = if round.is_pipelined { requests.len() } else { 1 };
        let mut expected = (first..=progress.sent).flat_map(|number| [number; 3]).zip([0, 1, 2].into_iter().cycle());
        for requests in requests.chunks(together) {
            let bytes: Vec<u8> = requests.iter().flat_map(|(bytes, _)| bytes.iter().copied()).collect();
            if stream.write_all(&bytes).is_err() {
                return progress;
            }
            for (_, lines) in requests {
                for _ in 0..*lines {
                    let mut line = String::new();
                    if replies.read_line(&mut line).is_err() || !line.ends_with("\r\n") {
                        return progress;
                    }
                    assert!(!line.starts_with('-'), "{line}");
                }
                acknowledged.fetch_add(1, Ordering::Relaxed);
                match expected.next() {
                    Some((number, 0)) => progress.counted = number,
                    Some((number, 1)) => progress.pushed = number,
                    Some((number, _)) => progress.paired = number,
                    None => {}
                }
            }
        }
    }
}

fn numbers(client: &mut Connection, list: &str, writer: usize) -> Vec<u64> {
    client.lrange(format!("{list}:{writer}"), 0, -1).expect("a list")
}

fn check(client: &mut Connection, writer: usize, progress: Progress) {
    let Progress { sent, counted, pushed, paired } = progress;
    let counter: u64 = client.get::<_, Option<u64>>(format!("counter:{writer}")).expect("a number").unwrap_or(0);
    assert!((counted..=sent).contains(&counter), "writer {writer}: the counter is {counter}, {progress:?}");
    let list = numbers(client, "list", writer);
    assert!((pushed..=sent).contains(&(list.len() as u64)), "writer {writer}: {} numbers, {progress:?}", list.len());
    assert!(list.iter().zip(1..).all(|(found, number)| *found == number), "writer {writer}: {list:?}");
    let left: u64 = client.get::<_, Option<u64>>(format!("left:{writer}")).expect("a number").unwrap_or(0);
    let right = numbers(client, "right", writer);
    assert!((paired..=sent).contains(&left), "writer {writer}: {left} pairs, {progress:?}");
    assert_eq!(left, right.len() as u64, "writer {writer}: half of a transaction or script");
    assert!(right.iter().zip(1..).all(|(found, number)| *found == number), "writer {writer}: {right:?}");
}

fn tail_of(dir: &TempDir) -> PathBuf {
    dir.path().join("appendonlydir/appendonly.aof.tail")
}

fn run(round: &Round) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().to_str().expect("a plain path");
    let tail = tail_of(&dir);
    if round.condition == Condition::NoTail {
        fs::create_dir_all(&tail).expect("a directory in place of the tail");
    }
    let appendonly = if round.condition == Condition::SwitchedOn { "no" } else { "yes" };
    let timestamps = if round.has_timestamps { "yes" } else { "no" };
    let args = [
        ["--dir", path],
        ["--enable-debug-command", "yes"],
        ["--io-threads", round.workers],
        ["--appendfsync", round.appendfsync],
        ["--aof-timestamp-enabled", timestamps],
        ["--auto-aof-rewrite-percentage", "0"],
    ]
    .concat();
    let mut server = Server::start(&[&args[..], &["--appendonly", appendonly]].concat());
    let mut client = server.client();
    match round.condition {
        Condition::SlowFile(us) | Condition::FullTail(us) => ok(&mut client, &format!("DEBUG AOF-FLUSH-SLEEP {us}")),
        Condition::SwitchedOn => {
            ok(&mut client, "CONFIG SET appendonly yes");
            wait_until("the first base is complete", || {
                common::line::persistence(&mut client, "aof_rewrite_in_progress") == "0"
            });
        }
        _ => {}
    }
    let acknowledged = &AtomicU64::new(0);
    let progress: Vec<Progress> = std::thread::scope(|scope| {
        let port = server.port();
        let writers: Vec<_> =
            (0..WRITERS).map(|writer| scope.spawn(move || write(port, writer, round, acknowledged))).collect();
        wait_until("clients write", || acknowledged.load(Ordering::Relaxed) >= ACKNOWLEDGED_MIN);
        if round.condition == Condition::Rewrite {
            std::thread::sleep(round.kill_after / 2);
            ok(&mut client, "BGREWRITEAOF");
        }
        std::thread::sleep(round.kill_after);
        server.signal(libc::SIGKILL);
        writers.into_iter().map(|writer| writer.join().expect("a writer")).collect()
    });
    server.end();
    let log = server.log();
    assert_eq!(log.contains("There is no tail"), round.condition == Condition::NoTail, "{log}");
    if tail.is_dir() {
        fs::remove_dir(&tail).expect("an empty directory");
    }
    let mut server = Server::start(&[&args[..], &["--appendonly", "yes"]].concat());
    let mut client = server.client();
    for (writer, progress) in progress.into_iter().enumerate() {
        check(&mut client, writer, progress);
    }
    assert!(!server.log().contains("was not used"), "{}", server.log());
    server.signal(libc::SIGTERM);
    server.end();
    assert!(!tail.exists(), "{}", server.log());
}

fn number_from(variable: &str, usual: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn acknowledged_writes_survive_a_kill() {
    let first = number_from("KVICK_TEST_SEED", 1);
    for seed in first..first + number_from("KVICK_TEST_ROUNDS", 8) {
        let round = Round::new(seed);
        println!("seed {seed}: {round:?}");
        run(&round);
    }
}

/// Writes until the tail exists, and says where its records belong.
fn wait_for_anchor(client: &mut Connection, dir: &TempDir) {
    wait_until("the tail has an anchor", || {
        client.incr::<_, _, ()>("counter", 1).expect("a reply");
        let tail = fs::read(tail_of(dir)).unwrap_or_default();
        tail.windows(9).any(|bytes| bytes == b".incr.aof")
    });
}

/// Starts a server whose files cannot grow beyond so many bytes, as if the disk were full. It must end by itself.
fn start_on_full_disk(dir: &Path, bytes: u64) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvick-server"));
    command.args(["--port", "0", "--unixsocket", "socket", "--appendonly", "yes", "--dir"]).arg(dir);
    // SAFETY: system calls alone, on memory of their own.
    unsafe {
        command.pre_exec(move || {
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            // Writes then fail instead of ending the process.
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            match libc::setrlimit(libc::RLIMIT_FSIZE, &limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    command.output().expect("the server's binary")
}

#[test]
fn full_disk_delays_recovery_and_loses_nothing() {
    const WRITES: usize = 100;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().to_str().expect("a plain path");
    let args = ["--dir", path, "--appendonly", "yes", "--enable-debug-command", "yes"];
    let mut server = Server::start(&args);
    let mut client = server.client();
    wait_for_anchor(&mut client, &dir);
    // The file does not grow before the process ends. A write that wakes the thread waits for it, later ones do not.
    ok(&mut client, "DEBUG AOF-FLUSH-SLEEP 600000000");
    wait_until("the thread writes", || {
        let mut other = server.client();
        other.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
        other.set::<_, _, ()>("first", 1).is_ok()
    });
    (0..WRITES).for_each(|n| client.set::<_, _, ()>(format!("key-{n}"), n).expect("a reply"));
    server.signal(libc::SIGKILL);
    server.end();
    let increment = dir.path().join("appendonlydir/appendonly.aof.1.incr.aof");
    let before = fs::metadata(&increment).expect("an increment").len();
    for room in [0, 1, 1000] {
        let output = start_on_full_disk(dir.path(), before + room);
        let log = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && log.contains("Fatal error: can't complete"), "{log}");
        assert_eq!(fs::metadata(&increment).expect("an increment").len(), before + room);
    }
    let server = Server::start(&args);
    let mut client = server.client();
    (0..WRITES).for_each(|n| assert_eq!(client.get(format!("key-{n}")), Ok(n)));
    assert!(server.log().contains("were appended from"), "{}", server.log());
}

/// Files in place of the tail that the next start must not use, each with the reason that it logs.
#[test]
fn tail_that_is_not_of_the_file_is_reported() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().to_str().expect("a plain path");
    let args = ["--dir", path, "--appendonly", "yes"];
    let mut server = Server::start(&args);
    let mut client = server.client();
    client.set::<_, _, ()>("key", 1).expect("a reply");
    wait_for_anchor(&mut client, &dir);
    server.signal(libc::SIGKILL);
    server.end();
    let tail = fs::read(tail_of(&dir)).expect("a tail");
    let name = tail.windows(9).position(|bytes| bytes == b".incr.aof").expect("the name of the increment");
    let mut foreign = tail.clone();
    foreign[name] ^= 1;
    let mut invalid = tail.clone();
    invalid[0] ^= 1;
    // A torn anchor is as none.
    for (content, reason) in [(&invalid, Some("is not a tail")), (&foreign, None), (&tail[..5000].to_vec(), None)] {
        fs::write(tail_of(&dir), content).expect("a file");
        let mut server = Server::start(&args);
        let log = server.log();
        assert_eq!(log.contains("was not used"), reason.is_some(), "{log}");
        assert!(reason.is_none_or(|reason| log.contains(reason)), "{log}");
        assert_eq!(server.client().get("key"), Ok(1));
        server.signal(libc::SIGKILL);
        server.end();
    }
}
