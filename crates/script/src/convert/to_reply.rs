//! Converts Lua values to replies.
//!
//! Nested tables are processed with an explicit list instead of recursion: Lua's stack limits the nesting, and it
//! allows deeper nesting than the thread's stack.

use kvick_resp::{Mark, Reply, Version};

use super::{FIELD_NAMES, FIELDS, returned_failure};
use crate::Failure;
use crate::lua::{Lua, Type, c_text};

/// A table whose items are being written. The table is on the stack; during iteration by key, the current key is above
/// it.
struct Level {
    shape: Shape,
    mark: Mark,
    /// Number of items, or pairs, written.
    len: usize,
}

/// The form in which a table is written.
enum Shape {
    Array,
    /// Contains whether the value of the current pair is on the top of the stack and still to be written.
    Map(bool),
    Set,
}

/// Pops the value on the top of the stack and writes it. Returns the errors in it that were not counted yet.
///
/// # Errors
///
/// If the value is an error itself.
pub(crate) fn write_result(lua: Lua<'_>, reply: &mut Reply<'_>) -> Result<Vec<Failure>, Failure> {
    if lua.kind(-1) == Type::Table {
        let error = field(lua, 0) == Type::String;
        lua.pop(1);
        if error {
            return Err(returned_failure(lua));
        }
    }
    let (mut levels, mut errors) = (Vec::new(), Vec::new());
    loop {
        if !lua.check_stack(4) {
            reply.error("ERR reached lua stack limit");
            lua.pop(1);
        } else if let Some(level) = begin(lua, reply, &mut errors) {
            levels.push(level);
        }
        loop {
            let Some(level) = levels.last_mut() else { return Ok(errors) };
            if level.advance(lua) {
                break;
            }
            if let Some(level) = levels.pop() {
                level.end(lua, reply);
            }
        }
    }
}

/// Pushes the value of one of the [`FIELDS`] of the table on the top of the stack; returns its type.
fn field(lua: Lua<'_>, field: usize) -> Type {
    lua.push_value(FIELD_NAMES + field as i32);
    lua.raw_get(-2);
    lua.kind(-1)
}

/// Pops the value on the top and writes it. If it is a table, starts to write it and leaves it on the stack with the
/// iteration state above it.
fn begin(lua: Lua<'_>, reply: &mut Reply<'_>, errors: &mut Vec<Failure>) -> Option<Level> {
    match lua.kind(-1) {
        Type::String => reply.bulk(lua.bytes(-1).unwrap_or_default()),
        Type::Number => reply.int(to_integer(lua.number(-1))),
        Type::Boolean if lua.state().version == Version::Resp3 => reply.boolean(lua.boolean(-1)),
        Type::Boolean if lua.boolean(-1) => reply.int(1),
        Type::Table => return begin_table(lua, reply, errors),
        _ => reply.null(),
    }
    lua.pop(1);
    None
}

fn begin_table(lua: Lua<'_>, reply: &mut Reply<'_>, errors: &mut Vec<Failure>) -> Option<Level> {
    for (i, name) in FIELDS.iter().enumerate() {
        match (*name, field(lua, i)) {
            ("err", Type::String) => {
                lua.push_value(-2);
                let failure = returned_failure(lua);
                lua.pop(1);
                reply.error(failure.text());
                if !failure.is_counted() {
                    errors.push(failure);
                }
            }
            ("ok", Type::String) => reply.simple(c_text(lua.bytes(-1).unwrap_or_default())),
            ("double", Type::Number) => reply.double(lua.number(-1)),
            ("big_number", Type::String) => write_big_number(c_text(lua.bytes(-1).unwrap_or_default()), reply),
            ("verbatim_string", Type::Table) if write_verbatim(lua, reply) => {}
            ("map", Type::Table) => {
                lua.push_nil();
                return Some(Level { shape: Shape::Map(false), mark: reply.deferred(), len: 0 });
            }
            ("set", Type::Table) => {
                lua.push_nil();
                return Some(Level { shape: Shape::Set, mark: reply.deferred(), len: 0 });
            }
            _ => {
                lua.pop(1);
                continue;
            }
        }
        lua.pop(2);
        return None;
    }
    Some(Level { shape: Shape::Array, mark: reply.deferred(), len: 0 })
}

/// Writes a big number. Its text comes from the script, so line ends are replaced by blanks in both protocol versions.
fn write_big_number(digits: &[u8], reply: &mut Reply<'_>) {
    if memchr::memchr2(b'\r', b'\n', digits).is_none() {
        return reply.big_number(digits);
    }
    let blanked = digits.iter().map(|byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { *byte });
    reply.big_number(&blanked.collect::<Vec<_>>());
}

/// Writes the table on the top as a verbatim string, if it is one.
fn write_verbatim(lua: Lua<'_>, reply: &mut Reply<'_>) -> bool {
    lua.raw_get_field(-1, "format");
    lua.raw_get_field(-2, "string");
    let whole = lua.kind(-2) == Type::String && lua.kind(-1) == Type::String;
    if let (true, Some(format), Some(text)) = (whole, lua.bytes(-2), lua.bytes(-1)) {
        reply.verbatim(text, &String::from_utf8_lossy(c_text(format)));
    }
    lua.pop(2);
    whole
}

impl Level {
    /// Pushes the next value to write; returns `false` at the end.
    fn advance(&mut self, lua: Lua<'_>) -> bool {
        match &mut self.shape {
            Shape::Array => {
                // Lua limits the items of a table to 32 bits.
                lua.raw_get_item(-1, self.len as i32 + 1);
                if lua.kind(-1) == Type::Nil {
                    lua.pop(1);
                    return false;
                }
            }
            Shape::Map(value_left @ true) => {
                *value_left = false;
                return true;
            }
            Shape::Map(value_left) => {
                if !lua.next(-2) {
                    return false;
                }
                lua.push_value(-2);
                *value_left = true;
            }
            Shape::Set => {
                if !lua.next(-2) {
                    return false;
                }
                lua.pop(1);
                lua.push_value(-1);
            }
        }
        self.len += 1;
        true
    }

    /// Writes the number of items and pops the iteration state.
    fn end(self, lua: Lua<'_>, reply: &mut Reply<'_>) {
        match self.shape {
            Shape::Array => {
                reply.set_array_len(self.mark, self.len);
                lua.pop(1);
            }
            Shape::Map(_) => {
                reply.set_map_len(self.mark, self.len);
                lua.pop(2);
            }
            Shape::Set => {
                reply.set_set_len(self.mark, self.len);
                lua.pop(2);
            }
        }
    }
}

/// Truncates a number to an integer; the result is the minimum if the number is out of range, as on x86-64.
fn to_integer(n: f64) -> i64 {
    let fits = (i64::MIN as f64..-(i64::MIN as f64)).contains(&n);
    if fits { n as i64 } else { i64::MIN }
}
