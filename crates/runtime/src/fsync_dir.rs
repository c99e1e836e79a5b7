//! Syncs directories, so that created and renamed files survive a crash, and replaces files atomically.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Syncs a directory: when this returns, the names in it are on disk.
pub fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Syncs the directory that contains `file`.
pub fn sync_of(file: &Path) -> io::Result<()> {
    sync(file.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// Replaces the file at `path` by `content` atomically: writes a new file beside it, syncs it, renames it and syncs the
/// directory. On an error the old file is unchanged.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let (mut file, temporary) = create_temporary(path)?;
    let replaced = file.write_all(content).and_then(|()| file.sync_all()).and_then(|()| fs::rename(&temporary, path));
    if replaced.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&temporary);
    }
    replaced?;
    sync_of(path)
}

/// Creates a file with a unique name in the same directory.
fn create_temporary(path: &Path) -> io::Result<(File, PathBuf)> {
    let pid = std::process::id();
    for attempt in 0..100 {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{pid}-{attempt}"));
        match OpenOptions::new().write(true).create_new(true).mode(0o644).open(&temporary) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return Ok((created?, temporary.into())),
        }
    }
    Err(ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_directory_can_be_synced() {
        let dir = tempfile::tempdir().expect("a directory");
        sync(dir.path()).expect("a directory");
        sync_of(&dir.path().join("file")).expect("its directory");
        sync_of(Path::new("file")).expect("the current directory");
        assert_eq!(sync_of(&dir.path().join("none/file")).expect_err("none").kind(), io::ErrorKind::NotFound);
    }
}
