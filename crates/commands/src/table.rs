//! All commands by name. A [`Catalogue`] says what is known about each command; a [`CommandTable`] adds the handlers of
//! those commands that work on more than data, whose type only the layers above know.

use crate::context::Handler as DataHandler;
use crate::spec::{Begin, Command, Find, Flags, KeyFlags, LockRule, Spec};
use kvick_resp::Args;

/// What a command works on, and so which part of the server runs it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// The keyspace alone.
    Data,
    /// The connection or the server as well.
    Session,
    /// The client's transaction.
    Transaction,
    /// A script or function, which calls other commands.
    Script,
}

/// How a command is executed on the fast path.
#[derive(Clone, Copy)]
pub enum FastPath {
    /// With its only key, which is the argument with this number.
    Key(usize),
    /// Without a key: it replies and touches no data.
    Nothing,
}

/// What is known about a command.
pub struct CommandInfo {
    /// Its place in the table.
    pub id: u32,
    /// Its description.
    pub spec: &'static Spec,
    /// Its name, with its container's in front: "client|id".
    pub full_name: String,
    /// What it works on.
    pub class: Class,
    /// Its handler, if it works on data alone; a container may have none.
    pub data: Option<DataHandler>,
    /// Its container's place in the table, if it is a subcommand.
    pub container: Option<u32>,
    /// Its subcommands' places in the table.
    pub subcommands: Vec<u32>,
    /// The index of its only key, when its key specification says so plainly and that key is all it locks.
    pub single_key: Option<usize>,
    /// Whether it takes little time for each of its keys and concerns nothing else.
    pub brief: bool,
    /// How it is executed on the fast path, if it may be.
    pub fast_path: Option<(FastPath, DataHandler)>,
}

/// All commands. Names are looked up without regard to case.
#[derive(Default)]
pub struct Catalogue {
    commands: Vec<CommandInfo>,
    /// Open addressing over the names of up to eight bytes, which is nearly all that are called often: the name as a
    /// word, and the command.
    short: Vec<(u64, u32)>,
    /// The longer names, sorted.
    long: Vec<(String, u32)>,
    /// The names that clients use: those given by `rename-command`, and without those that it removed.
    names: Vec<(String, u32)>,
}

/// All commands, with the handlers `H` of those that are not of [`Class::Data`].
pub struct CommandTable<H> {
    catalogue: Catalogue,
    handlers: Vec<Option<H>>,
}

/// What a request asks for.
pub enum Resolved<'a> {
    /// This command.
    Command(&'a CommandInfo),
    /// Nothing that is known.
    Unknown,
    /// A subcommand that the container does not have.
    UnknownSubcommand(&'a CommandInfo),
}

impl<H: Copy> Default for CommandTable<H> {
    fn default() -> Self {
        Self::new()
    }
}

impl<H: Copy> CommandTable<H> {
    /// The data commands.
    pub fn new() -> Self {
        let mut table = CommandTable { catalogue: Catalogue::default(), handlers: Vec::new() };
        for family in crate::families() {
            table.add_all(Class::Data, family, &|_| None, &Some);
        }
        table
    }

    /// Adds a family of commands that are not of [`Class::Data`]; `wrap` makes a handler of each of its own.
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

    /// What is known about the commands.
    pub fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// Renames a command: see [`Catalogue::rename`].
    pub fn rename(&mut self, old: &str, new: &str) -> bool {
        self.catalogue.rename(old, new)
    }

    /// The handler of a command that is not of [`Class::Data`]; `None` for a container that does nothing by itself.
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

    /// Renames a command for clients, or removes it when `new` is empty. False when there is no such command or the new
    /// name is taken.
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

    /// A top-level command by name.
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

    /// The command that a request asks for.
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

    /// A container's subcommand by name.
    pub fn subcommand(&self, container: &CommandInfo, name: &[u8]) -> Option<&CommandInfo> {
        let mut subcommands = container.subcommands.iter().map(|id| &self.commands[*id as usize]);
        subcommands.find(|subcommand| subcommand.spec.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The command that a name such as "get" or "client|id" means.
    pub fn by_full_name(&self, name: &[u8]) -> Option<&CommandInfo> {
        match name.iter().position(|byte| *byte == b'|') {
            None => self.find(name),
            Some(bar) => self.subcommand(self.find(&name[..bar])?, &name[bar + 1..]),
        }
    }

    /// A command or subcommand by the name that it has before `rename-command`, such as "get" or "client|id".
    pub fn original(&self, name: &[u8]) -> Option<&CommandInfo> {
        self.commands.iter().find(|command| command.full_name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The container of a subcommand.
    pub fn container(&self, command: &CommandInfo) -> Option<&CommandInfo> {
        command.container.and_then(|id| self.get(id))
    }

    /// A command by its place in the table.
    pub fn get(&self, id: u32) -> Option<&CommandInfo> {
        self.commands.get(id as usize)
    }

    /// All commands and subcommands.
    pub fn all(&self) -> &[CommandInfo] {
        &self.commands
    }

    /// The commands that clients can name, by those names.
    pub fn top_level(&self) -> impl ExactSizeIterator<Item = (&str, &CommandInfo)> {
        self.names.iter().map(|(name, id)| (name.as_str(), &self.commands[*id as usize]))
    }
}

/// A name of one to eight ASCII bytes, in lower case, as a number that is not 0; `None` for others. The top bit of the
/// last byte marks the name's end.
#[inline]
fn word(name: &[u8]) -> Option<u64> {
    let four = |at: usize| u32::from_le_bytes([name[at], name[at + 1], name[at + 2], name[at + 3]]) as u64;
    let raw = match name.len() {
        // Overlapping halves: the second ends where the name ends.
        4..=8 => four(0) | four(name.len() - 4) << (8 * (name.len() - 4)),
        len @ 1..=3 => {
            u64::from(name[0])
                | u64::from(name[len / 2]) << (8 * (len / 2))
                | u64::from(name[len - 1]) << (8 * (len - 1))
        }
        _ => return None,
    };
    // Bit 5 of the letters only: bytes from 0x41 to 0x5a.
    const ONES: u64 = 0x0101_0101_0101_0101;
    let low = raw & (0x7f * ONES);
    let at_least_a = low + ONES * (0x80 - 0x41);
    let above_z = low + ONES * (0x80 - 0x5b);
    let letters = at_least_a & !above_z & !raw & (0x80 * ONES);
    (raw & (0x80 * ONES) == 0).then(|| (raw | letters >> 2) | 0x80 << (8 * (name.len() - 1)))
}

/// Where the search for a word begins.
#[inline]
fn slot(word: u64, size: usize) -> usize {
    (word.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as usize & (size - 1)
}

/// A function that finds keys may be there all the same: it tells flags that depend on options, not other places.
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
    let is_protected = spec.flags.contains(Flags::PROTECTED);
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
    fn words_fold_case_and_nothing_else() {
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
    fn renamed_commands_answer_to_their_new_name_only() {
        let mut table = CommandTable::<()>::new();
        assert!(table.rename("get", "fetch-a-value") && table.rename("SET", ""));
        assert!(table.catalogue().find(b"get").is_none() && table.catalogue().find(b"set").is_none());
        assert!(table.catalogue().find(b"FETCH-A-VALUE").is_some());
        assert!(!table.rename("append", "ping"), "the name is taken");
    }
}
