//! Large values, which requests, the keyspace and replies share: slow readers receive what was stored when their
//! command ran, one copy of a value serves all replies, and limits count each reply in full.

mod common;

use common::{Server, for_workers, wait_until};
use redis::{Connection, cmd};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const KB: usize = 1024;
const MB: usize = 1024 * KB;
/// Replies that a slow reader requests: more than the sockets buffer.
const REPLIES: usize = 8;
const WAIT_LIMIT: Duration = Duration::from_secs(30);

/// A connection for exact bytes, without a library's buffers.
fn connect(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("a connection");
    stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    stream.set_write_timeout(Some(WAIT_LIMIT)).expect("a timeout");
    stream
}

fn request(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    words.iter().for_each(|word| bytes.extend(bulk(word)));
    bytes
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat()
}

/// Bytes without a period that a mistaken offset could hide behind.
fn value(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn number(client: &mut Connection, section: &str, field: &str) -> usize {
    let text: String = cmd("INFO").arg(section).query(client).expect("INFO");
    let value = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    value.expect("a field").parse().expect("a number")
}

/// Sum of the pending output of all clients.
fn pending_output(client: &mut Connection) -> usize {
    let list: String = cmd("CLIENT").arg("LIST").query(client).expect("a list");
    let fields = list.split([' ', '\n']).filter_map(|field| field.strip_prefix("omem="));
    fields.map(|bytes| bytes.parse::<usize>().expect("a number")).sum()
}

/// Number of GETs that were executed.
fn gets(client: &mut Connection) -> usize {
    let text: String = cmd("INFO").arg("commandstats").query(client).expect("INFO");
    let calls = text.lines().find_map(|line| line.strip_prefix("cmdstat_get:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Clients that have requested the value of `k` several times and have not read the replies, most of which are pending.
fn slow_readers(server: &Server, client: &mut Connection, count: usize) -> Vec<TcpStream> {
    let executed = gets(client);
    let mut streams: Vec<_> = (0..count).map(|_| connect(server)).collect();
    for stream in &mut streams {
        stream.write_all(&request(&[b"GET", b"k"]).repeat(REPLIES)).expect("sent");
    }
    wait_until("the requests are executed", || gets(client) == executed + count * REPLIES);
    wait_until("replies are pending", || pending_output(client) > count * MB);
    streams
}

#[track_caller]
fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut received = vec![0; expected.len()];
    stream.read_exact(&mut received).expect("a reply");
    if received != expected {
        let differs = received.iter().zip(expected).position(|(one, other)| one != other);
        panic!("a reply of {} bytes differs at {differs:?}", expected.len());
    }
}

/// Reads the value of `k` until its pages are sent instead of copies.
fn read_often(client: &mut Connection) {
    (0..kvick_resp::COPIES).for_each(|_| cmd("GET").arg("k").exec(client).expect("a value"));
}

/// Requests that change or remove the value of `k`.
const CHANGES: [&[&str]; 12] = [
    &["SET", "k", "new"],
    &["APPEND", "k", "tail"],
    &["SETRANGE", "k", "100", "changed"],
    &["SETBIT", "k", "7", "1"],
    &["BITFIELD", "k", "SET", "u32", "64", "12345"],
    &["DEL", "k"],
    &["UNLINK", "k"],
    &["GETDEL", "k"],
    &["PEXPIRE", "k", "1"],
    &["RENAME", "k", "other"],
    &["FLUSHALL", "ASYNC"],
    &["CONFIG", "SET", "maxmemory", "1mb"],
];

/// Changes the value of `k`, and uses memory that was free when it was changed.
fn change(client: &mut Connection, words: &[&str], old: &[u8]) {
    let changed = cmd(words[0]).arg(&words[1..]).query::<redis::Value>(client);
    changed.unwrap_or_else(|error| panic!("{words:?}: {error}"));
    wait_until(&format!("{words:?} took effect"), || {
        cmd("GET").arg("k").query::<Option<Vec<u8>>>(client).expect("a reply").as_deref() != Some(old)
    });
    cmd("CONFIG").arg(&["SET", "maxmemory", "0"]).exec(client).expect("no limit");
    (0..4u32).for_each(|n| {
        let other = value(old.len(), 1000 + n);
        cmd("SET").arg(format!("other{n}")).arg(other).exec(client).expect("stored");
    });
}

#[test]
fn a_slow_reader_receives_the_value_as_it_was() {
    for_workers(&["--maxmemory-policy", "allkeys-lru"], |server| {
        let mut client = server.client();
        for (number, words) in CHANGES.iter().enumerate() {
            let old = value(2 * MB, number as u32);
            cmd("SET").arg("k").arg(&old).exec(&mut client).expect("stored");
            read_often(&mut client);
            let mut reader = slow_readers(server, &mut client, 1).remove(0);
            change(&mut client, words, &old);
            let reply = bulk(&old);
            (0..REPLIES).for_each(|_| expect(&mut reader, &reply));
        }
    });
}

/// The sockets have all of the replies, so that no reply refers to the value any more. What they have are its pages.
#[test]
fn replies_on_their_way_are_those_of_the_value_as_it_was() {
    const LEN: usize = 300 * KB;
    const SENT: usize = 3;
    for_workers(&["--maxmemory-policy", "allkeys-lru"], |server| {
        let mut client = server.client();
        for (number, words) in CHANGES.iter().enumerate() {
            let old = value(LEN, number as u32);
            cmd("SET").arg("k").arg(&old).exec(&mut client).expect("stored");
            read_often(&mut client);
            let (executed, mut reader) = (gets(&mut client), connect(server));
            reader.write_all(&request(&[b"GET", b"k"]).repeat(SENT)).expect("sent");
            wait_until("the requests are executed", || gets(&mut client) == executed + SENT);
            wait_until("the replies are sent", || pending_output(&mut client) == 0);
            change(&mut client, words, &old);
            let reply = bulk(&old);
            (0..SENT).for_each(|_| expect(&mut reader, &reply));
        }
    });
}

#[test]
fn slow_readers_share_one_copy() {
    const READERS: usize = 100;
    for_workers(&["--client-output-buffer-limit", "normal 0 0 0"], |server| {
        let mut client = server.client();
        let old = value(MB, 1);
        cmd("SET").arg("k").arg(&old).exec(&mut client).expect("stored");
        let before = number(&mut client, "memory", "used_memory");
        let mut readers = slow_readers(server, &mut client, READERS);
        let growth = number(&mut client, "memory", "used_memory").saturating_sub(before);
        println!("{} of output take {growth} bytes", pending_output(&mut client));
        assert!(growth < 4 * MB, "{growth} bytes");
        // All of them keep the old value alive, which one copy does too.
        cmd("SET").arg("k").arg(value(MB, 2)).exec(&mut client).expect("stored");
        let growth = number(&mut client, "memory", "used_memory").saturating_sub(before);
        assert!(growth < 4 * MB, "{growth} bytes");
        let reply = bulk(&old);
        for reader in &mut readers {
            (0..REPLIES).for_each(|_| expect(reader, &reply));
        }
        drop(readers);
        wait_until("the old value is freed", || number(&mut client, "memory", "used_memory") < before + MB / 2);
    });
}

#[test]
fn output_limits_count_shared_values_in_full() {
    for_workers(&["--client-output-buffer-limit", "normal 16mb 0 0"], |server| {
        let mut client = server.client();
        cmd("SET").arg("k").arg(value(MB, 3)).exec(&mut client).expect("stored");
        let mut reader = slow_readers(server, &mut client, 1).remove(0);
        assert_eq!(number(&mut client, "stats", "client_output_buffer_limit_disconnections"), 0);
        // Fails once the server has closed the connection.
        while reader.write_all(&request(&[b"GET", b"k"]).repeat(16)).is_ok()
            && number(&mut client, "stats", "client_output_buffer_limit_disconnections") == 0
        {}
        wait_until("the reader is closed", || {
            number(&mut client, "stats", "client_output_buffer_limit_disconnections") == 1
        });
        wait_until("it is logged", || server.log().contains("overcoming of output buffer limits"));
    });
}

#[test]
fn an_announced_argument_costs_nothing() {
    const CLIENTS: usize = 100;
    for_workers(&[], |server| {
        let mut client = server.client();
        let mut streams: Vec<_> = (0..CLIENTS).map(|_| connect(server)).collect();
        for stream in &mut streams {
            stream.write_all(b"PING\r\n").expect("sent");
            expect(stream, b"+PONG\r\n");
        }
        let before = number(&mut client, "memory", "used_memory");
        for stream in &mut streams {
            stream.write_all(b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$536870912\r\n").expect("sent");
        }
        let announced = |client: &mut Connection| {
            let list: String = cmd("CLIENT").arg("LIST").query(client).expect("a list");
            list.lines().filter(|line| !line.contains(" tot-net-in=6 ")).count() > CLIENTS
        };
        wait_until("the announcements arrived", || announced(&mut client));
        let growth = number(&mut client, "memory", "used_memory").saturating_sub(before);
        println!("{growth} bytes for {CLIENTS} announcements");
        assert!(growth < CLIENTS * 4 * KB, "{growth} bytes");
    });
}

#[test]
fn values_of_all_sizes_arrive_in_any_pieces() {
    let sizes = [100, 4 * KB, 16 * KB - 1, 16 * KB, 16 * KB + 1, 40_000, 64 * KB - 1, 64 * KB, 64 * KB + 2, MB, 70_000];
    let (mut requests, mut replies) = (Vec::new(), Vec::new());
    for (number, size) in sizes.iter().enumerate() {
        let (key, value) = (format!("key{number}"), value(*size, number as u32));
        let key = key.as_bytes();
        requests.extend(request(&[b"SET", key, &value]));
        requests.extend(request(&[b"GET", key]));
        requests.extend(request(&[b"STRLEN", key]));
        requests.extend(request(&[b"SET", key, &value, b"GET"]));
        requests.extend(request(&[b"DEL", b"list", b"hash"]));
        requests.extend(request(&[b"RPUSH", b"list", &value, b"x", &value]));
        requests.extend(request(&[b"RPUSH", b"list", &value]));
        requests.extend(request(&[b"LRANGE", b"list", b"0", b"-1"]));
        requests.extend(request(&[b"HSET", b"hash", b"field", &value]));
        requests.extend(request(&[b"HGET", b"hash", b"field"]));
        requests.extend(request(&[b"MULTI"]));
        requests.extend(request(&[b"MSET", b"one", &value, b"two", &value]));
        requests.extend(request(&[b"APPEND", b"one", b"tail"]));
        requests.extend(request(&[b"MGET", b"one", b"two"]));
        requests.extend(request(&[b"EXEC"]));
        requests.extend(request(&[b"EVAL", b"return redis.call('GET', KEYS[1])", b"1", b"two"]));
        let (bulk, tailed) = (bulk(&value), bulk(&[&value[..], b"tail"].concat()));
        let (len, more) = (format!(":{size}\r\n"), format!(":{}\r\n", size + 4));
        let deleted: &[u8] = if number == 0 { b":0\r\n" } else { b":2\r\n" };
        replies.extend([b"+OK\r\n", &bulk[..], len.as_bytes(), &bulk, deleted, b":3\r\n:4\r\n*4\r\n"].concat());
        replies.extend([&bulk[..], b"$1\r\nx\r\n", &bulk, &bulk, b":1\r\n", &bulk].concat());
        replies.extend([&b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n+OK\r\n"[..], more.as_bytes()].concat());
        replies.extend([b"*2\r\n", &tailed[..], &bulk, &bulk].concat());
    }
    for_workers(&["--appendonly", "yes", "--enable-debug-command", "yes"], |server| {
        for (appendfsync, piece) in [("everysec", 1_000_003), ("everysec", 4_099), ("always", 100_003), ("no", 17_001)]
        {
            let mut client = server.client();
            cmd("FLUSHALL").exec(&mut client).expect("empty");
            cmd("CONFIG").arg(&["SET", "appendfsync", appendfsync]).exec(&mut client).expect("set");
            let (mut stream, requests) = (connect(server), requests.clone());
            let mut writer = stream.try_clone().expect("a second handle");
            let sent = std::thread::spawn(move || {
                requests.chunks(piece).for_each(|piece| writer.write_all(piece).expect("sent"))
            });
            expect(&mut stream, &replies);
            sent.join().expect("no panic");
            // The append-only file has them too.
            let digest =
                |client: &mut Connection| cmd("DEBUG").arg("DIGEST").query::<String>(client).expect("a digest");
            let before = digest(&mut client);
            cmd("DEBUG").arg("LOADAOF").exec(&mut client).expect("loaded");
            assert_eq!(digest(&mut client), before);
        }
    });
}

/// A connection that knows how many bytes it has sent.
struct Counted {
    stream: TcpStream,
    id: String,
    sent: usize,
}

impl Counted {
    fn connect(server: &Server) -> Counted {
        let mut stream = connect(server);
        stream.set_nodelay(true).expect("an option");
        let hello = b"CLIENT ID\r\n";
        stream.write_all(hello).expect("sent");
        let mut id = Vec::new();
        while !id.ends_with(b"\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a number");
            id.extend(byte);
        }
        let id = String::from_utf8(id).expect("a number").trim_matches([':', '\r', '\n']).to_string();
        Counted { stream, id, sent: hello.len() }
    }

    /// Sends bytes, and waits until the server has read them.
    fn send(&mut self, bytes: &[u8], monitor: &mut Connection) {
        self.stream.write_all(bytes).expect("sent");
        self.sent += bytes.len();
        let received = format!(" tot-net-in={} ", self.sent);
        wait_until("the bytes are read", || {
            let list = cmd("CLIENT").arg(&["LIST", "ID", &self.id]).query::<String>(monitor).expect("a list");
            list.contains(&received)
        });
    }

    fn ask(&mut self, bytes: &[u8], expected: &[u8]) {
        self.stream.write_all(bytes).expect("sent");
        self.sent += bytes.len();
        expect(&mut self.stream, expected);
    }
}

/// What is sent and its reply, and the values of `key` and `longer-key` afterwards.
struct Case<'a> {
    sent: Vec<u8>,
    reply: Vec<u8>,
    key: &'a [u8],
    longer_key: &'a [u8],
}

#[test]
fn requests_like_and_unlike_the_ones_before_are_read_alike() {
    for_workers(&[], |server| {
        let mut monitor = server.client();
        for len in [16 * KB, 40_000, 64 * KB] {
            let [usual, next, longer, shorter] =
                [(0, 1), (0, 2), (1, 3), (-1, 4)].map(|(more, seed)| value(len.strict_add_signed(more), seed));
            let set = |key: &str, value: &[u8]| request(&[b"SET", key.as_bytes(), value]);
            let bulks = |values: &[&[u8]]| values.iter().flat_map(|value| bulk(value)).collect::<Vec<_>>();
            let head = set("key", &usual).len() - len - 2;
            let text = value(KB, 9);
            let (echo, echoed) = (request(&[b"ECHO", &text]), bulk(&text));
            let ok = b"+OK\r\n".to_vec();
            let stored = |sent, key| Case { sent, reply: ok.clone(), key, longer_key: b"" };
            let cases = [
                stored(set("key", &next), &next),
                stored(set("key", &longer), &longer),
                stored(set("key", &shorter), &shorter),
                stored(request(&[b"MSET", b"a", &usual, b"b", &next]), &usual),
                Case { longer_key: &next, ..stored(set("longer-key", &next), &usual) },
                Case {
                    reply: [&ok[..], &echoed.repeat(3)].concat(),
                    ..stored([set("key", &next), echo.repeat(3)].concat(), &next)
                },
                Case { reply: echoed.repeat(70), ..stored(echo.repeat(70), &usual) },
                Case {
                    reply: [&echoed[..], &ok].concat(),
                    longer_key: &next,
                    ..stored([&echo[..], &set("longer-key", &next)].concat(), &usual)
                },
                Case { reply: bulk(&usual), ..stored(request(&[b"SET", b"key", &next, b"GET"]), &next) },
            ];
            for (number, Case { sent, reply, key, longer_key }) in cases.iter().enumerate() {
                let ends = [head + len, head + len + 1, head + len + 2, head + len + 40];
                for split in [0, 1, head - 1, head, head + 1, head + 5_000, head + len - 1].into_iter().chain(ends) {
                    let mut client = Counted::connect(server);
                    cmd("DEL").arg("longer-key").exec(&mut monitor).expect("deleted");
                    // After two equal ones the server expects a third.
                    client.ask(&set("key", &usual), b"+OK\r\n");
                    client.ask(&set("key", &usual), b"+OK\r\n");
                    let (first, second) = sent.split_at(split.min(sent.len()));
                    client.send(first, &mut monitor);
                    client.ask(second, reply);
                    client.ask(&set("last", &usual), b"+OK\r\n");
                    let mget = request(&[b"MGET", b"key", b"last"]);
                    let found = [&b"*2\r\n"[..], &bulks(&[key, &usual])].concat();
                    println!("{len} bytes, case {number}, split at {split}");
                    client.ask(&mget, &found);
                    let found = if longer_key.is_empty() { b"$-1\r\n".to_vec() } else { bulk(longer_key) };
                    client.ask(&request(&[b"GET", b"longer-key"]), &found);
                }
            }
            let mut client = Counted::connect(server);
            client.ask(&set("key", &usual), b"+OK\r\n");
            client.ask(&set("key", &usual), b"+OK\r\n");
            let mut malformed = set("key", &next);
            malformed.truncate(head + len);
            client.ask(&[&malformed[..], b"xx"].concat(), b"-ERR Protocol error: ");
        }
    });
}
