//! Applies all rules to this repository.

use kvick_tidy::{Limits, check, tree};
use std::fs;
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

/// A registry refuses a crate without a description, and a package has only the licence in its own directory.
#[test]
fn published_crates_have_what_a_registry_asks_for() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut published = 0;
    for entry in fs::read_dir(crates).expect("the directory of the crates") {
        let directory = entry.expect("a crate").path();
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).expect("a manifest");
        let has = |key: &str| manifest.lines().any(|line| line.starts_with(key));
        if has("publish = false") {
            continue;
        }
        let name = directory.display();
        assert!(has("description = "), "{name}: the manifest lacks a description");
        assert!(directory.join("LICENSE").is_file(), "{name}: lacks LICENSE, a link to that of the repository");
        published += 1;
    }
    assert!(published > 1, "no crate is published");
}
