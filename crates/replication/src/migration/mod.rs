//! MIGRATE: moves keys to another server.
//!
//! ```text
//! worker:    packs the keys under their locks, watches them -> MigrationJob -> migrator: sends, reads the answers
//!            (the client waits, nothing else does)                                  |
//! worker:    locks again, deletes the arrived keys that have not changed  <---------+
//!            and replies; changed keys are sent again
//! ```
//!
//! A worker never waits for a target: one thread, the **migrator**, handles all of them with blocking sockets and the
//! timeouts of the requests, one [`MigrationJob`] at a time. Only in a transaction, whose locks cannot be released, the
//! worker sends the keys itself, as the reference always does.
//!
//! **No acknowledged write is lost.** A key is deleted under its lock, and only if the target has its present value: if
//! no command has touched it since it was packed, or if its value packs into the same bytes again and its expiry is the
//! same. Otherwise it is packed again and sent with REPLACE, or with DEL if it was deleted, up to [`ATTEMPTS_MAX`]
//! times; in cluster mode, writes to their slot are held during the last ones. After that the client receives an error,
//! and the key stays here alone. If the target does not accept a later value, the earlier one is deleted there. This
//! does not depend on whether the client is still connected.
//!
//! Sockets are cached for later requests: see [`sockets`]. Concurrent requests for the same key are coordinated: see
//! [`active_keys`].

pub mod active_keys;
mod exchange;
pub mod packed_key;
pub mod sockets;

use crate::ReplicatedCore;
use active_keys::ActiveKeys;
use kvick_core::clients::ClientInfo;
use kvick_core::handover::Handover;
use kvick_resp::Version;
use kvick_store::Watcher;
use packed_key::PackedKey;
use sockets::Sockets;
use std::io;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// How often a key is sent if it keeps changing.
pub const ATTEMPTS_MAX: u32 = 8;

/// After this many attempts, writes to the slot of the keys wait, in cluster mode, until the target has them.
pub const ATTEMPTS_UNHELD: u32 = 3;

/// A MIGRATE request.
#[derive(Debug)]
pub struct Request {
    /// The target's name or address.
    pub host: String,
    /// Its port, as the client wrote it.
    pub port: String,
    /// The target's database.
    pub database: i64,
    /// The timeout of each wait for the target.
    pub timeout: Duration,
    /// Whether the keys also stay on this server.
    pub copy: bool,
    /// Whether keys of the target are overwritten.
    pub replace: bool,
    /// Credentials to send first.
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

/// Keys being migrated.
pub struct MigrationJob {
    /// The request.
    pub request: Request,
    /// The database that the keys are in.
    pub db: usize,
    /// The keys.
    pub packed_keys: Vec<PackedKey>,
    /// Whether values are compressed.
    pub compress: bool,
    /// The first error, as the client receives it.
    pub failure: Option<String>,
    /// Watches the keys from the moment they were packed.
    pub watcher: Arc<Watcher>,
    /// How often keys have been sent.
    pub attempts: u32,
    /// The slot whose writes are held because the keys kept changing.
    pub held_slot: Option<u16>,
    /// The client that waits for the result.
    pub client: WaitingClient,
}

/// The client of a migration job.
pub struct WaitingClient {
    /// The client.
    pub info: Arc<ClientInfo>,
    /// The ticket of its wait; 0 when it does not wait, in a transaction.
    pub ticket: u64,
    /// Protocol of the reply.
    pub version: Version,
}

/// The server's migration state.
pub struct Migration {
    /// Connections to targets.
    pub sockets: Sockets,
    /// Keys being migrated.
    pub active_keys: ActiveKeys,
    /// Finished jobs, on their way back to the workers of their clients.
    pub finished: Handover<Box<MigrationJob>>,
    jobs: OnceLock<mpsc::Sender<Box<MigrationJob>>>,
}

impl Migration {
    /// For `workers` workers, not yet started.
    pub fn new(workers: usize) -> Self {
        Migration {
            sockets: Sockets::default(),
            active_keys: ActiveKeys::default(),
            finished: Handover::new(workers),
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
            core.migration.finished.put(core, job.client.info.worker(), job);
        }
    })?;
    // A second call would be a mistake of the caller alone; the first thread stays.
    let _ = core.migration.jobs.set(sender);
    Ok(())
}

/// Sends keys from this thread and waits for the answers: for transactions.
pub fn send_now(core: &ReplicatedCore, job: &mut MigrationJob) {
    exchange::run(core, job);
}
