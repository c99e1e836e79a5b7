//! Who a client is, and what follows for its requests.
//!
//! Nearly all clients are unrestricted. They cache the admission word under which every command is admitted, so that one
//! comparison admits a request: the word differs when commands may not run or rights have changed.

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
    pub fn newcomer(core: &Core, acl: &Acl) -> Self {
        let epoch = core.admission.rights();
        let user = acl.default_user();
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

impl Identity {
    /// The admission word under which every command is admitted; one that never occurs if the user is restricted.
    #[inline]
    pub fn free_word(&self) -> u64 {
        self.free_at
    }

    /// Whether the user may do everything, as of the epoch.
    #[inline]
    pub fn is_unrestricted(&self) -> bool {
        self.free_at != NEVER
    }

    /// Whether the connection was ever authenticated.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// The identity that a connection takes on instead of this one.
    #[must_use]
    pub fn replaced_by(&self, identity: Identity) -> Identity {
        Identity { is_known: identity.is_known || self.is_known, ..identity }
    }

    /// The identity of a connection that has logged in as `user`, as of the rights epoch `epoch`.
    pub fn logged_in(user: Arc<User>, epoch: u32) -> Identity {
        Identity::new(user, true, epoch, true)
    }

    /// Looks the user up again as rights have changed; false when the user is gone.
    #[cold]
    pub fn look_up(&mut self, core: &Core, acl: &Acl) -> bool {
        let epoch = core.admission.rights();
        if self.is_superuser {
            (self.epoch, self.free_at) = (epoch, Admission::open_word(epoch));
            return true;
        }
        let Some(user) = acl.find(&self.user.name) else { return false };
        let Identity { authenticated, is_known, .. } = *self;
        let may_act = authenticated || !acl.requires_auth();
        *self = Identity { is_known, ..Identity::new(user, authenticated, epoch, may_act) };
        true
    }

    /// Has every request checked, whatever the user may do.
    pub fn check_every_request(&mut self) {
        self.free_at = NEVER;
    }
}

/// Takes note of something that was refused to a client.
pub fn note(core: &Core, acl: &Acl, info: &ClientInfo, event: &Event<'_>) {
    let describe = || {
        let mut line = Vec::new();
        kvick_core::clients::line::describe(info, core.catalogue, event.now_ms, &mut line);
        line.pop();
        line
    };
    acl.log.record(event, core.config.read(ACLLOG_MAX_LEN), describe);
}

/// Takes note of a command that was refused to a user.
pub fn note_denied(
    core: &Core,
    acl: &Acl,
    info: &ClientInfo,
    user: &User,
    (denied, context): (Denied, Context),
    (command, args): (&CommandInfo, Args<'_>),
    now_ms: i64,
) {
    let cause = Cause::Denied(denied.reason);
    note(core, acl, info, &Event { cause, context, object: denied.object(command, args), user: &user.name, now_ms });
}
