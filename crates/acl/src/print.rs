//! Prints users as rules, which [`super::rules`] can parse.

use super::user::{CommandRule, Databases, KeyAccess, KeyPattern, Selector, User};

impl User {
    /// The line of the user in an ACL file or configuration file without the word `user`: its name and its rules.
    pub fn line(&self) -> Vec<u8> {
        [&self.name, &b" "[..], &self.rules()].concat()
    }

    /// The rules that define the user.
    pub fn rules(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for flag in self.flags() {
            text.extend_from_slice(flag.as_bytes());
            text.push(b' ');
        }
        for password in &self.passwords {
            text.extend_from_slice(format!("#{password} ").as_bytes());
        }
        self.root.print(&mut text);
        for selector in &self.selectors {
            text.extend_from_slice(b" (");
            selector.print(&mut text);
            text.push(b')');
        }
        text
    }

    /// The flags `on` or `off`, and `nopass`.
    pub fn flags(&self) -> impl Iterator<Item = &'static str> {
        let state = if self.enabled { "on" } else { "off" };
        std::iter::once(state).chain(self.nopass.then_some("nopass"))
    }
}

impl Selector {
    fn print(&self, text: &mut Vec<u8>) {
        for part in [self.key_rules(), self.channel_rules_with_reset(), self.database_rules_with_reset()] {
            if !part.is_empty() {
                text.extend_from_slice(&part);
                text.push(b' ');
            }
        }
        text.extend_from_slice(&self.command_rules());
    }

    /// The rules for commands.
    pub fn command_rules(&self) -> Vec<u8> {
        let mut text = if self.commands.allows_by_default() { b"+@all".to_vec() } else { b"-@all".to_vec() };
        for CommandRule { allow, name } in &self.command_rules {
            text.extend_from_slice(if *allow { b" +" } else { b" -" });
            text.extend_from_slice(name);
        }
        text
    }

    /// The rules for keys.
    pub fn key_rules(&self) -> Vec<u8> {
        if self.all_keys {
            return b"~*".to_vec();
        }
        let print = |KeyPattern { access, pattern }: &KeyPattern| {
            let prefix: &[u8] = if *access == KeyAccess::all() {
                b"~"
            } else if *access == KeyAccess::READ {
                b"%R~"
            } else {
                b"%W~"
            };
            [prefix, pattern].concat()
        };
        self.keys.iter().map(print).collect::<Vec<_>>().join(&b' ')
    }

    /// The rules for channels.
    pub fn channel_rules(&self) -> Vec<u8> {
        if self.all_channels {
            return b"&*".to_vec();
        }
        self.channels.iter().map(|pattern| [b"&", &**pattern].concat()).collect::<Vec<_>>().join(&b' ')
    }

    /// Starts with a reset if needed, since new users may be allowed all channels.
    fn channel_rules_with_reset(&self) -> Vec<u8> {
        match (self.all_channels, self.channels.is_empty()) {
            (true, _) => self.channel_rules(),
            (false, true) => b"resetchannels".to_vec(),
            (false, false) => [b"resetchannels ", &self.channel_rules()[..]].concat(),
        }
    }

    /// The rules for databases: the allowed databases if they are restricted; empty if none is allowed.
    pub fn database_rules(&self) -> Vec<u8> {
        match &self.databases {
            Databases::All => b"alldbs".to_vec(),
            Databases::Only(none) if none.is_empty() => Vec::new(),
            Databases::Only(these) => {
                let numbers: Vec<String> = these.iter().map(u32::to_string).collect();
                format!("db={}", numbers.join(",")).into_bytes()
            }
        }
    }

    /// Empty if all databases are allowed, which is the default for new users.
    fn database_rules_with_reset(&self) -> Vec<u8> {
        match &self.databases {
            Databases::All => Vec::new(),
            Databases::Only(none) if none.is_empty() => b"resetdbs".to_vec(),
            Databases::Only(_) => self.database_rules(),
        }
    }
}
