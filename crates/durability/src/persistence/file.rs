//! A dump's file: written under a temporary name in the dump's directory, and renamed when it is complete and synced. A
//! [`DumpFile`] that was not installed deletes its temporary file on drop.

use kvick_config::Refusal;
use kvick_runtime::fsync_dir;
use kvick_runtime::logging;
use parking_lot::Mutex;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

/// With `rdb-save-incremental-fsync`, this many bytes are synced at a time.
const SYNC_BYTES: u64 = 4 << 20;

/// Why a dump was not written. Displays as the line for the log.
#[derive(Debug)]
pub enum SaveError {
    /// The temporary file could not be created.
    Create(PathBuf, io::Error),
    /// A write or a sync failed: the step, and the cause.
    Write(&'static str, io::Error),
    /// The complete file could not be renamed.
    Rename {
        /// The temporary name.
        from: PathBuf,
        /// The place.
        to: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The directory could not be synced.
    SyncDirectory(io::Error),
    /// The format's version cannot represent a value.
    Unrepresentable(Unrepresentable),
    /// The save was cancelled.
    Cancelled,
}

/// The format's version cannot represent a value: a hash with expiring fields.
#[derive(Clone, Debug)]
pub struct Unrepresentable {
    /// Its key, if the log may name it.
    pub key: Option<Box<[u8]>>,
    /// Its database.
    pub database: usize,
    /// The version.
    pub version: u16,
}

impl SaveError {
    /// The same for another destination: an I/O error of one file is only a cancellation for others.
    pub(super) fn for_other_destination(&self) -> SaveError {
        match self {
            SaveError::Unrepresentable(what) => SaveError::Unrepresentable(what.clone()),
            _ => SaveError::Cancelled,
        }
    }
}

/// A write failed. The name of the step is what tools know.
pub(super) fn write_error(error: io::Error) -> SaveError {
    SaveError::Write("rdbSaveRio", error)
}

impl std::error::Error for SaveError {}

impl fmt::Display for SaveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |error: &io::Error| Refusal::from(io::Error::from_raw_os_error(error.raw_os_error().unwrap_or(0)));
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let folder = |path: &Path| path.parent().unwrap_or(Path::new("")).display().to_string();
        match self {
            SaveError::Create(path, error) => write!(
                f,
                "Failed opening the temp RDB file {} (in server root dir {}) for saving: {}",
                name(path),
                folder(path),
                plain(error)
            ),
            SaveError::Write(call, error) => {
                write!(f, "Write error while saving DB to the disk({call}): {}", plain(error))
            }
            SaveError::Rename { from, to, error } => write!(
                f,
                "Error moving temp DB file {} on the final destination {} (in server root dir {}): {}",
                name(from),
                name(to),
                folder(to),
                plain(error)
            ),
            SaveError::SyncDirectory(error) => {
                write!(f, "Failed to fsync directory while saving DB: {}", plain(error))
            }
            SaveError::Unrepresentable(Unrepresentable { key, database, version }) => {
                let name = key.as_ref().map(|key| format!(" '{}'", String::from_utf8_lossy(key))).unwrap_or_default();
                write!(
                    f,
                    "Can't store key{name} (db {database}) in RDB version {version}: a hash with fields that expire"
                )
            }
            SaveError::Cancelled => f.write_str("The save was cancelled"),
        }
    }
}

/// The files that are being written.
#[derive(Default)]
pub struct TemporaryFiles(Mutex<Vec<PathBuf>>);

impl TemporaryFiles {
    /// Creates a file of this name in a directory.
    pub fn create(&'static self, folder: &Path, name: &str, sync_often: bool) -> Result<DumpFile, SaveError> {
        let path = folder.join(name);
        // Listed first, so that a concurrent removal of all files finds it.
        self.0.lock().push(path.clone());
        let sync = sync_often.then(IncrementalSync::default);
        match File::create(&path) {
            Ok(file) => Ok(DumpFile { file, path, list: self, sync }),
            Err(error) => {
                self.forget(&path);
                Err(SaveError::Create(path, error))
            }
        }
    }

    /// Removes all of them.
    pub fn remove_all(&self) {
        for path in self.0.lock().drain(..) {
            // It may already be gone.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Takes a file off the list; false if another thread has removed it.
    fn forget(&self, path: &Path) -> bool {
        let mut list = self.0.lock();
        let before = list.len();
        list.retain(|other| other != path);
        list.len() < before
    }
}

/// See the module's documentation.
pub struct DumpFile {
    file: File,
    path: PathBuf,
    list: &'static TemporaryFiles,
    sync: Option<IncrementalSync>,
}

/// The offset up to which the file was sent to the disk.
#[derive(Default)]
struct IncrementalSync {
    written: u64,
    begun: u64,
    done: u64,
}

impl DumpFile {
    /// Syncs the file.
    pub fn sync(&self) -> Result<(), SaveError> {
        self.file.sync_all().map_err(|error| SaveError::Write("fsync", error))
    }

    /// Renames the file into place, replacing the old one.
    pub fn install(self, to: &Path) -> Result<(), SaveError> {
        std::fs::rename(&self.path, to).map_err(|error| SaveError::Rename {
            from: self.path.clone(),
            to: to.into(),
            error,
        })?;
        self.list.forget(&self.path);
        Ok(())
    }

    /// Its temporary name.
    pub fn name(&self) -> String {
        self.path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Advises the kernel to drop the file from the page cache.
    pub fn drop_page_cache(&self) {
        // SAFETY: the descriptor is open; the call gives advice and touches no memory of ours.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
}

/// Syncs a directory, so that renames survive a crash.
pub fn sync_directory(folder: &Path) -> Result<(), SaveError> {
    fsync_dir::sync(folder).map_err(SaveError::SyncDirectory)
}

impl Write for DumpFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        if let Some(sync) = &mut self.sync {
            sync.after_write(&self.file, written as u64)?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl IncrementalSync {
    /// Starts writeback of the last bytes, and waits for the previous ones: the final sync is short, and the system
    /// never has much to write at once.
    fn after_write(&mut self, file: &File, bytes: u64) -> io::Result<()> {
        self.written += bytes;
        if self.written - self.begun < SYNC_BYTES {
            return Ok(());
        }
        let range = |from: u64, to: u64, flags: libc::c_uint| {
            // SAFETY: the descriptor is open; the call touches no memory of ours.
            let result = unsafe { libc::sync_file_range(file.as_raw_fd(), from as i64, (to - from) as i64, flags) };
            if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
        };
        let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        range(self.begun, self.written, libc::SYNC_FILE_RANGE_WRITE).or_else(|_| file.sync_data())?;
        if self.begun > self.done {
            range(self.done, self.begun, wait).or_else(|_| file.sync_data())?;
        }
        (self.done, self.begun) = (self.begun, self.written);
        Ok(())
    }
}

impl Drop for DumpFile {
    fn drop(&mut self) {
        if self.list.forget(&self.path) {
            // It may be gone already.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Logs why a dump was not written.
pub fn log_save_error(error: &SaveError) {
    logging::warning(format_args!("{error}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> &'static TemporaryFiles {
        Box::leak(Box::default())
    }

    #[test]
    fn old_file_is_replaced_only_by_a_complete_one() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("dump.rdb");
        std::fs::write(&place, "old").unwrap();
        let list = list();
        let mut file = list.create(folder.path(), "temp-1.rdb", true).unwrap();
        let bytes = vec![7; 3 * SYNC_BYTES as usize + 1];
        file.write_all(&bytes).unwrap();
        file.sync().unwrap();
        assert_eq!(std::fs::read(&place).unwrap(), b"old");
        file.install(&place).unwrap();
        sync_directory(folder.path()).unwrap();
        assert!(std::fs::read(&place).unwrap() == bytes);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(list.0.lock().is_empty());
    }

    #[test]
    fn incomplete_file_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let files = || std::fs::read_dir(folder.path()).unwrap().count();
        let list = list();
        let file = list.create(folder.path(), "temp-1.rdb", false).unwrap();
        assert_eq!(files(), 1);
        drop(file);
        assert_eq!(files(), 0);
        let file = list.create(folder.path(), "temp-1.rdb", false).unwrap();
        list.remove_all();
        assert_eq!(files(), 0);
        drop(file);
        assert!(matches!(list.create(&folder.path().join("none"), "x", false), Err(SaveError::Create(..))));
        assert!(list.0.lock().is_empty());
    }

    #[test]
    fn failed_rename_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("dump.rdb");
        std::fs::create_dir(&place).unwrap();
        let file = list().create(folder.path(), "temp-1.rdb", false).unwrap();
        let error = file.install(&place).unwrap_err();
        assert!(
            error.to_string().starts_with("Error moving temp DB file temp-1.rdb on the final destination dump.rdb")
        );
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
