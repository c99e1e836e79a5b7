//! Backups in a directory: a directory for each, with a hidden name until it is complete.

use super::{Output, Staged, Storage, no_backup};
use crate::manifest::{self, Manifest, is_name, is_plain};
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// What the names of directories begin with that are not complete, or are being removed.
const HIDDEN: &str = ".";
/// What the name of a backup ends with that is not complete.
const PARTIAL: &str = ".partial";
/// What the name of a backup ends with that is being removed.
const REMOVED: &str = ".removed";

/// A directory with a directory for each backup.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    root: PathBuf,
}

impl Directory {
    pub(super) fn new(root: PathBuf) -> Directory {
        Directory { root }
    }

    fn find(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.root.join(name);
        if is_plain(name) && path.join(manifest::FILE).is_file() {
            return Ok(path);
        }
        Err(no_backup(&self.root.display(), name))
    }

    fn entries(&self) -> io::Result<Vec<(String, PathBuf)>> {
        let entries = fs::read_dir(&self.root).map_err(|error| at(&self.root, &error))?;
        let named = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.map_err(|error| at(&self.root, &error))?;
            Ok(entry.file_name().into_string().ok().map(|name| (name, entry.path())))
        };
        entries.map(named).filter_map(Result::transpose).collect()
    }
}

impl Storage for Directory {
    fn list(&self) -> io::Result<Vec<String>> {
        let is_backup = |(name, path): &(String, PathBuf)| is_plain(name) && path.join(manifest::FILE).is_file();
        let mut names: Vec<String> = self.entries()?.into_iter().filter(is_backup).map(|(name, _)| name).collect();
        names.sort_unstable();
        Ok(names)
    }

    fn read(&self, name: &str, file: &str) -> io::Result<Box<dyn Read + Send>> {
        let path = self.find(name)?.join(file);
        Ok(Box::new(File::open(&path).map_err(|error| at(&path, &error))?))
    }

    fn stage(&self, name: &str) -> io::Result<Box<dyn Staged>> {
        let path = self.root.join(format!("{HIDDEN}{name}{PARTIAL}"));
        fs::create_dir_all(&path).map_err(|error| at(&path, &error))?;
        Ok(Box::new(StagedDirectory { path, target: self.root.join(name), is_published: false }))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.find(name)?;
        // A removal that is interrupted leaves no half backup behind.
        let hidden = self.root.join(format!("{HIDDEN}{name}{REMOVED}"));
        fs::rename(path, &hidden)?;
        fs::remove_dir_all(hidden)
    }

    fn remove_leftovers(&self, unchanged_for: Duration) -> io::Result<Vec<String>> {
        let mut removed = Vec::new();
        for (entry, path) in self.entries()? {
            let name = entry.strip_prefix(HIDDEN).and_then(|name| {
                let name = name.strip_suffix(PARTIAL).or_else(|| name.strip_suffix(REMOVED))?;
                is_name(name).then_some(name)
            });
            let Some(name) = name else { continue };
            let age = SystemTime::now().duration_since(last_change(&path)?).unwrap_or_default();
            if age >= unchanged_for {
                fs::remove_dir_all(&path).map_err(|error| at(&path, &error))?;
                removed.push(name.to_owned());
            }
        }
        removed.sort_unstable();
        Ok(removed)
    }
}

/// When something was written into a directory, or into a file in it, for the last time.
fn last_change(directory: &Path) -> io::Result<SystemTime> {
    let modified = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    let mut last = modified(directory)?;
    for entry in fs::read_dir(directory)? {
        last = last.max(modified(&entry?.path())?);
    }
    Ok(last)
}

fn at(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

struct StagedDirectory {
    path: PathBuf,
    target: PathBuf,
    is_published: bool,
}

impl Staged for StagedDirectory {
    fn create(&self, file: &str) -> io::Result<Box<dyn Output>> {
        let path = self.path.join(file);
        let file = File::create(&path).map_err(|error| at(&path, &error))?;
        Ok(Box::new(FileOutput { path, file: Some(BufWriter::new(file)) }))
    }

    fn publish(mut self: Box<Self>, manifest: &Manifest) -> io::Result<()> {
        let path = self.path.join(manifest::FILE);
        fs::write(&path, manifest.text()).map_err(|error| at(&path, &error))?;
        let files = manifest.shards.iter().map(|dump| self.path.join(&dump.file)).chain([path]);
        for path in files {
            File::open(&path).and_then(|file| file.sync_all()).map_err(|error| at(&path, &error))?;
        }
        File::open(&self.path)?.sync_all()?;
        fs::rename(&self.path, &self.target)?;
        self.is_published = true;
        let parent = self.target.parent().unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    }
}

impl Drop for StagedDirectory {
    fn drop(&mut self) {
        if !self.is_published {
            // What cannot be removed stays hidden.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// A file. `None` once it is finished.
struct FileOutput {
    path: PathBuf,
    file: Option<BufWriter<File>>,
}

impl FileOutput {
    fn file(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.file.as_mut().ok_or_else(|| io::Error::other("the file is finished"))
    }
}

impl Write for FileOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file()?.write(bytes);
        written.map_err(|error| at(&self.path, &error))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file()?.flush()
    }
}

impl Output for FileOutput {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.flush().map_err(|error| at(&self.path, &error))?;
        self.file = None;
        Ok(())
    }
}

impl Drop for FileOutput {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
