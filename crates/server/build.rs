//! Passes the commit of the build to the program: `KVICK_GIT_SHA` (eight digits, zeros outside a repository),
//! `KVICK_GIT_DIRTY` (0 or 1), and `KVICK_BUILD_ID`, which identifies the build.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;

fn main() {
    // Grows with every commit and checkout.
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    println!("cargo::rerun-if-changed=build.rs");
    let sha = git(&["rev-parse", "--short=8", "HEAD"]).unwrap_or_else(|| "00000000".into());
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    let mut hasher = DefaultHasher::new();
    for name in ["CARGO_PKG_VERSION", "TARGET", "PROFILE", "OPT_LEVEL"] {
        std::env::var(name).unwrap_or_default().hash(&mut hasher);
    }
    (&sha, dirty).hash(&mut hasher);
    println!("cargo::rustc-env=KVICK_GIT_SHA={sha}");
    println!("cargo::rustc-env=KVICK_GIT_DIRTY={}", u8::from(dirty));
    println!("cargo::rustc-env=KVICK_BUILD_ID={:x}", hasher.finish());
}

/// The output of git, if it is installed and this is a repository.
fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
