//! The commit journal: where commits of `appendfsync always` go, so that the disk takes each at once.
//!
//! A file that grows is slow to sync: each time the disk has to take the bytes, and then what the file system notes of
//! the file's new length. A file whose blocks were all written before needs the bytes alone. So there is one, of a
//! fixed size (see [`format`]): a commit is written there as a [frame](format::Frame) and synced, beside being appended
//! to the increment of the append-only file, which is synced [now and then](keeper). When the machine crashes, the
//! frames have what the increment may lack, and it is [put back](recovery) at the next start. The append-only file
//! itself is what it is without a journal.
//!
//! The file has two halves, which are filled in turn. One is filled anew only when all that its frames are of has been
//! synced in the increment. Where that is not so yet, or a commit is too large for a frame, the increment is synced
//! instead.
//!
//! **What always holds**: up to the offset that was committed last, each byte of the increment is on the disk, either
//! in the increment or in a frame, and all frames from the first such byte on are there. A frame begins with a block of
//! its own, so no block that holds one is written again before its half is.

mod format;
mod keeper;
mod recovery;
#[cfg(test)]
mod tests;

use format::{BLOCK, Boot, FRAME_MAX, Frame, HALF_BLOCKS, Header, Identity};
use keeper::{Checkpoint, Keeper};
use kvick_runtime::fsync_dir;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) use recovery::{Recovered, recover};

/// How often increments are synced, which bounds what has to be put back.
const CHECKPOINT_PERIOD: Duration = Duration::from_secs(1);

/// See the module's documentation.
pub(super) struct Journal {
    path: PathBuf,
    keeper: Keeper,
    /// There as soon as its blocks have been written.
    file: Option<Arc<File>>,
    boot: Boot,
    increment: Option<Increment>,
    /// The half that is being filled.
    half: usize,
    /// The block of it that is written next; the first is its header.
    next: u64,
    /// Counts how often a half was begun.
    epoch: u64,
    /// What is in halves of epochs before this one need not be put back.
    since: u64,
    buffer: Vec<u8>,
}

/// The increment that commits are of.
struct Increment {
    file: Arc<File>,
    identity: Identity,
    /// Up to where it has been synced itself.
    checkpoint: Arc<Checkpoint>,
    /// The offset behind the last frame of each half.
    ends: [u64; 2],
    /// Up to where it was last asked to be synced, and when.
    asked: (u64, Instant),
}

impl Journal {
    /// Has a journal made at this path, in place of any that is there. Until it is [ready](Self::is_ready) nothing can
    /// be committed to it.
    pub fn make(path: &Path) -> io::Result<Journal> {
        let keeper = Keeper::start(path.to_owned())?;
        let buffer = Vec::with_capacity(FRAME_MAX + BLOCK);
        Ok(Journal {
            path: path.to_owned(),
            keeper,
            file: None,
            boot: Boot::present(),
            increment: None,
            half: 0,
            next: 0,
            epoch: 0,
            since: 0,
            buffer,
        })
    }

    /// Whether commits can be written. The error is why there will be no journal.
    pub fn is_ready(&mut self) -> io::Result<bool> {
        if self.file.is_none() {
            self.file = self.keeper.made()?;
        }
        Ok(self.file.is_some())
    }

    /// Takes commits to this increment from now on, which has itself been synced up to `offset`, as has the one before.
    pub fn follow(&mut self, increment: &File, offset: u64) -> io::Result<()> {
        let identity = Identity::of(increment)?;
        let checkpoint = Arc::new(Checkpoint::at(offset));
        let (file, asked) = (Arc::new(increment.try_clone()?), (offset, Instant::now()));
        self.increment = Some(Increment { file, identity, checkpoint, ends: [0; 2], asked });
        self.begin_anew();
        Ok(())
    }

    /// Puts the bytes of the increment from one offset, up to which all is committed, to another on the disk. False if
    /// there is no room for them: then the increment itself has to be synced.
    pub fn commit(&mut self, from: u64, to: u64) -> io::Result<bool> {
        let (Some(file), Some(increment)) = (&self.file, &mut self.increment) else { return Ok(false) };
        let len = to.saturating_sub(from) as usize;
        let blocks = Frame::blocks(len);
        if len > FRAME_MAX {
            return Ok(false);
        }
        if self.next + blocks > HALF_BLOCKS {
            let other = 1 - self.half;
            increment.ask(&self.keeper, increment.ends[self.half]);
            if increment.ends[other] > increment.checkpoint.offset() {
                return Ok(false);
            }
            (self.half, self.next) = (other, 0);
            self.epoch += 1;
        }
        self.buffer.clear();
        let at = format::place(self.half, self.next);
        if self.next == 0 {
            let epochs = (self.epoch, self.since);
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

    /// The increment has been synced up to this offset, so that all frames may be forgotten.
    pub fn forget(&mut self, offset: u64) {
        if let Some(increment) = &mut self.increment {
            increment.checkpoint.reach(offset);
            increment.asked = (offset, Instant::now());
            self.begin_anew();
        }
    }

    /// Has the next commit begin the present half, and be the first that counts.
    fn begin_anew(&mut self) {
        self.next = 0;
        self.epoch += 1;
        self.since = self.epoch;
    }

    /// Has the increment synced in the background, if there is anything to sync and it has not been for a while. How
    /// long until that is due.
    pub fn tend(&mut self) -> Option<Duration> {
        let increment = self.increment.as_mut()?;
        let end = increment.ends[self.half];
        let (asked, when) = increment.asked;
        if end <= asked {
            return None;
        }
        let left = CHECKPOINT_PERIOD.saturating_sub(when.elapsed());
        if !left.is_zero() {
            return Some(left);
        }
        increment.ask(&self.keeper, end);
        None
    }

    /// Deletes the file, when its thread has done what it was asked for. What the frames are of has been synced.
    pub fn end(self) -> io::Result<()> {
        self.keeper.end();
        remove(&self.path)
    }

    /// Why the increment could not be synced in the background, if that is so: what it holds may be in the journal
    /// alone.
    pub fn failure(&self) -> Option<io::Error> {
        self.increment.as_ref()?.checkpoint.failure()
    }

    /// Has the frames put back at the next start in any case, since the increment could not be synced: the kernel may
    /// have lost what it held of it.
    pub fn demand(&self) {
        if let Some(file) = &self.file {
            // Without it the next start trusts the increment, which is all that can be done.
            let _ = format::demand(file);
        }
    }
}

impl Increment {
    fn ask(&mut self, keeper: &Keeper, offset: u64) {
        if offset > self.asked.0 {
            keeper.sync(&self.file, offset, &self.checkpoint);
            self.asked = (offset, Instant::now());
        }
    }
}

/// Deletes the journal at this path for good, if there is one.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // It must not come back in a crash: its frames could be taken for those of a later file.
        removed => removed.and_then(|()| fsync_dir::sync_of(path)),
    }
}
