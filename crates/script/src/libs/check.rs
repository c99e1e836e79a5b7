//! Arguments of functions: what they must be, and the errors, worded as Lua's own functions word them.

use std::fmt;

use crate::lua::{Lua, Raise, Type};

/// Fails with what is wrong with argument `n`.
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

/// Fails because argument `n` is not of a type.
#[cold]
pub(crate) fn type_error(lua: Lua<'_>, n: i32, expected: &str) -> Raise {
    error(lua, n, format_args!("{expected} expected, got {}", lua.type_name(n)))
}

/// Argument `n` must be there.
pub(crate) fn any(lua: Lua<'_>, n: i32) -> Result<(), Raise> {
    if lua.kind(n) == Type::None { Err(error(lua, n, format_args!("value expected"))) } else { Ok(()) }
}

/// Argument `n` must be a table.
pub(crate) fn table(lua: Lua<'_>, n: i32) -> Result<(), Raise> {
    if lua.kind(n) == Type::Table { Ok(()) } else { Err(type_error(lua, n, "table")) }
}

/// Argument `n` must be a function.
pub(crate) fn function(lua: Lua<'_>, n: i32) -> Result<(), Raise> {
    if lua.kind(n) == Type::Function { Ok(()) } else { Err(type_error(lua, n, "function")) }
}

/// Argument `n` must be a string, or a number, which becomes one.
pub(crate) fn bytes(lua: Lua<'_>, n: i32) -> Result<&[u8], Raise> {
    lua.bytes(n).ok_or_else(|| type_error(lua, n, "string"))
}

/// Argument `n` must be a number, or a string that reads as one.
pub(crate) fn number(lua: Lua<'_>, n: i32) -> Result<f64, Raise> {
    let number = lua.number(n);
    if number == 0.0 && !lua.is_number(n) { Err(type_error(lua, n, "number")) } else { Ok(number) }
}

/// Argument `n` must be a number; what is after the point is dropped.
pub(crate) fn integer(lua: Lua<'_>, n: i32) -> Result<i64, Raise> {
    number(lua, n).map(truncate)
}

/// Argument `n`, if it is there and not nil, must be a number.
pub(crate) fn optional_integer(lua: Lua<'_>, n: i32) -> Result<Option<i64>, Raise> {
    if matches!(lua.kind(n), Type::None | Type::Nil) { Ok(None) } else { integer(lua, n).map(Some) }
}

/// The integer part of a number; the least integer if it is not in range, as processors have it.
pub(crate) fn truncate(n: f64) -> i64 {
    let fits = (i64::MIN as f64..-(i64::MIN as f64)).contains(&n);
    if fits { n as i64 } else { i64::MIN }
}
