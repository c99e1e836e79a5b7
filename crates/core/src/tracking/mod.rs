//! Client-side caching: clients that keep what they read are told when it changes.
//!
//! - [`kvick_store::tracking`]: which clients have read which keys, and what commands changed.
//! - [`prefixes`]: names by prefix.
//! - [`broadcast`]: clients that want to know of all changes of keys with some prefix, whether they read them or not.
//! - [`invalidation`]: what a client is told, and its form on the wire.
//! - `commands::client::tracking`: CLIENT TRACKING and its kin.
//! - `worker::tracking`: remembers what clients read, and tells them.
//!
//! What a client asked for stands in the flags of its [`ClientInfo`], where whoever changes a key looks it up. The keys that
//! a client reads are remembered by the engine, under the locks of the command that read them; those that a command
//! changes are found in its effects after the command, and invalidations go through the [inboxes](crate::inbox) of the
//! workers that have the clients. A worker looks into its inbox after each request, so a client is told behind the reply
//! to what it read, and to what it changed itself.

pub mod broadcast;
pub mod invalidation;
pub mod prefixes;

pub use invalidation::Invalidation;

use crate::Core;
use crate::clients::{ClientFlags, ClientInfo};
use crate::executor::Executor;
use crate::inbox::Delivery;
use broadcast::Members;
use invalidation::{Target, What};
use parking_lot::{Mutex, RwLock};
use prefixes::Prefixes;
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all workers know of it.
#[derive(Default)]
pub struct Tracking {
    /// How many clients have it on.
    clients: AtomicUsize,
    /// Who is told of which prefixes.
    broadcasts: RwLock<Prefixes<Members>>,
    /// Held by the worker that forgets keys, as these are too many.
    pub limiting: Mutex<()>,
}

impl Tracking {
    /// How many clients have it on.
    pub fn clients(&self) -> usize {
        self.clients.load(Ordering::Relaxed)
    }

    /// How many prefixes there are that somebody is told of.
    pub fn prefixes(&self) -> usize {
        self.broadcasts.read().len()
    }
}

/// What a client has of it that nobody else needs.
#[derive(Default)]
pub struct OwnTracking {
    /// The prefixes that it is told of.
    pub prefixes: BTreeSet<Arc<[u8]>>,
}

/// What a client asks for with CLIENT TRACKING.
pub struct Mode {
    /// Some of [`ClientFlags::TRACKING_MODE`].
    pub flags: ClientFlags,
    /// The client that invalidations are sent to in its stead, or 0.
    pub redirect: u64,
}

impl Tracking {
    /// Begins to tell a client what changes, or changes how. Prefixes are added to those that it has.
    pub fn start(
        &self,
        core: &Core,
        client: &Arc<ClientInfo>,
        own: &mut Option<Box<OwnTracking>>,
        mode: &Mode,
        prefixes: &[&[u8]],
    ) {
        if own.is_none() {
            self.clients.fetch_add(1, Ordering::Relaxed);
        }
        let own = own.get_or_insert_default();
        client.set_flags(ClientFlags::TRACKING_MODE | ClientFlags::BROKEN_REDIRECT, false);
        client.set_flags(ClientFlags::TRACKING | mode.flags, true);
        client.redirect.store(mode.redirect, Ordering::Relaxed);
        if mode.flags.contains(ClientFlags::BROADCAST) {
            let every: &[&[u8]] = &[b""];
            let mut broadcasts = self.broadcasts.write();
            for prefix in if prefixes.is_empty() { every } else { prefixes } {
                let (prefix, members) = broadcasts.get_or_add(prefix);
                members.insert(client.id, client.clone());
                own.prefixes.insert(prefix);
            }
            core.keyspace.tracking.set_broadcasts(true);
            client.prefixes.store(own.prefixes.len(), Ordering::Relaxed);
        }
    }

    /// Ends that. The keys that the client read are forgotten when they change.
    pub fn stop(&self, core: &Core, client: &ClientInfo, own: &mut Option<Box<OwnTracking>>) {
        let Some(own) = own.take() else { return };
        self.clients.fetch_sub(1, Ordering::Relaxed);
        client.set_flags(
            ClientFlags::TRACKING | ClientFlags::TRACKING_MODE | ClientFlags::CACHING | ClientFlags::BROKEN_REDIRECT,
            false,
        );
        if own.prefixes.is_empty() {
            return;
        }
        let mut broadcasts = self.broadcasts.write();
        for prefix in &own.prefixes {
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
    /// Whether the keys that it reads are to be remembered.
    pub fn remembers_reads(&self) -> bool {
        let flags = self.flags();
        let caching = flags.contains(ClientFlags::CACHING);
        let wants = match () {
            () if flags.contains(ClientFlags::OPTIN) => caching,
            () if flags.contains(ClientFlags::OPTOUT) => !caching,
            () => true,
        };
        flags.contains(ClientFlags::TRACKING) && !flags.contains(ClientFlags::BROADCAST) && wants
    }

    /// The client that hears of changes in its stead, 0 if none does, and -1 while nobody does.
    pub fn redirection(&self) -> i64 {
        if self.flags().contains(ClientFlags::TRACKING) { self.redirect.load(Ordering::Relaxed) as i64 } else { -1 }
    }

    /// Who is not to be told of what this client changes: itself, if it asked for that, and otherwise 0.
    pub fn unheeded_author(&self) -> u64 {
        if self.flags().contains(ClientFlags::NOLOOP) { self.id } else { 0 }
    }
}

/// Tells those among some clients that track of what is stale, or whom they redirect to, through the inboxes of their
/// workers.
pub fn invalidate(core: &Core, from: Executor, what: &What, clients: impl Iterator<Item = Arc<ClientInfo>>) {
    let mut by_worker = SmallVec::<[(usize, Vec<Target>); 8]>::new();
    for client in clients.filter(|client| client.flags().contains(ClientFlags::TRACKING)) {
        let (receiver, origin) = match client.redirect.load(Ordering::Relaxed) {
            0 => (client, None),
            id => match core.clients.get(id).filter(|other| is_there(other)) {
                Some(receiver) => (receiver, Some(client)),
                None => {
                    core.deliver(from, client.worker, Delivery::Disconnected(client));
                    continue;
                }
            },
        };
        let target = Target { token: receiver.token.load(Ordering::Relaxed), client: receiver.id, origin };
        match by_worker.iter_mut().find(|(worker, _)| *worker == receiver.worker) {
            Some((_, targets)) => targets.push(target),
            None => by_worker.push((receiver.worker, vec![target])),
        }
    }
    for (worker, targets) in by_worker {
        core.deliver(from, worker, Delivery::Invalidated(Invalidation::new(what.clone(), targets)));
    }
}

/// Tells all clients that track that all keys are stale.
pub fn invalidate_all(core: &Core, from: Executor) {
    if core.tracking.clients() > 0 {
        invalidate(core, from, &What::Everything, core.clients.all().into_iter());
    }
}

/// Whether a client is not about to go.
fn is_there(client: &ClientInfo) -> bool {
    !client.is_doomed() && !client.flags().intersects(ClientFlags::CLOSE_AFTER_REPLY | ClientFlags::CLOSE_ASAP)
}
