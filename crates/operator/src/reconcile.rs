//! One step of the operator, as a pure function: the state and a plan in, operations out.
//!
//! A step looks only at the state, so it does not matter whether earlier operations succeeded, or whether another
//! operator began them: what is still missing is done again. Some operations take effect later; [`Memory`] keeps them
//! from being repeated at once, and it is all that is lost with the operator.

use crate::state::{Facts, Node, SLOTS, State};
use kvick_planner::{Action, Plan, ShardId, ranges};
use std::collections::HashMap;
use std::time::Duration;

/// Time before an operation is repeated that had no effect yet.
const REPEAT: Duration = Duration::from_secs(2);
/// Time between two attempts to start a process again, and attempts after which a replica is replaced.
const RESTART: Duration = Duration::from_secs(2);
const RESTARTS_MAX: u32 = 5;
/// Time before a handover that had no effect is repeated.
const HANDOVER_REPEAT: Duration = Duration::from_secs(10);
/// Bytes of the replication log that a replica may lack when it is asked to take over. Writes wait until it has them.
const HANDOVER_LAG_MAX: u64 = 1 << 20;
/// How long a takeover waits for replicas that run but do not answer: they may have more of the data.
const ANSWERS_WAIT: Duration = Duration::from_secs(10);
/// After this time without an end, attempts are counted from the beginning.
const STABLE: Duration = Duration::from_secs(60);

/// Something to do. Nodes are given by the names of their members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Start the first node of a new shard.
    StartShard,
    /// Start a replica.
    StartReplica(ShardId),
    /// Start a node that waits until a new shard is needed.
    StartSpare,
    /// Make such a node a shard.
    UseSpare(String),
    /// Start a process again.
    Restart(String),
    /// End a process that was started with old settings. It starts again with its data.
    Replace(String),
    /// End a process, and delete its data.
    Remove(String),
    /// Note that a shard is leaving, or not.
    SetLeaving(ShardId, bool),
    /// CLUSTER MEET on the first node with the address of the second one.
    Meet(String, String),
    /// CLUSTER ADDSLOTSRANGE.
    AddSlots(String, Vec<(u16, u16)>),
    /// CLUSTER REPLICATE with the ID of a node.
    Replicate(String, String),
    /// CLUSTER MIGRATESLOTS to the node with this ID.
    Migrate(String, Vec<(u16, u16)>, String),
    /// CLUSTER FAILOVER TAKEOVER.
    TakeOver(String),
    /// CLUSTER FAILOVER: the replica takes over when it has all writes of its primary.
    Failover(String),
    /// CLUSTER FORGET with the ID of a node.
    Forget(String, String),
    /// CONFIG SET io-threads.
    SetWorkers(String, u32),
}

/// An operation and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// What to do.
    pub operation: Operation,
    /// The reason, as words for a log.
    pub reason: String,
}

/// When operations were done.
#[derive(Debug, Default)]
pub struct Memory {
    done: HashMap<String, Duration>,
    restarts: HashMap<String, (u32, Duration)>,
    /// Since when primaries that are down wait to be replaced.
    down_since: HashMap<String, Duration>,
    /// Since when slots have no owner.
    unowned_since: Option<Duration>,
}

impl Memory {
    /// Whether an operation is due, which counts as done then.
    fn is_due(&mut self, at: Duration, what: String) -> bool {
        self.is_due_after(REPEAT, at, what)
    }

    fn is_due_after(&mut self, repeat: Duration, at: Duration, what: String) -> bool {
        let is_due = self.done.get(&what).is_none_or(|then| at.saturating_sub(*then) >= repeat);
        if is_due {
            self.done.insert(what, at);
        }
        is_due
    }
}

struct Step<'a> {
    state: &'a State,
    owners: Vec<Option<&'a Node>>,
    memory: &'a mut Memory,
    tasks: Vec<Task>,
}

/// What to do now. `spares` nodes are to wait for new shards.
pub fn step(state: &State, plan: &Plan, spares: u32, memory: &mut Memory) -> Vec<Task> {
    let mut step = Step { state, owners: state.owners(), memory, tasks: Vec::new() };
    step.heal();
    step.join();
    step.replace_lost_owners();
    step.forget();
    step.replicate();
    step.carry_out(plan);
    step.keep_spares(spares as usize);
    step.upgrade();
    let at = state.at;
    step.memory.done.retain(|_, then| at.saturating_sub(*then) < HANDOVER_REPEAT);
    step.tasks
}

impl<'a> Step<'a> {
    fn push(&mut self, operation: Operation, reason: impl Into<String>) {
        self.tasks.push(Task { operation, reason: reason.into() });
    }

    fn primary(&self, shard: ShardId) -> Option<&'a Node> {
        self.state.primary_of(shard, &self.owners)
    }

    /// The primary of a shard, if it answers as one.
    fn serving_primary(&self, shard: ShardId) -> Option<(&'a Node, &'a Facts)> {
        let node = self.primary(shard)?;
        Some((node, node.facts.as_ref().filter(|facts| facts.primary.is_none())?))
    }

    /// Starts processes again that have ended. A replica of a primary that has ended takes over first: the primary may
    /// have lost its data. The same if the machine of the primary is lost; then, no replica must hear from it.
    fn heal(&mut self) {
        let state = self.state;
        let is_down = |node: &Node| !node.member.is_running || is_lost(node);
        let is_known_down = |name: &str| state.nodes.iter().any(|node| node.member.name == name && is_down(node));
        self.memory.down_since.retain(|name, _| is_known_down(name));
        for node in state.nodes.iter().filter(|node| is_down(node)) {
            let (name, shard) = (&node.member.name, node.member.shard);
            let is_primary = self.primary(shard).is_some_and(|primary| primary.member.name == *name);
            let replicas = || state.of_shard(shard).filter_map(|node| Some((node, node.facts.as_ref()?)));
            let best = replicas().filter(|(_, facts)| may_take_over(facts)).max_by_key(|(_, facts)| facts.offset);
            let is_heard = node.member.is_running && replicas().any(|(_, facts)| facts.is_synchronized);
            if let Some((replica, _)) = best.filter(|_| is_primary && !is_heard) {
                let replica = &replica.member.name;
                if self.has_all_answers(node) && self.memory.is_due(state.at, format!("take over {replica}")) {
                    let reason = match node.member.is_running {
                        true => format!("the machine of its primary {name} is lost"),
                        false => format!("the process of its primary {name} has ended"),
                    };
                    self.push(Operation::TakeOver(replica.clone()), reason);
                }
                continue;
            }
            if !node.member.restarts_itself && !is_lost(node) {
                self.restart(name, is_primary, shard);
            }
        }
    }

    /// Whether all replicas of a primary that is down answer, or have had time to.
    fn has_all_answers(&mut self, primary: &Node) -> bool {
        let at = self.state.at;
        let since = *self.memory.down_since.entry(primary.member.name.clone()).or_insert(at);
        let is_awaited = |node: &Node| {
            let member = &node.member;
            let is_other = member.name != primary.member.name;
            is_other && node.facts.is_none() && member.is_running && !member.is_ending && !member.is_lost
        };
        at.saturating_sub(since) >= ANSWERS_WAIT || !self.state.of_shard(primary.member.shard).any(is_awaited)
    }

    /// Gives the slots of nodes that do not exist any more to their replicas. If they have none, all nodes forget them;
    /// their slots are without an owner then, and empty.
    fn replace_lost_owners(&mut self) {
        let state = self.state;
        for id in state.lost_owners() {
            let replicas = state.answering().filter(|(_, facts)| facts.primary.as_deref() == Some(id));
            let best = replicas.filter(|(_, facts)| may_take_over(facts)).max_by_key(|(_, facts)| facts.offset);
            if let Some((replica, _)) = best {
                let name = replica.member.name.clone();
                if self.memory.is_due(state.at, format!("take over {name}")) {
                    self.push(Operation::TakeOver(name), "its primary does not exist any more");
                }
                continue;
            }
            for (node, facts) in state.answering() {
                let name = &node.member.name;
                if facts.peers.iter().any(|peer| peer.id == id)
                    && self.memory.is_due(state.at, format!("forget {name} {id}"))
                {
                    let operation = Operation::Forget(name.clone(), id.to_owned());
                    self.push(operation, "it does not exist any more, and had no replica: its data is lost");
                }
            }
        }
    }

    fn restart(&mut self, name: &str, is_primary: bool, shard: ShardId) {
        let at = self.state.at;
        let (count, then) = self.memory.restarts.get(name).copied().unwrap_or_default();
        if count > 0 && at.saturating_sub(then) < RESTART {
            return;
        }
        let count = if at.saturating_sub(then) > STABLE { 0 } else { count };
        let has_owner = self.serving_primary(shard).is_some();
        if count >= RESTARTS_MAX && !is_primary && has_owner {
            self.memory.restarts.remove(name);
            self.push(Operation::Remove(name.to_owned()), format!("its process has ended {count} times in a row"));
            return;
        }
        self.memory.restarts.insert(name.to_owned(), (count + 1, at));
        self.push(Operation::Restart(name.to_owned()), "its process has ended");
    }

    /// Makes all nodes known to the first one; gossip does the rest. Gossip does not spread new addresses, so a node
    /// that knows another one at its old address is told the new one.
    fn join(&mut self) {
        let state = self.state;
        for (node, facts) in state.answering() {
            for peer in facts.peers.iter().filter(|peer| !peer.is_myself && !peer.is_handshake) {
                let Some(other) = state.nodes.iter().find(|other| other.id() == Some(&peer.id)) else { continue };
                let (name, other_name) = (&node.member.name, &other.member.name);
                let has_moved = peer.host != other.member.host || peer.port != other.member.port;
                // Nodes without host names do not move, and may know each other by another of their addresses.
                if has_moved
                    && !other.member.hostname.is_empty()
                    && self.memory.is_due(state.at, format!("meet {name} {other_name}"))
                {
                    let operation = Operation::Meet(name.clone(), other_name.clone());
                    let old = if peer.host.is_empty() { "no address" } else { &peer.host };
                    self.push(operation, format!("it has moved from {old} to {}", other.member.host));
                }
            }
        }
        let most = |(_, facts): &(&Node, &Facts)| facts.peers.iter().filter(|peer| !peer.is_handshake).count();
        // Of equal ones the first.
        let nodes: Vec<(&Node, &Facts)> = self.state.answering().collect();
        let Some((seed, seed_facts)) = nodes.iter().rev().max_by_key(|node| most(node)).copied() else { return };
        for (node, facts) in nodes {
            let knows = |facts: &Facts, id: &str| facts.peers.iter().any(|peer| peer.id == id && !peer.is_handshake);
            let is_known = knows(seed_facts, &facts.id) && knows(facts, &seed_facts.id);
            let names = (seed.member.name.clone(), node.member.name.clone());
            if facts.id != seed_facts.id && !is_known && self.memory.is_due(self.state.at, format!("meet {}", names.1))
            {
                self.push(Operation::Meet(names.0, names.1), "it has not joined the cluster");
            }
        }
    }

    /// Makes nodes forget those that were removed.
    fn forget(&mut self) {
        let state = self.state;
        for (node, facts) in state.answering() {
            for peer in facts.peers.iter().filter(|peer| !peer.is_handshake && !peer.is_myself && peer.slots.is_empty())
            {
                let is_member = state.node_of(peer).is_some();
                let what = format!("forget {} {}", node.member.name, peer.id);
                if !is_member && self.memory.is_due(state.at, what) {
                    let operation = Operation::Forget(node.member.name.clone(), peer.id.clone());
                    self.push(operation, "it was removed from the cluster");
                }
            }
        }
    }

    /// Makes the nodes of a shard replicas of its primary.
    fn replicate(&mut self) {
        for (node, facts) in self.state.answering() {
            let Some((primary, primary_facts)) = self.serving_primary(node.member.shard) else { continue };
            let owns_slots = self.owners.iter().flatten().any(|owner| owner.member.name == node.member.name);
            let follows = facts.primary.as_ref() == Some(&primary_facts.id);
            let knows = facts.peers.iter().any(|peer| peer.id == primary_facts.id && !peer.is_handshake);
            if primary.member.name == node.member.name || owns_slots || follows || !knows {
                continue;
            }
            if self.memory.is_due(self.state.at, format!("replicate {}", node.member.name)) {
                let operation = Operation::Replicate(node.member.name.clone(), primary_facts.id.clone());
                self.push(operation, format!("{} is the primary of {}", primary.member.name, node.member.shard));
            }
        }
    }

    fn carry_out(&mut self, plan: &Plan) {
        let is_unowned = self.owners.iter().any(Option::is_none) || self.owners.len() < SLOTS;
        let since = is_unowned.then(|| self.memory.unowned_since.unwrap_or(self.state.at));
        // While slots move, they may seem to have no owner for a moment.
        let may_assign = since.is_some_and(|since| since < self.state.at) && self.state.lost_owners().is_empty();
        self.memory.unowned_since = since;
        for planned in &plan.steps {
            let reason = planned.reason.clone();
            match &planned.action {
                Action::Start { shards } => (0..*shards).for_each(|_| self.start_shard(&reason)),
                Action::Drain { shard } => self.push(Operation::SetLeaving(*shard, true), reason),
                Action::Keep { shard } => self.push(Operation::SetLeaving(*shard, false), reason),
                Action::Stop { shard } => self.remove_shard(*shard, &reason),
                Action::Assign { shard, slots } => {
                    if let Some((node, _)) = self.serving_primary(*shard).filter(|_| may_assign) {
                        self.push(Operation::AddSlots(node.member.name.clone(), ranges(slots)), reason);
                    }
                }
                Action::Move { from, to, slots, .. } => {
                    if let (Some((source, _)), Some((_, target))) =
                        (self.serving_primary(*from), self.serving_primary(*to))
                    {
                        let operation =
                            Operation::Migrate(source.member.name.clone(), ranges(slots), target.id.clone());
                        self.push(operation, reason);
                    }
                }
                Action::SetWorkers { shard, workers } => {
                    if let Some((node, _)) = self.serving_primary(*shard)
                        && self.memory.is_due(self.state.at, format!("workers {shard}"))
                    {
                        self.push(Operation::SetWorkers(node.member.name.clone(), *workers), reason);
                    }
                }
                Action::AddReplica { shard } => {
                    if self.serving_primary(*shard).is_some() {
                        self.push(Operation::StartReplica(*shard), reason);
                    }
                }
                Action::RemoveReplica { shard } => {
                    let primary = self.primary(*shard).map(|node| node.member.name.clone());
                    let nodes = self.state.of_shard(*shard);
                    let replica = nodes.filter(|node| Some(&node.member.name) != primary.as_ref()).last();
                    if let Some(replica) = replica.filter(|_| primary.is_some()) {
                        self.push(Operation::Remove(replica.member.name.clone()), reason);
                    }
                }
            }
        }
    }

    /// Makes a spare a shard, or starts a new node for one.
    fn start_shard(&mut self, reason: &str) {
        let mut ready = self.state.spares().filter(|node| self.state.is_ready_spare(node));
        let use_spare = |node: &Node| Operation::UseSpare(node.member.name.clone());
        let next = ready.find(|node| self.tasks.iter().all(|task| task.operation != use_spare(node))).map(use_spare);
        self.push(next.unwrap_or(Operation::StartShard), reason);
    }

    /// Starts or removes spares until there are as many as wanted.
    fn keep_spares(&mut self, wanted: usize) {
        let is_complete = self.owners.iter().all(Option::is_some) && self.owners.len() == SLOTS;
        let is_used = |name: &String| self.tasks.iter().any(|task| task.operation == Operation::UseSpare(name.clone()));
        let spares: Vec<String> =
            self.state.spares().map(|node| node.member.name.clone()).filter(|name| !is_used(name)).collect();
        // A cluster that has no slots yet needs its shards first.
        for _ in spares.len()..if is_complete { wanted } else { 0 } {
            self.push(Operation::StartSpare, "it waits until a new shard is needed");
        }
        for name in spares.into_iter().skip(wanted) {
            self.push(Operation::Remove(name), "fewer spares are wanted");
        }
    }

    /// Replaces the next node that has old settings, one at a time and only while nothing else is under way: replicas
    /// first. A primary hands over to a replica that has its data, and is a replica itself then. Only a primary that
    /// has no replica starts again as one.
    fn upgrade(&mut self) {
        let state = self.state;
        let is_complete = self.owners.iter().all(Option::is_some) && self.owners.len() == SLOTS;
        if !self.tasks.is_empty() || !is_complete || !state.is_settled() {
            return;
        }
        let is_outdated = |node: &Node| node.member.is_outdated && !node.member.is_leaving;
        let outdated = || state.answering().filter(|(node, _)| is_outdated(node));
        if let Some((replica, _)) = outdated().find(|(_, facts)| facts.primary.is_some()) {
            self.push(Operation::Replace(replica.member.name.clone()), "the settings have changed");
            return;
        }
        let replicas_of = |primary: &Node| {
            let name = primary.member.name.clone();
            state.of_shard(primary.member.shard).filter(move |node| node.member.name != name)
        };
        // Data that exists only once and not on a volume would be lost.
        let is_possible = |primary: &Node| {
            !primary.member.restarts_empty || primary.member.is_spare || replicas_of(primary).next().is_some()
        };
        let Some((primary, facts)) = outdated().find(|(primary, _)| is_possible(primary)) else { return };
        let replicas = replicas_of(primary);
        let Some(best) = replicas.max_by_key(|node| node.facts.as_ref().map_or(0, |facts| facts.offset)) else {
            let reason = "the settings have changed, and it has no replica";
            self.push(Operation::Replace(primary.member.name.clone()), reason);
            return;
        };
        let lag = facts.offset.saturating_sub(best.facts.as_ref().map_or(0, |facts| facts.offset));
        let name = &best.member.name;
        if lag <= HANDOVER_LAG_MAX
            && self.memory.is_due_after(HANDOVER_REPEAT, state.at, format!("hand over to {name}"))
        {
            let reason = format!("the settings of its primary {} have changed", primary.member.name);
            self.push(Operation::Failover(name.clone()), reason);
        }
    }

    /// Removes a shard that has neither slots nor keys: all other nodes forget its nodes, then these end.
    fn remove_shard(&mut self, shard: ShardId, reason: &str) {
        let owns = self.owners.iter().flatten().any(|owner| owner.member.shard == shard);
        // The keys of slots that have moved are deleted in the background.
        let may_have_keys = |node: &Node| node.facts.as_ref().map_or(!node.member.is_lost, |facts| facts.keys > 0);
        let has_keys = self.state.of_shard(shard).any(may_have_keys);
        if owns || has_keys {
            return;
        }
        let leaving: Vec<&Node> = self.state.of_shard(shard).collect();
        let is_removed = |node: &Node, tasks: &[Task]| {
            tasks.iter().any(|task| task.operation == Operation::Remove(node.member.name.clone()))
        };
        for (node, facts) in self.state.answering().filter(|(node, _)| node.member.shard != shard) {
            if is_removed(node, &self.tasks) {
                continue;
            }
            for id in leaving.iter().filter_map(|node| node.id()) {
                if facts.peers.iter().any(|peer| peer.id == id) {
                    self.push(Operation::Forget(node.member.name.clone(), id.to_owned()), reason);
                }
            }
        }
        for node in leaving {
            self.push(Operation::Remove(node.member.name.clone()), reason);
        }
    }
}

/// Whether a node's machine is lost and the node does not answer.
fn is_lost(node: &Node) -> bool {
    node.member.is_lost && node.facts.is_none()
}

/// Whether a node is a replica that has ever had data of its primary.
fn may_take_over(facts: &Facts) -> bool {
    facts.primary.is_some() && facts.offset > 0
}

#[cfg(test)]
mod tests;
