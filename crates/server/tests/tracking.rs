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

/// The single key of an invalidation.
#[track_caller]
fn read_stale(client: &mut Raw) -> String {
    client.expect(">2\r\n$10\r\ninvalidate\r\n*1\r\n");
    client.line();
    client.line()
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
fn broadcasting_clients_add_prefixes_that_do_not_overlap() {
    for_workers(&[], |server| {
        let mut control = server.client();
        let (mut some, mut all) =
            (tracking(server, &["BCAST", "PREFIX", "a:", "PREFIX", "b:"]), tracking(server, &["BCAST"]));
        some.ask(&["CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "c"], "+OK\r\n");
        run(&mut control, &["MSET", "b:1", "x", "a:2", "x", "c:1", "x", "a:1", "x"]);
        some.expect(&(stale(&["a:1", "a:2"]) + &stale(&["b:1"]) + &stale(&["c:1"])));
        all.expect(&stale(&["a:1", "a:2", "b:1", "c:1"]));
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
