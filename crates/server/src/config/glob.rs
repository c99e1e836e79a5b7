//! Glob patterns: CONFIG GET matches names with them, and `include` matches files.
//!
//! `*` is any run of bytes, `?` any one byte, `[abc]`, `[a-z]` and `[^abc]` one byte of a set, and
//! a backslash takes the next byte literally.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// Whether the text holds a character that makes it a pattern.
pub fn is_pattern(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Whether `pattern` matches the whole of `text`, without regard to ASCII case if `fold_case`.
///
/// Runs in `O(pattern * text)`: after a mismatch only the latest `*` is tried again, which suffices
/// because an earlier one could only match the same bytes later.
pub fn matches(pattern: &[u8], text: &[u8], fold_case: bool) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, t));
            continue;
        }
        if t == text.len() {
            return p == pattern.len();
        }
        match match_one(&pattern[p..], text[t], fold_case) {
            Some(used) => {
                p += used;
                t += 1;
            }
            None => match retry {
                Some((after_star, from)) => {
                    retry = Some((after_star, from + 1));
                    (p, t) = (after_star, from + 1);
                }
                None => return false,
            },
        }
    }
}

/// Matches one byte against the first element of `pattern` (not a `*`); the length of that element
/// if it does.
fn match_one(pattern: &[u8], byte: u8, fold_case: bool) -> Option<usize> {
    let fold = |byte: u8| {
        if fold_case { byte.to_ascii_lowercase() } else { byte }
    };
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', ..] => match_set(pattern, byte, fold),
        [b'\\', literal, ..] => (fold(*literal) == fold(byte)).then_some(2),
        [literal, ..] => (fold(*literal) == fold(byte)).then_some(1),
    }
}

/// Matches one byte against a `[...]` set; a set that is not closed ends with the pattern.
fn match_set(pattern: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> Option<usize> {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut found = false;
    loop {
        match &pattern[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [one, b'-', other, ..] => {
                let (low, high) = (*one.min(other), *one.max(other));
                found |= (fold(low)..=fold(high)).contains(&fold(byte));
                at += 3;
            }
            [literal, ..] => {
                found |= fold(*literal) == fold(byte);
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

/// The existing files that a path pattern names, sorted. A wildcard never matches a leading dot.
/// Folders that cannot be read count as empty, as the shell treats them.
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
        for folder in &found {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            let Ok(entries) = folder.read_dir() else {
                continue;
            };
            for entry in entries {
                let entry = entry?.file_name();
                let hidden = entry.as_bytes().starts_with(b".") && !name.starts_with(b".");
                if !hidden && matches(&name, entry.as_bytes(), false) {
                    next.push(folder.join(&entry));
                }
            }
        }
        found = next;
    }
    found.sort();
    Ok(found)
}

/// File patterns may negate a set with `!`, where names use `^`.
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
    use proptest::prelude::*;

    fn glob(pattern: &str, text: &str) -> bool {
        matches(pattern.as_bytes(), text.as_bytes(), true)
    }

    #[test]
    fn names_match_patterns_in_any_case() {
        assert!(glob("MAX*", "maxmemory"));
        assert!(glob("*mem*or?", "maxmemory"));
        assert!(glob("[a-mZ]ax*", "maxclients"));
        assert!(!glob("[^a-m]ax*", "maxclients"));
        assert!(glob(r"a\*b", "a*b"));
        assert!(!glob("*x", "maxmemory"));
        assert!(glob("**", ""));
        assert!(!glob("?", ""));
        assert!(glob("[abc", "c"));
    }

    #[test]
    fn abusive_patterns_are_answered_at_once() {
        assert!(!glob(&"*a".repeat(200), &"a".repeat(199)));
    }

    #[test]
    fn files_are_found_in_order_and_hidden_ones_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["b.conf", "a.conf", ".c.conf", "a.txt"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let names = |pattern: &str| -> Vec<String> {
            let found = expand(&folder.path().join(pattern)).unwrap();
            found.iter().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
        };
        assert_eq!(names("*.conf"), ["a.conf", "b.conf"]);
        assert_eq!(names("[!a].conf"), ["b.conf"]);
        assert_eq!(names("nothing*"), Vec::<String>::new());
    }

    proptest! {
        #[test]
        fn any_pattern_is_matched_without_panic(pattern: Vec<u8>, text: Vec<u8>) {
            matches(&pattern, &text, true);
        }

        #[test]
        fn brackets_and_stars_are_matched_without_panic(pattern in "[\\[\\]^*?\\\\a-c-]{0,12}", text in "[a-c]{0,8}") {
            matches(pattern.as_bytes(), text.as_bytes(), false);
        }
    }
}
