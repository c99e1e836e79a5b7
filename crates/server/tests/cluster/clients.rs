//! Client libraries in their cluster mode.

use crate::nodes::{Node, form, kvick};
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// The interpreter to use, which `.ci/run` gives packages of its own.
const PYTHON: &str = "KVICK_TEST_PYTHON";

/// The interpreter, if it runs and has both packages.
fn python() -> Option<String> {
    let named = std::env::var(PYTHON);
    let python = named.clone().unwrap_or_else(|_| "python3".to_owned());
    let tried = Command::new(&python).args(["-c", "import redis.cluster, valkey.cluster"]).output();
    if tried.is_ok_and(|tried| tried.status.success()) {
        return Some(python);
    }
    assert!(named.is_err(), "{PYTHON} is set, but {python} does not have the packages `valkey` and `redis`");
    // Written directly, since a test's own output is shown only if it fails.
    let why = "with the packages `valkey` and `redis` is absent";
    writeln!(std::io::stderr(), "LEFT OUT: {python} {why}; set {PYTHON} to one that has them.").expect("stderr");
    None
}

#[test]
fn python_clients_use_a_cluster() {
    let Some(python) = python() else { return };
    let nodes: Vec<Node> = (0..6).map(|_| Node::start(&kvick(), &["--io-threads", "2"])).collect();
    let all: Vec<&Node> = nodes.iter().collect();
    form(&all[..3], &all[3..]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients/cluster.py");
    let ran = Command::new(python).arg(script).arg(all[0].port.to_string()).output().expect("an interpreter that runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}", text(&ran.stdout));
    assert!(ran.status.success(), "{}", text(&ran.stderr));
}
