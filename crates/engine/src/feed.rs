//! The data sent to a replica: a full sync's snapshot, and the write log behind it.

use kvick_replication::ReplicatedCore;
use kvick_replication::replicas::{Replica, Stage};
use kvick_replication::transfer::{Ended, Next, Reader};
use kvick_runtime::clock::{self};
use kvick_runtime::logging;
use kvick_store::log::{Follower, Piece};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The feed of one replica.
pub struct Feed {
    /// The replica.
    pub replica: Arc<Replica>,
    pub(crate) food: FeedSource,
    /// When the replica last received a keepalive while waiting.
    pub(crate) told: Instant,
    /// The pending chunk, and the bytes of it already written.
    pub(crate) plate: Option<(PendingChunk, usize)>,
}

pub(crate) enum FeedSource {
    /// Nothing until the snapshot begins.
    Nothing,
    /// A snapshot, followed by the log.
    Dump(Box<Dump>),
    /// The log, once the replica reports that it has loaded the snapshot; `None` if it wants the snapshot only.
    Loading(Option<Follower>),
    /// The log.
    Log(Follower),
}

pub(crate) struct Dump {
    pub(crate) reader: Reader,
    /// Position in the log; `None` if the replica wants the snapshot only.
    pub(crate) follower: Option<Follower>,
    /// Whether the replica reports when it has loaded the snapshot.
    pub(crate) is_streamed: bool,
    /// Whether any chunk of the snapshot was available.
    pub(crate) has_begun: bool,
}

pub(crate) enum PendingChunk {
    Chunk(Arc<[u8]>),
    Piece(Piece),
}

impl Deref for PendingChunk {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            PendingChunk::Chunk(chunk) => chunk,
            PendingChunk::Piece(piece) => piece,
        }
    }
}

impl Feed {
    /// A feed that waits for a snapshot.
    pub fn waiting(replica: Arc<Replica>) -> Self {
        Feed { replica, food: FeedSource::Nothing, told: Instant::now(), plate: None }
    }

    /// A feed that continues from a position in the log (partial sync).
    pub fn of_log(replica: Arc<Replica>, follower: Follower) -> Self {
        Feed { replica, food: FeedSource::Log(follower), told: Instant::now(), plate: None }
    }

    /// Bytes of the log not yet sent.
    pub fn lag(&self) -> u64 {
        let unwritten = self.plate.as_ref().map_or(0, |(plate, written)| plate.len() - written) as u64;
        match &self.food {
            FeedSource::Nothing => 0,
            FeedSource::Dump(dump) => self.lag_behind(dump.follower.as_ref()),
            FeedSource::Loading(follower) => self.lag_behind(follower.as_ref()),
            FeedSource::Log(follower) => follower.lag() + unwritten,
        }
    }

    /// Bytes of the log that wait until the snapshot is loaded.
    pub(crate) fn lag_behind(&self, follower: Option<&Follower>) -> u64 {
        match follower {
            Some(follower) => follower.lag(),
            None => self.replica.pin.lock().as_ref().map_or(0, Follower::lag),
        }
    }

    /// Handles an acknowledgment by the replica: a snapshot sent to it is loaded.
    pub fn heard(&mut self, core: &ReplicatedCore) {
        self.go_online(core);
    }

    pub(crate) fn go_online(&mut self, core: &ReplicatedCore) {
        self.food = match std::mem::replace(&mut self.food, FeedSource::Nothing) {
            FeedSource::Loading(Some(follower)) => {
                self.put_online(core);
                FeedSource::Log(follower)
            }
            FeedSource::Log(follower) => {
                if self.replica.stage() == Stage::Keeping {
                    self.put_online(core);
                }
                FeedSource::Log(follower)
            }
            food => food,
        }
    }

    pub(crate) fn put_online(&self, core: &ReplicatedCore) {
        self.replica.set_stage(Stage::Online);
        self.replica.heard_ms.store(clock::unix_ms(), Ordering::Relaxed);
        core.require_replicas(&core.config.values());
        logging::notice(format_args!("Synchronization with replica {} succeeded", self.replica.name()));
    }

    /// Whether a replica that wants only the snapshot has received all of it.
    pub(crate) fn is_dump_channel_done(&self) -> bool {
        matches!(self.food, FeedSource::Loading(None))
    }

    /// Whether a keepalive is due for a replica that waits for its snapshot.
    pub(crate) fn is_to_be_told(&mut self) -> bool {
        const TELL_EVERY: Duration = Duration::from_secs(1);
        let waits = match &self.food {
            FeedSource::Nothing => true,
            FeedSource::Dump(dump) => !dump.has_begun,
            FeedSource::Loading(_) | FeedSource::Log(_) => false,
        };
        let is_due = waits && self.told.elapsed() >= TELL_EVERY;
        if is_due {
            self.told = Instant::now();
        }
        is_due
    }

    /// Takes the next chunk; false if none is available yet, `None` if the feed has failed.
    pub(crate) fn help_itself(&mut self, core: &ReplicatedCore) -> Option<bool> {
        let plate = match &mut self.food {
            FeedSource::Nothing | FeedSource::Loading(_) => return Some(false),
            FeedSource::Log(follower) => match follower.next(u64::MAX) {
                Ok(Some(piece)) => PendingChunk::Piece(piece),
                Ok(None) => return Some(false),
                Err(_) => return None,
            },
            FeedSource::Dump(dump) => match dump.reader.take() {
                Next::Chunk(chunk) => {
                    dump.has_begun = true;
                    PendingChunk::Chunk(chunk)
                }
                Next::Later => return Some(false),
                Next::Ended(Ended::Failed) => return None,
                Next::Ended(Ended::Complete) => {
                    if let FeedSource::Dump(dump) = std::mem::replace(&mut self.food, FeedSource::Nothing) {
                        if dump.follower.is_none() {
                            logging::notice(format_args!(
                                "RDB transfer completed, rdb only replica ({}) should be disconnected asap",
                                self.replica.name()
                            ));
                        }
                        self.food = FeedSource::Loading(dump.follower);
                        if dump.is_streamed {
                            self.replica.set_stage(Stage::Receiving);
                        } else {
                            // The replica detects the end of the snapshot by itself.
                            self.go_online(core);
                        }
                    }
                    return Some(!matches!(self.food, FeedSource::Loading(_)) && self.help_itself(core)?);
                }
            },
        };
        self.plate = Some((plate, 0));
        Some(true)
    }
}
