//! The elements of a listpack: encoding and decoding.
//!
//! | first byte | then | element |
//! | --- | --- | --- |
//! | `0vvvvvvv` | | integer 0 to 127 |
//! | `10llllll` | `l` bytes | string of up to 63 bytes |
//! | `110vvvvv` | 1 byte | 13-bit integer, high bits first |
//! | `1110llll` | 1 byte of length, `l` bytes | string of up to 4095 bytes, length high bits first |
//! | `11110000` | 4 bytes of length, `l` bytes | longer string |
//! | `11110001` to `11110100` | 2, 3, 4, 8 bytes | integer of that width |
//! | `11111111` | | the end |
//!
//! Integers are in two's complement. Everything is little-endian unless stated
//! otherwise. Each element is followed by its length for reading backwards: seven bits
//! per byte, most significant first, with the high bit set in all bytes but the first.

use crate::value::Str;
use kvick_resp::format::parse_i64;

/// The terminator of a listpack.
pub(super) const END: u8 = 0xFF;

/// The longest header: a first byte and an integer of eight bytes.
const HEADER_MAX: usize = 9;

/// The longest trailing length.
pub(super) const BACKLEN_MAX: usize = 5;

/// An element in encoded form.
#[derive(Clone, Copy)]
pub struct Element<'a> {
    header: [u8; HEADER_MAX],
    header_len: u8,
    /// The bytes after the header: a string's content, nothing for an integer.
    body: &'a [u8],
}

impl<'a> Element<'a> {
    /// An integer if the bytes are the canonical form of one, otherwise a string.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        match integer(bytes) {
            Some(number) => Element::int(number),
            None => Element::string(bytes),
        }
    }

    /// Like [`Element::new`], for a string that may be an integer already.
    #[inline]
    pub fn of(string: Str<'a>) -> Self {
        match string {
            Str::Bytes(bytes) => Element::new(bytes),
            Str::Int(number) => Element::int(number),
        }
    }

    /// An integer, in the shortest form.
    #[inline]
    pub fn int(number: i64) -> Self {
        let mut header = [0; HEADER_MAX];
        let bytes = number.to_le_bytes();
        let header_len = match number {
            0..=127 => {
                header[0] = bytes[0];
                1
            }
            -4096..=4095 => {
                header[0] = 0xC0 | bytes[1] & 0x1F;
                header[1] = bytes[0];
                2
            }
            _ => {
                let (first, width) = match number {
                    -0x8000..=0x7FFF => (0xF1, 2),
                    -0x80_0000..=0x7F_FFFF => (0xF2, 3),
                    -0x8000_0000..=0x7FFF_FFFF => (0xF3, 4),
                    _ => (0xF4, 8),
                };
                header[0] = first;
                header[1..].copy_from_slice(&bytes);
                1 + width
            }
        };
        Element { header, header_len, body: &[] }
    }

    /// A string, without checking for integers.
    #[inline]
    fn string(bytes: &'a [u8]) -> Self {
        let mut header = [0; HEADER_MAX];
        let len = bytes.len();
        let header_len = match len {
            0..64 => {
                header[0] = 0x80 | len as u8;
                1
            }
            64..4096 => {
                header[0] = 0xE0 | (len >> 8) as u8;
                header[1] = len as u8;
                2
            }
            _ => {
                assert!(len < super::BYTES_MAX, "a string of {len} bytes in a listpack");
                header[0] = 0xF0;
                header[1..5].copy_from_slice(&(len as u32).to_le_bytes());
                5
            }
        };
        Element { header, header_len, body: bytes }
    }

    /// Size in a listpack, in bytes.
    #[inline]
    pub fn size(&self) -> usize {
        let len = self.encoded_len();
        len + backlen_size(len)
    }

    /// Size without the trailing length, in bytes.
    #[inline]
    pub(in crate::encodings) fn encoded_len(&self) -> usize {
        usize::from(self.header_len) + self.body.len()
    }

    /// The bytes before [`Element::body`].
    #[inline]
    pub(in crate::encodings) fn header(&self) -> &[u8] {
        &self.header[..self.header_len.into()]
    }

    /// A string's bytes, nothing for an integer.
    #[inline]
    pub(in crate::encodings) fn body(&self) -> &'a [u8] {
        self.body
    }

    /// Writes it into `room` of exactly its size.
    #[inline]
    pub(super) fn write(&self, room: &mut [u8]) {
        let len = self.encoded_len();
        let (own, backlen) = room.split_at_mut(len);
        self.write_encoded(own);
        write_backlen(len, backlen);
    }

    /// Writes it without its trailing length into `room` of exactly that size.
    #[inline]
    pub(in crate::encodings) fn write_encoded(&self, room: &mut [u8]) {
        let (header, body) = room.split_at_mut(self.header_len.into());
        // Nearly all headers are one byte, so avoid a call for the copy.
        match header {
            [only] => *only = self.header[0],
            _ => header.copy_from_slice(self.header()),
        }
        body.copy_from_slice(self.body);
    }
}

/// The integer of which `bytes` is the canonical form.
#[inline]
pub(super) fn integer(bytes: &[u8]) -> Option<i64> {
    if bytes.len() > 20 { None } else { parse_i64(bytes) }
}

/// Size of the trailing length of an element of `len` bytes.
#[inline]
pub(in crate::encodings) fn backlen_size(len: usize) -> usize {
    match len {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        0x20_0000..0x1000_0000 => 4,
        _ => 5,
    }
}

/// Writes a trailing length into `room` of exactly its size.
#[inline]
pub(in crate::encodings) fn write_backlen(len: usize, room: &mut [u8]) {
    if let [only] = room {
        *only = len as u8;
        return;
    }
    let mut left = len;
    for byte in room.iter_mut().rev() {
        *byte = left as u8 | 0x80;
        left >>= 7;
    }
    if let Some(first) = room.first_mut() {
        *first &= 0x7F;
    }
}

/// Reads the trailing length at the end of `bytes`, and its own size. `None` if it is too long.
#[inline]
pub(super) fn read_backlen(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut len = 0;
    for (i, byte) in bytes.iter().rev().take(BACKLEN_MAX).enumerate() {
        len |= usize::from(byte & 0x7F) << (7 * i);
        if byte & 0x80 == 0 {
            return Some((len, i + 1));
        }
    }
    None
}

/// Lengths of elements without their trailing lengths, by first byte; 0 if the first byte does not determine it.
const LENGTHS: [u8; 256] = {
    let mut lengths = [0; 256];
    let mut first = 0;
    while first < lengths.len() {
        lengths[first] = match first as u8 {
            0..0x80 => 1,
            string @ 0x80..0xC0 => 1 + (string & 0x3F),
            0xC0..0xE0 => 2,
            0xF1 => 3,
            0xF2 => 4,
            0xF3 => 5,
            0xF4 => 9,
            _ => 0,
        };
        first += 1;
    }
    lengths
};

/// Length of the element at the beginning of `bytes`, without its
/// trailing length. `None` if it is invalid, or its header is truncated.
#[inline]
pub(super) fn encoded_len(bytes: &[u8]) -> Option<usize> {
    match LENGTHS[usize::from(*bytes.first()?)] {
        0 => long_len(bytes),
        len => Some(len.into()),
    }
}

/// Like `encoded_len`, for an element whose first byte does not determine its length.
#[inline(never)]
fn long_len(bytes: &[u8]) -> Option<usize> {
    Some(match *bytes.first()? {
        first @ 0xE0..0xF0 => 2 + (usize::from(first & 0xF) << 8 | usize::from(*bytes.get(1)?)),
        0xF0 => 5 + u32::from_le_bytes(*bytes.get(1..)?.first_chunk()?) as usize,
        _ => return None,
    })
}

/// Like `encoded_len`, for bytes that are known to be an element.
#[inline]
pub(in crate::encodings) fn known_len(bytes: &[u8]) -> usize {
    encoded_len(bytes).unwrap_or_else(|| unreachable!("it is an element"))
}

/// The length of the short string that begins with this byte, if it is one.
#[inline]
pub(super) fn short_string_len(first: u8) -> Option<usize> {
    (first & 0xC0 == 0x80).then_some(usize::from(first & 0x3F))
}

/// Whether two strings of the same length are equal. Different names of the
/// same length mostly differ at their ends, which is checked without a call.
#[inline]
pub(in crate::encodings) fn is_same(a: &[u8], b: &[u8]) -> bool {
    match (a.last_chunk(), b.last_chunk()) {
        (Some(a_end), Some(b_end)) => u64::from_le_bytes(*a_end) == u64::from_le_bytes(*b_end) && a == b,
        _ => a == b,
    }
}

/// The element at the beginning of `bytes`, and its length without
/// its trailing length. `None` if it is invalid or truncated.
#[inline]
pub(in crate::encodings) fn decode(bytes: &[u8]) -> Option<(Str<'_>, usize)> {
    let (&first, rest) = bytes.split_first()?;
    Some(match first {
        0..0x80 => (Str::Int(first.into()), 1),
        0x80..0xC0 => {
            let len = usize::from(first & 0x3F);
            (Str::Bytes(rest.get(..len)?), 1 + len)
        }
        0xC0..0xE0 => {
            // Shifted left so that the sign of thirteen bits becomes that of sixteen, and back.
            let bits = i16::from_be_bytes([first, *rest.first()?]) << 3;
            (Str::Int((bits >> 3).into()), 2)
        }
        0xE0..0xF0 => {
            let (&low, rest) = rest.split_first()?;
            let len = usize::from(first & 0xF) << 8 | usize::from(low);
            (Str::Bytes(rest.get(..len)?), 2 + len)
        }
        0xF0 => {
            let (len, rest) = rest.split_first_chunk()?;
            let len = u32::from_le_bytes(*len) as usize;
            (Str::Bytes(rest.get(..len)?), 5 + len)
        }
        0xF1 => (Str::Int(i16::from_le_bytes(*rest.first_chunk()?).into()), 3),
        0xF2 => {
            let [a, b, c] = *rest.first_chunk()?;
            (Str::Int((i32::from_le_bytes([0, a, b, c]) >> 8).into()), 4)
        }
        0xF3 => (Str::Int(i32::from_le_bytes(*rest.first_chunk()?).into()), 5),
        0xF4 => (Str::Int(i64::from_le_bytes(*rest.first_chunk()?)), 9),
        _ => return None,
    })
}
