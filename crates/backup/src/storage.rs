//! Where backups are kept.

use crate::manifest::{self, Manifest, is_plain};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// What the names of directories begin with that are not complete, or are being removed.
const HIDDEN: &str = ".";

/// A directory with a directory for each backup.
#[derive(Clone, Debug)]
pub struct Storage {
    root: PathBuf,
}

impl Storage {
    /// The storage at this path, which need not exist yet.
    pub fn new(root: PathBuf) -> Storage {
        Storage { root }
    }

    /// Names of all complete backups, the oldest first.
    ///
    /// # Errors
    /// If the directory cannot be read.
    pub fn list(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(&self.root)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.root.display())))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            if is_plain(&name) && entry.path().join(manifest::FILE).is_file() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The directory of a backup.
    ///
    /// # Errors
    /// If there is no such backup.
    pub fn open(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.root.join(name);
        if is_plain(name) && path.join(manifest::FILE).is_file() {
            return Ok(path);
        }
        Err(io::Error::new(io::ErrorKind::NotFound, format!("{} has no backup '{name}'", self.root.display())))
    }

    /// An empty directory for a new backup, that [`Storage::list`] does not show.
    pub(crate) fn stage(&self, name: &str) -> io::Result<Staged> {
        let path = self.root.join(format!("{HIDDEN}{name}.partial"));
        fs::create_dir_all(&path)?;
        Ok(Staged { path, target: self.root.join(name), is_published: false })
    }

    /// Removes a backup.
    ///
    /// # Errors
    /// If there is none of this name, or if it cannot be removed.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.open(name)?;
        // A removal that is interrupted leaves no half backup behind.
        let hidden = self.root.join(format!("{HIDDEN}{name}.removed"));
        fs::rename(path, &hidden)?;
        fs::remove_dir_all(hidden)
    }
}

/// A backup that is not complete. It is removed when it is dropped.
pub(crate) struct Staged {
    pub(crate) path: PathBuf,
    target: PathBuf,
    is_published: bool,
}

impl Staged {
    /// Writes the manifest and makes the backup visible; it is on disk then.
    pub(crate) fn publish(mut self, manifest: &Manifest) -> io::Result<()> {
        let path = self.path.join(manifest::FILE);
        fs::write(&path, manifest.text())?;
        let files = manifest.shards.iter().map(|dump| self.path.join(&dump.file)).chain([path]);
        for file in files {
            File::open(file)?.sync_all()?;
        }
        File::open(&self.path)?.sync_all()?;
        fs::rename(&self.path, &self.target)?;
        self.is_published = true;
        let parent = self.target.parent().unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_published {
            // What cannot be removed stays hidden.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_complete_backups_are_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let storage = Storage::new(directory.path().join("backups"));
        assert!(storage.list().is_err());
        let name = manifest::name_of(0);
        let manifest =
            Manifest { version: manifest::VERSION, name: name.clone(), cluster: false, span_ms: 0, shards: Vec::new() };
        drop(storage.stage(&name).expect("a directory"));
        let staged = storage.stage(&name).expect("a directory");
        assert_eq!(storage.list().expect("names"), [""; 0]);
        assert!(storage.open(&name).is_err());
        staged.publish(&manifest).expect("published");
        assert_eq!(storage.list().expect("names"), [&*name]);
        assert_eq!(Manifest::read(&storage.open(&name).expect("there")).expect("a manifest"), manifest);
        assert!(storage.open("../backups").is_err());
        storage.remove(&name).expect("removed");
        assert_eq!(fs::read_dir(directory.path().join("backups")).expect("a directory").count(), 0);
    }
}
