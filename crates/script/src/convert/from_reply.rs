//! Converts command replies to Lua values, directly from the bytes.

use kvick_resp::format::parse_i64;

use super::{COUNTED, push_error_text};
use crate::lua::{Lua, Raise};

/// Maximum nesting of replies, far above that of any command.
const DEPTH_MAX: u32 = 64;

/// Pushes the value of a reply; returns whether it is an error.
///
/// # Errors
///
/// If the reply is nested too deeply or malformed.
pub(crate) fn push_reply(lua: Lua<'_>, reply: &[u8]) -> Result<bool, Raise> {
    let mut reader = Reader { rest: reply };
    let error = reply.first() == Some(&b'-');
    match reader.push_value(lua, 0) {
        Some(()) => Ok(error),
        None => {
            push_error_text(lua, b"ERR the command's reply cannot be read");
            Err(Raise)
        }
    }
}

/// The unread part of a reply.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Pushes the next value; `None` if it is malformed.
    fn push_value(&mut self, lua: Lua<'_>, depth: u32) -> Option<()> {
        let (&kind, rest) = self.rest.split_first()?;
        self.rest = rest;
        let line = self.line()?;
        match kind {
            b'$' => match parse_len(line)? {
                Some(len) => lua.push_bytes(self.bulk(len)?),
                None => lua.push_boolean(false),
            },
            b':' => lua.push_number(parse_i64(line)? as f64),
            b'+' => push_field(lua, "ok", |lua| lua.push_bytes(line)),
            b'-' => {
                push_error_text(lua, line);
                lua.push_boolean(true);
                lua.raw_set_field(-2, COUNTED);
            }
            b'_' => lua.push_nil(),
            b'#' => lua.push_boolean(line == b"t"),
            b',' => {
                let number = parse_double(line)?;
                push_field(lua, "double", |lua| lua.push_number(number));
            }
            b'(' => push_field(lua, "big_number", |lua| lua.push_bytes(line)),
            b'=' => {
                let text = parse_len(line)?.and_then(|len| self.bulk(len))?;
                let (format, text) = (text.get(..3)?, text.get(4..)?);
                push_field(lua, "verbatim_string", |lua| {
                    lua.create_table(0, 2);
                    lua.push_bytes(text);
                    lua.raw_set_field(-2, "string");
                    lua.push_bytes(format);
                    lua.raw_set_field(-2, "format");
                });
            }
            b'|' => {
                for _ in 0..parse_len(line)?.unwrap_or(0) * 2 {
                    self.push_nested(lua, depth)?;
                    lua.pop(1);
                }
                return self.push_value(lua, depth);
            }
            b'*' | b'>' => match parse_len(line)? {
                Some(len) => self.push_array(lua, depth, len)?,
                None => lua.push_boolean(false),
            },
            b'%' => self.push_map(lua, depth, parse_len(line)??)?,
            b'~' => self.push_set(lua, depth, parse_len(line)??)?,
            _ => return None,
        }
        Some(())
    }

    fn push_array(&mut self, lua: Lua<'_>, depth: u32, len: usize) -> Option<()> {
        lua.create_table(len.min(self.rest.len()), 0);
        for n in 1..=i32::try_from(len).ok()? {
            self.push_nested(lua, depth)?;
            lua.raw_set_item(-2, n);
        }
        Some(())
    }

    fn push_map(&mut self, lua: Lua<'_>, depth: u32, len: usize) -> Option<()> {
        lua.create_table(0, 1);
        lua.create_table(0, len.min(self.rest.len()));
        for _ in 0..len {
            self.push_nested(lua, depth)?;
            self.push_nested(lua, depth)?;
            set_pair(lua);
        }
        lua.raw_set_field(-2, "map");
        Some(())
    }

    fn push_set(&mut self, lua: Lua<'_>, depth: u32, len: usize) -> Option<()> {
        lua.create_table(0, 1);
        lua.create_table(0, len.min(self.rest.len()));
        for _ in 0..len {
            self.push_nested(lua, depth)?;
            lua.push_boolean(true);
            set_pair(lua);
        }
        lua.raw_set_field(-2, "set");
        Some(())
    }

    fn push_nested(&mut self, lua: Lua<'_>, depth: u32) -> Option<()> {
        (depth < DEPTH_MAX && lua.check_stack(crate::lua::ROOM)).then_some(())?;
        self.push_value(lua, depth + 1)
    }

    /// Reads a line.
    #[inline]
    fn line(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(b'\r', self.rest)?;
        let line = &self.rest[..end];
        self.rest = self.rest.get(end + 2..)?;
        Some(line)
    }

    /// Reads a string of `len` bytes and its line end.
    #[inline]
    fn bulk(&mut self, len: usize) -> Option<&'a [u8]> {
        let text = self.rest.get(..len)?;
        self.rest = self.rest.get(len + 2..)?;
        Some(text)
    }
}

/// Pushes a table with one field, whose value `push` pushes.
fn push_field<'a>(lua: Lua<'a>, name: &str, push: impl FnOnce(Lua<'a>)) {
    lua.create_table(0, 1);
    push(lua);
    lua.raw_set_field(-2, name);
}

/// Stores the key and value on the top of the stack in the table below them. Nil is not a valid key; such a pair is
/// dropped.
fn set_pair(lua: Lua<'_>) {
    if lua.kind(-2) == crate::lua::Type::Nil {
        lua.pop(2);
    } else {
        lua.raw_set(-3);
    }
}

/// Parses a length; `Some(None)` for -1, which means null.
fn parse_len(line: &[u8]) -> Option<Option<usize>> {
    match parse_i64(line)? {
        -1 => Some(None),
        len => usize::try_from(len).ok().map(Some),
    }
}

fn parse_double(line: &[u8]) -> Option<f64> {
    str::from_utf8(line).ok()?.parse().ok()
}
