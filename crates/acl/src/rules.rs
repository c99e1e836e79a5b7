//! Parses the rules that define a user, from ACL SETUSER, configuration files and ACL files.
//!
//! | rule | effect |
//! | --- | --- |
//! | `on`, `off` | enables or disables the user |
//! | `>password`, `#digest` | adds a password, in plain text or as its SHA-256 digest |
//! | `<password`, `!digest` | removes a password |
//! | `nopass`, `resetpass` | accepts any password; removes all passwords |
//! | `+command`, `-command`, `+command\|subcommand` | allows or denies a command or subcommand |
//! | `+@category`, `-@category`, `allcommands`, `nocommands` | allows or denies a category, or all commands |
//! | `~pattern`, `%R~pattern`, `%W~pattern`, `allkeys`, `resetkeys` | allows keys; removes all key patterns |
//! | `&pattern`, `allchannels`, `resetchannels` | allows channels; removes all channel patterns |
//! | `db=number,...`, `alldbs`, `resetdbs` | allows databases; removes all databases |
//! | `(rules)`, `clearselectors` | adds a selector with these rules; removes all added selectors |
//! | `reset` | resets the user to the state of a new user |
//!
//! Commands are identified by their original names, regardless of `rename-command`. Keywords are case-insensitive.

use super::password::Digest;
use super::user::{CommandRule, CommandSet, Databases, KeyAccess, KeyPattern, Selector, User};
use kvick_commands::spec::Categories;
use kvick_commands::table::{Catalogue, CommandInfo};
use kvick_resp::split_args;
use kvick_runtime::logging;
use std::collections::BTreeSet;
use std::fmt;

/// The context for reading rules.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    /// The known commands and categories.
    pub table: &'a Catalogue,
    /// `acl-pubsub-default`: whether new users and selectors may use all channels.
    pub all_channels: bool,
}

/// The errors of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RuleError {
    /// The command or category does not exist.
    UnknownCommand,
    /// The text is not a rule.
    Syntax,
    /// A key pattern after all keys were allowed.
    KeyAfterAll,
    /// A channel pattern after all channels were allowed.
    ChannelAfterAll,
    /// The user does not have the password to remove.
    NoSuchPassword,
    /// The digest is malformed.
    BadDigest,
    /// The rule allows a subcommand only with a certain first argument.
    FirstArgOfSubcommand,
    /// The database number is negative or too large.
    DatabaseOutOfRange,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownCommand => "Unknown command or category name in ACL",
            Self::Syntax => "Syntax error",
            Self::KeyAfterAll => {
                "Adding a pattern after the * pattern (or the 'allkeys' flag) is not valid and does not have any \
                 effect. Try 'resetkeys' to start with an empty list of patterns"
            }
            Self::ChannelAfterAll => {
                "Adding a pattern after the * pattern (or the 'allchannels' flag) is not valid and does not have any \
                 effect. Try 'resetchannels' to start with an empty list of channels"
            }
            Self::NoSuchPassword => "The password you are trying to remove from the user does not exist",
            Self::BadDigest => {
                "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
            }
            Self::FirstArgOfSubcommand => "Allowing first-arg of a subcommand is not supported",
            Self::DatabaseOutOfRange => "The provided database ID is out of range",
        })
    }
}

impl std::error::Error for RuleError {}

/// Whether a name contains a blank or NUL, which would end it in a file.
pub fn has_blanks(name: &[u8]) -> bool {
    name.iter().any(|byte| matches!(byte, b' ' | b'\t'..=b'\r' | 0))
}

/// Joins the words of each parenthesized selector that was passed as several words, with blanks between them. The error
/// is the index of the word with the unclosed parenthesis.
pub fn join_selectors<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Result<Vec<Vec<u8>>, usize> {
    let mut rules: Vec<Vec<u8>> = Vec::new();
    let mut open = None;
    for (at, word) in words.into_iter().enumerate() {
        match (open, rules.last_mut()) {
            (Some(_), Some(rule)) => {
                rule.push(b' ');
                rule.extend_from_slice(word);
                if word.ends_with(b")") {
                    open = None;
                }
            }
            _ => {
                if word.starts_with(b"(") && !word.ends_with(b")") {
                    open = Some(at);
                }
                rules.push(word.to_vec());
            }
        }
    }
    open.map_or(Ok(rules), Err)
}

impl Reader<'_> {
    /// Applies one rule to a user. After an error, the user may be partly changed.
    pub fn apply(&self, user: &mut User, rule: &[u8]) -> Result<(), RuleError> {
        match rule {
            [] => return Ok(()),
            [b'>', password @ ..] => self.add_password(user, Digest::of(password)),
            [b'#', digits @ ..] => self.add_password(user, Digest::parse(digits).ok_or(RuleError::BadDigest)?),
            [b'<', password @ ..] => return remove_password(user, Digest::of(password)),
            [b'!', digits @ ..] => return remove_password(user, Digest::parse(digits).ok_or(RuleError::BadDigest)?),
            [b'(', inner @ .., b')'] => {
                let mut selector = Selector::new(self.all_channels);
                // As in Valkey, a selector with unbalanced quotes gets no rules.
                for rule in split_args(inner).unwrap_or_default() {
                    self.apply_to_selector(&mut selector, &rule)?;
                }
                user.selectors.push(selector);
            }
            _ => return self.apply_word(user, rule),
        }
        Ok(())
    }

    fn apply_word(&self, user: &mut User, rule: &[u8]) -> Result<(), RuleError> {
        match rule.to_ascii_lowercase().as_slice() {
            b"on" => user.enabled = true,
            b"off" => user.enabled = false,
            // Accepted for compatibility; these once controlled the checks of RESTORE payloads.
            b"skip-sanitize-payload" | b"sanitize-payload" => {}
            b"nopass" => (user.nopass, user.passwords) = (true, Vec::new()),
            b"resetpass" => (user.nopass, user.passwords) = (false, Vec::new()),
            b"clearselectors" => user.selectors.clear(),
            b"reset" => *user = User::new(user.name.clone(), self.all_channels),
            _ => return self.apply_to_selector(&mut user.root, rule),
        }
        Ok(())
    }

    fn add_password(&self, user: &mut User, digest: Digest) {
        if !user.passwords.contains(&digest) {
            user.passwords.push(digest);
        }
        user.nopass = false;
    }

    fn apply_to_selector(&self, selector: &mut Selector, rule: &[u8]) -> Result<(), RuleError> {
        match rule.to_ascii_lowercase().as_slice() {
            b"allkeys" | b"~*" => (selector.all_keys, selector.keys) = (true, Vec::new()),
            b"resetkeys" => (selector.all_keys, selector.keys) = (false, Vec::new()),
            b"allchannels" | b"&*" => (selector.all_channels, selector.channels) = (true, Vec::new()),
            b"resetchannels" => (selector.all_channels, selector.channels) = (false, Vec::new()),
            b"alldbs" => selector.databases = Databases::All,
            b"resetdbs" => selector.databases = Databases::Only(BTreeSet::new()),
            b"allcommands" | b"+@all" => selector.begin_commands(CommandSet::all()),
            b"nocommands" | b"-@all" => selector.begin_commands(CommandSet::none()),
            [b'd', b'b', b'=', numbers @ ..] => selector.databases = Databases::Only(read_databases(numbers)?),
            _ => return self.apply_prefixed(selector, rule),
        }
        Ok(())
    }

    fn apply_prefixed(&self, selector: &mut Selector, rule: &[u8]) -> Result<(), RuleError> {
        match rule {
            [b'~', pattern @ ..] => add_keys(selector, KeyAccess::all(), pattern),
            [b'%', rest @ ..] if !selector.all_keys => {
                let (access, pattern) = read_access(rest)?;
                add_keys(selector, access, pattern)
            }
            [b'%', ..] => Err(RuleError::KeyAfterAll),
            [b'&', pattern @ ..] => add_channels(selector, pattern),
            [sign @ (b'+' | b'-'), b'@', category @ ..] => self.change_category(selector, category, *sign == b'+'),
            [b'+', name @ ..] if name.contains(&b'|') => self.allow_part(selector, name),
            [sign @ (b'+' | b'-'), name @ ..] => {
                let command = self.table.original(name).ok_or(RuleError::UnknownCommand)?;
                selector.change_command(command, *sign == b'+');
                selector.note_rule(command.full_name.as_bytes(), *sign == b'+');
                Ok(())
            }
            _ => Err(RuleError::Syntax),
        }
    }

    fn change_category(&self, selector: &mut Selector, name: &[u8], allow: bool) -> Result<(), RuleError> {
        let category = Categories::by_name(name).ok_or(RuleError::UnknownCommand)?;
        selector.note_rule(&[b"@", name].concat(), allow);
        let commands = self.table.all().iter().filter(|command| command.spec.categories().intersects(category));
        commands.for_each(|command| selector.change_command(command, allow));
        Ok(())
    }

    /// Allows a subcommand, or a certain first argument of a command without subcommands.
    fn allow_part(&self, selector: &mut Selector, name: &[u8]) -> Result<(), RuleError> {
        let bar = name.iter().rposition(|byte| *byte == b'|').unwrap_or_default();
        let (whole, part) = (&name[..bar], &name[bar + 1..]);
        let command = self.table.original(whole).ok_or(RuleError::UnknownCommand)?;
        if command.full_name.contains('|') {
            return Err(RuleError::FirstArgOfSubcommand);
        }
        // The rule must remain one word when it is written to a file.
        if part.is_empty() || has_blanks(part) {
            return Err(RuleError::Syntax);
        }
        if command.subcommands.is_empty() {
            logging::warning(format_args!(
                "Deprecation warning: Allowing a first arg of an otherwise blocked command is a misuse of ACL and may \
                 get disabled in the future (offender: +{})",
                String::from_utf8_lossy(name)
            ));
            selector.first_args.entry(command.id).or_default().insert(part.to_ascii_lowercase());
        } else {
            let subcommand = self.table.original(name).ok_or(RuleError::UnknownCommand)?;
            selector.change_command(subcommand, true);
        }
        selector.note_rule(name, true);
        Ok(())
    }
}

impl Selector {
    fn begin_commands(&mut self, commands: CommandSet) {
        self.commands = commands;
        self.command_rules.clear();
        self.first_args.clear();
    }

    /// Allows or denies a command, and all subcommands if it is a container.
    fn change_command(&mut self, command: &CommandInfo, allow: bool) {
        self.first_args.remove(&command.id);
        for id in std::iter::once(command.id).chain(command.subcommands.iter().copied()) {
            self.commands.set(id, allow);
        }
    }

    /// Adds a rule to the rules to print, and removes earlier rules for the same command or category or for its
    /// subcommands.
    fn note_rule(&mut self, name: &[u8], allow: bool) {
        let name = name.to_ascii_lowercase();
        let is_replaced = |old: &[u8]| old.strip_prefix(&name[..]).is_some_and(|rest| matches!(rest, [] | [b'|', ..]));
        self.command_rules.retain(|rule| !is_replaced(&rule.name));
        self.command_rules.push(CommandRule { allow, name });
    }
}

fn remove_password(user: &mut User, digest: Digest) -> Result<(), RuleError> {
    let at = user.passwords.iter().position(|known| *known == digest).ok_or(RuleError::NoSuchPassword)?;
    user.passwords.remove(at);
    Ok(())
}

/// Parses the letters between `%` and `~`, each at most once, and the pattern. Without a `~`, the pattern is empty.
fn read_access(rest: &[u8]) -> Result<(KeyAccess, &[u8]), RuleError> {
    let (letters, pattern) = match rest.iter().position(|byte| *byte == b'~') {
        Some(at) => (&rest[..at], &rest[at + 1..]),
        None => (rest, &[][..]),
    };
    let mut access = KeyAccess::empty();
    for letter in letters {
        let one = match letter.to_ascii_uppercase() {
            b'R' => KeyAccess::READ,
            b'W' => KeyAccess::WRITE,
            _ => return Err(RuleError::Syntax),
        };
        if access.contains(one) {
            return Err(RuleError::Syntax);
        }
        access |= one;
    }
    if access.is_empty() { Err(RuleError::Syntax) } else { Ok((access, pattern)) }
}

fn add_keys(selector: &mut Selector, access: KeyAccess, pattern: &[u8]) -> Result<(), RuleError> {
    if selector.all_keys {
        return Err(RuleError::KeyAfterAll);
    }
    if has_blanks(pattern) {
        return Err(RuleError::Syntax);
    }
    match selector.keys.iter_mut().find(|known| *known.pattern == *pattern) {
        Some(known) => known.access |= access,
        None => selector.keys.push(KeyPattern { access, pattern: pattern.into() }),
    }
    Ok(())
}

fn add_channels(selector: &mut Selector, pattern: &[u8]) -> Result<(), RuleError> {
    if selector.all_channels {
        return Err(RuleError::ChannelAfterAll);
    }
    if has_blanks(pattern) {
        return Err(RuleError::Syntax);
    }
    if !selector.channels.iter().any(|known| **known == *pattern) {
        selector.channels.push(pattern.into());
    }
    Ok(())
}

/// Parses database numbers separated by commas. Numbers beyond the current number of databases are accepted, since a
/// restart may add databases.
fn read_databases(list: &[u8]) -> Result<BTreeSet<u32>, RuleError> {
    list.split(|byte| *byte == b',').map(read_database).collect()
}

/// Parses a number as C's `strtol` does: with leading blanks and a sign.
fn read_database(text: &[u8]) -> Result<u32, RuleError> {
    let text = &text[text.iter().take_while(|byte| matches!(byte, b' ' | b'\t'..=b'\r')).count()..];
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(RuleError::Syntax);
    }
    let value = digits.iter().fold(0u64, |value, digit| value.saturating_mul(10).saturating_add((digit - b'0').into()));
    match u32::try_from(value) {
        Ok(number) if number <= i32::MAX as u32 && (!negative || number == 0) => Ok(number),
        _ => Err(RuleError::DatabaseOutOfRange),
    }
}

#[cfg(test)]
mod tests;
