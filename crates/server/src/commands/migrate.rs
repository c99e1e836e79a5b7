//! MIGRATE: parses the request and starts the migration job: see [`kvick_replication::migration`].

use kvick_commands::context::Error;
use kvick_commands::spec::{
    Arg, Begin, Categories, Command, Find, Flags, Group, KeyFlags, KeyPosition, KeyPositions, KeySpec, Spec,
};
use kvick_config::tables::persistence::RDBCOMPRESSION;
use kvick_engine::session::{Session, SessionHandler};
use kvick_replication::migration::packed_key::{self, pack};
use kvick_replication::migration::{self, Credentials, MigrationJob, Request, WaitingClient};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::{Kind, Waiter, Watcher};
use std::sync::Arc;
use std::time::Duration;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[MIGRATE];

/// The only key, or an empty word when KEYS names several.
const KEY: usize = 3;
const DATABASE: usize = 4;
const TIMEOUT: usize = 5;
const OPTIONS: usize = 6;
/// The default timeout in milliseconds.
const TIMEOUT_MS: i64 = 1000;
const MOVED: &[KeyFlags] = &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE];
const SOME_MOVED: &[KeyFlags] = &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE, KeyFlags::INCOMPLETE];

/// `MIGRATE host port key|"" destination-db timeout [COPY] [REPLACE] [AUTH password | AUTH2 username password] [KEYS
/// key [key ...]]`
pub const MIGRATE: Command<SessionHandler> = Command::new(
    Spec::new("migrate", -6)
        .flags(&[Flags::WRITE])
        .acl(&[Categories::KEYSPACE, Categories::DANGEROUS])
        .keys(&[
            KeySpec::at(KEY, MOVED),
            KeySpec::new(Begin::Keyword("KEYS", -2), Find::Range { last: -1, step: 1, limit: 0 }, SOME_MOVED),
        ])
        .find_keys(find_keys)
        .doc(
            Group::Generic,
            "2.6.0",
            "O(N) in the bytes sent, beside the cost of DUMP and DEL here and of RESTORE at the target, for each key.",
            "Moves keys to another server, each atomically.",
        )
        .history(&[
            ("3.0.0", "`COPY` and `REPLACE` are new options."),
            ("3.0.6", "`KEYS` is a new option."),
            ("4.0.7", "`AUTH` is a new option."),
            ("6.0.0", "`AUTH2` is a new option."),
        ])
        .args(&[
            Arg::string("host"),
            Arg::integer("port"),
            Arg::one_of("key-selector", &[Arg::key("key"), Arg::word("empty-string", "")]),
            Arg::integer("destination-db"),
            Arg::integer("timeout"),
            Arg::word("copy", "COPY").optional().since("3.0.0"),
            Arg::word("replace", "REPLACE").optional().since("3.0.0"),
            Arg::one_of(
                "authentication",
                &[
                    Arg::string("auth").token("AUTH").display("password").since("4.0.7"),
                    Arg::block("auth2", &[Arg::string("username"), Arg::string("password")])
                        .token("AUTH2")
                        .since("6.0.0"),
                ],
            )
            .optional(),
            Arg::key("keys").key_spec(1).token("KEYS").display("key").optional().multiple().since("3.0.6"),
        ])
        .tips(&["nondeterministic_output"]),
    migrate,
);

/// The options after the timeout.
#[derive(Default)]
struct Options {
    copy: bool,
    replace: bool,
    /// The argument indices of user and password.
    user: Option<usize>,
    password: Option<usize>,
    /// The index of the first argument after KEYS.
    keys: Option<usize>,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut at = OPTIONS;
        while let Some(word) = args.get(at) {
            let more = args.len() - at - 1;
            match word.to_ascii_lowercase().as_slice() {
                b"copy" => options.copy = true,
                b"replace" => options.replace = true,
                b"auth" if more >= 1 => {
                    at += 1;
                    options.password = Some(at);
                }
                b"auth2" if more >= 2 => {
                    at += 2;
                    (options.user, options.password) = (Some(at - 1), Some(at));
                }
                b"keys" if args.get(KEY).is_some_and(|key| !key.is_empty()) => {
                    return Err(Error::text(
                        "ERR When using MIGRATE KEYS option, the key argument must be set to the empty string",
                    ));
                }
                b"keys" => {
                    options.keys = Some(at + 1);
                    break;
                }
                _ => return Err(Error::SYNTAX),
            }
            at += 1;
        }
        Ok(options)
    }
}

/// An invalid request has no keys.
fn find_keys(args: Args<'_>) -> Option<KeyPositions> {
    let flags = MOVED.iter().copied().fold(KeyFlags::empty(), KeyFlags::union);
    let (first, last) = match Options::parse(args).ok()?.keys {
        Some(first) => (first, args.len()),
        None => (KEY, KEY + 1),
    };
    Some((first..last).map(|index| KeyPosition { index, flags }).collect())
}

fn request(args: Args<'_>, options: &Options) -> Result<Request, Error> {
    let text = |index: usize| String::from_utf8_lossy(&args[index]).into_owned();
    let timeout_ms = parse_i64(&args[TIMEOUT]).ok_or(Error::NOT_INTEGER)?;
    let database = parse_i64(&args[DATABASE]).ok_or(Error::NOT_INTEGER)?;
    let timeout_ms = if timeout_ms <= 0 { TIMEOUT_MS } else { timeout_ms };
    Ok(Request {
        host: text(1),
        port: text(2),
        database,
        timeout: Duration::from_millis(timeout_ms.unsigned_abs()),
        copy: options.copy,
        replace: options.replace,
        credentials: options.password.map(|password| Credentials {
            user: options.user.map(|user| args[user].to_vec()),
            password: args[password].to_vec(),
        }),
    })
}

fn migrate(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    // Also if the request is refused for another reason.
    redact(cx, args);
    let options = Options::parse(args)?;
    let request = request(args, &options)?;
    let keys = match options.keys {
        Some(first) => first..args.len(),
        None => KEY..KEY + 1,
    };
    let number = cx.client.db;
    let compress = cx.server.config.read(RDBCOMPRESSION);
    let packed_keys = pack(&mut cx.db(number), keys.filter_map(|index| args.get(index)), options.replace, compress)?;
    if packed_keys.is_empty() {
        cx.reply.simple("NOKEY");
        return Ok(());
    }
    for packed_key in packed_keys.iter().filter(|packed_key| !packed_key.is_duplicate && !request.copy) {
        cx.server.migration.active_keys.begin(number, &packed_key.key);
    }
    let client = WaitingClient { info: cx.client.info.clone(), ticket: 0, version: cx.client.version };
    let watcher = Arc::new(Watcher::default());
    let job = MigrationJob {
        request,
        db: number,
        packed_keys,
        compress,
        failure: None,
        watcher,
        attempts: 0,
        held_slot: None,
        client,
    };
    if cx.in_transaction { send_synchronously(cx, job) } else { send_in_background(cx, job) }
}

/// Hides credentials from MONITOR and the command log.
fn redact(cx: &mut Session<'_>, args: Args<'_>) {
    let mut at = OPTIONS;
    while let Some(word) = args.get(at) {
        let hidden = match word.to_ascii_lowercase().as_slice() {
            b"auth" => 1,
            b"auth2" => 2,
            b"keys" => return,
            _ => 0,
        };
        (at + 1..=at + hidden).for_each(|index| cx.client.redact(index));
        at += hidden + 1;
    }
}

/// Starts a migration job and blocks the client.
fn send_in_background(cx: &mut Session<'_>, mut job: MigrationJob) -> Result<(), Error> {
    // The client waits for no key: only the migrator ends the wait.
    let waiter = Waiter::new(Kind::String, false, 0, Box::new(()));
    job.client.ticket = waiter.ticket();
    for packed_key in job.packed_keys.iter().filter(|_| !job.request.copy) {
        let key = cx.server.keyspace.key(&packed_key.key);
        cx.locked.watch(job.db, key, &job.watcher, cx.now_ms);
    }
    cx.server.migration.send(Box::new(job));
    *cx.waits = Some(waiter);
    Ok(())
}

/// Sends the keys and waits for the answer under the transaction's locks, so that nothing can change meanwhile.
fn send_synchronously(cx: &mut Session<'_>, mut job: MigrationJob) -> Result<(), Error> {
    migration::send_now(cx.server, &mut job);
    let (lazy, number) = (cx.settings.lazy_server_del, job.db);
    let active_keys = &cx.server.migration.active_keys;
    packed_key::delete_migrated(&mut job, active_keys, &mut cx.db(number), lazy);
    packed_key::reply(&job, &mut cx.reply)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::OwnedArgs;

    fn found(words: &[&str]) -> Option<Vec<usize>> {
        let args = OwnedArgs::new(words);
        find_keys(args.args()).map(|positions| positions.iter().map(|position| position.index).collect())
    }

    #[test]
    fn keys_are_found_regardless_of_option_values() {
        let base = ["migrate", "host", "1", "key", "0", "10"];
        assert_eq!(found(&base), Some(vec![3]));
        assert_eq!(found(&[&base[..], &["copy", "auth", "keys"]].concat()), Some(vec![3]));
        let several = ["migrate", "host", "1", "", "0", "10", "AUTH2", "keys", "copy", "REPLACE", "KEYS", "a", "keys"];
        assert_eq!(found(&several), Some(vec![11, 12]));
        assert_eq!(found(&[&base[..], &["keys", "a"]].concat()), None, "the key is not empty");
        assert_eq!(found(&[&base[..], &["auth2", "user"]].concat()), None, "no password");
    }
}
