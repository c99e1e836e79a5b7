//! Parses the journal of an append-only file.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

/// The offset in an increment at which the journal's frames begin, if a journal with frames of it exists.
pub fn begins_at(journal: &Path, increment: &Path) -> Option<u64> {
    const HEADER_AT: u64 = 4096;
    let (mut header, journal) = ([0; 64], File::open(journal).ok()?);
    journal.read_exact_at(&mut header, HEADER_AT).ok()?;
    let number = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let increment = fs::metadata(increment).ok()?;
    (header.starts_with(b"KVJRNL01") && number(40) == increment.ino()).then(|| number(56))
}
