//! The tail of the append-only file: records that have been acknowledged, and that the thread has not written yet.
//!
//! Workers copy each record to the [tail of the log](kvick_store::log::tail), which is a mapped file: the kernel keeps
//! its pages when the process is killed, and the next start [appends](recovery) them to the increment. So replies need
//! not wait for the thread. They do wait, until it has written, while the tail is absent or full: see
//! [`Aof::on_log_appended`](super::Aof::on_log_appended).
//!
//! An anchor in the tail says where its positions are in the increment. It is written when the thread has written all
//! records from before the tail, and again before anything changes the distance: a line with the time, another
//! increment, or another name of it. Until the change is made, the anchor before it is valid too.
//!
//! A tail that was too small is restarted with twice the size when the thread has caught up. With `appendfsync always`
//! replies wait for the disk, and there is no tail.

mod mapping;
mod recovery;
#[cfg(test)]
mod tests;

use super::aof_dir::reason;
use super::journal::Identity;
use super::writer::Writer;
use kvick_runtime::logging;
use kvick_store::log::tail::{Anchor, HEADER_BYTES, SEGMENT_BYTES};
use mapping::Mapping;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(super) use recovery::{Recovered, recover};

/// Segments of a new tail: 8 MiB.
const SEGMENTS_MIN: usize = 128;
/// Segments of the largest tail: 64 MiB. If the thread is further behind, workers pause.
const SEGMENTS_MAX: usize = 1024;
/// The delay before another attempt to create a tail.
const RETRY: Duration = Duration::from_secs(60);

/// The bytes of a tail.
const fn file_bytes(segments: usize) -> usize {
    HEADER_BYTES + segments * SEGMENT_BYTES
}

/// The writer's view of the tail.
#[derive(Default)]
pub(super) struct Tail {
    current: Option<Current>,
    /// When a tail could not be created.
    failed_at: Option<Instant>,
}

struct Current {
    file: File,
    path: PathBuf,
    segments: usize,
    stage: Stage,
    /// The number of the last anchor.
    sequence: u64,
}

#[derive(Clone, Copy)]
enum Stage {
    /// The tail has the records from this log offset on; the increment lacks some of the records before it.
    Begun(u64),
    /// The increment has all records before the tail. The position of the next byte to read from the log.
    Anchored(u64),
}

impl Tail {
    /// The log offset at which the tail begins, while it has no anchor.
    pub fn begun_at(&self) -> Option<u64> {
        match self.current.as_ref()?.stage {
            Stage::Begun(offset) => Some(offset),
            Stage::Anchored(_) => None,
        }
    }

    fn position(&self) -> Option<u64> {
        match self.current.as_ref()?.stage {
            Stage::Begun(_) => None,
            Stage::Anchored(position) => Some(position),
        }
    }

    /// Bytes have been read from the log.
    pub fn advance(&mut self, bytes: usize) {
        if let Some(Current { stage: Stage::Anchored(position), .. }) = &mut self.current {
            *position += bytes as u64;
        }
    }
}

impl Writer {
    /// Creates, restarts or ends the tail, as the settings and the load require.
    pub(super) fn update_tail(&mut self) {
        let Some(follower) = self.follower.as_ref().filter(|_| !self.aof.is_always()) else {
            self.end_tail();
            self.tail.failed_at = None;
            return;
        };
        if self.tail.current.is_none() {
            // An idle server needs none.
            if follower.lag() > 0 && self.tail.failed_at.is_none_or(|at| at.elapsed() >= RETRY) {
                self.begin_tail();
            }
        } else if self.is_tail_used_up() {
            self.restart_tail();
        }
    }

    fn begin_tail(&mut self) {
        let path = self.aof_dir.tail_path();
        let created = mapping::create(&path).and_then(|file| {
            mapping::allocate(&file, file_bytes(SEGMENTS_MIN))?;
            let mapping = map(&file, SEGMENTS_MIN)?;
            Ok((file, mapping))
        });
        match created {
            Ok((file, mapping)) => {
                let seed = RandomState::new().build_hasher().finish();
                let begun = self.core.keyspace.log.begin_tail(Box::new(mapping), seed, SEGMENTS_MIN);
                let stage = Stage::Begun(begun);
                self.tail.current = Some(Current { file, path, segments: SEGMENTS_MIN, stage, sequence: 0 });
                self.tail.failed_at = None;
            }
            Err(error) => {
                // It may exist, but with too few blocks.
                let _ = fs::remove_file(&path);
                if self.tail.failed_at.replace(Instant::now()).is_none() {
                    logging::warning(format_args!(
                        "There is no tail beside the append-only file: {}. Replies wait until the file has been \
                         written.",
                        reason(&error)
                    ));
                }
            }
        }
    }

    /// Whether the tail takes no more records, and the increment has those that it took.
    fn is_tail_used_up(&self) -> bool {
        let (Some(follower), log) = (&self.follower, &self.core.keyspace.log) else { return false };
        // A follower that was cut off, because the log began anew, has no next byte.
        let next_end = follower.offset().checked_add(1);
        let is_written = self.unwritten.is_empty() && next_end.is_some_and(|next| !log.is_in_tail(next));
        self.tail.position().is_some() && is_written
    }

    fn restart_tail(&mut self) {
        let Some(current) = &mut self.tail.current else { return };
        let more = (current.segments * 2).min(SEGMENTS_MAX);
        // On an error the size stays.
        if more > current.segments && mapping::allocate(&current.file, file_bytes(more)).is_ok() {
            current.segments = more;
        }
        match map(&current.file, current.segments) {
            Ok(mapping) => {
                current.stage = Stage::Begun(self.core.keyspace.log.restart_tail(Box::new(mapping), current.segments));
            }
            Err(_) => self.end_tail(),
        }
    }

    /// Ends the tail, and deletes its file.
    pub(super) fn end_tail(&mut self) {
        if let Some(current) = self.tail.current.take() {
            drop(self.core.keyspace.log.end_tail());
            // The file is useless, and the next tail replaces it.
            let _ = fs::remove_file(&current.path);
        }
    }

    /// The increment has all records before the tail: from here on the tail counts.
    pub(super) fn anchor_begun_tail(&mut self) {
        let Some(begun) = self.tail.begun_at() else { return };
        if self.unwritten.is_empty() && self.follower.as_ref().is_some_and(|follower| follower.offset() >= begun) {
            self.write_anchor(0, 0);
        }
    }

    /// An annotation of this many bytes follows in the increment, which has everything that was read from the log.
    pub(super) fn anchor_annotation(&mut self, annotation: usize) {
        if let Some(position) = self.tail.position() {
            self.write_anchor(position, annotation as u64);
        }
    }

    /// The increment's next part of the tail is in this file, from `offset` on.
    pub(super) fn anchor_increment(&mut self, file: &File, name: &[u8], offset: u64) {
        if let Some(position) = self.tail.position() {
            self.write_anchor_for(file, name, (position, offset, 0));
        }
    }

    /// The increment has another name.
    pub(super) fn rename_increment(&mut self, name: &[u8]) {
        if let Some(increment) = &mut self.increment {
            increment.name = name.to_vec();
        }
        self.anchor_annotation(0);
    }

    fn write_anchor(&mut self, position: u64, annotation: u64) {
        let Some(increment) = self.increment.take() else { return };
        self.write_anchor_for(&increment.file, &increment.name, (position, increment.size, annotation));
        self.increment = Some(increment);
    }

    fn write_anchor_for(&mut self, file: &File, name: &[u8], (position, offset, annotation): (u64, u64, u64)) {
        let Some(current) = &mut self.tail.current else { return };
        // Without an identity the file is recognised by its content.
        let identity = Identity::of(file).map_or([0; 2], |identity| [identity.inode, identity.created_ns]);
        current.sequence += 1;
        let (sequence, name) = (current.sequence, name.to_vec());
        let mut anchor = Anchor { epoch: 0, sequence, position, offset, annotation, identity, name };
        if self.core.keyspace.log.anchor_tail(&mut anchor) {
            current.stage = Stage::Anchored(position);
        }
    }

    /// The last anchor was for an increment that is not used.
    pub(super) fn revoke_anchor(&mut self) {
        if self.tail.position().is_some() {
            self.core.keyspace.log.revoke_tail_anchor();
        }
    }

    /// The increment has all that was read from the log.
    pub(super) fn release_tail(&self) {
        if let Some(position) = self.tail.position().filter(|_| self.unwritten.is_empty()) {
            self.core.keyspace.log.release_tail(position);
        }
    }
}

fn map(file: &File, segments: usize) -> io::Result<Mapping> {
    Mapping::new(file, file_bytes(segments), file_bytes(segments))
}
