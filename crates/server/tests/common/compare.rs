//! The contents of a server, for comparison with those of another Kvick, Valkey or Redis server.

use super::wait_until;
use super::wire::{Reply, Wire};
use std::time::Duration;
use tempfile::TempDir;

/// Timeout of replies.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// Maximum shown length of a value.
const SHOWN_MAX: usize = 500;
/// The databases of a server.
const DATABASES: usize = 16;

/// A directory for a server, which is kept if the variable `KVICK_RANDOM_KEEP` is set.
pub fn data_dir() -> TempDir {
    let mut data_dir = TempDir::new().expect("a directory");
    if std::env::var_os("KVICK_RANDOM_KEEP").is_some() {
        println!("kept: {}", data_dir.path().display());
        data_dir.disable_cleanup(true);
    }
    data_dir
}

/// The contents of a server.
pub struct Contents {
    digest: String,
    lines: Vec<String>,
}

/// Sends a request on a new connection.
pub fn ask(port: u16, line: &str) -> Reply {
    let mut wire = Wire::connect(port, WAIT_LIMIT).expect("a connection");
    wire.ask(&line.split(' ').collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// DEBUG DIGEST.
pub fn digest(port: u16) -> String {
    ask(port, "DEBUG DIGEST").text()
}

/// A line of INFO, empty if there is none of that name.
pub fn info(port: u16, section: &str, name: &str) -> String {
    let text = ask(port, &format!("INFO {section}")).text();
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_default().trim().to_string()
}

/// Waits until all keys and fields are gone that `common/vocabulary.rs` gives a short time to live, the longest of
/// which is a second.
pub fn settle(port: u16) {
    std::thread::sleep(Duration::from_millis(1300));
    let mut last = String::new();
    wait_until("nothing changes any more", || {
        let mut wire = Wire::connect(port, WAIT_LIMIT).expect("a connection");
        for db in 0..DATABASES {
            wire.ask(&["SELECT", &db.to_string()]).expect("a reply");
            for key in wire.ask(&["KEYS", "*"]).expect("a reply").items() {
                wire.ask(&["TYPE", &key.text()]).expect("a reply");
            }
        }
        std::thread::sleep(Duration::from_millis(200));
        let now = digest(port);
        std::mem::replace(&mut last, now.clone()) == now
    });
}

/// The contents of all databases of a server.
pub fn contents(port: u16) -> Contents {
    let digest = digest(port);
    let mut wire = Wire::connect(port, WAIT_LIMIT).expect("a connection");
    let mut lines = Vec::new();
    for db in 0..DATABASES {
        wire.ask(&["SELECT", &db.to_string()]).expect("a reply");
        let mut keys: Vec<String> =
            wire.ask(&["KEYS", "*"]).expect("a reply").items().iter().map(Reply::text).collect();
        keys.sort();
        lines.extend(keys.iter().map(|key| format!("{db} {key} {}", describe(&mut wire, key))));
    }
    Contents { digest, lines }
}

/// Describes a key: its digest, its type, its expiry and, for readers, its value.
fn describe(wire: &mut Wire, key: &str) -> String {
    let mut told = |words: &[&str]| match wire.ask(words).expect("a reply") {
        Reply::Array(items) => items.iter().map(Reply::text).collect::<Vec<_>>().join(" "),
        Reply::Number(number) => number,
        reply => reply.text(),
    };
    let kind = told(&["TYPE", key]);
    let value = match &*kind {
        "string" => told(&["GET", key]),
        "list" => told(&["LRANGE", key, "0", "-1"]),
        // Their order is the server's own.
        "set" => told(&["SCARD", key]),
        "hash" => told(&["HLEN", key]),
        "zset" => told(&["ZRANGE", key, "0", "-1", "WITHSCORES"]),
        _ => told(&["XLEN", key]),
    };
    let value = value.chars().take(SHOWN_MAX).collect();
    [told(&["DEBUG", "DIGEST-VALUE", key]), kind, told(&["PEXPIRETIME", key]), value].join(" ")
}

/// Compares what a server holds with what it, or another, did before, and tells the keys that differ.
pub fn assert_same(what: &str, before: &Contents, port: u16) {
    let now = digest(port);
    if before.digest != now {
        let there = contents(port).lines;
        let missing: Vec<_> = before.lines.iter().filter(|line| !there.contains(line)).take(10).collect();
        let instead: Vec<_> = there.iter().filter(|line| !before.lines.contains(line)).take(10).collect();
        panic!("{what} differs: {} and {now}\nbefore: {missing:#?}\nafter: {instead:#?}", before.digest);
    }
}
