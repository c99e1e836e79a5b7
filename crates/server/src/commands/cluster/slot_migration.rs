//! Subcommands of atomic slot migration: MIGRATESLOTS, CANCELSLOTMIGRATIONS, GETSLOTMIGRATIONS, SYNCSLOTS.

use super::node;
use kvick_cluster::migration::{CommandError, Job, JobName, Jobs, Message};
use kvick_commands::context::Error;
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use kvick_core::clients::ClientFlags;
use kvick_engine::session::{ReplyMode, Session};
use kvick_replication::history::random_id;
use kvick_resp::{Args, Reply};

const DISABLED: Error = Error::text("ERR This instance has cluster support disabled");

/// CLUSTER MIGRATESLOTS
pub fn migrate(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    node(cx)?;
    let (words, client) = (words(args, 2), who(cx));
    let new_name = || JobName::new(random_id().as_bytes()).unwrap_or_else(|| JobName::from_random([0; 20]));
    let migration = &cx.server.slot_migration;
    refuse(migration.with(cx.server, |jobs, context| jobs.migrate(&words, &client, new_name, context)))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER CANCELSLOTMIGRATIONS
pub fn cancel(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    node(cx)?;
    let client = who(cx);
    refuse(cx.server.slot_migration.with(cx.server, |jobs, context| jobs.cancel(&client, context)))?;
    cx.reply.ok();
    Ok(())
}

/// CLUSTER GETSLOTMIGRATIONS
pub fn list(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    node(cx)?;
    let reply = &mut cx.reply;
    cx.server.slot_migration.view(|jobs| {
        reply.array(jobs.iter().count());
        jobs.iter().for_each(|job| describe(reply, job));
    });
    Ok(())
}

fn describe(reply: &mut Reply<'_>, job: &Job) {
    reply.map(if job.is_tracking_only() { 10 } else { 12 });
    let mut text = |name: &str, value: &[u8]| {
        reply.bulk(name.as_bytes());
        reply.bulk(value);
    };
    text("name", job.name().as_bytes());
    text("operation", job.direction().as_str().as_bytes());
    text("slot_ranges", job.ranges().to_string().as_bytes());
    if !job.is_tracking_only() {
        text("target_node", job.target().as_ref().map_or(&[], |id| &id.as_bytes()[..]));
        text("source_node", job.source().as_ref().map_or(&[], |id| &id.as_bytes()[..]));
    }
    let times = [
        ("create_time", job.created_s()),
        ("last_update_time", job.updated_s()),
        ("last_ack_time", job.acknowledged_s()),
    ];
    for (name, time_s) in times {
        reply.bulk(name.as_bytes());
        reply.uint(time_s);
    }
    reply.bulk(b"state");
    reply.bulk(job.state().as_str().as_bytes());
    reply.bulk(b"message");
    reply.bulk(job.message().unwrap_or_default().as_bytes());
    // Nothing is copied on write.
    reply.bulk(b"cow_size");
    reply.uint(0);
    reply.bulk(b"remaining_repl_size");
    reply.uint(job.remaining_bytes());
}

/// CLUSTER SYNCSLOTS
pub fn synchronise(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    node(cx)?;
    let (name, words) = (&args[2], words(args, 3));
    if name.eq_ignore_ascii_case(b"establish") {
        return establish(cx, &words);
    }
    if name.eq_ignore_ascii_case(b"finish") {
        refuse(cx.server.slot_migration.with(cx.server, |jobs, context| jobs.finish_command(&words, context)))?;
        cx.effects.propagate_always();
        cx.reply.ok();
        return Ok(());
    }
    // Only primaries exchange the others.
    if cx.client.is_primary() {
        return Ok(());
    }
    let job = cx.server.slot_migration.import_of(cx.client.info.id);
    let Some(job) = job else { return Err(refusal(&Jobs::refuse_stray(name))) };
    cx.server.slot_migration.with(cx.server, |jobs, context| match Message::from_name(name) {
        Some(message) => jobs.received(job, message, context),
        None => jobs.received_unknown(job, context),
    });
    Ok(())
}

fn establish(cx: &mut Session<'_>, words: &[&[u8]]) -> Result<(), Error> {
    let client = &mut *cx.client;
    if client.is_slot_import() {
        return Err(Error::SYNTAX);
    }
    let is_stream = client.is_primary() || client.info.is_from_log();
    let source = (!is_stream).then_some(&client.info);
    refuse(cx.server.slot_migration.establish(cx.server, words, source))?;
    cx.effects.propagate_always();
    cx.reply.ok();
    if !is_stream {
        // The source is obeyed from now on, and gets no replies but this one.
        client.info.set_flags(ClientFlags::SLOT_IMPORT, true);
        client.reply_mode = ReplyMode::Off;
        client.answered_by_pushes = true;
    }
    Ok(())
}

fn refuse<T>(result: Option<Result<T, CommandError>>) -> Result<T, Error> {
    result.ok_or(DISABLED)?.map_err(|error| refusal(&error))
}

fn refusal(error: &CommandError) -> Error {
    Error::new(format!("ERR {error}"))
}

fn words(args: Args<'_>, first: usize) -> Vec<&[u8]> {
    args.iter().skip(first).collect()
}

/// The client as the log shows it.
fn who(cx: &Session<'_>) -> String {
    cx.client.info.described(cx.server.config.read(HIDE_USER_DATA_FROM_LOG))
}
