//! All commands by name. A [`Catalogue`] contains the descriptions of all commands. A [`CommandTable`] adds the
//! handlers of the commands that access more than data; the upper layers define the type of these handlers.

use crate::context::Handler as DataHandler;
use crate::spec::{Begin, Command, Find, Flags, KeyFlags, LockRule, Spec};
use kvick_resp::Args;

/// The state that a command accesses, which determines the part of the server that runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// Only the keyspace.
    Data,
    /// Also the connection or the server.
    Session,
    /// The client's transaction.
    Transaction,
    /// A script or function that calls other commands.
    Script,
}

/// How the fast path executes a command.
#[derive(Clone, Copy)]
pub enum FastPath {
    /// With its only key, the argument at this index.
    Key(usize),
    /// Without a key: the command accesses no data.
    Nothing,
}

/// A command as registered in the catalogue.
pub struct CommandInfo {
    /// Its index in the catalogue.
    pub id: u32,
    /// Its description.
    pub spec: &'static Spec,
    /// Its name, preceded by that of its container: "client|id".
    pub full_name: String,
    /// The state that it accesses.
    pub class: Class,
    /// Its handler, if it is a data command; a container may have none.
    pub data: Option<DataHandler>,
    /// The index of its container, if it is a subcommand.
    pub container: Option<u32>,
    /// The indices of its subcommands.
    pub subcommands: Vec<u32>,
    /// The argument index of its only key, if the specification describes it directly and it is all that the command
    /// locks.
    pub single_key: Option<usize>,
    /// Whether it takes little time per key and accesses nothing else.
    pub brief: bool,
    /// How the fast path executes it; `None` if the fast path does not support it.
    pub fast_path: Option<(FastPath, DataHandler)>,
}

/// All commands. Names are case-insensitive.
#[derive(Default)]
pub struct Catalogue {
    commands: Vec<CommandInfo>,
    /// A hash table with open addressing for names of up to eight bytes, which include nearly all frequent commands:
    /// the name as a word, and the command index.
    short: Vec<(u64, u32)>,
    /// The longer names, sorted.
    long: Vec<(String, u32)>,
    /// The names that clients use, after `rename-command` has renamed or removed commands.
    names: Vec<(String, u32)>,
}

/// All commands, with the handlers `H` of those that are not of [`Class::Data`].
pub struct CommandTable<H> {
    catalogue: Catalogue,
    handlers: Vec<Option<H>>,
}

/// The command of a request.
pub enum Resolved<'a> {
    /// A known command.
    Command(&'a CommandInfo),
    /// An unknown command.
    Unknown,
    /// An unknown subcommand of this container.
    UnknownSubcommand(&'a CommandInfo),
}

impl<H: Copy> Default for CommandTable<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Copy> CommandTable<H> {
    /// A table of the data commands.
    pub fn new() -> Self {
        let mut table = CommandTable { catalogue: Catalogue::default(), handlers: Vec::new() };
        for family in crate::families() {
            table.add_all(Class::Data, family, &|_| None, &Some);
        }
        table
    }

    /// Adds a family of commands that are not of [`Class::Data`]. `wrap` converts their handlers.
    pub fn add_family<F: Copy>(&mut self, class: Class, family: &'static [Command<F>], wrap: fn(F) -> H) {
        self.add_all(class, family, &|handler| Some(wrap(handler)), &|_| None);
    }

    fn add_all<F: Copy>(
        &mut self,
        class: Class,
        family: &'static [Command<F>],
        wrap: &dyn Fn(F) -> Option<H>,
        data: &dyn Fn(F) -> Option<DataHandler>,
    ) {
        family.iter().for_each(|command| _ = self.add(class, command, None, wrap, data));
        self.catalogue.name_all();
    }

    fn add<F: Copy>(
        &mut self,
        class: Class,
        command: &'static Command<F>,
        container: Option<u32>,
        wrap: &dyn Fn(F) -> Option<H>,
        data: &dyn Fn(F) -> Option<DataHandler>,
    ) -> u32 {
        let id = self.handlers.len() as u32;
        let (spec, name) = (&command.spec, command.spec.name);
        let full_name = match container.map(|id| &self.catalogue.commands[id as usize].full_name) {
            None => name.to_string(),
            Some(container) => format!("{container}|{name}"),
        };
        let (data_handler, single_key) = (command.handler.and_then(data), single_key(spec));
        let fast_path = data_handler.and_then(|handler| Some((fast_path(spec, single_key)?, handler)));
        self.handlers.push(command.handler.and_then(wrap));
        self.catalogue.commands.push(CommandInfo {
            id,
            spec,
            full_name,
            class,
            data: data_handler,
            container,
            subcommands: Vec::new(),
            single_key,
            brief: data_handler.is_some() && is_brief(spec),
            fast_path,
        });
        for subcommand in command.subcommands {
            let sub_id = self.add(class, subcommand, Some(id), wrap, data);
            self.catalogue.commands[id as usize].subcommands.push(sub_id);
        }
        id
    }

    /// The catalogue of the commands.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Renames a command: see [`Catalogue::rename`].
    pub fn rename(&mut self, old: &str, new: &str) -> bool {
        self.catalogue.rename(old, new)
    }

    /// The handler of a command that is not of [`Class::Data`]; `None` for a container without a handler.
    #[inline]
    pub fn handler(&self, command: &CommandInfo) -> Option<H> {
        self.handlers[command.id as usize]
    }
}

impl Catalogue {
    fn name_all(&mut self) {
        let top = self.commands.iter().filter(|command| !command.full_name.contains('|'));
        self.names = top.map(|command| (command.full_name.clone(), command.id)).collect();
        self.index();
    }

    fn index(&mut self) {
        let size = (self.names.len() * 4).next_power_of_two();
        self.short = vec![(0, 0); size];
        self.long.clear();
        for (name, id) in &self.names {
            match word(name.as_bytes()) {
                None => self.long.push((name.clone(), *id)),
                Some(word) => {
                    let mut at = slot(word, size);
                    while self.short[at].0 != 0 {
                        at = (at + 1) & (size - 1);
                    }
                    self.short[at] = (word, *id);
                }
            }
        }
        self.long.sort();
    }

    /// Renames a command for clients, or removes it if `new` is empty. Returns false if the command does not exist or
    /// the new name is in use.
    pub fn rename(&mut self, old: &str, new: &str) -> bool {
        let taken = self.names.iter().any(|(name, _)| name.eq_ignore_ascii_case(new));
        let Some(at) = self.names.iter().position(|(name, _)| name.eq_ignore_ascii_case(old)) else { return false };
        if taken {
            return false;
        }
        if new.is_empty() {
            self.names.remove(at);
        } else {
            self.names[at].0 = new.to_ascii_lowercase();
        }
        self.index();
        true
    }

    /// Finds a top-level command by name.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<&CommandInfo> {
        let Some(word) = word(name) else { return self.find_long(name) };
        let size = self.short.len();
        let mut at = slot(word, size);
        loop {
            let (known, id) = self.short[at];
            if known == word {
                return Some(&self.commands[id as usize]);
            }
            if known == 0 {
                return None;
            }
            at = (at + 1) & (size - 1);
        }
    }

    #[cold]
    fn find_long(&self, name: &[u8]) -> Option<&CommandInfo> {
        let name = name.to_ascii_lowercase();
        let at = self.long.binary_search_by(|(known, _)| known.as_bytes().cmp(&name)).ok()?;
        Some(&self.commands[self.long[at].1 as usize])
    }

    /// Finds the command of a request.
    #[inline]
    pub fn resolve(&self, args: Args<'_>) -> Resolved<'_> {
        let Some(command) = args.get(0).and_then(|name| self.find(name)) else { return Resolved::Unknown };
        if command.subcommands.is_empty() || args.len() < 2 {
            return Resolved::Command(command);
        }
        match self.subcommand(command, &args[1]) {
            Some(subcommand) => Resolved::Command(subcommand),
            None => Resolved::UnknownSubcommand(command),
        }
    }

    /// Finds a subcommand of a container by name.
    pub fn subcommand(&self, container: &CommandInfo, name: &[u8]) -> Option<&CommandInfo> {
        let mut subcommands = container.subcommands.iter().map(|id| &self.commands[*id as usize]);
        subcommands.find(|subcommand| subcommand.spec.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Finds a command by a full name such as "get" or "client|id".
    pub fn by_full_name(&self, name: &[u8]) -> Option<&CommandInfo> {
        match name.iter().position(|byte| *byte == b'|') {
            None => self.find(name),
            Some(bar) => self.subcommand(self.find(&name[..bar])?, &name[bar + 1..]),
        }
    }

    /// Finds a command or subcommand by its name before `rename-command`, such as "get" or "client|id".
    pub fn original(&self, name: &[u8]) -> Option<&CommandInfo> {
        self.commands.iter().find(|command| command.full_name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The container of a subcommand.
    pub fn container(&self, command: &CommandInfo) -> Option<&CommandInfo> {
        command.container.and_then(|id| self.get(id))
    }

    /// The command with this index.
    pub fn get(&self, id: u32) -> Option<&CommandInfo> {
        self.commands.get(id as usize)
    }

    /// All commands and subcommands.
    pub fn all(&self) -> &[CommandInfo] {
        &self.commands
    }

    /// The top-level commands by the names that clients use.
    pub fn top_level(&self) -> impl ExactSizeIterator<Item = (&str, &CommandInfo)> {
        self.names.iter().map(|(name, id)| (name.as_str(), &self.commands[*id as usize]))
    }
}

/// A name of one to eight ASCII bytes in lower case as a nonzero integer; `None` for other names. The top bit of the
/// last byte marks the end of the name.
#[inline]
fn word(name: &[u8]) -> Option<u64> {
    let four = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]) as u64;
    let raw = match name.len() {
        // Two overlapping halves: the second ends at the end of the name.
        4..=8 => four(0) | four(name.len() - 4) << (8 * (name.len() - 4)),
        len @ 1..=3 => {
            u64::from(name[0])
                | u64::from(name[len / 2]) << (8 * (len / 2))
                | u64::from(name[len - 1]) << (8 * (len - 1))
        }
        _ => return None,
    };
    // Sets bit 5 of letters only, which are bytes from 0x41 to 0x5a.
    const ONES: u64 = 0x0101_0101_0101_0101;
    let low = raw & (0x7f * ONES);
    let at_least_a = low + ONES * (0x80 - 0x41);
    let above_z = low + ONES * (0x80 - 0x5b);
    let letters = at_least_a & !above_z & !raw & (0x80 * ONES);
    (raw & (0x80 * ONES) == 0).then(|| (raw | letters >> 2) | 0x80 << (8 * (name.len() - 1)))
}

/// The slot where the search for a word starts.
#[inline]
fn slot(word: u64, size: usize) -> usize {
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & (size - 1)
}

/// The index of the only key. A function that finds keys does not prevent this: it determines flags that depend on
/// options, not other positions.
fn single_key(spec: &Spec) -> Option<usize> {
    match spec.keys {
        [only]
            if !only.flags.intersects(KeyFlags::INCOMPLETE | KeyFlags::NOT_KEY)
                && matches!(spec.lock, LockRule::Keys) =>
        {
            match (only.begin, only.find) {
                (Begin::Index(index), Find::Range { last: 0, .. }) => Some(index),
                _ => None,
            }
        }
        _ => None,
    }
}

fn is_brief(spec: &Spec) -> bool {
    spec.flags.contains(Flags::FAST)
        && !spec.flags.intersects(Flags::BLOCKING | Flags::TOUCHES_ARBITRARY_KEYS)
        && matches!(spec.lock, LockRule::Keys)
}

fn fast_path(spec: &Spec, single_key: Option<usize>) -> Option<FastPath> {
    let is_protected = spec.protection.is_some();
    let touches_nothing = spec.keys.is_empty()
        && matches!(spec.lock, LockRule::Keys)
        && !spec.flags.intersects(Flags::READONLY | Flags::WRITE);
    let fast_path = single_key.map(FastPath::Key).or(touches_nothing.then_some(FastPath::Nothing));
    fast_path.filter(|_| !is_protected)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_ignore_only_case() {
        assert_eq!(word(b"SET"), word(b"set"));
        assert_eq!(word(b"GetRange"), word(b"getrange"));
        let distinct =
            ["a", "aa", "aaa", "aaaa", "aaaaa", "aaaaaaaa", "@", "`", "[", "{", "set", "get", "st", "s_t", "s-t"];
        let words: std::collections::HashSet<_> = distinct.iter().map(|name| word(name.as_bytes())).collect();
        assert_eq!(words.len(), distinct.len());
        assert_ne!(word(b"set"), word(b"set\0"));
        assert!(word(b"").is_none() && word(b"ninebytes").is_none() && word(b"s\xe5t").is_none());
    }

    #[test]
    fn every_command_is_found_by_its_name_in_any_case() {
        let table = CommandTable::<()>::new();
        for (name, command) in table.catalogue().top_level() {
            for name in [name.to_string(), name.to_uppercase()] {
                assert_eq!(table.catalogue().find(name.as_bytes()).map(|found| found.id), Some(command.id), "{name}");
            }
        }
        assert!(table.catalogue().find(b"nosuch").is_none() && table.catalogue().find(b"nosuchcommand").is_none());
    }

    #[test]
    fn renamed_commands_have_only_the_new_name() {
        let mut table = CommandTable::<()>::new();
        assert!(table.rename("get", "fetch-a-value") && table.rename("SET", ""));
        assert!(table.catalogue().find(b"get").is_none() && table.catalogue().find(b"set").is_none());
        assert!(table.catalogue().find(b"FETCH-A-VALUE").is_some());
        assert!(!table.rename("append", "ping"), "the name is taken");
    }
}
