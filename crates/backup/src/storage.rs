//! Where backups are kept: in a directory, or in a bucket of object storage.
//!
//! A backup becomes visible as a whole, when its manifest is there. What a failed backup leaves behind is never listed,
//! and [`Storage::remove_leftovers`] removes it.

mod directory;
#[cfg(test)]
mod tests;

use crate::bucket::Bucket;
use crate::manifest::Manifest;
use directory::Directory;
use std::io::{self, Read, Write};
use std::path::Path;
use std::time::Duration;

/// What the arguments begin with that name a bucket.
const BUCKET: &str = "s3://";

/// A place with any number of backups.
pub trait Storage: Send + Sync {
    /// Names of all complete backups, the oldest first.
    ///
    /// # Errors
    /// If the storage cannot be read.
    fn list(&self) -> io::Result<Vec<String>>;

    /// A file of a backup, from its beginning.
    ///
    /// # Errors
    /// If there is no such backup, or no such file in it.
    fn read(&self, name: &str, file: &str) -> io::Result<Box<dyn Read + Send>>;

    /// Begins a backup that is not listed yet.
    ///
    /// # Errors
    /// If the storage cannot be written.
    fn stage(&self, name: &str) -> io::Result<Box<dyn Staged>>;

    /// Removes a backup.
    ///
    /// # Errors
    /// If there is none of this name, or if it cannot be removed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Removes what failed backups and interrupted removals have left behind, if nothing was added to it for this time.
    /// Returns the names of these backups.
    ///
    /// # Errors
    /// If it cannot be found or removed.
    fn remove_leftovers(&self, unchanged_for: Duration) -> io::Result<Vec<String>>;
}

/// A backup that is not complete. If it is dropped, its files are removed.
pub trait Staged: Send + Sync {
    /// A new file.
    ///
    /// # Errors
    /// If it cannot be created.
    fn create(&self, file: &str) -> io::Result<Box<dyn Output>>;

    /// Writes the manifest, which makes the backup visible. All files must be finished; they are durable then.
    ///
    /// # Errors
    /// If it cannot be written, or if another program has removed one of the files.
    fn publish(self: Box<Self>, manifest: &Manifest) -> io::Result<()>;
}

/// A file that is written. If it is dropped before it is finished, it does not exist.
pub trait Output: Write + Send {
    /// Ends the file.
    ///
    /// # Errors
    /// If it could not be written.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// The storage that an argument names: `s3://BUCKET/PREFIX`, or the path of a directory. It need not exist yet, but a
/// bucket must.
///
/// # Errors
/// If the settings of a bucket cannot be used.
pub fn open(argument: &Path) -> io::Result<Box<dyn Storage>> {
    match argument.to_str().and_then(|text| text.strip_prefix(BUCKET)) {
        Some(place) => {
            let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
            Ok(Box::new(Bucket::open(place, &variable)?))
        }
        None => Ok(Box::new(Directory::new(argument.to_owned()))),
    }
}

/// The error of a backup that does not exist.
pub(crate) fn no_backup(storage: &dyn std::fmt::Display, name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{storage} has no backup '{name}'"))
}
