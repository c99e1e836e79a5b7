//! Full synchronisation: takes the snapshot that replicas begin with, and sees to the backlog.

use super::replicas::{Replica, Stage};
use super::transfer::{Ended, Reader, Transfer};
use crate::config::tables::replication as settings;
use crate::logging;
use crate::persistence::file::SaveError;
use crate::persistence::form::Form;
use crate::persistence::snapshots::{self, Destination, Purpose, Request};
use crate::server::Server;
use crate::worker::Message;
use kvick_rdb::{VERSION, VERSION_REDIS};
use kvick_store::log::{Audience, Follower};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a replica is given when the snapshot that it waits for begins: taken by its worker.
pub struct Beginning {
    /// The history that the snapshot is of.
    pub history: String,
    /// The offset.
    pub offset: u64,
    /// The dump.
    pub reader: Reader,
    /// What comes after it.
    pub follower: Follower,
}

/// Where beginnings wait for the workers that have the replicas, by the IDs of their clients.
#[derive(Default)]
pub struct Beginnings(Mutex<Vec<(u64, Beginning)>>);

impl Beginnings {
    /// What a replica is given, if its snapshot has begun.
    pub fn take(&self, client: u64) -> Option<Beginning> {
        let mut all = self.0.lock();
        let at = all.iter().position(|(id, _)| *id == client)?;
        Some(all.swap_remove(at).1)
    }
}

/// Called ten times a second.
pub fn tick(server: &'static Server) {
    let waiting: Vec<_> =
        server.replication.replicas.all().into_iter().filter(|replica| replica.stage() == Stage::Waiting).collect();
    if !waiting.is_empty() && is_time(server, &waiting) {
        begin(server, &waiting);
    }
}

/// Whether those that wait have waited long enough for others to come.
fn is_time(server: &Server, waiting: &[Arc<Replica>]) -> bool {
    let values = server.config.values();
    let delay_ms = i64::from(values.read(settings::REPL_DISKLESS_SYNC_DELAY)) * 1000;
    let enough = values.read(settings::REPL_DISKLESS_SYNC_MAX_REPLICAS) as usize;
    let now_ms = crate::clock::unix_ms();
    let longest = waiting.iter().map(|replica| replica.silent_ms(now_ms)).max().unwrap_or(0);
    !values.read(settings::REPL_DISKLESS_SYNC) || longest >= delay_ms || (enough > 0 && waiting.len() >= enough)
}

fn begin(server: &'static Server, waiting: &[Arc<Replica>]) {
    let mut world = server.keyspace.lock_world();
    let transfer = Arc::new(Transfer::default());
    let readers: Vec<Reader> = waiting.iter().map(|_| transfer.reader()).collect();
    let destination = ToReplicas { server, transfer, mark: super::history::random_id() };
    let (mark, log) = (destination.mark.clone(), &server.keyspace.log);
    let request = Request {
        purpose: Purpose::Replicas,
        form: Form::for_replicas(server, version_for(waiting)),
        destinations: vec![Box::new(destination)],
    };
    // Replicas go on from the moment of the snapshot.
    let followers: Vec<Follower> = waiting.iter().map(|_| log.follow(Audience::All)).collect();
    let Ok(offset) = snapshots::begin(server, &mut world, request) else { return };
    let history = server.replication.history.lock().id.clone();
    let mut beginnings = server.replication.beginnings.0.lock();
    for ((replica, reader), follower) in waiting.iter().zip(readers).zip(followers) {
        let history = history.clone();
        beginnings.push((replica.client.id, Beginning { history, offset, reader, follower }));
        replica.set_stage(Stage::Receiving);
        server.send(replica.client.worker, Message::Wake);
    }
    drop(beginnings);
    logging::notice(format_args!("Streamed synchronisation of {} replicas begins, mark {mark}", waiting.len()));
}

/// The version of the dump format that all of these read. Those who do not say what they are speak an old one.
fn version_for(replicas: &[Arc<Replica>]) -> u16 {
    const FIRST_OF_THIS_FORMAT: u32 = 9 << 16;
    let oldest = replicas.iter().map(|replica| replica.version.load(Ordering::Relaxed)).min();
    if oldest.is_some_and(|version| version >= FIRST_OF_THIS_FORMAT) { VERSION } else { VERSION_REDIS }
}

/// A dump on its way to replicas: its length is not known, so a mark stands before it and behind it.
struct ToReplicas {
    server: &'static Server,
    transfer: Arc<Transfer>,
    mark: String,
}

impl Destination for ToReplicas {
    fn open(&mut self) -> Result<(), SaveError> {
        self.write(format!("$EOF:{}\r\n", self.mark).as_bytes()).map_err(|error| SaveError::Write("replicas", error))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.transfer.write(bytes)?;
        self.server.replication.wake_feeders(self.server, usize::MAX);
        Ok(())
    }

    fn finish(mut self: Box<Self>, outcome: Result<(), SaveError>) -> Result<(), SaveError> {
        let mark = std::mem::take(&mut self.mark);
        let outcome = outcome
            .and_then(|()| self.transfer.write(mark.as_bytes()).map_err(|error| SaveError::Write("replicas", error)));
        self.transfer.end(if outcome.is_ok() { Ended::Complete } else { Ended::Failed });
        self.server.replication.wake_feeders(self.server, usize::MAX);
        outcome
    }
}

/// Sees to the backlog: there is one from the first replica on, and for a while after the last.
pub fn keep_backlog(server: &Server) {
    let replication = &server.replication;
    if !replication.has_backlog.swap(true, Ordering::SeqCst) {
        // What changed while nobody followed is in no log: these data are of no history that anybody knows.
        replication.history.lock().begin_anew();
        let id = replication.history.lock().id.clone();
        logging::notice(format_args!(
            "Replication backlog created, my new replication IDs are '{id}' and '{}'",
            "0".repeat(id.len())
        ));
        server.keyspace.log.keep_backlog(server.config.read(settings::REPL_BACKLOG_SIZE));
    }
}
