//! Two Python client libraries against the server: `tests/clients/python_clients.py`, where Python and both are installed.

mod common;

use common::for_workers;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter to use, which `.ci/run` gives packages of its own.
const PYTHON: &str = "KVICK_TEST_PYTHON";

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/python_clients.py")
}

/// Whether the interpreter runs and has both packages.
fn is_usable(python: &str) -> bool {
    let tried = Command::new(python).args(["-c", "import redis, valkey"]).output();
    tried.is_ok_and(|tried| tried.status.success())
}

#[test]
fn python_clients_see_no_difference() {
    let named = std::env::var(PYTHON);
    let python = named.as_deref().unwrap_or("python3");
    if !is_usable(python) {
        assert!(named.is_err(), "{PYTHON} is set, but {python} does not have the packages `valkey` and `redis`");
        // Written directly, since a test's own output is shown only if it fails.
        let why = "with the packages `valkey` and `redis` is absent";
        writeln!(std::io::stderr(), "LEFT OUT: {python} {why}; set {PYTHON} to one that has them.").expect("stderr");
        return;
    }
    for_workers(&[], |server| {
        let port = server.port().to_string();
        let ran = Command::new(python).arg(script()).arg(port).output().expect("an interpreter that runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        println!("{}", text(&ran.stdout));
        assert!(ran.status.success(), "{}", text(&ran.stderr));
    });
}
