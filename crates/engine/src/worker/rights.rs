//! What a client may do: its identity, checked against the admission word and the users.

use crate::services::Services;
use crate::session::Client;
use kvick_acl::Denied;
use kvick_acl::User;
use kvick_acl::check::Request;
use kvick_acl::identity::Identity;
use kvick_commands::table::CommandInfo;
use kvick_core::admission::Admission;
use kvick_core::clients::ClientFlags;
use kvick_resp::Args;
use std::sync::Arc;

impl Client {
    /// Whether nothing about its requests has to be looked at, neither who it is nor what the gate has against it.
    #[inline]
    pub fn is_free(&self, admission: &Admission) -> bool {
        self.identity.free_word() == admission.word()
    }

    /// The gate's word when [that](Self::is_free) holds.
    #[inline]
    pub fn free_word(&self) -> u64 {
        self.identity.free_word()
    }

    /// Whether its user may do everything, as far as is known.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.identity.is_unrestricted()
    }

    /// Makes it somebody.
    pub fn assume(&mut self, identity: Identity) {
        self.info.set_flags(ClientFlags::AUTHENTICATED, identity.authenticated);
        self.info.names.lock().user = identity.user.name.clone();
        self.identity = self.identity.replaced_by(identity);
    }

    /// It has logged in as `user`, as of the gate's rights `epoch`.
    pub fn log_in(&mut self, user: Arc<User>, epoch: u32) {
        self.assume(Identity::logged_in(user, epoch));
    }

    /// Looks its user up again if rights have changed; false when the user is gone.
    #[inline]
    pub fn renew_rights(&mut self, server: &Services) -> bool {
        self.identity.epoch() == server.admission.rights() || self.look_up(server)
    }

    #[cold]
    fn look_up(&mut self, server: &Services) -> bool {
        let found = self.identity.look_up(server, &server.acl);
        if found && self.feed.is_some() {
            self.look_at_requests();
        }
        found
    }

    /// Has its requests looked at, whatever its user may do.
    pub fn look_at_requests(&mut self) {
        self.identity.check_every_request();
    }

    /// Whether it has to log in before it may ask for anything.
    pub fn must_log_in(&self, server: &Services) -> bool {
        !self.identity.authenticated && server.acl.requires_auth()
    }

    /// Whether it has to log in, and never has: nobody knows who it is.
    pub fn is_stranger(&self, server: &Services) -> bool {
        !self.identity.is_known() && self.must_log_in(server)
    }

    /// Whether it may run a command now.
    #[inline]
    pub fn check(&self, server: &Services, command: &CommandInfo, args: Args<'_>) -> Result<(), Denied> {
        if self.is_unrestricted() { Ok(()) } else { self.identity.user.check(&self.request(server, command, args)) }
    }

    /// Whether a command that comes across keys that it does not name may read whichever they are.
    pub fn reads_every_key(&self, server: &Services, command: &CommandInfo, args: Args<'_>) -> bool {
        self.is_unrestricted() || self.identity.user.check_with_every_key(&self.request(server, command, args))
    }

    /// A request for the database that is selected when it runs.
    fn request<'a>(&self, server: &Services, command: &'a CommandInfo, args: Args<'a>) -> Request<'a> {
        let db = self.transaction.as_ref().map_or(self.db, |transaction| transaction.db());
        Request { command, args, db, databases: server.keyspace.databases() }
    }
}
