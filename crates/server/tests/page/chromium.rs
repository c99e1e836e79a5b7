//! Runs the tests in `tests/page`: the page in a real browser. They need Node and Chromium; `.ci/run` installs both.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Time that the tests may take; they need one to two minutes.
const TIME_MAX: Duration = Duration::from_secs(900);

#[test]
fn page_works_in_chromium() {
    let Some(chromium) = std::env::var_os("KVICK_TEST_CHROMIUM") else {
        println!("Not run: KVICK_TEST_CHROMIUM does not name Chromium, see .ci/run");
        return;
    };
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/page");
    if !directory.join("node_modules").is_dir() {
        println!("Not run: the libraries of tests/page are not installed, see .ci/run");
        return;
    }
    let node = Command::new("node")
        .args(["--test", "--test-concurrency=1", "--test-reporter=spec", "page.test.js", "rates.test.js"])
        .current_dir(&directory)
        .env("KVICK_TEST_SERVER", env!("CARGO_BIN_EXE_kvick-server"))
        .env("KVICK_TEST_CHROMIUM", chromium)
        .spawn();
    let mut node = match node {
        Ok(node) => node,
        Err(error) => return println!("Not run: node does not start: {error}"),
    };
    let started = Instant::now();
    let status = loop {
        if let Some(status) = node.try_wait().expect("the state of node") {
            break status;
        }
        if started.elapsed() > TIME_MAX {
            node.kill().expect("node ends");
            panic!("the tests in tests/page have not ended after {TIME_MAX:?}");
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(status.success(), "the tests in tests/page failed");
}
