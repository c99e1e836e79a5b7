//! The dependencies of the engine and the workers: the core with durability and replication, users, the command table,
//! and the interface to the process.

use crate::defrag::Defrag;
use crate::handlers::Handler;
use crate::session::Client;
use kvick_acl::Acl;
use kvick_commands::context::Error;
use kvick_commands::spec::Protection;
use kvick_commands::table::{CommandInfo, CommandTable};
use kvick_config::tables::security;
use kvick_config::words::ProtectedAction;
use kvick_core::Core;
use kvick_core::handover::Handover;
use kvick_durability::DurableCore;
use kvick_net::listen::NewConnection;
use kvick_replication::ReplicatedCore;
use std::any::Any;
use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::AtomicUsize;

/// Maximum bytes that a worker passes to one write on a connection.
pub const WRITTEN_AT_ONCE: usize = 1024 * 1024;

/// The process that runs the engine.
pub trait Process: Send + Sync {
    /// Does the periodic work of the whole server. The first worker calls it several times per second.
    fn tick(&'static self);

    /// Shuts the server down.
    fn end(&self);

    /// The process as its own type, for its session commands.
    fn as_any(&self) -> &dyn Any;
}

/// The dependencies of the engine; see the module's documentation. There is one instance, which lives as long as the
/// process.
pub struct Services {
    /// By value, like the layers in it: every field of every layer is at a fixed offset, without further pointers.
    replicated: ReplicatedCore,
    /// All commands.
    pub table: &'static CommandTable<Handler>,
    /// Users and their permissions.
    pub acl: Acl,
    /// New connections on their way to their workers.
    pub connections: Handover<NewConnection>,
    /// Connections on their way from one worker to another, as a type of the workers.
    pub moved: Handover<Box<dyn Any + Send>>,
    /// Active defragmentation.
    pub defrag: Defrag,
    /// Maximum bytes passed to one write on a connection; 0 when replies go through the block lists.
    pub written_at_once: AtomicUsize,
    process: OnceLock<&'static dyn Process>,
}

impl Deref for Services {
    type Target = ReplicatedCore;

    fn deref(&self) -> &ReplicatedCore {
        &self.replicated
    }
}

impl Services {
    /// Creates services on a core, with the given commands.
    pub fn leak(core: Core, table: &'static CommandTable<Handler>) -> &'static Services {
        let services: &'static Services = Box::leak(Box::new(Services {
            connections: Handover::new(core.workers_max()),
            moved: Handover::new(core.workers_max()),
            replicated: ReplicatedCore::new(DurableCore::new(core)),
            table,
            acl: Acl::default(),
            defrag: Defrag::default(),
            written_at_once: AtomicUsize::new(WRITTEN_AT_ONCE),
            process: OnceLock::new(),
        }));
        services.replicated.attach();
        services
    }

    /// Sets the process, once. Without one there is no periodic work.
    pub fn set_process(&self, process: &'static dyn Process) {
        // A second call would be a bug in process startup; the first value stays.
        let _ = self.process.set(process);
    }

    /// The process, if set.
    pub fn process(&self) -> Option<&'static dyn Process> {
        self.process.get().copied()
    }

    /// Does the periodic work of the whole server.
    pub fn tick(&self) {
        if let Some(process) = self.process() {
            process.tick();
        }
    }

    /// Shuts the server down, or the workers if no process is set.
    pub fn end(&self) {
        match self.process() {
            Some(process) => process.end(),
            None => self.mark_shutting_down(),
        }
    }

    /// The error if a protected command is forbidden for this client.
    #[inline]
    pub fn protected_refusal(&self, client: &Client, command: &CommandInfo) -> Option<Error> {
        command.spec.protection.and_then(|protection| self.refusal_of(protection, client))
    }

    #[cold]
    fn refusal_of(&self, protection: Protection, client: &Client) -> Option<Error> {
        let (name, directive, setting) = match protection {
            Protection::Debug => ("DEBUG", "enable-debug-command", security::ENABLE_DEBUG_COMMAND),
            Protection::Module => ("MODULE", "enable-module-command", security::ENABLE_MODULE_COMMAND),
        };
        let allowed = match self.config.read(setting) {
            ProtectedAction::Yes => true,
            ProtectedAction::No => false,
            ProtectedAction::Local => client.is_local(),
        };
        (!allowed).then(|| {
            Error::new(format!(
                "ERR {name} command not allowed. If the {directive} option is set to \"local\", you can run it from a \
                 local connection, otherwise you need to set this option in the configuration file, and then restart \
                 the server."
            ))
        })
    }
}
