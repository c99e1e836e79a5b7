//! The folder of the files, and its manifest.

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

/// The log has told why something is not done.
#[derive(Debug)]
pub(super) struct Told;

/// See the module's documentation.
pub(super) struct AofDir {
    core: &'static DurableCore,
    /// What is on the disk.
    pub manifest: Manifest,
    /// Whether another manifest may be found there after a crash of the machine.
    is_in_doubt: bool,
}

/// What the system says, as C programs print it.
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
    /// A shelf whose manifest was not read.
    pub fn new(core: &'static DurableCore) -> AofDir {
        AofDir { core, manifest: Manifest::default(), is_in_doubt: false }
    }

    /// The folder.
    pub fn folder(&self) -> PathBuf {
        let values = self.core.config.values();
        values.read(DIR).resolve(&values.read(APPENDDIRNAME))
    }

    /// A file in the folder.
    pub fn path(&self, name: &[u8]) -> PathBuf {
        self.folder().join(OsStr::from_bytes(name))
    }

    /// `appendfilename`, with which the names of all files begin.
    pub fn file_name(&self) -> Vec<u8> {
        self.core.config.read(APPENDFILENAME).to_vec()
    }

    /// The name of the increment that collects what is written until the first base is there.
    pub fn temporary_name(&self) -> Vec<u8> {
        [b"temp-", &self.file_name()[..], b".incr"].concat()
    }

    /// Where the [journal](super::journal) is.
    pub fn journal_path(&self) -> PathBuf {
        self.path(&[&self.file_name()[..], b".journal"].concat())
    }

    fn manifest_name(&self) -> Vec<u8> {
        [&self.file_name()[..], b".manifest"].concat()
    }

    /// Creates the folder if it is not there.
    pub fn make(&self) -> Result<(), Told> {
        let folder = self.folder();
        match fs::create_dir(&folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists || !folder.is_dir() => {
                let (name, why) = (shown(&self.core.config.read(APPENDDIRNAME)), reason(&error));
                Err(tell(format_args!("Can't open or create append-only dir {name}: {why}")))
            }
            _ => Ok(()),
        }
    }

    /// Reads the manifest, if there is one.
    pub fn read(&mut self) -> Result<(), Told> {
        self.manifest = Manifest::default();
        let path = self.path(&self.manifest_name());
        match fs::read(&path) {
            Ok(bytes) => {
                self.manifest = Manifest::parse(&bytes).map_err(|error| tell(format_args!("{error}")))?;
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => {
                let (path, why) = (path.display(), reason(&error));
                Err(tell(format_args!("Fatal error: can't open the AOF manifest file {path} for reading: {why}")))
            }
        }
    }

    /// Has this manifest take the place of the one that was there, on the disk and here; otherwise that one stays, or
    /// is back in its place. After a crash of the machine it may be this one all the same, if the folder could not be
    /// synced.
    pub fn put(&mut self, manifest: Manifest) -> Result<(), Told> {
        if manifest == self.manifest && self.path(&self.manifest_name()).exists() {
            return Ok(());
        }
        // The names of the files first that it lists.
        self.sync()?;
        self.write_manifest(&manifest)?;
        if let Err(Told) = self.sync() {
            self.is_in_doubt = true;
            if self.manifest.is_empty() {
                // None is in its place, as before. One that cannot be removed lists files that are there.
                let _ = fs::remove_file(self.path(&self.manifest_name()));
            } else {
                // The log tells of an error. Then it is the new one that stays, and lists files that are there.
                let _ = self.write_manifest(&self.manifest);
            }
            return Err(Told);
        }
        (self.manifest, self.is_in_doubt) = (manifest, false);
        Ok(())
    }

    /// Deletes a file that no manifest lists, since the one that was to do so could not be put in its place.
    pub fn drop_unlisted(&self, name: &[u8]) {
        // The next one of this name takes its place otherwise.
        if !self.is_in_doubt {
            // It may not have come to be.
            let _ = fs::remove_file(self.path(name));
        }
    }

    /// Gives a manifest its name, behind the back of the rest.
    fn write_manifest(&self, manifest: &Manifest) -> Result<(), Told> {
        let name = self.manifest_name();
        let temporary = [b"temp-", &name[..]].concat();
        let (name, temporary_name) = (shown(&name), shown(&temporary));
        let (path, temporary) = (self.path(&self.manifest_name()), self.path(&temporary));
        let mut file = File::create(&temporary).map_err(|error| {
            tell(format_args!("Can't open the AOF manifest file {temporary_name}: {}", reason(&error)))
        })?;
        file.write_all(&manifest.to_bytes()).map_err(|error| {
            let why = reason(&error);
            tell(format_args!("Error trying to write the temporary AOF manifest file {temporary_name}: {why}"))
        })?;
        file.sync_all().map_err(|error| {
            tell(format_args!("Fail to fsync the temp AOF file {temporary_name}: {}.", reason(&error)))
        })?;
        fs::rename(&temporary, &path).map_err(|error| {
            let why = reason(&error);
            tell(format_args!(
                "Error trying to rename the temporary AOF manifest file {temporary_name} into {name}: {why}"
            ))
        })
    }

    /// Waits until the names in the folder are on the disk.
    fn sync(&self) -> Result<(), Told> {
        let folder = self.folder();
        fsync_dir::sync(&folder).map_err(|error| {
            tell(format_args!("Fail to fsync AOF directory {}: {}.", folder.display(), reason(&error)))
        })
    }

    /// Opens an increment to write behind what it holds, or a new one.
    pub fn open(&self, name: &[u8], new: bool) -> Result<File, Told> {
        let mut options = OpenOptions::new();
        options.append(true).read(true).create(true);
        let opened = options.open(self.path(name)).and_then(|file| {
            if new {
                file.set_len(0)?;
            }
            Ok(file)
        });
        opened
            .map_err(|error| tell(format_args!("Can't open the append-only file {}: {}", shown(name), reason(&error))))
    }

    /// The bytes of a file; on an error the log has told why.
    pub fn size(&self, name: &[u8]) -> io::Result<u64> {
        let began = Instant::now();
        let size = fs::metadata(self.path(name)).map(|metadata| metadata.len());
        self.record("aof-fstat", began);
        size.inspect_err(|error| {
            logging::warning(format_args!(
                "Unable to obtain the AOF file {} length. stat: {}",
                shown(name),
                reason(error)
            ));
        })
    }

    /// Gives a file of the server's folder or of this one its name in this one.
    pub fn rename(&self, from: &Path, to: &[u8], what: &str) -> Result<(), Told> {
        let began = Instant::now();
        let renamed = fs::rename(from, self.path(to));
        self.record("aof-rename", began);
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        renamed.map_err(|error| {
            let (to, why) = (self.path(to).display().to_string(), reason(&error));
            tell(format_args!("Error trying to rename the temporary AOF {what} file {name} into {to}: {why}"))
        })?;
        logging::notice(format_args!("Successfully renamed the temporary AOF {what} file {name} into {}", shown(to)));
        Ok(())
    }

    /// Deletes what is history, unless the user keeps it.
    pub fn collect(&mut self) {
        if self.manifest.history.is_empty() || self.core.config.read(AOF_DISABLE_AUTO_GC) {
            return;
        }
        let mut manifest = self.manifest.clone();
        let history = std::mem::take(&mut manifest.history);
        // The manifest first: a file that it does not list is in nobody's way, should the deletion not be reached.
        if self.put(manifest).is_err() {
            return;
        }
        for part in history {
            logging::notice(format_args!("Removing the history file {} in the background", shown(&part.name)));
            // It may be gone already.
            let _ = fs::remove_file(self.path(&part.name));
        }
    }

    /// Deletes the increment that was to collect what is written until the first base is there.
    pub fn remove_temporary(&self) {
        let name = self.temporary_name();
        logging::notice(format_args!("Removing the temp incr aof file {} in the background", shown(&name)));
        // It may not have come to be.
        let _ = fs::remove_file(self.path(&name));
    }

    /// Takes in a single file of an old version, if there is one in the server's folder and nothing newer here.
    pub fn upgrade(&mut self) -> Result<(), Told> {
        let values = self.core.config.values();
        let (name, old) = (self.file_name(), values.read(DIR).resolve(&self.file_name()));
        let interrupted = self.manifest.increments.is_empty()
            && self.manifest.base.as_ref().is_some_and(|base| base.name == name)
            && !self.path(&name).exists();
        if !old.is_file() || !(self.manifest.is_empty() || interrupted) {
            return Ok(());
        }
        self.make()?;
        let mut manifest = self.manifest.clone();
        manifest.adopt(&name);
        self.put(manifest)?;
        let folder = shown(&values.read(APPENDDIRNAME));
        let name_shown = shown(&name);
        fs::rename(&old, self.path(&name)).map_err(|error| {
            let why = reason(&error);
            tell(format_args!("Error trying to move the old AOF file {name_shown} into dir {folder}: {why}"))
        })?;
        self.sync()?;
        logging::notice(format_args!(
            "Successfully migrated an old-style AOF file ({name_shown}) into the AOF directory ({folder})."
        ));
        Ok(())
    }

    /// Tells LATENCY of something that took time.
    pub fn record(&self, event: &'static str, began: Instant) {
        let ms = began.elapsed().as_millis() as u64;
        self.core.latency.record(event, ms, self.core.config.read(LATENCY_MONITOR_THRESHOLD));
    }
}

pub(super) fn tell(line: std::fmt::Arguments<'_>) -> Told {
    logging::warning(line);
    Told
}
