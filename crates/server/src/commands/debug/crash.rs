//! Deliberate crashes, for tests.

use crate::commands::config::rewrite_file;
use crate::process::shutdown;
use crate::server::HasServer;
use kvick_commands::context::Error;
use kvick_config::rewrite::Add;
use kvick_config::words::ShutdownFlags;
use kvick_engine::session::{Fate, Session};
use kvick_process::restart;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use std::alloc::{Layout, handle_alloc_error};
use std::time::Duration;

/// A failed assertion.
pub fn assertion(_: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    assert!(args.is_empty(), "assertion failed by DEBUG ASSERT");
    Ok(())
}

fn delay(args: Args<'_>) -> Result<Duration, Error> {
    let ms = args.get(2).map_or(Some(0), parse_i64).and_then(|ms| u64::try_from(ms).ok()).ok_or(Error::NOT_INTEGER)?;
    Ok(Duration::from_millis(ms))
}

/// `DEBUG RESTART [milliseconds]`: rewrites the configuration file, shuts down without waiting for replicas, and starts
/// again after this time.
pub fn restart(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    const FAILED: Error = Error::text("ERR failed to restart the server. Check server logs.");
    let (delay, server) = (delay(args)?, cx.server());
    if server.config_file.is_some() && rewrite_file(server, Add::Changed).is_err() {
        return Err(FAILED);
    }
    let begun = shutdown::begin(cx.server(), cx.locked, ShutdownFlags::NOW, Some(&cx.client.info));
    begun.map_err(|shutdown::Refused| FAILED)?;
    restart::request(delay);
    cx.client.fate = Fate::Close;
    Ok(())
}

/// `DEBUG CRASH-AND-RECOVER [milliseconds]`: starts again after this time, without a shutdown.
pub fn crash_and_recover(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let delay = delay(args)?;
    restart::restart(&cx.server().executable, delay)
}

/// A panic.
pub fn panic(_: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    panic!("DEBUG PANIC called at Unix time {}", kvick_runtime::clock::unix_ms() / 1000);
}

/// An allocation that fails.
pub fn out_of_memory(_: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let everything = Layout::array::<u8>(isize::MAX as usize);
    handle_alloc_error(everything.unwrap_or(Layout::new::<u8>()))
}

/// A segmentation fault.
pub fn segmentation_fault(_: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    // SAFETY: the call sends the calling thread a signal and touches no memory of ours.
    unsafe { libc::raise(libc::SIGSEGV) };
    Ok(())
}
