//! DEBUG LOADAOF and AOF-FLUSH-SLEEP: the append-only file.

use kvick_commands::context::Error;
use kvick_core::admission::Reasons;
use kvick_durability::aof;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::{Kind, Waiter};
use std::sync::atomic::Ordering;

/// DEBUG LOADAOF: reloads the data set from the files. Meanwhile other clients are refused because it is being loaded.
pub fn load(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    if cx.in_transaction {
        return Err(Error::text("ERR DEBUG LOADAOF is not possible within a transaction"));
    }
    let server = cx.server;
    // Write errors have been logged. Between two histories the files belong to the old one.
    if !aof::flush(server) || server.aof.status().state == aof::State::WaitRewrite {
        return Err(Error::text("ERR The append-only file does not hold all of the data now"));
    }
    // The files contain the function libraries too.
    server.scripting.flush_libraries(false)?;
    server.admission.set(Reasons::LOADING, true);
    (0..server.keyspace.databases()).for_each(|number| _ = cx.locked.flush(number, false));
    // The client waits for no key: the thread that owns the append-only file ends the wait.
    let waiter = Waiter::new(Kind::String, false, 0, Box::new(()));
    let (client, ticket, version) = (cx.client.info.clone(), waiter.ticket(), cx.client.version);
    aof::request_reload(server, aof::Reload { client, ticket, version });
    *cx.waits = Some(waiter);
    Ok(())
}

/// DEBUG AOF-FLUSH-SLEEP microseconds: a delay before each write.
pub fn flush_sleep(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let us = parse_i64(&args[2]).and_then(|us| u64::try_from(us).ok()).ok_or(Error::NOT_INTEGER)?;
    cx.server.aof.flush_sleep_us.store(us, Ordering::Relaxed);
    cx.reply.ok();
    Ok(())
}
