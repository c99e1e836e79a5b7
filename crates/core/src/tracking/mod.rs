//! Client-side caching: clients that cache the keys they read receive invalidations when the keys change.
//!
//! - [`kvick_store::tracking`]: which clients have read which keys, and which keys commands changed.
//! - [`prefixes`]: an index of names by prefix.
//! - [`broadcast`]: clients that receive invalidations of all keys with a prefix, whether they have read them or not.
//! - [`invalidation`]: the messages, and their form in the protocol.
//! - `commands::client::tracking`: CLIENT TRACKING and related commands.
//! - `worker::tracking`: records the keys that clients read, and sends invalidations.
//!
//! The options of a client are in the flags of its [`ClientInfo`], where any thread that changes a key can read them.
//! The store records the keys that a client reads, under the locks of the command that reads them. The changed keys are
//! taken from the effects of a command after its execution, and invalidations go through the [inboxes](crate::inbox) of
//! the workers that own the receivers. A worker checks its inbox after each request, so an invalidation follows the
//! reply to the client's own read or write.

pub mod broadcast;
pub mod invalidation;
pub mod prefixes;

pub use invalidation::Invalidation;

use crate::Core;
use crate::clients::{ClientFlags, ClientInfo};
use crate::executor::Executor;
use crate::inbox::Delivery;
use broadcast::Members;
use invalidation::{InvalidatedKeys, Target};
use parking_lot::{Mutex, RwLock};
use prefixes::Prefixes;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The state of client-side caching that all workers share.
#[derive(Default)]
pub struct Tracking {
    /// How many clients have it on.
    clients: AtomicUsize,
    /// The clients of each prefix (broadcast mode).
    broadcasts: RwLock<Prefixes<Members>>,
    /// Held by the worker that drops tracked keys because there are too many.
    pub limit_lock: Mutex<()>,
}

impl Tracking {
    /// How many clients have it on.
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// Whether a client in broadcast mode has a prefix of a key.
    pub fn covers(&self, client: u64, key: &[u8]) -> bool {
        self.broadcasts.read().of(key).any(|(_, members)| members.contains_key(&client))
    }

    /// Number of prefixes with clients in broadcast mode.
    pub fn prefixes(&self) -> usize {
        self.broadcasts.read().len()
    }
}

/// The tracking state of a client that only its owner uses.
#[derive(Default)]
pub struct ClientTracking {
    /// Its prefixes in broadcast mode.
    pub prefixes: BTreeSet<Arc<[u8]>>,
}

/// The options of CLIENT TRACKING.
pub struct Mode {
    /// Some of [`ClientFlags::TRACKING_MODE`].
    pub flags: ClientFlags,
    /// The client that receives the invalidations, or 0 for the client itself.
    pub redirect: u64,
}

impl Tracking {
    /// Turns tracking on for a client, or changes its options. The prefixes are added to its current ones.
    pub fn start(
        &self,
        core: &Core,
        client: &Arc<ClientInfo>,
        state: &mut Option<Box<ClientTracking>>,
        mode: &Mode,
        prefixes: &[&[u8]],
    ) {
        if state.is_none() {
            self.clients.fetch_add(1, Ordering::Relaxed);
        }
        let state = state.get_or_insert_default();
        client.set_flags(ClientFlags::TRACKING_MODE | ClientFlags::BROKEN_REDIRECT, false);
        client.set_flags(ClientFlags::TRACKING | mode.flags, true);
        client.redirect.store(mode.redirect, Ordering::Relaxed);
        if mode.flags.contains(ClientFlags::BROADCAST) {
            let every: &[&[u8]] = &[b""];
            let mut broadcasts = self.broadcasts.write();
            for prefix in if prefixes.is_empty() { every } else { prefixes } {
                let (prefix, members) = broadcasts.get_or_add(prefix);
                members.insert(client.id, client.clone());
                state.prefixes.insert(prefix);
            }
            core.keyspace.tracking.set_broadcasts(true);
            client.prefixes.store(state.prefixes.len(), Ordering::Relaxed);
        }
    }

    /// Turns tracking off. The tracked keys of the client are dropped when they change.
    pub fn stop(&self, core: &Core, client: &ClientInfo, state: &mut Option<Box<ClientTracking>>) {
        let Some(state) = state.take() else { return };
        self.clients.fetch_sub(1, Ordering::Relaxed);
        client.set_flags(
            ClientFlags::TRACKING | ClientFlags::TRACKING_MODE | ClientFlags::CACHING | ClientFlags::BROKEN_REDIRECT,
            false,
        );
        if state.prefixes.is_empty() {
            return;
        }
        let mut broadcasts = self.broadcasts.write();
        for prefix in &state.prefixes {
            broadcasts.remove_if(prefix, |members| {
                members.remove(&client.id);
                members.is_empty()
            });
        }
        core.keyspace.tracking.set_broadcasts(!broadcasts.is_empty());
        client.prefixes.store(0, Ordering::Relaxed);
    }
}

impl ClientInfo {
    /// Whether the keys that it reads are to be tracked.
    pub fn tracks_reads(&self) -> bool {
        let flags = self.flags();
        let caching = flags.contains(ClientFlags::CACHING);
        let may_cache = match () {
            () if flags.contains(ClientFlags::OPTIN) => caching,
            () if flags.contains(ClientFlags::OPTOUT) => !caching,
            () => true,
        };
        flags.contains(ClientFlags::TRACKING) && !flags.contains(ClientFlags::BROADCAST) && may_cache
    }

    /// The client to which its invalidations are redirected: 0 if none, -1 if tracking is off.
    pub fn redirection(&self) -> i64 {
        if self.flags().contains(ClientFlags::TRACKING) { self.redirect.load(Ordering::Relaxed) as i64 } else { -1 }
    }

    /// The author to pass to [`broadcast::Changed::add`]: its id if it uses NOLOOP, otherwise 0.
    pub fn noloop_id(&self) -> u64 {
        if self.flags().contains(ClientFlags::NOLOOP) { self.id } else { 0 }
    }
}

/// Sends an invalidation to those of the clients that have tracking on, or to the clients that they redirect to,
/// through the inboxes of their workers.
pub fn invalidate(core: &Core, from: Executor, keys: &InvalidatedKeys, clients: impl Iterator<Item = Arc<ClientInfo>>) {
    let mut by_worker = SmallVec::<[(usize, Vec<Target>); 8]>::new();
    for client in clients.filter(|client| client.flags().contains(ClientFlags::TRACKING)) {
        let (receiver, origin) = match client.redirect.load(Ordering::Relaxed) {
            0 => (client, None),
            id => match core.clients.get(id).filter(|other| is_open(other)) {
                Some(receiver) => (receiver, Some(client)),
                None => {
                    core.deliver(from, client.worker(), Delivery::Disconnected(client));
                    continue;
                }
            },
        };
        let target = Target { token: receiver.token.load(Ordering::Relaxed), client: receiver.id, origin };
        match by_worker.iter_mut().find(|(worker, _)| *worker == receiver.worker()) {
            Some((_, targets)) => targets.push(target),
            None => by_worker.push((receiver.worker(), vec![target])),
        }
    }
    for (worker, targets) in by_worker {
        core.deliver(from, worker, Delivery::Invalidated(Invalidation::new(keys.clone(), targets)));
    }
}

/// Sends an invalidation of all keys to all clients with tracking on.
pub fn invalidate_all(core: &Core, from: Executor) {
    if core.tracking.clients() > 0 {
        invalidate(core, from, &InvalidatedKeys::All, core.clients.all().into_iter());
    }
}

/// Whether the client is connected and not about to be closed.
fn is_open(client: &ClientInfo) -> bool {
    !client.is_doomed() && !client.flags().intersects(ClientFlags::CLOSE_AFTER_REPLY | ClientFlags::CLOSE_ASAP)
}
