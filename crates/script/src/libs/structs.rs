//! `struct`: packs numbers and strings into bytes according to a format, and unpacks them.
//!
//! A format is a sequence of letters: `b B h H l L T` and `i`*n* `I`*n* are integers (signed in lower case), `f d`
//! floats, `x` a padding byte, `c`*n* a string of *n* bytes (`c0`: as many as the previous number specifies), `s` a
//! zero-terminated string. `>` and `<` select the byte order, `!`*n* the alignment; blanks are ignored.

use super::check::{self, truncate};
use crate::lua::{Lua, Raise, Results, c_text};

/// Maximum size of integers.
const INTEGER_SIZE_MAX: usize = 32;

/// Default alignment of `!` without a number.
const ALIGN_DEFAULT: usize = 8;

/// Pushes the table of the library.
pub(super) fn install(lua: Lua<'_>) {
    lua.create_table(0, 3);
    lua.add_function("pack", pack);
    lua.add_function("unpack", unpack);
    lua.add_function("size", size);
}

/// The state of processing a format.
struct Format<'a> {
    rest: &'a [u8],
    little_endian: bool,
    align: usize,
}

/// One item of a format.
struct Item {
    option: u8,
    size: usize,
    /// The padding before it.
    padding: usize,
}

impl<'a> Format<'a> {
    /// The format in the first argument.
    fn new(lua: Lua<'a>) -> Result<Self, Raise> {
        let rest = c_text(check::bytes(lua, 1)?);
        Ok(Format { rest, little_endian: cfg!(target_endian = "little"), align: 1 })
    }

    /// Reads the next letter. Its data starts at the offset `at`, after any padding for alignment.
    fn next(&mut self, lua: Lua<'_>, at: usize) -> Result<Option<Item>, Raise> {
        let Some((&option, rest)) = self.rest.split_first() else { return Ok(None) };
        self.rest = rest;
        let size = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'f' => 4,
            b'c' => self.number(lua, 1)?,
            b'i' | b'I' => {
                let size = self.number(lua, 4)?;
                if size > INTEGER_SIZE_MAX {
                    let text = format_args!("integral size {size} is larger than limit of {INTEGER_SIZE_MAX}");
                    return Err(lua.error(text));
                }
                size
            }
            _ => 0,
        };
        let padding = if size == 0 || option == b'c' { 0 } else { padding(at, size.min(self.align)) };
        Ok(Some(Item { option, size, padding }))
    }

    /// Reads a number, if there is one.
    fn number(&mut self, lua: Lua<'_>, default: usize) -> Result<usize, Raise> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return Ok(default);
        }
        let (digits, rest) = self.rest.split_at(digits);
        self.rest = rest;
        let number = digits.iter().try_fold(0_i32, |n, digit| n.checked_mul(10)?.checked_add((digit - b'0').into()));
        number.map(|n| n as usize).ok_or_else(|| lua.error(format_args!("integral size overflow")))
    }

    /// Processes a letter that does not represent data.
    fn control(&mut self, lua: Lua<'_>, option: u8) -> Result<(), Raise> {
        match option {
            b' ' => {}
            b'>' => self.little_endian = false,
            b'<' => self.little_endian = true,
            b'!' => {
                let align = self.number(lua, ALIGN_DEFAULT)?;
                if !align.is_power_of_two() {
                    return Err(lua.error(format_args!("alignment {align} is not a power of 2")));
                }
                self.align = align;
            }
            _ => {
                let option = String::from_utf8_lossy(std::slice::from_ref(&option));
                return Err(check::error(lua, 1, format_args!("invalid format option '{option}'")));
            }
        }
        Ok(())
    }

    /// Converts the bytes of a number between little-endian and the selected byte order.
    fn order(&self, bytes: &mut [u8]) {
        if !self.little_endian {
            bytes.reverse();
        }
    }
}

/// The number of bytes from `at` to the next multiple of `align`. The formula is correct for powers of two, and is also
/// applied to other alignments.
fn padding(at: usize, align: usize) -> usize {
    align.wrapping_sub(at & (align - 1)) & (align - 1)
}

/// `pack(format, ...)`.
fn pack(lua: Lua<'_>) -> Results {
    let mut format = Format::new(lua)?;
    // Missing arguments are nil.
    lua.push_nil();
    let out = &mut lua.state().text;
    out.clear();
    let mut argument = 1;
    let mut next_argument = || {
        argument += 1;
        argument
    };
    while let Some(item) = format.next(lua, out.len())? {
        out.resize(out.len() + item.padding, 0);
        let start = out.len();
        match item.option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let value = to_unsigned(check::number(lua, next_argument())?);
                let mut bytes = [0; INTEGER_SIZE_MAX];
                bytes[..8].copy_from_slice(&value.to_le_bytes());
                out.extend_from_slice(&bytes[..item.size]);
                format.order(&mut out[start..]);
            }
            b'x' => out.push(0),
            b'f' => {
                out.extend_from_slice(&(check::number(lua, next_argument())? as f32).to_le_bytes());
                format.order(&mut out[start..]);
            }
            b'd' => {
                out.extend_from_slice(&check::number(lua, next_argument())?.to_le_bytes());
                format.order(&mut out[start..]);
            }
            b'c' | b's' => {
                let string = check::bytes(lua, next_argument())?;
                let len = if item.size == 0 { string.len() } else { item.size };
                let Some(string) = string.get(..len) else {
                    return Err(check::error(lua, next_argument(), format_args!("string too short")));
                };
                out.extend_from_slice(string);
                if item.option == b's' {
                    out.push(0);
                }
            }
            option => format.control(lua, option)?,
        }
    }
    lua.push_bytes(out);
    Ok(1)
}

/// `unpack(format, bytes [, position])`: returns the values and the position after them.
fn unpack(lua: Lua<'_>) -> Results {
    let mut format = Format::new(lua)?;
    let data = check::bytes(lua, 2)?;
    let position = check::optional_integer(lua, 3)?.unwrap_or(1);
    // A negative position becomes an unsigned number far beyond the end.
    let Some(mut at) = (position as usize).checked_sub(1) else {
        return Err(check::error(lua, 3, format_args!("offset must be 1 or greater")));
    };
    let too_short = || check::error(lua, 2, format_args!("data string too short"));
    let mut values = 0;
    while let Some(item) = format.next(lua, at)? {
        at = at.wrapping_add(item.padding);
        let mut bytes = slice(data, at, item.size).ok_or_else(too_short)?;
        if !lua.check_stack(2) {
            return Err(lua.error(format_args!("stack overflow (too many results)")));
        }
        match item.option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let signed = item.option.is_ascii_lowercase();
                lua.push_number(integer(bytes, format.little_endian, signed));
                values += 1;
            }
            b'x' => {}
            b'f' => {
                let mut number = [0; 4];
                number.copy_from_slice(bytes);
                format.order(&mut number);
                lua.push_number(f32::from_le_bytes(number).into());
                values += 1;
            }
            b'd' => {
                let mut number = [0; 8];
                number.copy_from_slice(bytes);
                format.order(&mut number);
                lua.push_number(f64::from_le_bytes(number));
                values += 1;
            }
            b'c' => {
                if item.size == 0 {
                    if values == 0 || !lua.is_number(-1) {
                        return Err(lua.error(format_args!("format 'c0' needs a previous size")));
                    }
                    let size = to_unsigned(lua.number(-1)) as usize;
                    lua.pop(1);
                    values -= 1;
                    bytes = slice(data, at, size).ok_or_else(too_short)?;
                }
                lua.push_bytes(bytes);
                values += 1;
            }
            b's' => {
                let rest = &data[at..];
                let Some(end) = memchr::memchr(0, rest) else {
                    return Err(lua.error(format_args!("unfinished string in data")));
                };
                lua.push_bytes(&rest[..end]);
                values += 1;
                bytes = &rest[..=end];
            }
            option => format.control(lua, option)?,
        }
        at += bytes.len();
    }
    lua.push_number(at as f64 + 1.0);
    Ok(values + 1)
}

/// `size(format)`: the number of bytes that the format packs.
fn size(lua: Lua<'_>) -> Results {
    let mut format = Format::new(lua)?;
    let mut at = 0_usize;
    while let Some(item) = format.next(lua, at)? {
        match item.option {
            b's' => return Err(check::error(lua, 1, format_args!("option 's' has no fixed size"))),
            b'c' if item.size == 0 => return Err(check::error(lua, 1, format_args!("option 'c0' has no fixed size"))),
            option if !option.is_ascii_alphanumeric() => format.control(lua, option)?,
            _ => {}
        }
        at += item.padding + item.size;
    }
    lua.push_number(at as f64);
    Ok(1)
}

/// `len` bytes of `data` starting at `at`.
fn slice(data: &[u8], at: usize, len: usize) -> Option<&[u8]> {
    data.get(at..)?.get(..len)
}

/// Converts a number to an integer modulo 2^64; results beyond that range are those of x86-64.
fn to_unsigned(n: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    if n >= HALF { truncate(n - HALF).cast_unsigned() ^ 1 << 63 } else { truncate(n).cast_unsigned() }
}

/// The integer represented by the bytes, of which the lowest 64 bits are used.
fn integer(bytes: &[u8], little_endian: bool, signed: bool) -> f64 {
    let add = |n: u64, byte: &u8| n << 8 | u64::from(*byte);
    let mut n = if little_endian { bytes.iter().rev().fold(0, add) } else { bytes.iter().fold(0, add) };
    if !signed {
        return n as f64;
    }
    // The shift count is modulo 64, which affects integers of more than 64 bits.
    let mask = u64::MAX.wrapping_shl((bytes.len() as u32).wrapping_mul(8).wrapping_sub(1));
    if n & mask != 0 {
        n |= mask;
    }
    n.cast_signed() as f64
}
