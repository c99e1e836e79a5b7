//! Encodes Lua values as JSON.

use super::number::write_number;
use super::{Config, InvalidNumbers};
use crate::libs::check;
use crate::lua::shared::Level;
use crate::lua::{Lua, Raise, Results, Type};
use crate::sandbox::protect;

/// `encode(value)`.
pub(super) fn encode(lua: Lua<'_>) -> Results {
    if lua.top() != 1 {
        return Err(check::error(lua, 1, format_args!("expected 1 argument")));
    }
    let config = lua.block::<Config>();
    let state = lua.state();
    let (text, levels) = (&mut state.text, &mut state.levels);
    text.clear();
    levels.clear();
    loop {
        write_value(lua, &config, text, levels)?;
        loop {
            let Some(level) = levels.last_mut() else {
                lua.push_bytes(text);
                return Ok(1);
            };
            if advance(lua, &config, text, level)? {
                break;
            }
            text.push(if level.keyed { b'}' } else { b']' });
            levels.pop();
            lua.pop(1);
        }
    }
}

/// Pops the value on the top of the stack and writes it. A table remains on the stack; its items follow.
fn write_value(lua: Lua<'_>, config: &Config, text: &mut Vec<u8>, levels: &mut Vec<Level>) -> Result<(), Raise> {
    match lua.kind(-1) {
        Type::String => write_string(lua.bytes(-1).unwrap_or_default(), text),
        Type::Number => write_checked_number(lua, config, text, -1)?,
        Type::Boolean => text.extend_from_slice(if lua.boolean(-1) { b"true" } else { b"false" }),
        Type::Nil => text.extend_from_slice(b"null"),
        Type::LightUserdata if lua.is_null(-1) => text.extend_from_slice(b"null"),
        Type::Table => {
            let depth = levels.len() + 1;
            if depth > config.encode_max_depth as usize || !lua.check_stack(3) {
                return Err(lua.error(format_args!("Cannot serialise, excessive nesting ({depth})")));
            }
            protect::unwrap_protected(lua, lua.top());
            let len = array_len(lua, config)?;
            let keyed = len == 0;
            if keyed {
                lua.push_nil();
            }
            text.push(if keyed { b'{' } else { b'[' });
            levels.push(Level { keyed, done: 0, len });
            return Ok(());
        }
        _ => return Err(encode_error(lua, -1, "type not supported")),
    }
    lua.pop(1);
    Ok(())
}

/// Pushes the next item of a table and writes the separator and key before it; returns `false` at the end.
fn advance(lua: Lua<'_>, config: &Config, text: &mut Vec<u8>, level: &mut Level) -> Result<bool, Raise> {
    if level.keyed {
        if !lua.next(-2) {
            return Ok(false);
        }
    } else if level.done == level.len {
        return Ok(false);
    } else {
        // `array_len` guarantees that the index fits.
        lua.raw_get_item(-1, level.done as i32 + 1);
    }
    if level.done > 0 {
        text.push(b',');
    }
    level.done += 1;
    if level.keyed {
        write_key(lua, config, text)?;
        text.push(b':');
    }
    Ok(true)
}

/// Writes the key below the value on the top of the stack.
fn write_key(lua: Lua<'_>, config: &Config, text: &mut Vec<u8>) -> Result<(), Raise> {
    match lua.kind(-2) {
        Type::String => write_string(lua.bytes(-2).unwrap_or_default(), text),
        Type::Number => {
            text.push(b'"');
            write_checked_number(lua, config, text, -2)?;
            text.push(b'"');
        }
        _ => return Err(encode_error(lua, -2, "table key must be a number or string")),
    }
    Ok(())
}

/// The length of the table on the top of the stack as an array; 0 if it is not an array.
fn array_len(lua: Lua<'_>, config: &Config) -> Result<usize, Raise> {
    let (mut max, mut items) = (0, 0);
    lua.push_nil();
    while lua.next(-2) {
        let key = if lua.kind(-2) == Type::Number { lua.number(-2) } else { 0.0 };
        if key.floor() != key || key < 1.0 {
            lua.pop(2);
            return Ok(0);
        }
        if key > f64::from(max) {
            // A key beyond 32 bits makes the table an object, as the conversion on x86-64 does in lua-cjson.
            max = if key <= f64::from(i32::MAX) { key as i32 } else { i32::MIN };
        }
        items += 1;
        lua.pop(1);
    }
    let bound = i64::from(items) * i64::from(config.encode_sparse_ratio);
    let sparse = config.encode_sparse_ratio > 0 && i64::from(max) > bound && max > config.encode_sparse_safe;
    if sparse && !config.encode_sparse_convert {
        return Err(encode_error(lua, -1, "excessively sparse array"));
    }
    Ok(if sparse { 0 } else { usize::try_from(max).unwrap_or(0) })
}

fn write_checked_number(lua: Lua<'_>, config: &Config, text: &mut Vec<u8>, index: i32) -> Result<(), Raise> {
    let n = lua.number(index);
    if n.is_finite() {
        write_number(n, config.encode_number_precision as usize, text);
        return Ok(());
    }
    match config.encode_invalid_numbers {
        InvalidNumbers::Off => return Err(encode_error(lua, index, "must not be NaN or Inf")),
        InvalidNumbers::Null => text.extend_from_slice(b"null"),
        InvalidNumbers::On if n.is_nan() => text.extend_from_slice(b"nan"),
        InvalidNumbers::On => text.extend_from_slice(if n < 0.0 { b"-inf" } else { b"inf" }),
    }
    Ok(())
}

/// The error for the value at `index`.
#[cold]
fn encode_error(lua: Lua<'_>, index: i32, reason: &str) -> Raise {
    lua.error(format_args!("Cannot serialise {}: {reason}", lua.type_name(index)))
}

/// For each byte, its escape: 0 for none, `u` for a numeric escape, otherwise the character after the backslash.
static ESCAPES: [u8; 256] = {
    let mut escapes = [0; 256];
    let mut byte = 0;
    while byte < 0x20 {
        escapes[byte] = b'u';
        byte += 1;
    }
    escapes[0x7f] = b'u';
    escapes[0x08] = b'b';
    escapes[b'\t' as usize] = b't';
    escapes[b'\n' as usize] = b'n';
    escapes[0x0c] = b'f';
    escapes[b'\r' as usize] = b'r';
    escapes[b'"' as usize] = b'"';
    escapes[b'\\' as usize] = b'\\';
    escapes[b'/' as usize] = b'/';
    escapes
};

/// Writes a string. Bytes beyond ASCII are not escaped.
fn write_string(mut string: &[u8], text: &mut Vec<u8>) {
    text.reserve(string.len() + 2);
    text.push(b'"');
    while let Some(plain) = string.iter().position(|byte| ESCAPES[usize::from(*byte)] != 0) {
        text.extend_from_slice(&string[..plain]);
        let byte = string[plain];
        match ESCAPES[usize::from(byte)] {
            b'u' => {
                let digits = [byte >> 4, byte & 15].map(|digit| b"0123456789abcdef"[usize::from(digit)]);
                text.extend_from_slice(b"\\u00");
                text.extend_from_slice(&digits);
            }
            escape => text.extend_from_slice(&[b'\\', escape]),
        }
        string = &string[plain + 1..];
    }
    text.extend_from_slice(string);
    text.push(b'"');
}
