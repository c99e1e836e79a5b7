//! The connections of one worker that are subscribed to something.

use super::{Kind, Name};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

/// The stamps of subscriptions by the tokens of their connections.
type Audience = BTreeMap<usize, u64>;

/// See the module's documentation.
#[derive(Default)]
pub struct Subscribers([HashMap<Name, Audience>; Kind::COUNT]);

impl Subscribers {
    /// The connections with tokens in a range, with the stamps of their subscriptions.
    pub fn of(&self, (kind, name): (Kind, &[u8]), tokens: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
        let audience = self.0[kind as usize].get(name);
        audience
            .into_iter()
            .flat_map(move |audience| audience.range(tokens.clone()))
            .map(|(token, stamp)| (*token, *stamp))
    }

    /// The tokens of the connections that are subscribed to some name that is meant.
    pub fn connections_to(&self, is_meant: impl Fn(Kind, &[u8]) -> bool) -> HashSet<usize> {
        let kinds = [Kind::Channel, Kind::Pattern, Kind::Shard].into_iter();
        let names =
            kinds.flat_map(|kind| self.0[kind as usize].iter().map(move |(name, audience)| (kind, name, audience)));
        names
            .filter(|(kind, name, _)| is_meant(*kind, name))
            .flat_map(|(_, _, audience)| audience.keys().copied())
            .collect()
    }

    /// How many there are.
    pub fn count(&self, (kind, name): (Kind, &[u8])) -> usize {
        self.0[kind as usize].get(name).map_or(0, Audience::len)
    }

    pub(super) fn add(&mut self, kind: Kind, name: Name, token: usize, stamp: u64) {
        self.0[kind as usize].entry(name).or_default().insert(token, stamp);
    }

    pub(super) fn remove(&mut self, kind: Kind, name: &[u8], token: usize) {
        let audiences = &mut self.0[kind as usize];
        if let Some(audience) = audiences.get_mut(name) {
            audience.remove(&token);
            if audience.is_empty() {
                audiences.remove(name);
            }
        }
    }
}
