//! Asks nodes what they do, over ordinary client connections.
//!
//! All nodes are asked at the same time, each on a connection that is kept. A node that does not answer within two
//! seconds has no [`Facts`]. Rates are differences of counters since the last time.

use crate::backend::Member;
use crate::state::{Export, Facts, FailedExport, Load, Node, Peer, State};
use kvick_load::client::Client;
use kvick_load::config::Client as ClientSettings;
use kvick_load::reply::Value;
use kvick_load::transport::TlsSettings;
use std::collections::{HashMap, HashSet};
use std::io;
use std::time::{Duration, Instant};

/// Time for connecting, and for each reply.
const LIMIT_MS: u64 = 2_000;
/// PING commands of which the fastest counts.
const PINGS: usize = 3;
/// Time constant of the averages of rates, in seconds.
const SMOOTHING_S: f64 = 1.5;

/// How to get in.
#[derive(Clone, Default)]
pub struct Access {
    /// User; without one, the default user.
    pub username: Option<String>,
    /// Its password, if it has one.
    pub password: Option<String>,
    /// How connections are encrypted, if they are. Certificates are checked for the host names of nodes that have one.
    pub tls: Option<TlsSettings>,
}

/// Connections to nodes, and what they said the last time.
pub struct Observer {
    access: Access,
    began: Instant,
    nodes: HashMap<String, Known>,
    /// Names of read-only commands, once a node has listed them.
    reads: HashSet<String>,
}

#[derive(Default)]
struct Known {
    client: Option<Client>,
    counters: Option<Counters>,
    load: Load,
}

/// Counters that only grow while a process lives.
#[derive(Clone, Default)]
struct Counters {
    at: Duration,
    uptime_s: u64,
    busy_us: f64,
    cpu_s: f64,
    commands: f64,
    traffic_bytes: f64,
    read_us: f64,
    command_us: f64,
    slots: HashMap<u16, f64>,
}

impl Observer {
    /// Without connections.
    pub fn new(access: Access) -> Observer {
        Observer { access, began: Instant::now(), nodes: HashMap::new(), reads: HashSet::new() }
    }

    /// Changes how new connections get in.
    pub fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    /// Asks all nodes.
    pub fn observe(&mut self, members: Vec<Member>) -> State {
        self.nodes.retain(|name, _| members.iter().any(|member| member.name == *name));
        for member in &members {
            self.nodes.entry(member.name.clone()).or_default();
        }
        let (access, began, mut reads) = (&self.access, self.began, std::mem::take(&mut self.reads));
        let known_reads = &reads;
        let (nodes, learned) = std::thread::scope(|scope| {
            let mut asked = Vec::new();
            for (name, known) in &mut self.nodes {
                let Some(member) =
                    members.iter().find(|member| member.name == *name).filter(|m| m.is_running && !m.host.is_empty())
                else {
                    known.client = None;
                    continue;
                };
                asked.push((name.clone(), scope.spawn(move || known.ask(member, access, began, known_reads))));
            }
            let mut facts: HashMap<String, Facts> = HashMap::new();
            let mut learned = HashSet::new();
            for (name, thread) in asked {
                // A thread that panics is a node without facts; the panic has been printed.
                if let Ok(Ok((found, reads))) = thread.join() {
                    facts.insert(name, found);
                    learned.extend(reads);
                }
            }
            let node = |member: Member| Node { facts: facts.remove(&member.name), member };
            (members.iter().cloned().map(node).collect::<Vec<_>>(), learned)
        });
        reads.extend(learned);
        self.reads = reads;
        State { at: self.began.elapsed(), nodes }
    }

    /// Sends a command to a node.
    ///
    /// # Errors
    /// If the node does not answer, or answers with an error.
    pub fn command(&mut self, member: &Member, words: &[String]) -> io::Result<Value> {
        let known = self.nodes.entry(member.name.clone()).or_default();
        known.ask_one(member, &self.access, words)
    }
}

impl Known {
    fn client(&mut self, member: &Member, access: &Access) -> io::Result<&mut Client> {
        if self.client.is_none() {
            let settings = ClientSettings {
                connect_timeout: LIMIT_MS,
                request_timeout: LIMIT_MS,
                username: access.username.clone(),
                password: access.password.clone(),
                ..ClientSettings::default()
            };
            let tls = access.tls.as_ref().map(|tls| match &*member.hostname {
                "" => tls.clone(),
                name => tls.with_server_name(name),
            });
            self.client = Some(Client::connect(&member.endpoint(), &settings, tls.as_ref())?);
        }
        self.client.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn ask_one(&mut self, member: &Member, access: &Access, words: &[impl AsRef<[u8]>]) -> io::Result<Value> {
        let reply = self.client(member, access).and_then(|client| client.ask(words));
        match reply {
            Ok(Value::Error(error)) => Err(io::Error::other(error)),
            Ok(reply) => Ok(reply),
            Err(error) => {
                // The connection may be in the middle of a reply.
                self.client = None;
                Err(error)
            }
        }
    }

    fn ask(
        &mut self,
        member: &Member,
        access: &Access,
        began: Instant,
        reads: &HashSet<String>,
    ) -> io::Result<(Facts, HashSet<String>)> {
        let mut ask = |words: &[&str]| self.ask_one(member, access, words);
        let mut ping_ms = f64::INFINITY;
        for _ in 0..PINGS {
            let sent = Instant::now();
            ask(&["PING"])?;
            ping_ms = ping_ms.min(sent.elapsed().as_secs_f64() * 1e3);
        }
        let info = Info::parse(&ask(&["INFO", "everything"])?.text());
        let learned = if reads.is_empty() { read_commands(&ask(&["COMMAND"])?) } else { HashSet::new() };
        let reads = if reads.is_empty() { &learned } else { reads };
        let peers = peers(&ask(&["CLUSTER", "NODES"])?.text());
        let is_up = Info::parse(&ask(&["CLUSTER", "INFO"])?.text()).text("cluster_state") == "ok";
        let (exports, failed_exports) = exports(&ask(&["CLUSTER", "GETSLOTMIGRATIONS"])?);
        let keys = ask(&["DBSIZE"])?.integer().max(0) as u64;
        let myself =
            peers.iter().find(|peer| peer.is_myself).ok_or_else(|| io::Error::other("it is not in its list"))?;
        let owns_slots = !myself.slots.is_empty();
        let stats = if owns_slots { Some(ask(&["CLUSTER", "SLOT-STATS", "SLOTSRANGE", "0", "16383"])?) } else { None };
        let (id, primary) = (myself.id.clone(), myself.primary.clone());
        let at = began.elapsed();
        let load = self.load(&info, stats.as_ref(), ping_ms, at, reads);
        let is_synchronized = info.text("master_link_status") == "up";
        let offset = info.number("slave_repl_offset").max(info.number("master_repl_offset")) as u64;
        let facts = Facts { id, primary, is_synchronized, offset, keys, peers, is_up, exports, failed_exports, load };
        Ok((facts, learned))
    }

    /// Computes rates from counters.
    fn load(
        &mut self,
        info: &Info,
        stats: Option<&Value>,
        ping_ms: f64,
        at: Duration,
        reads: &HashSet<String>,
    ) -> Load {
        let stats: Vec<(u16, f64, f64)> = stats.map(slot_stats).unwrap_or_default();
        let (command_us, read_us) = info.command_times(reads);
        let now = Counters {
            at,
            uptime_s: info.number("uptime_in_seconds") as u64,
            busy_us: info.workers().map(|fields| field(fields, "busy_usec")).sum(),
            cpu_s: info.number("used_cpu_user") + info.number("used_cpu_sys"),
            commands: info.number("total_commands_processed"),
            traffic_bytes: info.number("total_net_input_bytes") + info.number("total_net_output_bytes"),
            read_us,
            command_us,
            slots: stats.iter().map(|(slot, _, cpu_us)| (*slot, *cpu_us)).collect(),
        };
        let keys: f64 = stats.iter().map(|(_, keys, _)| keys).sum();
        let dataset = (info.number("used_memory") - info.number("used_memory_startup")).max(0.0);
        let bytes_per_key = if keys > 0.0 { dataset / keys } else { 0.0 };
        let before = self.counters.replace(now.clone());
        // After a restart the counters begin again.
        let before = before.filter(|before| before.uptime_s <= now.uptime_s && before.busy_us <= now.busy_us);
        let passed_s = before.as_ref().map_or(0.0, |before| (now.at.saturating_sub(before.at)).as_secs_f64());
        let rate = |of: &dyn Fn(&Counters) -> f64| match &before {
            Some(before) if passed_s > 0.0 => ((of(&now) - of(before)) / passed_s).max(0.0),
            _ => 0.0,
        };
        let workers = info.number("kvick_workers_active");
        let busy =
            busy_workers(workers, rate(&|counters| counters.busy_us) / 1e6, rate(&|counters| counters.cpu_s), info);
        let command_us_s = rate(&|counters| counters.command_us);
        let slots = stats.iter().map(|(slot, keys, cpu_us)| {
            // A slot that has just arrived has no counter from before.
            let then = before.as_ref().and_then(|before| before.slots.get(slot)).copied().unwrap_or(*cpu_us);
            let cpu_cores = if passed_s > 0.0 { (cpu_us - then).max(0.0) / passed_s / 1e6 } else { 0.0 };
            (*slot, cpu_cores, (keys * bytes_per_key) as u64)
        });
        // Observations may follow each other closely, and rates over short times are noise.
        let weight = 1.0 - (-passed_s / SMOOTHING_S).exp();
        let smooth = |old: f64, new: f64| if before.is_some() { old + weight * (new - old) } else { new };
        self.load = Load {
            busy_cores: smooth(self.load.busy_cores, busy),
            workers: workers as u32,
            ping_ms,
            commands_s: smooth(self.load.commands_s, rate(&|counters| counters.commands)),
            traffic_bytes_s: rate(&|counters| counters.traffic_bytes),
            memory_bytes: info.number("used_memory") as u64,
            memory_bytes_max: info.number("maxmemory") as u64,
            read_ratio: if command_us_s > 0.0 { rate(&|counters| counters.read_us) / command_us_s } else { 0.0 },
            slots: slots.collect(),
        };
        self.load.clone()
    }
}

/// How many workers are busy. If the process may not use a core per worker, it is the part of what it may use that
/// counts: workers that wait for their share of a core are not busy, and at the limit none of them can do more.
fn busy_workers(workers: f64, busy: f64, cpu: f64, info: &Info) -> f64 {
    let limit = info.number("kvick_cpu_limit");
    if limit > 0.0 && limit < workers { (cpu / limit).min(1.0) * workers } else { busy }
}

/// The reply of INFO.
struct Info(HashMap<String, String>);

impl Info {
    fn parse(text: &str) -> Info {
        let fields = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Info(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    fn number(&self, name: &str) -> f64 {
        self.text(name).parse().unwrap_or(0.0)
    }

    /// The fields of each worker.
    fn workers(&self) -> impl Iterator<Item = &str> {
        let is_worker = |name: &str| name.strip_prefix("kvick_worker_").is_some_and(|rest| rest.parse::<u32>().is_ok());
        self.0.iter().filter(move |(name, _)| is_worker(name)).map(|(_, value)| value.as_str())
    }

    /// Execution time of all commands, and of those that only read.
    fn command_times(&self, reads: &HashSet<String>) -> (f64, f64) {
        let (mut all, mut read) = (0.0, 0.0);
        for (name, value) in &self.0 {
            let Some(command) = name.strip_prefix("cmdstat_") else { continue };
            let us = field(value, "usec");
            all += us;
            read += if reads.contains(command) { us } else { 0.0 };
        }
        (all, read)
    }
}

/// A number in `name=1,other=2`.
fn field(fields: &str, name: &str) -> f64 {
    let value = fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
}

/// The commands that COMMAND lists as `readonly`.
fn read_commands(reply: &Value) -> HashSet<String> {
    let reads = reply.elements().iter().filter_map(|command| {
        let [name, _, flags, ..] = command.elements() else { return None };
        flags.elements().iter().any(|flag| flag.bytes() == b"readonly").then(|| name.text())
    });
    reads.collect()
}

/// Slots with their number of keys and their execution time so far, in microseconds.
fn slot_stats(reply: &Value) -> Vec<(u16, f64, f64)> {
    let slots = reply.elements().iter().filter_map(|entry| {
        let [slot, fields] = entry.elements() else { return None };
        let number = |name: &[u8]| {
            let mut pairs = fields.elements().chunks_exact(2);
            pairs.find(|pair| pair[0].bytes() == name).map_or(0.0, |pair| pair[1].integer() as f64)
        };
        let slot = u16::try_from(slot.integer()).ok().filter(|slot| usize::from(*slot) < crate::state::SLOTS)?;
        Some((slot, number(b"key-count"), number(b"cpu-usec")))
    });
    slots.collect()
}

/// Reads the reply of CLUSTER NODES.
fn peers(text: &str) -> Vec<Peer> {
    let peers = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [id, address, flags, primary, _, _, epoch, _, slots @ ..] = &words[..] else { return None };
        let flags: Vec<&str> = flags.split(',').collect();
        let mut address = address.split(',');
        let (host, port) = address.next()?.split('@').next()?.rsplit_once(':')?;
        let hostname = address.next().filter(|name| !name.contains('=')).unwrap_or_default();
        let range = |range: &&str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        Some(Peer {
            id: (*id).to_owned(),
            host: host.to_owned(),
            port: port.parse().unwrap_or(0),
            hostname: hostname.to_owned(),
            is_myself: flags.contains(&"myself"),
            primary: (*primary != "-").then(|| (*primary).to_owned()),
            is_handshake: flags.contains(&"handshake"),
            has_failed: flags.contains(&"fail"),
            epoch: epoch.parse().unwrap_or(0),
            // Slots that are being imported or exported are in brackets.
            slots: slots.iter().filter(|slot| !slot.starts_with('[')).filter_map(range).collect(),
        })
    });
    peers.collect()
}

/// The migrations from a node: those that have not ended, and those that have failed.
fn exports(reply: &Value) -> (Vec<Export>, Vec<FailedExport>) {
    let (mut exports, mut failed) = (Vec::new(), Vec::new());
    for job in reply.elements() {
        let field = |name: &str| {
            let mut pairs = job.elements().chunks_exact(2);
            pairs.find(|pair| pair[0].bytes() == name.as_bytes()).map(|pair| &pair[1])
        };
        let text = |name: &str| field(name).map(Value::text).unwrap_or_default();
        let (to, state) = (text("target_node"), text("state"));
        if !text("operation").eq_ignore_ascii_case("export") || state == "success" {
            continue;
        }
        if ["failed", "cancelled"].contains(&state.as_str()) {
            failed.push(FailedExport { name: text("name"), to, message: text("message") });
            continue;
        }
        let mut slots = Vec::new();
        for range in text("slot_ranges").split(' ') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let range: (Option<u16>, Option<u16>) = (first.parse().ok(), last.parse().ok());
            if let (Some(first), Some(last)) = range {
                slots.extend(first..=last);
            }
        }
        let left_bytes = field("remaining_repl_size").map_or(0, Value::integer).max(0) as u64;
        exports.push(Export { to, slots, state, left_bytes });
    }
    (exports, failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_read() {
        let text = "aa 127.0.0.1:7001@17001 myself,master - 0 0 3 connected 0-5 9 [7->-bb]\n\
                    bb 127.0.0.1:7002@17002,b.example slave,fail? aa 0 1 3 connected\n\
                    cc 127.0.0.1:7003@17003 handshake - 0 0 0 disconnected\n";
        let peers = peers(text);
        assert_eq!(peers[0].slots, [(0, 5), (9, 9)]);
        assert_eq!((peers[0].port, peers[0].epoch, peers[0].is_myself), (7001, 3, true));
        assert_eq!(peers[1].primary.as_deref(), Some("aa"));
        assert_eq!((&*peers[1].host, &*peers[1].hostname), ("127.0.0.1", "b.example"));
        assert!(!peers[1].has_failed && peers[2].is_handshake);
    }

    #[test]
    fn running_and_failed_exports_are_read() {
        let job = |operation: &str, state: &str| {
            let fields = ["name", "n", "operation", operation, "slot_ranges", "1-3 7-7", "target_node", "bb"];
            let fields = fields.into_iter().chain(["state", state, "message", "m"]);
            Value::Array(fields.map(|text| Value::Text(text.as_bytes().to_vec())).collect())
        };
        let jobs = ["snapshotting", "success", "failed"].map(|state| job("EXPORT", state));
        let jobs = jobs.into_iter().chain([job("IMPORT", "snapshotting"), job("IMPORT", "failed")]);
        let (found, failed) = exports(&Value::Array(jobs.collect()));
        assert_eq!(failed, [FailedExport { name: "n".into(), to: "bb".into(), message: "m".into() }]);
        assert_eq!(found.len(), 1);
        assert_eq!((&*found[0].to, &*found[0].slots), ("bb", &[1, 2, 3, 7][..]));
    }

    #[test]
    fn with_less_than_a_core_per_worker_its_share_counts() {
        let busy = |limit: &str| busy_workers(2.0, 0.4, 0.3, &Info::parse(&format!("kvick_cpu_limit:{limit}\r\n")));
        assert_eq!([busy("1.20"), busy("0.30"), busy("0.10")], [0.5, 2.0, 2.0]);
        assert_eq!([busy("2.00"), busy("64.00"), busy_workers(2.0, 0.4, 0.3, &Info::parse(""))], [0.4; 3]);
    }

    #[test]
    fn fields_of_info_are_read() {
        let info = Info::parse(
            "# CPU\r\nkvick_workers_active:2\r\nkvick_worker_0:busy_usec=5,turns=1\r\nkvick_worker_1:busy_usec=7\r\n\
             cmdstat_get:calls=1,usec=30,x=1\r\ncmdstat_set:calls=1,usec=10\r\n",
        );
        assert_eq!(info.workers().map(|fields| field(fields, "busy_usec")).sum::<f64>(), 12.0);
        assert_eq!(info.command_times(&HashSet::from(["get".to_owned()])), (40.0, 30.0));
    }
}
