//! Decides whether a request may run, and answers the error if not. The checks are in Valkey's order, because clients
//! observe which error comes first.

use super::engine::Engine;
use super::invocation::Invocation;
use super::locking::Ground;
use super::rejection::{self, Rejection};
use super::routing::Routed;
use super::transaction::is_exec;
use crate::session::{Client, Fate};
use kvick_acl::identity::{Attempt, note_denied};
use kvick_acl::log::Context as AclContext;
use kvick_acl::{Denied, User};
use kvick_commands::context::Error;
use kvick_commands::spec::Flags;
use kvick_commands::table::CommandInfo;
use kvick_core::clients::ClientInfo;
use kvick_resp::{Args, ProtocolError, ReplyBuffer};

/// Proof that a request was admitted, with the server state on which the decision was based.
///
/// The engine locks keys for a request only if given this proof (see [`locking`](super::locking)), and compares the
/// state again once they are locked: a worker may leave its batch while it waits for a lock, and users may change
/// between batches.
#[derive(Clone, Copy)]
pub struct Admitted {
    command: &'static CommandInfo,
    ground: Ground,
    /// Whether it is for an open slot: once its keys are locked, it may still be redirected.
    for_open_slot: bool,
}

impl Admitted {
    /// The admitted command.
    #[inline]
    pub(super) fn command(self) -> &'static CommandInfo {
        self.command
    }

    /// The state on which the decision was based.
    #[inline]
    pub(super) fn ground(self) -> Ground {
        self.ground
    }

    /// Whether it has to be [routed](super::routing) again once its keys are locked.
    #[inline]
    pub(super) fn is_for_open_slot(self) -> bool {
        self.for_open_slot
    }
}

impl Engine {
    /// Whether a client's command needs neither to be shown to monitors nor to be tracked for invalidation.
    #[inline]
    pub(super) fn is_unobserved(&self, client: &Client) -> bool {
        client.tracking.is_none() && !self.is_monitored()
    }

    /// Admits a request by a few comparisons, which suffice for most requests.
    #[inline]
    pub(super) fn admit_plain(
        &self,
        client: &Client,
        command: &'static CommandInfo,
        hash: Option<u64>,
        args: Args<'_>,
    ) -> Option<Admitted> {
        // Evaluated together, without short-circuit branches.
        let unusual = client.transaction.is_some() | client.tracking.is_some() | client.is_confined_to_subscriptions();
        let ready = (client.is_free(&self.server.admission) & self.in_batch) && !unusual;
        let is_plain = command.spec.accepts(args.len()) && ready && command.spec.protection.is_none();
        (is_plain && self.is_served(command, hash, args)).then(|| Admitted {
            command,
            ground: self.ground(client.identity.epoch()),
            for_open_slot: false,
        })
    }

    /// Checks whether a request may run. The caller has [renewed](Client::renew_rights) the client's rights.
    #[cold]
    pub(super) fn admit(
        &mut self,
        client: &Client,
        command: &'static CommandInfo,
        args: Args<'_>,
    ) -> Result<Admitted, Rejection> {
        // Read first: a change during the check makes the engine check the request again later.
        let ground = self.ground(client.identity.epoch());
        let flags = self.flags_asked(client, command, args);
        let (elsewhere, for_open_slot) = match self.route(client, command, args, flags) {
            Routed::Here => (None, false),
            Routed::Open => (None, true),
            Routed::Refused(error) => (Some(Rejection::Routed(error)), false),
            Routed::Elsewhere(destination) => (Some(Rejection::Elsewhere(destination)), false),
        };
        let rejection = self.rejection(client, command, args, elsewhere);
        rejection.map_or(Ok(Admitted { command, ground, for_open_slot }), Err)
    }

    /// Admits a request from the append-only file, which was checked before it was logged.
    pub(super) fn admit_replayed(&self, command: &'static CommandInfo) -> Admitted {
        Admitted { command, ground: self.ground(self.server.admission.rights()), for_open_slot: false }
    }

    /// Why a command may not run. `elsewhere` is the reason if it is for another node.
    fn rejection(
        &mut self,
        client: &Client,
        command: &'static CommandInfo,
        args: Args<'_>,
        elsewhere: Option<Rejection>,
    ) -> Option<Rejection> {
        if client.must_authenticate(self.server) && !command.spec.flags.contains(Flags::NO_AUTH) {
            return Some(Rejection::NotAuthenticated);
        }
        if !command.spec.accepts(args.len()) {
            return Some(Rejection::WrongArity(command));
        }
        if client.is_primary() {
            return None;
        }
        if client.is_slot_import() {
            let needs_memory = self.flags_asked(client, command, args).contains(Flags::DENYOOM);
            return (needs_memory && self.is_out_of_memory()).then_some(Rejection::OutOfMemory);
        }
        if let Some(refusal) = self.server.protected_refusal(client, command) {
            return Some(Rejection::Protected(refusal));
        }
        if client.transaction.is_some() && command.spec.flags.contains(Flags::NO_MULTI) {
            return Some(Rejection::InTransaction(command));
        }
        if let Err(denied) = self.permits(client, command, args) {
            let context = if client.transaction.is_some() { AclContext::Multi } else { AclContext::TopLevel };
            client.publish();
            self.record_denied(&client.info, &client.identity.user, denied, context, Invocation { command, args });
            return Some(Rejection::Denied(denied.error(&client.identity.user, command)));
        }
        let confined = || {
            (client.is_confined_to_subscriptions() && !allowed_while_subscribed(command))
                .then_some(Rejection::Subscribed(command))
        };
        match elsewhere {
            Some(Rejection::Elsewhere(_)) if let Some(rejection) = confined() => return Some(rejection),
            None => {}
            elsewhere => return elsewhere,
        }
        let flags = self.flags_asked(client, command, args);
        let short = || (self.is_out_of_memory() && flags.contains(Flags::DENYOOM)).then_some(Rejection::OutOfMemory);
        let uses_keys = flags.intersects(Flags::READONLY | Flags::WRITE | Flags::MAY_REPLICATE);
        let monitors = || (client.is_monitor() && uses_keys).then_some(Rejection::Monitor);
        let to_primary = || rejection::redirection(self.server, &client.info, flags);
        let closed = || to_primary().or_else(|| rejection::rejection(self.server, command, flags));
        let busy = || if self.concerns_script(client, command) { self.busy_error().map(Rejection::Busy) } else { None };
        confined().or_else(short).or_else(closed).or_else(busy).or_else(monitors)
    }

    /// Whether a client's user may run a command now, in the selected database. The caller reports refusals and
    /// [records](Self::record_denied) them.
    #[inline]
    pub fn permits(&self, client: &Client, command: &CommandInfo, args: Args<'_>) -> Result<(), Denied> {
        client.check(self.server, command, args)
    }

    /// Counts a refused command and adds it to ACL LOG.
    #[cold]
    pub fn record_denied(
        &self,
        info: &ClientInfo,
        user: &User,
        denied: Denied,
        context: AclContext,
        invocation: Invocation<'_>,
    ) {
        let Invocation { command, args } = invocation;
        let attempt = Attempt { denied, context, command, args };
        note_denied(self.server, &self.server.acl, info, user, attempt, self.now_ms);
    }

    /// Determines which keys the next command may read besides those it names. Must be called before each command that
    /// may access other keys.
    #[inline]
    pub fn set_read_scope(&mut self, client: &Client, command: &CommandInfo, args: Args<'_>) {
        self.reads_every_key = client.is_unrestricted() || client.reads_every_key(self.server, command, args);
    }

    /// Answers a protocol error and marks the connection to be closed.
    #[cold]
    pub(super) fn reply_protocol_error(&mut self, client: &mut Client, error: ProtocolError, out: &mut ReplyBuffer) {
        if error != ProtocolError::UnexpectedInline {
            let text = [b"ERR ", &error.text()[..]].concat();
            self.stats.count_error(&text);
            out.reply(client.version).error(text);
        }
        client.fate = Fate::CloseAfterReply;
    }

    /// Refuses a rejected request; aborts the transaction that it would have executed.
    pub(super) fn reject(
        &mut self,
        client: &mut Client,
        invocation: Invocation<'_>,
        rejection: Rejection,
        out: &mut ReplyBuffer,
    ) {
        let is_redirected = matches!(rejection, Rejection::Redirect(..) | Rejection::Routed(_));
        let error = rejection.error(self.server);
        self.refuse(client, Some(invocation), &error, is_redirected, out);
    }

    /// Refuses a request with an error. `is_redirected`: the error contains the redirection target.
    pub(super) fn refuse(
        &mut self,
        client: &mut Client,
        invocation: Option<Invocation<'_>>,
        error: &Error,
        is_redirected: bool,
        out: &mut ReplyBuffer,
    ) {
        if let Some(Invocation { command, .. }) = invocation {
            self.stats.commands[command.id as usize].rejected.add(1);
        }
        let aborted = match invocation {
            Some(invocation) if is_exec(invocation.command) => {
                self.monitor(client, invocation);
                Some(self.abort_transaction(client, error, is_redirected))
            }
            _ => None,
        };
        if let Some(transaction) = &mut client.transaction {
            transaction.abort();
        }
        self.reply_error(client, aborted.as_ref().unwrap_or(error), out);
    }

    pub(super) fn reply_error(&self, client: &Client, error: &Error, out: &mut ReplyBuffer) {
        self.stats.count_error(error.bytes());
        out.reply(client.version).error(error.bytes());
    }
}

/// Memory is above its limit.
pub(super) const OUT_OF_MEMORY: Error = Error::text("OOM command not allowed when used memory > 'maxmemory'.");

pub(super) const NOT_AUTHENTICATED: Error = Error::text("NOAUTH Authentication required.");

/// Whether a client may run this command while it is subscribed and speaks RESP2, in which replies and messages are
/// indistinguishable.
fn allowed_while_subscribed(command: &CommandInfo) -> bool {
    command.spec.flags.contains(Flags::PUBSUB | Flags::NOSCRIPT) || command.spec.flags.contains(Flags::SUBSCRIBED)
}

pub(super) fn not_while_subscribed(command: &CommandInfo) -> Error {
    Error::new(format!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this \
         context",
        command.full_name
    ))
}

pub(super) fn wrong_arity(command: &CommandInfo) -> Error {
    Error::new(format!("ERR wrong number of arguments for '{}' command", command.full_name))
}

/// Maximum number of bytes of a word, and of all arguments, that an error about an unknown command quotes.
const SHOWN_MAX: usize = 128;

/// Valkey's error text, which quotes the beginning of the arguments.
pub(super) fn unknown_command(args: Args<'_>) -> Error {
    let clip = |word: &'_ [u8], max: usize| {
        let text = word[..word.len().min(max)].split(|byte| *byte == 0).next();
        text.unwrap_or_default().to_vec()
    };
    let mut shown = Vec::new();
    for arg in args.iter().skip(1) {
        if shown.len() >= SHOWN_MAX {
            break;
        }
        shown.extend([b"'", &clip(arg, SHOWN_MAX - shown.len())[..], b"' "].concat());
    }
    let name = clip(args.get(0).unwrap_or_default(), SHOWN_MAX);
    Error::quoting(&[b"ERR unknown command '", &name, b"', with args beginning with: ", &shown])
}

pub(super) fn unknown_subcommand(container: &CommandInfo, args: Args<'_>) -> Error {
    let word = args.get(1).unwrap_or_default();
    let container = container.full_name.to_ascii_uppercase();
    let shown = &word[..word.len().min(SHOWN_MAX)];
    Error::quoting(&[b"ERR unknown subcommand '", shown, b"'. Try ", container.as_bytes(), b" HELP."])
}
