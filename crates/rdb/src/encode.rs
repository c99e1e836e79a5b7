//! Encoding of lengths, strings and numbers in a dump.

use crate::crc64;
use kvick_resp::format::parse_i64;
use kvick_store::Str;
use kvick_store::encodings::lzf;
use std::convert::Infallible;
use std::io::{self, Write};

/// Special string formats, encoded in place of a length.
pub(crate) mod form {
    pub const INT8: u8 = 0;
    pub const INT16: u8 = 1;
    pub const INT32: u8 = 2;
    pub const LZF: u8 = 3;
    /// The two high bits that mark a special format.
    pub const MARK: u8 = 0xc0;
}

/// First bytes of longer lengths.
pub(crate) mod length {
    pub const BITS_14: u8 = 0x40;
    pub const BITS_32: u8 = 0x80;
    pub const BITS_64: u8 = 0x81;
}

/// Maximum length of the text of a 32-bit integer.
const INT_LEN_MAX: usize = 11;
/// Minimum length of strings to be compressed.
const COMPRESSED_LEN_MIN: usize = 21;

/// Minimum number of bytes that compression must save.
const COMPRESSION_GAIN_MIN: usize = 4;

/// Receives the bytes of a dump.
pub trait Sink {
    /// The error of a failed write.
    type Error;

    /// Appends bytes.
    fn put(&mut self, bytes: &[u8]) -> Result<(), Self::Error>;
}

impl Sink for Vec<u8> {
    type Error = Infallible;

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

/// Size of the write buffer, in bytes.
const BUFFER_LEN: usize = 128 * 1024;

/// A buffered writer that computes a checksum.
pub(crate) struct ChecksumWriter<W> {
    writer: W,
    buffer: Vec<u8>,
    sum: u64,
    sums: bool,
    written: u64,
}

impl<W: Write> ChecksumWriter<W> {
    pub fn new(writer: W, sums: bool) -> Self {
        ChecksumWriter { writer, buffer: Vec::with_capacity(BUFFER_LEN), sum: 0, sums, written: 0 }
    }

    /// Number of bytes received, written or buffered.
    pub fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// The checksum of all bytes received; 0 if checksums are disabled.
    pub fn sum(&mut self) -> io::Result<u64> {
        self.flush_buffer()?;
        Ok(self.sum)
    }

    /// Writes the buffered bytes.
    pub fn flush_buffer(&mut self) -> io::Result<()> {
        let buffer = std::mem::take(&mut self.buffer);
        let result = self.write(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
        result
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.sums {
            self.sum = crc64::update(self.sum, bytes);
        }
        self.written += bytes.len() as u64;
        self.writer.write_all(bytes)
    }

    pub fn get_mut(&mut self) -> &mut W {
        &mut self.writer
    }

    pub fn into_inner(self) -> W {
        self.writer
    }

    #[cold]
    fn put_through(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.flush_buffer()?;
        if bytes.len() >= BUFFER_LEN / 2 {
            return self.write(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }
}

impl<W: Write> Sink for ChecksumWriter<W> {
    type Error = io::Error;

    #[inline]
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.buffer.capacity() - self.buffer.len() < bytes.len() {
            return self.put_through(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }
}

/// Encodes parts of values to a sink.
pub(crate) struct Encoder<'s, S> {
    sink: &'s mut S,
    compresses: bool,
    /// Buffer for compressed strings.
    compressed: Vec<u8>,
}

impl<'s, S: Sink> Encoder<'s, S> {
    pub fn new(sink: &'s mut S, compresses: bool) -> Self {
        Encoder { sink, compresses, compressed: Vec::new() }
    }

    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), S::Error> {
        self.sink.put(bytes)
    }

    #[inline]
    pub fn byte(&mut self, byte: u8) -> Result<(), S::Error> {
        self.sink.put(&[byte])
    }

    /// A length, count or other number with a variable-length encoding.
    #[inline]
    pub fn length(&mut self, n: u64) -> Result<(), S::Error> {
        if n < 1 << 6 {
            self.sink.put(&[n as u8])
        } else if n < 1 << 14 {
            self.sink.put(&(n as u16 | u16::from(length::BITS_14) << 8).to_be_bytes())
        } else if let Ok(n) = u32::try_from(n) {
            let mut bytes = [length::BITS_32; 5];
            bytes[1..].copy_from_slice(&n.to_be_bytes());
            self.sink.put(&bytes)
        } else {
            let mut bytes = [length::BITS_64; 9];
            bytes[1..].copy_from_slice(&n.to_be_bytes());
            self.sink.put(&bytes)
        }
    }

    /// Unix time in milliseconds.
    #[inline]
    pub fn time(&mut self, ms: i64) -> Result<(), S::Error> {
        self.sink.put(&ms.to_le_bytes())
    }

    /// A score.
    #[inline]
    pub fn score(&mut self, score: f64) -> Result<(), S::Error> {
        self.sink.put(&score.to_le_bytes())
    }

    /// A string in its shortest format.
    pub fn string(&mut self, bytes: &[u8]) -> Result<(), S::Error> {
        if bytes.len() <= INT_LEN_MAX
            && let Some(number) = parse_i64(bytes)
            && let Ok(number) = i32::try_from(number)
        {
            return self.small_int(number);
        }
        if self.compresses
            && bytes.len() >= COMPRESSED_LEN_MIN
            && let Some(len) = lzf::compress_into(bytes, &mut self.compressed)
            && len + COMPRESSION_GAIN_MIN <= bytes.len()
        {
            let compressed = std::mem::take(&mut self.compressed);
            self.packed(&compressed[..len], bytes.len())?;
            self.compressed = compressed;
            return Ok(());
        }
        self.length(bytes.len() as u64)?;
        self.sink.put(bytes)
    }

    /// An already compressed string, and its uncompressed length.
    pub fn packed(&mut self, packed: &[u8], len: usize) -> Result<(), S::Error> {
        self.byte(form::MARK | form::LZF)?;
        self.length(packed.len() as u64)?;
        self.length(len as u64)?;
        self.sink.put(packed)
    }

    /// A string in either representation.
    #[inline]
    pub fn str(&mut self, string: Str<'_>) -> Result<(), S::Error> {
        match string {
            Str::Bytes(bytes) => self.string(bytes),
            Str::Int(number) => match i32::try_from(number) {
                Ok(number) => self.small_int(number),
                Err(_) => self.string(string.bytes(&mut [0; 20])),
            },
        }
    }

    fn small_int(&mut self, number: i32) -> Result<(), S::Error> {
        let [a, b, c, d] = number.to_le_bytes();
        if i8::try_from(number).is_ok() {
            self.sink.put(&[form::MARK | form::INT8, a])
        } else if i16::try_from(number).is_ok() {
            self.sink.put(&[form::MARK | form::INT16, a, b])
        } else {
            self.sink.put(&[form::MARK | form::INT32, a, b, c, d])
        }
    }
}
