//! The source of a dump's bytes: a buffered and checksummed reader, or a payload in memory.
//!
//! A stated length is never trusted for an allocation: a string longer than the buffer grows as its bytes arrive.

use crate::crc64;
use crate::error::{Error, ErrorKind};
use std::io::Read;
use std::ops::ControlFlow;

/// A sequence of bytes, with the number of bytes taken so far.
pub(crate) trait Input {
    /// Takes the next `n` bytes: borrowed from the input if possible, otherwise copied to `scratch`.
    fn take<'a>(&'a mut self, n: u64, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], Error>;

    /// Takes the next `N` bytes.
    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], Error>;

    /// Number of bytes taken so far.
    fn offset(&self) -> u64;

    /// Takes the next `n` bytes as an owned vector.
    fn take_owned(&mut self, n: u64) -> Result<Vec<u8>, Error>;

    /// An error at the current offset.
    fn fail(&self, kind: ErrorKind) -> Error {
        Error { offset: self.offset(), kind }
    }
}

/// A dump in memory.
pub(crate) struct Payload<'p> {
    bytes: &'p [u8],
    offset: usize,
}

impl<'p> Payload<'p> {
    pub fn new(bytes: &'p [u8]) -> Self {
        Payload { bytes, offset: 0 }
    }

    /// The error of a payload that ends too early.
    #[cold]
    fn ends(&self) -> Error {
        Error { offset: self.bytes.len() as u64, kind: ErrorKind::Truncated }
    }
}

impl Input for Payload<'_> {
    #[inline]
    fn take<'a>(&'a mut self, n: u64, _: &'a mut Vec<u8>) -> Result<&'a [u8], Error> {
        let left = &self.bytes[self.offset..];
        if n > left.len() as u64 {
            return Err(self.ends());
        }
        let taken = &left[..n as usize];
        self.offset += taken.len();
        Ok(taken)
    }

    #[inline]
    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        let taken = *self.bytes[self.offset..].first_chunk().ok_or_else(|| self.ends())?;
        self.offset += N;
        Ok(taken)
    }

    fn take_owned(&mut self, n: u64) -> Result<Vec<u8>, Error> {
        self.take(n, &mut Vec::new()).map(<[u8]>::to_vec)
    }

    fn offset(&self) -> u64 {
        self.offset as u64
    }
}

/// Called with the number of bytes read so far, each time the buffer is filled; may cancel reading.
pub type Progress<'r> = Box<dyn FnMut(u64) -> ControlFlow<()> + 'r>;

/// Size of the buffer, in bytes.
const BUFFER_LEN: usize = 256 * 1024;
/// Maximum length of strings that are borrowed from the buffer.
const IN_PLACE_MAX: u64 = 64 * 1024;
/// Initial capacity for a longer string, in bytes, before its bytes arrive.
const RESERVE_MIN: u64 = 1024 * 1024;

/// A dump that is read and checksummed incrementally.
pub(crate) struct Stream<'r, R> {
    reader: R,
    buffer: Box<[u8]>,
    /// The part of the buffer that was filled and not taken.
    start: usize,
    end: usize,
    /// The position in the buffer up to which bytes are included in `sum`.
    checksummed: usize,
    sum: u64,
    /// Whether to compute a checksum.
    sums: bool,
    /// Number of bytes of the input before the buffer's first byte.
    before: u64,
    progress: Option<Progress<'r>>,
}

impl<'r, R: Read> Stream<'r, R> {
    pub fn new(reader: R, sums: bool, progress: Option<Progress<'r>>) -> Self {
        let buffer = vec![0; BUFFER_LEN].into_boxed_slice();
        Stream { reader, buffer, start: 0, end: 0, checksummed: 0, sum: 0, sums, before: 0, progress }
    }

    /// The checksum of all bytes taken.
    pub fn sum(&mut self) -> u64 {
        self.update_checksum();
        self.sum
    }

    /// The bytes that were read ahead, and the reader.
    pub fn into_parts(self) -> (Vec<u8>, R) {
        (self.buffer[self.start..self.end].to_vec(), self.reader)
    }

    fn update_checksum(&mut self) {
        if self.sums {
            self.sum = crc64::update(self.sum, &self.buffer[self.checksummed..self.start]);
        }
        self.checksummed = self.start;
    }

    /// Fills the buffer until it holds `n` bytes that were not taken; `n` is at most half its size.
    #[cold]
    fn fill(&mut self, n: usize) -> Result<(), Error> {
        self.update_checksum();
        self.buffer.copy_within(self.start..self.end, 0);
        self.before += self.start as u64;
        self.end -= self.start;
        (self.start, self.checksummed) = (0, 0);
        while self.end < n {
            match self.reader.read(&mut self.buffer[self.end..]) {
                Ok(0) => return Err(self.ends()),
                Ok(read) => self.end += read.min(self.buffer.len() - self.end),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail(ErrorKind::Io(error))),
            }
        }
        self.report()
    }

    /// The error for an input that ends here.
    fn ends(&self) -> Error {
        Error { offset: self.before + self.end as u64, kind: ErrorKind::Truncated }
    }

    fn report(&mut self) -> Result<(), Error> {
        let offset = self.offset();
        match self.progress.as_mut().map(|progress| progress(offset)) {
            Some(ControlFlow::Break(())) => Err(self.fail(ErrorKind::Cancelled)),
            _ => Ok(()),
        }
    }

    /// Takes a string longer than the buffer.
    fn take_long(&mut self, n: u64, into: &mut Vec<u8>) -> Result<(), Error> {
        into.clear();
        while (into.len() as u64) < n {
            if self.start == self.end {
                self.fill(1)?;
            }
            let missing = n - into.len() as u64;
            let piece = missing.min((self.end - self.start) as u64) as usize;
            if into.capacity() - into.len() < piece {
                // As much again as has arrived, but no more than the stated length.
                into.reserve_exact(missing.min(RESERVE_MIN.max(into.len() as u64)) as usize);
            }
            into.extend_from_slice(&self.buffer[self.start..self.start + piece]);
            self.start += piece;
        }
        Ok(())
    }
}

impl<R: Read> Input for Stream<'_, R> {
    #[inline]
    fn take<'a>(&'a mut self, n: u64, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], Error> {
        if n > IN_PLACE_MAX {
            self.take_long(n, scratch)?;
            return Ok(scratch);
        }
        let n = n as usize;
        if self.end - self.start < n {
            self.fill(n)?;
        }
        let start = self.start;
        self.start += n;
        Ok(&self.buffer[start..start + n])
    }

    #[inline]
    fn take_array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        if self.end - self.start < N {
            self.fill(N)?;
        }
        let mut taken = [0; N];
        taken.copy_from_slice(&self.buffer[self.start..self.start + N]);
        self.start += N;
        Ok(taken)
    }

    fn take_owned(&mut self, n: u64) -> Result<Vec<u8>, Error> {
        let mut long = Vec::new();
        if n > IN_PLACE_MAX {
            self.take_long(n, &mut long)?;
            return Ok(long);
        }
        self.take(n, &mut long).map(<[u8]>::to_vec)
    }

    fn offset(&self) -> u64 {
        self.before + self.start as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns its bytes in small pieces.
    struct OneByteReader<'a>(&'a [u8]);

    impl Read for OneByteReader<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let n = buffer.len().min(7_001).min(self.0.len());
            buffer[..n].copy_from_slice(&self.0[..n]);
            self.0 = &self.0[n..];
            Ok(n)
        }
    }

    #[test]
    fn input_returns_the_bytes_and_their_checksum() {
        let bytes: Vec<u8> = (0..900_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
        let mut stream = Stream::new(OneByteReader(&bytes), true, None);
        let (mut taken, mut scratch) = (Vec::new(), Vec::new());
        for n in [1, 5, 64 * 1024, 3, 300_000, 1, 64 * 1024 + 1, 100].into_iter().cycle() {
            let n = n.min(bytes.len() - taken.len());
            taken.extend_from_slice(stream.take(n as u64, &mut scratch).unwrap());
            assert_eq!(stream.offset(), taken.len() as u64);
            assert_eq!(stream.sum(), crc64::update(0, &taken));
            if taken.len() == bytes.len() {
                break;
            }
        }
        assert!(taken == bytes);
        let error = stream.take(1, &mut scratch).unwrap_err();
        assert!(matches!(error, Error { offset: 900_000, kind: ErrorKind::Truncated }));
    }

    #[test]
    fn a_claimed_length_reserves_little_memory() {
        let mut stream = Stream::new(&b"ten bytes!"[..], true, None);
        let mut scratch = Vec::new();
        assert!(stream.take(4 << 30, &mut scratch).is_err());
        assert!(scratch.capacity() as u64 <= RESERVE_MIN, "{}", scratch.capacity());
    }

    #[test]
    fn reading_can_be_cancelled() {
        let bytes = vec![1; 2 * BUFFER_LEN];
        let progress: Progress<'_> =
            Box::new(|offset| if offset > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) });
        let mut stream = Stream::new(&bytes[..], false, Some(progress));
        let error = stream.take_owned(2 * BUFFER_LEN as u64).unwrap_err();
        assert!(matches!(error.kind, ErrorKind::Cancelled));
    }
}
