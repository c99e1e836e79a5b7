//! Random sessions on a Kvick and on a Valkey server at once: every reply must be the same, and in the end so must the
//! data. Commands are generated from the server's own tables (see `common/vocabulary.rs`) and run alone, in
//! transactions with WATCH, in scripts, and as a user with few rights, with RESP2 and RESP3. Some connections subscribe
//! to channels or get invalidations; what they receive is compared from checkpoint to checkpoint.
//!
//! One request runs at a time, so that a seed always gives the same session. What must differ is left out: see
//! [`LEFT_OUT`], [`UNORDERED`] and [`is_comparable`], and `docs/compatibility.md` for the reasons of the others.
//!
//! - `KVICK_TEST_ROUNDS`: the number of rounds (2). Rounds in a row have one worker and four in turn.
//! - `KVICK_TEST_SEED`: the seed of the first round (1).
//! - `KVICK_TEST_TRACE`: if set, all requests are printed.

mod common;

use common::Server;
use common::compare::{data_dir, digest};
use common::peer::Running;
use common::vocabulary::{Random, Request, Shape, Vocabulary};
use common::wire::{Reply, Wire};
use kvick_testing::programs::valkey_server;
use std::collections::BTreeSet;
use std::time::Duration;

/// Timeout of replies.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Requests of a round.
const STEPS: usize = 1000;
/// Requests between two comparisons of what subscribers and caching clients have received.
const CHECKPOINT: usize = 50;
/// Time for messages to arrive before they are compared.
const SETTLING: Duration = Duration::from_millis(5);
/// Connections to each server. Those with an odd number use RESP3.
const SESSIONS: usize = 6;

/// Commands that are not sent, with the reason.
const LEFT_OUT: &[(&str, &[&str])] = &[
    ("chosen at random", &["randomkey", "srandmember", "spop", "hrandfield", "zrandmember"]),
    ("depends on the clock", &["object|idletime", "object|freq", "xinfo|consumers", "xinfo|stream", "xpending"]),
    (
        "gives a time to live, which may end between the two executions",
        &["setex", "psetex", "restore", "restore-asking"],
    ),
    ("a cursor of the server's own tables", &["scan", "sscan", "hscan", "zscan"]),
    ("an internal form of the data", &["dump", "object|refcount", "pfdebug", "pfselftest"]),
    ("its text is the server's own", &["object|help", "xgroup|help", "xinfo|help"]),
    ("unspecified for elements of different scores", &["zrangebylex", "zrevrangebylex", "zremrangebylex", "zlexcount"]),
    ("tracked keys are invalidated by database", &["move", "select", "swapdb"]),
];
/// Commands whose replies have the order of the server's own tables, and the number of replies for each element.
const UNORDERED: &[(&str, usize)] = &[
    ("smembers", 1),
    ("sinter", 1),
    ("sunion", 1),
    ("sdiff", 1),
    ("hkeys", 1),
    ("hvals", 1),
    ("keys", 1),
    ("hgetall", 2),
];

/// Stands for the invalidation of all keys.
const ALL_STALE: &str = "everything is stale";

/// Runs the commands in ARGV, each behind the number of its words.
const MACHINE: &str = "local i = 1 local last = false while i <= #ARGV do local n = tonumber(ARGV[i]) local c = {} \
    for j = 1, n do c[j] = ARGV[i + j] end last = redis.pcall(unpack(c)) i = i + n + 1 end return last";
/// A user with few rights.
const LIMITED: &str =
    "ACL SETUSER limited on nopass ~string:* ~list:* %R~hash:* %W~set:* &ch1 +@all -@dangerous -lset -pfmerge";
/// Settings that change the encodings of values.
const SETTINGS: &[(&str, &[&str])] = &[
    ("list-max-listpack-size", &["-2", "3"]),
    ("hash-max-listpack-entries", &["3", "512"]),
    ("set-max-intset-entries", &["3", "512"]),
    ("set-max-listpack-entries", &["3", "128"]),
    ("zset-max-listpack-entries", &["3", "128"]),
    ("stream-node-max-entries", &["2", "100"]),
];

fn may_be_sent(shape: &Shape) -> bool {
    let is_left_out = LEFT_OUT.iter().any(|(_, names)| names.contains(&&*shape.name));
    shape.is_about_data() && !is_left_out && !shape.name.contains("expire")
}

/// Whether a command is left out in a round: Valkey's SORT converts sorted sets to skiplists, so encodings are compared
/// in two rounds of four, and sorts in the others.
fn is_for_others(shape: &Shape, seed: u64) -> bool {
    if seed % 4 < 2 { shape.name.starts_with("sort") } else { shape.name == "object|encoding" }
}

/// Whether both servers reply the same to a request, whenever it is executed.
fn is_comparable(shape: &Shape, request: &Request) -> bool {
    let has = |word: &str| request.iter().any(|one| one.eq_ignore_ascii_case(word.as_bytes()));
    let uses = |family: &str| request.iter().any(|word| word.starts_with(family.as_bytes()));
    // Times to live, other databases, and ranges that are unspecified for elements of different scores.
    if ["ex", "px", "exat", "pxat", "db", "absttl", "bylex"].iter().any(|word| has(word)) {
        return false;
    }
    match &*shape.group {
        // Generated IDs are times, and so are idle times, except that all entries have been idle for none.
        "stream" if request.iter().any(|word| word.ends_with(b"*")) => false,
        // Valkey does not track the keys if their number is not that of the IDs.
        "stream" if shape.name.starts_with("xread") => {
            let streams = request.iter().position(|word| word.eq_ignore_ascii_case(b"streams"));
            streams.is_none_or(|at| (request.len() - at - 1).is_multiple_of(2))
        }
        "stream" if shape.name.ends_with("claim") => request.get(4).is_some_and(|idle| idle == b"0"),
        // Valkey uses the low 32 bits of the index.
        "list" if shape.name == "lset" => request.get(2).is_none_or(|index| index.len() < 10),
        // Valkey invalidates another word of the request.
        "hash" if shape.name == "hsetex" => !has("fnx") && !has("fxx"),
        // If all fields overflow, the key is created or padded: Valkey tells nobody.
        "bitmap" if has("fail") => false,
        // A bit far behind the others would take half a gigabyte.
        "bitmap" => request.iter().all(|word| word.len() < 10),
        // Elements of equal weight have the order of the server's own tables, or that of its algorithm with LIMIT.
        "generic" if shape.name.starts_with("sort") => {
            let has_order = !["set", "sorted-set", "geo", "hash"].iter().any(|family| uses(family));
            has_order && (!has("by") || !has("alpha"))
        }
        _ => true,
    }
}

fn words(line: &str) -> Request {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn shown(request: &Request) -> String {
    request.iter().map(|word| word.escape_ascii().to_string()).collect::<Vec<_>>().join(" ")
}

/// A reply without what may differ: the order of elements, if the command has none, and the encoding of numbers, which
/// Valkey does not encode as such if a script has set them.
fn normalised(name: &str, reply: Reply) -> Reply {
    if name == "object|encoding" && reply == Reply::Bulk(b"embstr".to_vec()) {
        return Reply::Bulk(b"int".to_vec());
    }
    if name.starts_with("sort")
        && let Reply::Array(items) = reply
    {
        return Reply::Array(order_equal(items));
    }
    let Some((_, width)) = UNORDERED.iter().find(|(unordered, _)| *unordered == name) else { return reply };
    let Reply::Array(items) = reply else { return reply };
    let mut elements: Vec<&[Reply]> = items.chunks(*width).collect();
    elements.sort_by_key(|element| format!("{element:?}"));
    Reply::Array(elements.concat())
}

/// Sorted strings in an order that both servers have: Valkey compares them up to a zero byte.
fn order_equal(mut sorted: Vec<Reply>) -> Vec<Reply> {
    let compared = |item: &Reply| match item {
        Reply::Bulk(bytes) => bytes.split(|byte| *byte == 0).next().map(<[u8]>::to_vec),
        _ => None,
    };
    let runs = sorted.chunk_by_mut(|one, other| compared(one).is_some_and(|one| Some(one) == compared(other)));
    runs.for_each(|run| run.sort_by_key(|item| format!("{item:?}")));
    sorted
}

/// A connection to each server.
struct Session {
    wires: [Wire; 2],
    is_resp3: bool,
    /// The names of the queued commands, in a transaction.
    queued: Option<Vec<String>>,
    /// Messages and invalidated keys since the last checkpoint. Valkey collects invalidations of a key.
    received: [BTreeSet<String>; 2],
    /// The words of its transactions and scripts since then. Kvick collects changes until the end of these, and so
    /// also invalidates keys that they change before they read them.
    at_once: BTreeSet<String>,
    /// The keys that may have been invalidated so: if they change, Valkey's client gets to know, Kvick's knows already.
    invalidated: BTreeSet<String>,
}

impl Session {
    fn open(ports: [u16; 2], is_resp3: bool) -> Session {
        let wires = ports.map(|port| Wire::connect(port, WAIT_LIMIT).expect("a connection"));
        let mut session = Session {
            wires,
            is_resp3,
            queued: None,
            received: Default::default(),
            at_once: BTreeSet::new(),
            invalidated: BTreeSet::new(),
        };
        if is_resp3 {
            session.replies(&words("HELLO 3"));
        }
        session
    }

    /// Sends a request to both servers; returns their replies.
    fn replies(&mut self, request: &Request) -> [Reply; 2] {
        self.replies_to(std::slice::from_ref(request))
    }

    /// Sends requests to both servers; returns the first reply of each.
    fn replies_to(&mut self, requests: &[Request]) -> [Reply; 2] {
        for wire in &mut self.wires {
            wire.send(requests).expect("an open connection");
        }
        [0, 1].map(|server| {
            loop {
                match self.wires[server].read().unwrap_or_else(|error| panic!("{requests:?}: {error}")) {
                    Reply::Push(items) => self.note(server, &items),
                    reply => return reply,
                }
            }
        })
    }

    /// Notes the words of a request that runs together with others.
    fn note_words(&mut self, request: &Request) {
        self.at_once.extend(request.iter().map(|word| format!("stale {:?}", Reply::Bulk(word.clone()))));
    }

    fn note(&mut self, server: usize, push: &[Reply]) {
        match (push[0].text().as_str(), push.get(1)) {
            ("invalidate", Some(Reply::Array(keys))) => {
                self.received[server].extend(keys.iter().map(|key| format!("stale {key:?}")));
            }
            ("invalidate", _) => _ = self.received[server].insert(ALL_STALE.to_owned()),
            _ => _ = self.received[server].insert(format!("{push:?}")),
        }
    }

    /// What each server's client has received since the last call. The invalidation of all keys stands for those of
    /// single keys, which may be left out before or after it.
    fn take_received(&mut self) -> [BTreeSet<String>; 2] {
        let mut received = std::mem::take(&mut self.received);
        let at_once = std::mem::take(&mut self.at_once);
        let [kvick, valkey] = &mut received;
        valkey.retain(|line| kvick.contains(line) || !self.invalidated.remove(line));
        self.invalidated.extend(kvick.intersection(&at_once).cloned());
        kvick.retain(|line| valkey.contains(line) || !at_once.contains(line));
        if received.iter().any(|one| one.contains(ALL_STALE)) {
            received.iter_mut().for_each(|one| one.retain(|line| line == ALL_STALE || !line.starts_with("stale ")));
        }
        received
    }
}

/// A round.
struct Round<'a> {
    seed: u64,
    random: Random,
    vocabulary: &'a Vocabulary,
    sessions: Vec<Session>,
    /// The requests, with the numbers of their sessions, and how many of them precede the last checkpoint.
    requests: Vec<String>,
    checked: usize,
}

impl Round<'_> {
    /// A command that may be compared, and its name.
    fn command(&mut self) -> (String, Request) {
        loop {
            let (shape, request) = self.vocabulary.command(&mut self.random);
            let is_rare = shape.has("blocking") || shape.name.starts_with("flush");
            if is_comparable(shape, &request) && (!is_rare || self.random.percent(10)) {
                return (shape.name.clone(), request);
            }
        }
    }

    fn record(&mut self, session: usize, request: &Request) {
        let line = format!("{session}> {}", shown(request));
        if std::env::var_os("KVICK_TEST_TRACE").is_some() {
            println!("{line}");
        }
        self.requests.push(line);
    }

    /// Sends a request and compares the replies. `names` are the commands that produce them: several for EXEC.
    fn compare(&mut self, session: usize, request: &Request, names: &[String]) {
        self.record(session, request);
        // PFCOUNT changes the cached count of the key that it reads.
        let changes_and_reads = request[0] == b"EVAL" || request[0].eq_ignore_ascii_case(b"pfcount");
        if changes_and_reads || self.sessions[session].queued.is_some() {
            self.sessions[session].note_words(request);
        }
        let [kvick, valkey] = self.sessions[session].replies(request).map(|reply| match (reply, names) {
            (reply, [name]) if request[0] != b"EXEC" => normalised(name, reply),
            (Reply::Array(items), names) if items.len() == names.len() => {
                Reply::Array(names.iter().zip(items).map(|(name, reply)| normalised(name, reply)).collect())
            }
            (reply, _) => reply,
        });
        if let (Reply::Simple(text), [name], Some(queued)) = (&valkey, names, &mut self.sessions[session].queued)
            && text == "QUEUED"
        {
            queued.push(name.clone());
        }
        let how = if self.sessions[session].is_resp3 { "RESP3" } else { "RESP2" };
        assert_eq!(kvick, valkey, "Kvick and Valkey, with {how}: {}\n{}", shown(request), self.repeated_by());
    }

    /// The latest requests, earlier ones with keys of the last one, and the command that repeats the round.
    fn repeated_by(&self) -> String {
        let seed = self.seed;
        let (earlier, recent) = self.requests.split_at(self.checked);
        let last = recent.last().map_or("", |last| last);
        let keys: Vec<&str> = last.split(' ').filter(|word| word.contains(':')).collect();
        let related = |line: &&String| line.split(' ').any(|word| keys.contains(&word));
        let related: Vec<&str> = earlier.iter().filter(related).map(String::as_str).collect();
        let (related, recent) = (related.join("\n"), recent.join("\n"));
        format!(
            "Earlier, with its keys:\n{related}\nLatest:\n{recent}\n\
             KVICK_TEST_SEED={seed} KVICK_TEST_ROUNDS=1 cargo test -p kvick-server --test compare"
        )
    }

    fn line(&mut self, session: usize, line: &str) {
        self.compare(session, &words(line), &[String::new()]);
    }

    /// Sends a request that is answered by a push, or by an error if the user has no right for the channel.
    fn subscribe(&mut self, session: usize, request: &Request) {
        self.record(session, request);
        let both = [request.clone(), words("PING")];
        let pongs = self.sessions[session].replies_to(&both);
        if !matches!(pongs, [Reply::Simple(_), Reply::Simple(_)]) {
            assert_eq!(pongs[0], pongs[1], "Kvick and Valkey: {}\n{}", shown(request), self.repeated_by());
            self.sessions[session].replies_to(&[]);
        }
    }

    fn step(&mut self) {
        let session = self.random.below(SESSIONS);
        let (choice, number) = (self.random.below(100), 1 + self.random.below(3));
        let is_free = self.sessions[session].queued.is_none();
        let is_resp3 = self.sessions[session].is_resp3;
        match choice {
            0..3 if is_free => {
                self.line(session, "MULTI");
                self.sessions[session].queued = Some(Vec::new());
            }
            0..8 if !is_free => {
                let names = self.sessions[session].queued.take().unwrap_or_default();
                match choice {
                    0 => self.line(session, "DISCARD"),
                    _ => self.compare(session, &words("EXEC"), &names),
                }
            }
            3..6 => {
                let key = common::vocabulary::key(&mut self.random, "");
                self.line(session, &format!("WATCH {key}"));
            }
            6..14 if is_free => {
                let mut request = words("EVAL");
                request.extend([MACHINE.as_bytes().to_vec(), b"0".to_vec()]);
                let mut last = String::new();
                for _ in 0..number {
                    let (name, command) = self.command();
                    request.push(command.len().to_string().into_bytes());
                    request.extend(command);
                    last = name;
                }
                self.compare(session, &request, &[last]);
            }
            14..16 if is_free && is_resp3 => {
                let verb = self.random.of::<str>(&["SUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE", "PUNSUBSCRIBE"]);
                self.subscribe(session, &words(&format!("{verb} ch{number}")));
            }
            16..18 => self.line(session, &format!("PUBLISH ch{number} m{choice}")),
            18..20 if is_free && is_resp3 => {
                let mode = self.random.of::<str>(&["ON BCAST", "ON BCAST PREFIX list:", "OFF", "ON"]);
                self.line(session, &format!("CLIENT TRACKING {mode}"));
            }
            20..22 if is_free => {
                let user = self.random.of::<str>(&["limited", "default"]);
                self.line(session, &format!("AUTH {user} any"));
            }
            22..23 if is_free => {
                let (name, values) = SETTINGS[self.random.below(SETTINGS.len())];
                let value = self.random.of::<str>(values);
                self.line(session, &format!("CONFIG SET {name} {value}"));
            }
            _ => {
                let (name, request) = self.command();
                self.compare(session, &request, &[name]);
            }
        }
    }

    /// Compares what the connections have received without asking. On a busy machine a message may arrive after the
    /// reply to a later request.
    fn checkpoint(&mut self) {
        std::thread::sleep(SETTLING);
        for number in 0..SESSIONS {
            if self.sessions[number].queued.is_none() {
                self.line(number, "PING");
                let [kvick, valkey] = self.sessions[number].take_received();
                assert_eq!(kvick, valkey, "received by client {number} of Kvick and of Valkey\n{}", self.repeated_by());
            }
        }
        self.checked = self.requests.len();
    }
}

#[test]
fn replies_are_those_of_valkey() {
    let Some(valkey) = valkey_server((9, 1)) else { return };
    let variable = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (rounds, first) = (variable("KVICK_TEST_ROUNDS").unwrap_or(2), variable("KVICK_TEST_SEED").unwrap_or(1));
    for seed in first..first + rounds {
        let workers = if seed % 2 == 1 { "1" } else { "4" };
        println!("seed {seed}, {workers} workers");
        let (server, dir) = (Server::start(&["--io-threads", workers, "--enable-debug-command", "yes"]), data_dir());
        let peer = Running::start(&valkey.to_string_lossy(), dir.path(), &[]);
        drop(peer.client());
        let ports = [server.port(), peer.port()];
        let mut wire = Wire::connect(ports[0], WAIT_LIMIT).expect("a connection");
        let vocabulary = Vocabulary::load(&mut wire)
            .expect("the commands")
            .filtered(|shape| may_be_sent(shape) && !is_for_others(shape, seed));
        let sessions = (0..SESSIONS).map(|number| Session::open(ports, number % 2 == 1)).collect();
        let mut round =
            Round { seed, random: Random(seed), vocabulary: &vocabulary, sessions, requests: Vec::new(), checked: 0 };
        round.line(0, LIMITED);
        for step in 1..=STEPS {
            round.step();
            if step % CHECKPOINT == 0 {
                round.checkpoint();
            }
        }
        assert_eq!(digest(ports[0]), digest(ports[1]), "the data differ\n{}", round.repeated_by());
    }
}
