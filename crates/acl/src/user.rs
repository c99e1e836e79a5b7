//! A user: who may log in as it, and what it may do.
//!
//! What a user may do stands in its selectors: the root selector, which is always there, and any number of others. A
//! request is allowed when one of them allows all of it. Users do not change once others see them; a change makes a new
//! one (see [`super::users`]).

use super::password::Digest;
use kvick_core::clients::default_user_name;
use kvick_resp::glob;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct User {
    /// Its name.
    pub name: Arc<[u8]>,
    /// Whether anybody can log in as it.
    pub enabled: bool,
    /// Whether any password will do.
    pub nopass: bool,
    /// The passwords that do.
    pub passwords: Vec<Digest>,
    /// The selector that rules outside of parentheses are about.
    pub root: Selector,
    /// The others, in the order in which they were added.
    pub selectors: Vec<Selector>,
}

impl User {
    /// A user that may do nothing; `all_channels` is what `acl-pubsub-default` gives to new ones.
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

    /// The default user as it is when nothing is said of it: it needs no password and may do everything.
    pub fn unlimited_default() -> Self {
        let mut root = Selector::new(true);
        root.commands = CommandSet::all();
        root.all_keys = true;
        User { enabled: true, nopass: true, root, ..User::new(default_user_name(), true) }
    }

    /// All its selectors.
    pub fn all_selectors(&self) -> impl Iterator<Item = &Selector> {
        std::iter::once(&self.root).chain(&self.selectors)
    }

    /// Whether it may do everything, so that nothing about its requests has to be looked at.
    pub fn is_unrestricted(&self) -> bool {
        self.all_selectors().any(Selector::allows_everything)
    }

    /// Whether this password lets one in. All passwords are looked at, whichever of them is right.
    pub fn admits(&self, password: &[u8]) -> bool {
        let given = Digest::of(password);
        let right = self.passwords.iter().fold(false, |right, known| right | known.is_same(&given));
        self.enabled && (self.nopass || right)
    }
}

/// One set of things that a user may do together.
#[derive(Clone, Debug)]
pub struct Selector {
    /// The commands that it allows.
    pub(crate) commands: CommandSet,
    /// Commands that it allows with certain first arguments only, which are in lower case, by their place in the command
    /// table.
    pub(crate) first_args: BTreeMap<u32, BTreeSet<Vec<u8>>>,
    /// The rules that led to `commands`, behind the `+@all` or `-@all` that it all began with.
    pub(crate) command_rules: Vec<CommandRule>,
    /// Whether it allows all keys; then there are no patterns.
    pub(crate) all_keys: bool,
    pub(crate) keys: Vec<KeyPattern>,
    /// Whether it allows all channels; then there are no patterns.
    pub all_channels: bool,
    /// The channels that it allows, unless it allows all of them.
    pub channels: Vec<Box<[u8]>>,
    pub(crate) databases: Databases,
}

/// A rule about commands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandRule {
    /// Whether it allows.
    pub allow: bool,
    /// What: `get`, `config|get`, `@admin`.
    pub name: Vec<u8>,
}

/// Keys that may be used in certain ways.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPattern {
    /// In which ways.
    pub access: KeyAccess,
    /// Which keys.
    pub pattern: Box<[u8]>,
}

bitflags::bitflags! {
    /// Ways to use a key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyAccess: u8 {
        /// To get what it holds.
        const READ = 1;
        /// To change what it holds.
        const WRITE = 2;
    }
}

/// The databases that a selector allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Databases {
    /// All that there are.
    All,
    /// These.
    Only(BTreeSet<u32>),
}

impl Selector {
    /// One that allows nothing, but all databases and perhaps all channels.
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

    /// Whether it allows everything.
    pub fn allows_everything(&self) -> bool {
        self.commands.is_complete() && self.all_keys && self.all_channels && self.databases == Databases::All
    }

    /// Whether a database may be used.
    pub fn allows_database(&self, db: usize) -> bool {
        match &self.databases {
            Databases::All => true,
            Databases::Only(these) => u32::try_from(db).is_ok_and(|db| these.contains(&db)),
        }
    }

    /// Whether a command may be called by the bit that it has.
    pub fn allows_command(&self, id: u32) -> bool {
        self.commands.contains(id)
    }

    /// Whether a command may be called with this first argument, although not with others.
    pub fn allows_first_arg(&self, id: u32, arg: &[u8]) -> bool {
        self.first_args.get(&id).is_some_and(|allowed| allowed.contains(&arg.to_ascii_lowercase()))
    }

    /// Whether a key may be used in these ways, all by leave of one pattern.
    pub fn allows_key(&self, key: &[u8], access: KeyAccess) -> bool {
        let fits = |known: &KeyPattern| known.access.contains(access) && glob::matches(&known.pattern, key, false);
        self.all_keys || self.keys.iter().any(fits)
    }

    /// Whether every key may be read, those that a request does not name too.
    pub fn reads_every_key(&self) -> bool {
        let every = |known: &KeyPattern| known.access.contains(KeyAccess::READ) && *known.pattern == *b"*";
        self.all_keys || self.keys.iter().any(every)
    }

    /// Whether a channel may be used. A pattern to subscribe to must be allowed as it is written.
    pub fn allows_channel(&self, channel: &[u8], is_pattern: bool) -> bool {
        self.all_channels || matches_channel(self.channels.iter().map(|known| &**known), channel, is_pattern)
    }
}

/// Whether a channel, or a pattern to subscribe to, is among what these patterns allow.
pub fn matches_channel<'a>(mut allowed: impl Iterator<Item = &'a [u8]>, channel: &[u8], is_pattern: bool) -> bool {
    allowed.any(|known| if is_pattern { known == channel } else { glob::matches(known, channel, false) })
}

/// A set of commands by their places in the command table.
#[derive(Clone, Debug)]
pub struct CommandSet {
    words: Vec<u64>,
    /// Whether commands beyond `words` belong to it: all do after `+@all`, and so would any that came later.
    others: bool,
}

impl CommandSet {
    /// No commands.
    pub fn none() -> Self {
        CommandSet { words: Vec::new(), others: false }
    }

    /// All of them.
    pub fn all() -> Self {
        CommandSet { words: Vec::new(), others: true }
    }

    /// Whether it began with all commands.
    pub fn began_with_all(&self) -> bool {
        self.others
    }

    /// Whether it has all commands.
    pub fn is_complete(&self) -> bool {
        self.others && self.words.iter().all(|word| *word == u64::MAX)
    }

    /// Whether a command is in it.
    pub fn contains(&self, id: u32) -> bool {
        match self.words.get(id as usize / 64) {
            Some(word) => word >> (id % 64) & 1 == 1,
            None => self.others,
        }
    }

    /// Puts a command in or takes it out.
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
    fn a_set_of_commands_keeps_what_it_began_with_for_the_others() {
        for (mut set, others) in [(CommandSet::none(), false), (CommandSet::all(), true)] {
            set.set(70, !others);
            assert_eq!([0, 69, 70, 71, 4000].map(|id| set.contains(id)), [others, others, !others, others, others]);
            assert_eq!(set.began_with_all(), others);
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
    fn nobody_is_let_in_as_a_disabled_user() {
        let mut user = User::unlimited_default();
        user.enabled = false;
        assert!(!user.admits(b""));
        (user.enabled, user.nopass) = (true, false);
        assert!(!user.admits(b""));
        user.passwords.push(Digest::of(b"secret"));
        assert!(user.admits(b"secret") && !user.admits(b"secre"));
    }
}
