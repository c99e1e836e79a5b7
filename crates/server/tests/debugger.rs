//! Script debugging: forked and synchronous sessions, and how they end.

mod common;

use common::{Raw, Server, for_workers, wait_until};
use redis::{Connection, cmd};
use std::io::Write;
use std::process::{Command, Stdio};

const SCRIPT: &str = "local n = redis.call('incr', KEYS[1])\nlocal m = n * 10\nreturn m";

/// The output of a session that stops at a line of the script.
fn stopped(line: usize) -> String {
    let text = SCRIPT.lines().nth(line - 1).expect("a line");
    format!("+* Stopped at {line}, stop reason = step over\r\n+-> {line}   {text}\r\n")
}

/// Starts a session on a new connection.
fn begin(server: &Server, mode: &str) -> Raw {
    let mut raw = server.raw();
    raw.ask(&["SCRIPT", "DEBUG", mode], "+OK\r\n");
    raw.ask(&["EVAL", SCRIPT, "1", "counter"], &format!("*2\r\n{}", stopped(1)));
    raw
}

/// Runs the first line, and continues to the end.
fn step_and_finish(raw: &mut Raw) {
    let calls = "+<command> incr counter\r\n+<reply> 1\r\n";
    raw.ask(&["step"], &format!("*4\r\n{calls}{}", stopped(2)));
    raw.ask(&["print", "n"], "*1\r\n+<value> 1\r\n");
    raw.ask(&["continue"], "*1\r\n+<endsession>\r\n:10\r\n");
    raw.expect_end();
}

fn counter(client: &mut Connection) -> Option<i64> {
    cmd("GET").arg("counter").query(client).expect("GET")
}

fn field(client: &mut Connection, name: &str) -> String {
    let info: String = cmd("INFO").query(client).expect("INFO");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.expect("a field of INFO").to_string()
}

/// Processes that the server has forked.
fn children(server: &Server) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the server's threads");
    let of = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
    let all: Vec<String> = tasks.flatten().map(of).collect();
    all.iter().flat_map(|line| line.split_whitespace()).filter_map(|number| number.parse().ok()).collect()
}

fn is_alive(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
}

#[test]
fn writes_of_a_synchronous_session_persist() {
    for_workers(&[], |server| {
        let mut raw = begin(server, "SYNC");
        step_and_finish(&mut raw);
        assert_eq!(counter(&mut server.client()), Some(1));
    });
}

#[test]
fn writes_of_a_forked_session_are_discarded_and_others_are_served() {
    let args = ["--appendonly", "yes", "--notify-keyspace-events", "KEA", "--enable-debug-command", "yes"];
    for_workers(&args, |server| {
        let mut client = server.client();
        let clients = || field(&mut server.client(), "connected_clients");
        let before = clients();
        let mut sessions = [begin(server, "YES"), begin(server, "YES")];
        // The sessions have their connections for themselves.
        wait_until("the server has let go of them", || clients() == before);
        cmd("SET").arg("counter").arg(41).exec(&mut client).expect("SET");
        let result: i64 = cmd("EVAL").arg(SCRIPT).arg(1).arg("counter").query(&mut client).expect("EVAL");
        assert_eq!(result, 420);
        for raw in &mut sessions {
            // They began before.
            step_and_finish(raw);
        }
        assert_eq!(counter(&mut client), Some(42));
        wait_until("the sessions have ended", || children(server).is_empty());
        assert_eq!(field(&mut client, "total_forks"), "2");
        // Nor is it in the file that keeps the data.
        cmd("DEBUG").arg("LOADAOF").exec(&mut client).expect("DEBUG LOADAOF");
        assert_eq!(counter(&mut client), Some(42));
    });
}

#[test]
fn a_forked_session_sees_a_snapshot_and_has_all_commands() {
    for_workers(&[], |server| {
        let mut client = server.client();
        for number in 0..1000 {
            cmd("SET").arg(format!("key:{number}")).arg(number).exec(&mut client).expect("SET");
        }
        let mut raw = begin(server, "YES");
        cmd("FLUSHALL").exec(&mut client).expect("FLUSHALL");
        raw.ask(&["redis", "dbsize"], "*2\r\n+<command> dbsize\r\n+<reply> 1000\r\n");
        raw.ask(&["redis", "get", "key:999"], "*2\r\n+<command> get key:999\r\n+<reply> \"999\"\r\n");
        raw.ask(&["redis", "unlink", "key:1"], "*2\r\n+<command> unlink key:1\r\n+<reply> 1\r\n");
        raw.ask(&["redis", "publish", "c", "m"], "*2\r\n+<command> publish c m\r\n+<reply> 0\r\n");
        raw.ask(&["redis", "flushall"], "*2\r\n+<command> flushall\r\n+<reply> \"+OK\"\r\n");
        raw.ask(&["redis", "dbsize"], "*2\r\n+<command> dbsize\r\n+<reply> 0\r\n");
        raw.request(&["abort"]);
        raw.expect("*1\r\n+<endsession>\r\n-ERR script aborted for user request script: on @user_script:1.\r\n");
        raw.expect_end();
    });
}

#[test]
fn a_session_ends_with_its_client_or_the_server() {
    for mode in ["YES", "SYNC"] {
        for_workers(&[], |server| {
            drop(begin(server, mode));
            let mut client = server.client();
            let alive = cmd("PING").query::<String>(&mut client);
            assert_eq!(alive.as_deref(), Ok("PONG"));
            wait_until("the session has ended", || children(server).is_empty());
            // The script of a synchronous session continues without its client.
            let expected = (mode == "SYNC").then_some(1);
            wait_until("the script has ended", || counter(&mut client) == expected);
        });
    }
    let mut server = Server::start(&[]);
    let _session = begin(&server, "YES");
    let [child] = children(&server)[..] else { panic!("one session") };
    assert!(is_alive(child));
    server.signal(libc::SIGTERM);
    assert_eq!(server.end(), Some(0));
    wait_until("the session has ended", || !is_alive(child));

    let mut server = Server::start(&[]);
    let mut spinning = server.raw();
    spinning.ask(&["SCRIPT", "DEBUG", "YES"], "+OK\r\n");
    spinning.request(&["EVAL", "while true do\nlocal a\nend", "0"]);
    assert!(spinning.line().starts_with('*'));
    spinning.request(&["continue"]);
    let [child] = children(&server)[..] else { panic!("one session") };
    server.signal(libc::SIGKILL);
    assert_eq!(server.end(), None);
    wait_until("a session does not outlive a server that was killed", || !is_alive(child));
}

#[test]
fn an_abandoned_session_does_not_spin() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    raw.ask(&["SCRIPT", "DEBUG", "YES"], "+OK\r\n");
    raw.request(&["EVAL", "while true do\nlocal a\nend", "0"]);
    assert!(raw.line().starts_with('*'));
    raw.request(&["continue"]);
    drop(raw);
    wait_until("the session has ended", || children(&server).is_empty());
}

#[test]
fn a_synchronous_session_counts_as_a_long_script() {
    for_workers(&["--busy-reply-threshold", "20"], |server| {
        let mut client = server.client();
        let mut raw = begin(server, "SYNC");
        wait_until("others are told so", || {
            let outcome = cmd("EVAL").arg("return 1").arg(0).query::<i64>(&mut client);
            outcome.is_err_and(|error| error.to_string().to_lowercase().contains("busy"))
        });
        cmd("SCRIPT").arg("KILL").exec(&mut client).expect("SCRIPT KILL");
        raw.expect("*1\r\n+<endsession>\r\n-ERR Script killed by user with SCRIPT KILL.");
        assert!(raw.line().ends_with("@user_script:1."));
        raw.expect_end();
        assert_eq!(counter(&mut client), None);
    });
}

#[test]
fn only_eval_of_the_requesting_client_is_debugged() {
    for_workers(&[], |server| {
        let mut raw = server.raw();
        let sum = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
        raw.ask(&["EVAL", "return redis.breakpoint()", "0"], "$-1\r\n");
        raw.ask(&["EVAL", "return redis.debug('x')", "0"], "$-1\r\n");
        raw.ask(&["SCRIPT", "DEBUG", "yes", "LUA"], "+OK\r\n");
        raw.ask(&["EVALSHA", sum, "0"], "-ERR Please use EVAL instead of EVALSHA for debugging\r\n");
        raw.ask(&["EVALSHA", "x", "0"], "-NOSCRIPT No matching script.\r\n");
        raw.ask(&["FCALL", "x", "0"], "-ERR Function not found\r\n");
        raw.ask(&["MULTI"], "+OK\r\n");
        raw.ask(&["EVAL", "return 1", "0"], "+QUEUED\r\n");
        raw.ask(&["EXEC"], "*1\r\n-ERR EVAL cannot be debugged inside a transaction\r\n");
        raw.ask(&["SCRIPT", "DEBUG", "no"], "+OK\r\n");
        raw.ask(&["EVAL", "return 1", "0"], ":1\r\n");
        raw.ask(&["SCRIPT", "DEBUG", "maybe"], "-ERR Use SCRIPT DEBUG YES/SYNC/NO\r\n");
        let unknown = "-ERR No scripting engine found with name 'perl' to enable debug\r\n";
        raw.ask(&["SCRIPT", "DEBUG", "yes", "perl"], unknown);
    });
}

#[test]
fn a_session_answers_earlier_requests_and_drops_later_ones() {
    for_workers(&[], |server| {
        for mode in ["YES", "SYNC"] {
            let mut raw = server.raw();
            let line = |words: &[&str]| words.join(" ") + "\r\n";
            let debug = line(&["SCRIPT", "DEBUG", mode]);
            raw.send(line(&["PING"]) + &debug + &line(&["EVAL", "\"return 1\"", "0"]) + &line(&["SET", "behind", "1"]));
            raw.expect("+PONG\r\n+OK\r\n*2\r\n+* Stopped at 1, stop reason = step over\r\n+-> 1   return 1\r\n");
            raw.ask(&["c"], "*1\r\n+<endsession>\r\n:1\r\n");
            raw.expect_end();
            let behind: Option<String> = cmd("GET").arg("behind").query(&mut server.client()).expect("GET");
            assert_eq!(behind, None);
        }
    });
}

#[test]
fn a_script_that_does_not_compile_starts_no_session() {
    let server = Server::start(&[]);
    for mode in ["YES", "SYNC"] {
        let mut raw = server.raw();
        raw.ask(&["SCRIPT", "DEBUG", mode], "+OK\r\n");
        raw.ask(&["EVAL", "return return", "0"], "*1\r\n+<endsession>\r\n-ERR Error compiling script (new function): ");
        assert!(raw.line().contains("user_script:1"));
        raw.expect_end();
    }
}

/// With the program `valkey-cli` if `VALKEY_CLI` says where it is.
#[test]
fn valkey_cli_completes_a_session() {
    let Some(program) = std::env::var_os("VALKEY_CLI") else { return };
    for_workers(&[], |server| {
        for (option, left) in [("--ldb", None), ("--ldb-sync-mode", Some(1))] {
            cmd("DEL").arg("counter").exec(&mut server.client()).expect("DEL");
            let file = server.dir().join("script.lua");
            std::fs::write(&file, SCRIPT).expect("a file");
            let port = server.port().to_string();
            let mut client = Command::new(&program)
                .args(["-p", &port, option, "--eval"])
                .arg(&file)
                .args(["counter", ",", "argument"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("the program");
            let mut input = client.stdin.take().expect("its input");
            input.write_all(b"step\nprint n\nprint ARGV\nlist\ncontinue\nquit\n").expect("it reads");
            drop(input);
            let output = String::from_utf8_lossy(&client.wait_with_output().expect("its output").stdout).into_owned();
            for expected in ["<command> incr counter", "<reply> 1", "<value> 1", "{argument; }", "-> 2", "(integer) 10"]
            {
                assert!(output.contains(expected), "{option}: {expected} is missing:\n{output}");
            }
            assert_eq!(counter(&mut server.client()), left, "{option}");
        }
    });
}
