//! A user: its passwords and its rights.
//!
//! The rights are in selectors: the root selector, which always exists, and any number of others. A request is allowed
//! if one selector allows all of it. Users are immutable once shared; a change replaces the user (see
//! [`super::users`]).

use super::password::Digest;
use kvick_core::clients::default_user_name;
use kvick_resp::glob;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A user with its passwords and selectors.
#[derive(Clone, Debug)]
pub struct User {
    /// Its name.
    pub name: Arc<[u8]>,
    /// Whether clients can authenticate as this user.
    pub enabled: bool,
    /// Whether any password is accepted.
    pub nopass: bool,
    /// The digests of the accepted passwords.
    pub passwords: Vec<Digest>,
    /// The selector that rules outside parentheses apply to.
    pub root: Selector,
    /// The other selectors, in the order in which they were added.
    pub selectors: Vec<Selector>,
}

impl User {
    /// A user without rights. `all_channels` is the value of `acl-pubsub-default`.
    pub fn new(name: Arc<[u8]>, all_channels: bool) -> Self {
        User {
            name,
            enabled: false,
            nopass: false,
            passwords: Vec::new(),
            root: Selector::new(all_channels),
            selectors: Vec::new(),
        }
    }

    /// The default user if nothing is configured: it needs no password and has all rights.
    pub fn unlimited_default() -> Self {
        let mut root = Selector::new(true);
        root.commands = CommandSet::all();
        root.all_keys = true;
        User { enabled: true, nopass: true, root, ..User::new(default_user_name(), true) }
    }

    /// All selectors of the user.
    pub fn all_selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.root).chain(&self.selectors)
    }

    /// Whether the user may do everything, so that its requests need no checks.
    pub fn is_unrestricted(&self) -> bool {
        self.all_selectors().any(Selector::allows_everything)
    }

    /// Whether the user accepts this password. Every password is compared, so that the time does not depend on which
    /// one matches.
    pub fn admits(&self, password: &[u8]) -> bool {
        let given = Digest::of(password);
        let right = self.passwords.iter().fold(false, |right, known| right | known.is_same(&given));
        self.enabled && (self.nopass || right)
    }
}

/// A set of rights.
#[derive(Clone, Debug)]
pub struct Selector {
    /// The commands that it allows.
    pub(crate) commands: CommandSet,
    /// First arguments, in lower case, with which a command is allowed that is otherwise denied; by the command's id.
    pub(crate) first_args: BTreeMap<u32, BTreeSet<Vec<u8>>>,
    /// The rules that led to `commands`, after the initial `+@all` or `-@all`.
    pub(crate) command_rules: Vec<CommandRule>,
    /// Whether all keys are allowed; `keys` is empty then.
    pub(crate) all_keys: bool,
    pub(crate) keys: Vec<KeyPattern>,
    /// Whether all channels are allowed; `channels` is empty then.
    pub all_channels: bool,
    /// The patterns of allowed channels.
    pub channels: Vec<Box<[u8]>>,
    pub(crate) databases: Databases,
}

/// A rule about commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRule {
    /// True if the rule allows, false if it denies.
    pub allow: bool,
    /// The command, subcommand or category: `get`, `config|get`, `@admin`.
    pub name: Vec<u8>,
}

/// A pattern of keys with the allowed access.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern {
    /// The allowed access.
    pub access: KeyAccess,
    /// The pattern.
    pub pattern: Box<[u8]>,
}

bitflags::bitflags! {
    /// Kinds of access to a key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyAccess: u8 {
        /// Reads the value.
        const READ = 1;
        /// Writes the value.
        const WRITE = 2;
    }
}

/// The databases that a selector allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Databases {
    /// All databases.
    All,
    /// These.
    Only(BTreeSet<u32>),
}

impl Selector {
    /// A selector that allows all databases, all channels if `all_channels` is set, and nothing else.
    pub fn new(all_channels: bool) -> Self {
        Selector {
            commands: CommandSet::none(),
            first_args: BTreeMap::new(),
            command_rules: Vec::new(),
            all_keys: false,
            keys: Vec::new(),
            all_channels,
            channels: Vec::new(),
            databases: Databases::All,
        }
    }

    /// Whether the selector allows everything.
    pub fn allows_everything(&self) -> bool {
        self.commands.is_complete() && self.all_keys && self.all_channels && self.databases == Databases::All
    }

    /// Whether the selector allows a database.
    pub fn allows_database(&self, db: usize) -> bool {
        match &self.databases {
            Databases::All => true,
            Databases::Only(these) => u32::try_from(db).is_ok_and(|db| these.contains(&db)),
        }
    }

    /// Whether the selector allows a command with all arguments.
    pub fn allows_command(&self, id: u32) -> bool {
        self.commands.contains(id)
    }

    /// Whether the selector allows a command with this first argument.
    pub fn allows_first_arg(&self, id: u32, arg: &[u8]) -> bool {
        self.first_args.get(&id).is_some_and(|allowed| allowed.contains(&arg.to_ascii_lowercase()))
    }

    /// Whether one pattern allows this access to a key.
    pub fn allows_key(&self, key: &[u8], access: KeyAccess) -> bool {
        let fits = |known: &KeyPattern| known.access.contains(access) && glob::matches(&known.pattern, key, false);
        self.all_keys || self.keys.iter().any(fits)
    }

    /// Whether the selector allows reading every key.
    pub fn reads_every_key(&self) -> bool {
        let every = |known: &KeyPattern| known.access.contains(KeyAccess::READ) && *known.pattern == *b"*";
        self.all_keys || self.keys.iter().any(every)
    }

    /// Whether the selector allows a channel. A pattern to subscribe to must equal an allowed pattern.
    pub fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        self.all_channels || matches_channel(self.channels.iter().map(|known| &**known), channel, is_pattern)
    }
}

/// Whether a channel, or a pattern to subscribe to, is allowed by these patterns.
pub fn matches_channel<'a>(mut allowed: impl Iterator<Item = &'a [u8]>, channel: &[u8], is_pattern: bool) -> bool {
    allowed.any(|known| if is_pattern { known == channel } else { glob::matches(known, channel, false) })
}

/// A set of commands, by command id.
#[derive(Clone, Debug)]
pub struct CommandSet {
    words: Vec<u64>,
    /// Whether commands beyond `words` belong to the set: true after `+@all`.
    others: bool,
}

impl CommandSet {
    /// The empty set.
    pub fn none() -> Self {
        CommandSet { words: Vec::new(), others: false }
    }

    /// The set of all commands, including commands that are added later.
    pub fn all() -> Self {
        CommandSet { words: Vec::new(), others: true }
    }

    /// Whether the set started as all commands.
    pub fn allows_by_default(&self) -> bool {
        self.others
    }

    /// Whether the set contains all commands.
    pub fn is_complete(&self) -> bool {
        self.others && self.words.iter().all(|word| *word == u64::MAX)
    }

    /// Whether the set contains a command.
    pub fn contains(&self, id: u32) -> bool {
        match self.words.get(id as usize / 64) {
            Some(word) => word >> (id % 64) & 1 == 1,
            None => self.others,
        }
    }

    /// Adds or removes a command.
    pub fn set(&mut self, id: u32, allow: bool) {
        let (word, bit) = (id as usize / 64, 1 << (id % 64));
        if word >= self.words.len() {
            self.words.resize(word + 1, if self.others { u64::MAX } else { 0 });
        }
        if allow {
            self.words[word] |= bit;
        } else {
            self.words[word] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_sets_apply_their_default_to_unlisted_commands() {
        for (mut set, others) in [(CommandSet::none(), false), (CommandSet::all(), true)] {
            set.set(70, !others);
            assert_eq!([0, 69, 70, 71, 4000].map(|id| set.contains(id)), [others, others, !others, others, others]);
            assert_eq!(set.allows_by_default(), others);
            assert!(!set.is_complete());
            set.set(70, others);
            assert_eq!(set.is_complete(), others);
        }
    }

    #[test]
    fn the_default_user_may_do_everything() {
        let user = User::unlimited_default();
        assert!(user.is_unrestricted() && user.admits(b"whatever"));
        assert!(!User::new(default_user_name(), true).is_unrestricted());
    }

    #[test]
    fn a_disabled_user_cannot_log_in() {
        let mut user = User::unlimited_default();
        user.enabled = false;
        assert!(!user.admits(b""));
        (user.enabled, user.nopass) = (true, false);
        assert!(!user.admits(b""));
        user.passwords.push(Digest::of(b"secret"));
        assert!(user.admits(b"secret") && !user.admits(b"secre"));
    }
}
