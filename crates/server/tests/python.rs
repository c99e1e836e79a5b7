//! Two Python client libraries against the server: runs the scripts in `tests/clients` if Python and both libraries are
//! installed.

mod common;

use common::{Server, for_workers};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The interpreter to use, which `.ci/run` gives packages of its own.
const PYTHON: &str = "KVICK_TEST_PYTHON";
/// Entries that consumer groups read, for each library and protocol.
const ENTRIES: usize = 2_000;

/// The interpreter, if it runs and has both packages.
fn python() -> Option<String> {
    let named = std::env::var(PYTHON);
    let python = named.clone().unwrap_or_else(|_| "python3".to_owned());
    let tried = Command::new(&python).args(["-c", "import redis, valkey"]).output();
    if tried.is_ok_and(|tried| tried.status.success()) {
        return Some(python);
    }
    assert!(named.is_err(), "{PYTHON} is set, but {python} does not have the packages `valkey` and `redis`");
    // Written directly, since a test's own output is shown only if it fails.
    let why = "with the packages `valkey` and `redis` is absent";
    writeln!(std::io::stderr(), "LEFT OUT: {python} {why}; set {PYTHON} to one that has them.").expect("stderr");
    None
}

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
