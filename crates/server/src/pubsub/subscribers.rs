//! The connections of one worker that are subscribed to something.

use super::{Kind, Name};
use std::collections::{BTreeMap, HashMap};

/// The tokens of connections by the stamps of their subscriptions.
type Audience = BTreeMap<u64, usize>;

/// See the module's documentation.
#[derive(Default)]
pub struct Subscribers([HashMap<Name, Audience>; Kind::COUNT]);

impl Subscribers {
    /// Those with stamps from `from` on and below `horizon`, in the order in which they subscribed, with their stamps.
    pub fn of(&self, (kind, name): (Kind, &[u8]), from: u64, horizon: u64) -> impl Iterator<Item = (u64, usize)> {
        let audience = self.0[kind as usize].get(name);
        // An audience of a later part may begin behind the horizon.
        let range = from.min(horizon)..horizon;
        audience
            .into_iter()
            .flat_map(move |audience| audience.range(range.clone()))
            .map(|(stamp, token)| (*stamp, *token))
    }

    pub(super) fn add(&mut self, kind: Kind, name: Name, stamp: u64, token: usize) {
        self.0[kind as usize].entry(name).or_default().insert(stamp, token);
    }

    pub(super) fn remove(&mut self, kind: Kind, name: &[u8], stamp: u64) {
        let audiences = &mut self.0[kind as usize];
        if let Some(audience) = audiences.get_mut(name) {
            audience.remove(&stamp);
            if audience.is_empty() {
                audiences.remove(name);
            }
        }
    }
}
