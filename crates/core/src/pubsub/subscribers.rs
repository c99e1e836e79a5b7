//! The connections of one worker that have subscriptions, and its monitors.

use super::{Audience, Kind, Name};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// Stamps of subscriptions by connection token.
type Stamps = BTreeMap<usize, u64>;

/// See the module's documentation.
#[derive(Default)]
pub struct Subscribers {
    named: [HashMap<Name, Stamps>; Kind::COUNT],
    monitors: Stamps,
}

impl Subscribers {
    /// The connections with tokens in a range, with the stamps of their subscriptions.
    pub fn of(&self, audience: Audience<'_>, tokens: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        let stamps = self.stamps(audience).into_iter();
        stamps.flat_map(move |stamps| stamps.range(tokens.clone())).map(|(token, stamp)| (*token, *stamp))
    }

    /// The tokens of the connections that are subscribed to any name for which `matches` returns true.
    pub fn connections_to(&self, matches: impl Fn(Kind, &[u8]) -> bool) -> HashSet<usize> {
        let kinds = [Kind::Channel, Kind::Pattern, Kind::Shard].into_iter();
        let names =
            kinds.flat_map(|kind| self.named[kind as usize].iter().map(move |(name, stamps)| (kind, name, stamps)));
        names.filter(|(kind, name, _)| matches(*kind, name)).flat_map(|(_, _, stamps)| stamps.keys().copied()).collect()
    }

    /// The names of a kind that have subscribers.
    pub fn names(&self, kind: Kind) -> impl Iterator<Item = &[u8]> {
        self.named[kind as usize].keys().map(|name| &**name)
    }

    /// Number of subscribers in a group.
    pub fn count(&self, audience: Audience<'_>) -> usize {
        self.stamps(audience).map_or(0, Stamps::len)
    }

    fn stamps(&self, audience: Audience<'_>) -> Option<&Stamps> {
        match audience {
            Audience::Subscribers(kind, name) => self.named[kind as usize].get(name),
            Audience::Monitors => Some(&self.monitors),
        }
    }

    pub(super) fn add_monitor(&mut self, token: usize, stamp: u64) {
        self.monitors.insert(token, stamp);
    }

    pub(super) fn remove_monitor(&mut self, token: usize) {
        self.monitors.remove(&token);
    }

    pub(super) fn add(&mut self, kind: Kind, name: Name, token: usize, stamp: u64) {
        self.named[kind as usize].entry(name).or_default().insert(token, stamp);
    }

    pub(super) fn remove(&mut self, kind: Kind, name: &[u8], token: usize) {
        let audiences = &mut self.named[kind as usize];
        if let Some(audience) = audiences.get_mut(name) {
            audience.remove(&token);
            if audience.is_empty() {
                audiences.remove(name);
            }
        }
    }
}
