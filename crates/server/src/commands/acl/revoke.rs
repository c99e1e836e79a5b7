//! Ends the connections of those who may no longer have what they have: clients whose user is gone, and subscribers of
//! channels that their user may no longer listen to.
//!
//! Called while the world is held, so that nobody logs in or subscribes meanwhile: when whoever took the rights away is
//! replied to, nothing is executed any more of the clients concerned.

use kvick_acl::user::{User, matches_channel};
use kvick_core::clients::ClientInfo;
use kvick_core::message::Message;
use kvick_core::pubsub::Kind;
use kvick_engine::services::Services;
use kvick_engine::session::{Client, Fate};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Ends the connections of a user that is gone. `me` is the client that asked, whose connection ends after the reply.
pub fn end_connections_of(server: &'static Services, me: &mut Client, user: &[u8]) {
    end(server, me, |info| *info.names.lock().user == *user);
}

/// Ends those connections of a user that are subscribed to what it could listen to before and cannot any more. Nobody
/// is looked at if everything that was allowed still is.
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
