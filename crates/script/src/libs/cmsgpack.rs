//! `cmsgpack`: MessagePack, compatible with lua-cmsgpack 0.4.0.
//!
//! Tables whose keys are 1 to n are packed as arrays, others as maps. Tables nested more than 16 levels deep are packed
//! as nil.

use super::check;
use crate::lua::shared::Level;
use crate::lua::{Lua, Raise, Results, Type};
use crate::sandbox::protect;

/// Maximum nesting of packed tables.
const DEPTH_MAX: usize = 16;

/// Maximum number of items preallocated for an array or map, since its claimed length may be false.
const RESERVED_MAX: usize = 64;

/// Pushes the table of the library.
pub(super) fn install(lua: Lua<'_>) {
    lua.create_table(0, 8);
    lua.add_function("pack", pack);
    lua.add_function("unpack", unpack);
    lua.add_function("unpack_one", unpack_one);
    lua.add_function("unpack_limit", unpack_limit);
    let texts = [
        ("_NAME", "cmsgpack"),
        ("_VERSION", "lua-cmsgpack 0.4.0"),
        ("_COPYRIGHT", "Copyright (C) 2012, Redis Ltd."),
        ("_DESCRIPTION", "MessagePack C implementation for Lua"),
    ];
    for (name, text) in texts {
        lua.push_bytes(text);
        lua.raw_set_field(-2, name);
    }
}

/// `pack(value, ...)`: packs the values one after another.
fn pack(lua: Lua<'_>) -> Results {
    let top = lua.top();
    if top == 0 {
        return Err(check::error(lua, 0, format_args!("MessagePack pack needs input.")));
    }
    let out = &mut lua.state().text;
    out.clear();
    for n in 1..=top {
        lua.push_value(n);
        pack_value(lua, out, 0)?;
    }
    lua.push_bytes(out);
    Ok(1)
}

/// Pops the value on the top of the stack and packs it.
fn pack_value(lua: Lua<'_>, out: &mut Vec<u8>, depth: usize) -> Result<(), Raise> {
    match lua.kind(-1) {
        Type::String => pack_bytes(lua.bytes(-1).unwrap_or_default(), out),
        Type::Boolean => out.push(if lua.boolean(-1) { 0xc3 } else { 0xc2 }),
        Type::Number => pack_number(lua.number(-1), out),
        Type::Table if depth < DEPTH_MAX => pack_table(lua, out, depth)?,
        _ => out.push(0xc0),
    }
    lua.pop(1);
    Ok(())
}

/// Packs the table on the top of the stack.
fn pack_table(lua: Lua<'_>, out: &mut Vec<u8>, depth: usize) -> Result<(), Raise> {
    if !lua.check_stack(6) {
        return Err(lua.error(format_args!("stack overflow (in function table_is_an_array)")));
    }
    protect::unwrap_protected(lua, lua.top());
    let (len, array) = measure(lua);
    if array {
        pack_len(len, (0x90, 0xdc), out);
        // A table cannot have more keys than this.
        for n in 1..=len as i32 {
            lua.raw_get_item(-1, n);
            pack_value(lua, out, depth + 1)?;
        }
    } else {
        pack_len(len, (0x80, 0xde), out);
        lua.push_nil();
        while lua.next(-2) {
            lua.push_value(-2);
            pack_value(lua, out, depth + 1)?;
            pack_value(lua, out, depth + 1)?;
        }
    }
    Ok(())
}

/// The number of pairs of the table on the top of the stack, and whether its keys are 1 to that number.
fn measure(lua: Lua<'_>) -> (usize, bool) {
    let (mut len, mut max, mut array) = (0, 0.0_f64, true);
    lua.push_nil();
    while lua.next(-2) {
        lua.pop(1);
        len += 1;
        if array {
            let key = if lua.kind(-1) == Type::Number { lua.number(-1) } else { 0.0 };
            array = key >= 1.0 && key <= f64::from(i32::MAX) && key.floor() == key;
            max = max.max(key);
        }
    }
    (len, array && max == len as f64)
}

fn pack_number(n: f64, out: &mut Vec<u8>) {
    let whole = check::truncate(n);
    if whole as f64 == n && n < i64::MAX as f64 {
        pack_integer(whole, out);
    } else if f64::from(n as f32) == n {
        out.push(0xca);
        out.extend_from_slice(&(n as f32).to_be_bytes());
    } else {
        out.push(0xcb);
        out.extend_from_slice(&n.to_be_bytes());
    }
}

fn pack_integer(n: i64, out: &mut Vec<u8>) {
    // The lowest bytes of the number in big-endian order.
    let bytes = n.to_be_bytes();
    let (kind, len) = match n {
        -0x20..0x80 => return out.push(bytes[7]),
        0x80..0x100 => (0xcc, 1),
        0x100..0x1_0000 => (0xcd, 2),
        0x1_0000..0x1_0000_0000 => (0xce, 4),
        0x1_0000_0000.. => (0xcf, 8),
        -0x80..-0x20 => (0xd0, 1),
        -0x8000..-0x80 => (0xd1, 2),
        -0x8000_0000..-0x8000 => (0xd2, 4),
        ..-0x8000_0000 => (0xd3, 8),
    };
    out.push(kind);
    out.extend_from_slice(&bytes[8 - len..]);
}

fn pack_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    match bytes.len() {
        len @ 0..32 => out.push(0xa0 | len as u8),
        len @ 32..0x100 => out.extend_from_slice(&[0xd9, len as u8]),
        len @ 0x100..0x1_0000 => {
            out.push(0xda);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        len => {
            out.push(0xdb);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(bytes);
}

/// Packs the length of an array or a map. `short` is the type for short ones, `long` the first of the types for longer
/// ones.
fn pack_len(len: usize, (short, long): (u8, u8), out: &mut Vec<u8>) {
    match len {
        0..16 => out.push(short | len as u8),
        16..0x1_0000 => {
            out.push(long);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(long + 1);
            out.extend_from_slice(&(len as u32).to_be_bytes());
        }
    }
}

/// `unpack(bytes)`: returns all values.
fn unpack(lua: Lua<'_>) -> Results {
    unpack_some(lua, 0, 0)
}

/// `unpack_one(bytes [, offset])`: returns the offset of the next value, or -1, and one value.
fn unpack_one(lua: Lua<'_>) -> Results {
    let offset = check::optional_integer(lua, 2)?.unwrap_or(0);
    lua.set_top(1);
    unpack_some(lua, 1, offset)
}

/// `unpack_limit(bytes, limit [, offset])`: returns the offset of the next value, or -1, and up to `limit` values.
fn unpack_limit(lua: Lua<'_>) -> Results {
    let limit = check::integer(lua, 2)?;
    let offset = check::optional_integer(lua, 3)?.unwrap_or(0);
    lua.set_top(1);
    unpack_some(lua, limit, offset)
}

/// Without limit and offset, returns all values and no offset.
fn unpack_some(lua: Lua<'_>, limit: i64, offset: i64) -> Results {
    let input = check::bytes(lua, 1)?;
    let len = input.len();
    let (Ok(start), Ok(most)) = (usize::try_from(offset), usize::try_from(limit)) else {
        let offset = offset as i32;
        let text = format_args!("Invalid request to unpack with offset of {offset} and limit of {len}.");
        return Err(lua.error(text));
    };
    let Some(rest) = input.get(start..) else {
        return Err(lua.error(format_args!("Start offset {offset} greater than input length {len}.")));
    };
    let all = limit == 0 && offset == 0;
    let most = if all { i32::MAX as usize } else { most };
    let mut reader = Reader { rest };
    let mut values = 0;
    while !reader.rest.is_empty() && (values as usize) < most {
        reader.push_value(lua)?;
        values += 1;
    }
    if all {
        return Ok(values);
    }
    if !lua.check_stack(1) {
        return Err(lua.error(format_args!("stack overflow (in function mp_unpack_full)")));
    }
    let next = len - reader.rest.len();
    lua.push_number(if next == len { -1.0 } else { next as f64 });
    lua.insert(2);
    Ok(values + 1)
}

/// The unread part of the input.
struct Reader<'a> {
    rest: &'a [u8],
}

/// The start of one value.
enum Item<'a> {
    Nil,
    Boolean(bool),
    Number(f64),
    Bytes(&'a [u8]),
    Array(usize),
    Map(usize),
}

/// The reason why an item cannot be read.
enum Malformed {
    Short,
    Unknown,
}

impl<'a> Reader<'a> {
    /// Pushes a value, including all nested values.
    fn push_value(&mut self, lua: Lua<'_>) -> Result<(), Raise> {
        let levels = &mut lua.state().levels;
        levels.clear();
        loop {
            if !lua.check_stack(3) {
                let text = "stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)";
                return Err(lua.error(format_args!("{text}")));
            }
            match self.item() {
                Ok(Item::Nil) => lua.push_nil(),
                Ok(Item::Boolean(value)) => lua.push_boolean(value),
                Ok(Item::Number(n)) => lua.push_number(n),
                Ok(Item::Bytes(bytes)) => lua.push_bytes(bytes),
                Ok(Item::Array(len)) => {
                    lua.create_table(len.min(self.rest.len()).min(RESERVED_MAX), 0);
                    if len > 0 {
                        levels.push(Level { keyed: false, done: 0, len });
                        continue;
                    }
                }
                Ok(Item::Map(len)) => {
                    lua.create_table(0, len.min(self.rest.len() / 2).min(RESERVED_MAX));
                    if len > 0 {
                        levels.push(Level { keyed: true, done: 0, len: len * 2 });
                        continue;
                    }
                }
                Err(Malformed::Short) => return Err(lua.error(format_args!("Missing bytes in input."))),
                Err(Malformed::Unknown) => return Err(lua.error(format_args!("Bad data format in input."))),
            }
            if complete_containers(lua, levels) {
                return Ok(());
            }
        }
    }

    /// Reads one item.
    fn item(&mut self) -> Result<Item<'a>, Malformed> {
        let kind = self.bytes(1)?[0];
        Ok(match kind {
            0x00..=0x7f => Item::Number(kind.into()),
            0x80..=0x8f => Item::Map((kind & 0xf).into()),
            0x90..=0x9f => Item::Array((kind & 0xf).into()),
            0xa0..=0xbf => Item::Bytes(self.bytes((kind & 0x1f).into())?),
            0xc0 => Item::Nil,
            0xc2 | 0xc3 => Item::Boolean(kind == 0xc3),
            0xca => Item::Number(f32::from_bits(self.unsigned(4)? as u32).into()),
            0xcb => Item::Number(f64::from_bits(self.unsigned(8)?)),
            // Unsigned numbers beyond 63 bits are read as negative numbers.
            0xcc..=0xcf => Item::Number(self.unsigned(1 << (kind - 0xcc))?.cast_signed() as f64),
            0xd0..=0xd3 => Item::Number(self.signed(1 << (kind - 0xd0))? as f64),
            0xd9..=0xdb => {
                let len = self.unsigned(1 << (kind - 0xd9))? as usize;
                Item::Bytes(self.bytes(len)?)
            }
            0xdc | 0xdd => Item::Array(self.unsigned(2 << (kind - 0xdc))? as usize),
            0xde | 0xdf => Item::Map(self.unsigned(2 << (kind - 0xde))? as usize),
            0xe0..=0xff => Item::Number(kind.cast_signed().into()),
            0xc1 | 0xc4..=0xc9 | 0xd4..=0xd8 => return Err(Malformed::Unknown),
        })
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.rest.split_at_checked(len).ok_or(Malformed::Short)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn unsigned(&mut self, len: usize) -> Result<u64, Malformed> {
        Ok(self.bytes(len)?.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)))
    }

    fn signed(&mut self, len: usize) -> Result<i64, Malformed> {
        let unused = 64 - 8 * len as u32;
        Ok(self.unsigned(len)?.wrapping_shl(unused).cast_signed() >> unused)
    }
}

/// Stores the value on the top of the stack in its container, and repeats that for each container that is then
/// complete; returns whether all are complete.
fn complete_containers(lua: Lua<'_>, levels: &mut Vec<Level>) -> bool {
    while let Some(level) = levels.last_mut() {
        level.done += 1;
        if !level.keyed {
            // Cannot overflow: there are at most as many items as bytes, and Lua strings are shorter.
            lua.raw_set_item(-2, level.done as i32);
        } else if level.done.is_multiple_of(2) {
            lua.raw_set(-3);
        }
        if level.done < level.len {
            return false;
        }
        levels.pop();
    }
    true
}
