//! Whether a backup is complete and its dumps are valid.

use crate::checking::{Passed, pass};
use crate::manifest::{Dump, Manifest};
use crate::storage::Storage;
use std::io;

/// Checks size and checksum of each dump, and its content as `kvick-check-rdb` does. Reads each dump once.
///
/// # Errors
/// Describes the first dump that is missing or damaged.
pub fn verify(storage: &dyn Storage, name: &str) -> io::Result<Manifest> {
    let manifest = Manifest::read(storage, name)?;
    manifest.shards.iter().try_for_each(|dump| verify_dump(storage, name, dump))?;
    Ok(manifest)
}

fn verify_dump(storage: &dyn Storage, name: &str, dump: &Dump) -> io::Result<()> {
    let fail = |what: String| io::Error::other(format!("{name}/{}: {what}", dump.file));
    let found = storage.read(name, &dump.file).and_then(|mut file| pass(&dump.file, &mut file, &mut io::sink()));
    let Passed { bytes, crc64, keys } = found.map_err(|error| fail(error.to_string()))?;
    if bytes != dump.bytes {
        return Err(fail(format!("has {bytes} bytes, but {} were written", dump.bytes)));
    }
    if crc64 != dump.crc64 {
        return Err(fail("was changed since it was written".into()));
    }
    let keys = keys.map_err(fail)?;
    if keys != dump.keys {
        return Err(fail(format!("has {keys} keys, but {} were written", dump.keys)));
    }
    Ok(())
}
