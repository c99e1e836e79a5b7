//! Recovers what an increment lost in a machine crash.

use super::format::{self, BLOCK, Boot, FORCE_RECOVERY, Frame, Header, Identity};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The outcome of recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Recovered {
    /// No journal exists, or it is not for this increment, or it is not needed.
    Nothing,
    /// The increment was completed; this many bytes were missing at its end.
    Completed(u64),
    /// The increment is shorter than when the journal was started, or has other content: it was left unchanged.
    Mismatch,
}

/// Writes a journal's frames to this increment, if they belong to it and it may have lost them.
pub fn recover(journal: &Path, increment: &Path) -> io::Result<Recovered> {
    recover_in(Boot::current(), journal, increment)
}

/// The same, with a given boot of the machine.
pub(super) fn recover_in(boot: Boot, journal: &Path, increment: &Path) -> io::Result<Recovered> {
    let journal = match File::open(journal) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Recovered::Nothing),
        opened => opened?,
    };
    let increment = match OpenOptions::new().read(true).write(true).open(increment) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Recovered::Nothing),
        opened => opened?,
    };
    let halves = halves_for(&journal, Identity::of(&increment)?, boot)?;
    if halves.is_empty() {
        return Ok(Recovered::Nothing);
    }
    let mut missing = 0;
    for (header, bytes) in halves {
        let len = increment.metadata()?.len();
        if header.start > len || !header.matches(&increment) {
            return Ok(Recovered::Mismatch);
        }
        missing += restore_frames(&header, &bytes, &increment)?.saturating_sub(len);
    }
    increment.sync_all()?;
    Ok(Recovered::Completed(missing))
}

/// The halves that belong to this file and may be needed, in the order in which they were written.
fn halves_for(journal: &File, identity: Identity, boot: Boot) -> io::Result<Vec<(Header, Vec<u8>)>> {
    let is_recovery_forced = is_recovery_forced(journal);
    let mut halves = Vec::new();
    for half in 0..2 {
        let bytes = format::read_half(journal, half)?;
        halves.extend(Header::read(&bytes).map(|header| (header, bytes)));
    }
    halves.sort_by_key(|(header, _)| header.epoch);
    let since = halves.last().map_or(0, |(last, _)| last.since);
    halves.retain(|(header, _)| {
        header.epoch >= since && header.identity == identity && (is_recovery_forced || !header.boot.is_same(boot))
    });
    Ok(halves)
}

fn is_recovery_forced(journal: &File) -> bool {
    let mut beginning = FORCE_RECOVERY;
    beginning.fill(0);
    journal.read_exact_at(&mut beginning, 0).is_ok() && beginning == FORCE_RECOVERY
}

/// Writes the frames of a half. Returns the end offset of the last.
fn restore_frames(header: &Header, half: &[u8], increment: &File) -> io::Result<u64> {
    let (mut offset, mut block) = (header.start, 1);
    while let Some(rest) = half.get(block * BLOCK..)
        && let Some((frame, bytes)) = Frame::read(rest, header.epoch, offset)
    {
        increment.write_all_at(bytes, offset)?;
        offset += frame.len as u64;
        block += Frame::blocks(frame.len) as usize;
    }
    Ok(offset)
}
