//! The ready configurations are valid.

use kvick_load::config::Config;
use kvick_load::workload::Workload;
use std::path::Path;

#[test]
fn ready_configurations_are_valid() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).expect("the directory of configurations") {
        let path = entry.expect("an entry").path();
        let config = Config::read(&path).unwrap_or_else(|error| panic!("{error}"));
        if config.check.is_none() {
            Workload::new(&config, 1, 0, 1).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
        names.push(path.file_stem().expect("a name").to_string_lossy().into_owned());
    }
    names.sort();
    assert_eq!(names, ["checked-writes", "doubling", "quick", "seed-comparison", "streams"]);
}
