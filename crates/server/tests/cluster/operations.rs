//! What an administrator does to a cluster while nodes fail: each operation is made of steps, and is tried again until
//! it succeeds.

use crate::checker::agreed_owners;
use crate::common::wire::{Reply, Wire};
use crate::nodes::Node;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// How long a node may take for a reply: more than MIGRATE and SETSLOT wait for others.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long an operation may take, and how long the cluster may take to settle.
const OPERATION_MAX: Duration = Duration::from_secs(90);

/// Keys that one MIGRATE moves.
const KEYS_PER_MIGRATE: &str = "20";

/// An operation or one step of it failed, and may be tried again.
pub type Attempt<T> = Result<T, String>;

/// A node that gets SIGKILL at a step, and starts again later.
#[derive(Debug)]
pub struct Kill {
    /// Its position in the cluster.
    pub victim: usize,
    /// The number of the step; after the last step if there are fewer.
    pub at_step: u32,
    /// From the step to the signal.
    pub delay: Duration,
    /// From the signal to the start.
    pub down: Duration,
}

/// A cluster of shards, each with a primary and one replica at first.
pub struct World {
    pub nodes: Vec<Node>,
    /// The positions of the nodes of each shard.
    pub shards: Vec<[usize; 2]>,
    ids: Vec<String>,
    connections: HashMap<usize, Wire>,
    kill: Option<Kill>,
    killed: Option<Instant>,
    steps: u32,
    last_step: String,
    began: Instant,
}

impl World {
    /// A cluster that exists. The nodes are in the order of `shards`: all primaries, then their replicas.
    pub fn new(nodes: Vec<Node>, kill: Option<Kill>) -> World {
        let count = nodes.len() / 2;
        let shards = (0..count).map(|shard| [shard, shard + count]).collect();
        let ids = nodes.iter().map(Node::id).collect();
        let (connections, last_step, began) = (HashMap::new(), String::new(), Instant::now());
        World { nodes, shards, ids, connections, kill, killed: None, steps: 0, last_step, began }
    }

    /// The ports of all nodes.
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|node| node.port).collect()
    }

    /// Steps made so far.
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// Prints something with the time since the operation began.
    pub fn say(&self, what: &str) {
        println!("  {:6.3} s: {what}", self.began.elapsed().as_secs_f64());
    }

    /// Begins a step; the victim may die now.
    fn step(&mut self, what: &str) {
        self.steps += 1;
        if self.last_step != what {
            self.last_step = what.into();
        }
        if self.killed.is_none() && self.kill.as_ref().is_some_and(|kill| kill.at_step <= self.steps) {
            self.kill_now();
        }
        self.restart_if_due();
    }

    fn kill_now(&mut self) {
        let Some(Kill { victim, delay, .. }) = self.kill else { return };
        std::thread::sleep(delay);
        self.nodes[victim].kill();
        self.killed = Some(Instant::now());
        self.connections.remove(&victim);
        let (port, step, last) = (self.nodes[victim].port, self.steps, &self.last_step);
        self.say(&format!("SIGKILL of node {victim} ({port}) at step {step}, {delay:?} after \"{last}\""));
    }

    fn restart_if_due(&mut self) {
        let (Some(killed), Some(Kill { victim, down, .. })) = (self.killed, &self.kill) else { return };
        if killed.elapsed() >= *down {
            let victim = *victim;
            self.nodes[victim].restart();
            self.kill = None;
            self.say(&format!("node {victim} runs again"));
        }
    }

    /// Kills the victim now if no step did, and starts it again when that is due.
    fn finish_kill(&mut self) {
        if self.kill.is_some() && self.killed.is_none() {
            self.last_step = "the end".into();
            self.kill_now();
        }
        while self.kill.is_some() {
            self.restart_if_due();
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Tries something until it succeeds. Nodes are restarted meanwhile.
    fn until<T>(&mut self, what: &str, mut attempt: impl FnMut(&mut World) -> Attempt<T>) -> T {
        let (began, mut last) = (Instant::now(), String::new());
        loop {
            match attempt(self) {
                Ok(result) => return result,
                Err(why) if why != last => {
                    self.say(&format!("{what}: {why}"));
                    last = why;
                }
                Err(_) => {}
            }
            self.restart_if_due();
            assert!(began.elapsed() < OPERATION_MAX, "waited in vain until {what}: {last}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The reply of a node; an error if it gives none, or an error.
    fn ask(&mut self, node: usize, words: &[&str]) -> Attempt<Reply> {
        let described = |what: String| format!("node {node}, {}: {what}", words.join(" "));
        let wire = match self.connections.remove(&node) {
            Some(wire) => Ok(wire),
            None => Wire::connect(self.nodes[node].port, PATIENCE),
        };
        let mut wire = wire.map_err(|error| described(error.to_string()))?;
        let reply = wire.ask(words).map_err(|error| described(error.to_string()))?;
        self.connections.insert(node, wire);
        match reply {
            Reply::Error(error) => Err(described(error)),
            reply => Ok(reply),
        }
    }

    /// Whether a node is a primary in its own view.
    fn is_primary(&mut self, node: usize) -> Attempt<bool> {
        Ok(self.ask(node, &["ROLE"])?.items().first().is_some_and(|role| role.text() == "master"))
    }

    /// The node of a shard that is the primary in its own view and owns slots in that of a node of another shard.
    fn primary_of(&mut self, shard: usize) -> Attempt<usize> {
        let observer = self.shards[(shard + 2) % self.shards.len()][0];
        let slots = self.ask(observer, &["CLUSTER", "SLOTS"])?;
        let ranges = crate::client::slot_ranges(&slots);
        for node in self.shards[shard] {
            let port = self.nodes[node].port;
            if ranges.iter().any(|(.., owner)| *owner == port) && self.is_primary(node)? {
                return Ok(node);
            }
        }
        Err(format!("shard {shard} has no primary"))
    }

    /// The number of these slots that a node owns in its own view.
    fn owned(&mut self, node: usize, slots: &RangeInclusive<u16>) -> Attempt<usize> {
        let port = self.nodes[node].port;
        let reply = self.ask(node, &["CLUSTER", "SLOTS"])?;
        let mine = crate::client::slot_ranges(&reply).into_iter().filter(|(.., owner)| *owner == port);
        let common = |(first, last, _): (u16, u16, u16)| {
            usize::from((last.min(*slots.end()) + 1).saturating_sub(first.max(*slots.start())))
        };
        Ok(mine.map(common).sum())
    }

    /// Moves slots key by key, as `valkey-cli --cluster reshard` does. Primaries stay the same meanwhile.
    pub fn reshard(&mut self, shards: [usize; 2], slots: RangeInclusive<u16>) {
        let [source, target] = shards.map(|shard| self.shards[shard][0]);
        for slot in slots {
            let mut is_assigned = false;
            self.until("the slot moves", |world| world.move_slot(source, target, slot, &mut is_assigned));
        }
        self.finish_kill();
    }

    fn move_slot(&mut self, source: usize, target: usize, slot: u16, is_assigned: &mut bool) -> Attempt<()> {
        let (number, source_id, target_id) = (slot.to_string(), self.ids[source].clone(), self.ids[target].clone());
        // An earlier attempt may have succeeded without a reply.
        if !*is_assigned && self.owned(target, &(slot..=slot))? == 0 {
            self.step("SETSLOT IMPORTING");
            self.ask(target, &["CLUSTER", "SETSLOT", &number, "IMPORTING", &source_id])?;
            self.step("SETSLOT MIGRATING");
            self.ask(source, &["CLUSTER", "SETSLOT", &number, "MIGRATING", &target_id])?;
            while self.migrate_keys(source, target, &number)? {}
            self.step("SETSLOT NODE on the target");
            self.ask(target, &["CLUSTER", "SETSLOT", &number, "NODE", &target_id])?;
        }
        *is_assigned = true;
        // Also if it knows already: its replica learns from this that the slot is closed.
        self.step("SETSLOT NODE on the source");
        self.ask(source, &["CLUSTER", "SETSLOT", &number, "NODE", &target_id])?;
        Ok(())
    }

    /// Moves some keys; returns whether there were any.
    fn migrate_keys(&mut self, source: usize, target: usize, slot: &str) -> Attempt<bool> {
        self.step("GETKEYSINSLOT");
        let reply = self.ask(source, &["CLUSTER", "GETKEYSINSLOT", slot, KEYS_PER_MIGRATE])?;
        let keys: Vec<String> = reply.items().iter().map(Reply::text).collect();
        if keys.is_empty() {
            return Ok(false);
        }
        let port = self.nodes[target].port.to_string();
        // A node that died may have left a copy on the target. The key is still on the source, which has its newest
        // content.
        let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "REPLACE", "KEYS"];
        words.extend(keys.iter().map(String::as_str));
        self.step("MIGRATE");
        self.ask(source, &words)?;
        Ok(true)
    }

    /// Moves slots with CLUSTER MIGRATESLOTS.
    pub fn migrate_slots(&mut self, [source, target]: [usize; 2], slots: RangeInclusive<u16>) {
        self.until("the slots move", |world| world.try_migrate_slots([source, target], &slots));
        self.finish_kill();
    }

    fn try_migrate_slots(&mut self, shards: [usize; 2], slots: &RangeInclusive<u16>) -> Attempt<()> {
        self.step("before MIGRATESLOTS");
        let [source, target] = [self.primary_of(shards[0])?, self.primary_of(shards[1])?];
        if self.owned(target, slots)? == slots.len() {
            return Ok(());
        }
        let ([first, last], target_id) = ([slots.start(), slots.end()].map(u16::to_string), self.ids[target].clone());
        self.ask(source, &["CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", &first, &last, "NODE", &target_id])?;
        loop {
            let jobs = self.ask(source, &["CLUSTER", "GETSLOTMIGRATIONS"])?;
            // The newest is the first.
            let field = |name: &str| jobs.items().first().and_then(|job| job.field(name)).map(Reply::text);
            let state = field("state").ok_or("no migration")?;
            self.step(&format!("migration: {state}"));
            match &*state {
                "success" => return Err("the migration has succeeded".into()),
                "failed" | "cancelled" => return Err(format!("{state}: {}", field("message").unwrap_or_default())),
                _ => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Lets the replica of a shard take over, and after `between` the former primary again.
    pub fn fail_over_and_back(&mut self, shard: usize, between: impl FnOnce()) {
        let [primary, replica] = self.shards[shard];
        self.until("the replica takes over", |world| world.try_fail_over(shard, replica));
        between();
        self.until("the former primary takes over", |world| world.try_fail_over(shard, primary));
        self.finish_kill();
    }

    fn try_fail_over(&mut self, shard: usize, next: usize) -> Attempt<()> {
        self.step("before FAILOVER");
        // The former primary learns of its successor later than the successor itself.
        if self.primary_of(shard)? == next {
            return Ok(());
        }
        self.ask(next, &["CLUSTER", "FAILOVER"])?;
        for _ in 0..500 {
            let is_over = self.primary_of(shard) == Ok(next);
            self.step(if is_over { "the replica has taken over" } else { "the failover has begun" });
            if is_over {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        Err("no failover within a second".into())
    }

    /// Only the victim fails.
    pub fn crash(&mut self) {
        self.step("nothing");
        self.finish_kill();
    }

    /// Waits until all nodes agree that every slot has an owner, no slot is open on a primary, no migration is under
    /// way, and each shard has a primary and a replica that follows it. Returns the owners of the slots by port.
    pub fn settle(&mut self) -> Vec<u16> {
        self.until("the cluster settles", World::settled)
    }

    fn settled(&mut self) -> Attempt<Vec<u16>> {
        let owners = agreed_owners(&self.ports())?;
        for node in 0..self.nodes.len() {
            let info = self.ask(node, &["CLUSTER", "INFO"])?.text();
            if !info.lines().any(|line| line == "cluster_state:ok") {
                return Err(format!("the cluster is not ok on node {node}"));
            }
            let nodes = self.ask(node, &["CLUSTER", "NODES"])?.text();
            let mut marks = nodes.split(['[', ']']);
            let open = marks.find(|text| text.contains("->-") || text.contains("-<-"));
            // A replica that misses the end keeps its mark if its primary is Valkey: a primary without replicas
            // executes SETSLOT alone, so the command is not in the backlog that the replica receives later.
            if let Some(open) = open.filter(|_| self.is_primary(node) != Ok(false)) {
                return Err(format!("a slot is open on node {node}: {open}"));
            }
            let mut flags = nodes.lines().filter_map(|line| line.split(' ').nth(2)).flat_map(|flags| flags.split(','));
            if flags.any(|flag| matches!(flag, "fail" | "fail?" | "handshake" | "noaddr")) {
                return Err(format!("node {node} suspects others"));
            }
            let is_over = |job: &Reply| {
                let state = job.field("state").map(Reply::text).unwrap_or_default();
                matches!(&*state, "success" | "failed" | "cancelled")
            };
            if !self.ask(node, &["CLUSTER", "GETSLOTMIGRATIONS"])?.items().iter().all(is_over) {
                return Err(format!("a migration is under way on node {node}"));
            }
        }
        for shard in 0..self.shards.len() {
            let primary = self.primary_of(shard)?;
            let [one, two] = self.shards[shard];
            let replica = if primary == one { two } else { one };
            let info = self.ask(replica, &["INFO", "replication"])?.text();
            let follows = format!("master_port:{}", self.nodes[primary].port);
            if !info.contains("master_link_status:up") || !info.lines().any(|line| line == follows) {
                return Err(format!("node {replica} does not follow node {primary}"));
            }
        }
        Ok(owners)
    }

    /// Waits until replicas have what their primaries have; the ports of the primaries with those of their replicas.
    pub fn replicas_in_sync(&mut self) -> Attempt<Vec<(u16, u16)>> {
        let mut pairs = Vec::new();
        for shard in 0..self.shards.len() {
            let primary = self.primary_of(shard)?;
            let [one, two] = self.shards[shard];
            let replica = if primary == one { two } else { one };
            let mut offset = |node: usize, name: &str| {
                let info = self.ask(node, &["INFO", "replication"])?.text();
                let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                value.map(str::to_owned).ok_or_else(|| format!("node {node} has no {name}"))
            };
            let [sent, applied] = [offset(primary, "master_repl_offset")?, offset(replica, "slave_repl_offset")?];
            if sent != applied {
                return Err(format!("node {replica} is behind node {primary}"));
            }
            pairs.push((self.nodes[primary].port, self.nodes[replica].port));
        }
        Ok(pairs)
    }

    /// The same, waiting.
    pub fn synchronise(&mut self) -> Vec<(u16, u16)> {
        self.until("replicas are in sync", World::replicas_in_sync)
    }
}
