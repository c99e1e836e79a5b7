//! The file `nodes.conf`: locked, so that no other node uses it, and replaced as a whole.
//!
//! A new version is written to a temporary file, synced if wanted, and renamed. The lock moves with it: the temporary
//! file is locked before the rename, so at no time can another process lock the file under its name.
//!
//! A new version that must be durable is first written to the [journal](super::journal) if the present one is durable,
//! which takes less time. It is durable then, although the file is not replaced yet.

use crate::journal::{Journal, hash};
use kvick_runtime::{fsync_dir, logging};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// See the module's documentation.
pub struct NodesFile {
    path: PathBuf,
    /// Holds the lock.
    locked: File,
    saves: u64,
    journal: Journal,
    /// The hash of the content, if it is known to be on disk.
    durable: Option<u64>,
}

impl NodesFile {
    /// Opens and locks the file, which is created if it does not exist. Returns its content. Errors are texts for the
    /// log.
    pub fn open(path: &Path) -> Result<(Self, Vec<u8>), String> {
        let name = path.display();
        let cannot = |error: io::Error| format!("Can't open {name} in order to acquire a lock: {error}");
        loop {
            let mut options = OpenOptions::new();
            options.read(true).append(true).create(true).mode(0o644);
            let mut locked = options.open(path).map_err(cannot)?;
            match locked.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(format!(
                        "Sorry, the cluster configuration file {name} is already used by a different Cluster node. \
                         Please make sure that different nodes use different cluster configuration files."
                    ));
                }
                Err(TryLockError::Error(error)) => return Err(format!("Impossible to lock {name}: {error}")),
            }
            if !is_named(&locked, path) {
                // Another process replaced it in between.
                continue;
            }
            let mut content = Vec::new();
            let read = locked.read_to_end(&mut content);
            read.map_err(|error| format!("Loading the cluster node config from {name}: {error}"))?;
            let journal = Journal::of(path);
            if let Some(newer) = journal.recover(&content) {
                logging::notice(format_args!("The content of {name} was completed from its journal"));
                content = newer;
            }
            return Ok((NodesFile { path: path.to_path_buf(), locked, saves: 0, journal, durable: None }, content));
        }
    }

    /// Replaces the content; with `sync`, on disk. Calls `durable` when the content cannot be lost any more although it
    /// has not been replaced yet, if that is so. Errors are logged; the old content stays.
    pub fn save(&mut self, content: &[u8], sync: bool, durable: impl FnOnce()) -> Result<(), SaveFailed> {
        self.saves += 1;
        let mut temporary = self.path.as_os_str().to_owned();
        temporary.push(format!(".tmp-{}-{}", std::process::id(), self.saves));
        let temporary = PathBuf::from(temporary);
        let written = Self::write(&temporary, content);
        if written.is_ok()
            && sync
            && let Some(previous) = self.durable
            && self.journal.write(previous, content).is_ok()
        {
            durable();
        }
        self.durable = None;
        let saved = written.and_then(|file| self.replace(file, &temporary, sync));
        if saved.is_ok() && sync {
            // A file without content may also be one that was removed and is created anew.
            self.durable = (!content.is_empty()).then(|| hash(content));
            self.journal.clear();
        }
        saved.map_err(|(what, error)| {
            logging::warning(format_args!("Could not {what}: {error}"));
            // The first error is the one to report.
            let _ = fs::remove_file(&temporary);
            SaveFailed
        })
    }

    fn write(temporary: &Path, content: &[u8]) -> Result<File, (&'static str, io::Error)> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o644);
        let mut file = options.open(temporary).map_err(|error| ("open temp cluster config file", error))?;
        let written = file.write_all(content);
        written.map_err(|error| ("write tmp cluster config file", error))?;
        Ok(file)
    }

    fn replace(&mut self, file: File, temporary: &Path, sync: bool) -> Result<(), (&'static str, io::Error)> {
        if sync {
            file.sync_all().map_err(|error| ("sync tmp cluster config file", error))?;
        }
        file.try_lock().map_err(|error| ("lock tmp cluster config file", error.into()))?;
        fs::rename(temporary, &self.path).map_err(|error| ("rename tmp cluster config file", error))?;
        self.locked = file;
        if sync {
            fsync_dir::sync_of(&self.path).map_err(|error| ("sync cluster config file dir", error))?;
        }
        Ok(())
    }
}

/// The file was not saved; the reason is in the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SaveFailed;

/// Whether this file is the one that has this name.
fn is_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: io::Result<fs::Metadata>| match metadata {
        Ok(metadata) => Some((metadata.dev(), metadata.ino())),
        Err(error) => (error.kind() != ErrorKind::NotFound).then_some((0, 0)),
    };
    identity(file.metadata()) == identity(fs::metadata(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn save(file: &mut NodesFile, content: &[u8], sync: bool) -> Result<(), SaveFailed> {
        file.save(content, sync, || ())
    }

    #[test]
    fn durable_saves_after_the_first_one_are_journaled_until_they_are_complete() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nodes.conf");
        let (mut file, _) = NodesFile::open(&path).expect("a new file");
        save(&mut file, b"first", true).expect("saved");
        let mut before = None;
        let saved = file.save(b"second", true, || before = fs::read(&path).ok());
        assert_eq!((saved, before), (Ok(()), Some(b"first".to_vec())), "it is durable before it is replaced");
        assert_eq!(fs::read(&path).expect("the file"), b"second");
        // A crash in between: the journal has the newer content.
        file.journal.write(hash(b"second"), b"third").expect("written");
        drop(file);
        let (file, content) = NodesFile::open(&path).expect("the file");
        assert_eq!(content, b"third");
        drop(file);
        fs::remove_file(&path).expect("removed");
        let (_, content) = NodesFile::open(&path).expect("a new file");
        assert_eq!(content, b"", "the journal is of another file");
    }

    #[test]
    fn one_process_at_a_time_has_the_file_also_after_it_was_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nodes.conf");
        let (mut file, content) = NodesFile::open(&path).expect("a new file");
        assert_eq!(content, b"");
        for content in [&b"first"[..], b"second"] {
            save(&mut file, content, content == b"first").expect("saved");
            let error = NodesFile::open(&path).err().expect("it is locked");
            assert!(error.contains("is already used by a different Cluster node"), "{error}");
        }
        drop(file);
        let (_, content) = NodesFile::open(&path).expect("an existing file");
        assert_eq!(content, b"second");
        assert_eq!(fs::read_dir(dir.path()).expect("a directory").count(), 1, "no temporary file is left");
    }

    #[test]
    fn an_error_leaves_the_old_content() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nodes.conf");
        let (mut file, _) = NodesFile::open(&path).expect("a new file");
        save(&mut file, b"old", true).expect("saved");
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("a directory in its place");
        let mut is_durable = false;
        assert_eq!(file.save(b"new", true, || is_durable = true), Err(SaveFailed));
        assert!(is_durable, "the journal has it");
        assert_eq!(save(&mut file, b"new", false), Err(SaveFailed));
        let left = fs::read_dir(dir.path()).expect("a directory").count();
        assert_eq!(left, 2, "the directory and the journal; no temporary file");
    }
}
