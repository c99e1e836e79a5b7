//! Clients that are told of all changes of keys with some prefix.
//!
//! A worker gathers the keys that its commands change while there are such clients. Before it writes its replies, it tells
//! the clients of each prefix of the keys that begin with it, all at once.

use super::invalidate;
use super::invalidation::What;
use crate::Core;
use crate::clients::{ClientFlags, ClientInfo};
use crate::executor::Executor;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Who is told of a prefix, by the numbers of the clients.
pub type Members = HashMap<u64, Arc<ClientInfo>>;

/// The keys that a worker's commands have changed.
#[derive(Default)]
pub struct Changed(BTreeMap<Box<[u8]>, u64>);

/// Changed keys, and who changed each last.
type Keys<'k> = Vec<(&'k [u8], u64)>;

impl Changed {
    /// True when there is nothing to tell.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A key has changed. `author` is who changed it, if that is a client that does not want to be told, and otherwise 0.
    pub fn add(&mut self, key: Box<[u8]>, author: u64) {
        self.0.insert(key, author);
    }

    /// Tells the clients, from a worker.
    pub fn tell(&mut self, core: &Core, from: Executor) {
        let changed = std::mem::take(&mut self.0);
        let broadcasts = core.tracking.broadcasts.read();
        let mut by_prefix = BTreeMap::<&[u8], (&Members, Keys<'_>)>::new();
        for (key, author) in &changed {
            for (prefix, members) in broadcasts.of(key) {
                by_prefix.entry(prefix).or_insert((members, Vec::new())).1.push((key, *author));
            }
        }
        for (members, keys) in by_prefix.into_values() {
            tell_members(core, from, members, &keys);
        }
    }
}

/// Tells the clients of one prefix; those that are spared what they changed themselves one by one.
fn tell_members(core: &Core, from: Executor, members: &Members, keys: &Keys<'_>) {
    let authors: HashSet<u64> = keys.iter().map(|(_, author)| *author).collect();
    let is_spared = |client: &ClientInfo| client.flags().contains(ClientFlags::NOLOOP) && authors.contains(&client.id);
    let all = What::keys(keys.iter().map(|(key, _)| *key));
    let (spared, others): (Vec<_>, Vec<_>) = members.values().cloned().partition(|client| is_spared(client));
    invalidate(core, from, &all, others.into_iter());
    for client in spared {
        let rest: Vec<_> = keys.iter().filter(|(_, author)| *author != client.id).map(|(key, _)| *key).collect();
        if !rest.is_empty() {
            invalidate(core, from, &What::keys(rest.into_iter()), std::iter::once(client));
        }
    }
}
