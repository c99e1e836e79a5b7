//! MONITOR: which commands each client sees, in which order, and which are hidden.

mod common;

use common::{Raw, Server, for_workers, wait_until};
use redis::cmd;

/// A connection that monitors.
fn monitor(server: &Server) -> Raw {
    let mut monitor = server.raw();
    monitor.ask(&["MONITOR"], "+OK\r\n");
    monitor
}

/// The next line that a monitor is shown: the database, where the command came from, and the arguments as they are
/// quoted.
fn shown(monitor: &mut Raw) -> (String, String, String) {
    let line = monitor.line();
    let (time, rest) = line.split_once(" [").unwrap_or_else(|| panic!("got {line:?}"));
    let (seconds, us) = time.strip_prefix('+').and_then(|time| time.split_once('.')).expect("a time");
    assert!(seconds.parse::<u64>().is_ok_and(|seconds| seconds > 1_600_000_000) && us.len() == 6, "{time}");
    let (place, args) = rest.split_once("] ").expect("arguments");
    let (db, address) = place.split_once(' ').expect("an address");
    (db.to_owned(), address.to_owned(), args.to_owned())
}

/// The arguments of the next line that a monitor is shown.
fn args(monitor: &mut Raw) -> String {
    shown(monitor).2
}

#[test]
fn monitor_shows_database_and_client_but_no_admin_commands() {
    for_workers(&[], |server| {
        let (mut one, mut other) = (monitor(server), monitor(server));
        let mut client = server.raw();
        let port = client.port();
        client.ask(&["Set", "key", "a \"b\"\r\n\x01"], "+OK\r\n");
        client.ask(&["SELECT", "9"], "+OK\r\n");
        client.ask(&["CONFIG", "SET", "timeout", "0"], "+OK\r\n");
        client.ask(&["MGET", "key", "x"], "*2\r\n$-1\r\n$-1\r\n");
        client.request(&["LPUSH", "key"]);
        assert!(client.line().starts_with("-ERR wrong number"));
        client.ask(&["INCR", "n"], ":1\r\n");
        for monitor in [&mut one, &mut other] {
            for (db, words) in [
                ("0", r#""Set" "key" "a \"b\"\r\n\x01""#),
                ("9", r#""SELECT" "9""#),
                ("9", r#""MGET" "key" "x""#),
                ("9", r#""INCR" "n""#),
            ] {
                let expected = (db.to_owned(), format!("127.0.0.1:{port}"), words.to_owned());
                assert_eq!(shown(monitor), expected);
            }
        }
    });
}

#[test]
fn a_monitor_sees_its_own_commands_after_their_replies() {
    for_workers(&[], |server| {
        let mut monitor = monitor(server);
        monitor.ask(&["PING"], "+PONG\r\n");
        assert_eq!(args(&mut monitor), r#""PING""#);
        monitor.ask(&["GET", "k"], "-ERR Replica can't interact with the keyspace\r\n");
        // Asking again is no error, and is not answered.
        monitor.request(&["MONITOR"]);
        monitor.ask(&["ECHO", "x"], "$1\r\nx\r\n");
        assert_eq!(args(&mut monitor), r#""ECHO" "x""#);
    });
}

#[test]
fn monitor_hides_secrets() {
    for_workers(&[], |server| {
        let (mut monitor, mut client) = (monitor(server), server.raw());
        client.request(&["AUTH", "default", "secret"]);
        client.line();
        client.request(&["HELLO", "2", "AUTH", "default", "secret", "SETNAME", "x"]);
        client.line();
        assert_eq!(args(&mut monitor), r#""AUTH" "(redacted)" "(redacted)""#);
        assert_eq!(args(&mut monitor), r#""HELLO" "2" "AUTH" "(redacted)" "(redacted)" "SETNAME" "x""#);
    });
}

#[test]
fn a_transaction_is_shown_on_execution_with_exec_last() {
    for_workers(&[], |server| {
        let (mut monitor, mut client) = (monitor(server), server.raw());
        let multi = |client: &mut Raw| {
            client.ask(&["MULTI"], "+OK\r\n");
            client.ask(&["SET", "a", "1"], "+QUEUED\r\n");
        };
        multi(&mut client);
        client.ask(&["INCR", "a"], "+QUEUED\r\n");
        client.ask(&["EXEC"], "*2\r\n+OK\r\n:2\r\n");
        for words in [r#""MULTI""#, r#""SET" "a" "1""#, r#""INCR" "a""#, r#""EXEC""#] {
            assert_eq!(args(&mut monitor), words);
        }
        multi(&mut client);
        client.ask(&["DISCARD"], "+OK\r\n");
        client.ask(&["WATCH", "a"], "+OK\r\n");
        multi(&mut client);
        let () = cmd("SET").arg("a").arg("x").query(&mut server.client()).expect("OK");
        client.ask(&["EXEC"], "*-1\r\n");
        for words in [r#""MULTI""#, r#""DISCARD""#, r#""WATCH" "a""#, r#""MULTI""#] {
            assert_eq!(args(&mut monitor), words);
        }
        while args(&mut monitor) != r#""SET" "a" "x""# {}
        assert_eq!(args(&mut monitor), r#""EXEC""#);
    });
}

#[test]
fn a_refused_exec_is_shown_and_ends_the_transaction() {
    let server = Server::start(&[]);
    let (mut monitor, mut client) = (monitor(&server), server.raw());
    client.ask(&["MULTI"], "+OK\r\n");
    client.ask(&["SET", "a", "1"], "+QUEUED\r\n");
    client.ask(
        &["EXEC", "x"],
        "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command\r\n",
    );
    client.ask(&["EXEC"], "-ERR EXEC without MULTI\r\n");
    for words in [r#""MULTI""#, r#""EXEC" "x""#, r#""EXEC""#] {
        assert_eq!(args(&mut monitor), words);
    }
}

#[test]
fn monitor_is_refused_in_a_transaction() {
    let server = Server::start(&[]);
    let mut client = server.raw();
    client.ask(&["MULTI"], "+OK\r\n");
    client.ask(&["MONITOR"], "+QUEUED\r\n");
    client.ask(&["EXEC"], "*1\r\n-ERR MONITOR isn't allowed for DENY BLOCKING client\r\n");
}

#[test]
fn a_blocking_command_is_shown_once() {
    for_workers(&[], |server| {
        let mut monitor = monitor(server);
        let (mut waiting, mut client) = (server.raw(), server.raw());
        waiting.request(&["BLPOP", "list", "0"]);
        assert_eq!(args(&mut monitor), r#""BLPOP" "list" "0""#);
        client.ask(&["LPUSH", "list", "1"], ":1\r\n");
        waiting.expect("*2\r\n$4\r\nlist\r\n$1\r\n1\r\n");
        client.ask(&["PING"], "+PONG\r\n");
        assert_eq!(args(&mut monitor), r#""LPUSH" "list" "1""#);
        assert_eq!(args(&mut monitor), r#""PING""#);
    });
}

#[test]
fn a_large_stored_argument_is_shown_completely() {
    for_workers(&[], |server| {
        let (mut monitor, mut client) = (monitor(server), server.raw());
        let large = "x".repeat(300_000);
        client.ask(&["SET", "k", &large], "+OK\r\n");
        assert!(args(&mut monitor) == format!("\"SET\" \"k\" \"{large}\""));
        client.ask(&["STRLEN", "k"], ":300000\r\n");
    });
}

#[test]
fn a_monitor_lasts_until_reset_or_disconnect() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut flags = || {
            let list: String = cmd("CLIENT").arg("LIST").query(&mut control).expect("a list");
            list.lines().filter(|line| line.contains(" flags=O ")).count()
        };
        let (mut one, other) = (monitor(server), monitor(server));
        assert_eq!(flags(), 2);
        one.request(&["RESET"]);
        one.skip_to("+RESET");
        drop(other);
        wait_until("the other is gone", || flags() == 0);
        one.ask(&["SET", "k", "v"], "+OK\r\n");
        let mut killed = monitor(server);
        let mut client = server.raw();
        client.ask(&["CLIENT", "KILL", "TYPE", "normal", "FLAGS", "O"], ":1\r\n");
        killed.expect_end();
        client.ask(&["PING"], "+PONG\r\n");
        one.ask(&["GET", "k"], "$1\r\nv\r\n");
    });
}

#[test]
fn a_monitor_that_does_not_read_is_closed_at_the_normal_limit() {
    for_workers(&["--client-output-buffer-limit", "normal 1mb 0 0"], |server| {
        let monitor = monitor(server);
        let (mut client, mut control) = (server.raw(), server.client());
        let large = "x".repeat(100_000);
        let disconnections = |control: &mut redis::Connection| {
            let page: String = cmd("INFO").arg("stats").query(control).expect("a page");
            page.contains("client_output_buffer_limit_disconnections:1\r\n")
        };
        wait_until("it is cut off", || {
            client.ask(&["SET", "k", &large], "+OK\r\n");
            disconnections(&mut control)
        });
        drop(monitor);
    });
}

/// Each client counts a key of its own up, and all of them one in common, so what monitors see can be checked for
/// order.
#[test]
fn monitors_see_commands_in_order_per_client_and_key() {
    const CLIENTS: usize = 4;
    const EACH: usize = 500;
    for_workers(&[], |server| {
        let (one, other) = (monitor(server), monitor(server));
        let replies: Vec<Vec<usize>> = std::thread::scope(|scope| {
            let client = |number: usize| {
                move || {
                    let mut client = server.client();
                    let mut count = |n: usize| {
                        let mut pipeline = redis::pipe();
                        pipeline.cmd("SET").arg(format!("own{number}")).arg(n).ignore();
                        pipeline.cmd("INCR").arg("common");
                        let (value,): (usize,) = pipeline.query(&mut client).expect("a number");
                        value
                    };
                    (0..EACH).map(&mut count).collect()
                }
            };
            let running: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(client(number))).collect();
            running.into_iter().map(|client| client.join().expect("no panic")).collect()
        });
        let seen: Vec<Vec<(String, String)>> = [one, other]
            .into_iter()
            .map(|mut monitor| {
                let lines = std::iter::from_fn(|| Some(shown(&mut monitor)));
                let wanted = lines.filter(|(_, _, args)| args.starts_with("\"SET\" \"own") || args.contains("common"));
                wanted.map(|(_, address, args)| (address, args)).take(CLIENTS * EACH * 2).collect()
            })
            .collect();
        assert!(seen[0] == seen[1], "both see one order");
        // What INCR answered tells the order in which the clients' commands were executed.
        let mut executed: Vec<(usize, usize)> = Vec::new();
        replies.iter().enumerate().for_each(|(number, values)| executed.extend(values.iter().map(|v| (*v, number))));
        executed.sort_unstable();
        let addresses: Vec<&String> =
            seen[0].iter().filter(|(_, args)| args.contains("common")).map(|(address, _)| address).collect();
        let mut address_of = [None; CLIENTS];
        for ((_, number), address) in executed.iter().zip(addresses) {
            assert_eq!(*address_of[*number].get_or_insert(address), address);
        }
        for number in 0..CLIENTS {
            let prefix = format!("\"SET\" \"own{number}\" ");
            let own: Vec<String> = seen[0]
                .iter()
                .filter_map(|(_, args)| Some(args.strip_prefix(&prefix)?.trim_matches('"').to_owned()))
                .collect();
            assert_eq!(own, (0..EACH).map(|n| n.to_string()).collect::<Vec<_>>());
        }
    });
}
