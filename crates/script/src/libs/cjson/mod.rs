//! `cjson`: JSON, compatible with lua-cjson 2.1.0.
//!
//! [`encode`] writes and [`decode`] reads JSON. The functions in this module change the configuration: `cjson` and each
//! library created by `cjson.new` have their own.

mod decode;
mod encode;
pub(crate) mod number;
mod token;

use crate::libs::check;
use crate::lua::{Function, Lua, Raise, Results, Type, UPVALUE};

/// The configuration of a library.
#[derive(Clone, Copy)]
struct Config {
    /// Whether excessively sparse arrays are encoded as objects instead of causing an error.
    encode_sparse_convert: bool,
    /// Maximum ratio of the length of an array to its number of items; 0 for no limit.
    encode_sparse_ratio: i32,
    /// Length up to which sparse arrays are always allowed.
    encode_sparse_safe: i32,
    encode_max_depth: i32,
    /// Significant digits.
    encode_number_precision: i32,
    encode_invalid_numbers: InvalidNumbers,
    /// Only stored: a single buffer is used in any case.
    encode_keep_buffer: bool,
    decode_invalid_numbers: bool,
    decode_max_depth: i32,
}

/// The handling of numbers that JSON cannot represent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InvalidNumbers {
    /// An error.
    Off,
    /// Encoded by name.
    On,
    /// Encoded as null.
    Null,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            encode_sparse_convert: false,
            encode_sparse_ratio: 2,
            encode_sparse_safe: 10,
            encode_max_depth: 1000,
            encode_number_precision: 14,
            encode_invalid_numbers: InvalidNumbers::Off,
            encode_keep_buffer: true,
            decode_invalid_numbers: true,
            decode_max_depth: 1000,
        }
    }
}

/// Pushes the table of a library with its own configuration.
pub(super) fn install(lua: Lua<'_>) {
    lua.create_table(0, 13);
    lua.push_block(Config::default());
    add(lua, "encode", encode::encode);
    add(lua, "decode", decode::decode);
    add(lua, "encode_sparse_array", encode_sparse_array);
    add(lua, "encode_max_depth", encode_max_depth);
    add(lua, "decode_max_depth", decode_max_depth);
    add(lua, "encode_number_precision", encode_number_precision);
    add(lua, "encode_keep_buffer", encode_keep_buffer);
    add(lua, "encode_invalid_numbers", encode_invalid_numbers);
    add(lua, "decode_invalid_numbers", decode_invalid_numbers);
    lua.pop(1);
    lua.add_function("new", new);
    lua.push_null();
    lua.raw_set_field(-2, "null");
    for (name, text) in [("_NAME", "cjson"), ("_VERSION", "2.1.0")] {
        lua.push_bytes(text);
        lua.raw_set_field(-2, name);
    }
}

/// Adds a function to the table below the configuration on the top of the stack, with the configuration as its upvalue.
fn add<F: Function>(lua: Lua<'_>, name: &str, function: F) {
    lua.push_value(-1);
    lua.push_closure(function, 1);
    lua.raw_set_field(-3, name);
}

/// `new()`.
fn new(lua: Lua<'_>) -> Results {
    install(lua);
    Ok(1)
}

/// Changes the configuration by the arguments, at most `max`, and returns as many values, which `change` pushes.
fn configure(lua: Lua<'_>, max: i32, change: impl Fn(&mut Config) -> Result<(), Raise>) -> Results {
    if lua.top() > max {
        return Err(check::error(lua, max + 1, format_args!("found too many arguments")));
    }
    lua.set_top(max);
    debug_assert_ne!(lua.kind(UPVALUE), Type::None);
    let mut config = lua.block::<Config>();
    let changed = change(&mut config);
    // Arguments before an invalid one take effect nevertheless.
    lua.set_block(config);
    changed.map(|()| max)
}

/// If argument `n` is not nil, changes a number setting; pushes its value.
fn number_option(lua: Lua<'_>, n: i32, setting: &mut i32, min: i32, max: i32) -> Result<(), Raise> {
    if lua.kind(n) != Type::Nil {
        let value = check::integer(lua, n)? as i32;
        if !(min..=max).contains(&value) {
            return Err(check::error(lua, 1, format_args!("expected integer between {min} and {max}")));
        }
        *setting = value;
    }
    lua.push_number(f64::from(*setting));
    Ok(())
}

/// If argument `n` is not nil, requires a boolean or one of `names`; returns its index.
fn named_option(lua: Lua<'_>, n: i32, names: &[&str]) -> Result<Option<usize>, Raise> {
    match lua.kind(n) {
        Type::Nil => return Ok(None),
        Type::Boolean => return Ok(Some(usize::from(lua.boolean(n)))),
        _ => {}
    }
    let name = check::bytes(lua, n)?;
    match names.iter().position(|known| known.as_bytes() == name) {
        Some(which) => Ok(Some(which)),
        None => Err(check::error(lua, n, format_args!("invalid option '{}'", String::from_utf8_lossy(name)))),
    }
}

/// If argument `n` is not nil, changes a boolean setting; pushes its value.
fn switch_option(lua: Lua<'_>, n: i32, setting: &mut bool) -> Result<(), Raise> {
    if let Some(which) = named_option(lua, n, &["off", "on"])? {
        *setting = which == 1;
    }
    lua.push_boolean(*setting);
    Ok(())
}

fn encode_sparse_array(lua: Lua<'_>) -> Results {
    configure(lua, 3, |config| {
        switch_option(lua, 1, &mut config.encode_sparse_convert)?;
        number_option(lua, 2, &mut config.encode_sparse_ratio, 0, i32::MAX)?;
        number_option(lua, 3, &mut config.encode_sparse_safe, 0, i32::MAX)
    })
}

fn encode_max_depth(lua: Lua<'_>) -> Results {
    configure(lua, 1, |config| number_option(lua, 1, &mut config.encode_max_depth, 1, i32::MAX))
}

fn decode_max_depth(lua: Lua<'_>) -> Results {
    configure(lua, 1, |config| number_option(lua, 1, &mut config.decode_max_depth, 1, i32::MAX))
}

fn encode_number_precision(lua: Lua<'_>) -> Results {
    configure(lua, 1, |config| number_option(lua, 1, &mut config.encode_number_precision, 1, 14))
}

fn encode_keep_buffer(lua: Lua<'_>) -> Results {
    configure(lua, 1, |config| switch_option(lua, 1, &mut config.encode_keep_buffer))
}

fn decode_invalid_numbers(lua: Lua<'_>) -> Results {
    configure(lua, 1, |config| switch_option(lua, 1, &mut config.decode_invalid_numbers))
}

fn encode_invalid_numbers(lua: Lua<'_>) -> Results {
    configure(lua, 1, |config| {
        match named_option(lua, 1, &["off", "on", "null"])? {
            Some(0) => config.encode_invalid_numbers = InvalidNumbers::Off,
            Some(1) => config.encode_invalid_numbers = InvalidNumbers::On,
            Some(_) => config.encode_invalid_numbers = InvalidNumbers::Null,
            None => {}
        }
        match config.encode_invalid_numbers {
            InvalidNumbers::Off => lua.push_boolean(false),
            InvalidNumbers::On => lua.push_boolean(true),
            InvalidNumbers::Null => lua.push_bytes("null"),
        }
        Ok(())
    })
}
