//! The program itself.

use std::process::{Command, Stdio};

#[test]
fn a_reader_that_ends_early_is_no_error() {
    let program = env!("CARGO_BIN_EXE_kvick-load");
    let mut child = Command::new(program)
        .arg("verbs")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("kvick-load");
    // The pipe is closed before the program writes, or while it does.
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("its end");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
