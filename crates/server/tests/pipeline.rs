//! Pipelined requests: each gets the same reply as if it had been sent alone.
//!
//! Two servers receive the same requests. The client pipelines them to one server, and waits for each reply from the
//! other. Replies, statistics and the final data must be equal.

mod common;

use common::Server;
use redis::{Connection, cmd};
use std::collections::BTreeMap;

/// Number of pipelines per run, and maximum number of requests per pipeline.
const PARCELS: usize = 80;
const TOGETHER_MAX: u64 = 40;

/// Requests that are for one key each, most of which succeed whatever the key holds.
const KEYED: &[&str] = &[
    "SET K V",
    "SET K V",
    "SET K 17",
    "GET K",
    "GET K",
    "INCR K",
    "APPEND K x",
    "STRLEN K",
    "GETSET K V",
    "SETEX K 100 V",
    "EXISTS K",
    "LPUSH K a b",
    "LRANGE K 0 -1",
    "HSET K f v",
    "HGET K f",
    "SADD K m n",
    "SCARD K",
    "ZADD K 1 m",
    "ZSCORE K m",
    "TYPE K",
    "PERSIST K",
    "EXPIRE K 1000",
    "GETDEL K",
    "PFADD K a b",
    "XADD K 5-* f v",
    "SET K V PX -1",
    "SETBIT K 7 1",
    "OBJECT ENCODING K",
];

/// Others: with several keys or none, such as change what the next ones do, and such as are wrong.
const OTHERS: &[&str] = &[
    "DEL K",
    "MGET K L",
    "MSET K 1 L 2",
    "EXISTS K L K",
    "PING",
    "ECHO hello",
    "SELECT 1",
    "SELECT 0",
    "SELECT 99",
    "MULTI",
    "EXEC",
    "DISCARD",
    "WATCH K",
    "GET",
    "SET K",
    "NOTHING K",
    "HELLO 3",
    "HELLO 2",
    "CLIENT NO-TOUCH ON",
    "DBSIZE",
    "FLUSHDB",
    "RENAME K L",
    "RESET",
    "EVAL return(redis.call('INCR',KEYS[1])) 1 K",
    "BLPOP K 0.01",
    "SWAPDB 0 1",
    "CLIENT PAUSE 1 WRITE",
    "COPY K L REPLACE",
    "OBJECT FREQ K",
    "SUBSCRIBE news",
    "UNSUBSCRIBE",
];

/// A sequence that looks random and is the same for the same seed.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn request(&mut self) -> Vec<u8> {
        let from = if self.below(8) == 0 { OTHERS } else { KEYED };
        let text = from[self.below(from.len() as u64) as usize];
        let words: Vec<String> = text.split(' ').map(|word| self.word(word)).collect();
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
        request.into_bytes()
    }

    fn word(&mut self, word: &str) -> String {
        match word {
            "K" | "L" => format!("key:{}", self.below(12)),
            "V" => "v".repeat([1, 3, 20, 300][self.below(4) as usize]),
            other => other.to_owned(),
        }
    }
}

/// The statistics of each command, without durations.
fn calls(client: &mut Connection) -> BTreeMap<String, String> {
    let info: String = cmd("INFO").arg("COMMANDSTATS").query(client).expect("statistics");
    let lines = info.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split_once(':'));
    let counts = lines.map(|(command, figures)| {
        let counts = figures.split(',').filter(|figure| !figure.starts_with("usec"));
        (command.to_owned(), counts.collect::<Vec<_>>().join(","))
    });
    counts.collect()
}

/// Sends the same to two servers, to one of them together.
/// The result of `prepare` lives until the end.
fn compare<T>(args: &[&str], prepare: impl Fn(&Server) -> T) {
    for seed in [0x9e37_79b9_7f4a_7c15, 0x1234_5678_9abc_def1] {
        let mut sequence = Sequence(seed);
        let args = [args, &["--enable-debug-command", "yes"]].concat();
        let servers = [Server::start(&args), Server::start(&args)];
        let _kept = servers.each_ref().map(&prepare);
        let [mut together, mut apart] = servers.each_ref().map(Server::client);
        for _ in 0..PARCELS {
            let mut packed_key: Vec<Vec<u8>> = (0..sequence.below(TOGETHER_MAX)).map(|_| sequence.request()).collect();
            packed_key.push(b"*1\r\n$5\r\nRESET\r\n".to_vec());
            together.send_packed_command(&packed_key.concat()).expect("a connection");
            for request in &packed_key {
                apart.send_packed_command(request).expect("a connection");
                let (expected, got) = (apart.recv_response(), together.recv_response());
                let shown = String::from_utf8_lossy(request);
                assert_eq!(format!("{got:?}"), format!("{expected:?}"), "{shown:?}, seed {seed:#x}");
            }
        }
        let [ours, theirs] = [&mut together, &mut apart].map(|client| {
            let digest: String = cmd("DEBUG").arg("DIGEST").query(client).expect("a digest");
            (digest, calls(client))
        });
        assert_eq!(ours, theirs, "seed {seed:#x}");
    }
}

#[test]
fn pipelined_requests_equal_single_requests() {
    compare(&["--io-threads", "1"], |_| {});
    compare(&["--io-threads", "4"], |_| {});
}

#[test]
fn pipelined_requests_equal_single_requests_with_all_features() {
    let everything = [
        "--appendonly",
        "yes",
        "--notify-keyspace-events",
        "AKE",
        "--maxmemory",
        "1gb",
        "--slowlog-log-slower-than",
        "0",
    ];
    compare(&everything, |server| {
        let mut listener = server.raw();
        listener.ask(&["PSUBSCRIBE", "*"], "*3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:1\r\n");
        listener
    });
}

#[test]
fn pipelined_requests_equal_single_requests_of_restricted_users() {
    compare(&[], |server| {
        let rules = ["SETUSER", "default", "resetkeys", "%R~*", "%W~key:1*", "-append"];
        cmd("ACL").arg(&rules).exec(&mut server.client()).expect("a user");
    });
}
