//! Random commands, generated from the documentation in a server: [`Vocabulary::load`] reads its tables (COMMAND and
//! COMMAND DOCS), [`Vocabulary::command`] generates a command with arguments of the documented types. Most arguments
//! are valid, and keys are few, so that commands meet each other's values.
//!
//! Generated commands do not block for long: timeouts are short and never 0. Times to live are either a moment or
//! longer than the test, so that nothing expires after a moment.

use super::wire::{Reply, Wire};
use std::io::Result;
use std::time::{SystemTime, UNIX_EPOCH};

/// A request: the name of a command and its arguments.
pub type Request = Vec<Vec<u8>>;

/// Numbers that look random (SplitMix64), the same for the same seed.
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    /// One of 64 bits.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// One from 0 to below `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.word() % bound.max(1) as u64) as usize
    }

    /// True so many times of a hundred.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// One of these.
    pub fn of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

/// An argument as it is documented.
#[derive(Debug, Clone)]
struct Argument {
    name: String,
    kind: String,
    token: Option<String>,
    optional: bool,
    multiple: bool,
    multiple_token: bool,
    inner: Vec<Argument>,
}

impl Argument {
    fn read(reply: &Reply) -> Argument {
        let text = |name| reply.field(name).map(Reply::text);
        let flags: Vec<String> =
            reply.field("flags").map_or(Vec::new(), |flags| flags.items().iter().map(Reply::text).collect());
        let has = |flag: &str| flags.iter().any(|known| known == flag);
        Argument {
            name: text("name").unwrap_or_default(),
            kind: text("type").unwrap_or_default(),
            token: text("token"),
            optional: has("optional"),
            multiple: has("multiple"),
            multiple_token: has("multiple_token"),
            inner: arguments(reply),
        }
    }
}

fn arguments(reply: &Reply) -> Vec<Argument> {
    reply.field("arguments").map_or(Vec::new(), |all| all.items().iter().map(Argument::read).collect())
}

/// A command or subcommand.
#[derive(Debug, Clone)]
pub struct Shape {
    /// Its name, with that of its container before a `|`.
    pub name: String,
    /// The family.
    pub group: String,
    flags: Vec<String>,
    arguments: Vec<Argument>,
}

impl Shape {
    /// Whether it has a flag.
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }

    /// Whether it is about keys and their values alone, and says the same whenever it is repeated by a replica.
    pub fn is_about_data(&self) -> bool {
        const FAMILIES: [&str; 9] =
            ["string", "list", "set", "sorted-set", "hash", "stream", "geo", "bitmap", "hyperloglog"];
        FAMILIES.contains(&&*self.group)
            || self.group == "generic" && !["wait", "waitaof", "migrate"].contains(&&*self.name)
            || ["swapdb", "flushdb", "flushall", "select"].contains(&&*self.name)
    }
}

/// The commands of a server.
pub struct Vocabulary {
    shapes: Vec<Shape>,
}

impl Vocabulary {
    /// Loads them from a server.
    pub fn load(wire: &mut Wire) -> Result<Vocabulary> {
        let (table, docs) = (wire.ask(&["COMMAND"])?, wire.ask(&["COMMAND", "DOCS"])?);
        let mut shapes = Vec::new();
        for command in table.items() {
            let name = command.items()[0].text();
            let doc = docs.field(&name).cloned().unwrap_or(Reply::Null);
            let group = doc.field("group").map(Reply::text).unwrap_or_default();
            let mut add = |command: &Reply, doc: &Reply| {
                let flags = command.items()[2].items().iter().map(Reply::text).collect();
                let name = command.items()[0].text();
                shapes.push(Shape { name, group: group.clone(), flags, arguments: arguments(doc) });
            };
            let inner = command.items()[9].items();
            if inner.is_empty() {
                add(command, &doc);
            }
            let docs = doc.field("subcommands").cloned().unwrap_or(Reply::Null);
            for command in inner {
                add(command, docs.field(&command.items()[0].text()).unwrap_or(&Reply::Null));
            }
        }
        Ok(Vocabulary { shapes })
    }

    /// The commands that satisfy a predicate.
    pub fn filtered(&self, wanted: impl Fn(&Shape) -> bool) -> Vocabulary {
        Vocabulary { shapes: self.shapes.iter().filter(|shape| wanted(shape)).cloned().collect() }
    }

    /// Number of commands and subcommands.
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    /// One of its commands, with arguments.
    pub fn command(&self, random: &mut Random) -> (&Shape, Request) {
        let shape = &self.shapes[random.below(self.shapes.len())];
        let mut request: Request = shape.name.split('|').map(|word| word.as_bytes().to_vec()).collect();
        let mut writer = Writer { random, shape, request: &mut request, announced: None };
        shape.arguments.iter().for_each(|argument| writer.argument(argument));
        // What waits is left as it is: by accident it might wait for ever.
        if !shape.has("blocking") && random.percent(6) {
            mutate(&mut request, random);
        }
        (shape, request)
    }
}

/// Makes a command invalid, in most cases.
fn mutate(request: &mut Request, random: &mut Random) {
    let at = random.below(request.len());
    match random.below(5) {
        0 if at > 0 => drop(request.remove(at)),
        1 => request.insert(at.max(1), any_word(random)),
        2 if at > 0 => request[at] = any_word(random),
        3 if at > 0 => {
            let other = 1 + random.below(request.len() - 1);
            request.swap(at, other);
        }
        _ => request.push(any_word(random)),
    }
}

/// Writes the arguments of one command.
struct Writer<'a> {
    random: &'a mut Random,
    shape: &'a Shape,
    request: &'a mut Request,
    /// The announced number of following arguments, as by `numkeys`.
    announced: Option<usize>,
}

impl Writer<'_> {
    fn push(&mut self, word: impl AsRef<[u8]>) {
        self.request.push(word.as_ref().to_vec());
    }

    fn argument(&mut self, argument: &Argument) {
        if argument.optional && !self.random.percent(if argument.name == "count" { 70 } else { 35 }) {
            return;
        }
        let times = match (argument.multiple, self.announced) {
            (true, Some(count)) => {
                self.announced = None;
                count
            }
            (true, None) if self.random.percent(3) => 150,
            (true, None) => 1 + self.random.below(4),
            (false, _) => 1,
        };
        for time in 0..times {
            if let (Some(token), true) = (&argument.token, time == 0 || argument.multiple_token) {
                self.push(token);
            }
            self.value(argument);
        }
    }

    fn value(&mut self, argument: &Argument) {
        let name = &*argument.name;
        match &*argument.kind {
            "pure-token" => {}
            "block" => argument.inner.iter().for_each(|inner| self.argument(inner)),
            "oneof" => {
                // Each alternative of a choice may be chosen.
                let mut chosen = argument.inner[self.random.below(argument.inner.len())].clone();
                chosen.optional = false;
                self.argument(&chosen);
            }
            "key" => {
                let key = key(self.random, &self.shape.group);
                self.push(key);
            }
            "integer" if name.starts_with("num") && !["num-matches", "num-vertices"].contains(&name) => {
                let count = 1 + self.random.below(4);
                self.announced = Some(count);
                let said = if self.random.percent(4) { self.random.below(6) } else { count };
                self.push(said.to_string());
            }
            "integer" | "unix-time" | "double" => {
                let number = number(self.random, self.shape, name, &argument.kind);
                self.push(number);
            }
            "pattern" => {
                let patterns =
                    ["*", "list:*", "?*", "[a-h]*:1", "m1*", "#", "string:*", "hash:*->f1", "nothing", "[", "\\"];
                let pattern = self.random.of::<str>(&patterns);
                self.push(pattern);
            }
            _ => {
                let text = text(self.random, self.shape, name);
                self.push(text);
            }
        }
    }
}

/// A key: mostly one of its family, at times any.
pub fn key(random: &mut Random, group: &str) -> String {
    const FAMILIES: [&str; 9] =
        ["string", "list", "set", "sorted-set", "hash", "stream", "geo", "bitmap", "hyperloglog"];
    let own = FAMILIES.iter().position(|family| *family == group).filter(|_| !random.percent(12));
    let family = FAMILIES[own.unwrap_or_else(|| random.below(FAMILIES.len()))];
    format!("{family}:{}", random.below(5))
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as i64)
}

fn number(random: &mut Random, shape: &Shape, name: &str, kind: &str) -> String {
    const SOON_MS: i64 = 200;
    const LATE_S: i64 = 1_000_000;
    let pick = |random: &mut Random, choices: &[i64]| choices[random.below(choices.len())].to_string();
    let now = now_ms();
    match name {
        "timeout" if kind == "double" => return format!("0.0{}", 1 + random.below(9)),
        "timeout" => return (1 + random.below(30)).to_string(),
        "milliseconds" if shape.has("blocking") => return (1 + random.below(30)).to_string(),
        "seconds" | "idle-time" => return pick(random, &[1, LATE_S, LATE_S, -1, 0, i64::MAX]),
        "milliseconds" | "ttl" => {
            return pick(random, &[1, 10, SOON_MS, LATE_S * 1000, LATE_S * 1000, -1, 0, i64::MAX]);
        }
        "unix-time-seconds" => {
            return pick(random, &[now / 1000, now / 1000 + 1, now / 1000 + LATE_S, 1, -1, i64::MAX]);
        }
        "unix-time-milliseconds" => {
            return pick(random, &[now, now + SOON_MS, now + LATE_S * 1000, now + LATE_S * 1000, 1, -1]);
        }
        "db" | "destination-db" | "index" | "index1" | "index2" if shape.group != "list" => {
            return pick(random, &[0, 0, 1, 2, 3, 16, -1]);
        }
        "longitude" => return format!("{}.{}", random.below(360) as i64 - 180, random.below(1000)),
        "latitude" => return format!("{}.{}", random.below(170) as i64 - 85, random.below(1000)),
        "protover" => return pick(random, &[2, 3, 3, 4]),
        "numreplicas" | "numlocal" => return pick(random, &[0, 1, 2]),
        "port" => return "1".to_string(),
        "bit" => return pick(random, &[0, 1, 1, 2]),
        // Negative counts return exactly that many members, even of a smaller set.
        "count" if shape.name.ends_with("randmember") || shape.name == "hrandfield" => {
            return pick(random, &[1, 3, 100, -1, -5, -100, 0, i64::MIN, i64::MAX]);
        }
        "value" if shape.name == "setbit" => return pick(random, &[0, 1, 1]),
        _ => {}
    }
    if kind == "double" {
        const DOUBLES: [&str; 14] = [
            "0",
            "1",
            "-1",
            "1.5",
            "-0.25",
            "3.3333333333333333",
            "inf",
            "-inf",
            "(1",
            "(5",
            "1e300",
            "-1e-300",
            "100",
            "nan",
        ];
        return random.of::<str>(&DOUBLES).to_string();
    }
    match random.below(20) {
        0 => pick(random, &[i64::MAX, i64::MIN, u32::MAX as i64, i32::MIN as i64, i64::MAX - 1]),
        1 => pick(random, &[-1, -2, -5, -100]),
        2 => random.of::<str>(&["", "x", "1.5", " 1", "+1", "01", "9223372036854775808"]).to_string(),
        3 => pick(random, &[64, 127, 128, 129, 255, 512, 1000, 5000]),
        _ => random.below(12).to_string(),
    }
}

fn text(random: &mut Random, shape: &Shape, name: &str) -> Vec<u8> {
    let stream = shape.group == "stream";
    let words: &[&str] = match name {
        "group" => &["g1", "g2", "g3"],
        "consumer" => &["c1", "c2", "c3"],
        "id" if shape.name == "xreadgroup" => &[">", ">", ">", "0", "3-1"],
        "id" if shape.name == "xread" => &["$", "0", "+", "5-1", "0-1"],
        "id" | "lastid" | "last-id" | "max-deleted-id" | "start" | "end" | "threshold" if stream => {
            return stream_id(random, name);
        }
        "min-idle-time" => &["0", "0", "1", "100000"],
        "min" | "max" | "start" | "stop" if shape.group == "sorted-set" => {
            &["-", "+", "[m1", "(m3", "[m7", "0", "-1", "3", "(2", "inf", "-inf", "1"]
        }
        "encoding" => &["u8", "i8", "u1", "i64", "u63", "i5", "u64", "i0", "x"],
        "username" => &["u1", "u2", "u3"],
        "password" => &["wrong"],
        "rule" => &[
            "on",
            "off",
            "nopass",
            "~*",
            "~list:*",
            "&*",
            "+@all",
            "-@all",
            "+get",
            "-set",
            "+config|get",
            "reset",
            "resetkeys",
            "%R~string:*",
            "(+set ~hash:*)",
            "clearselectors",
            ">secret",
            "allchannels",
            "db=0,1",
            "alldbs",
            "x",
        ],
        "host" => &["127.0.0.1"],
        "type" => &["string", "list", "set", "zset", "hash", "stream", "none"],
        "category" => &["read", "write", "stream", "dangerous", "nothing"],
        "command" | "command-name" => &["get", "set", "config", "config|get", "xadd", "nothing", "eval"],
        "parameter" => &["*", "max*", "save", "nothing", "port"],
        "section" => &["all", "everything", "memory", "commandstats", "replication", "nothing", "keyspace"],
        "event" => &["command", "fork", "expire-cycle", "nothing"],
        "sha1" => &["0000000000000000000000000000000000000000", "short"],
        "library-name" | "library-name-pattern" => &["machines", "nothing", "*"],
        "channel" | "shardchannel" => &["ch1", "ch2", "ch3"],
        "subcommand" => &["getreg", "decode", "encoding", "todense"],
        "capability" => &["redirect", "nothing"],
        "flags" | "not-flags" => &["N", "x", "P", "b"],
        _ => return any_word(random),
    };
    random.of(words).as_bytes().to_vec()
}

fn stream_id(random: &mut Random, name: &str) -> Vec<u8> {
    let special = match name {
        "start" | "end" => random.of::<str>(&["-", "+", "0", "(3-1", "(10"]),
        _ => random.of::<str>(&["$", "*", "0-0", "18446744073709551615-18446744073709551615", "7"]),
    };
    match random.below(6) {
        0 => special.as_bytes().to_vec(),
        1 => format!("{}-*", random.below(50)).into_bytes(),
        _ => format!("{}-{}", random.below(50), random.below(4)).into_bytes(),
    }
}

/// A word that may mean anything.
pub fn any_word(random: &mut Random) -> Vec<u8> {
    const ODD: [&[u8]; 16] = [
        b"",
        b"0",
        b"-1",
        b"inf",
        b"nan",
        b"(1",
        b"[m1",
        b"-",
        b"+",
        b"*",
        b"\0\xff\r\n",
        b"9223372036854775807",
        b"1e10",
        b"LIMIT",
        b"STORE",
        b"list:1",
    ];
    match random.below(24) {
        0 => random.of(&ODD).to_vec(),
        1 => random.below(100_000).to_string().into_bytes(),
        2 => format!("{}.{}", random.below(100), random.below(1000)).into_bytes(),
        3 => vec![b'a' + random.below(26) as u8; [30, 63, 64, 65, 200, 4000][random.below(6)]],
        4 => (0..random.below(40)).map(|_| random.word() as u8).collect(),
        5..10 => format!("f{}", random.below(9)).into_bytes(),
        10..13 => random.below(20).to_string().into_bytes(),
        _ => format!("m{}", random.below(40)).into_bytes(),
    }
}
