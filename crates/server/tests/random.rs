//! Random commands from many connections: whatever is sent, the server keeps running, answers with well-formed replies,
//! takes no more memory than its data needs, and holds the same data as its replica, its dump and its append-only file.
//!
//! Commands are generated from the server's own command table (see `common/vocabulary.rs`). Three kinds of connections
//! send them in pipelines: plain ones, whose replies are counted; destructive ones, which also subscribe, watch, switch
//! replies off and are killed; and connections to the replica.
//!
//! Variables: `KVICK_STRESS_SECONDS` sets the duration; `KVICK_RANDOM_SEED` repeats a seed (as far as the scheduling of
//! threads permits); `KVICK_RANDOM_WORKERS` and `KVICK_RANDOM_CONNECTIONS` set the numbers of workers and connections;
//! `KVICK_RANDOM_WITHOUT` excludes requests that contain one of its words, to isolate a failure; `KVICK_RANDOM_KEEP=1`
//! keeps the files of the primary and the replica.

mod common;

use common::compare::{self, ask, assert_same, contents, info};
use common::vocabulary::{Random, Request, Shape, Vocabulary, any_word, key};
use common::wire::{Reply, Wire};
use common::{Server, wait_until};
use std::io::ErrorKind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Timeout of replies.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// One server lives so long, then its data are compared and the next one begins.
const ROUND: Duration = Duration::from_secs(20);
/// Maximum memory of a server at its peak, and after all data are deleted.
const MEMORY_MAX: u64 = 1 << 30;
const MEMORY_EMPTY_MAX: i64 = 100 << 20;

fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Commands that are never sent: they end or stall the server, or make it a replica.
const NEVER: &[&str] = &[
    "shutdown",
    "debug",
    "replicaof",
    "slaveof",
    "failover",
    "sync",
    "psync",
    "replconf",
    "config|set",
    "config|rewrite",
    "script|debug",
    "pfselftest",
    "migrate",
    "client|kill",
    "client|import-source",
    "eval",
    "evalsha",
    "fcall",
    "eval_ro",
    "evalsha_ro",
    "fcall_ro",
    "function|load",
    "function|restore",
    "acl|load",
    "acl|save",
];
/// Commands of destructive connections only: they change replies or the user of a connection, or close it.
const DESTRUCTIVE: &[&str] = &[
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "unsubscribe",
    "punsubscribe",
    "sunsubscribe",
    "client|reply",
    "quit",
    "auth",
    "hello",
    "monitor",
];
/// Commands that are sent less often than others.
const SELDOM: &[&str] =
    &["flushall", "flushdb", "save", "bgsave", "bgrewriteaof", "client|pause", "swapdb", "keys", "lolwut"];

fn may_be_sent(shape: &Shape, destructive: bool) -> bool {
    !NEVER.contains(&&*shape.name) && (destructive || !DESTRUCTIVE.contains(&&*shape.name))
}

/// Settings that may change at any time, with values for each. Not among them is `hll-sparse-max-bytes`, by which a
/// replica with another value holds other bytes, and none that says how long a server waits.
const SETTINGS: &[(&str, &[&str])] = &[
    ("maxmemory", &["0", "0", "40mb", "100mb"]),
    ("maxmemory-policy", &["allkeys-lru", "volatile-ttl", "allkeys-random", "noeviction", "allkeys-lfu"]),
    ("notify-keyspace-events", &["", "KEA", "KEAmn", "g$"]),
    ("list-max-listpack-size", &["-2", "3", "128", "-1"]),
    ("list-compress-depth", &["0", "1"]),
    ("hash-max-listpack-entries", &["3", "512"]),
    ("hash-max-listpack-value", &["5", "64"]),
    ("set-max-intset-entries", &["3", "512"]),
    ("set-max-listpack-entries", &["3", "128"]),
    ("zset-max-listpack-entries", &["3", "128"]),
    ("zset-max-listpack-value", &["5", "64"]),
    ("stream-node-max-entries", &["2", "100"]),
    ("stream-node-max-bytes", &["50", "4096"]),
    ("lazyfree-lazy-expire", &["yes", "no"]),
    ("lazyfree-lazy-server-del", &["yes", "no"]),
    ("lazyfree-lazy-user-del", &["yes", "no"]),
    ("lazyfree-lazy-user-flush", &["yes", "no"]),
    ("slowlog-log-slower-than", &["0", "10000", "-1"]),
    ("commandlog-request-larger-than", &["10", "1048576"]),
    ("commandlog-reply-larger-than", &["10", "1048576"]),
    ("latency-monitor-threshold", &["0", "1"]),
    ("latency-tracking", &["yes", "no"]),
    ("tracking-table-max-keys", &["3", "1000000"]),
    ("appendfsync", &["always", "everysec", "no"]),
    ("aof-use-rdb-preamble", &["yes", "no"]),
    ("rdbcompression", &["yes", "no"]),
    ("hz", &["10", "100"]),
    ("active-expire-effort", &["1", "10"]),
    ("maxmemory-clients", &["0", "100mb"]),
    ("tcp-keepalive", &["0", "300"]),
    ("maxclients", &["1000", "10000"]),
    ("busy-reply-threshold", &["5000"]),
    ("repl-backlog-size", &["16kb", "1mb", "10mb"]),
    ("prefetch-batch-max-size", &["0", "16"]),
];

/// Runs the commands in ARGV, each behind the number of its words.
const MACHINE: &str = "local i = 1 local last = false while i <= #ARGV do local n = tonumber(ARGV[i]) local c = {} \
    for j = 1, n do c[j] = ARGV[i + j] end last = redis.pcall(unpack(c)) i = i + n + 1 end return last";

fn words(line: &str) -> Request {
    line.split(' ').filter(|word| !word.is_empty()).map(|word| word.as_bytes().to_vec()).collect()
}

/// A sending connection: the commands that it may send, and the state shared by all.
struct Sender<'a> {
    vocabulary: &'a Vocabulary,
    destructive: bool,
    found: &'a Found,
    /// Words of requests that are left out.
    without: &'a [Vec<u8>],
}

/// State that connections share.
#[derive(Default)]
struct Found {
    /// Replies to DUMP.
    payloads: Mutex<Vec<Vec<u8>>>,
    /// The ids of wild connections.
    victims: Mutex<Vec<i64>>,
}

impl Sender<'_> {
    fn plain(&self, random: &mut Random) -> Request {
        loop {
            let (shape, request) = self.vocabulary.command(random);
            if !SELDOM.contains(&&*shape.name) || random.percent(4) {
                return request;
            }
        }
    }

    /// Appends a command, or several that belong together.
    fn say(&self, random: &mut Random, out: &mut Vec<Request>) {
        match random.below(100) {
            0..8 => {
                out.push(words("MULTI"));
                (0..random.below(6)).for_each(|_| out.push(self.plain(random)));
                out.push(words(random.of::<str>(&["EXEC", "EXEC", "EXEC", "DISCARD"])));
            }
            8..16 => out.push(self.program(random)),
            16..18 => {
                let (name, values) = SETTINGS[random.below(SETTINGS.len())];
                let value = random.of::<str>(values);
                out.push(["CONFIG", "SET", name, value].map(|word| word.as_bytes().to_vec()).to_vec());
            }
            18..20 => out.push(self.debug(random)),
            20..22 => out.push(self.restore(random)),
            22..26 => {
                let (stream, id) = (key(random, "stream"), random.of::<str>(&[">", ">", "0", "3-1"]));
                out.push(words(&format!("XREADGROUP GROUP g{} c1 COUNT 3 STREAMS {stream} {id}", 1 + random.below(3))));
            }
            26 => {
                let victims = self.found.victims.lock().expect("no other has failed");
                let victim = victims.get(random.below(victims.len())).copied().unwrap_or(-1);
                let line = if random.percent(70) {
                    format!("CLIENT KILL ID {victim}")
                } else {
                    "CLIENT KILL TYPE pubsub".into()
                };
                out.push(words(&line));
            }
            27 => out.push(words(&format!("MIGRATE 127.0.0.1 1 {} 0 10", key(random, "")))),
            28 if random.percent(20) => out.push(words(random.of::<str>(&["HELLO 2", "HELLO 3"]))),
            _ => out.push(self.plain(random)),
        }
    }

    fn program(&self, random: &mut Random) -> Request {
        let mut request = match random.below(6) {
            0..3 => vec![random.of::<str>(&["EVAL", "EVAL", "EVAL_RO"]).into(), MACHINE.into()],
            3 => words(random.of::<str>(&["FCALL machine", "FCALL_RO machine_ro"])),
            4 => {
                let library = format!(
                    "#!lua name=machines\nlocal function run(KEYS, ARGV) {MACHINE} end\n\
                     server.register_function('machine', run)\n\
                     server.register_function{{function_name='machine_ro', callback=run, flags={{'no-writes'}}}}"
                );
                return vec!["FUNCTION".into(), "LOAD".into(), "REPLACE".into(), library.into()];
            }
            _ => {
                let script = random.of::<str>(&[
                    "return redis.call('keys', '*')",
                    "return cjson.encode({redis.call('time'), KEYS, ARGV})",
                    "redis.setresp(3) return redis.call('hgetall', KEYS[1])",
                    "return {1.5, false, true, {map = {a = 1}}, {err = 'ERR my own'}, {double = 1.25}, {ok = 'fine'}, \
                     nil, 3}",
                    "local t = {} for i = 1, 300 do t[i] = redis.call('incr', KEYS[1]) end return t",
                    "return redis.sha1hex(ARGV[1]) .. tostring(cmsgpack.pack(ARGV))",
                    "redis.call('select', 2) redis.call('set', KEYS[1], 'x') return redis.call('dbsize')",
                    "error('mine')",
                    "return struct.pack('>I4', 5) .. #KEYS",
                ]);
                return vec!["EVAL".into(), script.into(), "1".into(), key(random, "").into(), any_word(random)];
            }
        };
        let keys = random.below(3);
        request.push(keys.to_string().into());
        (0..keys).for_each(|_| request.push(key(random, "").into()));
        for _ in 0..1 + random.below(3) {
            let command = self.plain(random);
            request.push(command.len().to_string().into());
            request.extend(command);
        }
        request
    }

    fn debug(&self, random: &mut Random) -> Request {
        let key = key(random, "");
        words(&match random.below(30) {
            0 => "DEBUG RELOAD".into(),
            1 => "DEBUG LOADAOF".into(),
            2..5 => format!("DEBUG DIGEST-VALUE {key}"),
            5..8 => format!("DEBUG OBJECT {key}"),
            8 => format!("DEBUG LISTPACK {key}"),
            9 => format!("DEBUG HTSTATS-KEY {key} full"),
            10 => "DEBUG HTSTATS 0 full".into(),
            11 => format!("DEBUG SDSLEN {key}"),
            12..18 => {
                let types = [
                    "string", "integer", "double", "bignum", "null", "array", "set", "map", "attrib", "push",
                    "verbatim", "true",
                ];
                format!("DEBUG PROTOCOL {}", random.of::<str>(&types))
            }
            18 => "DEBUG ERROR one\r\ntwo".into(),
            19 => "DEBUG SET-ACTIVE-EXPIRE 0".into(),
            20..22 => "DEBUG SET-ACTIVE-EXPIRE 1".into(),
            22 => "DEBUG QUICKLIST-PACKED-THRESHOLD 20".into(),
            23 => "DEBUG QUICKLIST-PACKED-THRESHOLD 0".into(),
            24 => "DEBUG STRINGMATCH-LEN 10 a".into(),
            25 => "DEBUG HELP".into(),
            _ => "DEBUG DIGEST".into(),
        })
    }

    fn restore(&self, random: &mut Random) -> Request {
        let payloads = self.found.payloads.lock().expect("no other has failed");
        let Some(payload) = payloads.get(random.below(payloads.len())) else { return words("DUMP list:1") };
        let mut payload = payload.clone();
        if random.percent(30) && !payload.is_empty() {
            let at = random.below(payload.len());
            payload[at] ^= 1 << random.below(8);
        }
        let ttl = random.of::<str>(&["0", "0", "0", "1", "100000000"]);
        let mut request = words(&format!("RESTORE {} {ttl}", key(random, "")));
        request.push(payload);
        if random.percent(70) {
            request.push("REPLACE".into());
        }
        request
    }
}

fn shown(requests: &[Request]) -> String {
    let word = |word: &Vec<u8>| format!("\"{}\"", word[..word.len().min(200)].escape_ascii());
    requests.iter().map(|request| request.iter().map(word).collect::<Vec<_>>().join(" ") + "\n").collect()
}

/// Sends pipelines until the time has come; how many commands.
fn send_random_commands(port: u16, sender: &Sender<'_>, random: &mut Random, stop: &AtomicBool) -> u64 {
    let mut sent = 0;
    let connect = |random: &mut Random| {
        let mut wire = Wire::connect(port, WAIT_LIMIT).expect("a connection");
        if sender.destructive {
            let id = wire.ask(&["CLIENT", "ID"]).map_or(-1, |id| id.integer());
            let mut victims = sender.found.victims.lock().expect("no other has failed");
            if victims.len() < 4 {
                victims.push(id);
            } else {
                let at = random.below(victims.len());
                victims[at] = id;
            }
        }
        wire
    };
    let mut wire = connect(random);
    while !stop.load(Ordering::Relaxed) {
        let token = random.word().to_string();
        let mut requests = Vec::new();
        if sender.destructive {
            requests.push(words("HELLO 3"));
        }
        (0..1 + random.below(12)).for_each(|_| sender.say(random, &mut requests));
        requests.retain(|request| !request.iter().any(|word| sender.without.contains(&word.to_ascii_lowercase())));
        if sender.destructive {
            requests.extend(["RESET", "CLIENT REPLY ON"].map(words));
        } else {
            requests.push(words("DISCARD"));
        }
        requests.push(words(&format!("ECHO {token}")));
        let result = wire.send(&requests).and_then(|()| answers(&mut wire, sender, requests.len(), token.as_bytes()));
        match result {
            Ok(()) => {}
            Err(error)
                if sender.destructive && !matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::WouldBlock) =>
            {
                // It was killed, or has quit.
                wire = connect(random);
            }
            Err(error) => {
                panic!("{error} (kind {:?}, wild: {}) after\n{}", error.kind(), sender.destructive, shown(&requests))
            }
        }
        sent += requests.len() as u64;
    }
    sent
}

/// Reads the replies of a pipeline, the last of which is the token. Of a wild connection they cannot be counted.
fn answers(wire: &mut Wire, sender: &Sender<'_>, count: usize, token: &[u8]) -> std::io::Result<()> {
    let mut replies = 0;
    loop {
        let reply = wire.read()?;
        match &reply {
            Reply::Push(_) => continue,
            Reply::Bulk(bytes) if bytes == token => break,
            // What DUMP replies ends with a version and a sum.
            Reply::Bulk(bytes) if bytes.len() > 10 && bytes[bytes.len() - 10..][..2] == [80, 0] => {
                let mut payloads = sender.found.payloads.lock().expect("no other has failed");
                if payloads.len() < 100 {
                    payloads.push(bytes.clone());
                } else {
                    let at = replies * 7 % 100;
                    payloads[at] = bytes.clone();
                }
            }
            _ => {}
        }
        replies += 1;
        assert!(sender.destructive || replies < count, "more replies than requests: {reply:?}");
    }
    let told = replies + 1;
    if sender.destructive || told == count {
        return Ok(());
    }
    Err(std::io::Error::new(ErrorKind::InvalidData, format!("{told} replies to {count} requests")))
}

fn start(data_dir: &TempDir, args: &[&str]) -> Server {
    let workers = variable("KVICK_RANDOM_WORKERS", 4).to_string();
    let dir = data_dir.path().to_str().expect("a plain path");
    let common = [
        "--dir",
        dir,
        "--io-threads",
        &workers,
        "--enable-debug-command",
        "yes",
        "--proto-max-bulk-len",
        "1mb",
        "--repl-diskless-sync-delay",
        "0",
        "--appendonly",
        "yes",
    ];
    Server::start(&[&common[..], args].concat())
}

/// Ends all activity that changes data by itself.
fn settle(server: &Server) {
    for line in [
        "CLIENT UNPAUSE",
        "DEBUG SET-ACTIVE-EXPIRE 1",
        "DEBUG QUICKLIST-PACKED-THRESHOLD 0",
        "CONFIG SET maxmemory 0",
        "CONFIG SET maxmemory-clients 0",
        "CONFIG SET appendfsync everysec",
    ] {
        let reply = ask(server.port(), line);
        assert!(!matches!(reply, Reply::Error(_)), "{line}: {reply:?}");
    }
    compare::settle(server.port());
}

/// The most memory that the process has had, in bytes.
fn memory_peak(server: &Server) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn assert_healthy(server: &mut Server, what: &str) {
    let mut wire = Wire::connect(server.port(), WAIT_LIMIT).unwrap_or_else(|error| panic!("{what}: {error}"));
    // The last request of a connection that has gone may have been DEBUG LOADAOF.
    wait_until("the data are there", || info(server.port(), "persistence", "loading") == "0");
    assert_eq!(wire.ask(&["PING"]).expect("a reply"), Reply::Simple("PONG".into()), "{what}");
    let log = server.log();
    assert!(!log.contains("panicked") && !log.contains("REPORT START"), "{what} has crashed");
    assert!(memory_peak(server) < MEMORY_MAX, "{what} took {} bytes", memory_peak(server));
}

/// Prints how many commands succeeded at least once, and how many never.
fn tell_coverage(server: &Server) {
    let text = ask(server.port(), "INFO COMMANDSTATS").text();
    let count = |line: &str, name: &str| {
        let found = line.split([':', ',']).find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
        found.and_then(|digits| digits.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("cmdstat_")).collect();
    let fruitless: Vec<&str> = lines
        .iter()
        .filter(|line| count(line, "calls") == count(line, "failed_calls"))
        .map(|line| line["cmdstat_".len()..].split(':').next().unwrap_or_default())
        .collect();
    println!("{} commands, of which none succeeded of {}: {fruitless:?}", lines.len(), fruitless.len());
}

fn round(seed: u64, time: Duration) -> u64 {
    let (data_dir, other) = (compare::data_dir(), compare::data_dir());
    let mut primary = start(&data_dir, &[]);
    let mut replica = start(&other, &["--replicaof", &format!("127.0.0.1 {}", primary.port())]);
    wait_until("the replica follows", || info(replica.port(), "replication", "master_link_status") == "up");

    let mut wire = Wire::connect(primary.port(), WAIT_LIMIT).expect("a connection");
    let all = Vocabulary::load(&mut wire).expect("a table");
    let (plain, destructive) =
        (all.filtered(|shape| may_be_sent(shape, false)), all.filtered(|shape| may_be_sent(shape, true)));
    assert!(plain.len() > 250, "the table has only {} commands", plain.len());
    // To count what a value holds changes the value, also on a replica, and also there only.
    let readers = plain.filtered(|shape| shape.name != "pfcount");
    let without = words(&std::env::var("KVICK_RANDOM_WITHOUT").unwrap_or_default().to_lowercase());
    let (found, stop, sent) = (Found::default(), AtomicBool::new(false), AtomicU64::new(0));
    let connections = variable("KVICK_RANDOM_CONNECTIONS", 12);
    std::thread::scope(|scope| {
        for number in 0..connections {
            let (found, stop, sent, without) = (&found, &stop, &sent, &without);
            let (plain, destructive, readers) = (&plain, &destructive, &readers);
            // Of every six, one is wild; the last is the replica's.
            let (is_wild, is_replicas) = (number % 6 == 5, number > 0 && number + 1 == connections);
            let port = if is_replicas { replica.port() } else { primary.port() };
            scope.spawn(move || {
                let is_wild = is_wild && !is_replicas;
                let vocabulary = if is_replicas {
                    readers
                } else if is_wild {
                    destructive
                } else {
                    plain
                };
                let sender = Sender { vocabulary, destructive: is_wild, found, without };
                let mut random = Random(seed.wrapping_add(number));
                sent.fetch_add(send_random_commands(port, &sender, &mut random, stop), Ordering::Relaxed);
            });
        }
        std::thread::sleep(time);
        stop.store(true, Ordering::Relaxed);
    });
    assert_healthy(&mut primary, "the primary");
    assert_healthy(&mut replica, "the replica");

    tell_coverage(&primary);
    settle(&primary);
    settle(&replica);
    let before = contents(primary.port());
    wait_until("the replica has all", || {
        let offset = |server: &Server| info(server.port(), "replication", "master_repl_offset");
        offset(&primary) == offset(&replica) && info(replica.port(), "replication", "master_link_status") == "up"
    });
    assert_same("the replica", &before, replica.port());
    assert_eq!(ask(primary.port(), "DEBUG RELOAD"), Reply::Simple("OK".into()));
    assert_same("the dump", &before, primary.port());
    primary.signal(libc::SIGTERM);
    assert_eq!(primary.end(), Some(0), "the end");
    let again = start(&data_dir, &[]);
    assert_same("the append-only file", &before, again.port());

    for line in ["REPLICAOF NO ONE", "FLUSHALL", "FUNCTION FLUSH", "SCRIPT FLUSH"] {
        assert_eq!(ask(replica.port(), line), Reply::Simple("OK".into()), "{line}");
    }
    wait_until("memory is given back", || {
        info(replica.port(), "memory", "used_memory").parse::<i64>().expect("a number") < MEMORY_EMPTY_MAX
    });
    sent.into_inner()
}

#[test]
fn random_commands_keep_primary_replica_and_files_equal() {
    let seed = variable("KVICK_RANDOM_SEED", u64::from(std::process::id()) << 20);
    let time = Duration::from_secs(variable("KVICK_STRESS_SECONDS", 4));
    let (began, mut sent) = (Instant::now(), 0);
    for number in 0.. {
        let left = time.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        let seed = seed.wrapping_add(number * 1000);
        println!("KVICK_RANDOM_SEED={seed}");
        sent += round(seed, left.min(ROUND));
    }
    println!("{sent} commands");
    assert!(sent > 100, "only {sent} commands");
}
