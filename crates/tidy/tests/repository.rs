//! Applies all rules to this repository.

use kvick_tidy::{Limits, check, tree};
use std::path::Path;

#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = tree::read(&root).expect("the repository can be read");
    assert!(files.iter().any(|file| file.path == "crates/tidy/src/lib.rs"), "{} has no sources", root.display());
    let violations = check(&files, &Limits::default());
    let report: Vec<String> = violations.iter().map(|violation| violation.to_string()).collect();
    assert!(violations.is_empty(), "{} violations:\n{}", report.len(), report.join("\n"));
}
