//! Checks of function arguments, with the error texts of Lua's own functions.

use std::fmt;

use crate::lua::{Lua, Raise, Type};

/// The error for argument `n`.
#[cold]
pub(crate) fn error(lua: Lua<'_>, n: i32, wrong: fmt::Arguments<'_>) -> Raise {
    let Some(place) = lua.place(0) else {
        return lua.error(format_args!("bad argument #{n} ({wrong})"));
    };
    let name = place.name.map_or("?".into(), String::from_utf8_lossy);
    match (n, place.method) {
        (1, true) => lua.error(format_args!("calling '{name}' on bad self ({wrong})")),
        (n, method) => lua.error(format_args!("bad argument #{} to '{name}' ({wrong})", n - i32::from(method))),
    }
}

/// The error if argument `n` has the wrong type.
#[cold]
pub(crate) fn type_error(lua: Lua<'_>, n: i32, expected: &str) -> Raise {
    error(lua, n, format_args!("{expected} expected, got {}", lua.type_name(n)))
}

/// Requires argument `n`.
pub(crate) fn any(lua: Lua<'_>, n: i32) -> Result<(), Raise> {
    if lua.kind(n) == Type::None { Err(error(lua, n, format_args!("value expected"))) } else { Ok(()) }
}

/// Requires argument `n` to be a table.
pub(crate) fn table(lua: Lua<'_>, n: i32) -> Result<(), Raise> {
    if lua.kind(n) == Type::Table { Ok(()) } else { Err(type_error(lua, n, "table")) }
}

/// Requires argument `n` to be a function.
pub(crate) fn function(lua: Lua<'_>, n: i32) -> Result<(), Raise> {
    if lua.kind(n) == Type::Function { Ok(()) } else { Err(type_error(lua, n, "function")) }
}

/// Requires argument `n` to be a string, or a number, which is converted to one.
pub(crate) fn bytes(lua: Lua<'_>, n: i32) -> Result<&[u8], Raise> {
    lua.bytes(n).ok_or_else(|| type_error(lua, n, "string"))
}

/// Requires argument `n` to be a number, or a string that is one.
pub(crate) fn number(lua: Lua<'_>, n: i32) -> Result<f64, Raise> {
    let number = lua.number(n);
    if number == 0.0 && !lua.is_number(n) { Err(type_error(lua, n, "number")) } else { Ok(number) }
}

/// Requires argument `n` to be a number; truncates it to an integer.
pub(crate) fn integer(lua: Lua<'_>, n: i32) -> Result<i64, Raise> {
    number(lua, n).map(truncate)
}

/// Requires argument `n` to be a number unless it is absent or nil.
pub(crate) fn optional_integer(lua: Lua<'_>, n: i32) -> Result<Option<i64>, Raise> {
    if matches!(lua.kind(n), Type::None | Type::Nil) { Ok(None) } else { integer(lua, n).map(Some) }
}

/// Truncates a number to an integer; the result is the minimum if the number is out of range, as on x86-64.
pub(crate) fn truncate(n: f64) -> i64 {
    let fits = (i64::MIN as f64..-(i64::MIN as f64)).contains(&n);
    if fits { n as i64 } else { i64::MIN }
}
