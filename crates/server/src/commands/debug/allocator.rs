//! DEBUG MALLCTL and MALLCTL-STR: read the allocator's controls.

use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;

/// DEBUG MALLCTL name: reads a numeric control.
pub fn number(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let number = kvick_runtime::memory::control_number(&args[2]).ok_or(UNKNOWN)?;
    cx.reply.int(number);
    Ok(())
}

/// DEBUG MALLCTL-STR name: reads a text control.
pub fn text(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let text = kvick_runtime::memory::control_text(&args[2]).ok_or(UNKNOWN)?;
    cx.reply.bulk(&text);
    Ok(())
}

const UNKNOWN: Error = Error::text("ERR No such control, or none that is to be read in this way");
