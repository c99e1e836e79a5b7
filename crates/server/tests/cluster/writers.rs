//! Clients that number their writes and note what became of each.
//!
//! Each key belongs to one client, which sends the next write to a key only when it knows the outcome of the previous
//! one. So the writes to a key have one order, and its content shows which of them were executed, and how often:
//!
//! | key | write number n | content |
//! | --- | --- | --- |
//! | list | `RPUSH key n` | all numbers |
//! | text | `APPEND key n`, eight digits | all numbers |
//! | register | `SET key n` | the last number |
//! | flag | `SET key n` if n is odd, `DEL key` if it is even | the last number, if odd |
//!
//! A write that a node refused is sent again with the same number. After a write of unknown outcome comes the next
//! number. If the clients want a replica to have their writes, each pipeline ends with `WAIT 1`, and the writes of a
//! pipeline whose WAIT found no replica count as unknown.

use crate::client::{Client, Events, Outcome, Request, request};
use crate::common::wire::Reply;
use kvick_store::slot::tag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Writes per second of all clients.
pub const WRITES_PER_S: u64 = 20_000;

/// Number of clients.
const CLIENTS: u64 = 4;

/// Keys of each client.
const KEYS_PER_CLIENT: usize = 300;

/// Writes that a client makes up for at most after it had to wait.
const ARREARS_MAX: u64 = 2_000;

/// How long WAIT waits, in milliseconds.
const WAIT_MS: &str = "500";

/// What the content of a key shows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    List,
    Text,
    Register,
    Flag,
}

/// A key with the numbers of its writes.
#[derive(Debug)]
pub struct Key {
    pub name: String,
    pub slot: u16,
    pub kind: Kind,
    /// The number of the next write.
    next: u32,
    /// Acknowledged writes in ascending order.
    pub acknowledged: Vec<u32>,
    /// Writes of unknown outcome in ascending order.
    pub unknown: Vec<u32>,
    /// When the next write was first sent.
    since: Option<Instant>,
}

impl Key {
    fn write(&self) -> Request {
        let (name, number) = (&*self.name, self.next.to_string());
        match self.kind {
            Kind::List => request(&["RPUSH", name, &number]),
            Kind::Text => request(&["APPEND", name, &format!("{:08}", self.next)]),
            Kind::Flag if self.next.is_multiple_of(2) => request(&["DEL", name]),
            Kind::Register | Kind::Flag => request(&["SET", name, &number]),
        }
    }
}

/// How the clients write.
pub struct Load {
    pub ports: Vec<u16>,
    /// The slots of the keys.
    pub slots: Vec<u16>,
    /// Whether a write counts only if a replica has it.
    pub waits_for_replica: bool,
    /// Whether some keys are also deleted.
    pub deletes: bool,
}

/// Running clients, which end when dropped.
pub struct Writers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<Writer>>,
    began: Instant,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    acknowledged: AtomicU64,
}

/// What the clients did.
pub struct Written {
    pub keys: Vec<Key>,
    pub events: Events,
    /// The longest time from the first attempt of a write to its acknowledgement.
    pub longest_wait: Duration,
    pub acknowledged: u64,
    pub unknown: u64,
    pub writes_per_s: u64,
}

impl Writers {
    /// Starts the clients.
    pub fn start(load: &Load) -> Writers {
        let shared = Arc::<Shared>::default();
        let start = |number| {
            let mut writer = Writer::new(number, load, shared.clone());
            std::thread::spawn(move || {
                writer.run();
                writer
            })
        };
        Writers { threads: (0..CLIENTS).map(start).collect(), shared, began: Instant::now() }
    }

    /// The number of writes acknowledged so far.
    pub fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Ends the clients.
    pub fn finish(mut self) -> Written {
        let elapsed = self.began.elapsed();
        self.shared.stop.store(true, Ordering::Relaxed);
        let acknowledged = self.acknowledged();
        let writes_per_s = (acknowledged as f64 / elapsed.as_secs_f64()) as u64;
        let (keys, events, longest_wait) = (Vec::new(), Events::default(), Duration::ZERO);
        let mut written = Written { keys, events, longest_wait, acknowledged, unknown: 0, writes_per_s };
        for thread in self.threads.drain(..) {
            let writer = thread.join().expect("a client that does not fail");
            written.events.add(&writer.client.events);
            written.longest_wait = written.longest_wait.max(writer.longest_wait);
            written.unknown += writer.keys.iter().map(|key| key.unknown.len() as u64).sum::<u64>();
            written.keys.extend(writer.keys);
        }
        written
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // If one has failed, its panic has been printed.
        self.threads.drain(..).for_each(|thread| _ = thread.join());
    }
}

struct Writer {
    client: Client,
    keys: Vec<Key>,
    next_key: usize,
    wait: Option<Request>,
    shared: Arc<Shared>,
    longest_wait: Duration,
}

impl Writer {
    fn new(number: u64, load: &Load, shared: Arc<Shared>) -> Writer {
        let key = |index: usize| {
            let slot = load.slots[index % load.slots.len()];
            let kinds = [Kind::List, Kind::Text, Kind::Register, if load.deletes { Kind::Flag } else { Kind::List }];
            let name = format!("{{{}}}:{number}:{index}", tag(slot));
            // The kinds change with each pass over the slots too, so that a slot has several.
            let kind = kinds[(index + index / load.slots.len() + number as usize) % kinds.len()];
            Key { name, slot, kind, next: 1, acknowledged: Vec::new(), unknown: Vec::new(), since: None }
        };
        Writer {
            client: Client::new(&load.ports),
            keys: (0..KEYS_PER_CLIENT).map(key).collect(),
            next_key: 0,
            wait: load.waits_for_replica.then(|| request(&["WAIT", "1", WAIT_MS])),
            shared,
            longest_wait: Duration::ZERO,
        }
    }

    fn run(&mut self) {
        let (mut began, mut sent) = (Instant::now(), 0);
        let rate = WRITES_PER_S / CLIENTS;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let due = (began.elapsed().as_secs_f64() * rate as f64) as u64;
            if due > sent + ARREARS_MAX {
                (began, sent) = (Instant::now(), 0);
                continue;
            }
            // Small pipelines would only cost processor time.
            if due < sent + 16 {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let count = (due - sent).min(KEYS_PER_CLIENT as u64);
            if !self.turn(count as usize) {
                std::thread::sleep(Duration::from_millis(5));
            }
            sent += count;
        }
    }

    /// Sends the next write to each of the next `count` keys. Returns whether any was executed.
    fn turn(&mut self, count: usize) -> bool {
        let positions: Vec<usize> = (0..count).map(|at| (self.next_key + at) % self.keys.len()).collect();
        self.next_key = (self.next_key + count) % self.keys.len();
        let now = Instant::now();
        let writes = positions.iter().map(|at| {
            let key = &mut self.keys[*at];
            key.since.get_or_insert(now);
            (key.slot, key.write())
        });
        let results = self.client.send(&writes.collect::<Vec<_>>(), self.wait.as_ref());
        let (now, mut acknowledged) = (Instant::now(), 0);
        for (at, (outcome, last)) in positions.into_iter().zip(results) {
            let key = &mut self.keys[at];
            let has_replica = self.wait.is_none() || matches!(&last, Some(reply) if reply.integer() > 0);
            match outcome {
                Outcome::Refused => continue,
                Outcome::Done(Reply::Null) => panic!("a write was answered with nothing"),
                Outcome::Done(_) if has_replica => {
                    key.acknowledged.push(key.next);
                    acknowledged += 1;
                }
                Outcome::Done(_) | Outcome::Unknown => key.unknown.push(key.next),
            }
            key.next += 1;
            let since = key.since.take().unwrap_or(now);
            self.longest_wait = self.longest_wait.max(now - since);
        }
        self.shared.acknowledged.fetch_add(acknowledged, Ordering::Relaxed);
        acknowledged > 0
    }
}
