//! The number of workers changes while clients of all kinds are connected: no connection is lost, and no reply or
//! message is lost, doubled or out of order.

mod common;

use common::{Raw, Server, processors, wait_until};
use kvick_testing::{SetOnDrop, WAIT_LIMIT};
use redis::{Connection, cmd};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;
use std::time::Duration;

/// Connections of each kind.
const EACH: usize = 20;
/// Changes of the number of workers.
const CHANGES: usize = 20;
/// Least number of rounds of each kind of client during the changes.
const ROUNDS: usize = 50;

fn set_workers(control: &mut Connection, workers: usize) {
    let set = cmd("CONFIG").arg("SET").arg("io-threads").arg(workers).query::<()>(control);
    set.unwrap_or_else(|error| panic!("{workers} workers: {error}"));
}

fn info(control: &mut Connection, field: &str) -> String {
    info_of(control, "everything", field)
}

fn info_of(control: &mut Connection, section: &str, field: &str) -> String {
    let text: String = cmd("INFO").arg(section).query(control).expect("INFO");
    let line = text.lines().find_map(|line| line.strip_prefix(&format!("{field}:")));
    line.unwrap_or_else(|| panic!("no {field} in INFO")).to_owned()
}

/// The number of connections of each worker that has been started.
fn connections(control: &mut Connection) -> Vec<usize> {
    let text: String = cmd("INFO").arg("cpu").query(control).expect("INFO");
    let lines = text.lines().filter(|line| line.starts_with("kvick_worker_"));
    lines.map(|line| line.rsplit('=').next().and_then(|count| count.parse().ok()).expect("a number")).collect()
}

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// Counts its own key up, with several requests in flight.
fn count(server: &Server, name: usize, stop: &AtomicBool, rounds: &AtomicUsize) {
    let (mut client, key) = (server.raw(), format!("counter:{name}"));
    let mut expected = 0;
    while !stop.load(Ordering::Relaxed) {
        (0..8).for_each(|_| client.request(&["INCR", &key]));
        for _ in 0..8 {
            expected += 1;
            client.expect(&format!(":{expected}\r\n"));
        }
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Holds a transaction half done for a moment, and a watch.
fn transact(server: &Server, name: usize, stop: &AtomicBool, rounds: &AtomicUsize) {
    let (mut client, key) = (server.raw(), format!("transaction:{name}"));
    let mut expected = 0;
    while !stop.load(Ordering::Relaxed) {
        client.ask(&["WATCH", &key], "+OK\r\n");
        client.ask(&["MULTI"], "+OK\r\n");
        client.ask(&["INCR", &key], "+QUEUED\r\n");
        std::thread::sleep(Duration::from_millis(5));
        expected += 1;
        client.ask(&["EXEC"], &format!("*1\r\n:{expected}\r\n"));
        client.ask(&["WATCH", &key], "+OK\r\n");
        expected += 1;
        client.ask(&["INCR", &key], &format!(":{expected}\r\n"));
        client.ask(&["MULTI"], "+OK\r\n");
        client.ask(&["EXEC"], "*-1\r\n");
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Blocks on a list, and gets what another client pushes.
fn block(server: &Server, name: usize, stop: &AtomicBool, rounds: &AtomicUsize) {
    let (mut blocked, mut pusher, key) = (server.raw(), server.raw(), format!("queue:{name}"));
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        blocked.request(&["BLPOP", &key, "0"]);
        // Sometimes it blocks, and sometimes the element is there before.
        if number % 3 > 0 {
            std::thread::sleep(Duration::from_millis(3));
        }
        pusher.ask(&["RPUSH", &key, &number.to_string()], ":1\r\n");
        blocked.expect(&format!("*2\r\n{}{}", bulk(&key), bulk(&number.to_string())));
        // A wait that ends by itself.
        blocked.ask(&["BLPOP", &key, "0.01"], "*-1\r\n");
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Subscribes to a channel and a pattern, and gets every message of a publisher once and in order.
fn subscribe(server: &Server, ready: &AtomicUsize, rounds: &AtomicUsize) {
    let mut client = server.raw();
    client.ask(&["SUBSCRIBE", "news"], &format!("*3\r\n{}{}:1\r\n", bulk("subscribe"), bulk("news")));
    client.ask(&["PSUBSCRIBE", "other:*"], &format!("*3\r\n{}{}:2\r\n", bulk("psubscribe"), bulk("other:*")));
    ready.fetch_add(1, Ordering::SeqCst);
    for number in 1.. {
        let text = number.to_string();
        client.expect("*");
        match client.line().as_str() {
            "3" => client.expect(&format!("{}{}", bulk("message"), bulk("news"))),
            // The publisher's last message.
            _ => return client.skip_to("end"),
        }
        client.expect(&bulk(&text));
        let words: String = ["pmessage", "other:*", "other:x", &text].map(bulk).concat();
        client.expect(&format!("*4\r\n{words}"));
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

fn publish(server: &Server, subscribers: usize, stop: &AtomicBool) {
    let mut client = server.raw();
    let expected = format!(":{subscribers}\r\n");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let text = number.to_string();
        client.request(&["PUBLISH", "news", &text]);
        client.request(&["PUBLISH", "other:x", &text]);
        client.expect(&expected);
        client.expect(&expected);
    }
    client.ask(&["PUBLISH", "other:x", "end"], &expected);
}

/// Caches a key, and hears of each change before it reads a newer value.
fn cache(server: &Server, name: usize, stop: &AtomicBool, rounds: &AtomicUsize) {
    let (mut reader, mut writer, key) = (server.raw(), server.raw(), format!("cached:{name}"));
    reader.request(&["HELLO", "3"]);
    reader.skip_to("*0");
    reader.ask(&["CLIENT", "TRACKING", "ON"], "+OK\r\n");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let text = number.to_string();
        writer.ask(&["SET", &key, &text], "+OK\r\n");
        reader.ask(&["GET", &key], &bulk(&text));
        writer.ask(&["SET", &key, "new"], "+OK\r\n");
        reader.expect(&format!(">2\r\n{}*1\r\n{}", bulk("invalidate"), bulk(&key)));
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sees every command of another client.
fn monitor(server: &Server, stop: &AtomicBool, rounds: &AtomicUsize) {
    let mut other = server.raw();
    // It gets many lines, too many to be read byte by byte.
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    stream.write_all(b"MONITOR\r\n").expect("an open connection");
    let mut lines = BufReader::new(stream).lines();
    assert_eq!(lines.next().expect("a reply").expect("an open connection"), "+OK");
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let text = format!("seen-{number}");
        other.ask(&["ECHO", &text], &bulk(&text));
        let is_ours = |line: &String| line.contains("\"ECHO\"");
        let line = lines.by_ref().map(|line| line.expect("an open connection")).find(is_ours).expect("a line");
        assert!(line.ends_with(&format!("\"{text}\"")), "{line} instead of {text}");
        rounds.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn clients_of_all_kinds_keep_their_connections_while_workers_come_and_go() {
    keep_connections(&[]);
}

#[test]
fn they_do_so_while_replies_wait_for_the_disk() {
    keep_connections(&["--appendonly", "yes", "--appendfsync", "always"]);
}

fn keep_connections(args: &[&str]) {
    let server = Server::start(&[&["--io-threads", "1"], args].concat());
    let replica = Server::start(&["--replicaof", &format!("127.0.0.1 {}", server.port())]);
    let (mut control, mut other) = (server.client(), replica.client());
    wait_until("the replica is in sync", || info(&mut other, "master_link_status") == "up");
    let idle: Vec<Raw> = (0..200).map(|_| server.raw()).collect();
    let (stop, ready) = (AtomicBool::new(false), AtomicUsize::new(0));
    let rounds: [AtomicUsize; 6] = Default::default();
    scope(|scope| {
        let (stop, ready, rounds, server) = (&stop, &ready, &rounds, &server);
        // Failed checks of the main thread end the others too.
        let end = SetOnDrop(stop);
        for name in 0..EACH {
            scope.spawn(move || count(server, name, stop, &rounds[0]));
            scope.spawn(move || transact(server, name, stop, &rounds[1]));
            scope.spawn(move || block(server, name, stop, &rounds[2]));
            scope.spawn(move || subscribe(server, ready, &rounds[3]));
            scope.spawn(move || cache(server, name, stop, &rounds[4]));
        }
        scope.spawn(move || monitor(server, stop, &rounds[5]));
        wait_until("all have subscribed", || ready.load(Ordering::SeqCst) == EACH);
        scope.spawn(move || publish(server, EACH, stop));
        for change in 0..CHANGES {
            let workers = [4, 1, 2, 8, 3][change % 5];
            set_workers(&mut control, workers);
            wait_until("connections have moved", || {
                let counts = connections(&mut control);
                counts.iter().enumerate().all(|(worker, count)| (worker < workers) == (*count > 0))
            });
            let before: Vec<usize> = rounds.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            wait_until("all kinds of clients have gone on", || {
                rounds.iter().zip(&before).all(|(count, before)| count.load(Ordering::Relaxed) > before + 2)
            });
        }
        wait_until("enough rounds", || rounds.iter().all(|count| count.load(Ordering::Relaxed) > ROUNDS));
        drop(end);
    });
    assert!(info(&mut control, "kvick_connections_moved").parse::<usize>().expect("a number") > idle.len());
    for mut client in idle {
        client.ask(&["PING"], "+PONG\r\n");
    }
    wait_until("the replica has all writes", || {
        info(&mut control, "master_repl_offset") == info(&mut other, "slave_repl_offset")
    });
    let digest = |client: &mut Connection| cmd("DBSIZE").query::<usize>(client).expect("a number");
    assert_eq!(digest(&mut control), digest(&mut other));
    assert_eq!(info(&mut control, "sync_full"), "1", "the replica's link was never lost");
    assert_eq!(info(&mut control, "rejected_connections"), "0");
}

/// Runs something while clients keep the workers busy.
fn under_load(server: &Server, run: impl FnOnce()) {
    let (stop, rounds) = (AtomicBool::new(false), AtomicUsize::new(0));
    scope(|scope| {
        let (stop, rounds) = (&stop, &rounds);
        let end = SetOnDrop(stop);
        for name in 0..8 {
            scope.spawn(move || count(server, name, stop, rounds));
        }
        // The clients take processor time as well: a request that takes long makes the load certain.
        for name in 0..4 {
            scope.spawn(move || {
                let mut client = server.raw();
                let script = format!("local n = 0 for i = 1, 100000 do n = n + i end return {name}");
                while !stop.load(Ordering::Relaxed) {
                    client.ask(&["EVAL", &script, "1", "key"], &format!(":{name}\r\n"));
                }
            });
        }
        run();
        drop(end);
    });
}

#[test]
fn number_of_workers_stops_at_the_number_of_cores() {
    let cores = processors();
    let first = cores.split(['-', ',']).next().expect("a core");
    let server = Server::start(&["--io-threads", "4", "--io-threads-min", "1", "--server-cpulist", first]);
    let mut control = server.client();
    under_load(&server, || {
        let mut busy = 0;
        wait_until("the worker was busy for three seconds", || {
            let fraction = info(&mut control, "kvick_worker_0")
                .split("busy=")
                .nth(1)
                .and_then(|rest| rest.split(',').next()?.parse::<f64>().ok());
            busy = if fraction.expect("a fraction") >= 0.8 { busy + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(100));
            busy == 30
        });
        assert_eq!(info(&mut control, "kvick_workers_active"), "1");
    });
    // Without a setting for the least number, all are active.
    cmd("CONFIG").arg("SET").arg("io-threads-min").arg(0).exec(&mut control).expect("CONFIG SET");
    assert_eq!(info(&mut control, "kvick_workers_active"), "4");
}

#[test]
fn number_of_workers_follows_the_load() {
    let server = Server::start(&["--io-threads", "64", "--io-threads-min", "1"]);
    let mut control = server.client();
    assert_eq!(info(&mut control, "kvick_workers_active"), "1");
    under_load(&server, || {
        wait_until("more workers are active", || info(&mut control, "kvick_workers_active") != "1");
        assert!(info(&mut control, "kvick_workers_reason").starts_with("load: "));
    });
    let mut active = usize::MAX;
    while active > 1 {
        // The number shrinks to the most that was needed during the last ten seconds.
        wait_until("fewer workers are active", || {
            // Frequent questions would be a load of their own.
            std::thread::sleep(Duration::from_millis(500));
            let now = info_of(&mut control, "cpu", "kvick_workers_active").parse().expect("a number");
            std::mem::replace(&mut active, now) > now
        });
    }
    assert!(info(&mut control, "kvick_workers_reason").contains("were enough for 10 seconds"));
}

#[test]
fn numbers_that_the_server_cannot_have_are_refused() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut control = server.client();
    let refused = cmd("CONFIG").arg("SET").arg("io-threads").arg(256).query::<()>(&mut control);
    assert!(refused.is_err_and(|error| error.to_string().contains("until it is started again")));
    set_workers(&mut control, 1);
    assert_eq!(info(&mut control, "kvick_workers_active"), "1");
    assert_eq!(info(&mut control, "kvick_workers_reason"), "configuration");
}
