//! Lines have a limited width.

use crate::{File, Limits, Violation};

/// Finds lines that are too long in Rust, Markdown, configuration, shell and Python files.
///
/// Addresses of links do not count, as they cannot be broken; neither do tables and code blocks of Markdown.
pub fn check(files: &[File], limits: &Limits) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut excepted: Vec<Vec<Violation>> = vec![Vec::new(); limits.long_lines_max_of.len()];
    for file in files.iter().filter(|file| has_limit(file)) {
        let exception = limits.long_lines_max_of.iter().position(|(prefix, _)| is_below(&file.path, prefix));
        let found = exception.map_or(&mut violations, |exception| &mut excepted[exception]);
        found.extend(long_lines(file, limits.columns_max));
    }
    for ((prefix, lines_max), found) in limits.long_lines_max_of.iter().zip(excepted) {
        if found.len() > *lines_max {
            let count = found.len();
            violations.extend(found.into_iter().map(|violation| Violation {
                message: format!("{} ({count} such lines in {prefix}, at most {lines_max})", violation.message),
                ..violation
            }));
        } else if found.is_empty() {
            violations.push(Violation::new(prefix, 1, "no long lines left: remove the exception in crates/tidy"));
        }
    }
    violations
}

fn has_limit(file: &File) -> bool {
    let extension = file.path.rsplit_once('.').map(|(_, extension)| extension);
    matches!(extension, Some("rs" | "md" | "conf" | "sh" | "py")) || file.text.starts_with("#!")
}

fn is_below(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn long_lines(file: &File, columns_max: usize) -> Vec<Violation> {
    let is_markdown = file.path.ends_with(".md");
    let mut violations = Vec::new();
    let mut in_code_block = false;
    for (index, line) in file.text.lines().enumerate() {
        if is_markdown && line.trim_start().starts_with("```") {
            in_code_block = !in_code_block;
        }
        let is_table = is_markdown && line.trim_start().starts_with('|');
        let is_indented_code = is_markdown && line.starts_with("    ");
        if line.len() <= columns_max || in_code_block || is_table || is_indented_code {
            continue;
        }
        let columns = columns_of(line);
        if columns > columns_max {
            let message = format!("{columns} columns, at most {columns_max} are allowed");
            violations.push(Violation::new(&file.path, index + 1, message));
        }
    }
    violations
}

/// The characters of a line without the addresses of its links.
fn columns_of(line: &str) -> usize {
    let mut columns = 0;
    let mut rest = line;
    loop {
        let address = ["](", "https://", "http://"].iter().filter_map(|opening| rest.find(opening)).min();
        let Some(start) = address else { return columns + rest.chars().count() };
        let len = rest[start..].find([' ', ')', '>', '"']).unwrap_or(rest.len() - start);
        columns += rest[..start].chars().count();
        // At least the opening is passed over, so that the search goes on.
        rest = &rest[start + len.max(2)..];
    }
}
