//! Client-side caching: which clients get which invalidations, in which order, and that caches never keep stale values.

mod common;

use common::{Raw, Server, for_workers, wait_until};
use kvick_testing::SetOnDrop;
use redis::{Connection, cmd};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

fn run(control: &mut Connection, words: &[&str]) {
    let mut command = cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    let _: redis::Value = command.query(control).unwrap_or_else(|error| panic!("{words:?}: {error}"));
}

/// A connection that speaks RESP3.
fn resp3(server: &Server) -> Raw {
    let mut client = server.raw();
    client.request(&["HELLO", "3"]);
    client.skip_to("*0");
    client
}

/// One that tracks, with these options.
fn tracking(server: &Server, options: &[&str]) -> Raw {
    let mut client = resp3(server);
    client.ask(&[&["CLIENT", "TRACKING", "ON"], options].concat(), "+OK\r\n");
    client
}

fn array(kind: char, words: &[&str]) -> String {
    words.iter().fold(format!("{kind}{}\r\n", words.len()), |text, word| format!("{text}${}\r\n{word}\r\n", word.len()))
}

/// The invalidation of keys.
fn stale(keys: &[&str]) -> String {
    format!(">2\r\n$10\r\ninvalidate\r\n{}", array('*', keys))
}

/// The invalidation of all keys.
const ALL_STALE: &str = ">2\r\n$10\r\ninvalidate\r\n_\r\n";

/// The same on a connection that receives redirected invalidations.
fn stale_message(keys: &[&str]) -> String {
    format!("*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n{}", array('*', keys))
}

/// Checks that nothing was sent to a client that it has not read.
#[track_caller]
fn expect_nothing(client: &mut Raw) {
    client.ask(&["PING"], "+PONG\r\n");
}

fn id(client: &mut Raw) -> String {
    client.request(&["CLIENT", "ID"]);
    client.line()[1..].to_owned()
}

/// The value of a field of INFO.
fn info(control: &mut Connection, field: &str) -> usize {
    let page: String = cmd("INFO").arg("everything").query(control).expect("a page");
    let line = page.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).expect("the field");
    line.parse().expect("a number")
}

/// Clients that track, and the keys and readers that are known, and prefixes.
fn known(control: &mut Connection) -> [usize; 4] {
    ["tracking_clients", "tracking_total_keys", "tracking_total_items", "tracking_total_prefixes"]
        .map(|field| info(control, field))
}

#[test]
fn a_reader_gets_one_invalidation_per_change() {
    for_workers(&[], |server| {
        let mut control = server.client();
        run(&mut control, &["MSET", "a", "1", "b", "2", "c", "3"]);
        let (mut one, mut other) = (tracking(server, &[]), tracking(server, &[]));
        one.ask(&["MGET", "a", "b"], "*2\r\n$1\r\n1\r\n$1\r\n2\r\n");
        other.ask(&["GET", "a"], "$1\r\n1\r\n");
        other.ask(&["GET", "nothing"], "_\r\n");
        assert_eq!(known(&mut control), [2, 3, 4, 0]);
        run(&mut control, &["SET", "c", "x"]);
        run(&mut control, &["SET", "a", "x"]);
        run(&mut control, &["SET", "a", "y"]);
        run(&mut control, &["SET", "nothing", "z"]);
        one.expect(&stale(&["a"]));
        expect_nothing(&mut one);
        other.expect(&stale(&["a"]));
        other.expect(&stale(&["nothing"]));
        expect_nothing(&mut other);
        one.ask(&["CLIENT", "TRACKING", "OFF"], "+OK\r\n");
        run(&mut control, &["SET", "b", "x"]);
        expect_nothing(&mut one);
        assert_eq!(known(&mut control), [1, 0, 0, 0]);
        drop(other);
        wait_until("the other is gone", || known(&mut control) == [0; 4]);
    });
}

/// A value of each kind.
const VALUES: [&[&str]; 7] = [
    &["SET", "string", "10"],
    &["RPUSH", "list", "a", "b", "c"],
    &["SADD", "set", "a", "b"],
    &["ZADD", "zset", "1", "a", "2", "b"],
    &["HSET", "hash", "f", "1", "g", "2"],
    &["XADD", "stream", "1-1", "f", "v"],
    &["PFADD", "hll", "a"],
];

/// Commands that read them.
const READS: [&[&str]; 8] = [
    &["GET", "string"],
    &["LRANGE", "list", "0", "-1"],
    &["SCARD", "set"],
    &["ZSCORE", "zset", "a"],
    &["HGETALL", "hash"],
    &["XLEN", "stream"],
    &["STRLEN", "hll"],
    &["EXISTS", "fresh"],
];

/// Commands that change them, and the keys that they invalidate.
const CHANGES: [(&[&str], &[&str]); 39] = [
    (&["SET", "string", "x"], &["string"]),
    (&["APPEND", "string", "x"], &["string"]),
    (&["SETRANGE", "string", "1", "x"], &["string"]),
    (&["SETBIT", "string", "1", "1"], &["string"]),
    (&["BITFIELD", "string", "SET", "u8", "0", "1"], &["string"]),
    (&["INCR", "string"], &["string"]),
    (&["INCRBYFLOAT", "string", "1.5"], &["string"]),
    (&["GETDEL", "string"], &["string"]),
    (&["GETEX", "string", "EX", "100"], &["string"]),
    (&["DEL", "string", "list"], &["string", "list"]),
    (&["UNLINK", "hash"], &["hash"]),
    (&["EXPIRE", "list", "100"], &["list"]),
    (&["EXPIRE", "list", "-1"], &["list"]),
    (&["RENAME", "string", "fresh"], &["string", "fresh"]),
    (&["COPY", "string", "list", "REPLACE"], &["list"]),
    (&["MOVE", "string", "1"], &["string"]),
    (&["LPUSH", "list", "x"], &["list"]),
    (&["RPOP", "list", "3"], &["list"]),
    (&["LSET", "list", "0", "x"], &["list"]),
    (&["LMOVE", "list", "fresh", "LEFT", "LEFT"], &["list", "fresh"]),
    (&["SADD", "set", "x"], &["set"]),
    (&["SREM", "set", "a"], &["set"]),
    (&["SMOVE", "set", "fresh", "a"], &["set", "fresh"]),
    (&["SUNIONSTORE", "fresh", "set"], &["fresh"]),
    (&["ZADD", "zset", "9", "a"], &["zset"]),
    (&["ZREM", "zset", "a"], &["zset"]),
    (&["ZPOPMIN", "zset"], &["zset"]),
    (&["ZRANGESTORE", "fresh", "zset", "0", "-1"], &["fresh"]),
    (&["HSET", "hash", "f", "x"], &["hash"]),
    (&["HDEL", "hash", "f"], &["hash"]),
    (&["HINCRBY", "hash", "f", "1"], &["hash"]),
    (&["HEXPIRE", "hash", "100", "FIELDS", "1", "f"], &["hash"]),
    (&["XADD", "stream", "2-1", "f", "v"], &["stream"]),
    (&["XDEL", "stream", "1-1"], &["stream"]),
    (&["PFADD", "hll", "b"], &["hll"]),
    (&["SORT", "list", "ALPHA", "STORE", "fresh"], &["fresh"]),
    (&["MSET", "string", "x", "fresh", "y"], &["string", "fresh"]),
    (&["BITOP", "NOT", "fresh", "string"], &["fresh"]),
    (&["GEOADD", "fresh", "13", "38", "a"], &["fresh"]),
];

#[test]
fn every_change_of_a_key_invalidates() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut reader = tracking(server, &[]);
        for (change, keys) in CHANGES {
            reader.ask(&["FLUSHALL"], "+OK\r\n");
            reader.expect(ALL_STALE);
            VALUES.iter().for_each(|value| run(&mut control, value));
            for read in READS {
                reader.request(read);
            }
            reader.request(&["ECHO", "read"]);
            reader.skip_to("read");
            run(&mut control, change);
            // The order of several keys is that of their changes, which is the command's business.
            let mut told: Vec<String> = keys.iter().map(|_| read_stale(&mut reader)).collect();
            told.sort_unstable();
            let mut expected = keys.to_vec();
            expected.sort_unstable();
            assert_eq!(told, expected, "{change:?}");
            reader.request(&["PING"]);
            reader.expect("+PONG\r\n");
        }
    });
}

/// The single key of an invalidation.
#[track_caller]
fn read_stale(client: &mut Raw) -> String {
    client.expect(">2\r\n$10\r\ninvalidate\r\n*1\r\n");
    client.line();
    client.line()
}

#[test]
fn unchanged_keys_are_not_invalidated() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut reader = tracking(server, &[]);
        VALUES.iter().for_each(|value| run(&mut control, value));
        for read in READS {
            reader.request(read);
        }
        reader.request(&["ECHO", "read"]);
        reader.skip_to("read");
        let vain: [&[&str]; 12] = [
            &["SETNX", "string", "x"],
            &["SET", "string", "x", "NX"],
            &["DEL", "fresh"],
            &["SADD", "set", "a"],
            &["SREM", "set", "x"],
            &["HDEL", "hash", "x"],
            &["HSETNX", "hash", "f", "x"],
            &["ZADD", "zset", "1", "a"],
            &["LPUSHX", "fresh", "x"],
            &["PERSIST", "string"],
            &["XDEL", "stream", "9-9"],
            &["PFADD", "hll", "a"],
        ];
        vain.iter().for_each(|words| run(&mut control, words));
        expect_nothing(&mut reader);
        run(&mut control, &["SADD", "set", "x"]);
        reader.expect(&stale(&["set"]));
    });
}

#[test]
fn expired_keys_and_fields_are_invalidated() {
    for_workers(&["--enable-debug-command", "yes"], |server| {
        let mut control = server.client();
        let (mut reader, mut all) = (tracking(server, &[]), tracking(server, &["BCAST"]));
        run(&mut control, &["SET", "active", "x", "PX", "30"]);
        all.expect(&stale(&["active"]));
        reader.ask(&["GET", "active"], "$1\r\nx\r\n");
        reader.expect(&stale(&["active"]));
        all.expect(&stale(&["active"]));

        run(&mut control, &["HSET", "hash", "f", "v", "g", "v"]);
        run(&mut control, &["HPEXPIRE", "hash", "30", "FIELDS", "1", "f"]);
        all.expect(&stale(&["hash"]));
        all.expect(&stale(&["hash"]));
        reader.ask(&["HGET", "hash", "f"], "$1\r\nv\r\n");
        reader.expect(&stale(&["hash"]));
        all.expect(&stale(&["hash"]));

        run(&mut control, &["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        run(&mut control, &["SET", "lazy", "x", "PX", "100"]);
        all.expect(&stale(&["lazy"]));
        reader.ask(&["EXISTS", "lazy"], ":1\r\n");
        std::thread::sleep(std::time::Duration::from_millis(105));
        // The invalidation follows the reply to the client that accessed the key.
        reader.ask(&["MGET", "x", "lazy"], "*2\r\n_\r\n_\r\n");
        reader.expect(&stale(&["lazy"]));
        all.expect(&stale(&["lazy"]));
    });
}

#[test]
fn invalidations_of_own_changes_follow_the_reply() {
    for_workers(&[], |server| {
        let mut client = tracking(server, &[]);
        client.ask(&["HSET", "h", "f", "1"], ":1\r\n");
        client.ask(&["HGET", "h", "f"], "$1\r\n1\r\n");
        client.ask(&["HDEL", "h", "f"], &format!(":1\r\n{}", stale(&["h"])));
        client.ask(&["MGET", "a", "b"], "*2\r\n_\r\n_\r\n");
        client.send("MULTI\r\nSET a 1\r\nGET b\r\nINCR b\r\nEXEC\r\nPING\r\n");
        client.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n_\r\n:1\r\n");
        client.expect(&(stale(&["a"]) + &stale(&["b"]) + "+PONG\r\n"));
        client.ask(&["GET", "a"], "$1\r\n1\r\n");
        client.send("MULTI\r\nFLUSHDB\r\nEXEC\r\n");
        client.expect(&format!("+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n{ALL_STALE}"));
        expect_nothing(&mut client);
    });
}

#[test]
fn invalidations_follow_the_reply_to_a_blocking_command() {
    for_workers(&[], |server| {
        let mut control = server.client();
        // On every worker.
        for n in 0..8 {
            let (from, to) = (format!("from{n}"), format!("to{n}"));
            let mut client = tracking(server, &[]);
            client.ask(&["LRANGE", &to, "0", "-1"], "*0\r\n");
            client.request(&["BLMOVE", &from, &to, "LEFT", "LEFT", "0"]);
            wait_until("it waits", || info(&mut control, "blocked_clients") == 1);
            run(&mut control, &["RPUSH", &from, "x"]);
            client.expect(&format!("$1\r\nx\r\n{}", stale(&[&to])));
            expect_nothing(&mut client);
        }
    });
}

#[test]
fn keys_read_by_a_blocking_command_are_tracked() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut client = tracking(server, &[]);
        client.request(&["XREAD", "BLOCK", "0", "STREAMS", "s", "$"]);
        wait_until("it waits", || info(&mut control, "blocked_clients") == 1);
        run(&mut control, &["XADD", "s", "1-1", "f", "v"]);
        // It got the entry, and the invalidation of the stream that it had read before.
        client.skip_to("v");
        client.request(&["ECHO", "read"]);
        client.skip_to("read");
        client.ask(&["XLEN", "s"], ":1\r\n");
        run(&mut control, &["XADD", "s", "2-1", "f", "v"]);
        client.expect(&stale(&["s"]));
    });
}

#[test]
fn optin_and_optout_select_the_tracked_keys() {
    for_workers(&[], |server| {
        let mut control = server.client();
        run(&mut control, &["MSET", "a", "1", "b", "1", "c", "1"]);
        let (mut optin, mut optout) = (tracking(server, &["OPTIN"]), tracking(server, &["OPTOUT"]));
        for (client, word) in [(&mut optin, "YES"), (&mut optout, "NO")] {
            client.ask(&["CLIENT", "CACHING", word], "+OK\r\n");
            client.ask(&["GET", "a"], "$1\r\n1\r\n");
            client.ask(&["GET", "b"], "$1\r\n1\r\n");
            client.ask(&["CLIENT", "CACHING", word], "+OK\r\n");
            client.send("MULTI\r\nGET c\r\nEXEC\r\nGET d\r\n");
            client.expect("+OK\r\n+QUEUED\r\n*1\r\n$1\r\n1\r\n_\r\n");
        }
        ["a", "b", "c", "d"].iter().for_each(|key| run(&mut control, &["SET", key, "2"]));
        optin.expect(&(stale(&["a"]) + &stale(&["c"])));
        optout.expect(&(stale(&["b"]) + &stale(&["d"])));
        expect_nothing(&mut optin);
        expect_nothing(&mut optout);
        let wrong = "-ERR CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.\r\n";
        optin.ask(&["CLIENT", "CACHING", "NO"], wrong);
        optin.ask(&["CLIENT", "CACHING", "x"], "-ERR syntax error\r\n");
        let info = |words: &[&str]| {
            format!("%3\r\n$5\r\nflags\r\n{}$8\r\nredirect\r\n:0\r\n$8\r\nprefixes\r\n*0\r\n", array('~', words))
        };
        optin.ask(&["CLIENT", "CACHING", "YES"], "+OK\r\n");
        optin.ask(&["CLIENT", "TRACKINGINFO"], &info(&["on", "optin", "caching-yes"]));
        optin.ask(&["PING"], "+PONG\r\n");
        optin.ask(&["CLIENT", "TRACKINGINFO"], &info(&["on", "optin"]));
    });
}

#[test]
fn noloop_suppresses_own_changes() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let (mut client, mut other) = (tracking(server, &["NOLOOP"]), tracking(server, &[]));
        client.ask(&["GET", "k"], "_\r\n");
        other.ask(&["GET", "k"], "_\r\n");
        // It reads its change before the other client gets the invalidation.
        client.send("MULTI\r\nSET k 1\r\nGET k\r\nEXEC\r\n");
        client.expect("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$1\r\n1\r\n");
        expect_nothing(&mut client);
        other.expect(&stale(&["k"]));
        run(&mut control, &["SET", "k", "2"]);
        client.expect(&stale(&["k"]));

        let mut all = tracking(server, &["BCAST", "NOLOOP", "PREFIX", "p"]);
        all.ask(&["MSET", "p1", "x", "p2", "x", "q", "x"], "+OK\r\n");
        expect_nothing(&mut all);
        run(&mut control, &["MSET", "p1", "x", "q", "x"]);
        all.expect(&stale(&["p1"]));
        expect_nothing(&mut all);
    });
}

#[test]
fn broadcasting_batches_the_keys_of_a_prefix() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let (mut some, mut all) =
            (tracking(server, &["BCAST", "PREFIX", "a:", "PREFIX", "b:"]), tracking(server, &["BCAST"]));
        run(&mut control, &["MSET", "b:1", "x", "a:2", "x", "c:1", "x", "a:1", "x"]);
        some.expect(&(stale(&["a:1", "a:2"]) + &stale(&["b:1"])));
        all.expect(&stale(&["a:1", "a:2", "b:1", "c:1"]));
        some.ask(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "c"], "+OK\r\n");
        run(&mut control, &["DEL", "c:1"]);
        some.expect(&stale(&["c:1"]));
        all.expect(&stale(&["c:1"]));
        assert_eq!(known(&mut control), [2, 0, 0, 4]);
        let overlap = |kind: &str, prefix: &str, other: &str| {
            format!(
                "-ERR Prefix '{prefix}' overlaps with {kind} prefix '{other}'. Prefixes for a single client must not \
                 overlap.\r\n"
            )
        };
        let on = ["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX"];
        some.ask(&[&on[..], &["a:x"]].concat(), &overlap("an existing", "a:x", "a:"));
        some.ask(&[&on[..], &["x", "PREFIX", "xy"]].concat(), &overlap("another provided", "x", "xy"));
        all.ask(&["CLIENT", "TRACKING", "OFF"], "+OK\r\n");
        drop(some);
        wait_until("the prefixes are gone", || known(&mut control) == [0; 4]);
        run(&mut control, &["SET", "a:1", "x"]);
        expect_nothing(&mut all);
    });
}

#[test]
fn invalidations_can_be_redirected() {
    for_workers(&[], |server| {
        let mut control = server.client();
        run(&mut control, &["SET", "k", "1"]);
        let (mut old, mut new) = (server.raw(), resp3(server));
        let (old_id, new_id) = (id(&mut old), id(&mut new));
        let (mut one, mut other) = (server.raw(), resp3(server));
        one.ask(&["CLIENT", "TRACKING", "ON", "REDIRECT", &old_id], "+OK\r\n");
        one.ask(&["CLIENT", "GETREDIR"], &format!(":{old_id}\r\n"));
        other.ask(&["CLIENT", "TRACKING", "ON", "REDIRECT", &new_id], "+OK\r\n");
        let change = |one: &mut Raw, other: &mut Raw, control: &mut Connection| {
            one.ask(&["EXISTS", "k"], ":1\r\n");
            other.ask(&["EXISTS", "k"], ":1\r\n");
            run(control, &["SET", "k", "x"]);
        };
        // A RESP2 client gets no invalidations unless it is subscribed.
        change(&mut one, &mut other, &mut control);
        expect_nothing(&mut old);
        new.expect(&stale(&["k"]));
        old.ask(&["SUBSCRIBE", "x"], "*3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n");
        change(&mut one, &mut other, &mut control);
        old.expect(&stale_message(&["k"]));
        new.expect(&stale(&["k"]));
        run(&mut control, &["FLUSHALL"]);
        old.expect("*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n$-1\r\n");
        new.expect(ALL_STALE);
        run(&mut control, &["SET", "k", "x"]);

        drop((old, new));
        let clients = |control: &mut Connection| info(control, "connected_clients");
        wait_until("they are gone", || clients(&mut control) == 3);
        change(&mut one, &mut other, &mut control);
        expect_nothing(&mut one);
        other.expect(&format!(">2\r\n$21\r\ntracking-redir-broken\r\n:{new_id}\r\n"));
        for client in [&mut one, &mut other] {
            client.request(&["CLIENT", "INFO"]);
            client.line();
            let line = client.line();
            assert!(line.contains(" flags=tR "), "{line}");
        }
        let missing = "-ERR The client ID you want redirect to does not exist\r\n";
        one.ask(&["CLIENT", "TRACKING", "ON", "REDIRECT", &old_id], missing);
    });
}

#[test]
fn incompatible_options_are_refused() {
    for_workers(&[], |server| {
        let mut client = server.raw();
        let refused: [(&[&str], &str); 6] = [
            (&["PREFIX", "a"], "PREFIX option requires BCAST mode to be enabled"),
            (&["BCAST", "OPTIN"], "OPTIN and OPTOUT are not compatible with BCAST"),
            (&["OPTIN", "OPTOUT"], "You can't specify both OPTIN mode and OPTOUT mode"),
            (&["REDIRECT", "x"], "value is not an integer or out of range"),
            (&["PREFIX"], "syntax error"),
            (&["x"], "syntax error"),
        ];
        for (options, text) in refused {
            client.ask(&[&["CLIENT", "TRACKING", "ON"], options].concat(), &format!("-ERR {text}\r\n"));
        }
        client.ask(&["CLIENT", "TRACKING", "maybe"], "-ERR syntax error\r\n");
        client.ask(&["CLIENT", "GETREDIR"], ":-1\r\n");
        client.ask(&["CLIENT", "TRACKING", "ON", "OPTIN"], "+OK\r\n");
        let again = "disabling tracking for this client, and then re-enabling it with a different mode.\r\n";
        client.ask(
            &["CLIENT", "TRACKING", "ON", "BCAST"],
            &format!("-ERR You can't switch BCAST mode on/off before {again}"),
        );
        client.ask(
            &["CLIENT", "TRACKING", "ON", "OPTOUT"],
            &format!("-ERR You can't switch OPTIN/OPTOUT mode before {again}"),
        );
        client.ask(&["RESET"], "+RESET\r\n");
        client.ask(&["CLIENT", "GETREDIR"], ":-1\r\n");
        client.ask(&["CLIENT", "TRACKING", "ON", "BCAST"], "+OK\r\n");
        client.request(&["CLIENT", "INFO"]);
        client.line();
        let line = client.line();
        assert!(line.contains(" flags=tB ") && line.contains(" redir=0 "), "{line}");
    });
}

#[test]
fn keys_beyond_the_table_limit_are_invalidated() {
    for_workers(&["--tracking-table-max-keys", "100"], |server| {
        let mut control = server.client();
        let mut client = tracking(server, &[]);
        let keys: Vec<String> = (0..1100).map(|n| format!("key{n}")).collect();
        let words: Vec<&str> = ["EXISTS"].into_iter().chain(keys.iter().map(String::as_str)).collect();
        client.ask(&words, ":0\r\n");
        for _ in 0..1000 {
            assert!(keys.contains(&read_stale(&mut client)));
        }
        expect_nothing(&mut client);
        assert_eq!(known(&mut control), [1, 100, 100, 0]);
        // Keys beyond a new limit are invalidated before the reply to CONFIG SET.
        run(&mut control, &["CONFIG", "SET", "tracking-table-max-keys", "90"]);
        client.send("MULTI\r\n");
        for _ in 0..10 {
            assert!(keys.contains(&read_stale(&mut client)));
        }
        client.expect("+OK\r\n");
        client.ask(&["DISCARD"], "+OK\r\n");
        run(&mut control, &["SWAPDB", "0", "1"]);
        client.expect(ALL_STALE);
        assert_eq!(known(&mut control), [1, 0, 0, 0]);
    });
}

#[test]
fn invalidations_do_not_mix_databases() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut client = tracking(server, &[]);
        client.ask(&["GET", "k"], "_\r\n");
        run(&mut control, &["SELECT", "1"]);
        run(&mut control, &["SET", "k", "1"]);
        expect_nothing(&mut client);
        run(&mut control, &["MOVE", "k", "0"]);
        client.expect(&stale(&["k"]));
    });
}

#[test]
fn a_key_read_by_very_many_clients_is_invalidated_for_all() {
    const READERS: usize = 3000;
    for_workers(&[], |server| {
        let mut control = server.client();
        let mut readers: Vec<Raw> = (0..READERS).map(|_| server.raw()).collect();
        for reader in &mut readers {
            reader.send("HELLO 3\r\nCLIENT TRACKING ON\r\nGET k\r\n");
        }
        for reader in &mut readers {
            reader.skip_to("*0");
            reader.expect("+OK\r\n_\r\n");
        }
        assert_eq!(known(&mut control), [READERS, 1, READERS, 0]);
        run(&mut control, &["SET", "k", "1"]);
        readers.iter_mut().for_each(|reader| reader.expect(&stale(&["k"])));
    });
}

/// A client that caches values until they are invalidated.
struct Cache {
    stream: BufReader<TcpStream>,
    values: HashMap<String, Option<String>>,
}

impl Cache {
    fn new(server: &Server, options: &str) -> Cache {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
        stream.set_nodelay(true).expect("an option");
        stream.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
        let mut cache = Cache { stream: BufReader::new(stream), values: HashMap::new() };
        cache.send(&format!("HELLO 3\r\nCLIENT TRACKING ON {options}\r\n"));
        while cache.line() != "+OK" {}
        cache
    }

    fn send(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).expect("a connection that takes bytes");
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a line");
        line.truncate(line.len() - 2);
        line
    }

    fn string(&mut self, header: &str) -> Option<String> {
        let len: usize = header.strip_prefix('$')?.parse().expect("a length");
        let mut bytes = vec![0; len + 2];
        self.stream.read_exact(&mut bytes).expect("that many bytes");
        Some(String::from_utf8_lossy(&bytes[..len]).into_owned())
    }

    /// The next line that belongs to no push; what pushes tell is dropped.
    fn reply(&mut self) -> String {
        loop {
            let line = self.line();
            if line != ">2" {
                return line;
            }
            let header = self.line();
            assert_eq!(self.string(&header).as_deref(), Some("invalidate"));
            let what = self.line();
            match what.strip_prefix('*') {
                None => self.values.clear(),
                Some(count) => {
                    for _ in 0..count.parse::<usize>().expect("a number") {
                        let header = self.line();
                        let key = self.string(&header).expect("a key");
                        self.values.remove(&key);
                    }
                }
            }
        }
    }

    /// Reads keys with one pipeline, and keeps them.
    fn read(&mut self, keys: &[String]) {
        let request: String = keys.iter().map(|key| format!("GET {key}\r\n")).collect();
        self.send(&request);
        for key in keys {
            let header = self.reply();
            let value = self.string(&header);
            self.values.insert(key.clone(), value);
        }
    }
}

/// Numbers that look random and are the same in each run (xorshift64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn key(&mut self) -> String {
        format!("key{}", self.below(KEYS))
    }
}

const KEYS: u64 = 24;

/// Changes keys in many ways.
fn write(server: &Server, seed: u64) {
    let mut draw = Draw(seed);
    let mut connection = server.client();
    for n in 0..3000 {
        let (key, other, value) = (draw.key(), draw.key(), format!("{seed}:{n}"));
        match draw.below(200) {
            0 => run(&mut connection, &["FLUSHDB"]),
            1..=9 => run(&mut connection, &["DEL", &key, &other]),
            10..=29 => run(&mut connection, &["SET", &key, &value, "PX", "2"]),
            30..=39 => run(&mut connection, &["APPEND", &key, "x"]),
            40..=59 => {
                let mut group = redis::pipe();
                group.atomic().cmd("SET").arg(&key).arg(&value).cmd("GET").arg(&other).cmd("DEL").arg(&other);
                let _: redis::Value = group.query(&mut connection).expect("a reply");
            }
            60..=79 => run(&mut connection, &["MSET", &key, &value, &other, &value]),
            _ => run(&mut connection, &["SET", &key, &value]),
        }
    }
}

#[test]
fn caches_never_keep_stale_values() {
    for_workers(&["--tracking-table-max-keys", "20"], |server| {
        let done = AtomicBool::new(false);
        let options = ["", "NOLOOP", "OPTOUT", "BCAST", "BCAST PREFIX key1 PREFIX key2 PREFIX key3", ""];
        let caches = std::thread::scope(|scope| {
            let writing = SetOnDrop(&done);
            let readers: Vec<_> = (1..)
                .zip(options)
                .map(|(seed, options)| {
                    let done = &done;
                    scope.spawn(move || {
                        let (mut draw, mut cache, mut reads) = (Draw(seed), Cache::new(server, options), 0);
                        while !done.load(Ordering::Relaxed) {
                            let keys: Vec<String> = (0..=draw.below(6)).map(|_| draw.key()).collect();
                            if draw.below(4) == 0 {
                                // Its own change, and what it reads right after in one go.
                                let key = draw.key();
                                cache.send(&format!("MULTI\r\nSET {key} own:{seed}:{reads}\r\nGET {key}\r\nEXEC\r\n"));
                                for expected in ["+OK", "+QUEUED", "+QUEUED", "*2", "+OK"] {
                                    assert_eq!(cache.reply(), expected);
                                }
                                let header = cache.reply();
                                let value = cache.string(&header);
                                cache.values.insert(key, value);
                            }
                            cache.read(&keys);
                            reads += 1;
                        }
                        (cache, reads)
                    })
                })
                .collect();
            let writers: Vec<_> = (1..=4).map(|seed| scope.spawn(move || write(server, seed * 7919))).collect();
            writers.into_iter().for_each(|writer| writer.join().expect("no panic"));
            drop(writing);
            readers.into_iter().map(|reader| reader.join().expect("no panic")).collect::<Vec<_>>()
        });
        let mut control = server.client();
        // Expiring keys have been deleted and invalidated.
        let volatile = |control: &mut Connection| {
            let page: String = cmd("INFO").arg("keyspace").query(control).expect("a page");
            page.contains("expires=") && !page.contains("expires=0")
        };
        wait_until("nothing is about to expire", || !volatile(&mut control));
        for ((mut cache, reads), options) in caches.into_iter().zip(options) {
            cache.send("PING\r\n");
            assert_eq!(cache.reply(), "+PONG");
            let mut kept = 0;
            for (key, value) in &cache.values {
                if options.contains("PREFIX") && !["key1", "key2", "key3"].iter().any(|prefix| key.starts_with(prefix))
                {
                    continue;
                }
                let stored: Option<String> = cmd("GET").arg(key).query(&mut control).expect("a value");
                assert_eq!(*value, stored, "{key} of the client with {options:?} after {reads} reads");
                kept += 1;
            }
            println!("{options:?}: {reads} reads, {kept} keys kept");
        }
    });
}
