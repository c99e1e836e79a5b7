//! Formats values as readable text.

use std::io::Write;

use crate::libs::cjson::number::write_number;
use crate::lua::{Lua, Type};

/// Maximum depth of shown tables.
const DEPTH_MAX: i32 = 10;
/// Significant digits of numbers.
const PRECISION: usize = 6;

/// Appends the value at an acceptable index. Stops soon after `text` exceeds `len_max`. May fail.
pub(super) fn value(lua: Lua<'_>, index: i32, len_max: usize, text: &mut Vec<u8>) {
    // A key and a value per nested table, and a copy of the value.
    if !lua.check_stack(2 * DEPTH_MAX + 2) {
        return;
    }
    lua.push_value(index);
    top(lua, DEPTH_MAX, len_max, text);
    lua.pop(1);
}

/// Appends the value on the top of the stack.
fn top(lua: Lua<'_>, depth: i32, len_max: usize, text: &mut Vec<u8>) {
    if depth == 0 {
        return text.extend_from_slice(b"<max recursion level reached! Nested table?>");
    }
    match lua.kind(-1) {
        Type::String => text.extend_from_slice(lua.bytes(-1).unwrap_or_default()),
        Type::Boolean => text.extend_from_slice(if lua.boolean(-1) { b"true" } else { b"false" }),
        Type::Number => number(lua.number(-1), text),
        Type::Nil | Type::None => text.extend_from_slice(b"nil"),
        Type::Table => table(lua, depth, len_max, text),
        Type::LightUserdata | Type::Function | Type::Other => {
            let name = if lua.kind(-1) == Type::LightUserdata { "light-userdata" } else { lua.type_name(-1) };
            // Writing to a vector does not fail.
            let _ = write!(text, " \"{name}@{:p}\"", lua.pointer(-1));
        }
    }
}

fn number(n: f64, text: &mut Vec<u8>) {
    if n.is_nan() {
        text.extend_from_slice(if n.is_sign_negative() { b"-nan" } else { b"nan" });
    } else if n.is_infinite() {
        text.extend_from_slice(if n > 0.0 { b"inf" } else { b"-inf" });
    } else {
        write_number(n, PRECISION, text);
    }
}

/// Appends the table on the top of the stack: as a list if its keys are 1, 2, ... in this order, otherwise with keys.
fn table(lua: Lua<'_>, depth: i32, len_max: usize, text: &mut Vec<u8>) {
    let is_list = is_list(lua);
    text.push(b'{');
    lua.push_nil();
    while lua.next(-2) {
        if !is_list {
            lua.push_value(-2);
            text.push(b'[');
            top(lua, depth - 1, len_max, text);
            text.extend_from_slice(b"]=");
            lua.pop(1);
        }
        top(lua, depth - 1, len_max, text);
        text.extend_from_slice(b"; ");
        lua.pop(1);
        if text.len() > len_max {
            lua.pop(1);
            return;
        }
    }
    text.push(b'}');
}

fn is_list(lua: Lua<'_>) -> bool {
    let mut expected = 0.0;
    lua.push_nil();
    while lua.next(-2) {
        expected += 1.0;
        if lua.kind(-2) != Type::Number || lua.number(-2) != expected {
            lua.pop(2);
            return false;
        }
        lua.pop(1);
    }
    true
}
