//! MIGRATE: keys that go to another core.
//!
//! ```text
//! worker:    packs the keys under their locks, watches them -> Departure -> migrator: sends, reads the answers
//!            (the client waits, nothing else does)                               |
//! worker:    takes the locks again, deletes what arrived as it still is  <-------+
//!            and replies; what changed meanwhile goes on another journey
//! ```
//!
//! A worker never waits for a target: one thread, the **migrator**, speaks to all of them with blocking sockets and the
//! time limits of the requests, one [`MigrationJob`] after the other. Only in a transaction, whose locks cannot be let
//! go, the worker does that itself, as the reference does always.
//!
//! **No acknowledged write is lost.** A key is deleted under its lock, and only if it is what the target has: if no
//! command has touched it since it was packed, or if its value packs into the same bytes again and its expiry is the
//! same. Otherwise it is packed anew and sent with REPLACE, or DEL when it is gone, up to [`JOURNEYS_MAX`] times; after
//! that the client is told, and the key stays where it is. A client that goes away meanwhile changes nothing about
//! that.
//!
//! Sockets are kept for requests to come: see [`sockets`]. Several requests for the same key know of each other:
//! see [`under_way`].

mod exchange;
pub mod packed_key;
pub mod sockets;
pub mod under_way;

use crate::ReplicatedCore;
use kvick_core::clients::ClientInfo;
use kvick_core::handover::Handover;
use kvick_resp::Version;
use kvick_store::Watcher;
use packed_key::PackedKey;
use sockets::Sockets;
use std::io;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;
use under_way::UnderWay;

/// How often a key is sent because it changed on the way.
pub const JOURNEYS_MAX: u32 = 8;

/// What a MIGRATE asks for.
#[derive(Debug)]
pub struct Request {
    /// The target's name or address.
    pub host: String,
    /// Its port, as the client wrote it.
    pub port: String,
    /// The target's database.
    pub database: i64,
    /// The longest wait for the target, each time it is waited for.
    pub timeout: Duration,
    /// Whether the keys stay here too.
    pub copy: bool,
    /// Whether keys of the target are overwritten.
    pub replace: bool,
    /// What the target is told before anything else.
    pub credentials: Option<Credentials>,
}

/// AUTH or AUTH2.
pub struct Credentials {
    /// The user, if one is named.
    pub user: Option<Vec<u8>>,
    /// The password.
    pub password: Vec<u8>,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

/// Keys on their way.
pub struct MigrationJob {
    /// What was asked for.
    pub request: Request,
    /// The database that the keys are in.
    pub db: usize,
    /// The keys.
    pub packed_keys: Vec<PackedKey>,
    /// What went wrong first, as the client is told.
    pub failure: Option<String>,
    /// Watches the keys since they were packed.
    pub watcher: Arc<Watcher>,
    /// How often keys were sent.
    pub journeys: u32,
    /// Who waits for the end.
    pub client: Waiting,
}

/// The client whose request a departure is.
pub struct Waiting {
    /// The client.
    pub info: Arc<ClientInfo>,
    /// The ticket of its wait; 0 when it does not wait, in a transaction.
    pub ticket: u64,
    /// Protocol of the reply.
    pub version: Version,
    /// The command's place in the command table.
    pub command: u32,
}

/// What the server has for migrations.
pub struct Migration {
    /// Connections to targets.
    pub sockets: Sockets,
    /// Keys on their way.
    pub under_way: UnderWay,
    /// Jobs on their way back to the workers of their clients.
    pub returned: Handover<Box<MigrationJob>>,
    jobs: OnceLock<mpsc::Sender<Box<MigrationJob>>>,
}

impl Migration {
    /// For `workers` workers, not yet started.
    pub fn new(workers: usize) -> Self {
        Migration {
            sockets: Sockets::default(),
            under_way: UnderWay::default(),
            returned: Handover::new(workers),
            jobs: OnceLock::new(),
        }
    }

    /// Sends keys on the migrator's thread. The job comes back to its client's worker.
    pub fn send(&self, job: Box<MigrationJob>) {
        if let Some(jobs) = self.jobs.get() {
            // The thread lasts as long as the process.
            let _ = jobs.send(job);
        }
    }
}

/// Starts the migrator.
pub fn start(core: &'static ReplicatedCore) -> io::Result<()> {
    let (sender, jobs) = mpsc::channel::<Box<MigrationJob>>();
    std::thread::Builder::new().name("migrator".into()).spawn(move || {
        kvick_runtime::memory::register_thread();
        for mut job in jobs {
            exchange::run(core, &mut job);
            core.migration.returned.put(core, job.client.info.worker, job);
        }
    })?;
    // A second call would be a mistake of the caller alone; the first thread stays.
    let _ = core.migration.jobs.set(sender);
    Ok(())
}

/// Sends keys from this thread, which waits for the answers: for transactions.
pub fn send_now(core: &ReplicatedCore, job: &mut MigrationJob) {
    exchange::run(core, job);
}
