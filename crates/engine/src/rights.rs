//! A client's rights: its identity, checked against the admission word and the users.

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
    /// Whether its requests need no checks, because neither its rights nor the admission word restrict them.
    #[inline]
    pub fn is_free(&self, admission: &Admission) -> bool {
        self.identity.unchecked_word() == admission.word()
    }

    /// The admission word under which its requests with one key may take the fast path, or are sent to the owner of the
    /// key without further checks.
    #[inline]
    pub fn fast_word(&self) -> u64 {
        match &self.forwarding {
            None => self.identity.unchecked_word(),
            Some(_) => self.identity.unrestricted_word(),
        }
    }

    /// Whether its user is unrestricted, as of the last lookup.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.identity.is_unrestricted()
    }

    /// Replaces its identity.
    pub fn assume(&mut self, identity: Identity) {
        self.info.set_flags(ClientFlags::AUTHENTICATED, identity.authenticated);
        self.info.names.lock().user = identity.user.name.clone();
        self.identity = self.identity.replaced_by(identity);
        if self.forwarding.is_some() {
            self.check_every_request();
        }
    }

    /// Stops forwarding its requests to other nodes: it gets redirections.
    pub fn end_forwarding(&mut self, server: &Services) {
        self.info.set_flags(ClientFlags::FORWARD, false);
        if self.forwarding.take().is_some() {
            // A superfluous lookup restores the fast admission; a deleted user is noticed with the next request.
            let _ = self.look_up(server);
        }
    }

    /// Logs it in as `user`, as of the admission word's rights `epoch`.
    pub fn log_in(&mut self, user: Arc<User>, epoch: u32) {
        self.assume(Identity::logged_in(user, epoch));
    }

    /// Looks its user up again if rights have changed. Returns false if the user was deleted.
    #[inline]
    pub fn renew_rights(&mut self, server: &Services) -> bool {
        self.identity.epoch() == server.admission.rights() || self.look_up(server)
    }

    #[cold]
    fn look_up(&mut self, server: &Services) -> bool {
        let found = self.identity.look_up(server, &server.acl);
        if found && (self.feed.is_some() || self.forwarding.is_some()) {
            self.check_every_request();
        }
        found
    }

    /// Makes its requests subject to checks even if its user is unrestricted.
    pub fn check_every_request(&mut self) {
        self.identity.check_every_request();
    }

    /// Whether it must authenticate before it may run commands.
    pub fn must_authenticate(&self, server: &Services) -> bool {
        !self.identity.authenticated && server.acl.requires_auth()
    }

    /// Whether it must authenticate and never has.
    pub fn is_unauthenticated(&self, server: &Services) -> bool {
        !self.identity.is_known() && self.must_authenticate(server)
    }

    /// Checks whether it may run a command now.
    #[inline]
    pub fn check(&self, server: &Services, command: &CommandInfo, args: Args<'_>) -> Result<(), Denied> {
        if self.is_unrestricted() { Ok(()) } else { self.identity.user.check(&self.request(server, command, args)) }
    }

    /// Whether a command that encounters keys it does not name may read all of them.
    pub fn reads_every_key(&self, server: &Services, command: &CommandInfo, args: Args<'_>) -> bool {
        self.is_unrestricted() || self.identity.user.check_with_every_key(&self.request(server, command, args))
    }

    /// The request as checked against the currently selected database.
    fn request<'a>(&self, server: &Services, command: &'a CommandInfo, args: Args<'a>) -> Request<'a> {
        let db = self.transaction.as_ref().map_or(self.db, |transaction| transaction.db());
        Request { command, args, db, databases: server.keyspace.databases() }
    }
}
