//! File names that match a glob pattern, for `include`. For matching a single name, see [`kvick_resp::glob`].

use kvick_resp::glob::matches;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Whether the text contains a wildcard.
pub fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// The existing files that match a path pattern, sorted. A wildcard never matches a leading dot. Directories that
/// cannot be read count as empty, as in a shell.
pub fn expand(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = vec![PathBuf::new()];
    for component in pattern.components() {
        let name = component.as_os_str().as_bytes();
        if !matches!(component, Component::Normal(_)) || !is_pattern(name) {
            found.iter_mut().for_each(|path| path.push(component));
            found.retain(|path| path.exists());
            continue;
        }
        let name = shell_to_glob(name);
        let mut next = Vec::new();
        for dir in &found {
            let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
            let Ok(entries) = dir.read_dir() else {
                continue;
            };
            for entry in entries {
                let entry = entry?.file_name();
                let hidden = entry.as_bytes().starts_with(b".") && !name.starts_with(b".");
                if !hidden && matches(&name, entry.as_bytes(), false) {
                    next.push(dir.join(&entry));
                }
            }
        }
        found = next;
    }
    found.sort();
    Ok(found)
}

/// Converts a shell pattern into a [`kvick_resp::glob`] pattern: shells negate sets with `!`, the matcher with `^`.
fn shell_to_glob(name: &[u8]) -> Vec<u8> {
    let mut out = name.to_vec();
    for at in 1..out.len() {
        if out[at] == b'!' && out[at - 1] == b'[' {
            out[at] = b'^';
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_in_order_without_hidden_ones() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.conf", "a.conf", ".c.conf", "a.txt"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let names = |pattern: &str| -> Vec<String> {
            let found = expand(&dir.path().join(pattern)).unwrap();
            found.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names("*.conf"), ["a.conf", "b.conf"]);
        assert_eq!(names("[!a].conf"), ["b.conf"]);
        assert_eq!(names("nothing*"), Vec::<String>::new());
    }
}
