//! Files, and crates that must shrink, have a limited number of lines.

use crate::{File, Limits, Violation};

/// Finds Rust files and crates with too many lines.
pub fn check(files: &[File], limits: &Limits) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() && file.path.starts_with("crates/")) {
        let lines = file.text.lines().count();
        if lines > limits.file_lines_max {
            let message = format!("{lines} lines, at most {} are allowed: split the file", limits.file_lines_max);
            violations.push(Violation::new(&file.path, limits.file_lines_max + 1, message));
        }
    }
    for (name, lines_max) in limits.crate_lines_max_of {
        let own = files.iter().filter(|file| file.is_rust() && file.in_crate().is_some_and(|(of, _)| of == *name));
        let lines: usize = own.map(|file| file.text.lines().count()).sum();
        if lines > *lines_max {
            let message =
                format!("crates/{name}/src has {lines} lines, at most {lines_max} are allowed: move code out");
            violations.push(Violation::new(&format!("crates/{name}/Cargo.toml"), 1, message));
        }
    }
    violations
}
