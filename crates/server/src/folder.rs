//! Folders, as far as a disk has to know the names in them: a file that is synced may be lost all the same if its name is not.

use std::fs::File;
use std::io;
use std::path::Path;

/// Waits until the names in a folder are on the disk.
pub fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// Waits until the names beside this file's, and its own, are on the disk.
pub fn sync_of(file: &Path) -> io::Result<()> {
    sync(file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_there_can_be_synced_and_another_cannot() {
        let folder = tempfile::tempdir().expect("a folder");
        sync(folder.path()).expect("a folder");
        sync_of(&folder.path().join("file")).expect("its folder");
        sync_of(Path::new("file")).expect("the present folder");
        assert_eq!(sync_of(&folder.path().join("none/file")).expect_err("none").kind(), io::ErrorKind::NotFound);
    }
}
