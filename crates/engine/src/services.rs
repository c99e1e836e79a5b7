//! What the engine and the workers need: the core with durability and replication, users, all commands, and how the
//! engine reaches the process around it.

use crate::defrag::Defrag;
use crate::handlers::Handler;
use crate::session::Client;
use kvick_acl::Acl;
use kvick_commands::context::Error;
use kvick_commands::table::{CommandInfo, CommandTable};
use kvick_config::tables::security;
use kvick_config::words::ProtectedAction;
use kvick_core::Core;
use kvick_core::clients::ClientInfo;
use kvick_core::handover::Handover;
use kvick_durability::DurableCore;
use kvick_net::socket::Socket;
use kvick_replication::ReplicatedCore;
use std::any::Any;
use std::ops::Deref;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

/// Bytes that a worker writes to a connection at once.
pub const WRITTEN_AT_ONCE: usize = 1024 * 1024;

/// The process around the engine.
pub trait Process: Send + Sync {
    /// Does the periodic work of the whole server. The first worker calls it several times a second.
    fn tick(&'static self);

    /// Ends the server.
    fn end(&self);

    /// What session commands of the process work with.
    fn as_any(&self) -> &dyn Any;
}

/// See the module's documentation. There is one, which lives as long as the process.
pub struct Services {
    replicated: &'static ReplicatedCore,
    /// All commands.
    pub table: &'static CommandTable<Handler>,
    /// Users and their rights.
    pub acl: Acl,
    /// Connections on their way to the workers that are to have them.
    pub connections: Handover<(Socket, Arc<ClientInfo>)>,
    /// Active defragmentation.
    pub defrag: Defrag,
    /// Bytes that a worker writes to a connection at once; none when replies are to be listed.
    pub written_at_once: AtomicUsize,
    process: OnceLock<&'static dyn Process>,
}

impl Deref for Services {
    type Target = ReplicatedCore;

    fn deref(&self) -> &ReplicatedCore {
        self.replicated
    }
}

impl Services {
    /// On a core, with these commands.
    pub fn leak(core: &'static Core, table: &'static CommandTable<Handler>) -> &'static Services {
        let durable: &'static DurableCore = Box::leak(Box::new(DurableCore::new(core)));
        let replicated = ReplicatedCore::leak(durable);
        let services: &'static Services = Box::leak(Box::new(Services {
            replicated,
            table,
            acl: Acl::default(),
            connections: Handover::new(core.workers()),
            defrag: Defrag::default(),
            written_at_once: AtomicUsize::new(WRITTEN_AT_ONCE),
            process: OnceLock::new(),
        }));
        services
    }

    /// Sets the process around the engine, once; without one there is no periodic work.
    pub fn set_process(&self, process: &'static dyn Process) {
        // A second call would be a mistake of the process's start alone; the first stays.
        let _ = self.process.set(process);
    }

    /// The process around the engine, if there is one.
    pub fn process(&self) -> Option<&'static dyn Process> {
        self.process.get().copied()
    }

    /// Does the periodic work of the whole server.
    pub fn tick(&self) {
        if let Some(process) = self.process() {
            process.tick();
        }
    }

    /// Ends the server, or the workers if there is no process around them.
    pub fn end(&self) {
        match self.process() {
            Some(process) => process.end(),
            None => self.mark_ending(),
        }
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
}
