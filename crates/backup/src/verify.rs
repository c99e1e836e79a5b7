//! Whether a backup is complete and its dumps are valid.

use crate::manifest::{Dump, Manifest};
use kvick_rdb::check::{CheckOptions, check_file};
use kvick_rdb::{Event, ReadOptions, Reader, crc64};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Bytes that are read at once.
const BUFFER: usize = 256 << 10;

/// Checks size and checksum of each file, and its content as `kvick-check-rdb` does.
///
/// # Errors
/// Describes the first file that is missing or damaged.
pub fn verify(directory: &Path) -> io::Result<Manifest> {
    let manifest = Manifest::read(directory)?;
    for dump in &manifest.shards {
        verify_file(&directory.join(&dump.file), dump)?;
    }
    Ok(manifest)
}

fn verify_file(path: &Path, dump: &Dump) -> io::Result<()> {
    let fail = |what: String| io::Error::other(format!("{}: {what}", path.display()));
    let mut file = File::open(path).map_err(|error| fail(error.to_string()))?;
    let (mut bytes, mut sum, mut buffer) = (0, 0, vec![0; BUFFER]);
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        sum = crc64::update(sum, &buffer[..count]);
    }
    if bytes != dump.bytes {
        return Err(fail(format!("has {bytes} bytes, but {} were written", dump.bytes)));
    }
    if format!("{sum:016x}") != dump.crc64 {
        return Err(fail("was changed since it was written".into()));
    }
    let keys = check(path)?;
    if keys != dump.keys {
        return Err(fail(format!("has {keys} keys, but {} were written", dump.keys)));
    }
    Ok(())
}

/// Checks a dump and returns the number of its keys.
pub(crate) fn check(path: &Path) -> io::Result<u64> {
    let mut report = Vec::new();
    let options = CheckOptions { path: path.to_owned(), hide_user_data: true, ..CheckOptions::default() };
    if !check_file(&options, &mut report)? {
        let report = String::from_utf8_lossy(&report);
        return Err(io::Error::other(format!("{}: is no valid dump:\n{report}", path.display())));
    }
    let fail = |error: kvick_rdb::Error| io::Error::other(format!("{}: {error}", path.display()));
    let mut reader = Reader::new(File::open(path)?, ReadOptions::default()).map_err(fail)?;
    let mut keys = 0;
    while let Some(event) = reader.next_event().map_err(fail)? {
        keys += u64::from(matches!(event, Event::Entry(_)));
    }
    Ok(keys)
}
