//! `bit`: operations on 32-bit integers, compatible with Lua BitOp 1.0.2.

use super::check;
use crate::lua::{Lua, Raise, Results};

/// Pushes the table of the library.
pub(super) fn install(lua: Lua<'_>) {
    lua.create_table(0, 12);
    lua.add_function("tobit", |lua| unary(lua, |a| a));
    lua.add_function("bnot", |lua| unary(lua, |a| !a));
    lua.add_function("bswap", |lua| unary(lua, u32::swap_bytes));
    lua.add_function("band", |lua| fold(lua, |a, b| a & b));
    lua.add_function("bor", |lua| fold(lua, |a, b| a | b));
    lua.add_function("bxor", |lua| fold(lua, |a, b| a ^ b));
    lua.add_function("lshift", |lua| shift(lua, |a, n| a << n));
    lua.add_function("rshift", |lua| shift(lua, |a, n| a >> n));
    lua.add_function("arshift", |lua| shift(lua, |a, n| (a.cast_signed() >> n).cast_unsigned()));
    lua.add_function("rol", |lua| shift(lua, u32::rotate_left));
    lua.add_function("ror", |lua| shift(lua, u32::rotate_right));
    lua.add_function("tohex", to_hex);
}

/// Argument `n` modulo 2^32, rounded to the nearest integer, ties to even.
fn bits(lua: Lua<'_>, n: i32) -> Result<u32, Raise> {
    let number = lua.number(n);
    // Adding this constant moves the integer part to the lowest bits, as precisely as numbers above 2^51 allow.
    let bits = (number + 6_755_399_441_055_744.0).to_bits() as u32;
    if bits == 0 && !lua.is_number(n) { Err(check::type_error(lua, n, "number")) } else { Ok(bits) }
}

fn push(lua: Lua<'_>, bits: u32) -> Results {
    lua.push_number(f64::from(bits.cast_signed()));
    Ok(1)
}

fn unary(lua: Lua<'_>, operation: impl Fn(u32) -> u32) -> Results {
    push(lua, operation(bits(lua, 1)?))
}

fn fold(lua: Lua<'_>, operation: impl Fn(u32, u32) -> u32) -> Results {
    let mut result = bits(lua, 1)?;
    for n in (2..=lua.top()).rev() {
        result = operation(result, bits(lua, n)?);
    }
    push(lua, result)
}

/// Only the lowest five bits of the shift count are used.
fn shift(lua: Lua<'_>, operation: impl Fn(u32, u32) -> u32) -> Results {
    push(lua, operation(bits(lua, 1)?, bits(lua, 2)? & 31))
}

/// `tohex(x [, n])`: the lowest `n` hexadecimal digits, in upper case if `n` is negative.
fn to_hex(lua: Lua<'_>) -> Results {
    let value = bits(lua, 1)?;
    let len = if lua.top() < 2 { 8 } else { bits(lua, 2)?.cast_signed() };
    let digits = if len < 0 { b"0123456789ABCDEF" } else { b"0123456789abcdef" };
    let len = len.unsigned_abs().min(8) as usize;
    let mut text = [0; 8];
    for (i, byte) in text[..len].iter_mut().rev().enumerate() {
        *byte = digits[(value >> (4 * i) & 15) as usize];
    }
    lua.push_bytes(&text[..len]);
    Ok(1)
}
