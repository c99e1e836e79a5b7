//! What the page needs from the server.

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;

/// The settings of the page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Settings {
    /// Whether it is served at all.
    pub is_enabled: bool,
    /// Whether commands may change anything.
    pub may_write: bool,
}

/// The two ends of a browser's connection.
#[derive(Clone, Copy, Debug)]
pub struct Browser {
    /// The address of the browser.
    pub peer: SocketAddr,
    /// The address that it has connected to.
    pub local: SocketAddr,
}

/// Facts about the command of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommandFacts {
    /// Its full name, in lower case, before `rename-command`: "get", "config|set".
    pub name: String,
    /// Whether it only reads data.
    pub is_read_only: bool,
    /// Whether it may wait.
    pub is_blocking: bool,
    /// Whether only servers send it, to each other.
    pub is_internal: bool,
}

/// The server behind the page. The methods are called on the HTTP thread and must not block.
pub trait Host: Send + Sync {
    /// The present settings.
    fn settings(&self) -> Settings;

    /// Opens a connection of a new client, as if the browser had connected to the server's own port: the limit of
    /// clients and protected mode apply. A refused client receives an error and the end of the stream.
    ///
    /// # Errors
    /// If no socket can be created.
    fn connect(&self, browser: Browser) -> io::Result<UnixStream>;

    /// The command of a request; `None` if the server does not know it. A container with an unknown subcommand is not
    /// a known command.
    fn command(&self, name: &[u8], first_argument: Option<&[u8]>) -> Option<CommandFacts>;

    /// The table of commands for the console, as JSON.
    fn commands_table(&self) -> String;

    /// The directives of the configuration with their explanations, as JSON.
    fn directives(&self) -> String;
}
