//! Decoding of lengths, strings and numbers in a dump.

use crate::encode::{form, length};
use crate::error::{Corrupt, Error, ErrorKind};
use crate::input::Input;
use kvick_store::Str;
use kvick_store::encodings::lzf;

/// Upper bound for bytes per compressed byte: a reference of three bytes copies at most 264.
const LZF_RATIO_MAX: u64 = 88;

/// A length, or the format of a specially encoded string.
enum Length {
    Plain(u64),
    Form(u8),
}

/// Decodes parts of values from an input.
pub(crate) struct Decoder<I> {
    pub input: I,
    scratch: Vec<u8>,
    /// The last decompressed string.
    unpacked: Vec<u8>,
}

impl<I: Input> Decoder<I> {
    pub fn new(input: I) -> Self {
        Decoder { input, scratch: Vec::new(), unpacked: Vec::new() }
    }

    /// An error at the current offset.
    pub fn fail(&self, kind: ErrorKind) -> Error {
        self.input.fail(kind)
    }

    /// An error about invalid bytes at the current offset.
    #[cold]
    pub fn corrupt(&self, what: Corrupt) -> Error {
        self.input.fail(ErrorKind::Corrupt(what))
    }

    #[inline]
    pub fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.input.take_array::<1>()?[0])
    }

    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.input.take_array()
    }

    /// The next `n` bytes unchanged.
    pub fn raw(&mut self, n: u64) -> Result<Vec<u8>, Error> {
        self.input.take_owned(n)
    }

    /// Unix time in milliseconds.
    pub fn time(&mut self) -> Result<i64, Error> {
        Ok(i64::from_le_bytes(self.array()?))
    }

    #[inline]
    fn length(&mut self) -> Result<Length, Error> {
        let first = self.byte()?;
        Ok(match first {
            0..length::BITS_14 => Length::Plain(u64::from(first)),
            length::BITS_14..length::BITS_32 => Length::Plain(u64::from(first & 0x3f) << 8 | u64::from(self.byte()?)),
            length::BITS_32 => Length::Plain(u64::from(u32::from_be_bytes(self.array()?))),
            length::BITS_64 => Length::Plain(u64::from_be_bytes(self.array()?)),
            form::MARK.. => Length::Form(first & !form::MARK),
            _ => return Err(self.corrupt(Corrupt::Length(first))),
        })
    }

    /// A length, count or other number with a variable-length encoding.
    #[inline]
    pub fn number(&mut self) -> Result<u64, Error> {
        match self.length()? {
            Length::Plain(number) => Ok(number),
            Length::Form(form) => Err(self.corrupt(Corrupt::Length(form::MARK | form))),
        }
    }

    /// A string, borrowed from the input if possible.
    #[inline]
    pub fn string(&mut self) -> Result<Str<'_>, Error> {
        match self.length()? {
            Length::Plain(len) => Ok(Str::Bytes(self.input.take(len, &mut self.scratch)?)),
            Length::Form(form::LZF) => {
                let mut unpacked = std::mem::take(&mut self.unpacked);
                self.unpack(&mut unpacked)?;
                self.unpacked = unpacked;
                Ok(Str::Bytes(&self.unpacked))
            }
            Length::Form(form) => self.int(form).map(Str::Int),
        }
    }

    /// An owned string; one that is encoded as an integer is returned as text.
    pub fn owned(&mut self) -> Result<Vec<u8>, Error> {
        match self.length()? {
            Length::Plain(len) => self.input.take_owned(len),
            Length::Form(form::LZF) => {
                let mut unpacked = Vec::new();
                self.unpack(&mut unpacked)?;
                Ok(unpacked)
            }
            Length::Form(form) => Ok(Str::Int(self.int(form)?).bytes(&mut [0; 20]).to_vec()),
        }
    }

    fn int(&mut self, form: u8) -> Result<i64, Error> {
        Ok(match form {
            form::INT8 => i64::from(i8::from_le_bytes(self.array()?)),
            form::INT16 => i64::from(i16::from_le_bytes(self.array()?)),
            form::INT32 => i64::from(i32::from_le_bytes(self.array()?)),
            _ => return Err(self.corrupt(Corrupt::StringForm(form))),
        })
    }

    fn unpack(&mut self, into: &mut Vec<u8>) -> Result<(), Error> {
        let packed_len = self.number()?;
        let len = self.number()?;
        let packed = self.input.take(packed_len, &mut self.scratch)?;
        let unpacked =
            len <= packed_len.saturating_mul(LZF_RATIO_MAX) && lzf::decompress_into(packed, len as usize, into).is_ok();
        if unpacked { Ok(()) } else { Err(self.corrupt(Corrupt::Lzf)) }
    }
}
