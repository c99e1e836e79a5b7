//! The AOF directory: its files and their manifest.

use crate::DurableCore;
use kvick_config::Refusal;
use kvick_config::tables::logging::LATENCY_MONITOR_THRESHOLD;
use kvick_config::tables::persistence::{AOF_DISABLE_AUTO_GC, APPENDDIRNAME, APPENDFILENAME};
use kvick_config::tables::process::DIR;
use kvick_rdb::aof::Manifest;
use kvick_runtime::fsync_dir;
use kvick_runtime::logging;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// An error that has already been logged.
#[derive(Debug)]
pub(super) struct Logged;

/// See the module's documentation.
pub(super) struct AofDir {
    core: &'static DurableCore,
    /// The manifest as it is on disk.
    pub manifest: Manifest,
    /// Whether a machine crash may bring back a different manifest, because the directory could not be synced.
    is_in_doubt: bool,
}

/// The operating system's error text, as C programs print it.
pub(super) fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => Refusal::from(io::Error::from_raw_os_error(number)).to_string(),
        None => error.to_string(),
    }
}

pub(super) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

impl AofDir {
    /// An AOF directory whose manifest has not been read.
    pub fn new(core: &'static DurableCore) -> AofDir {
        AofDir { core, manifest: Manifest::default(), is_in_doubt: false }
    }

    /// The directory's path.
    pub fn folder(&self) -> PathBuf {
        let values = self.core.config.values();
        values.read(DIR).resolve(&values.read(APPENDDIRNAME))
    }

    /// The path of a file in the directory.
    pub fn path(&self, name: &[u8]) -> PathBuf {
        self.folder().join(OsStr::from_bytes(name))
    }

    /// `appendfilename`: the prefix of all file names.
    pub fn file_name(&self) -> Vec<u8> {
        self.core.config.read(APPENDFILENAME).to_vec()
    }

    /// The name of the increment that collects writes until the first base is installed.
    pub fn temporary_name(&self) -> Vec<u8> {
        [b"temp-", &self.file_name()[..], b".incr"].concat()
    }

    /// The path of the [journal](super::journal).
    pub fn journal_path(&self) -> PathBuf {
        self.path(&[&self.file_name()[..], b".journal"].concat())
    }

    /// The path of the [tail](super::tail).
    pub fn tail_path(&self) -> PathBuf {
        self.path(&[&self.file_name()[..], b".tail"].concat())
    }

    fn manifest_name(&self) -> Vec<u8> {
        [&self.file_name()[..], b".manifest"].concat()
    }

    /// Creates the directory if it does not exist.
    pub fn create(&self) -> Result<(), Logged> {
        let folder = self.folder();
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => {
                let (name, why) = (shown(&self.core.config.read(APPENDDIRNAME)), reason(&error));
                Err(log_error(format_args!("Can't open or create append-only dir {name}: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Reads the manifest, if one exists.
    pub fn read(&mut self) -> Result<(), Logged> {
        self.manifest = Manifest::default();
        let path = self.path(&self.manifest_name());
        match fs::read(&path) {
            Ok(bytes) => {
                self.manifest = Manifest::parse(&bytes).map_err(|error| log_error(format_args!("{error}")))?;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => {
                let (path, why) = (path.display(), reason(&error));
                Err(log_error(format_args!("Fatal error: can't open the AOF manifest file {path} for reading: {why}")))
            }
        }
    }

    /// Replaces the manifest, on disk and in memory. On an error the old manifest stays or is restored; after a machine
    /// crash the new one may still be found, if the directory could not be synced.
    pub fn install_manifest(&mut self, manifest: Manifest) -> Result<(), Logged> {
        if manifest == self.manifest && self.path(&self.manifest_name()).exists() {
            return Ok(());
        }
        // The names of the files that the manifest lists must be durable before the manifest.
        self.sync()?;
        self.write_manifest(&manifest)?;
        if let Err(Logged) = self.sync() {
            self.is_in_doubt = true;
            if self.manifest.is_empty() {
                // There was no manifest before, so none is restored. If the removal fails, the new manifest stays; the
                // files it lists exist.
                let _ = fs::remove_file(self.path(&self.manifest_name()));
            } else {
                // An error is logged. The new manifest then stays; the files it lists exist.
                let _ = self.write_manifest(&self.manifest);
            }
            return Err(Logged);
        }
        (self.manifest, self.is_in_doubt) = (manifest, false);
        Ok(())
    }

    /// Deletes a file that no manifest lists, because the manifest that would have listed it could not be installed.
    pub fn remove_unlisted(&self, name: &[u8]) {
        // Otherwise the next file of this name replaces it.
        if !self.is_in_doubt {
            // The file may not exist.
            let _ = fs::remove_file(self.path(name));
        }
    }

    /// Writes a manifest under a temporary name and renames it into place.
    fn write_manifest(&self, manifest: &Manifest) -> Result<(), Logged> {
        let name = self.manifest_name();
        let temporary = [b"temp-", &name[..]].concat();
        let (name, temporary_name) = (shown(&name), shown(&temporary));
        let (path, temporary) = (self.path(&self.manifest_name()), self.path(&temporary));
        let mut file = File::create(&temporary).map_err(|error| {
            log_error(format_args!("Can't open the AOF manifest file {temporary_name}: {}", reason(&error)))
        })?;
        file.write_all(&manifest.to_bytes()).map_err(|error| {
            let why = reason(&error);
            log_error(format_args!("Error trying to write the temporary AOF manifest file {temporary_name}: {why}"))
        })?;
        file.sync_all().map_err(|error| {
            log_error(format_args!("Fail to fsync the temp AOF file {temporary_name}: {}.", reason(&error)))
        })?;
        fs::rename(&temporary, &path).map_err(|error| {
            let why = reason(&error);
            log_error(format_args!(
                "Error trying to rename the temporary AOF manifest file {temporary_name} into {name}: {why}"
            ))
        })
    }

    /// Syncs the directory, so that renames survive a crash.
    fn sync(&self) -> Result<(), Logged> {
        let folder = self.folder();
        fsync_dir::sync(&folder).map_err(|error| {
            log_error(format_args!("Fail to fsync AOF directory {}: {}.", folder.display(), reason(&error)))
        })
    }

    /// Opens an increment for appending, or creates a new one.
    pub fn open(&self, name: &[u8], new: bool) -> Result<File, Logged> {
        let mut options = OpenOptions::new();
        options.append(true).read(true).create(true);
        let opened = options.open(self.path(name)).and_then(|file| {
            if new {
                file.set_len(0)?;
            }
            Ok(file)
        });
        opened.map_err(|error| {
            log_error(format_args!("Can't open the append-only file {}: {}", shown(name), reason(&error)))
        })
    }

    /// The size of a file in bytes. Errors are logged.
    pub fn size(&self, name: &[u8]) -> io::Result<u64> {
        let began = Instant::now();
        let size = fs::metadata(self.path(name)).map(|metadata| metadata.len());
        self.record_latency("aof-fstat", began);
        size.inspect_err(|error| {
            logging::warning(format_args!(
                "Unable to obtain the AOF file {} length. stat: {}",
                shown(name),
                reason(error)
            ));
        })
    }

    /// Moves a file from the server's directory or from this one to this name in the AOF directory.
    pub fn rename(&self, from: &Path, to: &[u8], what: &str) -> Result<(), Logged> {
        let began = Instant::now();
        let renamed = fs::rename(from, self.path(to));
        self.record_latency("aof-rename", began);
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        renamed.map_err(|error| {
            let (to, why) = (self.path(to).display().to_string(), reason(&error));
            log_error(format_args!("Error trying to rename the temporary AOF {what} file {name} into {to}: {why}"))
        })?;
        logging::notice(format_args!("Successfully renamed the temporary AOF {what} file {name} into {}", shown(to)));
        Ok(())
    }

    /// Deletes history files, unless the settings keep them.
    pub fn remove_history(&mut self) {
        if self.manifest.history.is_empty() || self.core.config.read(AOF_DISABLE_AUTO_GC) {
            return;
        }
        let mut manifest = self.manifest.clone();
        let history = std::mem::take(&mut manifest.history);
        // The manifest is written first: if the deletion does not happen, an unlisted file does no harm.
        if self.install_manifest(manifest).is_err() {
            return;
        }
        for part in history {
            logging::notice(format_args!("Removing the history file {} in the background", shown(&part.name)));
            // The file may already be gone.
            let _ = fs::remove_file(self.path(&part.name));
        }
    }

    /// Deletes the increment that would have collected writes until the first base was installed.
    pub fn remove_temporary(&self) {
        let name = self.temporary_name();
        logging::notice(format_args!("Removing the temp incr aof file {} in the background", shown(&name)));
        // The file may not exist.
        let _ = fs::remove_file(self.path(&name));
    }

    /// Adopts the single AOF file of an old version, if one exists in the server's directory and this directory has no
    /// manifest.
    pub fn upgrade(&mut self) -> Result<(), Logged> {
        let values = self.core.config.values();
        let (name, old) = (self.file_name(), values.read(DIR).resolve(&self.file_name()));
        let interrupted = self.manifest.increments.is_empty()
            && self.manifest.base.as_ref().is_some_and(|base| base.name == name)
            && !self.path(&name).exists();
        if !old.is_file() || !(self.manifest.is_empty() || interrupted) {
            return Ok(());
        }
        self.create()?;
        let mut manifest = self.manifest.clone();
        manifest.adopt(&name);
        self.install_manifest(manifest)?;
        let folder = shown(&values.read(APPENDDIRNAME));
        let name_shown = shown(&name);
        fs::rename(&old, self.path(&name)).map_err(|error| {
            let why = reason(&error);
            log_error(format_args!("Error trying to move the old AOF file {name_shown} into dir {folder}: {why}"))
        })?;
        self.sync()?;
        logging::notice(format_args!(
            "Successfully migrated an old-style AOF file ({name_shown}) into the AOF directory ({folder})."
        ));
        Ok(())
    }

    /// Records a latency event.
    pub fn record_latency(&self, event: &'static str, began: Instant) {
        let ms = began.elapsed().as_millis() as u64;
        self.core.latency.record(event, ms, self.core.config.read(LATENCY_MONITOR_THRESHOLD));
    }
}

pub(super) fn log_error(line: std::fmt::Arguments<'_>) -> Logged {
    logging::warning(line);
    Logged
}
