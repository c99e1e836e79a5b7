//! Two Python client libraries against the server: runs the scripts in `tests/clients` if Python and both libraries are
//! installed.

mod common;

use common::{Server, for_workers};
use kvick_testing::programs::python;
use std::path::Path;
use std::process::Command;

/// Entries that consumer groups read, for each library and protocol.
const ENTRIES: usize = 2_000;

/// Runs a script against a server.
fn run(python: &str, script: &str, server: &Server, args: &[String]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients").join(script);
    let port = server.port().to_string();
    let ran = Command::new(python).arg(script).arg(port).args(args).output().expect("an interpreter that runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}", text(&ran.stdout));
    assert!(ran.status.success(), "{}", text(&ran.stderr));
}

#[test]
fn python_clients_work() {
    let Some(python) = python() else { return };
    for_workers(&[], |server| run(&python, "python_clients.py", server, &[]));
}

#[test]
fn python_consumers_get_every_entry_once() {
    let Some(python) = python() else { return };
    for_workers(&[], |server| run(&python, "consumer_groups.py", server, &[ENTRIES.to_string()]));
}
