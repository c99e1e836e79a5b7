//! Formats values and replies as readable text.

use std::io::Write;

use kvick_resp::format::parse_i64;

use crate::libs::cjson::number::write_number;
use crate::lua::{Lua, Type};

/// Maximum depth of shown tables.
const DEPTH_MAX: i32 = 10;
/// Maximum depth of shown replies, far above that of any command.
const REPLY_DEPTH_MAX: u32 = 64;
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

/// Appends a reply. Stops soon after `text` exceeds `len_max`.
pub(super) fn reply(reply: &[u8], len_max: usize, text: &mut Vec<u8>) {
    let mut reader = Reader { rest: reply, len_max };
    // A malformed reply is shown up to the error.
    let _ = reader.show(text, REPLY_DEPTH_MAX);
}

struct Reader<'a> {
    rest: &'a [u8],
    len_max: usize,
}

impl<'a> Reader<'a> {
    /// Appends the next value; `None` at the end, on an error, or if the text is long enough.
    fn show(&mut self, text: &mut Vec<u8>, depth: u32) -> Option<()> {
        if text.len() > self.len_max || depth == 0 {
            return None;
        }
        let whole = self.rest;
        let (&kind, line) = self.line()?.split_first()?;
        match kind {
            b'$' | b'=' => match parse_i64(line)? {
                -1 => text.extend_from_slice(b"NULL"),
                len => quote(self.bytes(usize::try_from(len).ok()?)?, text),
            },
            b'+' | b'-' => quote(&whole[..=line.len()], text),
            b'_' => text.extend_from_slice(b"(null)"),
            b'#' => text.extend_from_slice(if line == b"t" { b"#true" } else { b"#false" }),
            b',' => {
                text.extend_from_slice(b"(double) ");
                text.extend_from_slice(line);
            }
            b'*' | b'>' => match parse_i64(line)? {
                -1 => text.extend_from_slice(b"NULL"),
                len => self.items(len, ("[", "]"), text, depth)?,
            },
            b'~' => self.items(parse_i64(line)?, ("~(", ")"), text, depth)?,
            b'%' => self.pairs(parse_i64(line)?, text, depth)?,
            _ => text.extend_from_slice(line),
        }
        Some(())
    }

    fn items(&mut self, len: i64, (open, close): (&str, &str), text: &mut Vec<u8>, depth: u32) -> Option<()> {
        text.extend_from_slice(open.as_bytes());
        for n in 0..len {
            if n > 0 {
                text.push(b',');
            }
            self.show(text, depth - 1)?;
        }
        text.extend_from_slice(close.as_bytes());
        Some(())
    }

    fn pairs(&mut self, len: i64, text: &mut Vec<u8>, depth: u32) -> Option<()> {
        text.push(b'{');
        for n in 0..len {
            if n > 0 {
                text.push(b',');
            }
            self.show(text, depth - 1)?;
            text.extend_from_slice(b" => ");
            self.show(text, depth - 1)?;
        }
        text.push(b'}');
        Some(())
    }

    /// Reads a line.
    fn line(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(b'\r', self.rest)?;
        let line = &self.rest[..end];
        self.rest = self.rest.get(end + 2..)?;
        Some(line)
    }

    /// Reads bytes that are followed by a line end.
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.rest.get(..len)?;
        self.rest = self.rest.get(len + 2..)?;
        Some(bytes)
    }
}

/// Appends bytes in quotes, with unprintable ones in hexadecimal.
fn quote(bytes: &[u8], text: &mut Vec<u8>) {
    text.push(b'"');
    for byte in bytes {
        match byte {
            b'\\' | b'"' => text.extend_from_slice(&[b'\\', *byte]),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'\t' => text.extend_from_slice(b"\\t"),
            0x07 => text.extend_from_slice(b"\\a"),
            0x08 => text.extend_from_slice(b"\\b"),
            0x20..=0x7e => text.push(*byte),
            _ => {
                // Writing to a vector does not fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> String {
        let mut text = Vec::new();
        reply(bytes, 100, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn replies_are_shown_for_people() {
        assert_eq!(shown(b"*3\r\n:1\r\n$3\r\na\"\x01\r\n$-1\r\n"), "[1,\"a\\\"\\x01\",NULL]");
        assert_eq!(shown(b"%1\r\n+OK\r\n~2\r\n#t\r\n,1.5\r\n"), "{\"+OK\" => ~(#true,(double) 1.5)}");
        assert_eq!(shown(b"-ERR no\r\n"), "\"-ERR no\"");
        assert_eq!(shown(b"_\r\n"), "(null)");
        assert_eq!(shown(b"*-1\r\n"), "NULL");
    }

    #[test]
    fn what_is_no_reply_is_shown_as_far_as_it_goes() {
        for broken in [&b"*1000000000\r\n:1\r\n"[..], b"$5\r\nab\r\n", b"$9223372036854775807\r\nx\r\n", b"", b"%1\r\n"]
        {
            assert!(shown(broken).len() < 20);
        }
        assert!(shown(&b"*1\r\n".repeat(1000)).len() < 100);
    }
}
