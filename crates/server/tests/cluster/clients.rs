//! Client libraries in their cluster mode.

use crate::nodes::{Node, form, kvick};
use kvick_testing::programs::python;
use std::path::Path;
use std::process::Command;

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
