//! A journal beside `nodes.conf`, so that a durable save takes one write to blocks that the file has already.
//!
//! Replacing `nodes.conf` durably needs two syncs that change directories and sizes, and the second one waits for
//! whatever else the file system has to write. Clients wait for that while slots are handed over. So the new content is
//! written to the journal first, in place, and the file is replaced afterwards.
//!
//! ```text
//! magic    8 bytes
//! previous 8 bytes  hash of the content of nodes.conf that this one replaces
//! length   8 bytes  of the content
//! sum      8 bytes  hash of all other bytes
//! content
//! ```
//!
//! Numbers are little-endian. The content counts only if `nodes.conf` still has the previous one: then the machine
//! crashed before the replacement was on disk. A journal that another program's `nodes.conf` outlived is not used.

use kvick_runtime::fsync_dir;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 8] = b"KVNODES1";
const HEADER_BYTES: usize = 32;

/// The smallest journal, in bytes.
const SIZE_MIN: usize = 64 * 1024;

/// A journal is only used up to this size: a larger one is not of a cluster.
const SIZE_MAX: u64 = 1 << 30;

/// See the module's documentation.
pub struct Journal {
    path: PathBuf,
    /// The file, and how many bytes of it have blocks.
    file: Option<(File, usize)>,
}

impl Journal {
    /// The journal of this `nodes.conf`. It is created when it is written first.
    pub fn of(path: &Path) -> Journal {
        let mut name = path.as_os_str().to_owned();
        name.push(".journal");
        Journal { path: name.into(), file: None }
    }

    /// The content that replaces `current`, if its replacement was not completed.
    pub fn recover(&self, current: &[u8]) -> Option<Vec<u8>> {
        let len = fs::metadata(&self.path).ok()?.len();
        let bytes = if len <= SIZE_MAX { fs::read(&self.path).ok()? } else { return None };
        let (header, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let number = |at: usize| header[at..at + 8].try_into().map(u64::from_le_bytes);
        let (previous, length, sum) = (number(8).ok()?, number(16).ok()?, number(24).ok()?);
        let content = rest.get(..usize::try_from(length).ok()?)?;
        let is_valid = header.starts_with(MAGIC) && sum == sum_of(previous, content) && previous == hash(current);
        is_valid.then(|| content.to_vec())
    }

    /// Makes `content` durable as the successor of the content with the hash `previous`.
    pub fn write(&mut self, previous: u64, content: &[u8]) -> io::Result<()> {
        let length = content.len() as u64;
        let mut bytes = MAGIC.to_vec();
        for number in [previous, length, sum_of(previous, content)] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend_from_slice(content);
        let file = self.open(bytes.len())?;
        file.write_all_at(&bytes, 0)?;
        file.sync_data()
    }

    /// Makes the journal invalid, not necessarily on disk: the content of `nodes.conf` is durable.
    pub fn clear(&mut self) {
        if let Some((file, _)) = &self.file
            && file.write_all_at(&[0; HEADER_BYTES], 0).is_err()
        {
            // What it has does not match the present content. It is created anew for the next save.
            self.file = None;
        }
    }

    /// The file, with blocks for this many bytes.
    fn open(&mut self, bytes: usize) -> io::Result<&File> {
        let has_room = self.file.as_ref().is_some_and(|(_, size)| *size >= bytes);
        if !has_room {
            let size = bytes.next_power_of_two().max(SIZE_MIN);
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o644);
            let file = options.open(&self.path)?;
            // Written and not only allocated: the first write to an unwritten block is slow as well.
            file.write_all_at(&vec![0; size], 0)?;
            file.sync_all()?;
            fsync_dir::sync_of(&self.path)?;
            self.file = Some((file, size));
        }
        self.file.as_ref().map(|(file, _)| file).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn sum_of(previous: u64, content: &[u8]) -> u64 {
    let numbers = [previous.to_le_bytes(), (content.len() as u64).to_le_bytes()].concat();
    continue_hash(hash(&numbers), content)
}

/// A hash of 64 bits (FNV-1a).
pub fn hash(bytes: &[u8]) -> u64 {
    continue_hash(0xcbf2_9ce4_8422_2325, bytes)
}

fn continue_hash(state: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(state, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_recovered_if_the_previous_one_is_still_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nodes.conf");
        let mut journal = Journal::of(&path);
        assert_eq!(journal.recover(b"old"), None);
        for size in [3, 10, 100_000, 5] {
            let content = vec![b'x'; size];
            journal.write(hash(b"old"), &content).expect("written");
            assert_eq!(Journal::of(&path).recover(b"old"), Some(content.clone()));
            assert_eq!(journal.recover(&content), None, "the replacement is complete");
            assert_eq!(journal.recover(b"other"), None, "it is of another file");
        }
        journal.clear();
        assert_eq!(journal.recover(b"old"), None);
    }

    #[test]
    fn damaged_journals_are_ignored() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nodes.conf");
        let mut journal = Journal::of(&path);
        journal.write(hash(b"old"), b"new content").expect("written");
        let bytes = fs::read(&journal.path).expect("the journal");
        for at in 0..HEADER_BYTES + 11 {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            fs::write(&journal.path, &damaged).expect("written");
            assert_eq!(journal.recover(b"old"), None, "byte {at}");
        }
        for len in 0..HEADER_BYTES + 11 {
            fs::write(&journal.path, &bytes[..len]).expect("written");
            assert_eq!(journal.recover(b"old"), None, "{len} bytes");
        }
    }
}
