//! What the status of a cluster says, as a function of what was observed and done.

use crate::acl::Progress;
use crate::objects;
use crate::spec::{KvickClusterSpec, KvickClusterStatus, ShardStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kvick_operator::reconcile::{Operation, Task};
use kvick_operator::state::{Node, State};

/// Everything that the status depends on.
pub struct Situation<'a> {
    /// Name of the cluster.
    pub name: &'a str,
    /// Generation of the resource.
    pub generation: i64,
    /// What is wanted.
    pub spec: &'a KvickClusterSpec,
    /// What the nodes say.
    pub state: &'a State,
    /// What was done in this step.
    pub tasks: &'a [Task],
    /// How far the users of `aclSecret` are, if there is one.
    pub users: Option<&'a Progress>,
    /// The status before.
    pub before: &'a KvickClusterStatus,
}

/// The name of an operation in events.
pub fn reason(operation: &Operation) -> &'static str {
    match operation {
        Operation::StartShard => "StartShard",
        Operation::StartReplica(_) => "StartReplica",
        Operation::StartSpare => "StartSpare",
        Operation::UseSpare(_) => "UseSpare",
        Operation::Restart(_) => "Restart",
        Operation::Replace(_) => "Replace",
        Operation::Remove(_) => "Remove",
        Operation::SetLeaving(_, true) => "Drain",
        Operation::SetLeaving(_, false) => "Keep",
        Operation::Meet(..) => "Join",
        Operation::AddSlots(..) => "AssignSlots",
        Operation::Replicate(..) => "Replicate",
        Operation::Migrate(..) => "MoveSlots",
        Operation::TakeOver(_) => "Promote",
        Operation::Failover(_) => "HandOver",
        Operation::Forget(..) => "Forget",
        Operation::SetWorkers(..) => "SetWorkers",
    }
}

impl Situation<'_> {
    fn shards(&self) -> Vec<ShardStatus> {
        let owners = self.state.owners();
        let counts = self.state.slot_counts();
        let shards = self.state.shards().into_iter().map(|shard| {
            let primary = self.state.primary_of(shard, &owners);
            let has_data = |node: &&Node| {
                node.facts.as_ref().is_some_and(|facts| {
                    facts.is_synchronized && facts.primary.as_deref() == primary.and_then(|node| node.id())
                })
            };
            ShardStatus {
                id: shard.0,
                primary: primary.map(|node| node.member.name.clone()),
                slots: counts.get(&shard).copied().unwrap_or(0) as u32,
                replicas_ready: self.state.of_shard(shard).filter(has_data).count() as u32,
                is_leaving: self.state.of_shard(shard).any(|node| node.member.is_leaving),
            }
        });
        shards.collect()
    }

    /// What the cluster is doing.
    fn phase(&self, shards: &[ShardStatus], is_serving: bool) -> &'static str {
        let policy = self.spec.policy();
        let active = shards.iter().filter(|shard| !shard.is_leaving);
        let (count, empty) = (active.clone().count() as u32, active.clone().filter(|shard| shard.slots == 0).count());
        let lacks_replicas = active.clone().any(|shard| shard.replicas_ready < self.spec.replicas_per_shard);
        let lacks_spares = self.spares_ready() < self.spec.warm_spares;
        let is_moving = self.state.answering().any(|(_, facts)| !facts.exports.is_empty());
        let was_created = self.before.phase != "Creating" && !self.before.phase.is_empty();
        if !was_created && (!is_serving || lacks_replicas || empty > 0) {
            "Creating"
        } else if self.state.nodes.iter().any(|node| node.member.is_outdated && !node.member.is_leaving) {
            "Upgrading"
        } else if empty > 0 || is_moving || shards.len() as u32 > count || !policy_allows(&policy, count) {
            "Scaling"
        } else if !is_serving || lacks_replicas {
            "Healing"
        } else if lacks_spares {
            "Scaling"
        } else if !self.state.is_settled() {
            "Healing"
        } else {
            "Running"
        }
    }

    fn spares_ready(&self) -> u32 {
        self.state.spares().filter(|node| self.state.is_ready_spare(node)).count() as u32
    }

    /// The condition about users, if they come from a secret.
    fn users_condition(&self) -> Option<Condition> {
        let (is_loaded, reason, message) = match self.users? {
            Progress::Loaded => (true, "Loaded", "all nodes have the users of the secret".to_owned()),
            Progress::Loading(0) => (false, "Loading", "there are no users yet".to_owned()),
            Progress::Loading(nodes) => (false, "Loading", format!("{nodes} nodes have other users")),
            Progress::Refused(problem) => (false, "Invalid", problem.clone()),
        };
        Some(self.condition("AclLoaded", is_loaded, reason, message))
    }

    /// The status now.
    pub fn status(&self) -> KvickClusterStatus {
        let shards = self.shards();
        let owners = self.state.owners();
        let is_serving = owners.iter().all(|owner| owner.is_some_and(Node::is_primary));
        let phase = self.phase(&shards, is_serving);
        let last = self.tasks.last().map(|task| format!("{}: {}", task.operation, task.reason));
        let before = self.before.conditions.iter().find(|condition| condition.type_ == "Progressing");
        let (is_progressing, progress) = match phase {
            "Running" => (false, "all nodes are as they should be".to_owned()),
            // While an operation takes effect, it stays what the cluster does.
            _ => (true, last.or(before.map(|condition| condition.message.clone())).unwrap_or_default()),
        };
        let unserved = owners.iter().filter(|owner| owner.is_none_or(|node| !node.is_primary())).count();
        let ready = match unserved {
            0 => "all slots are served".to_owned(),
            count => format!("{count} slots are not served"),
        };
        let ready_reason = if is_serving { "Serving" } else { "SlotsUnserved" };
        let mut conditions = vec![
            self.condition("Ready", is_serving, ready_reason, ready),
            self.condition("Progressing", is_progressing, phase, progress),
            self.condition("SpecValid", true, "Valid", String::new()),
        ];
        conditions.extend(self.users_condition());
        KvickClusterStatus {
            observed_generation: self.generation,
            phase: phase.to_owned(),
            shard_count: shards.len() as u32,
            selector: objects::selector(self.name),
            shards,
            warm_spares_ready: self.spares_ready(),
            conditions,
        }
    }

    /// The status of a cluster whose specification is not valid. Nothing else changes.
    pub fn invalid(&self, problem: &str) -> KvickClusterStatus {
        let condition = self.condition("SpecValid", false, "Invalid", problem.to_owned());
        let mut status = self.before.clone();
        status.observed_generation = self.generation;
        status.conditions.retain(|other| other.type_ != condition.type_);
        status.conditions.push(condition);
        status
    }

    /// A condition, with the time of its last change.
    fn condition(&self, type_: &str, is_true: bool, reason: &str, message: String) -> Condition {
        let status = if is_true { "True" } else { "False" };
        let before = self.before.conditions.iter().find(|before| before.type_ == type_ && before.status == status);
        let now = || Time(k8s_openapi::jiff::Timestamp::now());
        Condition {
            last_transition_time: before.map_or_else(now, |before| before.last_transition_time.clone()),
            message,
            observed_generation: Some(self.generation),
            reason: reason.to_owned(),
            status: status.to_owned(),
            type_: type_.to_owned(),
        }
    }
}

fn policy_allows(policy: &kvick_planner::Policy, shards: u32) -> bool {
    (policy.shards_min..=policy.shards_max).contains(&shards)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::tests::spec;
    use kvick_operator::backend::Member;
    use kvick_operator::state::{Facts, Peer};
    use kvick_planner::ShardId;

    fn node() -> Node {
        let member = Member { name: "c-1".into(), shard: ShardId(1), is_running: true, ..Member::default() };
        let own = Peer { id: "a".into(), is_myself: true, slots: vec![(0, 16383)], ..Peer::default() };
        Node { member, facts: Some(Facts { id: "a".into(), peers: vec![own], ..Facts::default() }) }
    }

    fn status(node: Node, before: &KvickClusterStatus) -> KvickClusterStatus {
        let state = State { nodes: vec![node], ..State::default() };
        Situation { name: "c", generation: 3, spec: &spec(), state: &state, tasks: &[], users: None, before }.status()
    }

    #[test]
    fn the_phase_follows_what_is_observed() {
        let running = status(node(), &KvickClusterStatus::default());
        assert_eq!((&*running.phase, running.shard_count, running.observed_generation), ("Running", 1, 3));
        let mut outdated = node();
        outdated.member.is_outdated = true;
        assert_eq!(status(outdated, &running).phase, "Upgrading");
        let mut leaving = node();
        leaving.member.is_leaving = true;
        assert_eq!(status(leaving, &running).phase, "Scaling");
        let down = Node { facts: None, ..node() };
        assert_eq!(status(down.clone(), &KvickClusterStatus::default()).phase, "Creating");
        let down = status(down, &running);
        let ready = &down.conditions[0];
        assert_eq!((&*ready.status, &*ready.message), ("False", "16384 slots are not served"));
    }

    #[test]
    fn a_condition_that_stays_keeps_its_time() {
        let before = status(node(), &KvickClusterStatus::default());
        let after = status(node(), &before);
        assert_eq!(before, after);
    }
}
