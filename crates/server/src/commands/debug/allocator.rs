//! DEBUG MALLCTL and MALLCTL-STR: the allocator's own controls, to be read.

use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;

/// DEBUG MALLCTL name: a control that is a number.
pub fn number(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let number = kvick_runtime::memory::control_number(&args[2]).ok_or(UNKNOWN)?;
    cx.reply.int(number);
    Ok(())
}

/// DEBUG MALLCTL-STR name: a control that is a text.
pub fn text(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let text = kvick_runtime::memory::control_text(&args[2]).ok_or(UNKNOWN)?;
    cx.reply.bulk(&text);
    Ok(())
}

const UNKNOWN: Error = Error::text("ERR No such control, or none that is to be read in this way");
