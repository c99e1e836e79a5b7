//! Linearizability of single-key operations: builds and runs the program in `tests/linearizability` if Go is installed
//! and the program's module can be downloaded.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output};

/// How long each kind of run takes.
const DURATION: &str = "5s";
/// The exit status if a history is not linearizable.
const VIOLATION: i32 = 1;

/// A Go command in the program's directory. It takes the installed toolchain, whatever version that is.
fn go(args: &[&str]) -> std::io::Result<Output> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/linearizability");
    Command::new("go").args(args).current_dir(source).env("GOTOOLCHAIN", "local").output()
}

/// Whether the program can be built here. Says so if not.
fn can_build() -> bool {
    let why = match go(&["mod", "download"]) {
        Ok(got) if got.status.success() => return true,
        Ok(got) => format!("its Go module cannot be downloaded: {}", text(&got.stderr)),
        Err(error) => format!("Go is absent: {error}"),
    };
    // Written directly, since a test's own output is shown only if it fails.
    writeln!(std::io::stderr(), "LEFT OUT: tests/linearizability: {why}").expect("stderr");
    false
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn operations_on_a_key_are_linearizable() {
    if !can_build() {
        return;
    }
    let checks = go(&["test", "."]).expect("Go");
    assert!(checks.status.success(), "{}{}", text(&checks.stdout), text(&checks.stderr));
    let dir = tempfile::tempdir().expect("a directory");
    let program = dir.path().join("linearizability");
    let built = go(&["build", "-o", &program.display().to_string(), "."]).expect("Go");
    assert!(built.status.success(), "{}", text(&built.stderr));
    let run = |kinds: &str| {
        let mut command = Command::new(&program);
        command.args(["-server", env!("CARGO_BIN_EXE_kvick-server"), "-duration", DURATION, "-kinds", kinds]);
        command.current_dir(dir.path()).output().expect("the program")
    };
    let sound = run("alone,bgsave,migration");
    println!("{}", text(&sound.stdout));
    assert!(sound.status.success(), "{}", text(&sound.stderr));
    // Reads from replicas are stale: the program must find that.
    let stale = run("replica");
    assert_eq!(stale.status.code(), Some(VIOLATION), "{}{}", text(&stale.stdout), text(&stale.stderr));
}
