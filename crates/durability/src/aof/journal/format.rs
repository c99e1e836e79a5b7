//! The journal's file format. Numbers are little-endian; checksums are those of dumps, CRC-64 as Jones defined it.
//!
//! | blocks of 4 KiB | content |
//! |---|---|
//! | 1 | zeros, or [`FORCE_RECOVERY`]: the frames must be recovered in any case |
//! | 4,096 | the first half |
//! | 4,096 | the second half |
//!
//! A half starts with a block for its [`Header`], followed by [`Frame`]s, each aligned to a block. A frame is valid if
//! it has the header's epoch and continues the previous frame without a gap; anything after the last valid frame is
//! left over from an earlier epoch.

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
/// The largest commit written as a frame, in bytes. Syncing the increment is as fast for larger ones.
pub(super) const FRAME_MAX: usize = 256 * 1024;
/// The file starts with this if the frames must be recovered in any case.
pub(super) const FORCE_RECOVERY: [u8; 8] = *b"KVDEMAND";

const MAGIC: [u8; 8] = *b"KVJRNL01";
/// The number of bytes before a half's first frame whose checksum identifies the increment.
const PREFIX_MAX: u64 = 4096;
/// Size of a header in bytes.
const HEADER: usize = 88;
/// Size of a frame's header in bytes.
const FRAME: usize = 32;

/// The file offset of a block of a half.
pub(super) fn file_offset(half: usize, block: u64) -> u64 {
    (1 + half as u64 * HALF_BLOCKS + block) * BLOCK as u64
}

/// Marks the journal so that the frames are recovered in any case.
pub(super) fn force_recovery(file: &File) -> io::Result<()> {
    file.write_all_at(&FORCE_RECOVERY, 0)?;
    file.sync_data()
}

/// The boot of the machine. A file's cached pages survive a crash of the process, but not of the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Boot(pub [u8; 16]);

impl Boot {
    /// The current boot. If it cannot be determined, it equals no other.
    pub fn current() -> Boot {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        let mut boot = Boot([0; 16]);
        for (byte, pair) in boot.0.iter_mut().zip(digits.chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).unwrap_or_default();
            *byte = u8::from_str_radix(pair, 16).unwrap_or_default();
        }
        boot
    }

    /// Whether both are known and equal.
    pub fn is_same(self, other: Boot) -> bool {
        self == other && self != Boot([0; 16])
    }
}

/// The identity of a file, independent of its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::aof) struct Identity {
    pub inode: u64,
    /// The creation time in nanoseconds of Unix time, because inode numbers are reused; 0 if unknown.
    pub created_ns: u64,
}

impl Identity {
    pub fn of(file: &File) -> io::Result<Identity> {
        let metadata = file.metadata()?;
        let born = metadata.created().ok().and_then(|born| born.duration_since(UNIX_EPOCH).ok());
        Ok(Identity { inode: metadata.ino(), created_ns: born.map_or(0, |born| born.as_nanos() as u64) })
    }
}

/// Describes the frames of a half.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    /// The number of halves started so far; the half with the higher epoch is newer.
    pub epoch: u64,
    /// Halves with an epoch before this one are obsolete.
    pub since: u64,
    /// The boot during which the frames were written.
    pub boot: Boot,
    /// The increment to which the frames belong.
    pub identity: Identity,
    /// The offset of the first frame's bytes in the increment.
    pub start: u64,
    /// The bytes before `start`.
    pub prefix: Prefix,
}

/// The last bytes of the increment before the first frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Prefix {
    /// The number of checksummed bytes.
    pub len: u64,
    /// Their checksum.
    pub sum: u64,
}

/// The numbers of halves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Epochs {
    /// That of this half.
    pub current: u64,
    /// Halves with an epoch before this one are obsolete.
    pub since: u64,
}

impl Header {
    /// A header for frames of this increment from `start` on.
    pub fn new(epochs: Epochs, boot: Boot, identity: Identity, start: u64, increment: &File) -> io::Result<Header> {
        let len = start.min(PREFIX_MAX);
        let prefix = Prefix { len, sum: checksum_of(increment, start - len, len)? };
        Ok(Header { epoch: epochs.current, since: epochs.since, boot, identity, start, prefix })
    }

    /// Whether the bytes before the first frame in this file match the recorded checksum.
    pub fn matches(&self, increment: &File) -> bool {
        let Prefix { len, sum } = self.prefix;
        let start = self.start.checked_sub(len);
        start.is_some_and(|start| checksum_of(increment, start, len).is_ok_and(|current| current == sum))
    }

    /// Appends the header's block.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.boot.0);
        let Identity { inode, created_ns } = self.identity;
        for number in [self.epoch, self.since, inode, created_ns, self.start, self.prefix.len, self.prefix.sum] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        let sum = crc64::update(0, &out[start..]);
        out.extend_from_slice(&sum.to_le_bytes());
        debug_assert_eq!(out.len() - start, HEADER);
        out.resize(start + BLOCK, 0);
    }

    /// Parses the header in a block, if it is valid.
    pub fn read(block: &[u8]) -> Option<Header> {
        let (fields, sum) = block.get(..HEADER)?.split_at(HEADER - 8);
        let is_valid = fields.starts_with(&MAGIC) && number(sum, 0)? == crc64::update(0, fields);
        let boot = Boot(fields.get(8..24)?.try_into().ok()?);
        let [epoch, since, inode, created_ns, start, prefix_len, prefix_sum] = numbers(fields.get(24..)?)?;
        let (identity, prefix) = (Identity { inode, created_ns }, Prefix { len: prefix_len, sum: prefix_sum });
        let header = Header { epoch, since, boot, identity, start, prefix };
        (is_valid && prefix.len <= PREFIX_MAX).then_some(header)
    }
}

/// A commit: a range of bytes of the increment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    /// The epoch of its half.
    pub epoch: u64,
    /// The offset of its bytes in the increment.
    pub offset: u64,
    /// The number of bytes.
    pub len: usize,
}

impl Frame {
    /// The number of blocks for a frame of this many bytes.
    pub fn blocks(len: usize) -> u64 {
        (FRAME + len).div_ceil(BLOCK) as u64
    }

    /// Appends the frame and its bytes, which are read from the increment, padded to a full block.
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

    /// Parses the frame at the start of `half`, if it has this epoch and offset. Returns it with the bytes that it
    /// commits.
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

/// Reads consecutive numbers.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let mut numbers = [0; N];
    for (at, value) in numbers.iter_mut().enumerate() {
        *value = number(bytes, at * 8)?;
    }
    Some(numbers)
}

/// The checksum of a range of a file.
fn checksum_of(file: &File, at: u64, len: u64) -> io::Result<u64> {
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, at)?;
    Ok(crc64::update(0, &bytes))
}

/// Reads a half from the file.
pub(super) fn read_half(file: &File, half: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let at = file_offset(half, 0);
    let end = file_offset(half, HALF_BLOCKS);
    let mut section = Section { file, at, end };
    section.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A range of a file, up to the end of the file.
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
