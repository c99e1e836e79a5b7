//! Reads the files of a checkout.

use crate::File;
use std::fs;
use std::io;
use std::path::Path;

/// Directories that hold no sources of ours.
const SKIPPED: [&str; 5] = [".git", "target", "node_modules", "corpus", "artifacts"];
/// Extensions of the files that some rule looks at.
const EXTENSIONS: [&str; 6] = ["rs", "md", "conf", "sh", "py", "toml"];

/// All files below `root` that some rule looks at, with paths relative to it, sorted by path.
///
/// Scripts without an extension are recognised by their first line.
pub fn read(root: &Path) -> io::Result<Vec<File>> {
    let mut files = Vec::new();
    read_directory(root, "", &mut files)?;
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

fn read_directory(directory: &Path, prefix: &str, files: &mut Vec<File>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = format!("{prefix}{name}");
        let kind = entry.file_type()?;
        if kind.is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                read_directory(&entry.path(), &format!("{path}/"), files)?;
            }
        } else if kind.is_file()
            && let Some(text) = read_file(&entry.path())?
        {
            files.push(File::new(path, text));
        }
    }
    Ok(())
}

fn read_file(path: &Path) -> io::Result<Option<String>> {
    let wanted = match path.extension().and_then(|extension| extension.to_str()) {
        Some(extension) => EXTENSIONS.contains(&extension),
        None => true,
    };
    if !wanted {
        return Ok(None);
    }
    let Ok(text) = String::from_utf8(fs::read(path)?) else { return Ok(None) };
    let is_source = path.extension().is_some() || text.starts_with("#!");
    Ok(is_source.then_some(text))
}
