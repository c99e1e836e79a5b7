//! Which commands the page passes on. The rights of the session's user come in addition: the server checks those.
//!
//! A session shares its connection among all requests of a browser, so commands that change the state of a connection,
//! wait, or answer with a stream are refused always. Without `ui-write`, only commands pass that cannot change
//! anything: those that the command table marks as reading data, and the lists below. Whatever else a command table may
//! contain is refused, so a new command is not allowed by accident.

use crate::host::CommandFacts;

/// Commands about the server that only report.
const REPORTS: &[&str] = &[
    "acl|cat",
    "acl|dryrun",
    "acl|genpass",
    "acl|getuser",
    "acl|help",
    "acl|list",
    "acl|users",
    "acl|whoami",
    "client|getname",
    "client|getredir",
    "client|help",
    "client|id",
    "client|info",
    "client|list",
    "client|trackinginfo",
    "cluster|count-failure-reports",
    "cluster|countkeysinslot",
    "cluster|getkeysinslot",
    "cluster|getslotmigrations",
    "cluster|help",
    "cluster|info",
    "cluster|keyslot",
    "cluster|links",
    "cluster|myid",
    "cluster|myshardid",
    "cluster|nodes",
    "cluster|replicas",
    "cluster|shards",
    "cluster|slaves",
    "cluster|slot-stats",
    "cluster|slots",
    "command",
    "command|count",
    "command|docs",
    "command|getkeys",
    "command|getkeysandflags",
    "command|help",
    "command|info",
    "command|list",
    "commandlog|get",
    "commandlog|help",
    "commandlog|len",
    "config|get",
    "config|help",
    "echo",
    "function|dump",
    "function|help",
    "function|list",
    "function|stats",
    "hotkeys|get",
    "hotkeys|help",
    "info",
    "lastsave",
    "latency|doctor",
    "latency|graph",
    "latency|help",
    "latency|histogram",
    "latency|history",
    "latency|latest",
    "lolwut",
    "memory|bigkeys",
    "memory|doctor",
    "memory|help",
    "memory|malloc-stats",
    "memory|stats",
    "module|help",
    "module|list",
    "ping",
    "pubsub|channels",
    "pubsub|help",
    "pubsub|numpat",
    "pubsub|numsub",
    "pubsub|shardchannels",
    "pubsub|shardnumsub",
    "pfcount",
    "readonly",
    "readwrite",
    "role",
    "script|exists",
    "script|help",
    "script|show",
    "slowlog|get",
    "slowlog|help",
    "slowlog|len",
    "time",
];

/// Commands that change the state of a connection or answer with a stream.
const OF_CONNECTIONS: &[&str] = &[
    "asking",
    "auth",
    "client|caching",
    "client|capa",
    "client|no-evict",
    "client|no-touch",
    "client|reply",
    "client|setinfo",
    "client|setname",
    "client|tracking",
    "client|import-source",
    "discard",
    "exec",
    "hello",
    "monitor",
    "multi",
    "psubscribe",
    "psync",
    "punsubscribe",
    "quit",
    "replconf",
    "reset",
    "script|debug",
    "select",
    "ssubscribe",
    "subscribe",
    "sunsubscribe",
    "sync",
    "unsubscribe",
    "unwatch",
    "watch",
];

/// Reads the whole keyspace at once, for which there is SCAN.
const WHOLE_KEYSPACE: &str = "keys";

/// All names in the lists.
pub fn names() -> impl Iterator<Item = &'static str> {
    REPORTS.iter().chain(OF_CONNECTIONS).copied()
}

/// Decides on a request. `args` begins with the name of the command; `command` is `None` if the server does not know
/// it, and then answers that itself.
///
/// # Errors
/// Why it is refused.
pub fn check(command: Option<&CommandFacts>, args: &[Vec<u8>], may_write: bool) -> Result<(), String> {
    let Some(command) = command else { return Ok(()) };
    let name = command.name.as_str();
    let shown = name.replace('|', " ").to_uppercase();
    if name == "select" {
        return Err("SELECT is not passed on: choose the database of the request instead.".to_owned());
    }
    if OF_CONNECTIONS.contains(&name) || command.is_internal {
        return Err(format!("{shown} concerns a connection, and the page has one for all its requests."));
    }
    if command.is_blocking && may_wait(name, args) {
        return Err(format!("{shown} may wait, and the page does not."));
    }
    if may_write {
        return Ok(());
    }
    match name {
        WHOLE_KEYSPACE => Err("KEYS reads the whole keyspace at once. Use SCAN.".to_owned()),
        "acl|log" if !is_reset(args) => Ok(()),
        _ if REPORTS.contains(&name) || command.is_read_only => Ok(()),
        _ => Err(format!("{shown} is refused because the page is read-only. The directive ui-write allows it.")),
    }
}

/// Whether a command that is marked as blocking may really wait.
fn may_wait(name: &str, args: &[Vec<u8>]) -> bool {
    !matches!(name, "xread" | "xreadgroup") || args.iter().any(|arg| arg.eq_ignore_ascii_case(b"BLOCK"))
}

/// Whether ACL LOG would clear the log.
fn is_reset(args: &[Vec<u8>]) -> bool {
    args.get(2).is_some_and(|arg| arg.eq_ignore_ascii_case(b"RESET"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(line: &str, facts: CommandFacts, may_write: bool) -> bool {
        let args: Vec<Vec<u8>> = line.split(' ').map(|word| word.as_bytes().to_vec()).collect();
        check(Some(&facts), &args, may_write).is_ok()
    }

    fn named(name: &str) -> CommandFacts {
        CommandFacts { name: name.to_owned(), ..CommandFacts::default() }
    }

    #[test]
    fn reading_is_allowed_and_writing_only_by_the_setting() {
        let get = CommandFacts { is_read_only: true, ..named("get") };
        assert!(decide("GET k", get, false));
        for (line, name) in [
            ("SET k v", "set"),
            ("CONFIG SET a b", "config|set"),
            ("FLUSHALL", "flushall"),
            ("EVAL x 0", "eval"),
            ("PUBLISH a b", "publish"),
            ("CLIENT KILL ID 1", "client|kill"),
            ("ACL SETUSER x", "acl|setuser"),
            ("ACL LOG RESET", "acl|log"),
            ("SLOWLOG RESET", "slowlog|reset"),
            ("NEWCOMMAND", "newcommand"),
        ] {
            assert!(!decide(line, named(name), false), "{line}");
            assert!(decide(line, named(name), true), "{line}");
        }
        for (line, name) in [("INFO", "info"), ("CONFIG GET *", "config|get"), ("ACL LOG 10", "acl|log")] {
            assert!(decide(line, named(name), false), "{line}");
        }
        assert!(!decide("KEYS *", CommandFacts { is_read_only: true, ..named("keys") }, false));
    }

    #[test]
    fn connections_and_waiting_are_never_passed_on() {
        for may_write in [false, true] {
            for name in ["subscribe", "monitor", "multi", "select", "hello", "client|reply", "reset"] {
                assert!(!decide(name, named(name), may_write), "{name}");
            }
            let internal = CommandFacts { is_internal: true, ..named("cluster|syncslots") };
            assert!(!decide("CLUSTER SYNCSLOTS", internal, may_write));
            let blocking = |name: &str| CommandFacts { is_blocking: true, is_read_only: true, ..named(name) };
            assert!(!decide("BLPOP k 0", blocking("blpop"), may_write));
            assert!(!decide("XREAD block 0 STREAMS s $", blocking("xread"), may_write));
            assert!(decide("XREAD STREAMS s 0", blocking("xread"), may_write));
        }
    }

    #[test]
    fn unknown_commands_are_for_the_server_to_answer() {
        assert!(check(None, &[b"nosuch".to_vec()], false).is_ok());
    }
}
