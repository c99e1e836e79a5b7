//! Deliberate crashes, for tests.

use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;
use std::alloc::{Layout, handle_alloc_error};

/// A failed assertion.
pub fn assertion(_: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    assert!(args.is_empty(), "assertion failed by DEBUG ASSERT");
    Ok(())
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
