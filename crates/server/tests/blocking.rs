//! Blocking commands: the order in which clients are served, and what ends a wait.

mod common;

use common::{Raw, Server, for_workers, wait_until};
use kvick_testing::WAIT_LIMIT;
use redis::{Connection, cmd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const NIL: &str = "*-1\r\n";

/// Number of blocked clients.
fn blocked(control: &mut Connection) -> usize {
    let info: String = cmd("INFO").arg("clients").query(control).expect("a page");
    let line = info.lines().find_map(|line| line.strip_prefix("blocked_clients:")).expect("the field");
    line.parse().expect("a number")
}

fn wait_for_blocked(control: &mut Connection, count: usize) {
    wait_until("that many clients are blocked", || blocked(control) == count);
}

/// A client that has sent this command and waits.
fn waiting(server: &Server, control: &mut Connection, words: &[&str]) -> Raw {
    let before = blocked(control);
    let mut raw = server.raw();
    raw.request(words);
    wait_for_blocked(control, before + 1);
    raw
}

fn push(control: &mut Connection, key: &str, elements: &[&str]) {
    let _: i64 = cmd("RPUSH").arg(key).arg(elements).query(control).expect("a length");
}

fn popped(key: &str, element: &str) -> String {
    format!("*2\r\n${}\r\n{key}\r\n${}\r\n{element}\r\n", key.len(), element.len())
}

#[test]
fn blocked_clients_are_served_in_order() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut clients: Vec<Raw> = (0..8).map(|_| waiting(server, &mut control, &["BLPOP", "queue", "0"])).collect();
        for n in 0..4 {
            push(&mut control, "queue", &[&n.to_string()]);
        }
        push(&mut control, "queue", &["4", "5", "6", "7", "rest"]);
        for (n, client) in clients.iter_mut().enumerate() {
            client.expect(&popped("queue", &n.to_string()));
        }
        let rest: Vec<String> = cmd("LRANGE").arg("queue").arg(0).arg(-1).query(&mut control).expect("a list");
        assert_eq!(rest, ["rest"]);
        wait_for_blocked(&mut control, 0);
    });
}

#[test]
fn requests_behind_a_blocked_one_are_executed_after_it() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut client = server.raw();
        client.send("BLPOP queue 0\r\nINCR n\r\nBLPOP queue 0\r\nINCR n\r\n");
        wait_for_blocked(&mut control, 1);
        assert_eq!(cmd("GET").arg("n").query::<Option<i64>>(&mut control), Ok(None));
        push(&mut control, "queue", &["x"]);
        client.expect(&popped("queue", "x"));
        client.expect(":1\r\n");
        wait_for_blocked(&mut control, 1);
        push(&mut control, "queue", &["y"]);
        client.expect(&popped("queue", "y"));
        client.expect(":2\r\n");
    });
}

#[test]
fn a_blocking_command_times_out() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let (mut client, mut other) = (server.raw(), server.raw());
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // Other requests wake the worker at any time.
            scope.spawn(|| {
                let began = Instant::now();
                while !ended.load(Ordering::Relaxed) && began.elapsed() < WAIT_LIMIT {
                    other.ask(&["PING"], "+PONG\r\n");
                }
            });
            for wait_ms in 1..40 {
                let began = Instant::now();
                client.ask(&["BLPOP", "nothing", &format!("0.{wait_ms:03}")], NIL);
                assert!(began.elapsed() >= Duration::from_millis(wait_ms), "{:?} of {wait_ms} ms", began.elapsed());
            }
            ended.store(true, Ordering::Relaxed);
        });
        client.ask(&["BLMOVE", "nothing", "other", "LEFT", "RIGHT", "0.001"], NIL);
        client.ask(&["BLPOP", "nothing", "-1"], "-ERR timeout is negative\r\n");
        client.ask(&["BLPOP", "nothing", "1e300"], "-ERR timeout is out of range\r\n");
        client.ask(&["BLPOP", "nothing", "soon"], "-ERR timeout is not a float or out of range\r\n");
        let huge = waiting(server, &mut control, &["BLPOP", "nothing", "9000000000000"]);
        drop(huge);
        wait_for_blocked(&mut control, 0);
    });
}

#[test]
fn client_unblock_unblocks_a_client() {
    for_workers(&[], |server| {
        let mut control = server.client();
        for (reason, reply) in
            [(&[][..], NIL), (&["TIMEOUT"], NIL), (&["ERROR"], "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n")]
        {
            let mut client = server.raw();
            client.request(&["CLIENT", "ID"]);
            let id = client.line().trim_start_matches(':').trim().to_owned();
            client.request(&["BLPOP", "nothing", "0"]);
            wait_for_blocked(&mut control, 1);
            let unblock = |control: &mut Connection| {
                cmd("CLIENT").arg("UNBLOCK").arg(&id).arg(reason).query::<i64>(control).expect("a number")
            };
            assert_eq!(unblock(&mut control), 1);
            client.expect(reply);
            assert_eq!(unblock(&mut control), 0);
            client.ask(&["PING"], "+PONG\r\n");
        }
    });
}

/// The INFO commandstats line of a command, without times and histograms.
fn counted(control: &mut Connection, command: &str) -> String {
    let info: String = cmd("INFO").arg("commandstats").query(control).expect("a page");
    let name = format!("cmdstat_{command}:");
    let line = info.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or_default();
    let numbers = line.split(',').filter(|field| !field.starts_with("usec"));
    numbers.collect::<Vec<_>>().join(" ")
}

#[test]
fn a_blocking_command_is_counted_once() {
    for_workers(&[], |server| {
        let mut control = server.client();
        for (unblock, counts) in [
            (None, "calls=1 rejected_calls=0 failed_calls=0"),
            (Some("TIMEOUT"), "calls=1 rejected_calls=0 failed_calls=0"),
            (Some("ERROR"), "calls=1 rejected_calls=1 failed_calls=0"),
        ] {
            let _: () = cmd("CONFIG").arg("RESETSTAT").query(&mut control).expect("done");
            let mut client = server.raw();
            client.request(&["CLIENT", "ID"]);
            let id = client.line().trim_start_matches(':').trim().to_owned();
            client.request(&["BLPOP", "queue", "0"]);
            wait_for_blocked(&mut control, 1);
            assert_eq!(counted(&mut control, "blpop"), "");
            match unblock {
                None => push(&mut control, "queue", &["element"]),
                Some(reason) => {
                    let unblocked = cmd("CLIENT").arg("UNBLOCK").arg(&id).arg(reason).query(&mut control);
                    assert_eq!(unblocked, Ok(1));
                }
            }
            assert_eq!(counted(&mut control, "blpop"), counts);
            wait_for_blocked(&mut control, 0);
        }
        let _: () = cmd("CONFIG").arg("RESETSTAT").query(&mut control).expect("done");
        server.raw().ask(&["BLPOP", "queue", "0.01"], NIL);
        assert_eq!(counted(&mut control, "blpop"), "calls=1 rejected_calls=0 failed_calls=0");
    });
}

#[test]
fn clients_delayed_by_a_pause_count_as_blocked() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let _: () = cmd("CLIENT").arg("PAUSE").arg(100_000).arg("WRITE").query(&mut control).expect("done");
        let mut client = waiting(server, &mut control, &["SET", "key", "value"]);
        let _: () = cmd("CLIENT").arg("UNPAUSE").query(&mut control).expect("done");
        client.expect("+OK\r\n");
        wait_for_blocked(&mut control, 0);
    });
}

#[test]
fn a_closed_client_does_not_block() {
    for_workers(&[], |server| {
        let mut control = server.client();
        // One client waits, and has more to wait for; the other has sent all that it will before it is read.
        let mut first = waiting(server, &mut control, &["BLPOP", "queue", "0"]);
        first.request(&["BLPOP", "other", "0"]);
        let mut second = server.raw();
        second.send(b"PING\r\nBLPOP other 0\r\n");
        second.end();
        second.expect("+PONG\r\n");
        wait_for_blocked(&mut control, 1);
        push(&mut control, "queue", &["element"]);
        drop(first);
        wait_until("both are gone", || {
            let list: String = cmd("CLIENT").arg("LIST").query(&mut control).expect("a list");
            list.lines().count() == 1
        });
        push(&mut control, "other", &["element"]);
        assert_eq!(cmd("LLEN").arg("other").query::<i64>(&mut control), Ok(1));
    });
}

#[test]
fn a_closed_client_takes_no_elements() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let first = waiting(server, &mut control, &["BLPOP", "queue", "0"]);
        let mut second = waiting(server, &mut control, &["BLPOP", "queue", "0"]);
        let killed = waiting(server, &mut control, &["BLPOP", "queue", "0"]);
        let mut fourth = waiting(server, &mut control, &["BLPOP", "queue", "0"]);
        drop(first);
        wait_for_blocked(&mut control, 3);
        let list: String = cmd("CLIENT").arg("LIST").query(&mut control).expect("a list");
        let ids = list.lines().filter(|line| line.contains("cmd=blpop")).map(|line| line.split([' ', '=']).nth(1));
        let third = ids.flatten().nth(1).expect("the third").to_owned();
        let _: i64 = cmd("CLIENT").arg("KILL").arg("ID").arg(third).query(&mut control).expect("a number");
        wait_for_blocked(&mut control, 2);
        push(&mut control, "queue", &["1", "2", "3"]);
        second.expect(&popped("queue", "1"));
        fourth.expect(&popped("queue", "2"));
        drop(killed);
        assert_eq!(cmd("LLEN").arg("queue").query::<i64>(&mut control), Ok(1));
    });
}

#[test]
fn a_client_closed_by_the_reply_before_a_blocking_command_does_not_block() {
    // The reply is large enough to be written at once, and exceeds the limit.
    for_workers(&["--client-output-buffer-limit", "normal 200000 0 0"], |server| {
        let mut control = server.client();
        let _: () = cmd("SET").arg("large").arg("x".repeat(300_000)).query(&mut control).expect("a key");
        let mut client = server.raw();
        // What is behind the first command is executed once that is served.
        client.send("BLPOP first 0\r\nGET large\r\nBLPOP second 0\r\n");
        wait_for_blocked(&mut control, 1);
        push(&mut control, "first", &["x"]);
        wait_until("it is closed", || {
            let list: String = cmd("CLIENT").arg("LIST").query(&mut control).expect("a list");
            list.lines().count() == 1
        });
        assert_eq!(blocked(&mut control), 0);
        push(&mut control, "second", &["stays"]);
        let left: Vec<String> = cmd("LRANGE").arg("second").arg(0).arg(-1).query(&mut control).expect("a list");
        assert_eq!(left, ["stays"]);
    });
}

#[test]
fn concurrent_pushes_and_blocking_pops_lose_nothing() {
    const EACH: usize = 400;
    const PAIRS: usize = 4;
    for_workers(&[], |server| {
        let sum: usize = std::thread::scope(|scope| {
            for pusher in 0..PAIRS {
                scope.spawn(move || {
                    let mut client = server.client();
                    for n in 0..EACH {
                        push(&mut client, &format!("queue:{}", n % 3), &[&(pusher * EACH + n).to_string()]);
                    }
                });
            }
            let poppers: Vec<_> = (0..PAIRS)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = server.client();
                        let mut pop = || -> (String, usize) {
                            let keys = ["queue:0", "queue:1", "queue:2"];
                            cmd("BLPOP").arg(&keys).arg(30).query(&mut client).expect("an element in time")
                        };
                        (0..EACH).map(|_| pop().1).sum::<usize>()
                    })
                })
                .collect();
            poppers.into_iter().map(|popper| popper.join().expect("no panic")).sum()
        });
        let all = EACH * PAIRS;
        assert_eq!(sum, all * (all - 1) / 2, "every element once");
    });
}

#[test]
fn thousands_of_blocked_clients_do_not_slow_others() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let waiting: Vec<Raw> = (0..2000)
            .map(|_| {
                let mut raw = server.raw();
                raw.request(&["BLPOP", "nothing", "0"]);
                raw
            })
            .collect();
        wait_for_blocked(&mut control, waiting.len());
        // Changes of other keys, and changes of the same key that serve no client.
        let before = server.cpu();
        for _ in 0..20 {
            let mut pipe = redis::pipe();
            for n in 0..100 {
                pipe.cmd("RPUSH").arg(format!("other:{n}")).arg("x").ignore();
                pipe.cmd("SET").arg("nothing").arg("x").ignore();
                pipe.cmd("DEL").arg("nothing").ignore();
            }
            let () = pipe.query(&mut control).expect("replies");
        }
        // Six thousand commands, each looking at two thousand clients, would take seconds.
        let used = server.cpu() - before;
        assert!(used < Duration::from_secs(2), "{used:?}");
        let _: i64 = cmd("DEL").arg("nothing").query(&mut control).expect("a number");
        drop(waiting);
        wait_for_blocked(&mut control, 0);
    });
}

#[test]
fn an_unblocked_command_appears_in_the_slow_log() {
    for_workers(&["--slowlog-log-slower-than", "0"], |server| {
        let mut control = server.client();
        let mut client = waiting(server, &mut control, &["BLPOP", "queue", "0"]);
        let logged = |control: &mut Connection| {
            let entries = cmd("SLOWLOG").arg("GET").arg(-1).query::<redis::Value>(control).expect("entries");
            format!("{entries:?}").matches("\"BLPOP\"").count()
        };
        assert_eq!(logged(&mut control), 0);
        push(&mut control, "queue", &["x"]);
        client.expect(&popped("queue", "x"));
        assert_eq!(logged(&mut control), 1);
    });
}

#[test]
fn waits_for_acknowledgements_can_be_unblocked() {
    const UNBLOCKED: &str = "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n";
    for_workers(&[], |server| {
        let mut control = server.client();
        let cases: [(&[&str], &str); 2] =
            [(&["WAIT", "1", "0"], ":0\r\n"), (&["WAITAOF", "0", "1", "0"], "*2\r\n:0\r\n:0\r\n")];
        for (words, count) in cases {
            for (reason, reply) in [("TIMEOUT", count), ("ERROR", UNBLOCKED)] {
                let mut raw = server.raw();
                raw.request(&["CLIENT", "ID"]);
                let id = raw.line().trim_start_matches(':').trim_end().to_string();
                raw.request(words);
                wait_for_blocked(&mut control, 1);
                let unblock = |control: &mut Connection| -> i64 {
                    cmd("CLIENT").arg("UNBLOCK").arg(&id).arg(reason).query(control).expect("a number")
                };
                assert_eq!(unblock(&mut control), 1);
                raw.expect(reply);
                raw.ask(&["PING"], "+PONG\r\n");
                assert_eq!(unblock(&mut control), 0);
            }
        }
    });
}

#[test]
fn without_an_append_only_file_nothing_is_on_the_local_disk() {
    let server = Server::start(&[]);
    let mut raw = server.raw();
    raw.ask(&["WAITAOF", "0", "0", "0"], "*2\r\n:0\r\n:0\r\n");
    raw.ask(&["WAITAOF", "2", "0", "0"], "-ERR value is out of range, value must between 0 and 1\r\n");
    raw.ask(&["WAITAOF", "0", "x", "0"], "-ERR value is out of range, must be positive\r\n");
}
