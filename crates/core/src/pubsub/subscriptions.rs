//! The subscriptions of one client.

use super::{Kind, Name};
use std::collections::HashMap;

/// Bytes of a subscription in the worker's [`Subscribers`](super::subscribers::Subscribers).
const INDEX_ENTRY_BYTES: usize = 2 * size_of::<(Name, u64)>();

/// See the module's documentation.
#[derive(Default)]
pub struct Subscriptions {
    /// The stamps of the subscriptions by name.
    stamps: [HashMap<Name, u64>; Kind::COUNT],
}

impl Subscriptions {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.stamps.iter().all(HashMap::is_empty)
    }

    /// Bytes of the subscriptions, here and in the worker's index. Names are shared and not counted.
    pub fn memory(&self) -> usize {
        let entry = size_of::<(Name, u64)>() + 1;
        self.stamps.iter().map(|stamps| stamps.capacity() * entry + stamps.len() * INDEX_ENTRY_BYTES).sum()
    }

    /// Number of subscriptions of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.stamps[kind as usize].len()
    }

    /// The count in the reply when a subscription of this kind begins or ends; channels and patterns are counted
    /// together.
    pub fn total_with(&self, kind: Kind) -> usize {
        match kind {
            Kind::Shard => self.count(Kind::Shard),
            Kind::Channel | Kind::Pattern => self.count(Kind::Channel) + self.count(Kind::Pattern),
        }
    }

    /// Whether the client has this subscription.
    pub fn contains(&self, kind: Kind, name: &[u8]) -> bool {
        self.stamps[kind as usize].contains_key(name)
    }

    /// The names of a kind, in the order of subscription.
    pub fn names(&self, kind: Kind) -> Vec<Name> {
        let mut names: Vec<_> = self.stamps[kind as usize].iter().collect();
        names.sort_unstable_by_key(|(_, stamp)| **stamp);
        names.into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// All subscriptions with their stamps, oldest first.
    pub(super) fn all(&self) -> Vec<(Kind, Name, u64)> {
        let kinds = [Kind::Channel, Kind::Pattern, Kind::Shard].into_iter();
        let mut all: Vec<_> = kinds
            .flat_map(|kind| self.stamps[kind as usize].iter().map(move |(name, stamp)| (kind, name.clone(), *stamp)))
            .collect();
        all.sort_unstable_by_key(|(_, _, stamp)| *stamp);
        all
    }

    pub(super) fn add(&mut self, kind: Kind, name: Name, stamp: u64) {
        self.stamps[kind as usize].insert(name, stamp);
    }

    /// Removes a subscription; returns whether it existed.
    pub(super) fn remove(&mut self, kind: Kind, name: &[u8]) -> bool {
        self.stamps[kind as usize].remove(name).is_some()
    }
}
