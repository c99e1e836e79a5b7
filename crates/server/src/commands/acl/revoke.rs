//! Closes connections after permissions were revoked: clients of deleted users, and subscribers of channels that their
//! user may no longer access.
//!
//! The caller holds the global lock, so no client can authenticate or subscribe meanwhile. When the revoking client
//! receives its reply, no command of the affected clients runs any more.

use kvick_acl::user::{User, matches_channel};
use kvick_core::clients::ClientInfo;
use kvick_core::message::Message;
use kvick_core::pubsub::Kind;
use kvick_engine::services::Services;
use kvick_engine::session::{Client, Fate};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Closes the connections of a deleted user. `own_client` is the calling client, whose connection closes after the
/// reply.
pub fn close_connections_of(server: &'static Services, own_client: &mut Client, user: &[u8]) {
    close_clients(server, own_client, |info| *info.names.lock().user == *user);
}

/// Closes a user's connections with subscriptions that its old permissions allowed and its new ones do not. Skips the
/// scan if the new permissions include all of the old ones.
pub fn close_forbidden_subscribers(server: &'static Services, own_client: &mut Client, before: &User, after: &User) {
    let channels = |user: &User| -> Vec<Box<[u8]>> {
        user.all_selectors().flat_map(|selector| selector.channels.iter().cloned()).collect()
    };
    let allows_all_channels = |user: &User| user.all_selectors().any(|selector| selector.all_channels);
    let allowed = channels(after);
    let keeps_all_channels = allows_all_channels(after)
        || !allows_all_channels(before) && channels(before).iter().all(|old| allowed.contains(old));
    if keeps_all_channels {
        return;
    }
    let is_forbidden =
        |kind, name: &[u8]| !matches_channel(allowed.iter().map(|known| &**known), name, kind == Kind::Pattern);
    let connections: Vec<HashSet<usize>> = (0..server.workers_max())
        .map(|worker| server.pubsub.subscribers(worker).connections_to(is_forbidden))
        .collect();
    close_clients(server, own_client, |info| {
        connections.get(info.worker()).is_some_and(|tokens| tokens.contains(&info.token.load(Ordering::Relaxed)))
            && *info.names.lock().user == *after.name
    });
}

fn close_clients(server: &'static Services, own_client: &mut Client, is_affected: impl Fn(&ClientInfo) -> bool) {
    for info in server.clients.all() {
        if is_affected(&info) {
            close_client(server, own_client, info);
        }
    }
}

fn close_client(server: &'static Services, own_client: &mut Client, info: Arc<ClientInfo>) {
    if info.id == own_client.info.id {
        own_client.fate = Fate::CloseAfterReply;
    } else if !info.doomed.swap(true, Ordering::SeqCst) {
        server.send(info.worker(), Message::Close(info));
    }
}
