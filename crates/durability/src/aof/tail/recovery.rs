//! Appends to an increment what a killed process had left in the tail.

use super::{SEGMENTS_MAX, file_bytes};
use crate::aof::journal::Identity;
use kvick_store::log::tail::{Anchor, Records, TailReader};
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A file that has fewer bytes in common with the tail must be the same one, not a copy.
const COMMON_BYTES_MIN: u64 = 64;

/// The outcome of recovery.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Recovered {
    /// No tail exists, or the increment has all of its records.
    Nothing,
    /// This many bytes were appended to the increment.
    Completed(u64),
    /// The tail is of another increment, with this name.
    Foreign(Vec<u8>),
    /// The increment has other content than it had when the tail was written, or is shorter.
    Mismatch,
    /// The file is not a tail.
    Invalid,
}

/// Appends a tail's records to the increment of this name and path. Nothing is done unless the tail continues it.
pub fn recover(tail: &Path, name: &[u8], increment: &Path) -> io::Result<Recovered> {
    let mut bytes = Vec::new();
    match File::open(tail) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Recovered::Nothing),
        opened => opened?.take(file_bytes(SEGMENTS_MAX) as u64).read_to_end(&mut bytes)?,
    };
    let increment = match OpenOptions::new().read(true).write(true).open(increment) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Recovered::Nothing),
        opened => opened?,
    };
    let Some(reader) = TailReader::new(&bytes) else {
        // The process may have been killed after it had created the file.
        let is_unused = bytes.iter().all(|byte| *byte == 0);
        return Ok(if is_unused { Recovered::Nothing } else { Recovered::Invalid });
    };
    let anchors = reader.anchors();
    let Some(last) = anchors.first() else { return Ok(Recovered::Nothing) };
    let mut ours = anchors.iter().filter(|anchor| anchor.name == name).peekable();
    if ours.peek().is_none() {
        return Ok(Recovered::Foreign(last.name.clone()));
    }
    let len = increment.metadata()?.len();
    let Some(anchor) = ours.find(|anchor| anchor.offset <= len) else { return Ok(Recovered::Mismatch) };
    // A part of the annotation may be there, and nothing of the records behind it.
    let data = anchor.offset + anchor.annotation;
    let (end, position) = if len < data {
        (anchor.offset, Some(anchor.position))
    } else {
        (len, anchor.position.checked_add(len - data))
    };
    let Some(position) = position else { return Ok(Recovered::Mismatch) };
    let records = reader.records(anchor.epoch, position);
    if records.missing().next().is_none() && !records.has_gap() {
        return Ok(Recovered::Nothing);
    }
    if records.has_gap() || !continues(&increment, anchor, &records)? {
        return Ok(Recovered::Mismatch);
    }
    append(&increment, end, &records).map(Recovered::Completed)
}

/// Whether the tail and the increment have the same bytes where both have any.
fn continues(increment: &File, anchor: &Anchor, records: &Records<'_>) -> io::Result<bool> {
    let (mut common, mut found) = (0, Vec::new());
    for (position, piece) in records.present() {
        // What precedes the anchor is elsewhere.
        let skipped = anchor.position.saturating_sub(position);
        let Some(piece) = piece.get(skipped as usize..) else { continue };
        let at = anchor.offset + anchor.annotation + (position + skipped - anchor.position);
        found.resize(piece.len(), 0);
        increment.read_exact_at(&mut found, at)?;
        if found != piece {
            return Ok(false);
        }
        common += piece.len() as u64;
    }
    let identity = Identity::of(increment)?;
    Ok(common >= COMMON_BYTES_MIN || anchor.identity == [identity.inode, identity.created_ns])
}

/// Writes what is missing at the end of the increment. Returns the number of bytes.
fn append(increment: &File, end: u64, records: &Records<'_>) -> io::Result<u64> {
    increment.set_len(end)?;
    let mut at = end;
    for piece in records.missing() {
        increment.write_all_at(piece, at)?;
        at += piece.len() as u64;
    }
    // Otherwise a machine crash could shorten it, when this tail has been replaced.
    increment.sync_data()?;
    Ok(at - end)
}
