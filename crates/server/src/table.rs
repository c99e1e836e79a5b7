//! All commands of the server by name: the families' tables, data and session commands alike, made one.

use crate::session::SessionHandler;
use kvick_commands::context::Handler as DataHandler;
use kvick_commands::spec::{Begin, Command, Find, Flags, Spec};
use kvick_resp::Args;

/// The code of a command.
#[derive(Clone, Copy)]
pub enum Handler {
    /// Works on the keyspace alone.
    Data(DataHandler),
    /// Also on the connection and the server.
    Session(SessionHandler),
}

/// A command as the server knows it.
pub struct Registered {
    /// Its place in the table.
    pub id: u32,
    /// What is known about it.
    pub spec: &'static Spec,
    /// Its name, with its container's in front: "client|id".
    pub full_name: String,
    /// Its code; a container may have none.
    pub handler: Option<Handler>,
    /// Its subcommands' places in the table.
    pub subcommands: Vec<u32>,
    /// Where its only key is, when its key specification says so plainly: the case worth being fast for.
    pub single_key: Option<usize>,
}

/// The table. Names are looked up without regard to case.
pub struct CommandTable {
    commands: Vec<Registered>,
    /// Open addressing over the top-level commands: index + 1, or 0.
    slots: Vec<u32>,
    /// Names given by `rename-command`; an empty new name removes.
    names: Vec<(String, u32)>,
}

/// What a request asks for.
pub enum Resolved<'a> {
    /// This command.
    Command(&'a Registered),
    /// Nothing that is known.
    Unknown,
    /// A subcommand that the container does not have.
    UnknownSubcommand(&'a Registered),
}

impl CommandTable {
    /// The table of all families.
    pub fn new() -> Self {
        let mut table = CommandTable { commands: Vec::new(), slots: Vec::new(), names: Vec::new() };
        for family in kvick_commands::families() {
            family.iter().for_each(|command| table.add(command, "", &Handler::Data));
        }
        for family in crate::commands::families() {
            family.iter().for_each(|command| table.add(command, "", &Handler::Session));
        }
        let top = table.commands.iter().filter(|command| !command.full_name.contains('|'));
        table.names = top.map(|command| (command.full_name.clone(), command.id)).collect();
        table.index();
        table
    }

    fn add<H: Copy>(&mut self, command: &'static Command<H>, container: &str, wrap: &dyn Fn(H) -> Handler) {
        let id = self.commands.len() as u32;
        let name = command.spec.name;
        let full_name = if container.is_empty() { name.to_string() } else { format!("{container}|{name}") };
        self.commands.push(Registered {
            id,
            spec: &command.spec,
            full_name,
            handler: command.handler.map(wrap),
            subcommands: Vec::new(),
            single_key: single_key(&command.spec),
        });
        for subcommand in command.subcommands {
            let sub_id = self.commands.len() as u32;
            self.add(subcommand, name, wrap);
            self.commands[id as usize].subcommands.push(sub_id);
        }
    }

    fn index(&mut self) {
        let size = (self.names.len() * 4).next_power_of_two();
        self.slots = vec![0; size];
        for (number, (name, _)) in self.names.iter().enumerate() {
            let mut at = hash(name.as_bytes()) as usize & (size - 1);
            while self.slots[at] != 0 {
                at = (at + 1) & (size - 1);
            }
            self.slots[at] = number as u32 + 1;
        }
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
    pub fn find(&self, name: &[u8]) -> Option<&Registered> {
        let mask = self.slots.len() - 1;
        let mut at = hash(name) as usize & mask;
        loop {
            let (known, id) = match self.slots[at] {
                0 => return None,
                number => &self.names[number as usize - 1],
            };
            if known.as_bytes().eq_ignore_ascii_case(name) {
                return Some(&self.commands[*id as usize]);
            }
            at = (at + 1) & mask;
        }
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
    pub fn subcommand(&self, container: &Registered, name: &[u8]) -> Option<&Registered> {
        let mut subcommands = container.subcommands.iter().map(|id| &self.commands[*id as usize]);
        subcommands.find(|subcommand| subcommand.spec.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// The command that a name such as "get" or "client|id" means.
    pub fn by_full_name(&self, name: &[u8]) -> Option<&Registered> {
        match name.iter().position(|byte| *byte == b'|') {
            None => self.find(name),
            Some(bar) => self.subcommand(self.find(&name[..bar])?, &name[bar + 1..]),
        }
    }

    /// A command by its place in the table.
    pub fn get(&self, id: u32) -> Option<&Registered> {
        self.commands.get(id as usize)
    }

    /// All commands and subcommands.
    pub fn all(&self) -> &[Registered] {
        &self.commands
    }

    /// The commands that clients can name, by those names.
    pub fn top_level(&self) -> impl ExactSizeIterator<Item = (&str, &Registered)> {
        self.names.iter().map(|(name, id)| (name.as_str(), &self.commands[*id as usize]))
    }
}

/// A hash of a name without regard to case. Names are not secret and the table does not change: quick is enough.
#[inline]
fn hash(name: &[u8]) -> u32 {
    let fold = |byte: u8| u32::from(byte | 0x20);
    name.iter().take(24).fold(name.len() as u32, |h, byte| (h ^ fold(*byte)).wrapping_mul(0x0100_0193))
}

fn single_key(spec: &Spec) -> Option<usize> {
    match spec.keys {
        [only] if spec.find_keys.is_none() && !spec.flags.contains(Flags::NO_MANDATORY_KEYS) => {
            match (only.begin, only.find) {
                (Begin::Index(index), Find::Range { last: 0, .. }) => Some(index),
                _ => None,
            }
        }
        _ => None,
    }
}
