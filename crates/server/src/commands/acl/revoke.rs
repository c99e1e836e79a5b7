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

/// Closes the connections of a deleted user. `me` is the calling client, whose connection closes after the reply.
pub fn end_connections_of(server: &'static Services, me: &mut Client, user: &[u8]) {
    end(server, me, |info| *info.names.lock().user == *user);
}

/// Closes a user's connections with subscriptions that its old permissions allowed and its new ones do not. Skips the
/// scan if the new permissions include all of the old ones.
pub fn end_forbidden_subscriptions(server: &'static Services, me: &mut Client, before: &User, after: &User) {
    let channels = |user: &User| -> Vec<Box<[u8]>> {
        user.all_selectors().flat_map(|selector| selector.channels.iter().cloned()).collect()
    };
    let hears_all = |user: &User| user.all_selectors().any(|selector| selector.all_channels);
    let allowed = channels(after);
    let keeps_all = hears_all(after) || !hears_all(before) && channels(before).iter().all(|old| allowed.contains(old));
    if keeps_all {
        return;
    }
    let is_forbidden =
        |kind, name: &[u8]| !matches_channel(allowed.iter().map(|known| &**known), name, kind == Kind::Pattern);
    let connections: Vec<HashSet<usize>> =
        (0..server.workers()).map(|worker| server.pubsub.subscribers(worker).connections_to(is_forbidden)).collect();
    end(server, me, |info| {
        connections.get(info.worker).is_some_and(|tokens| tokens.contains(&info.token.load(Ordering::Relaxed)))
            && *info.names.lock().user == *after.name
    });
}

fn end(server: &'static Services, me: &mut Client, is_meant: impl Fn(&ClientInfo) -> bool) {
    for info in server.clients.all() {
        if is_meant(&info) {
            end_one(server, me, info);
        }
    }
}

fn end_one(server: &'static Services, me: &mut Client, info: Arc<ClientInfo>) {
    if info.id == me.info.id {
        me.fate = Fate::CloseAfterReply;
    } else if !info.doomed.swap(true, Ordering::SeqCst) {
        server.send(info.worker, Message::Close(info));
    }
}
