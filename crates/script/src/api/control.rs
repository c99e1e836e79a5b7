//! Functions other than commands: log, digests, custom replies, protocol version, propagation.

use std::ops::ControlFlow;

use sha1::{Digest, Sha1};

use kvick_resp::Version;

use crate::convert::{push_error, push_error_text};
use crate::debugger;
use crate::libs::check;
use crate::lua::{Lua, Raise, Results, Type};
use crate::{LogLevel, Propagation};

const REPL_AOF: u32 = 1;
const REPL_REPLICA: u32 = 2;

/// Adds the functions to the table on the top of the stack.
pub(super) fn install(lua: Lua<'_>) {
    lua.add_function("setresp", set_resp);
    lua.add_function("sha1hex", sha1_hex);
    lua.add_function("error_reply", error_reply);
    lua.add_function("status_reply", status_reply);
    lua.add_function("set_repl", set_repl);
    let constants = [
        ("REPL_NONE", 0),
        ("REPL_AOF", REPL_AOF),
        ("REPL_SLAVE", REPL_REPLICA),
        ("REPL_REPLICA", REPL_REPLICA),
        ("REPL_ALL", REPL_AOF | REPL_REPLICA),
    ];
    for (name, value) in constants {
        lua.push_number(f64::from(value));
        lua.raw_set_field(-2, name);
    }
}

/// Adds the functions that only scripts have. Without the debugger they do nothing.
pub(super) fn install_for_scripts(lua: Lua<'_>) {
    lua.add_function("breakpoint", |lua: Lua<'_>| {
        let debugger = lua.debugger();
        let is_debugged = debugger.is_some();
        if let Some(debugger) = debugger {
            debugger.break_at_next();
        }
        lua.push_boolean(is_debugged);
        Ok(1)
    });
    lua.add_function("debug", |lua: Lua<'_>| {
        debugger::debug(lua);
        Ok(0)
    });
    // The effects of commands are always propagated, so the call changes nothing.
    lua.add_function("replicate_commands", |lua: Lua<'_>| {
        lua.push_boolean(true);
        Ok(1)
    });
}

/// Fails with an error text.
#[cold]
fn fail(lua: Lua<'_>, text: &str) -> Results {
    push_error(lua, text.as_bytes());
    Err(Raise)
}

/// `log(level, text, ...)`.
pub(super) fn log(lua: Lua<'_>) -> Results {
    let top = lua.top();
    if top < 2 {
        return fail(lua, "ERR server.log() requires two arguments or more.");
    }
    if !lua.is_number(1) {
        return fail(lua, "ERR First argument must be a number (log level).");
    }
    let level = match check::truncate(lua.number(1)) {
        0 => LogLevel::Debug,
        1 => LogLevel::Verbose,
        2 => LogLevel::Notice,
        3 => LogLevel::Warning,
        _ => return fail(lua, "ERR Invalid log level."),
    };
    // The line is assembled on the stack from the string arguments.
    lua.push_bytes("");
    for n in 2..=top {
        if lua.is_string(n) {
            if n > 2 {
                lua.push_bytes(" ");
                lua.concat(2);
            }
            lua.push_value(n);
            lua.concat(2);
        }
    }
    let line = lua.bytes(-1).unwrap_or_default();
    if let Some(host) = lua.state().host() {
        host.log(level, line);
    }
    Ok(0)
}

/// `setresp(version)`: sets the protocol version of command replies and of the result.
fn set_resp(lua: Lua<'_>) -> Results {
    if lua.top() != 1 {
        return fail(lua, "ERR server.setresp() requires one argument.");
    }
    lua.state().version = match check::truncate(lua.number(1)) {
        2 => Version::Resp2,
        3 => Version::Resp3,
        _ => return fail(lua, "ERR RESP version must be 2 or 3."),
    };
    Ok(0)
}

/// `sha1hex(text)`.
fn sha1_hex(lua: Lua<'_>) -> Results {
    if lua.top() != 1 {
        return fail(lua, "ERR wrong number of arguments");
    }
    let digest = Sha1::digest(lua.bytes(1).unwrap_or_default());
    let mut digits = [0; 40];
    for (pair, byte) in digits.chunks_exact_mut(2).zip(digest) {
        pair.copy_from_slice(&[byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]));
    }
    lua.push_bytes(digits);
    Ok(1)
}

/// `error_reply(text)`.
fn error_reply(lua: Lua<'_>) -> Results {
    if let ControlFlow::Break(()) = check_text(lua) {
        return Ok(1);
    }
    let text = lua.bytes(1).unwrap_or_default();
    push_error_text(lua, text.strip_prefix(b"-").unwrap_or(text));
    Ok(1)
}

/// `status_reply(text)`.
fn status_reply(lua: Lua<'_>) -> Results {
    if let ControlFlow::Break(()) = check_text(lua) {
        return Ok(1);
    }
    lua.create_table(0, 1);
    lua.push_value(1);
    lua.raw_set_field(-2, "ok");
    Ok(1)
}

/// Unless the only argument is a string, pushes an error to return (not to raise).
fn check_text(lua: Lua<'_>) -> ControlFlow<()> {
    if lua.top() == 1 && lua.kind(1) == Type::String {
        return ControlFlow::Continue(());
    }
    push_error(lua, b"ERR wrong number or type of arguments");
    ControlFlow::Break(())
}

/// `set_repl(targets)`: sets where the effects of commands are propagated to.
fn set_repl(lua: Lua<'_>) -> Results {
    if lua.top() != 1 {
        return fail(lua, "ERR server.set_repl() requires one argument.");
    }
    let Some(targets) = u32::try_from(check::truncate(lua.number(1))).ok().filter(|targets| *targets <= 3) else {
        let text = "ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.";
        return fail(lua, text);
    };
    if let Some(host) = lua.state().host() {
        host.set_propagation(Propagation { aof: targets & REPL_AOF != 0, replicas: targets & REPL_REPLICA != 0 });
    }
    Ok(0)
}
