//! Examples in documentation are run.

use crate::{File, Violation};

/// What follows the fence of a code block that is not run as Rust.
const OTHER_LANGUAGES: [&str; 8] = ["text", "ignore", "sh", "console", "toml", "json", "lua", "c"];

/// Finds examples in the documentation of crates whose manifest has `doctest = false`. That saves building the crate
/// once more each time its tests run, but examples would silently not be tested.
pub fn check(files: &[File]) -> Vec<Violation> {
    let without: Vec<&str> = files.iter().filter_map(crate_without_doctests).collect();
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.in_crate().is_some_and(|(name, _)| without.contains(&name))) {
        let mut in_block = false;
        for (index, line) in file.text.lines().enumerate().filter(|_| file.is_rust()) {
            let line = line.trim_start();
            let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
                in_block = false;
                continue;
            };
            let Some(language) = text.trim_start().strip_prefix("```") else { continue };
            in_block = !in_block;
            if in_block && !OTHER_LANGUAGES.contains(&language.trim()) {
                let message =
                    "the example is not run: remove `doctest = false` from the manifest, or mark it as `text`";
                violations.push(Violation::new(&file.path, index + 1, message));
            }
        }
    }
    violations
}

/// The name of the crate if the file is the manifest of one whose documentation is not tested.
fn crate_without_doctests(file: &File) -> Option<&str> {
    let name = file.path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
    file.text.lines().any(|line| line.trim() == "doctest = false").then_some(name)
}
