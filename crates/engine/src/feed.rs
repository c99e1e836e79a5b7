//! The data sent to a replica: a full sync's snapshot, and the write log behind it.

use crate::session::Client;
use kvick_commands::spec::Flags;
use kvick_commands::table::CommandInfo;
use kvick_replication::ReplicatedCore;
use kvick_replication::pause_after_fork::StopAfterDump;
use kvick_replication::replicas::{Replica, Stage};
use kvick_replication::transfer::{Ended, Next, Reader};
use kvick_runtime::clock::{self};
use kvick_runtime::logging;
use kvick_store::log::{Follower, Piece};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The feed of one replica.
pub struct Feed {
    /// The replica.
    pub replica: Arc<Replica>,
    /// Where the next chunk comes from.
    pub source: FeedSource,
    /// When the replica last received a keepalive while waiting.
    keepalive_at: Instant,
    /// The pending chunk, and the bytes of it already written.
    pub pending: Option<PendingChunk>,
    /// Pauses commands, and stops the process once the snapshot is sent.
    pub stop_after_dump: Option<Arc<StopAfterDump>>,
}

/// What a replica is sent next.
pub enum FeedSource {
    /// Nothing until the snapshot begins.
    Nothing,
    /// A snapshot, followed by the log.
    Dump(Box<Dump>),
    /// The log, once the replica reports that it has loaded the snapshot; `None` if it wants the snapshot only.
    Loading(Option<Follower>),
    /// The log.
    Log(Follower),
}

/// A snapshot on its way to a replica.
pub struct Dump {
    /// Reads its chunks.
    pub reader: Reader,
    /// Position in the log; `None` if the replica wants the snapshot only.
    pub follower: Option<Follower>,
    /// Whether the replica reports when it has loaded the snapshot.
    pub is_streamed: bool,
    /// Whether any chunk of the snapshot was available.
    pub has_begun: bool,
}

/// A chunk that is partly written.
pub struct PendingChunk {
    bytes: ChunkBytes,
    written: usize,
}

enum ChunkBytes {
    Snapshot(Arc<[u8]>),
    Log(Piece),
}

impl PendingChunk {
    /// The bytes not yet written.
    pub fn unwritten(&self) -> &[u8] {
        let bytes: &[u8] = match &self.bytes {
            ChunkBytes::Snapshot(chunk) => chunk,
            ChunkBytes::Log(piece) => piece,
        };
        &bytes[self.written..]
    }

    /// Counts bytes as written.
    pub fn advance(&mut self, bytes: usize) {
        self.written += bytes;
    }
}

impl Feed {
    /// A feed that waits for a snapshot.
    pub fn waiting(replica: Arc<Replica>) -> Self {
        Feed::new(replica, FeedSource::Nothing)
    }

    /// A feed that continues from a position in the log (partial sync).
    pub fn of_log(replica: Arc<Replica>, follower: Follower) -> Self {
        Feed::new(replica, FeedSource::Log(follower))
    }

    fn new(replica: Arc<Replica>, source: FeedSource) -> Self {
        Feed { replica, source, keepalive_at: Instant::now(), pending: None, stop_after_dump: None }
    }

    /// Bytes of the log not yet sent.
    pub fn lag(&self) -> u64 {
        let unwritten = self.pending.as_ref().map_or(0, |pending| pending.unwritten().len()) as u64;
        match &self.source {
            FeedSource::Nothing => 0,
            FeedSource::Dump(dump) => self.lag_behind(dump.follower.as_ref()),
            FeedSource::Loading(follower) => self.lag_behind(follower.as_ref()),
            FeedSource::Log(follower) => follower.lag() + unwritten,
        }
    }

    /// Bytes of the log that wait until the snapshot is loaded.
    fn lag_behind(&self, follower: Option<&Follower>) -> u64 {
        match follower {
            Some(follower) => follower.lag(),
            None => self.replica.pin.lock().as_ref().map_or(0, Follower::lag),
        }
    }

    /// Handles an acknowledgment by the replica: a snapshot sent to it is loaded.
    pub fn acknowledge(&mut self, core: &ReplicatedCore) {
        self.go_online(core);
    }

    fn go_online(&mut self, core: &ReplicatedCore) {
        self.source = match std::mem::replace(&mut self.source, FeedSource::Nothing) {
            FeedSource::Loading(Some(follower)) => {
                self.set_online(core);
                FeedSource::Log(follower)
            }
            FeedSource::Log(follower) => {
                if self.replica.stage() == Stage::BgTransfer {
                    self.set_online(core);
                }
                FeedSource::Log(follower)
            }
            source => source,
        }
    }

    fn set_online(&self, core: &ReplicatedCore) {
        self.replica.set_stage(Stage::Online);
        self.replica.last_ack_ms.store(clock::unix_ms(), Ordering::Relaxed);
        core.update_good_replicas(&core.config.values());
        logging::notice(format_args!("Synchronization with replica {} succeeded", self.replica.name()));
    }

    /// Whether a replica that wants only the snapshot has received all of it.
    pub fn is_dump_channel_done(&self) -> bool {
        matches!(self.source, FeedSource::Loading(None))
    }

    /// Whether a keepalive is due for a replica that waits for its snapshot. The caller sends it.
    pub fn takes_keepalive(&mut self) -> bool {
        const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
        let waits = match &self.source {
            FeedSource::Nothing => true,
            FeedSource::Dump(dump) => !dump.has_begun,
            FeedSource::Loading(_) | FeedSource::Log(_) => false,
        };
        let is_due = waits && self.keepalive_at.elapsed() >= KEEPALIVE_EVERY;
        if is_due {
            self.keepalive_at = Instant::now();
        }
        is_due
    }

    /// Makes the next chunk pending; false if none is available yet, `None` if the feed has failed.
    pub fn load_next(&mut self, core: &ReplicatedCore) -> Option<bool> {
        let bytes = match &mut self.source {
            FeedSource::Nothing | FeedSource::Loading(_) => return Some(false),
            FeedSource::Log(follower) => match follower.next(u64::MAX) {
                Ok(Some(piece)) => ChunkBytes::Log(piece),
                Ok(None) => return Some(false),
                Err(_) => return None,
            },
            FeedSource::Dump(dump) => match dump.reader.take() {
                Next::Chunk(chunk) => {
                    dump.has_begun = true;
                    ChunkBytes::Snapshot(chunk)
                }
                Next::Later => return Some(false),
                Next::Ended(Ended::Failed) => return None,
                Next::Ended(Ended::Complete) => {
                    if let FeedSource::Dump(dump) = std::mem::replace(&mut self.source, FeedSource::Nothing) {
                        if dump.follower.is_none() {
                            logging::notice(format_args!(
                                "RDB transfer completed, rdb only replica ({}) should be disconnected asap",
                                self.replica.name()
                            ));
                        }
                        self.source = FeedSource::Loading(dump.follower);
                        if dump.is_streamed {
                            self.replica.set_stage(Stage::Receiving);
                        } else {
                            // The replica detects the end of the snapshot by itself.
                            self.go_online(core);
                        }
                    }
                    return Some(!matches!(self.source, FeedSource::Loading(_)) && self.load_next(core)?);
                }
            },
        };
        self.pending = Some(PendingChunk { bytes, written: 0 });
        Some(true)
    }
}

/// Whether a replica sends a command on the connection that feeds it, where no reply can be written. Logs a message if
/// so.
#[cold]
pub(crate) fn is_forbidden_on_feed(client: &Client, command: &CommandInfo) -> bool {
    if command.spec.flags.contains(Flags::FROM_REPLICA) {
        return false;
    }
    if command.spec.flags.intersects(Flags::READONLY | Flags::WRITE | Flags::MAY_REPLICATE) {
        logging::warning(format_args!(
            "== CRITICAL == This primary is sending an error to its replica: '-ERR Replica can't interact with the \
             keyspace' after processing the command '{}'",
            command.full_name
        ));
    }
    logging::warning(format_args!(
        "Replica generated a reply to command '{}', disconnecting it: {}",
        command.full_name,
        client.info.described(true)
    ));
    true
}
