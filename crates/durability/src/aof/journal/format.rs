//! The journal's file. Numbers are little-endian; sums are those of dumps, CRC-64 as Jones defined it.
//!
//! | blocks of 4 KiB | what |
//! |---|---|
//! | the first | zeros, or [`DEMAND`]: the frames are to be put back in any case |
//! | 4,096 | the first half |
//! | 4,096 | the second half |
//!
//! A half begins with a block for its [`Header`]. Behind it come [`Frame`]s, each from the beginning of a block on.
//! Those count that have the header's epoch and follow each other without a gap; what is behind them is left from
//! earlier.

use kvick_rdb::crc64;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::UNIX_EPOCH;

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;
/// Blocks of a half.
pub(super) const HALF_BLOCKS: u64 = 4096;
/// Bytes of the file.
pub(super) const FILE: u64 = (1 + 2 * HALF_BLOCKS) * BLOCK as u64;
/// The largest commit that a frame is made for, in bytes: a larger one is in the increment as soon.
pub(super) const FRAME_MAX: usize = 256 * 1024;
/// What stands at the beginning of the file when the frames are to be put back in any case.
pub(super) const DEMAND: [u8; 8] = *b"KVDEMAND";

const MAGIC: [u8; 8] = *b"KVJRNL01";
/// Bytes before a half's first frame that are summed, to tell the increment by.
const PREFIX_MAX: u64 = 4096;
/// Bytes of a header in its block.
const HEADER: usize = 88;
/// Bytes of a frame before those that it commits.
const FRAME: usize = 32;

/// Where in the file a block of a half is.
pub(super) fn place(half: usize, block: u64) -> u64 {
    (1 + half as u64 * HALF_BLOCKS + block) * BLOCK as u64
}

/// Has the frames put back in any case.
pub(super) fn demand(file: &File) -> io::Result<()> {
    file.write_all_at(&DEMAND, 0)?;
    file.sync_data()
}

/// The run of the machine: what is in a file's pages survives a crash of a process, but not one of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Boot(pub [u8; 16]);

impl Boot {
    /// This one. Where it cannot be told it is like none.
    pub fn present() -> Boot {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let mut boot = Boot([0; 16]);
        for (byte, pair) in boot.0.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).unwrap_or_default();
            *byte = u8::from_str_radix(pair, 16).unwrap_or_default();
        }
        boot
    }

    /// Whether both are known, and the same.
    pub fn is(self, other: Boot) -> bool {
        self == other && self != Boot([0; 16])
    }
}

/// Which file it is, whatever its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub inode: u64,
    /// When it was created, in nanoseconds of Unix time, as files get the numbers of deleted ones; 0 where that is not
    /// known.
    pub born_ns: u64,
}

impl Identity {
    pub fn of(file: &File) -> io::Result<Identity> {
        let metadata = file.metadata()?;
        let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Ok(Identity { inode: metadata.ino(), born_ns: born.map_or(0, |born| born.as_nanos() as u64) })
    }
}

/// What the frames of a half are of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// Halves were begun so often; the later one counts more.
    pub epoch: u64,
    /// Halves of epochs before this one count no more.
    pub since: u64,
    /// When they were written.
    pub boot: Boot,
    /// The file that they belong in.
    pub identity: Identity,
    /// Where in it the first begins.
    pub start: u64,
    /// How many bytes before that are summed, and their sum.
    pub prefix: (u64, u64),
}

impl Header {
    /// For frames of this increment from `start` on.
    pub fn new(
        (epoch, since): (u64, u64),
        boot: Boot,
        identity: Identity,
        start: u64,
        increment: &File,
    ) -> io::Result<Header> {
        let len = start.min(PREFIX_MAX);
        let prefix = (len, sum_of(increment, start - len, len)?);
        Ok(Header { epoch, since, boot, identity, start, prefix })
    }

    /// Whether what stands before the first frame in this file is what stood there.
    pub fn fits(&self, increment: &File) -> bool {
        let (len, sum) = self.prefix;
        let start = self.start.checked_sub(len);
        start.is_some_and(|start| sum_of(increment, start, len).is_ok_and(|present| present == sum))
    }

    /// Appends its block.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.boot.0);
        let Identity { inode, born_ns } = self.identity;
        for number in [self.epoch, self.since, inode, born_ns, self.start, self.prefix.0, self.prefix.1] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let sum = crc64::update(0, &out[start..]);
        out.extend_from_slice(&sum.to_le_bytes());
        debug_assert_eq!(out.len() - start, HEADER);
        out.resize(start + BLOCK, 0);
    }

    /// The header in a block, if there is one.
    pub fn read(block: &[u8]) -> Option<Header> {
        let (fields, sum) = block.get(..HEADER)?.split_at(HEADER - 8);
        let is_whole = fields.starts_with(&MAGIC) && number(sum, 0)? == crc64::update(0, fields);
        let boot = Boot(fields.get(8..24)?.try_into().ok()?);
        let [epoch, since, inode, born_ns, start, len, prefix_sum] = numbers(fields.get(24..)?)?;
        let (identity, prefix) = (Identity { inode, born_ns }, (len, prefix_sum));
        let header = Header { epoch, since, boot, identity, start, prefix };
        (is_whole && prefix.0 <= PREFIX_MAX).then_some(header)
    }
}

/// A commit: bytes of the increment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    /// That of its half.
    pub epoch: u64,
    /// Where in the increment its bytes belong.
    pub offset: u64,
    /// How many they are.
    pub len: usize,
}

impl Frame {
    /// How many blocks a frame of so many bytes takes.
    pub fn blocks(len: usize) -> u64 {
        (FRAME + len).div_ceil(BLOCK) as u64
    }

    /// Appends the frame with its bytes, which stand in the increment, to the end of its last block.
    pub fn append_to(&self, out: &mut Vec<u8>, increment: &File) -> io::Result<()> {
        let start = out.len();
        out.resize(start + Self::blocks(self.len) as usize * BLOCK, 0);
        let (fields, bytes) = out[start..].split_at_mut(FRAME);
        increment.read_exact_at(&mut bytes[..self.len], self.offset)?;
        fields[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        fields[16..24].copy_from_slice(&self.offset.to_le_bytes());
        fields[24..32].copy_from_slice(&(self.len as u64).to_le_bytes());
        let sum = crc64::update(0, &out[start + 8..start + FRAME + self.len]);
        out[start..start + 8].copy_from_slice(&sum.to_le_bytes());
        Ok(())
    }

    /// The frame of this epoch for this offset that a half has from these bytes on, with the bytes that it commits.
    pub fn read(half: &[u8], epoch: u64, offset: u64) -> Option<(Frame, &[u8])> {
        let frame = Frame { epoch, offset, len: number(half, 24)?.try_into().ok()? };
        let is_next = number(half, 8)? == epoch && number(half, 16)? == offset && frame.len <= FRAME_MAX;
        let bytes = half.get(8..FRAME + frame.len).filter(|_| is_next)?;
        (number(half, 0)? == crc64::update(0, bytes)).then(|| (frame, &half[FRAME..FRAME + frame.len]))
    }
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// So many numbers, one behind the other.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (at, value) in numbers.iter_mut().enumerate() {
        *value = number(bytes, at * 8)?;
    }
    Some(numbers)
}

/// The sum of so many bytes of a file.
fn sum_of(file: &File, at: u64, len: u64) -> io::Result<u64> {
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(crc64::update(0, &bytes))
}

/// A half as it is in the file.
pub(super) fn read_half(file: &File, half: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let at = place(half, 0);
    let end = place(half, HALF_BLOCKS);
    let mut section = Section { file, at, end };
    section.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A part of a file, as far as it is there.
struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

impl Read for Section<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let room = out.len().min((self.end - self.at) as usize);
        let read = self.file.read_at(&mut out[..room], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
