//! Who a client is, and what follows for its requests.
//!
//! Nearly all clients may do everything. For them a request costs one comparison, in [`Client::is_free`]: of what they
//! remember with the gate's word, which is another one when commands may not run or when somebody's rights have changed.

use super::check::{Denied, Request};
use super::log::{Cause, Context, Event};
use super::user::User;
use crate::commands::client::list;
use crate::config::tables::security::ACLLOG_MAX_LEN;
use crate::server::Server;
use crate::session::Client;
use kvick_commands::table::CommandInfo;
use kvick_core::admission::Admission;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_resp::Args;
use std::sync::Arc;

/// A word that the gate never has: all reasons hold.
const NEVER: u64 = u64::MAX;

/// The name of who is no user.
const SUPERUSER: &[u8] = b"(superuser)";

/// Who a client is, and as of when that is known.
#[derive(Clone)]
pub struct Identity {
    /// The user.
    pub user: Arc<User>,
    /// Whether it has logged in, or was let in without that.
    pub authenticated: bool,
    /// Whether the connection was ever authenticated, as whomever.
    is_known: bool,
    /// Whether it is no user that could be looked up, and may do everything.
    is_superuser: bool,
    /// The gate's rights epoch when the user was looked up.
    epoch: u32,
    /// The gate's word under which it may do everything: as it was then, with no reason to refuse commands; [`NEVER`] if
    /// it may not.
    free_at: u64,
}

impl Identity {
    /// A connection that is new: the default user, who may have to log in.
    pub fn newcomer(server: &Server) -> Self {
        let epoch = server.admission.rights();
        let user = server.acl.default_user();
        let authenticated = user.nopass && user.enabled;
        Self::new(user, authenticated, epoch, authenticated)
    }

    /// Somebody who may do everything, whatever users there are and what becomes of them.
    pub fn superuser() -> Self {
        let user = User { name: SUPERUSER.into(), ..User::unlimited_default() };
        Identity { is_superuser: true, ..Self::new(Arc::new(user), true, 0, true) }
    }

    /// `may_act` unless it has to log in before.
    fn new(user: Arc<User>, authenticated: bool, epoch: u32, may_act: bool) -> Self {
        let is_free = may_act && user.is_unrestricted();
        let free_at = if is_free { Admission::open_word(epoch) } else { NEVER };
        Identity { user, authenticated, is_known: authenticated, is_superuser: false, epoch, free_at }
    }

    /// The gate's rights epoch as of which it is known.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }
}

impl Client {
    /// Whether nothing about its requests has to be looked at, neither who it is nor what the gate has against it.
    #[inline]
    pub fn is_free(&self, admission: &Admission) -> bool {
        self.identity.free_at == admission.word()
    }

    /// The gate's word when [that](Self::is_free) holds.
    #[inline]
    pub fn free_word(&self) -> u64 {
        self.identity.free_at
    }

    /// Whether its user may do everything, as far as is known.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.identity.free_at != NEVER
    }

    /// Makes it somebody.
    pub fn assume(&mut self, identity: Identity) {
        self.info.set_flags(ClientFlags::AUTHENTICATED, identity.authenticated);
        self.info.names.lock().user = identity.user.name.clone();
        let is_known = identity.is_known || self.identity.is_known;
        self.identity = Identity { is_known, ..identity };
    }

    /// It has logged in as `user`, as of the gate's rights `epoch`.
    pub fn log_in(&mut self, user: Arc<User>, epoch: u32) {
        self.assume(Identity::new(user, true, epoch, true));
    }

    /// Looks its user up again if rights have changed; false when the user is gone.
    #[inline]
    pub fn renew_rights(&mut self, server: &Server) -> bool {
        self.identity.epoch == server.admission.rights() || self.look_up(server)
    }

    #[cold]
    fn look_up(&mut self, server: &Server) -> bool {
        let epoch = server.admission.rights();
        if self.identity.is_superuser {
            let free_at = Admission::open_word(epoch);
            (self.identity.epoch, self.identity.free_at) = (epoch, free_at);
            return true;
        }
        let Some(user) = server.acl.find(&self.identity.user.name) else { return false };
        let Identity { authenticated, is_known, .. } = self.identity;
        let may_act = authenticated || !server.acl.requires_auth();
        self.identity = Identity { is_known, ..Identity::new(user, authenticated, epoch, may_act) };
        if self.feed.is_some() {
            self.look_at_requests();
        }
        true
    }

    /// Has its requests looked at, whatever its user may do.
    pub fn look_at_requests(&mut self) {
        self.identity.free_at = NEVER;
    }

    /// Whether it has to log in before it may ask for anything.
    pub fn must_log_in(&self, server: &Server) -> bool {
        !self.identity.authenticated && server.acl.requires_auth()
    }

    /// Whether it has to log in, and never has: nobody knows who it is.
    pub fn is_stranger(&self, server: &Server) -> bool {
        !self.identity.is_known && self.must_log_in(server)
    }

    /// Whether it may run a command now.
    #[inline]
    pub fn check(&self, server: &Server, command: &CommandInfo, args: Args<'_>) -> Result<(), Denied> {
        if self.is_unrestricted() { Ok(()) } else { self.identity.user.check(&self.request(server, command, args)) }
    }

    /// Whether a command that comes across keys that it does not name may read whichever they are.
    pub fn reads_every_key(&self, server: &Server, command: &CommandInfo, args: Args<'_>) -> bool {
        self.is_unrestricted() || self.identity.user.check_with_every_key(&self.request(server, command, args))
    }

    /// A request for the database that is selected when it runs.
    fn request<'a>(&self, server: &Server, command: &'a CommandInfo, args: Args<'a>) -> Request<'a> {
        let db = self.transaction.as_ref().map_or(self.db, |transaction| transaction.db());
        Request { command, args, db, databases: server.keyspace.databases() }
    }
}

/// Takes note of something that was refused to a client.
pub fn note(server: &Server, info: &ClientInfo, event: &Event<'_>) {
    let describe = || {
        let mut line = Vec::new();
        list::describe(info, &server.catalogue, event.now_ms, &mut line);
        line.pop();
        line
    };
    server.acl.log.record(event, server.config.read(ACLLOG_MAX_LEN), describe);
}

/// Takes note of a command that was refused to a user.
pub fn note_denied(
    server: &Server,
    info: &ClientInfo,
    user: &User,
    (denied, context): (Denied, Context),
    (command, args): (&CommandInfo, Args<'_>),
    now_ms: i64,
) {
    let cause = Cause::Denied(denied.reason);
    note(server, info, &Event { cause, context, object: denied.object(command, args), user: &user.name, now_ms });
}
