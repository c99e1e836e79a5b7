//! The server: the core, and the subsystems that stand on it.

use crate::config::Values;
use crate::config::tables::security;
use crate::config::words::ProtectedAction;
use crate::defrag::Defrag;
use crate::listen::{Listeners, Transport};
use crate::process::shutdown;
use crate::session::Client;
use crate::watchdog::Watchdog;
use crate::worker::apply::Applier;
use crate::worker::blocking::unblock_all;
use crate::worker::handlers::Handler;
use crate::worker::output;
use crate::worker::replay::Player;
use kvick_acl::Acl;
use kvick_commands::context::Error;
use kvick_commands::table::{CommandInfo, CommandTable};
use kvick_core::Core;
use kvick_core::clients::ClientInfo;
use kvick_core::handover::Handover;
use kvick_core::message::Message;
use kvick_durability::DurableCore;
use kvick_durability::aof::{self};
use kvick_durability::persistence::{self};
use kvick_net::socket::Socket;
use kvick_replication::ReplicatedCore;
use kvick_replication::history;
use parking_lot::RwLock;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

/// The server. There is one, and it lives as long as the process.
pub struct Server {
    /// The core with durability and replication.
    pub replicated: &'static ReplicatedCore,
    /// Where the settings were read from, for CONFIG REWRITE.
    pub config_file: Option<PathBuf>,
    /// How the process was started.
    pub executable: PathBuf,
    /// All commands.
    pub table: &'static CommandTable<Handler>,
    /// Users and their rights.
    pub acl: Acl,
    /// Connections on their way to the workers that are to have them.
    pub connections: Handover<(Socket, Arc<ClientInfo>)>,
    /// The software watchdog.
    pub watchdog: Watchdog,
    /// Active defragmentation.
    pub defrag: Defrag,
    /// The sockets that are listened on.
    listeners: OnceLock<Listeners>,
    /// Bytes that a worker writes to a connection at once; none when replies are to be [listed](output::list_replies).
    pub written_at_once: AtomicUsize,
    /// A signal's request that the server end.
    pub shutdown: shutdown::Request,
    /// Addresses that are listened on, for the banner and INFO.
    pub listening: RwLock<Vec<String>>,
}

impl Deref for Server {
    type Target = ReplicatedCore;

    fn deref(&self) -> &ReplicatedCore {
        self.replicated
    }
}

impl Server {
    /// A server with these settings and commands, not yet listening.
    pub fn leak(
        values: Values,
        config_file: Option<PathBuf>,
        executable: PathBuf,
        table: CommandTable<Handler>,
    ) -> &'static Server {
        let table: &'static CommandTable<Handler> = Box::leak(Box::new(table));
        let core: &'static Core = Box::leak(Box::new(Core::new(values, table.catalogue(), history::random_id())));
        let durable: &'static DurableCore = Box::leak(Box::new(DurableCore::new(core)));
        let replicated = ReplicatedCore::leak(durable);
        let workers = core.workers();
        let server: &'static Server = Box::leak(Box::new(Server {
            replicated,
            config_file,
            executable,
            table,
            acl: Acl::default(),
            connections: Handover::new(workers),
            watchdog: Watchdog::default(),
            defrag: Defrag::default(),
            listeners: OnceLock::new(),
            written_at_once: AtomicUsize::new(output::WRITE),
            shutdown: shutdown::Request::default(),
            listening: RwLock::default(),
        }));
        replicated.set_applier(move |participant| Box::new(Applier::new(server, participant)));
        replicated.set_unblock(unblock_all);
        durable.set_replayer(move |participant| Box::new(Player::new(server, participant)));
        server
    }

    /// Tells the sockets that are listened on, once.
    pub fn set_listeners(&self, listeners: Listeners) {
        *self.listening.write() = listeners.describe();
        // As above.
        let _ = self.listeners.set(listeners);
    }

    /// Listens on the addresses and the port that `values` give a transport from now on. On an error there may be none that
    /// is listened on.
    pub fn listen_anew(&self, values: &Values, transport: Transport) -> std::io::Result<()> {
        let Some(listeners) = self.listeners.get() else { return Ok(()) };
        let reopened = listeners.reopen(values, transport);
        *self.listening.write() = listeners.describe();
        self.send(0, Message::Listen);
        reopened
    }

    /// Why a protected command may not run for this client.
    pub fn protected_refusal(&self, client: &Client, command: &CommandInfo) -> Option<Error> {
        let (setting, directive) = match command.full_name.split('|').next() {
            Some("debug") => (self.config.read(security::ENABLE_DEBUG_COMMAND), "enable-debug-command"),
            _ => (self.config.read(security::ENABLE_MODULE_COMMAND), "enable-module-command"),
        };
        let allowed = match setting {
            ProtectedAction::Yes => true,
            ProtectedAction::No => false,
            ProtectedAction::Local => client.is_local(),
        };
        (!allowed).then(|| {
            let name = command.full_name.split('|').next().unwrap_or_default().to_uppercase();
            Error::new(format!(
                "ERR {name} command not allowed. If the {directive} option is set to \"local\", you can run it from a \
                 local connection, otherwise you need to set this option in the configuration file, and then restart \
                 the server."
            ))
        })
    }

    /// Does the periodic work of the whole server. The first worker calls it several times a second.
    pub fn tick(&'static self) {
        shutdown::poll(self);
        persistence::schedule::tick(self);
        self.tick_replication();
        aof::rewrite::tick(self);
        self.migration.sockets.close_idle();
        self.defrag.tick(self);
        self.tls.reload_if_due(&self.config.values());
        self.sample();
    }

    /// Resets the counters that CONFIG RESETSTAT resets. The caller holds the global lock, so that no command runs.
    pub fn reset_stats(&self) {
        Core::reset_stats(self);
        self.acl.log.reset_counts();
        self.persistence.reset_stats();
        self.scripting.reset_stats();
        aof::reset_stats(&self.aof);
        self.defrag.reset();
        self.replication.counts.reset();
    }

    /// Ends the server. Listeners close first, so that nobody can connect any more before a connection is closed.
    pub fn end(&self) {
        if let Some(listeners) = self.listeners.get() {
            listeners.close();
        }
        Core::end(self);
    }
}
