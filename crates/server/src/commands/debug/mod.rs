//! DEBUG: internal state, and actions for tests. Disabled unless `enable-debug-command` allows it.

mod allocator;
mod appendonly;
mod cluster;
mod crash;
mod digest;
mod keys;
mod protocol;
mod reload;
mod replication;
mod values;

use super::config::rewrite_file;
use super::help;
use crate::server::HasServer;
use kvick_commands::context::Error;
use kvick_commands::spec::{Command, Flags, Group, LockRule, Protection, Spec};
use kvick_config::rewrite::Add;
use kvick_core::admission::Reasons;
use kvick_core::message::Message;
use kvick_engine::rejection::Rejection;
use kvick_engine::session::{Session, SessionHandler};
use kvick_net::tls;
use kvick_resp::Args;
use kvick_resp::format::{parse_double, parse_i64};
use kvick_runtime::logging;
use kvick_worker::output;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[DEBUG];

/// DEBUG subcommand [argument ...]
pub const DEBUG: Command<SessionHandler> = Command::new(
    Spec::new("debug", -2)
        .flags(&[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE])
        .protection(Protection::Debug)
        .lock(LockRule::GlobalIf(needs_global_lock))
        .doc(Group::Server, "1.0.0", "Depends on subcommand.", "A container for debugging commands.")
        .internal(),
    debug,
);

/// The function of a subcommand.
type Run = fn(&mut Session<'_>, Args<'_>) -> Result<(), Error>;

/// A subcommand: its name, the minimum and maximum number of arguments including both names, whether it needs the
/// global lock, whether it changes the data, and its function.
struct Subcommand {
    name: &'static str,
    args_min: usize,
    args_max: usize,
    global: bool,
    replaces: bool,
    run: Run,
}

const fn sub(name: &'static str, args_min: usize, args_max: usize, run: Run) -> Subcommand {
    Subcommand { name, args_min, args_max, global: false, replaces: false, run }
}

const fn global(name: &'static str, min: usize, max: usize, run: Run) -> Subcommand {
    Subcommand { global: true, ..sub(name, min, max, run) }
}

const fn replacing(name: &'static str, min: usize, max: usize, run: Run) -> Subcommand {
    Subcommand { replaces: true, ..global(name, min, max, run) }
}

const SUBCOMMANDS: &[Subcommand] = &[
    sub("aof-flush-sleep", 3, 3, appendonly::flush_sleep),
    sub("assert", 2, usize::MAX, crash::assertion),
    global("change-repl-id", 2, 2, replication::change_id),
    sub("client-enforce-reply-list", 3, 3, set_reply_list),
    sub("config-rewrite-force-all", 2, 2, rewrite_all),
    sub("crash-and-recover", 2, 3, crash::crash_and_recover),
    sub("delay-rdb-client-free-seconds", 3, 3, replication::keep_log),
    global("clusterlink", 5, 5, cluster::kill_links),
    global("close-cluster-link-on-packet-drop", 3, 3, cluster::close_link_on_drop),
    global("digest", 2, 2, digest::all),
    global("digest-value", 2, usize::MAX, digest::values),
    global("disable-cluster-random-ping", 3, 3, cluster::disable_random_ping),
    global("disable-cluster-reconnection", 3, 3, cluster::disable_reconnection),
    global("drop-cluster-packet-filter", 3, 3, cluster::drop_packets),
    sub("error", 3, 3, error),
    sub("force-tls-write-error", 3, 3, clog_tls),
    sub("help", 2, 2, debug_help),
    sub("htstats", 3, 4, keys::tables),
    global("htstats-key", 3, 4, values::table),
    global("listpack", 3, 3, values::listpack),
    replacing("loadaof", 2, 2, appendonly::load),
    sub("log", 3, 3, log),
    sub("mallctl", 3, 3, allocator::number),
    sub("mallctl-str", 3, 3, allocator::text),
    global("object", 3, 4, values::object),
    sub("oom", 2, usize::MAX, crash::out_of_memory),
    sub("panic", 2, usize::MAX, crash::panic),
    replacing("populate", 3, 5, keys::populate),
    sub("pause-after-fork", 3, 3, replication::pause_after_fork),
    sub("pause-cron", 3, 3, pause_cron),
    sub("protect-client", 3, 3, protect_client),
    sub("protocol", 3, 3, protocol::reply),
    global("quicklist-packed-threshold", 3, 3, values::packed_threshold),
    replacing("reload", 2, usize::MAX, reload::reload),
    sub("replicate", 3, usize::MAX, replication::replicate),
    sub("replybuffer", 4, 4, reply_buffer),
    global("restart", 2, 3, crash::restart),
    global("sdslen", 3, 3, values::lengths),
    sub("segfault", 2, usize::MAX, crash::segmentation_fault),
    sub("set-active-expire", 3, 3, set_active_expire),
    sub("set-disable-deny-scripts", 3, 3, set_disable_deny_scripts),
    sub("set-skip-checksum-validation", 3, 3, set_skip_checksums),
    // The whole server sleeps, not only one worker.
    global("sleep", 3, 3, sleep),
    sub("slotmigration", 4, 4, replication::slot_migration),
];

fn find(args: Args<'_>) -> Option<&'static Subcommand> {
    let name = args.get(1)?;
    let is_named = |known: &&Subcommand| known.name.as_bytes().eq_ignore_ascii_case(name);
    SUBCOMMANDS.iter().find(is_named).filter(|known| (known.args_min..=known.args_max).contains(&args.len()))
}

fn needs_global_lock(args: Args<'_>) -> bool {
    find(args).is_some_and(|subcommand| subcommand.global)
}

fn debug(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    match find(args) {
        // The loading thread uses the data exclusively, but this command may read it.
        Some(subcommand) if subcommand.replaces && cx.server.admission.has(Reasons::LOADING) => {
            Err(Rejection::Loading.error(cx.server))
        }
        Some(subcommand) => (subcommand.run)(cx, args),
        None => Err(Error::bad_subcommand("DEBUG", args.get(1).unwrap_or_default())),
    }
}

fn sleep(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let seconds = parse_double(&args[2]).unwrap_or(0.0);
    std::thread::sleep(Duration::try_from_secs_f64(seconds).unwrap_or_default());
    cx.reply.ok();
    Ok(())
}

fn set_active_expire(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.server.active_expire.store(&args[2] != b"0", Ordering::Relaxed);
    cx.reply.ok();
    Ok(())
}

/// Makes TLS sockets accept no bytes, or restores them.
fn clog_tls(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let on = match &args[2] {
        b"0" => false,
        b"1" => true,
        _ => return Err(Error::text("ERR Value must be 0 or 1")),
    };
    tls::stream::fail_writes(on);
    if !on {
        cx.server.send_all(|| Message::RetryWrites);
    }
    cx.reply.ok();
    Ok(())
}

/// Lets scripts call commands that are denied in scripts.
fn set_disable_deny_scripts(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.server.scripting.may_call_all.store(&args[2] != b"0", Ordering::Relaxed);
    cx.reply.ok();
    Ok(())
}

fn set_skip_checksums(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    kvick_commands::dump::skip_checksums(&args[2] != b"0");
    cx.reply.ok();
    Ok(())
}

fn pause_cron(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.server.timers_stopped.store(&args[2] != b"0", Ordering::Relaxed);
    cx.reply.ok();
    Ok(())
}

/// Puts all replies into block lists before they are written, so that the limits count the blocks.
fn set_reply_list(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    output::set_reply_list(cx.server, &args[2] != b"0");
    cx.reply.ok();
    Ok(())
}

fn protect_client(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let id = parse_i64(&args[2]).and_then(|id| u64::try_from(id).ok()).ok_or(Error::text("ERR Invalid client id"))?;
    let client = cx.server.clients.get(id).ok_or(Error::text("ERR No such client"))?;
    client.protected.store(true, Ordering::Relaxed);
    cx.reply.ok();
    Ok(())
}

/// Connections have no reply buffers to resize, so this has no effect.
fn reply_buffer(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let known = ["peak-reset-time", "resizing"].iter().any(|known| known.as_bytes().eq_ignore_ascii_case(&args[2]));
    if !known {
        return Err(Error::bad_subcommand("DEBUG", &args[2]));
    }
    cx.reply.ok();
    Ok(())
}

/// Replies with an error that does not count in the server's statistics.
fn error(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let plain = |byte: &u8| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte };
    let text: Vec<u8> = args[2].iter().map(plain).collect();
    cx.reply.error(text);
    Ok(())
}

fn log(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    logging::warning(format_args!("DEBUG LOG: {}", String::from_utf8_lossy(&args[2])));
    cx.reply.ok();
    Ok(())
}

fn rewrite_all(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    rewrite_file(cx.server(), Add::All)?;
    cx.reply.ok();
    Ok(())
}

fn debug_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    const LINES: &[&str] = &[
        "AOF-FLUSH-SLEEP <microseconds>",
        "    Sleep before each write to the append-only file.",
        "ASSERT",
        "    Crash with a failed assertion.",
        "CHANGE-REPL-ID",
        "    Change the replication ID, so that no replica can resync partially.",
        "CLIENT-ENFORCE-REPLY-LIST <0|1>",
        "    Store all replies in lists of blocks, which count towards the output buffer limits.",
        "CONFIG-REWRITE-FORCE-ALL",
        "    Like CONFIG REWRITE, but write settings at their defaults too.",
        "CRASH-AND-RECOVER [<milliseconds>]",
        "    Starts the program again after this time, without a shutdown.",
        "DELAY-RDB-CLIENT-FREE-SECONDS <seconds>",
        "    How long to keep the log for a replica that received its dump on another connection.",
        "DIGEST",
        "    Show a checksum of all data.",
        "DIGEST-VALUE <key> [<key> ...]",
        "    Show a checksum of the value of each <key>.",
        "ERROR <string>",
        "    Reply with the error <string>.",
        "FORCE-TLS-WRITE-ERROR <0|1>",
        "    Make TLS connections behave as if their sockets accepted no bytes.",
        "LOADAOF",
        "    Flush the append-only file, drop the data set and load it from the file.",
        "LOG <message>",
        "    Write <message> to the log.",
        "HTSTATS <dbid> [full]",
        "    Show how full the tables of a database are.",
        "HTSTATS-KEY <key> [full]",
        "    Show how full the table of the value at <key> is.",
        "LISTPACK <key>",
        "    Print the elements of the listpack at <key> on the server's standard output.",
        "MALLCTL <name>",
        "    Read a numeric control of the allocator.",
        "MALLCTL-STR <name>",
        "    Read a string control of the allocator.",
        "OBJECT <key> [fast]",
        "    Show how <key> is stored. With <fast>, omit fields that are slow to compute.",
        "OOM",
        "    Crash with an out-of-memory error.",
        "PANIC",
        "    Crash with a panic.",
        "POPULATE <count> [<prefix>] [<size>]",
        "    Create <count> strings of <size> bytes, named <prefix> (default: key), a colon",
        "    and a number. Existing keys are kept.",
        "PAUSE-AFTER-FORK <0|1>",
        "    Stop the process with SIGSTOP during full synchronizations.",
        "PAUSE-CRON <0|1>",
        "    Pause periodic work.",
        "PROTECT-CLIENT <id>",
        "    Keep a client listed after its connection is closed.",
        "PROTOCOL <type>",
        "    Reply with a value of <type>: string, integer, double, bignum, null, array, set,",
        "    map, attrib, push, verbatim, true or false.",
        "QUICKLIST-PACKED-THRESHOLD <size>",
        "    Minimum size in bytes of list elements that are stored outside of listpacks; 0 restores",
        "    the default limits.",
        "RELOAD [MERGE] [NOFLUSH] [NOSAVE]",
        "    Save the data set and load it again. With NOSAVE, load the existing file. With",
        "    NOFLUSH, keep the data; with MERGE, keys of the file replace existing ones.",
        "REPLICATE <command> [<arg> ...]",
        "    Send a command to the replicas, whether or not it exists.",
        "REPLYBUFFER <PEAK-RESET-TIME|RESIZING> <value>",
        "    No effect: connections have no fixed reply buffers.",
        "RESTART [<milliseconds>]",
        "    Shuts down, and starts the program again after this time.",
        "SDSLEN <key>",
        "    Show the length and the allocation of the string at <key>.",
        "SEGFAULT",
        "    Crash with an invalid memory access.",
        "SET-ACTIVE-EXPIRE <0|1>",
        "    Whether to delete expired keys actively.",
        "SET-SKIP-CHECKSUM-VALIDATION <0|1>",
        "    Whether to skip the checksums of dumps and payloads.",
        "SLOTMIGRATION PREVENT-PAUSE|PREVENT-FAILOVER <0|1>",
        "    Hold slot migrations before writes pause, or before the target takes over.",
        "SLEEP <seconds>",
        "    Stop the server for this time. Decimals are allowed.",
    ];
    help::reply(cx, "DEBUG", LINES);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::OwnedArgs;

    #[test]
    fn a_subcommand_is_found_by_name_and_arity() {
        let found = |args: &[&str]| {
            let owned = OwnedArgs::new(args.iter().map(|arg| arg.as_bytes()));
            find(owned.args()).map(|subcommand| (subcommand.name, needs_global_lock(owned.args())))
        };
        assert_eq!(found(&["debug", "SLEEP", "0"]), Some(("sleep", true)));
        assert_eq!(found(&["debug", "protocol", "map"]), Some(("protocol", false)));
        assert_eq!(found(&["debug", "sleep"]), None);
        assert_eq!(found(&["debug", "nosuch"]), None);
    }
}
