//! Functions that run commands: `call`, `pcall` and `acl_check_cmd`.

use kvick_resp::format::{format_double, format_i64};

use crate::convert::{push_error, push_reply};
use crate::lua::{Lua, Raise, Results, Type};

/// Whole numbers up to this magnitude are formatted as integers.
const INTEGER_MAX: f64 = (i64::MAX / 2) as f64;

/// Adds the functions to the table on the top of the stack.
pub(super) fn install(lua: Lua<'_>) {
    lua.add_function("call", call);
    lua.add_function("pcall", pcall);
    lua.add_function("acl_check_cmd", acl_check_cmd);
}

/// `call(command, ...)`: raises errors.
fn call(lua: Lua<'_>) -> Results {
    if run(lua)? { Err(Raise) } else { Ok(1) }
}

/// `pcall(command, ...)`: returns errors.
fn pcall(lua: Lua<'_>) -> Results {
    match run(lua) {
        Ok(_) | Err(Raise) => Ok(1),
    }
}

/// Runs the command in the arguments and pushes its reply; returns whether the reply is an error.
fn run(lua: Lua<'_>) -> Result<bool, Raise> {
    take_request(lua)?;
    let state = lua.state();
    state.call_host();
    lua.set_top(0);
    push_reply(lua, &state.reply)
}

/// `acl_check_cmd(command, ...)`: whether the user may run the command.
fn acl_check_cmd(lua: Lua<'_>) -> Results {
    take_request(lua)?;
    match lua.state().check_permission() {
        Some(permitted) => {
            lua.push_boolean(permitted);
            Ok(1)
        }
        None => {
            push_error(lua, b"ERR Invalid command passed to server.acl_check_cmd()");
            Err(Raise)
        }
    }
}

/// Stores the arguments as the request of the state. They remain on the stack.
fn take_request(lua: Lua<'_>) -> Result<(), Raise> {
    let top = lua.top();
    if top == 0 {
        push_error(lua, b"ERR Please specify at least one argument for this call");
        return Err(Raise);
    }
    let request = &mut lua.state().request;
    request.clear();
    for n in 1..=top {
        match lua.kind(n) {
            Type::String => request.push_bytes(lua.bytes(n).unwrap_or_default()),
            // Lua would format numbers with fewer digits.
            Type::Number => request.push_with(|out| write_number(lua.number(n), out)),
            _ => {
                push_error(lua, b"ERR Command arguments must be strings or integers");
                return Err(Raise);
            }
        }
    }
    Ok(())
}

/// Formats a number as an argument: with all digits, and without an exponent if it is whole and not too large.
fn write_number(n: f64, out: &mut Vec<u8>) {
    if n.abs() <= INTEGER_MAX && n as i64 as f64 == n {
        format_i64(n as i64, out);
    } else {
        format_double(n, out);
    }
}
