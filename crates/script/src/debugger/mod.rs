//! The debugger: runs a script line by line for a user at a [`Console`](console::Console).
//!
//! A [`Debugger`](session::Debugger) is one [`session`]: the source of the script, the breakpoints, and the pending
//! messages. While a script runs in the session, Lua's hook calls [`at_line`] before every line. If the session stops
//! there, it runs the [`commands`] that the console sends until one of them continues the script. [`show`] formats
//! values as text, [`show_reply`] replies.
//!
//! Messages are collected and sent when the session stops, after each command, and at the end of the script, each time
//! as one array of simple strings, which is the format that debugging clients read.
//!
//! **Invariants**: the code that runs a script owns its session. Lua functions borrow the session only briefly, since
//! code that a debugger command evaluates may access it again. In [`at_line`] and below, no value with a destructor is
//! held while Lua may fail.

mod commands;
pub(crate) mod console;
pub(crate) mod session;
mod show;
mod show_reply;
#[cfg(test)]
pub(crate) mod tests;

use crate::lua::{Lua, Raise};
use crate::run;
use commands::Outcome;
use console::Received;
use session::{Read, SCRIPT, SHOWN_MAX};

/// Called by the hook before each line.
pub(crate) fn at_line(lua: Lua<'_>, line: i32) -> Result<(), Raise> {
    let Some(debugger) = lua.debugger() else { return Ok(()) };
    if lua.place(0).is_none_or(|place| place.source != SCRIPT) {
        return Ok(());
    }
    debugger.line = line;
    let Some(reason) = debugger.reason_to_stop() else { return Ok(()) };
    debugger.step = false;
    debugger.break_next = false;
    debugger.add_message(format!("* Stopped at {line}, stop reason = {reason}"));
    debugger.add_source_line(line);
    send_messages(lua);
    command_loop(lua)
}

/// Runs commands until one continues the script.
fn command_loop(lua: Lua<'_>) -> Result<(), Raise> {
    loop {
        match read_command(lua) {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(text) => {
                lua.state().ending = Some(text);
                return run::check_interrupt(lua);
            }
        }
        match commands::run(lua) {
            Outcome::Told => {
                send_messages(lua);
                if lua.state().ending.is_some() {
                    return run::check_interrupt(lua);
                }
            }
            Outcome::GoOn => return Ok(()),
            Outcome::Abort => {
                lua.state().ending = Some("ERR script aborted for user request".to_string());
                return run::check_interrupt(lua);
            }
        }
    }
}

/// Waits for a command; returns false if the user has disconnected.
///
/// # Errors
///
/// The error with which the script must end.
fn read_command(lua: Lua<'_>) -> Result<bool, String> {
    let Some(debugger) = lua.debugger() else { return Ok(false) };
    loop {
        if !debugger.input.bytes.is_empty() {
            match debugger.input.next() {
                Read::Command => return Ok(true),
                Read::Incomplete => {}
                Read::Broken => return Err("ERR protocol error".to_string()),
            }
        }
        let console = lua.state().host().and_then(|host| host.console());
        match console.map_or(Received::Disconnected, |console| console.receive(&mut debugger.input.bytes)) {
            Received::Input => {}
            Received::Disconnected => {
                debugger.detach();
                return Ok(false);
            }
            Received::End(text) => return Err(text),
        }
    }
}

/// Sends the pending messages.
fn send_messages(lua: Lua<'_>) {
    if let Some(debugger) = lua.debugger()
        && let Some(console) = lua.state().host().and_then(|host| host.console())
    {
        console.send(debugger.take_messages());
    }
}

/// `redis.debug(...)`: adds a message with its arguments.
pub(crate) fn debug(lua: Lua<'_>) {
    let Some(debugger) = lua.debugger() else { return };
    let line = debugger.line;
    debugger.begin_text(format_args!("<debug> line {line}: "));
    for n in 1..=lua.top() {
        if n > 1 {
            debugger.text.extend_from_slice(b", ");
        }
        show::value(lua, n, SHOWN_MAX, &mut debugger.text);
    }
    let message = std::mem::take(&mut debugger.text);
    debugger.add_message(message);
}
