//! Requests given as lines of words, for the `redis` crate, and common requests of persistence tests.

use redis::{Connection, RedisResult, Value, cmd};

/// Runs a request.
pub fn run(client: &mut Connection, line: &str) -> RedisResult<Value> {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| _ = command.arg(word));
    command.query(client)
}

/// Runs a request that is to succeed.
#[track_caller]
pub fn ok(client: &mut Connection, line: &str) {
    run(client, line).unwrap_or_else(|error| panic!("{line}: {error}"));
}

/// Runs a request that is to fail; its error.
#[track_caller]
pub fn refusal(client: &mut Connection, line: &str) -> String {
    match run(client, line) {
        Err(error) => format!("{} {}", error.code().unwrap_or_default(), error.detail().unwrap_or_default()),
        Ok(value) => panic!("{line}: {value:?}"),
    }
}

/// A field of INFO's section Persistence.
pub fn persistence(client: &mut Connection, name: &str) -> String {
    let text: String = cmd("INFO").arg("persistence").query(client).expect("INFO");
    let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("no {name}")).trim().to_string()
}

/// The digest of all data.
pub fn digest(client: &mut Connection) -> String {
    cmd("DEBUG").arg("DIGEST").query(client).expect("a digest")
}
