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
/// After this time without an end, attempts are counted from the beginning.
const STABLE: Duration = Duration::from_secs(60);

/// Something to do. Nodes are given by the names of their members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Start the first node of a new shard.
    StartShard,
    /// Start a replica.
    StartReplica(ShardId),
    /// Start a process again.
    Restart(String),
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
    /// Since when slots have no owner.
    unowned_since: Option<Duration>,
}

impl Memory {
    /// Whether an operation is due, which counts as done then.
    fn is_due(&mut self, at: Duration, what: String) -> bool {
        let is_due = self.done.get(&what).is_none_or(|then| at.saturating_sub(*then) >= REPEAT);
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

/// What to do now.
pub fn step(state: &State, plan: &Plan, memory: &mut Memory) -> Vec<Task> {
    let mut step = Step { state, owners: state.owners(), memory, tasks: Vec::new() };
    step.heal();
    step.join();
    step.forget();
    step.replicate();
    step.carry_out(plan);
    let at = state.at;
    step.memory.done.retain(|_, then| at.saturating_sub(*then) < REPEAT);
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
    /// have lost its data.
    fn heal(&mut self) {
        for node in self.state.nodes.iter().filter(|node| !node.member.is_running) {
            let (name, shard) = (&node.member.name, node.member.shard);
            let is_primary = self.primary(shard).is_some_and(|primary| primary.member.name == *name);
            let replicas = self.state.of_shard(shard).filter_map(|node| Some((node, node.facts.as_ref()?)));
            let best = replicas
                .filter(|(_, facts)| facts.primary.is_some())
                .max_by_key(|(_, facts)| facts.offset)
                .map(|(node, _)| node.member.name.clone());
            if let Some(replica) = best.filter(|_| is_primary) {
                if self.memory.is_due(self.state.at, format!("take over {replica}")) {
                    self.push(Operation::TakeOver(replica), format!("the process of its primary {name} has ended"));
                }
                continue;
            }
            self.restart(name, is_primary, shard);
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

    /// Makes all nodes known to the first one; gossip does the rest.
    fn join(&mut self) {
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
                let is_member = state.nodes.iter().any(|other| other.id() == Some(&peer.id))
                    || state.nodes.iter().any(|other| other.facts.is_none() && other.member.port == peer.port);
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
        let may_assign = since.is_some_and(|since| since < self.state.at);
        self.memory.unowned_since = since;
        for planned in &plan.steps {
            let reason = planned.reason.clone();
            match &planned.action {
                Action::Start { shards } => (0..*shards).for_each(|_| self.push(Operation::StartShard, &*reason)),
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

    /// Removes a shard that has neither slots nor keys: all other nodes forget its nodes, then these end.
    fn remove_shard(&mut self, shard: ShardId, reason: &str) {
        let owns = self.owners.iter().flatten().any(|owner| owner.member.shard == shard);
        // The keys of slots that have moved are deleted in the background.
        let has_keys = self.state.of_shard(shard).any(|node| node.facts.as_ref().is_none_or(|facts| facts.keys > 0));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Member;
    use crate::state::Peer;
    use kvick_planner::Step as Planned;

    const ALL: (u16, u16) = (0, 16383);

    /// A node of a cluster: its number, its slots and its primary.
    type Entry<'a> = (u16, &'a [(u16, u16)], Option<u16>);

    /// What a node says that sees this cluster.
    fn node(number: u16, shard: u32, cluster: &[Entry<'_>]) -> Node {
        let name = |number: u16| format!("id-{number}");
        let peer = |(id, slots, primary): &Entry<'_>| Peer {
            id: name(*id),
            port: 7000 + id,
            is_myself: *id == number,
            primary: primary.map(name),
            slots: slots.to_vec(),
            ..Peer::default()
        };
        let own = cluster.iter().find(|(id, ..)| *id == number).expect("the node itself");
        let facts = Facts {
            id: name(number),
            primary: own.2.map(name),
            peers: cluster.iter().map(peer).collect(),
            ..Facts::default()
        };
        let member = Member {
            name: format!("node-{number}"),
            shard: ShardId(shard),
            host: "127.0.0.1".into(),
            port: 7000 + number,
            bus_port: 17000 + number,
            is_leaving: false,
            is_running: true,
        };
        Node { member, facts: Some(facts) }
    }

    fn died(mut node: Node) -> Node {
        node.member.is_running = false;
        node.facts = None;
        node
    }

    fn state(at_s: u64, nodes: Vec<Node>) -> State {
        State { at: Duration::from_secs(at_s), nodes }
    }

    fn planned(action: Action) -> Plan {
        Plan { steps: vec![Planned { action, reason: "test".into() }], ..Plan::default() }
    }

    fn operations(state: &State, plan: &Plan, memory: &mut Memory) -> Vec<Operation> {
        step(state, plan, memory).into_iter().map(|task| task.operation).collect()
    }

    #[test]
    fn a_primary_without_a_replica_is_restarted_with_pauses() {
        let cluster = [(1, &[ALL][..], None), (2, &[][..], None)];
        let nodes = || vec![died(node(1, 1, &cluster)), node(2, 2, &cluster)];
        let mut memory = Memory::default();
        let restart = [Operation::Restart("node-1".into())];
        assert_eq!(operations(&state(10, nodes()), &Plan::default(), &mut memory), restart);
        assert_eq!(operations(&state(11, nodes()), &Plan::default(), &mut memory), []);
        assert_eq!(operations(&state(13, nodes()), &Plan::default(), &mut memory), restart);
    }

    #[test]
    fn a_replica_takes_over_before_its_primary_restarts() {
        let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1))];
        let nodes = vec![died(node(1, 1, &cluster)), node(2, 1, &cluster)];
        let mut memory = Memory::default();
        let found = operations(&state(10, nodes), &Plan::default(), &mut memory);
        assert_eq!(found, [Operation::TakeOver("node-2".into())]);
        // Afterwards the old primary starts again, and is a replica.
        let cluster = [(1, &[][..], None), (2, &[ALL][..], None)];
        let nodes = vec![died(node(1, 1, &cluster)), node(2, 1, &cluster)];
        let found = operations(&state(11, nodes), &Plan::default(), &mut memory);
        assert_eq!(found, [Operation::Restart("node-1".into())]);
        let nodes = vec![node(1, 1, &cluster), node(2, 1, &cluster)];
        let found = operations(&state(20, nodes), &Plan::default(), &mut memory);
        assert_eq!(found, [Operation::Replicate("node-1".into(), "id-2".into())]);
    }

    #[test]
    fn a_replica_that_ends_again_and_again_is_replaced() {
        let cluster = [(1, &[ALL][..], None), (2, &[][..], Some(1))];
        let nodes = || vec![node(1, 1, &cluster), died(node(2, 1, &cluster))];
        let mut memory = Memory::default();
        for attempt in 0..5 {
            let found = operations(&state(10 + 2 * attempt, nodes()), &Plan::default(), &mut memory);
            assert_eq!(found, [Operation::Restart("node-2".into())]);
        }
        let found = operations(&state(20, nodes()), &Plan::default(), &mut memory);
        assert_eq!(found, [Operation::Remove("node-2".into())]);
    }

    #[test]
    fn new_nodes_join_and_removed_ones_are_forgotten() {
        let cluster = [(1, &[ALL][..], None), (9, &[][..], None)];
        let alone = [(2, &[][..], None)];
        let nodes = vec![node(1, 1, &cluster), node(2, 2, &alone)];
        let found = operations(&state(10, nodes), &Plan::default(), &mut Memory::default());
        let expected =
            [Operation::Meet("node-1".into(), "node-2".into()), Operation::Forget("node-1".into(), "id-9".into())];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_shard_is_removed_only_without_slots_and_keys() {
        let stop = planned(Action::Stop { shard: ShardId(2) });
        let cluster = [(1, &[ALL][..], None), (2, &[][..], None)];
        let mut last = node(2, 2, &cluster);
        last.facts.as_mut().expect("facts").keys = 1;
        let nodes = vec![node(1, 1, &cluster), last];
        assert_eq!(operations(&state(10, nodes), &stop, &mut Memory::default()), []);
        let nodes = vec![node(1, 1, &cluster), node(2, 2, &cluster)];
        let found = operations(&state(10, nodes), &stop, &mut Memory::default());
        let expected = [Operation::Forget("node-1".into(), "id-2".into()), Operation::Remove("node-2".into())];
        assert_eq!(found, expected);
        let cluster = [(1, &[(0, 100)][..], None), (2, &[(101, 16383)][..], None)];
        let nodes = vec![node(1, 1, &cluster), node(2, 2, &cluster)];
        assert_eq!(operations(&state(10, nodes), &stop, &mut Memory::default()), []);
    }

    #[test]
    fn slots_are_assigned_only_if_they_stay_without_an_owner() {
        let assign = planned(Action::Assign { shard: ShardId(1), slots: vec![5, 6, 9] });
        let cluster = [(1, &[][..], None)];
        let mut memory = Memory::default();
        assert_eq!(operations(&state(10, vec![node(1, 1, &cluster)]), &assign, &mut memory), []);
        let found = operations(&state(11, vec![node(1, 1, &cluster)]), &assign, &mut memory);
        assert_eq!(found, [Operation::AddSlots("node-1".into(), vec![(5, 6), (9, 9)])]);
    }

    #[test]
    fn a_new_shard_takes_slots_only_once_it_knows_their_owners() {
        let cluster = [(1, &[ALL][..], None), (2, &[][..], None)];
        let half = [(1, &[(0, 100)][..], None), (2, &[][..], None)];
        for (view, phase) in [(&half, kvick_planner::Phase::Starting), (&cluster, kvick_planner::Phase::Serving)] {
            let observation = state(10, vec![node(1, 1, &cluster), node(2, 2, view)]).observation(1);
            assert_eq!(observation.shard(ShardId(2)).expect("the shard").phase, phase);
            assert_eq!(observation.shard(ShardId(1)).expect("the shard").phase, kvick_planner::Phase::Serving);
        }
    }

    #[test]
    fn shards_that_are_removed_together_are_not_asked_to_forget_each_other() {
        let stop = |shard| Planned { action: Action::Stop { shard: ShardId(shard) }, reason: "test".into() };
        let plan = Plan { steps: vec![stop(2), stop(3)], ..Plan::default() };
        let cluster = [(1, &[ALL][..], None), (2, &[][..], None), (3, &[][..], None)];
        let nodes = vec![node(1, 1, &cluster), node(2, 2, &cluster), node(3, 3, &cluster)];
        let found = operations(&state(10, nodes), &plan, &mut Memory::default());
        let forget = |node: &str, id: &str| Operation::Forget(node.into(), id.into());
        let remove = |node: &str| Operation::Remove(node.into());
        let first = [forget("node-1", "id-2"), forget("node-3", "id-2"), remove("node-2")];
        assert_eq!(found, [&first[..], &[forget("node-1", "id-3"), remove("node-3")]].concat());
    }

    #[test]
    fn a_shard_that_is_down_can_neither_give_nor_take_slots() {
        let cluster = [(1, &[(0, 100)][..], None), (2, &[(101, 16383)][..], None)];
        let nodes = vec![node(1, 1, &cluster), died(node(2, 2, &cluster))];
        let state = state(10, nodes);
        let observation = state.observation(1);
        let shard = observation.shard(ShardId(2)).expect("the shard");
        assert_eq!(shard.phase, kvick_planner::Phase::Starting);
        assert_eq!(observation.slots[200].owner, Some(ShardId(2)));
        let action = Action::Move { from: ShardId(1), to: ShardId(2), slots: vec![1], bytes: 0 };
        let found = operations(&state, &planned(action), &mut Memory::default());
        assert_eq!(found, [Operation::Restart("node-2".into())]);
    }
}
