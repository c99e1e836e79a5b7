//! Every module says what it is.

use crate::{File, Violation};

/// Finds modules in the `src` of a crate that do not open with `//!` lines. Only inner attributes may stand before
/// them.
pub fn check(files: &[File]) -> Vec<Violation> {
    let modules = files.iter().filter(|file| file.is_rust() && file.in_crate().is_some());
    let bare = modules.filter(|file| {
        let mut lines = file.text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("#!["));
        !lines.next().is_some_and(|line| line.starts_with("//!"))
    });
    bare.map(|file| Violation::new(&file.path, 1, "the module has no `//!` header: say what it is")).collect()
}
