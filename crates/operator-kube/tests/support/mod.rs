//! What the tests share: a client that follows redirections, a writer that checks its writes, and a look at the slots.
#![allow(dead_code, reason = "not every test needs everything")]

use kvick_load::client::Client;
use kvick_load::config::Client as Settings;
use kvick_load::reply::Value;
use kvick_load::topology::Redirect;
use kvick_operator::observe::Access;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time for a change of the cluster. Other programs may use the cores meanwhile.
pub const LIMIT: Duration = Duration::from_secs(90);
/// Number of keys of a writer.
pub const KEYS: u64 = 2000;

pub fn connect(endpoint: &str) -> io::Result<Client> {
    connect_with(endpoint, &Access::default())
}

pub fn connect_with(endpoint: &str, access: &Access) -> io::Result<Client> {
    let (username, password) = (access.username.clone(), access.password.clone());
    let settings = Settings { connect_timeout: 2000, request_timeout: 2000, username, password, ..Settings::default() };
    Client::connect(endpoint, &settings, access.tls.as_ref())
}

/// A client that follows redirections. It tries again until the request is answered, but not for ever.
pub struct Follower<'a> {
    /// The nodes that exist now.
    endpoints: Box<dyn Fn() -> Vec<String> + Send + 'a>,
    /// Failed requests. Each time another node is asked for the owner of a key, since nodes come and go.
    failures: usize,
    /// Replicas that must have confirmed a write before it counts.
    pub confirmations: i64,
    clients: HashMap<String, Client>,
    owners: HashMap<u64, String>,
}

impl Follower<'_> {
    pub fn new<'a>(endpoints: impl Fn() -> Vec<String> + Send + 'a) -> Follower<'a> {
        Follower {
            endpoints: Box::new(endpoints),
            failures: 0,
            confirmations: 0,
            clients: HashMap::new(),
            owners: HashMap::new(),
        }
    }

    fn endpoint(&self, key: u64) -> io::Result<String> {
        if let Some(owner) = self.owners.get(&key) {
            return Ok(owner.clone());
        }
        let nodes = (self.endpoints)();
        Ok(nodes.get(self.failures % nodes.len().max(1)).ok_or(io::ErrorKind::NotFound)?.clone())
    }

    /// Asks once. An error may be a redirection that the next attempt follows.
    fn ask_once(&mut self, key: u64, words: &[String]) -> io::Result<Value> {
        let endpoint = self.endpoint(key)?;
        let reply = match self.clients.remove(&endpoint).map_or_else(|| connect(&endpoint), Ok) {
            Ok(client) => {
                let client = self.clients.entry(endpoint.clone()).or_insert(client);
                client.ask(words).and_then(|reply| confirmed(client, reply, self.confirmations))
            }
            Err(error) => Err(error),
        };
        if reply.is_err() {
            self.clients.remove(&endpoint);
            self.owners.remove(&key);
            self.failures += 1;
        }
        if let Ok(Value::Error(error)) = &reply
            && let Some(redirect) = Redirect::parse(error.as_bytes(), &endpoint)
        {
            self.owners.insert(key, redirect.address);
        }
        match reply? {
            Value::Error(error) => Err(io::Error::other(error)),
            reply => Ok(reply),
        }
    }

    /// Asks until there is a reply. `None` if the test has ended before.
    pub fn ask(&mut self, key: u64, words: &[String], end: &AtomicBool) -> Option<Value> {
        let began = Instant::now();
        loop {
            match self.ask_once(key, words) {
                Ok(reply) => return Some(reply),
                Err(_) if end.load(Ordering::Relaxed) => return None,
                Err(error) => assert!(began.elapsed() < LIMIT, "{words:?}: {error}"),
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// The reply, once so many replicas have the write.
fn confirmed(client: &mut Client, reply: Value, confirmations: i64) -> io::Result<Value> {
    if confirmations == 0 || matches!(reply, Value::Error(_)) {
        return Ok(reply);
    }
    let count = client.ask(&["WAIT", &confirmations.to_string(), "1000"])?.integer();
    if count >= confirmations { Ok(reply) } else { Err(io::Error::other(format!("{count} replicas have it"))) }
}

/// The number that a key has; 0 if it does not exist.
pub fn value(reply: &Value) -> u64 {
    if matches!(reply, Value::Null) { 0 } else { reply.text().parse().expect("a number") }
}

/// Numbers of writes: the last one that was acknowledged for each key.
pub struct Writes {
    acknowledged: Vec<AtomicU64>,
    last: AtomicU64,
}

impl Writes {
    pub fn new() -> Writes {
        Writes { acknowledged: (0..KEYS).map(|_| AtomicU64::new(0)).collect(), last: AtomicU64::new(0) }
    }

    /// Writes until the flag is set. Each write finds the acknowledged one before.
    pub fn write(&self, client: &mut Follower<'_>, end: &AtomicBool) {
        for number in 1.. {
            let key = number % KEYS;
            let words = ["SET".to_owned(), format!("key:{key}"), number.to_string(), "GET".to_owned()];
            let Some(reply) = client.ask(key, &words, end) else { break };
            // It finds itself if an earlier attempt had no reply.
            let (found, expected) = (value(&reply), self.acknowledged[key as usize].load(Ordering::SeqCst));
            assert!(found == expected || found == number, "key {key} had {found}, {expected} was acknowledged");
            self.acknowledged[key as usize].store(number, Ordering::SeqCst);
            self.last.store(number, Ordering::SeqCst);
            if end.load(Ordering::Relaxed) {
                break;
            }
        }
    }

    /// Waits until so many writes more were acknowledged.
    pub fn go_on(&self, count: u64) {
        let before = self.last.load(Ordering::SeqCst);
        wait("writes go on", || self.last.load(Ordering::SeqCst) >= before + count);
    }

    /// Checks all acknowledged writes.
    pub fn check(&self, client: &mut Follower<'_>) {
        for (key, number) in self.acknowledged.iter().enumerate() {
            let words = ["GET".to_owned(), format!("key:{key}")];
            let reply = client.ask(key as u64, &words, &AtomicBool::new(false)).expect("a reply");
            let (found, number) = (value(&reply), number.load(Ordering::SeqCst));
            assert!(found >= number, "key {key} has {found}, {number} was acknowledged");
        }
    }
}

/// Runs the test's own check until it holds.
pub fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The number of slots of each node, if all nodes answer, know the same nodes with the same slots, and no slot moves.
pub fn slots(endpoints: &[String], access: &Access) -> Option<Vec<usize>> {
    let mut views = BTreeSet::new();
    for endpoint in endpoints {
        let mut client = connect_with(endpoint, access).ok()?;
        let mut ask = |words: &[&str]| client.ask(words).ok();
        let is_moving = ask(&["CLUSTER", "GETSLOTMIGRATIONS"])?.elements().iter().any(|job| {
            let mut fields = job.elements().chunks_exact(2);
            let state = fields.find(|field| field[0].bytes() == b"state").map(|field| field[1].text());
            !state.is_some_and(|state| ["success", "failed", "cancelled"].contains(&&*state))
        });
        if is_moving || !ask(&["CLUSTER", "INFO"])?.text().contains("cluster_state:ok") {
            return None;
        }
        let view: BTreeMap<String, Vec<String>> = ask(&["CLUSTER", "NODES"])?
            .text()
            .lines()
            .map(|line| line.split(' ').map(str::to_owned))
            .filter_map(|mut words| Some((words.next()?, words.skip(7).collect())))
            .collect();
        views.insert(view);
    }
    let view = views.pop_first().filter(|view| views.is_empty() && view.len() == endpoints.len())?;
    let count = |range: &String| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(last.parse::<usize>().ok()? - first.parse::<usize>().ok()? + 1)
    };
    let counts: Vec<usize> = view.values().map(|ranges| ranges.iter().filter_map(count).sum()).collect();
    (counts.iter().sum::<usize>() == 16384).then_some(counts)
}
