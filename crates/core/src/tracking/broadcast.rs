//! Broadcast tracking (CLIENT TRACKING BCAST): clients that receive invalidations of all keys with certain prefixes.
//!
//! While such clients exist, a worker collects the keys that its commands change. Before it writes its replies, it
//! sends, for each prefix, the matching keys to the clients of that prefix in one invalidation.

use super::invalidate;
use super::invalidation::InvalidatedKeys;
use crate::Core;
use crate::clients::{ClientFlags, ClientInfo};
use crate::executor::Executor;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// The clients of a prefix, by client id.
pub type Members = HashMap<u64, Arc<ClientInfo>>;

/// Author of changes that other nodes report. A NOLOOP client whose requests are forwarded hears of them in another
/// way, without its own.
pub const OTHER_NODE: u64 = u64::MAX;

/// The keys that a worker's commands have changed.
#[derive(Default)]
pub struct Changed(BTreeMap<Box<[u8]>, u64>);

/// Changed keys, each with the last client that changed it.
type Keys<'k> = Vec<(&'k [u8], u64)>;

impl Changed {
    /// Whether no key has changed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a changed key. `author` is the id of the client that changed it if that client uses NOLOOP, [`OTHER_NODE`],
    /// or otherwise 0.
    pub fn add(&mut self, key: Box<[u8]>, author: u64) {
        self.0.insert(key, author);
    }

    /// Sends the invalidations from a worker.
    pub fn send(&mut self, core: &Core, from: Executor) {
        let changed = std::mem::take(&mut self.0);
        let broadcasts = core.tracking.broadcasts.read();
        let mut by_prefix = BTreeMap::<&[u8], (&Members, Keys<'_>)>::new();
        for (key, author) in &changed {
            for (prefix, members) in broadcasts.of(key) {
                by_prefix.entry(prefix).or_insert((members, Vec::new())).1.push((key, *author));
            }
        }
        for (members, keys) in by_prefix.into_values() {
            invalidate_members(core, from, members, &keys);
        }
    }
}

/// Sends an invalidation to the clients of one prefix. Each NOLOOP client that some of the keys do not concern gets one
/// without them.
fn invalidate_members(core: &Core, from: Executor, members: &Members, keys: &Keys<'_>) {
    let authors: HashSet<u64> = keys.iter().map(|(_, author)| *author).collect();
    let all = InvalidatedKeys::keys(keys.iter().map(|(key, _)| *key));
    let is_unconcerned = |client: &Arc<ClientInfo>| authors.iter().any(|author| !concerns(client, *author));
    let (fewer, others): (Vec<_>, Vec<_>) = members.values().cloned().partition(is_unconcerned);
    invalidate(core, from, &all, others.into_iter());
    for client in fewer {
        let rest: Vec<_> = keys.iter().filter(|(_, author)| concerns(&client, *author)).map(|(key, _)| *key).collect();
        if !rest.is_empty() {
            invalidate(core, from, &InvalidatedKeys::keys(rest.into_iter()), std::iter::once(client));
        }
    }
}

/// Whether a client is to hear of an author's changes.
fn concerns(client: &ClientInfo, author: u64) -> bool {
    let flags = client.flags();
    let is_own = author == client.id || (author == OTHER_NODE && flags.contains(ClientFlags::FORWARD));
    !(is_own && flags.contains(ClientFlags::NOLOOP))
}
