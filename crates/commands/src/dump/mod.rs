//! DUMP, RESTORE and RESTORE-ASKING: values in the portable dump format.

use std::sync::atomic::{AtomicBool, Ordering};

use kvick_rdb::{RestoreError, ValueOptions, ValueRef, VersionCheck, WriteOptions};
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::EventClass;

use crate::context::{Context, Error, Handler, Settings};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

#[cfg(test)]
mod tests;

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] = &[DUMP, RESTORE, RESTORE_ASKING];

const BUSY_KEY: Error = Error::text("BUSYKEY Target key name already exists.");
const INVALID_TTL: Error = Error::text("ERR Invalid TTL value, must be >= 0");
const INVALID_IDLE_TIME: Error = Error::text("ERR Invalid IDLETIME value, must be >= 0");
const INVALID_FREQUENCY: Error = Error::text("ERR Invalid FREQ value, must be >= 0 and <= 255");

/// Whether the checksums of payloads are ignored.
static CHECKSUMS_SKIPPED: AtomicBool = AtomicBool::new(false);

/// Sets whether the checksums of payloads are ignored: for tests with corrupt payloads (DEBUG
/// SET-SKIP-CHECKSUM-VALIDATION).
pub fn skip_checksums(skip: bool) {
    CHECKSUMS_SKIPPED.store(skip, Ordering::Relaxed);
}

/// DUMP key
pub const DUMP: Command<Handler> = Command::new(
    Spec::new("dump", 2)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::KEYSPACE])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::Generic,
            "2.6.0",
            "O(N*M), N being the number of elements and M their average size.",
            "Returns a key's value in the form that RESTORE takes.",
        )
        .args(&[Arg::key("key")])
        .tips(&["nondeterministic_output"]),
    dump,
);

fn dump(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let Some(entry) = cx.db.get(key) else {
        cx.reply.null();
        return Ok(());
    };
    let mut payload = Vec::new();
    let options = WriteOptions { compress: cx.settings.rdb_compression, ..WriteOptions::default() };
    kvick_rdb::dump(ValueRef::from(entry), &options, &mut payload)
        .map_err(|error| Error::new(format!("ERR {error}")))?;
    cx.reply.bulk(&payload);
    Ok(())
}

const RESTORED_KEY: KeySpec = KeySpec::at(1, &[KeyFlags::OW, KeyFlags::UPDATE]);
const COMPLEXITY: &str = "O(N*M), N being the number of elements and M their average size; for sorted sets \
                          O(N*M*log(N)).";
const ARGS: &[Arg] = &[
    Arg::key("key"),
    Arg::integer("ttl"),
    Arg::string("serialized-value"),
    Arg::word("replace", "REPLACE").optional().since("3.0.0"),
    Arg::word("absttl", "ABSTTL").optional().since("5.0.0"),
    Arg::integer("seconds").token("IDLETIME").optional().since("5.0.0"),
    Arg::integer("frequency").token("FREQ").optional().since("5.0.0"),
];
const HISTORY: &[(&str, &str)] = &[
    ("3.0.0", "Added the `REPLACE` modifier."),
    ("5.0.0", "Added the `ABSTTL` modifier."),
    ("5.0.0", "Added the `IDLETIME` and `FREQ` options."),
];

/// `RESTORE key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`
pub const RESTORE: Command<Handler> = Command::new(
    Spec::new("restore", -4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::KEYSPACE, Categories::DANGEROUS])
        .keys(&[RESTORED_KEY])
        .doc(Group::Generic, "2.6.0", COMPLEXITY, "Makes a key of a value that DUMP returned.")
        .history(HISTORY)
        .args(ARGS),
    restore,
);

/// `RESTORE-ASKING key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]`
pub const RESTORE_ASKING: Command<Handler> = Command::new(
    Spec::new("restore-asking", -4)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::ASKING])
        .acl(&[Categories::KEYSPACE, Categories::DANGEROUS])
        .keys(&[RESTORED_KEY])
        .doc(Group::Server, "3.0.0", COMPLEXITY, "Does what RESTORE does, for a slot that is being imported.")
        .history(HISTORY)
        .args(ARGS)
        .internal(),
    restore,
);

/// The options after the payload.
#[derive(Default)]
struct Options {
    replace: bool,
    absolute: bool,
    idle_seconds: Option<i64>,
    frequency: Option<i64>,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Options, Error> {
        let mut options = Options::default();
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match word.to_ascii_lowercase().as_slice() {
                b"replace" => options.replace = true,
                b"absttl" => options.absolute = true,
                b"idletime" if options.frequency.is_none() => {
                    let seconds = number(words.next())?;
                    options.idle_seconds = Some(seconds).filter(|seconds| *seconds >= 0);
                    options.idle_seconds.ok_or(INVALID_IDLE_TIME)?;
                }
                b"freq" if options.idle_seconds.is_none() => {
                    let frequency = number(words.next())?;
                    options.frequency = Some(frequency).filter(|frequency| (0..=255).contains(frequency));
                    options.frequency.ok_or(INVALID_FREQUENCY)?;
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }
}

/// The number after an option.
fn number(word: Option<&[u8]>) -> Result<i64, Error> {
    parse_i64(word.ok_or(Error::SYNTAX)?).ok_or(Error::NOT_INTEGER)
}

fn restore(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let options = Options::parse(args.slice_from(4))?;
    let key = cx.key(args, 1);
    if !options.replace && cx.db.get_for_write(key).is_some() {
        return Err(BUSY_KEY);
    }
    let ttl = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    if ttl < 0 {
        return Err(INVALID_TTL);
    }
    let (check, values) = (version_check(cx.settings), value_options(cx.settings));
    let checks = !CHECKSUMS_SKIPPED.load(Ordering::Relaxed);
    let value = match kvick_rdb::restore(&args[3], check, checks, &values) {
        Ok(value) => value,
        Err(error) => {
            if let RestoreError::BadData(Some(reason)) = &error {
                cx.log_message = Some(reason.for_log());
            }
            return Err(Error::new(format!("ERR {error}")));
        }
    };

    let lazy = cx.settings.lazy_server_del;
    let deleted = options.replace && cx.db.remove(key, lazy);
    let since_ms = if options.absolute { 0 } else { cx.db.now_ms() };
    let expiry = (ttl > 0).then(|| ttl.saturating_add(since_ms));
    if expiry.is_some_and(|at| cx.db.is_due(at)) {
        if deleted {
            let effects = cx.db.effects();
            effects.changed(1);
            effects.propagate(&[if lazy { b"UNLINK" } else { b"DEL" }, key.bytes]);
            effects.notify(EventClass::GENERIC, "del", key.bytes);
        }
        cx.reply.ok();
        return Ok(());
    }
    cx.db.put(key, value, expiry);
    let access = cx.db.access();
    let clock = match (access.lfu, options.frequency, options.idle_seconds) {
        (true, Some(frequency), _) => Some(access.clock_with_frequency(frequency as u8)),
        (false, _, Some(seconds)) => Some(access.clock_idle_for(seconds as u64)),
        _ => None,
    };
    if let Some(clock) = clock {
        cx.db.set_access_clock(key, clock);
    }
    if let Some(at) = expiry.filter(|_| !options.absolute)
        && cx.db.effects().has_readers()
    {
        propagate_absolute(cx, args, at);
    }
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::GENERIC, "restore", key.bytes);
    cx.reply.ok();
    Ok(())
}

/// Propagates the command with the absolute expiry time instead of the TTL.
fn propagate_absolute(cx: &mut Context<'_>, args: Args<'_>, at: i64) {
    let at = at.to_string();
    let mut words: Vec<&[u8]> = args.iter().collect();
    words[2] = at.as_bytes();
    words.push(b"ABSTTL");
    cx.db.effects().propagate(&words);
}

/// The dump versions that these settings accept.
pub fn version_check(settings: &Settings) -> VersionCheck {
    if settings.rdb_version_relaxed { VersionCheck::Relaxed } else { VersionCheck::Strict }
}

/// The options for building values under these settings.
pub fn value_options(settings: &Settings) -> ValueOptions {
    ValueOptions { encoding: settings.encoding, expire_fields_before_ms: None }
}
