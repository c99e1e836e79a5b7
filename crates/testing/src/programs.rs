//! The server of this workspace, and programs of others that tests exchange data with. A test whose program is absent
//! says so and passes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `valkey-server` of at least this version (major, minor): `KVICK_TEST_VALKEY`, or the program in `VALKEY_BIN_DIR` or
/// in `PATH`.
pub fn valkey_server(oldest: (u32, u32)) -> Option<PathBuf> {
    let named = std::env::var_os("KVICK_TEST_VALKEY").map(PathBuf::from);
    let in_dir = std::env::var_os("VALKEY_BIN_DIR").map(|dir| Path::new(&dir).join("valkey-server"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|dir| dir.join("valkey-server"));
    let Some(program) = named.into_iter().chain(in_dir).chain(in_path).find(|program| program.is_file()) else {
        report_absence("valkey-server is absent (KVICK_TEST_VALKEY, VALKEY_BIN_DIR, PATH)");
        return None;
    };
    let version = Command::new(&program).arg("--version").output().expect("its version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    if version_of(&version).is_none_or(|found| found < oldest) {
        let (major, minor) = oldest;
        report_absence(&format!("{} is older than {major}.{minor}: {version}", program.display()));
        return None;
    }
    Some(program)
}

/// `kvick-server`, for tests of other programs of this workspace. Their builds do not build it.
pub fn kvick_server() -> Option<PathBuf> {
    let own = std::env::current_exe().ok();
    let built = own.as_deref().and_then(Path::parent).and_then(Path::parent).map(|dir| dir.join("kvick-server"));
    let found = built.filter(|program| program.is_file());
    if found.is_none() {
        report_absence("kvick-server is absent; build it first (cargo build -p kvick-server)");
    }
    found
}

/// A program with one of these names in `PATH`, or the one that an environment variable names. If there is none, says
/// so.
pub fn find(variable: &str, names: &[&str]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).flat_map(|dir| names.iter().map(move |name| dir.join(name)));
    let named = std::env::var_os(variable).map(PathBuf::from);
    let found = named.into_iter().chain(in_path).find(|program| program.is_file());
    if found.is_none() {
        report_absence(&format!("{} is absent ({variable}, PATH)", names.join(" or ")));
    }
    found
}

/// Major and minor number in a line like `Valkey server v=9.1.2 sha=...`.
fn version_of(line: &str) -> Option<(u32, u32)> {
    let mut parts = line.split(" v=").nth(1)?.split(' ').next()?.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// A Python interpreter that has the packages `valkey` and `redis`: `KVICK_TEST_PYTHON`, which must have them, or
/// `python3`.
pub fn python() -> Option<String> {
    python_with("redis.cluster, valkey.cluster", "the packages `valkey` and `redis`")
}

/// A Python interpreter that can import these modules, which belong to the packages that the text names:
/// `KVICK_TEST_PYTHON`, which must have them, or `python3`.
pub fn python_with(modules: &str, packages: &str) -> Option<String> {
    const VARIABLE: &str = "KVICK_TEST_PYTHON";
    let named = std::env::var(VARIABLE);
    let python = named.clone().unwrap_or_else(|_| "python3".to_owned());
    let tried = Command::new(&python).args(["-c", &format!("import {modules}")]).output();
    if tried.is_ok_and(|tried| tried.status.success()) {
        return Some(python);
    }
    assert!(named.is_err(), "{VARIABLE} is set, but {python} does not have {packages}");
    report_absence(&format!("{python} with {packages} is absent; set {VARIABLE} to an interpreter that has them"));
    None
}

/// Says what is absent. Written directly, since a test's own output is shown only if it fails.
fn report_absence(why: &str) {
    // The message is a service: a closed standard error must not fail the test.
    let _ = writeln!(std::io::stderr(), "LEFT OUT: {why}.");
}

#[cfg(test)]
mod tests {
    use super::version_of;

    #[test]
    fn versions_are_read_from_the_line_that_the_program_prints() {
        assert_eq!(version_of("Valkey server v=9.1.2 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64"), Some((9, 1)));
        assert_eq!(version_of("Redis server 2.4.5 (00000000:0)"), None);
    }
}
