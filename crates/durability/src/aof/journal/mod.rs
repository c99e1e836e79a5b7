//! The commit journal: makes each commit of `appendfsync always` durable with one disk write.
//!
//! Syncing a growing file is slow: each sync writes the data, and then the file system's record of the new length. A
//! file whose blocks have all been written before needs only the data. The journal is such a file, of a fixed size (see
//! [`mod@format`]). A commit is written to it as a [frame](format::Frame) and synced, and also appended to the
//! increment of the append-only file, which is synced [periodically](sync_thread). After a machine crash the frames
//! hold the bytes that the increment may lack; the next start [recovers](recovery) them. The format of the append-only
//! file does not change.
//!
//! The file has two halves, which are filled in turn. A half is reused only after the increment has been synced past
//! all of its frames. If that has not happened yet, or a commit is too large for a frame, the increment is synced
//! instead.
//!
//! **Invariant**: up to the last committed offset, each byte of the increment is on disk, either in the increment or in
//! a frame, and all frames from the first unsynced byte on exist. A frame starts at a block boundary, so a block that
//! holds a frame is not rewritten until its half is reused.

mod format;
mod recovery;
mod sync_thread;
#[cfg(test)]
mod tests;

use format::{BLOCK, Boot, Epochs, FRAME_MAX, Frame, HALF_BLOCKS, Header};
use kvick_runtime::fsync_dir;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use sync_thread::{Checkpoint, SyncThread};

pub(super) use format::Identity;
pub(super) use recovery::{Recovered, recover};

/// How often increments are synced, which limits the bytes to recover.
const CHECKPOINT_PERIOD: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub(super) struct Journal {
    path: PathBuf,
    sync_thread: SyncThread,
    /// Set once all blocks have been written.
    file: Option<Arc<File>>,
    boot: Boot,
    increment: Option<Increment>,
    /// The half that is being filled.
    half: usize,
    /// The next block to write in it; the first is its header.
    next: u64,
    /// The number of halves started.
    epoch: u64,
    /// Halves with an epoch before this one need no recovery.
    since: u64,
    buffer: Vec<u8>,
}

/// The increment that commits belong to.
struct Increment {
    file: Arc<File>,
    identity: Identity,
    /// The offset up to which the increment itself has been synced.
    checkpoint: Arc<Checkpoint>,
    /// The end offset of the last frame of each half.
    ends: [u64; 2],
    /// The last requested sync.
    requested: SyncRequest,
}

/// A request to sync the increment.
#[derive(Clone, Copy)]
struct SyncRequest {
    /// The offset up to which to sync.
    offset: u64,
    /// When it was made.
    at: Instant,
}

impl SyncRequest {
    fn now(offset: u64) -> SyncRequest {
        SyncRequest { offset, at: Instant::now() }
    }
}

impl Journal {
    /// Creates a journal at this path, replacing any existing one. It accepts commits once it is
    /// [ready](Self::is_ready).
    pub fn create(path: &Path) -> io::Result<Journal> {
        let sync_thread = SyncThread::start(path.to_owned())?;
        let buffer = Vec::with_capacity(FRAME_MAX + BLOCK);
        Ok(Journal {
            path: path.to_owned(),
            sync_thread,
            file: None,
            boot: Boot::current(),
            increment: None,
            half: 0,
            next: 0,
            epoch: 0,
            since: 0,
            buffer,
        })
    }

    /// Whether the journal accepts commits. An error means that there will be no journal.
    pub fn is_ready(&mut self) -> io::Result<bool> {
        if self.file.is_none() {
            self.file = self.sync_thread.created()?;
        }
        Ok(self.file.is_some())
    }

    /// Accepts commits to this increment from now on. It has been synced up to `offset`, and so has the previous one.
    pub fn begin_increment(&mut self, increment: &File, offset: u64) -> io::Result<()> {
        let identity = Identity::of(increment)?;
        let checkpoint = Arc::new(Checkpoint::at(offset));
        let (file, requested) = (Arc::new(increment.try_clone()?), SyncRequest::now(offset));
        self.increment = Some(Increment { file, identity, checkpoint, ends: [0; 2], requested });
        self.restart_half();
        Ok(())
    }

    /// Makes a range of the increment durable; everything before it is committed. Returns false if there is no space,
    /// so that the increment itself must be synced.
    pub fn commit(&mut self, from: u64, to: u64) -> io::Result<bool> {
        let (Some(file), Some(increment)) = (&self.file, &mut self.increment) else { return Ok(false) };
        let len = to.saturating_sub(from) as usize;
        let blocks = Frame::blocks(len);
        if len > FRAME_MAX {
            return Ok(false);
        }
        if self.next + blocks > HALF_BLOCKS {
            let other = 1 - self.half;
            increment.request_sync(&self.sync_thread, increment.ends[self.half]);
            if increment.ends[other] > increment.checkpoint.offset() {
                return Ok(false);
            }
            (self.half, self.next) = (other, 0);
            self.epoch += 1;
        }
        self.buffer.clear();
        let at = format::file_offset(self.half, self.next);
        if self.next == 0 {
            let epochs = Epochs { current: self.epoch, since: self.since };
            let header = Header::new(epochs, self.boot, increment.identity, from, &increment.file)?;
            header.append_to(&mut self.buffer);
            self.next = 1;
        }
        Frame { epoch: self.epoch, offset: from, len }.append_to(&mut self.buffer, &increment.file)?;
        file.write_all_at(&self.buffer, at)?;
        file.sync_data()?;
        self.next += blocks;
        increment.ends[self.half] = to;
        Ok(true)
    }

    /// The increment has been synced up to this offset: all frames are obsolete.
    pub fn discard_frames(&mut self, offset: u64) {
        if let Some(increment) = &mut self.increment {
            increment.checkpoint.advance(offset);
            increment.requested = SyncRequest::now(offset);
            self.restart_half();
        }
    }

    /// Starts the present half again with the next commit, which becomes the first valid frame.
    fn restart_half(&mut self) {
        self.next = 0;
        self.epoch += 1;
        self.since = self.epoch;
    }

    /// Requests a background sync of the increment if it has unsynced bytes and the interval has passed. Returns the
    /// time until the next one is due.
    pub fn checkpoint_if_due(&mut self) -> Option<Duration> {
        let increment = self.increment.as_mut()?;
        let end = increment.ends[self.half];
        let SyncRequest { offset: requested, at: when } = increment.requested;
        if end <= requested {
            return None;
        }
        let left = CHECKPOINT_PERIOD.saturating_sub(when.elapsed());
        if !left.is_zero() {
            return Some(left);
        }
        increment.request_sync(&self.sync_thread, end);
        None
    }

    /// Deletes the file after its thread has done all requested work. The increments have been synced.
    pub fn close(self) -> io::Result<()> {
        self.sync_thread.close();
        remove(&self.path)
    }

    /// The error of a failed background sync: the increment's last bytes may exist only in the journal.
    pub fn failure(&self) -> Option<io::Error> {
        self.increment.as_ref()?.checkpoint.failure()
    }

    /// Forces recovery from the frames at the next start, because a sync of the increment failed: the kernel may have
    /// dropped its unwritten pages.
    pub fn force_recovery(&self) {
        if let Some(file) = &self.file {
            // If this fails, the next start trusts the increment; nothing else can be done.
            let _ = format::force_recovery(file);
        }
    }
}

impl Increment {
    fn request_sync(&mut self, sync_thread: &SyncThread, offset: u64) {
        if offset > self.requested.offset {
            sync_thread.sync(&self.file, offset, &self.checkpoint);
            self.requested = SyncRequest::now(offset);
        }
    }
}

/// Deletes the journal at this path durably, if one exists.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // It must not reappear after a crash: its frames could be applied to a later file.
        removed => removed.and_then(|()| fsync_dir::sync_of(path)),
    }
}
