//! The nodes that are known, by key and by name, and their shards.
//!
//! A [`NodeKey`] is an index with a generation: it costs no search, and the key of a node that was removed does not
//! find the node that took its place. Nodes are visited in the order of their indexes, the node itself first, so
//! that a run does not depend on hashes. The map by name is used for lookups only.

use super::node::Node;
use crate::node_id::NodeId;
use std::collections::{BTreeMap, HashMap};
use std::ops::{Index, IndexMut};

/// A node, for as long as it is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeKey {
    index: u32,
    generation: u32,
}

#[derive(Clone, Debug)]
struct Entry {
    generation: u32,
    node: Option<Box<Node>>,
}

/// All nodes.
#[derive(Clone, Debug, Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_id: HashMap<NodeId, NodeKey>,
    /// The nodes of each shard, in the order in which they were added. Nodes in handshake are in none.
    shards: BTreeMap<NodeId, Vec<NodeKey>>,
}

impl Table {
    /// Adds a node, whose name must be new.
    pub(super) fn insert(&mut self, node: Node) -> NodeKey {
        let id = node.id;
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                self.entries.push(Entry { generation: 0, node: None });
                (self.entries.len() - 1) as u32
            }
        };
        let entry = &mut self.entries[index as usize];
        entry.node = Some(Box::new(node));
        let key = NodeKey { index, generation: entry.generation };
        let before = self.by_id.insert(id, key);
        debug_assert!(before.is_none(), "two nodes of one name");
        key
    }

    /// Removes a node. Nothing may refer to it any more.
    pub(super) fn remove(&mut self, key: NodeKey) {
        self.leave_shard(key);
        let entry = &mut self.entries[key.index as usize];
        if entry.generation != key.generation {
            return;
        }
        if let Some(node) = entry.node.take() {
            entry.generation = entry.generation.wrapping_add(1);
            self.free.push(key.index);
            self.by_id.remove(&node.id);
        }
    }

    /// Changes the name of a node. The new name must not be in use.
    pub(super) fn rename(&mut self, key: NodeKey, id: NodeId) {
        let before = std::mem::replace(&mut self[key].id, id);
        self.by_id.remove(&before);
        self.by_id.insert(id, key);
    }

    /// The node, unless it was removed.
    pub(super) fn get(&self, key: NodeKey) -> Option<&Node> {
        let entry = self.entries.get(key.index as usize)?;
        if entry.generation == key.generation { entry.node.as_deref() } else { None }
    }

    /// The node with this name.
    pub(super) fn find(&self, id: &NodeId) -> Option<NodeKey> {
        self.by_id.get(id).copied()
    }

    /// Number of nodes.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// All nodes.
    pub(super) fn iter(&self) -> impl Iterator<Item = (NodeKey, &Node)> {
        self.entries.iter().enumerate().filter_map(|(index, entry)| {
            let key = NodeKey { index: index as u32, generation: entry.generation };
            entry.node.as_deref().map(|node| (key, node))
        })
    }

    /// All nodes, to be changed.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = (NodeKey, &mut Node)> {
        self.entries.iter_mut().enumerate().filter_map(|(index, entry)| {
            let key = NodeKey { index: index as u32, generation: entry.generation };
            entry.node.as_deref_mut().map(|node| (key, node))
        })
    }

    /// The keys of all nodes, for loops that change the table.
    pub(super) fn keys(&self) -> Vec<NodeKey> {
        self.iter().map(|(key, _)| key).collect()
    }

    /// Up to `count` nodes that are neighbours in the table, from a random place on.
    pub(super) fn sample(&self, start: u64, count: usize) -> impl Iterator<Item = (NodeKey, &Node)> {
        let start = if self.entries.is_empty() { 0 } else { (start % self.entries.len() as u64) as usize };
        let (before, after) = self.entries.split_at(start);
        let places = (start..).zip(after).chain((0..).zip(before));
        places
            .filter_map(|(index, entry)| {
                let key = NodeKey { index: index as u32, generation: entry.generation };
                entry.node.as_deref().map(|node| (key, node))
            })
            .take(count)
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
        let entry = &mut self.entries[key.index as usize];
        assert_eq!(entry.generation, key.generation, "a reference to a node that is known");
        entry.node.as_deref_mut().expect("a reference to a node that is known")
    }
}
