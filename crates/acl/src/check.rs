//! Checks whether a user may execute a request.
//!
//! A selector checks a request in this order: its databases, the command, its keys, its channels. If no selector allows
//! all of them, the reason reported is the one from the selector that got furthest.

use super::user::{KeyAccess, Selector, User};
use kvick_commands::context::Error;
use kvick_commands::spec::{Categories, Channels, Flags, KeyFlags, KeyPositions};
use kvick_commands::table::CommandInfo;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;

/// A request, as input of the check.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The command.
    pub command: &'a CommandInfo,
    /// Its arguments.
    pub args: Args<'a>,
    /// The database that it is for.
    pub db: usize,
    /// Number of databases of the server.
    pub databases: usize,
}

/// The part of a request that was denied. Later variants take precedence in reports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Reason {
    /// A database.
    Database,
    /// The command.
    Command,
    /// A key.
    Key,
    /// A channel.
    Channel,
}

/// The reason why a request is refused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Denied {
    /// The part that was denied.
    pub reason: Reason,
    /// The index of the argument that names it; 0 if none does.
    pub at: usize,
}

impl Denied {
    /// The start of the error for a client, whose first word is what error statistics count.
    pub const CODE: &[u8] = b"NOPERM ";
    /// The start of the error for a script.
    pub const IN_SCRIPT: &[u8] = b"ERR ACL failure in script: ";

    /// The error reply to a client.
    pub fn error(self, user: &User, command: &CommandInfo) -> Error {
        Error::raw([Self::CODE, &self.text(user, command)[..]].concat())
    }

    /// The error for a script that calls the command. It is counted as [`Self::CODE`].
    pub fn error_in_script(self, user: &User, command: &CommandInfo) -> Error {
        Error::raw([Self::IN_SCRIPT, &self.text(user, command)[..]].concat())
    }

    /// The error reply of EXEC for a command that was allowed when it was queued.
    pub fn error_in_exec(self) -> Error {
        let reason = match self.reason {
            Reason::Command => "no permission to execute the command or subcommand",
            Reason::Key => "no permission to touch the specified keys",
            Reason::Channel => "no permission to access one of the channels used as arguments",
            Reason::Database => "no permission",
        };
        Error::new(format!(
            "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This \
             command is no longer allowed for the following reason: {reason}"
        ))
    }

    /// The reason without the name of the key, channel or database, so that the reply reveals nothing that the client
    /// did not know.
    fn text(self, user: &User, command: &CommandInfo) -> Vec<u8> {
        match self.reason {
            Reason::Command => self.full_text(user, command, b""),
            Reason::Key => b"No permissions to access a key".to_vec(),
            Reason::Channel => b"No permissions to access a channel".to_vec(),
            Reason::Database => b"No permissions to access database".to_vec(),
        }
    }

    /// The reason with `name`, the argument at index `at`.
    pub fn full_text(self, user: &User, command: &CommandInfo, name: &[u8]) -> Vec<u8> {
        let (before, name, after): (&str, _, _) = match self.reason {
            Reason::Command => (" has no permissions to run the '", command.full_name.as_bytes(), "' command"),
            Reason::Key => (" has no permissions to access the '", name, "' key"),
            Reason::Channel => (" has no permissions to access the '", name, "' channel"),
            Reason::Database => (" has no permissions to access database ", name, ""),
        };
        [b"User ", &*user.name, before.as_bytes(), name, after.as_bytes()].concat()
    }

    /// The object of the refusal in ACL LOG.
    pub fn object<'a>(self, command: &'a CommandInfo, args: Args<'a>) -> &'a [u8] {
        let denied_arg = (self.reason != Reason::Command && self.at > 0).then(|| args.get(self.at)).flatten();
        denied_arg.unwrap_or(command.full_name.as_bytes())
    }
}

impl User {
    /// Checks whether the user may execute the request.
    pub fn check(&self, request: &Request<'_>) -> Result<(), Denied> {
        let mut keys = Keys::default();
        let mut worst = Denied { reason: Reason::Database, at: 0 };
        for selector in self.all_selectors() {
            match selector.check(request, &mut keys) {
                Ok(()) => return Ok(()),
                Err(denied) => worst = worst.max(denied),
            }
        }
        Err(worst)
    }

    /// Whether one selector allows the request and reading every key. For requests that read keys which they do not
    /// name.
    pub fn check_with_every_key(&self, request: &Request<'_>) -> bool {
        let mut keys = Keys::default();
        self.all_selectors().any(|selector| selector.reads_every_key() && selector.check(request, &mut keys).is_ok())
    }
}

/// The keys of a request, extracted when a selector first needs them.
#[derive(Default)]
struct Keys(Option<KeyPositions>);

impl Keys {
    /// If the keys cannot be extracted, the result is empty: the command replies with an error before it accesses any
    /// key.
    fn of(&mut self, request: &Request<'_>) -> &KeyPositions {
        self.0.get_or_insert_with(|| request.command.spec.key_positions(request.args).unwrap_or_default())
    }
}

impl Selector {
    fn check(&self, request: &Request<'_>, keys: &mut Keys) -> Result<(), Denied> {
        self.check_databases(request)?;
        self.check_command(request)?;
        self.check_keys(request, keys)?;
        self.check_channels(request)
    }

    fn check_databases(&self, request: &Request<'_>) -> Result<(), Denied> {
        let Request { command, args, db, databases } = *request;
        let spec = command.spec;
        let denied = |at| Err(Denied { reason: Reason::Database, at });
        if let Some(find) = spec.databases {
            for at in find(args, databases).unwrap_or_default() {
                let number = args.get(at).and_then(parse_i64).and_then(|number| usize::try_from(number).ok());
                if !number.is_some_and(|number| self.allows_database(number)) {
                    return denied(at);
                }
            }
            // Its source is the selected database, whichever other databases it names.
            return if has_keys(command) && !self.allows_database(db) { denied(0) } else { Ok(()) };
        }
        if spec.flags.contains(Flags::ALL_DBS) {
            return if (0..databases).all(|db| self.allows_database(db)) { Ok(()) } else { denied(0) };
        }
        let data_categories = Categories::KEYSPACE.union(Categories::READ).union(Categories::WRITE);
        let accesses_data = spec.categories().intersects(data_categories) || has_keys(command);
        if accesses_data && !self.allows_database(db) { denied(0) } else { Ok(()) }
    }

    fn check_command(&self, request: &Request<'_>) -> Result<(), Denied> {
        let Request { command, args, .. } = *request;
        let allowed = self.allows_command(command.id)
            || command.spec.flags.contains(Flags::NO_AUTH)
            || args.get(1).is_some_and(|arg| self.allows_first_arg(command.id, arg));
        if allowed { Ok(()) } else { Err(Denied { reason: Reason::Command, at: 0 }) }
    }

    fn check_keys(&self, request: &Request<'_>, keys: &mut Keys) -> Result<(), Denied> {
        if self.all_keys || !has_keys(request.command) {
            return Ok(());
        }
        for position in keys.of(request) {
            let key = request.args.get(position.index).unwrap_or_default();
            if !self.allows_key(key, access(position.flags)) {
                return Err(Denied { reason: Reason::Key, at: position.index });
            }
        }
        Ok(())
    }

    fn check_channels(&self, request: &Request<'_>) -> Result<(), Denied> {
        let args = request.args;
        let (until, is_pattern) = match request.command.spec.channels {
            None => return Ok(()),
            Some(Channels::Published) => (args.len().min(2), false),
            Some(Channels::Subscribed) => (args.len(), false),
            Some(Channels::SubscribedPatterns) => (args.len(), true),
        };
        let refused = |at: &usize| !args.get(*at).is_some_and(|channel| self.allows_channel(channel, is_pattern));
        match (1..until).find(refused) {
            None => Ok(()),
            Some(at) => Err(Denied { reason: Reason::Channel, at }),
        }
    }
}

/// Whether a command may have keys.
fn has_keys(command: &CommandInfo) -> bool {
    let spec = command.spec;
    spec.find_keys.is_some() || spec.keys.iter().any(|keys| !keys.flags.contains(KeyFlags::NOT_KEY))
}

/// The access that a command makes to a key.
fn access(flags: KeyFlags) -> KeyAccess {
    let mut access = KeyAccess::empty();
    access.set(KeyAccess::READ, flags.contains(KeyFlags::ACCESS));
    let changes = KeyFlags::INSERT.union(KeyFlags::DELETE).union(KeyFlags::UPDATE);
    access.set(KeyAccess::WRITE, flags.intersects(changes));
    access
}
