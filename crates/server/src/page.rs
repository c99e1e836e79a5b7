//! The server as the page for browsers sees it: see the crate `kvick-page`.
//!
//! A connection of the page is one end of a pair of Unix sockets. A worker gets the other end like an accepted client,
//! with the addresses of the browser.

use crate::server::Server;
use kvick_commands::spec::{Arg, ArgKind, Flags};
use kvick_commands::table::CommandInfo;
use kvick_config::tables::metrics::{UI, UI_WRITE};
use kvick_config::{Effect, Flags as DirectiveFlags, explanations, tables};
use kvick_net::listen::{self, Peer};
use kvick_net::socket::Socket;
use kvick_page::{Browser, CommandFacts, Host, Settings, policy};
use kvick_runtime::version;
use serde_json::{Value, json};
use std::io;
use std::os::unix::net::UnixStream;

/// See the module's documentation.
pub struct PageHost {
    server: &'static Server,
}

impl PageHost {
    /// The server for the page.
    pub fn new(server: &'static Server) -> PageHost {
        PageHost { server }
    }

    fn facts(&self, command: &CommandInfo) -> CommandFacts {
        CommandFacts {
            name: command.full_name.clone(),
            is_read_only: command.spec.flags.contains(Flags::READONLY),
            is_blocking: command.spec.flags.contains(Flags::BLOCKING),
            is_internal: command.spec.internal,
        }
    }

    /// Whether a command does something without a subcommand.
    fn is_callable(&self, command: &CommandInfo) -> bool {
        command.data.is_some() || self.server.table.handler(command).is_some()
    }

    /// A command for the console. `name` is the one that clients use.
    fn describe(&self, name: &str, command: &CommandInfo) -> Value {
        let spec = command.spec;
        let facts = self.facts(command);
        json!({
            "name": name,
            "summary": spec.summary,
            "group": spec.group.name(),
            "since": spec.since,
            "complexity": spec.complexity,
            "arguments": syntax(spec.args),
            "is_container": !self.is_callable(command),
            "deprecated": spec.deprecated.is_some(),
            "reads": policy::check(Some(&facts), &[], false).is_ok(),
        })
    }
}

impl Host for PageHost {
    fn settings(&self) -> Settings {
        Settings { is_enabled: self.server.config.read(UI), may_write: self.server.config.read(UI_WRITE) }
    }

    fn connect(&self, Browser { peer, local }: Browser) -> io::Result<UnixStream> {
        let (own, passed_on) = UnixStream::pair()?;
        let socket = Socket::from_unix(passed_on)?;
        let is_open = self.server.acl.default_user().nopass;
        let peer = Peer::passed_on(peer, local);
        let config = self.server.runtime_config();
        if let Some(new) = listen::admit(self.server, socket, peer, &config, is_open) {
            let mut names = new.info.names.lock();
            names.lib_name = (*b"kvick-page").into();
            names.lib_ver = version::KVICK.as_bytes().into();
            drop(names);
            self.server.connections.put(self.server, new.info.worker(), new);
        }
        Ok(own)
    }

    fn command(&self, name: &[u8], first_argument: Option<&[u8]>) -> Option<CommandFacts> {
        let table = self.server.table.catalogue();
        let command = table.find(name)?;
        match first_argument.filter(|_| !command.subcommands.is_empty()) {
            None => Some(self.facts(command)),
            Some(subcommand) => table.subcommand(command, subcommand).map(|command| self.facts(command)),
        }
    }

    fn commands_table(&self) -> String {
        let table = self.server.table.catalogue();
        let mut commands = Vec::new();
        for (name, command) in table.top_level().filter(|(_, command)| !command.spec.internal) {
            commands.push(self.describe(name, command));
            for subcommand in command.subcommands.iter().filter_map(|id| table.get(*id)) {
                if !subcommand.spec.internal {
                    commands.push(self.describe(&format!("{name} {}", subcommand.spec.name), subcommand));
                }
            }
        }
        json!({ "commands": commands }).to_string()
    }

    fn directives(&self) -> String {
        let describe = |explanation: explanations::Explanation| {
            let name = explanation.name();
            let directive = tables::find(name.as_bytes()).map(|found| found.id.directive());
            json!({
                "name": name,
                "section": explanation.section,
                "line": explanation.line,
                "text": explanation.text,
                "in_file_only": directive.is_none(),
                "immutable": directive.is_none_or(|it| it.flags.contains(DirectiveFlags::IMMUTABLE)),
                "secret": directive.is_some_and(|it| it.flags.contains(DirectiveFlags::SENSITIVE)),
                "works": directive.is_none_or(|it| it.effect == Effect::Works),
            })
        };
        let directives: Vec<Value> = explanations::all().into_iter().map(describe).collect();
        json!({ "directives": directives }).to_string()
    }
}

/// The arguments of a command in the notation of its documentation.
fn syntax(args: &[Arg]) -> String {
    args.iter().map(syntax_of).collect::<Vec<_>>().join(" ")
}

fn syntax_of(arg: &Arg) -> String {
    let value = match arg.kind {
        ArgKind::PureToken => String::new(),
        ArgKind::OneOf => {
            let choices = arg.args.iter().map(syntax_of).collect::<Vec<_>>().join(" | ");
            if arg.optional { choices } else { format!("<{choices}>") }
        }
        ArgKind::Block => syntax(arg.args),
        _ if arg.display.is_empty() => arg.name.to_owned(),
        _ => arg.display.to_owned(),
    };
    let token = arg.token.map(|token| if token.is_empty() { "\"\"" } else { token });
    let mut text = match token {
        Some(token) if value.is_empty() => token.to_owned(),
        Some(token) => format!("{token} {value}"),
        None => value.clone(),
    };
    if arg.multiple {
        let repeated = if arg.multiple_token || token.is_none() { &text } else { &value };
        text = format!("{text} [{repeated} ...]");
    }
    if arg.optional { format!("[{text}]") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn syntax_of_command(name: &str) -> String {
        let table = crate::commands::table();
        let command = table.catalogue().by_full_name(name.as_bytes()).expect("a command");
        syntax(command.spec.args)
    }

    #[test]
    fn arguments_are_written_as_in_the_documentation() {
        assert_eq!(syntax_of_command("get"), "key");
        assert_eq!(syntax_of_command("del"), "key [key ...]");
        assert_eq!(
            syntax_of_command("getex"),
            "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]"
        );
        assert_eq!(syntax_of_command("config|set"), "parameter value [parameter value ...]");
    }

    /// Names in lists of the policy that no command has would protect nothing.
    #[test]
    fn policy_names_commands_that_exist() {
        let table = crate::commands::table();
        let known = |name: &str| table.catalogue().original(name.as_bytes()).is_some();
        let missing: Vec<&str> = policy::names().filter(|name| !known(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }
}
