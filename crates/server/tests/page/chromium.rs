//! Runs the tests in `tests/page`: the page in a real browser. They need Node and Chromium; `.ci/run` installs both.

use std::path::Path;
use std::process::Command;

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
    let status = Command::new("node")
        .args(["--test", "--test-concurrency=1", "--test-reporter=spec", "page.test.js", "rates.test.js"])
        .current_dir(&directory)
        .env("KVICK_TEST_SERVER", env!("CARGO_BIN_EXE_kvick-server"))
        .env("KVICK_TEST_CHROMIUM", chromium)
        .status();
    match status {
        Ok(status) => assert!(status.success(), "the tests in tests/page failed"),
        Err(error) => println!("Not run: node does not start: {error}"),
    }
}
