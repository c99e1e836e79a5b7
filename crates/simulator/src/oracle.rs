//! What must always hold, checked after every input of every node, and what nodes have promised.

use crate::host::Request;
use crate::setup::{LARGE, Promise};
use crate::world::World;
use kvick_cluster::bus::{ClusterState, MessageType};
use kvick_cluster::migration::RangeList;
use kvick_cluster::state::{AuditedNode, Cluster};
use kvick_cluster::{Epoch, NodeFlags, NodeId, SLOT_COUNT, Slots, SlotsRef};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;

/// Places in a message: see `kvick_cluster::bus`.
const TYPE: std::ops::Range<usize> = 12..14;
const CURRENT_EPOCH: std::ops::Range<usize> = 16..24;
const CONFIG_EPOCH: std::ops::Range<usize> = 24..32;
const PRIMARY: std::ops::Range<usize> = 2128..2168;
const FLAGS_BYTE: usize = 2253;

/// Every so many slots, the owner is checked.
const SLOT_STEP: usize = 1024;

/// Flags that all nodes must agree on.
const COMPARED: NodeFlags = NodeFlags::PRIMARY
    .union(NodeFlags::REPLICA)
    .union(NodeFlags::PFAIL)
    .union(NodeFlags::FAIL)
    .union(NodeFlags::NO_ADDRESS);

/// What was last seen of a process.
#[derive(Clone, Copy, Default)]
struct Seen {
    id: Option<NodeId>,
    current_epoch: Epoch,
    last_vote_epoch: Epoch,
    config_epoch: Epoch,
    is_primary: bool,
    voters: usize,
    topology_version: u64,
}

/// Owners of some slots, with their config epochs.
type Owners = Vec<Option<(NodeId, Epoch)>>;

/// What a node has to say about another one, with hosts instead of names: all nodes must agree on that.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Opinion<'a> {
    host: Option<usize>,
    flags: NodeFlags,
    primary: Option<usize>,
    config_epoch: Epoch,
    slots: SlotsRef<'a>,
    shard_id: NodeId,
    has_right_address: bool,
}

impl fmt::Display for Opinion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Opinion { host, flags, primary, config_epoch, slots, shard_id, has_right_address } = self;
        let slots: Vec<_> = slots.ranges().collect();
        write!(
            f,
            "host {host:?} {flags:?} primary {primary:?} epoch {config_epoch} slots {slots:?} shard {shard_id} right \
             address {has_right_address}"
        )
    }
}

/// See the module.
pub(crate) struct Oracle {
    violation: Option<String>,
    seen: Vec<Seen>,
    /// By host.
    owners: Vec<Owners>,
    /// Whom a node has voted for in an epoch.
    votes: BTreeMap<(NodeId, Epoch), usize>,
    /// Who has voted for a host in an epoch.
    voters: BTreeMap<(usize, Epoch), BTreeSet<NodeId>>,
    /// Who was elected in an epoch, with its slots.
    elected: BTreeMap<Epoch, Vec<(NodeId, Slots)>>,
    /// The highest epoch that a node has claimed slots with, in a message that left it.
    claimed: HashMap<NodeId, Epoch>,
    /// Writes that must not be lost: slot, key and number.
    promised: Vec<(u16, u32, u32)>,
    /// Slots that atomic migrations have moved.
    taken_over: BTreeSet<u16>,
    /// Slots in which writes may get lost from now on, since a grant was forgotten.
    pub(crate) at_risk: BTreeSet<u16>,
    /// Slots with hosts that may have claimed them, and whose claims came too late.
    withdrawn: BTreeSet<(u16, usize)>,
    promise: Promise,
    pub(crate) acknowledged: u64,
    pub(crate) elections: u64,
}

impl Oracle {
    pub(crate) fn new(hosts: usize) -> Oracle {
        Oracle {
            violation: None,
            seen: vec![Seen::default(); hosts],
            owners: vec![Owners::new(); hosts],
            votes: BTreeMap::new(),
            voters: BTreeMap::new(),
            elected: BTreeMap::new(),
            claimed: HashMap::new(),
            promised: Vec::new(),
            taken_over: BTreeSet::new(),
            at_risk: BTreeSet::new(),
            withdrawn: BTreeSet::new(),
            promise: Promise::Nothing,
            acknowledged: 0,
            elections: 0,
        }
    }

    /// From now on acknowledged writes count.
    pub(crate) fn promise(&mut self, promise: Promise) {
        self.promise = promise;
    }

    pub(crate) fn is_violated(&self) -> bool {
        self.violation.is_some()
    }

    /// What was violated, if anything.
    pub(crate) fn violation(&self) -> Option<&str> {
        self.violation.as_deref()
    }

    /// Notes a violation. The first one counts.
    pub(crate) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    /// A client has got the reply that its write was executed.
    pub(crate) fn acknowledge(&mut self, request: &Request, everywhere: bool) {
        self.acknowledged += 1;
        let counts = match self.promise {
            Promise::All => true,
            Promise::Everywhere => everywhere && !self.at_risk.contains(&request.slot),
            Promise::Nothing => false,
        };
        if counts {
            self.promised.push((request.slot, request.key, request.number));
        }
    }

    pub(crate) fn promised(&self) -> &[(u16, u32, u32)] {
        &self.promised
    }

    /// CLUSTER RESET: the epochs that the node has announced do not count any more. A replica saves the epoch of its
    /// primary instead of its own, so it may become a primary without slots and with a lower epoch. With HARD, the
    /// epochs of the host begin anew.
    pub(crate) fn reset(&mut self, host: usize, id: NodeId, hard: bool) {
        self.claimed.remove(&id);
        if hard {
            self.seen[host] = Seen::default();
            self.owners[host].clear();
        }
    }
}

fn number(frame: &[u8], place: std::ops::Range<usize>) -> Option<u64> {
    let bytes = frame.get(place)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

impl World {
    /// A process has just started.
    pub(crate) fn check_start(&mut self, host: usize) {
        self.oracle.seen[host] = Seen::default();
        self.oracle.owners[host].clear();
        let Some(cluster) = self.cluster(host) else { return };
        let (id, epoch, is_primary) = (cluster.my_id(), cluster.my_config_epoch(), cluster.is_primary());
        self.by_id.insert(id, host);
        if let Some(claimed) = self.oracle.claimed.get(&id).copied().filter(|claimed| is_primary && *claimed > epoch) {
            self.oracle.violate(format!(
                "host {host} has announced slots with config epoch {claimed}, and has {epoch} after a restart"
            ));
        }
    }

    /// Checks a frame that leaves a process.
    pub(crate) fn check_sent(&mut self, host: usize, peer: usize, frame: &[u8]) {
        let kind = number(frame, TYPE).and_then(|kind| MessageType::from_number(kind as u16));
        let Some(id) = self.cluster(host).map(|cluster| cluster.my_id()) else { return };
        if frame.get(PRIMARY).is_some_and(|primary| primary.iter().all(|byte| *byte == 0)) {
            let epoch = number(frame, CONFIG_EPOCH).unwrap_or(0);
            let claimed = self.oracle.claimed.entry(id).or_default();
            *claimed = (*claimed).max(epoch);
        }
        if matches!(kind, Some(MessageType::Ping | MessageType::Pong))
            && frame.get(FLAGS_BYTE).is_some_and(|b| b & 1 == 1)
        {
            self.check_paused(host);
        }
        if kind != Some(MessageType::FailoverAuthAck) {
            return;
        }
        let epoch = number(frame, CURRENT_EPOCH).unwrap_or(0);
        self.trace.note(self.now_ms, || format!("host {host} votes for host {peer} in epoch {epoch}"));
        if let Some(before) = self.oracle.votes.insert((id, epoch), peer) {
            self.oracle.violate(format!("host {host} votes twice in epoch {epoch}: for host {before} and host {peer}"));
        }
        self.oracle.voters.entry((peer, epoch)).or_default().insert(id);
        let saved = self.hosts[host]
            .disk
            .durable
            .as_ref()
            .and_then(|content| content.rsplit_once("lastVoteEpoch ")?.1.trim().parse::<Epoch>().ok());
        if saved.is_none_or(|saved| saved < epoch) {
            self.oracle.violate(format!("host {host} votes in epoch {epoch}, but that is not saved: {saved:?}"));
        }
    }

    /// A primary announces that it has paused writes.
    fn check_paused(&mut self, host: usize) {
        let now_ms = self.clock(host).mono_ms;
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        // The frame may leave some time after it was made, when the pause is over already.
        if process.paused_until_ms.is_none() && process.pause_is_pending && now_ms > 0 {
            self.oracle.violate(format!("host {host} announces that writes are paused before they are"));
        }
    }

    /// Checks a process after an input was settled. `by_command`: an administrator has changed it.
    pub(crate) fn check_host(&mut self, host: usize, by_command: bool) {
        let Some(cluster) = self.cluster(host) else { return };
        let now = Seen {
            id: Some(cluster.my_id()),
            current_epoch: cluster.current_epoch(),
            last_vote_epoch: cluster.last_vote_epoch(),
            config_epoch: cluster.my_config_epoch(),
            is_primary: cluster.is_primary(),
            voters: cluster.size(),
            topology_version: cluster.topology_version(),
        };
        let is_changed = now.topology_version != self.oracle.seen[host].topology_version;
        let audits = is_changed && (self.hosts.len() < LARGE || self.steps.is_multiple_of(1000));
        let fault = if audits { cluster.audit() } else { None };
        if let Some(fault) = fault {
            self.oracle.violate(format!("host {host}: {fault}"));
        }
        let before = std::mem::replace(&mut self.oracle.seen[host], now);
        if is_changed {
            let owners = self.owners_of(host);
            let owners_before = std::mem::replace(&mut self.oracle.owners[host], owners);
            if !by_command && before.id == now.id {
                self.check_owners(host, &owners_before);
            }
        }
        if before.id != now.id {
            self.by_id.extend(now.id.map(|id| (id, host)));
            return;
        }
        for (name, before, now) in [
            ("current epoch", before.current_epoch, now.current_epoch),
            ("epoch of the last vote", before.last_vote_epoch, now.last_vote_epoch),
            ("config epoch", before.config_epoch, now.config_epoch),
        ] {
            if now < before {
                self.oracle.violate(format!("host {host}: the {name} goes back from {before} to {now}"));
            }
        }
        if now.is_primary && !before.is_primary && !by_command {
            self.check_election(host, &before, &now);
        }
    }

    /// The owners of some slots as a node sees them.
    fn owners_of(&self, host: usize) -> Owners {
        let Some(cluster) = self.cluster(host) else { return Vec::new() };
        let owner = |slot| {
            let id = cluster.slot_owner(slot).filter(|_| !cluster.is_unclaimed(slot))?;
            Some((id, cluster.config_epoch_of(&id)?))
        };
        (0..SLOT_COUNT).step_by(SLOT_STEP).map(owner).collect()
    }

    /// A slot goes only to a node with a higher config epoch, unless its owner has given it up or an administrator
    /// moves it.
    fn check_owners(&mut self, host: usize, before: &Owners) {
        let weights = self.setup.workload.weights();
        if weights.set_slot > 0 || weights.migrate_slots > 0 || self.setup.workload.needs_operator() {
            return;
        }
        for (index, (before, now)) in before.iter().zip(&self.oracle.owners[host]).enumerate() {
            let Some(((before, old), (now, new))) = before.zip(*now) else { continue };
            if before != now && new < old {
                let slot = index * SLOT_STEP;
                let what = format!(
                    "host {host}: slot {slot} goes from {before} with config epoch {old} to {now} with an older one, \
                     {new}"
                );
                return self.oracle.violate(what);
            }
        }
    }

    /// A replica has become a primary by itself.
    fn check_election(&mut self, host: usize, before: &Seen, now: &Seen) {
        let Some(id) = now.id else { return };
        // While roles are new, two nodes may take each other for their primary: one of them becomes a primary without
        // slots, and nothing depends on that.
        if self.cluster(host).is_some_and(|cluster| cluster.my_slots().is_empty()) {
            return;
        }
        let epoch = now.config_epoch;
        self.oracle.elections += 1;
        self.trace.note(self.now_ms, || format!("host {host} is elected in epoch {epoch}"));
        let votes = self.oracle.voters.get(&(host, epoch)).map_or(0, BTreeSet::len);
        let needed = before.voters.min(now.voters) / 2 + 1;
        if votes < needed {
            self.oracle.violate(format!(
                "host {host} is elected in epoch {epoch} with {votes} votes, but a majority is {needed}"
            ));
        }
        // Voters that have not heard of each other may elect two nodes in one epoch, if a shard has an old and a new
        // primary. Then the nodes must be of different shards: config epochs decide only about slots.
        let Some(slots) = self.cluster(host).map(|cluster| cluster.my_slots().clone()) else { return };
        let elected = self.oracle.elected.entry(epoch).or_default();
        let rival = elected.iter().find(|(other, theirs)| *other != id && theirs.view().intersects(slots.view()));
        let rival = rival.map(|(other, _)| *other);
        elected.push((id, slots));
        if let Some(other) = rival {
            self.oracle.violate(format!("both {other} and {id} (host {host}) are elected in epoch {epoch}"));
        }
    }

    /// A node takes slots over at the end of a migration. It must have all writes to them that must survive. Those that
    /// a replica of it does not have may be lost with it from now on.
    pub(crate) fn check_takeover(&mut self, host: usize, slots: &RangeList) {
        let mut promised = std::mem::take(&mut self.oracle.promised);
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let is_lost = |(slot, key, number): &&(u16, u32, u32)| {
            slots.contains(*slot) && !process.data.contains(*slot, *key, *number)
        };
        let lost = promised.iter().find(is_lost).copied();
        if let Some((slot, key, number)) = lost {
            self.oracle.violate(format!(
                "host {host} takes slot {slot} over without acknowledged write {number} to key {key}"
            ));
        }
        if self.oracle.promise == Promise::Everywhere {
            promised
                .retain(|(slot, key, number)| !slots.contains(*slot) || self.is_in_shard(host, *slot, *key, *number));
            self.oracle.taken_over.extend(slots.slots());
        }
        self.oracle.promised = promised;
    }

    /// A source is about to accept writes again, although a target was allowed to take slots over. If the target has
    /// done that, and is cut off, what it accepts is lost.
    pub(crate) fn withdraw_grant(&mut self, host: usize, target: usize, slots: &RangeList) {
        let Some(process) = self.hosts[host].process.as_ref() else { return };
        let kept = |(slot, key, number): &(u16, u32, u32)| {
            !slots.contains(*slot) || process.data.contains(*slot, *key, *number)
        };
        self.oracle.promised.retain(kept);
        self.oracle.withdrawn.extend(slots.slots().map(|slot| (slot, target)));
    }

    /// If the slot of a write has moved, its reply may arrive when the new owner is the one that must have it.
    pub(crate) fn is_at_new_owners(&self, host: usize, request: &Request) -> bool {
        if self.oracle.withdrawn.contains(&(request.slot, host)) {
            return false;
        }
        let owns = |host: &usize| self.cluster(*host).is_some_and(|cluster| cluster.my_slots().contains(request.slot));
        let mut owners = (0..self.hosts.len()).filter(owns);
        !self.oracle.taken_over.contains(&request.slot) || owners.all(|owner| self.is_everywhere(owner, request))
    }

    /// A key on a primary that does not own its slot.
    fn find_foreign_key(&self) -> Option<String> {
        if self.setup.workload.weights().migrate_slots == 0 {
            return None;
        }
        for host in 0..self.hosts.len() {
            let process = self.hosts[host].process.as_ref()?;
            let cluster = &process.cluster;
            let is_foreign = |slot: &&u16| !cluster.my_slots().contains(**slot);
            let is_open = |slot: u16| cluster.importing_from(slot).is_some();
            let foreign = process.data.keys.keys().find(is_foreign).filter(|slot| !is_open(**slot));
            if let Some(slot) = foreign.filter(|_| cluster.is_primary()) {
                return Some(format!("host {host} has keys of slot {slot}, which it does not own"));
            }
        }
        None
    }

    /// Checks that concern several nodes, made from time to time.
    pub(crate) fn check_all(&mut self) {
        self.operate();
        if self.hosts.len() >= LARGE {
            return;
        }
        for host in 0..self.hosts.len() {
            let Some(cluster) = self.cluster(host) else { continue };
            let current = cluster.current_epoch();
            let above = cluster.known_nodes().filter_map(|(id, _)| cluster.config_epoch_of(&id)).max();
            if let Some(above) = above.filter(|epoch| *epoch > current) {
                self.oracle.violate(format!("host {host}: current epoch {current} is below a config epoch, {above}"));
            }
        }
    }

    /// Checks the invariants of all state machines.
    pub(crate) fn audit_all(&mut self) {
        for host in 0..self.hosts.len() {
            if let Some(fault) = self.cluster(host).and_then(Cluster::audit) {
                self.oracle.violate(format!("host {host}: {fault}"));
            }
        }
    }

    /// Whether every replica has all data of its primary.
    pub(crate) fn all_in_sync(&self) -> bool {
        self.find_lag().is_none()
    }

    /// A replica that has not all data of its primary.
    fn find_lag(&self) -> Option<String> {
        for host in 0..self.hosts.len() {
            let process = self.hosts[host].process.as_ref()?;
            let Some(primary) = process.cluster.my_primary() else { continue };
            let Some(primary) = self.by_id.get(&primary).copied() else {
                return Some(format!("host {host} replicates an unknown node"));
            };
            let Some(source) = self.hosts[primary].process.as_ref() else {
                return Some(format!("host {primary} does not run"));
            };
            if !process.upstream.is_online {
                return Some(format!("host {host} has no replication link to host {primary}"));
            }
            if process.data.offset + 20 * crate::data::ENTRY_BYTES < source.data.offset {
                return Some(format!("host {host} lags behind host {primary}"));
            }
            if process.data.offset == source.data.offset && process.data.keys != source.data.keys {
                return Some(format!("host {host} has other data than host {primary} at the same offset"));
            }
        }
        None
    }

    /// What the nodes do not agree on, when all faults are over.
    pub(crate) fn find_disagreement(&self) -> Option<String> {
        let ids: BTreeSet<NodeId> =
            self.hosts.iter().filter_map(|host| Some(host.process.as_ref()?.cluster.my_id())).collect();
        if ids.len() != self.hosts.len() {
            return Some("two nodes have one name, or a node does not run".to_owned());
        }
        for host in 0..self.hosts.len() {
            let cluster = self.cluster(host)?;
            if cluster.state() != ClusterState::Ok {
                return Some(format!("host {host}: cluster_state is fail ({:?})", cluster.fail_reason()));
            }
            let knows_all = ids.iter().all(|id| cluster.config_epoch_of(id).is_some());
            if !knows_all || cluster.node_count() != ids.len() {
                let known: BTreeSet<NodeId> = cluster.known_nodes().map(|(id, _)| id).collect();
                let (missing, foreign) = (ids.difference(&known).count(), known.difference(&ids).count());
                return Some(format!("host {host} lacks {missing} nodes, and knows {foreign} that do not exist"));
            }
        }
        let mut reference: Option<Vec<Opinion<'_>>> = None;
        for host in 0..self.hosts.len() {
            let opinions = self.opinions_of(host)?;
            let cluster = self.cluster(host)?;
            match &reference {
                None => {
                    if let Some(stray) = opinions.iter().find(|opinion| !opinion.has_right_address) {
                        return Some(format!("host {host}: {stray}"));
                    }
                    if (0..SLOT_COUNT).any(|slot| cluster.slot_owner(slot).is_none()) {
                        return Some(format!("host {host}: a slot belongs to nobody"));
                    }
                    reference = Some(opinions);
                }
                Some(reference) => {
                    if let Some((theirs, ours)) = reference.iter().zip(&opinions).find(|(theirs, ours)| theirs != ours)
                    {
                        return Some(format!("host 0 has\n  {theirs}\nbut host {host} has\n  {ours}"));
                    }
                }
            }
        }
        self.find_lag().or_else(|| self.find_unfinished_job()).or_else(|| self.find_foreign_key())
    }

    /// Whether all nodes know the addresses of all others.
    pub(crate) fn addresses_are_known(&self) -> bool {
        (0..self.hosts.len()).all(|host| {
            self.opinions_of(host).is_some_and(|opinions| {
                opinions.iter().filter(|opinion| opinion.has_right_address).count() == self.hosts.len()
            })
        })
    }

    /// What a node says about all nodes, in the order of hosts.
    fn opinions_of(&self, host: usize) -> Option<Vec<Opinion<'_>>> {
        let cluster = self.cluster(host)?;
        let me = cluster.my_id();
        let mut opinions: Vec<Opinion<'_>> = cluster.audited_nodes().map(|node| self.opinion(me, node)).collect();
        opinions.sort_by_key(|opinion| opinion.host);
        Some(opinions)
    }

    fn opinion<'a>(&self, me: NodeId, node: AuditedNode<'a>) -> Opinion<'a> {
        let host_of = |id: &NodeId| self.by_id.get(id).copied();
        let host = host_of(&node.id);
        Opinion {
            host,
            flags: node.flags & COMPARED,
            primary: node.primary.as_ref().and_then(host_of),
            config_epoch: node.config_epoch,
            slots: node.slots,
            shard_id: node.shard_id,
            // As in Valkey, a node that has moved learns its own new address only from MEET.
            has_right_address: node.id == me || host.is_some_and(|host| self.hosts[host].ip == node.ip),
        }
    }

    /// An acknowledged write that no owner has.
    pub(crate) fn find_lost_write(&self) -> Option<String> {
        let owners: BTreeMap<u16, usize> = (0..self.hosts.len())
            .filter_map(|host| Some((host, self.cluster(host)?)))
            .flat_map(|(host, cluster)| cluster.my_slots().iter().map(move |slot| (slot, host)))
            .collect();
        for (slot, key, number) in self.oracle.promised() {
            let owner = owners.get(slot).copied();
            // While a slot is moved, clients find its keys at the node that imports it.
            let is_importing = |host: &usize| {
                let cluster = self.cluster(*host);
                cluster.is_some_and(|cluster| cluster.is_primary() && cluster.importing_from(*slot).is_some())
            };
            let mut places = owner.into_iter().chain((0..self.hosts.len()).filter(is_importing));
            let has_it = |host: usize| {
                let process = self.hosts[host].process.as_ref();
                process.is_some_and(|process| process.data.contains(*slot, *key, *number))
            };
            if !places.any(has_it) {
                let holders: Vec<usize> = (0..self.hosts.len()).filter(|host| has_it(*host)).collect();
                let importers: Vec<usize> = (0..self.hosts.len()).filter(is_importing).collect();
                return Some(format!(
                    "acknowledged write {number} to key {key} in slot {slot} is missing at its owner, host {owner:?}; \
                     hosts {holders:?} have it, and hosts {importers:?} import the slot"
                ));
            }
        }
        None
    }
}
