//! CONFIG: reads and changes settings at run time, and writes them back to their file.

mod apply;

use super::help;
use crate::server::HasServer;
use crate::server::Server;
use kvick_acl as acl;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, LockRule, Spec};
use kvick_config::rewrite::{Add, Extras, rewrite};
use kvick_config::{Caller, ConfigError, Directive, Refusal, directive, tables};
use kvick_core::admission::Reasons;
use kvick_durability::aof;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;
use kvick_runtime::logging;

/// The family.
pub static COMMANDS: &[Command<SessionHandler>] = &[CONFIG];

const ADMIN: &[Flags] = &[Flags::ADMIN, Flags::NOSCRIPT, Flags::LOADING, Flags::STALE];
const TIPS: &[&str] = &["request_policy:all_nodes", "response_policy:all_succeeded"];

/// CONFIG
pub const CONFIG: Command<SessionHandler> = Command::container(
    Spec::new("config", -2).doc(
        Group::Server,
        "2.0.0",
        "Depends on subcommand.",
        "A container for server configuration commands.",
    ),
    &[
        Command::new(
            Spec::new("get", -3)
                .flags(ADMIN)
                .doc(
                    Group::Server,
                    "2.0.0",
                    "O(N) when N is the number of configuration parameters provided",
                    "Returns the values of configuration parameters.",
                )
                .history(&[("7.0.0", "Several patterns can be given at once.")])
                .args(&[Arg::string("parameter").multiple()]),
            get,
        ),
        Command::new(
            Spec::new("set", -4)
                .flags(ADMIN)
                .doc(
                    Group::Server,
                    "2.0.0",
                    "O(N) when N is the number of configuration parameters provided",
                    "Sets configuration parameters.",
                )
                .history(&[("7.0.0", "Several settings can be changed at once.")])
                .tips(TIPS)
                // The append-only file is enabled between other commands.
                .lock(LockRule::GlobalIf(needs_global_lock))
                .args(&[Arg::block("data", &[Arg::string("parameter"), Arg::string("value")]).multiple()]),
            set,
        ),
        Command::new(
            Spec::new("resetstat", 2)
                .flags(ADMIN)
                .lock(LockRule::Global)
                .doc(Group::Server, "2.0.0", "O(1)", "Resets the server statistics.")
                .tips(TIPS),
            resetstat,
        ),
        Command::new(
            Spec::new("rewrite", 2)
                .flags(ADMIN)
                .doc(Group::Server, "2.8.0", "O(1)", "Writes the current configuration to the configuration file.")
                .tips(TIPS),
            config_rewrite,
        ),
        Command::new(
            Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).doc(
                Group::Server,
                "5.0.0",
                "O(1)",
                "Returns help about the subcommands.",
            ),
            config_help,
        ),
    ],
);

fn get(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let found = cx.server.config.match_names(args.slice_from(2).iter());
    cx.reply.map(found.len());
    for (name, value) in found {
        cx.reply.bulk(&name);
        cx.reply.bulk(&value);
    }
    Ok(())
}

fn sets_appendonly(args: Args<'_>) -> bool {
    sets(args, b"appendonly")
}

/// The append-only file is enabled, and what a node announces changes, between other commands.
fn needs_global_lock(args: Args<'_>) -> bool {
    sets_appendonly(args) || sets_cluster(args)
}

/// Whether CONFIG SET changes what the state machine of the cluster knows.
fn sets_cluster(args: Args<'_>) -> bool {
    const OTHERS: [&[u8]; 7] = [
        b"port",
        b"tls-port",
        b"tls-cluster",
        b"tls-replication",
        b"availability-zone",
        b"loglevel",
        b"repl-ping-replica-period",
    ];
    let is_cluster = |name: &[u8]| name.get(..8).is_some_and(|start| start.eq_ignore_ascii_case(b"cluster-"));
    let names = args.slice_from(2);
    names.iter().step_by(2).any(|name| is_cluster(name) || OTHERS.iter().any(|other| name.eq_ignore_ascii_case(other)))
}

/// Whether CONFIG SET changes this setting.
fn sets(args: Args<'_>, name: &[u8]) -> bool {
    args.slice_from(2).iter().step_by(2).any(|given| given.eq_ignore_ascii_case(name))
}

fn set(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    if !args.len().is_multiple_of(2) {
        return Err(Error::SYNTAX);
    }
    let pairs: Vec<(&[u8], &[u8])> = (2..args.len()).step_by(2).map(|at| (&args[at], &args[at + 1])).collect();
    for (number, (name, _)) in pairs.iter().enumerate() {
        let is_secret = |directive: &Directive| directive.flags.contains(directive::Flags::SENSITIVE);
        if tables::find(name).is_some_and(|found| is_secret(found.id.directive())) {
            cx.client.redact(2 + number * 2 + 1);
        }
    }
    let server = cx.server;
    let is_loading = server.admission.has(Reasons::LOADING | Reasons::ASYNC_LOADING);
    let caller = Caller { is_local: cx.client.is_local(), is_loading };
    let mut apply = |id, values: &_| apply::apply(Server::of(server), id, values);
    match server.config.set_many(caller, &pairs, &mut apply) {
        Ok(_) => {
            if sets(args, b"aof-disable-auto-gc") {
                aof::delete_history(server);
            }
            if sets_appendonly(args) {
                aof::switch::apply_setting(server, cx.locked, cx.in_transaction);
            }
            if let Some(cluster) = cx.server().cluster().filter(|_| sets_cluster(args)) {
                cluster.reconfigure(cx.locked);
            }
            cx.reply.ok();
            Ok(())
        }
        Err(ConfigError::Loading) => Err(Error::new(format!("LOADING {}", ConfigError::Loading))),
        Err(error) => Err(Error::quoting(&[b"ERR ", &error.text()])),
    }
}

fn resetstat(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.server().reset_stats();
    cx.reply.ok();
    Ok(())
}

fn config_rewrite(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    rewrite_file(cx.server(), Add::Changed)?;
    cx.reply.ok();
    Ok(())
}

/// Writes the settings back to the configuration file.
pub fn rewrite_file(server: &Server, add: Add) -> Result<(), Error> {
    let Some(file) = &server.config_file else {
        return Err(Error::text("ERR The server is running without a config file"));
    };
    // Users are not written there if they have an ACL file.
    let in_acl_file = acl::file::path(server).is_some();
    let users = if in_acl_file { Vec::new() } else { server.acl.all() };
    let users: Vec<Vec<u8>> = users.iter().map(|user| user.line()).collect();
    let extras = Extras { users: Some(&users), ..Extras::default() };
    match rewrite(file, &server.config.values(), extras, add) {
        Ok(()) => {
            logging::notice(format_args!("CONFIG REWRITE executed with success."));
            Ok(())
        }
        Err(error) => {
            let reason = Refusal::from(error);
            logging::warning(format_args!("CONFIG REWRITE failed: {reason}"));
            Err(Error::new(format!("ERR Rewriting config file: {reason}")))
        }
    }
}

fn config_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    const LINES: &[&str] = &[
        "GET <pattern>",
        "    Return the parameters that match <pattern>, with their values.",
        "SET <directive> <value>",
        "    Set the parameter <directive> to <value>.",
        "RESETSTAT",
        "    Reset the statistics of INFO.",
        "REWRITE",
        "    Write the configuration to the configuration file.",
    ];
    help::reply(cx, "CONFIG", LINES);
    Ok(())
}
