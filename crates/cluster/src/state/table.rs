//! The nodes that are known, by key and by name, and their shards.
//!
//! A [`NodeKey`] is an index with a generation: it costs no search, and the key of a node that was removed does not
//! find the node that took its place. Nodes are visited in the order of their indexes, the node itself first, so
//! that a run does not depend on hashes. The map by name is used for lookups only.
//!
//! In a cluster of a thousand nodes most inputs change nothing that a timer or the state of the cluster depends on. So
//! the table keeps track of changes: a node that was changed through `IndexMut` is visited by the next tick, whatever
//! time [`Table::set_due`] has noted for it, what others are told about it is decided anew, and [`Table::revision`]
//! goes up. [`Table::quiet_mut`] is for changes that need none of that, [`Table::link_mut`] for those that need all but
//! the last.

use super::node::Node;
use super::pulse::{Pulse, Telling, Time};
use crate::bus::GOSSIP_ENTRY_BYTES;
use crate::flags::NodeFlags;
use crate::name_hash::NameHash;
use crate::node_id::NodeId;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// A node, for as long as it is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeKey {
    index: u32,
    generation: NonZeroU32,
}

#[derive(Clone, Debug)]
struct Entry {
    generation: NonZeroU32,
    node: Option<Box<Node>>,
}

impl NodeKey {
    /// The place of the node in the table. Another node may take it when this one is removed.
    pub(super) fn index(self) -> u32 {
        self.index
    }
}

/// A gossip entry.
type GossipBytes = [u8; GOSSIP_ENTRY_BYTES];

/// All nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    /// By index, as `entries`.
    pulses: Vec<Pulse>,
    /// Gossip entries without times, by index. Used only for nodes that are part of this node's gossip.
    told: Vec<GossipBytes>,
    /// When the next tick has to look at a node, by index. 0 after a change; the largest number if there is none.
    due_ms: Vec<u64>,
    free: Vec<u32>,
    by_id: HashMap<NodeId, NodeKey, NameHash>,
    /// The nodes of each shard, in the order in which they were added. Nodes in handshake are in none.
    shards: BTreeMap<NodeId, Vec<NodeKey>>,
    /// Nodes with the flag PFAIL, in the order of their indexes.
    suspected: Vec<NodeKey>,
    revision: u64,
}

impl Table {
    /// Adds a node, whose name must be new.
    pub(super) fn insert(&mut self, node: Node) -> NodeKey {
        let (id, is_suspected) = (node.id, node.is_suspected());
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.entries.push(Entry { generation: NonZeroU32::MIN, node: None });
                self.pulses.push(Pulse::new(&id));
                self.told.push([0; GOSSIP_ENTRY_BYTES]);
                self.due_ms.push(0);
                (self.entries.len() - 1) as u32
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.node = Some(Box::new(node));
        let key = NodeKey { index, generation: entry.generation };
        self.pulses[index as usize] = Pulse::new(&id);
        self.mark_changed(index as usize);
        let before = self.by_id.insert(id, key);
        debug_assert!(before.is_none(), "two nodes of one name");
        if is_suspected {
            self.set_suspected(key, true);
        }
        key
    }

    /// Removes a node. Nothing may refer to it any more.
    pub(super) fn remove(&mut self, key: NodeKey) {
        self.leave_shard(key);
        if self.get(key).is_none() {
            return;
        }
        self.set_suspected(key, false);
        let entry = &mut self.entries[key.index as usize];
        if let Some(node) = entry.node.take() {
            entry.generation = entry.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
            self.free.push(key.index);
            self.by_id.remove(&node.id);
            self.due_ms[key.index as usize] = u64::MAX;
            self.revision += 1;
        }
    }

    /// Changes the name of a node. The new name must not be in use.
    pub(super) fn rename(&mut self, key: NodeKey, id: NodeId) {
        let before = std::mem::replace(&mut self[key].id, id);
        self.pulses[key.index as usize].rename(&id);
        self.by_id.remove(&before);
        self.by_id.insert(id, key);
    }

    /// The node, unless it was removed.
    pub(super) fn get(&self, key: NodeKey) -> Option<&Node> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation == key.generation { entry.node.as_deref() } else { None }
    }

    /// A node, for a change that makes nothing due earlier, and that neither gossip nor the state of the cluster
    /// depends on: later times, offsets, texts, reports of failures.
    pub(super) fn quiet_mut(&mut self, key: NodeKey) -> &mut Node {
        let entry = &mut self.entries[key.index as usize];
        assert_eq!(entry.generation, key.generation, "a reference to a node that is known");
        self.pulses[key.index as usize].is_quiet = false;
        entry.node.as_deref_mut().expect("a reference to a node that is known")
    }

    /// A node, for a change of its links or of attempts to open them. The state of the cluster does not depend on them.
    pub(super) fn link_mut(&mut self, key: NodeKey) -> &mut Node {
        self.mark_due(key.index as usize);
        self.quiet_mut(key)
    }

    /// The node with this name.
    pub(super) fn find(&self, id: &NodeId) -> Option<NodeKey> {
        self.by_id.get(id).copied()
    }

    /// The node with this name, which may well be the one behind `previous`: a sender that got to know nodes in the
    /// same order tells about them in that order.
    pub(super) fn find_behind(&self, previous: NodeKey, name: &[u8; NodeId::LEN]) -> Option<NodeKey> {
        let index = previous.index + 1;
        if self.pulses.get(index as usize).is_some_and(|pulse| pulse.has_name(name)) {
            let entry = &self.entries[index as usize];
            if entry.node.is_some() {
                return Some(NodeKey { index, generation: entry.generation });
            }
        }
        self.by_id.get(name).copied()
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Changes whenever a node does, except for changes through [`Table::quiet_mut`] and [`Table::link_mut`], and of
    /// PINGs and PONGs.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// Something has changed that is not in the table, but is counted with the nodes.
    pub(super) fn revise(&mut self) {
        self.revision += 1;
    }

    /// All nodes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeKey, &Node)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let key = NodeKey { index: index as u32, generation: entry.generation };
            entry.node.as_deref().map(|node| (key, node))
        })
    }

    /// Removes what a node has reported about others.
    pub(super) fn remove_reports_of(&mut self, reporter: NodeKey) {
        for node in self.entries.iter_mut().filter_map(|entry| entry.node.as_deref_mut()) {
            node.reports.remove(reporter);
        }
    }

    /// The keys of all nodes, for loops that change the table.
    pub(super) fn keys(&self) -> Vec<NodeKey> {
        self.iter().map(|(key, _)| key).collect()
    }

    /// The first node from a random place on.
    pub(super) fn random(&self, start: u64) -> Option<NodeKey> {
        self.places_behind(start).next()
    }

    /// All nodes, from a random place on.
    fn places_behind(&self, start: u64) -> impl Iterator<Item = NodeKey> + use<'_> {
        let start = start.checked_rem(self.entries.len() as u64).unwrap_or(0) as usize;
        let places = (start..self.entries.len()).chain(0..start);
        places.filter(|index| self.entries[*index].node.is_some()).map(|index| self.key_at(index))
    }

    /// Appends the nodes that a tick has to look at: those that are due, or all.
    pub(super) fn collect_due(&self, now_ms: u64, all: bool, due: &mut Vec<NodeKey>) {
        let is_due = |due_ms: &u64| *due_ms <= now_ms || (all && *due_ms != u64::MAX);
        let places = self.due_ms.iter().enumerate().filter(|(_, due_ms)| is_due(due_ms));
        due.extend(places.map(|(index, _)| self.key_at(index)).filter(|key| self.get(*key).is_some()));
    }

    /// Whether a node was changed since the last tick.
    pub(super) fn is_changed(&self, key: NodeKey) -> bool {
        self.due_ms[key.index as usize] == 0
    }

    /// Notes when the next tick has to look at a node that does not change until then.
    pub(super) fn set_due(&mut self, key: NodeKey, due_ms: u64) {
        self.due_ms[key.index as usize] = due_ms.min(u64::MAX - 1);
    }

    /// When a node last sent a PONG, also according to other nodes.
    pub(super) fn pong_received(&self, key: NodeKey) -> Option<u64> {
        self.pulses[key.index as usize].pong_received.get()
    }

    /// Notes a PONG. Whatever is due because of the last one is due later then.
    pub(super) fn set_pong_received(&mut self, key: NodeKey, ms: Option<u64>) {
        self.pulses[key.index as usize].pong_received = ms.into();
    }

    /// When a PING was sent that a node has not answered yet.
    pub(super) fn ping_sent(&self, key: NodeKey) -> Option<u64> {
        self.pulses[key.index as usize].ping_sent.get()
    }

    pub(super) fn set_ping_sent(&mut self, key: NodeKey, ms: Option<u64>) {
        let pulse = &mut self.pulses[key.index as usize];
        pulse.ping_sent = ms.into();
        pulse.is_quiet = false;
        self.due_ms[key.index as usize] = 0;
    }

    /// See [`Pulse::is_quiet`].
    pub(super) fn is_quiet(&self, key: NodeKey) -> bool {
        self.pulses[key.index as usize].is_quiet
    }

    /// Finds out whether a node is quiet, which it is until it changes.
    pub(super) fn decide_quiet(&mut self, key: NodeKey) {
        let is_calm = self
            .get(key)
            .is_some_and(|node| node.is_normal() && !node.is(NodeFlags::MYSELF) && node.reports.is_empty());
        let pulse = &mut self.pulses[key.index as usize];
        pulse.is_quiet = is_calm && pulse.ping_sent == Time::NEVER;
    }

    /// Tells about up to `wanted` nodes that are neighbours in the table, from a random place on, without the hidden
    /// ones. `decide` finds out whether others are told about a node that has changed, and with which entry.
    pub(super) fn tell_neighbours(
        &mut self,
        start: u64,
        wanted: usize,
        hidden: [Option<NodeKey>; 2],
        decide: impl Fn(&Node) -> Option<(Telling, GossipBytes)>,
        tell: &mut impl FnMut(&Pulse, &GossipBytes),
    ) {
        let (count, mut told, mut seen) = (self.entries.len(), 0, 0);
        let mut index = start.checked_rem(count as u64).unwrap_or(0) as usize;
        for _ in 0..count {
            // The two hidden nodes may be among the neighbours.
            if told == wanted || seen == wanted + hidden.len() {
                break;
            }
            if self.entries[index].node.is_some() {
                seen += 1;
                if self.decide(index, &decide) == Telling::InTurn && !hidden.contains(&Some(self.key_at(index))) {
                    tell(&self.pulses[index], &self.told[index]);
                    told += 1;
                }
            }
            index = if index + 1 == count { 0 } else { index + 1 };
        }
    }

    /// Tells about up to `count` suspected nodes. See [`Table::tell_neighbours`].
    pub(super) fn tell_suspected(
        &mut self,
        count: usize,
        decide: impl Fn(&Node) -> Option<(Telling, GossipBytes)>,
        tell: &mut impl FnMut(&Pulse, &GossipBytes),
    ) {
        let mut left = count;
        for place in 0..self.suspected.len() {
            let index = self.suspected[place].index as usize;
            if left > 0 && self.decide(index, &decide) == Telling::Always {
                tell(&self.pulses[index], &self.told[index]);
                left -= 1;
            }
        }
    }

    fn decide(&mut self, index: usize, decide: impl Fn(&Node) -> Option<(Telling, GossipBytes)>) -> Telling {
        let pulse = &mut self.pulses[index];
        if pulse.telling == Telling::Undecided {
            match self.entries[index].node.as_deref().and_then(decide) {
                Some((telling, entry)) => (pulse.telling, self.told[index]) = (telling, entry),
                None => pulse.telling = Telling::Hidden,
            }
        }
        pulse.telling
    }

    /// Marks all gossip entries as out of date, because something that they depend on has changed.
    pub(super) fn decide_telling_anew(&mut self) {
        self.pulses.iter_mut().for_each(|pulse| pulse.telling = Telling::Undecided);
    }

    /// Nodes with the flag PFAIL, in the order of their indexes.
    pub(super) fn suspected(&self) -> &[NodeKey] {
        &self.suspected
    }

    /// Sets or removes the flag PFAIL.
    pub(super) fn set_suspected(&mut self, key: NodeKey, is_suspected: bool) {
        self[key].flags.set(NodeFlags::PFAIL, is_suspected);
        match (self.suspected.binary_search(&key), is_suspected) {
            (Err(place), true) => self.suspected.insert(place, key),
            (Ok(place), false) => {
                self.suspected.remove(place);
            }
            _ => {}
        }
    }

    /// Adds a node to the shard that its field names.
    pub(super) fn join_shard(&mut self, key: NodeKey) {
        let members = self.shards.entry(self[key].shard_id).or_default();
        if !members.contains(&key) {
            members.push(key);
        }
    }

    /// Removes a node from its shard.
    pub(super) fn leave_shard(&mut self, key: NodeKey) {
        let Some(shard_id) = self.get(key).map(|node| node.shard_id) else { return };
        if let Some(members) = self.shards.get_mut(&shard_id) {
            members.retain(|member| *member != key);
            if members.is_empty() {
                self.shards.remove(&shard_id);
            }
        }
    }

    /// Moves a node to another shard.
    pub(super) fn set_shard(&mut self, key: NodeKey, shard_id: NodeId) {
        self.leave_shard(key);
        self[key].shard_id = shard_id;
        self.join_shard(key);
    }

    /// All shards with their nodes.
    pub(super) fn shards(&self) -> &BTreeMap<NodeId, Vec<NodeKey>> {
        &self.shards
    }

    fn key_at(&self, index: usize) -> NodeKey {
        NodeKey { index: index as u32, generation: self.entries[index].generation }
    }

    fn mark_changed(&mut self, index: usize) {
        self.mark_due(index);
        self.revision += 1;
    }

    fn mark_due(&mut self, index: usize) {
        self.due_ms[index] = 0;
        self.pulses[index].is_quiet = false;
        self.pulses[index].telling = Telling::Undecided;
    }
}

// A key that a field of the state machine has is that of a known node: removing a node removes all references to it.
// Keys from outside go through `get`.
impl Index<NodeKey> for Table {
    type Output = Node;

    fn index(&self, key: NodeKey) -> &Node {
        self.get(key).expect("a reference to a node that is known")
    }
}

impl IndexMut<NodeKey> for Table {
    fn index_mut(&mut self, key: NodeKey) -> &mut Node {
        self.mark_changed(key.index as usize);
        self.quiet_mut(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW_MS: u64 = 1_000;

    fn table(count: u8) -> (Table, Vec<NodeKey>) {
        let mut table = Table::default();
        let id = |index: u8| NodeId::from_random([index; 20]);
        let keys = (0..count).map(|index| table.insert(Node::new(id(index), id(100), NodeFlags::PRIMARY, 0))).collect();
        (table, keys)
    }

    fn due(table: &Table) -> Vec<NodeKey> {
        let mut due = Vec::new();
        table.collect_due(NOW_MS, false, &mut due);
        due
    }

    #[test]
    fn changed_nodes_are_due() {
        let (mut table, keys) = table(4);
        assert_eq!(due(&table), keys);
        keys.iter().for_each(|key| table.set_due(*key, NOW_MS + 1));
        assert_eq!(due(&table), []);
        let revision = table.revision();
        table.quiet_mut(keys[0]).data_received = Some(NOW_MS).into();
        table.set_pong_received(keys[0], Some(NOW_MS));
        assert_eq!((due(&table), table.revision()), (vec![], revision));
        table.set_ping_sent(keys[1], Some(NOW_MS));
        table.link_mut(keys[3]).connect_attempt = Some(NOW_MS).into();
        assert_eq!(table.revision(), revision);
        table[keys[2]].flags |= NodeFlags::FAIL;
        assert_eq!(due(&table), keys[1..]);
        assert_ne!(table.revision(), revision);
        table.remove(keys[2]);
        table.set_due(keys[1], NOW_MS);
        table.set_due(keys[3], NOW_MS + 1);
        assert_eq!(due(&table), keys[1..2]);
    }

    #[test]
    fn nodes_are_found_in_any_order() {
        let (mut table, keys) = table(5);
        let names: Vec<NodeId> = keys.iter().map(|key| table[*key].id).collect();
        table.remove(keys[2]);
        for previous in [0, 1, 3, 4] {
            for (index, name) in names.iter().enumerate() {
                let expected = (index != 2).then_some(keys[index]);
                assert_eq!(table.find_behind(keys[previous], name.as_bytes()), expected);
            }
        }
        table.rename(keys[3], names[2]);
        assert_eq!(table.find_behind(keys[1], names[2].as_bytes()), Some(keys[3]));
        assert_eq!(table.find_behind(keys[2], names[3].as_bytes()), None);
    }

    #[test]
    fn a_node_is_quiet_until_it_changes() {
        let (mut table, keys) = table(2);
        let key = keys[1];
        table.decide_quiet(key);
        assert!(table.is_quiet(key));
        table.quiet_mut(key).reports.add(keys[0], NOW_MS);
        assert!(!table.is_quiet(key));
        table.decide_quiet(key);
        assert!(!table.is_quiet(key), "it was reported");
        table.remove_reports_of(keys[0]);
        table.decide_quiet(key);
        assert!(table.is_quiet(key));
        table.set_suspected(key, true);
        table.decide_quiet(key);
        assert!(!table.is_quiet(key) && table.suspected() == [key]);
        table.set_suspected(key, false);
        table.set_ping_sent(key, Some(NOW_MS));
        table.decide_quiet(key);
        assert!(!table.is_quiet(key), "a PONG is due");
    }
}
