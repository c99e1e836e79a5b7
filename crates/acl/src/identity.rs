//! The identity of a client, and how it affects the admission of requests.
//!
//! Nearly all clients are unrestricted. They cache the admission word under which every command is admitted, so one
//! comparison admits a request. The words differ if commands may not run or rights have changed.

use super::check::Denied;
use super::log::{Cause, Context, Event};
use super::user::User;
use crate::users::Acl;
use kvick_commands::table::CommandInfo;
use kvick_config::tables::security::ACLLOG_MAX_LEN;
use kvick_core::Core;
use kvick_core::admission::Admission;
use kvick_core::clients::ClientInfo;
use kvick_resp::Args;
use std::sync::Arc;

/// An admission word that never occurs: all reasons are set.
const NEVER: u64 = u64::MAX;

/// The name of an identity that is not a user.
const SUPERUSER: &[u8] = b"(superuser)";

/// The name of an identity without rights.
const NOBODY: &[u8] = b"(nobody)";

/// The user of a client, and the rights epoch of that information.
#[derive(Clone)]
pub struct Identity {
    /// The user.
    pub user: Arc<User>,
    /// Whether the client has authenticated, or did not need to.
    pub authenticated: bool,
    /// Whether the connection has ever been authenticated, as any user.
    is_known: bool,
    /// Whether this is the unrestricted internal identity, which is not in the user table.
    is_superuser: bool,
    /// The rights epoch when the user was looked up.
    epoch: u32,
    /// The admission word under which its user may execute every command: the rights epoch with no reason set.
    /// [`NEVER`] if the user is restricted.
    unrestricted_at: u64,
    /// See [`check_every_request`](Self::check_every_request).
    checks_every_request: bool,
}

impl Identity {
    /// The identity of a new connection: the default user, which may have to authenticate.
    pub fn for_new_connection(core: &Core, acl: &Acl) -> Self {
        let epoch = core.admission.rights();
        let user = acl.default_user();
        let authenticated = user.nopass && user.enabled;
        Self::new(user, authenticated, epoch, authenticated)
    }

    /// The internal identity, which is unrestricted regardless of the users.
    pub fn superuser() -> Self {
        let user = User { name: SUPERUSER.into(), ..User::unlimited_default() };
        Identity { is_superuser: true, ..Self::new(Arc::new(user), true, 0, true) }
    }

    /// An identity without any rights. Its clones share nothing with other identities.
    pub fn nobody() -> Self {
        Self::new(Arc::new(User::new(NOBODY.into(), false)), false, 0, false)
    }

    /// `may_run_commands` is false if the client has to authenticate first.
    fn new(user: Arc<User>, authenticated: bool, epoch: u32, may_run_commands: bool) -> Self {
        let passes_unchecked = may_run_commands && user.is_unrestricted();
        let unrestricted_at = if passes_unchecked { Admission::open_word(epoch) } else { NEVER };
        Identity {
            user,
            authenticated,
            is_known: authenticated,
            is_superuser: false,
            epoch,
            unrestricted_at,
            checks_every_request: false,
        }
    }

    /// The rights epoch of this identity.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }
}

impl Identity {
    /// The admission word under which every command is admitted without a check; a word that never occurs if the client
    /// is restricted or every request is checked.
    #[inline]
    pub fn unchecked_word(&self) -> u64 {
        // All bits are set if every request is checked, as in `NEVER`.
        self.unrestricted_at | 0_u64.wrapping_sub(u64::from(self.checks_every_request))
    }

    /// The admission word under which the user may execute every command; a word that never occurs if it is restricted.
    #[inline]
    pub fn unrestricted_word(&self) -> u64 {
        self.unrestricted_at
    }

    /// Whether the user may execute every command, as of the epoch.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.unrestricted_at != NEVER
    }

    /// Whether the connection has ever been authenticated.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// The identity for a connection that changes from this identity to another.
    #[must_use]
    pub fn replaced_by(&self, identity: Identity) -> Identity {
        Identity { is_known: identity.is_known || self.is_known, ..identity }
    }

    /// The identity of a connection that has authenticated as `user`, as of the rights epoch `epoch`.
    pub fn logged_in(user: Arc<User>, epoch: u32) -> Identity {
        Identity::new(user, true, epoch, true)
    }

    /// Looks the user up again after rights have changed; returns false if the user no longer exists.
    #[cold]
    pub fn look_up(&mut self, core: &Core, acl: &Acl) -> bool {
        let epoch = core.admission.rights();
        if self.is_superuser {
            (self.epoch, self.unrestricted_at) = (epoch, Admission::open_word(epoch));
            self.checks_every_request = false;
            return true;
        }
        let Some(user) = acl.find(&self.user.name) else { return false };
        let Identity { authenticated, is_known, .. } = *self;
        let may_run_commands = authenticated || !acl.requires_auth();
        *self = Identity { is_known, ..Identity::new(user, authenticated, epoch, may_run_commands) };
        true
    }

    /// Turns off the fast admission, so that every request is checked.
    pub fn check_every_request(&mut self) {
        self.checks_every_request = true;
    }
}

/// Records an event in ACL LOG.
pub fn note(core: &Core, acl: &Acl, info: &ClientInfo, event: &Event<'_>) {
    let describe = || {
        let mut line = Vec::new();
        kvick_core::clients::line::describe(info, core.catalogue, event.now_ms, &mut line);
        line.pop();
        line
    };
    acl.log.record(event, core.config.read(ACLLOG_MAX_LEN), describe);
}

/// An attempt to run a command that was denied.
pub struct Attempt<'a> {
    /// What was denied.
    pub denied: Denied,
    /// Where the command came from.
    pub context: Context,
    /// The command.
    pub command: &'a CommandInfo,
    /// Its arguments.
    pub args: Args<'a>,
}

/// Records in ACL LOG that a command was denied.
pub fn note_denied(core: &Core, acl: &Acl, info: &ClientInfo, user: &User, attempt: Attempt<'_>, now_ms: i64) {
    let Attempt { denied, context, command, args } = attempt;
    let cause = Cause::Denied(denied.reason);
    note(core, acl, info, &Event { cause, context, object: denied.object(command, args), user: &user.name, now_ms });
}
