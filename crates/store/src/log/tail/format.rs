//! The format of a tail. Numbers are little-endian.
//!
//! | bytes | content |
//! |---|---|
//! | 16 | [`MAGIC`] and the seed of all checksums, which is random for each tail |
//! | 1,024 from byte 1,024 on | two slots of 512 bytes, each with an [`Anchor`] |
//! | 65,536 each, from byte 4,096 on | segments |
//!
//! A segment is a sequence of [`Frame`]s, each aligned to 8 bytes; the bytes after the last one are left over from an
//! earlier use. A frame holds bytes that follow each other in the append-only file, from a **position** on: positions
//! count bytes since the beginning of the tail's **epoch**. The frames of an epoch that follow each other without a gap
//! may be in any segments.
//!
//! A frame that was not written completely, or is of another epoch, has a wrong checksum. So the order in which its
//! bytes reach the memory does not matter.

/// Bytes before the segments.
pub const HEADER_BYTES: usize = 4096;
/// Bytes of a segment.
pub const SEGMENT_BYTES: usize = 64 * 1024;

pub(super) const MAGIC: [u8; 8] = *b"KVTAIL01";
pub(super) const ANCHORS_AT: usize = 1024;
const ANCHOR_BYTES: usize = 512;
/// Bytes of an anchor before the name.
const ANCHOR_FIELDS: usize = 72;
/// Maximum length of a file's name.
const NAME_MAX: usize = 255;
/// Bytes of a frame before its content.
pub(super) const FRAME_HEADER: usize = 24;
/// In a frame's length: the frame ends a group of records that belong together.
const ENDS_GROUP: u64 = 1 << 63;

/// The key of the checksums of an epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Key(u64);

impl Key {
    pub fn new(seed: u64, epoch: u64) -> Key {
        Key(fold(seed ^ 0x9e37_79b9_7f4a_7c15, epoch ^ 0xd6e8_feb8_6659_fd93))
    }
}

fn fold(one: u64, two: u64) -> u64 {
    let product = u128::from(one) * u128::from(two);
    product as u64 ^ (product >> 64) as u64
}

/// A checksum of two numbers and bytes: the multiply-and-fold of wyhash. It has to be fast for short records, and to
/// tell torn and foreign frames from complete ones; nobody chooses its input to deceive.
fn checksum(key: Key, first: u64, second: u64, bytes: &[u8]) -> u64 {
    let start = fold(key.0 ^ first, second ^ 0xa076_1d64_78bd_642f);
    // Four at a time, since they do not depend on each other.
    let mut lanes = [start, !start, start.rotate_left(16), start.rotate_left(32)];
    let (blocks, rest) = bytes.as_chunks::<64>();
    for block in blocks {
        let (pairs, _) = block.as_chunks::<16>();
        for (lane, pair) in lanes.iter_mut().zip(pairs) {
            let (low, high) = pair.split_at(8);
            *lane = fold(*lane ^ word(low), word(high) ^ 0xe703_7ed1_a0b4_28db);
        }
    }
    let mut sum = fold(lanes[0] ^ lanes[1].rotate_left(8), lanes[2] ^ lanes[3].rotate_left(24) ^ 0x5899_65cc_7537_4cc3);
    let (pairs, rest) = rest.as_chunks::<16>();
    for pair in pairs {
        let (low, high) = pair.split_at(8);
        sum = fold(sum ^ word(low), word(high) ^ 0xe703_7ed1_a0b4_28db);
    }
    let mut last = [0; 16];
    last[..rest.len()].copy_from_slice(rest);
    let (low, high) = last.split_at(8);
    fold(sum ^ word(low), word(high) ^ 0x8ebc_6af0_9c88_c6e3 ^ bytes.len() as u64)
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The length of a frame in its segment.
pub(super) fn frame_bytes(len: usize) -> usize {
    (FRAME_HEADER + len).next_multiple_of(8)
}

/// Records, or a part of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// The position of the first byte.
    pub position: u64,
    /// Whether it ends with a complete group of records. Otherwise it ends with its segment.
    pub ends_group: bool,
    /// At least one byte.
    pub bytes: &'a [u8],
}

impl<'a> Frame<'a> {
    /// Completes a frame at the start of `out`, whose `len` bytes of content have been written behind the header.
    pub(super) fn seal(out: &mut [u8], key: Key, position: u64, len: usize, ends_group: bool) {
        let second = len as u64 | if ends_group { ENDS_GROUP } else { 0 };
        let Some((header, content)) = out.split_first_chunk_mut::<FRAME_HEADER>() else { return };
        let sum = checksum(key, position, second, &content[..len]);
        for (field, number) in header.chunks_exact_mut(8).zip([sum, position, second]) {
            field.copy_from_slice(&number.to_le_bytes());
        }
    }

    /// Reads the frame at the start of `bytes`, if it is complete and of this epoch.
    pub(super) fn read(bytes: &'a [u8], key: Key) -> Option<Frame<'a>> {
        let (header, content) = bytes.split_first_chunk::<FRAME_HEADER>()?;
        let (sum, position, second) = (word(header), word(&header[8..]), word(&header[16..]));
        let bytes = content.get(..usize::try_from(second & !ENDS_GROUP).ok()?)?;
        let is_complete = !bytes.is_empty() && position.checked_add(bytes.len() as u64).is_some();
        (is_complete && sum == checksum(key, position, second, bytes)).then_some(Frame {
            position,
            ends_group: second & ENDS_GROUP != 0,
            bytes,
        })
    }

    /// The position after the last byte.
    pub fn end(&self) -> u64 {
        self.position + self.bytes.len() as u64
    }
}

/// Where the positions of an epoch are in a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// The epoch.
    pub epoch: u64,
    /// Numbers the anchors of a tail: of two with the same file, the later one is valid.
    pub sequence: u64,
    /// A position.
    pub position: u64,
    /// Its offset in the file, before the annotation.
    pub offset: u64,
    /// Bytes at that offset that the frames lack.
    pub annotation: u64,
    /// Identifies the file, whatever its name.
    pub identity: [u64; 2],
    /// The file's name.
    pub name: Vec<u8>,
}

impl Anchor {
    /// Writes it to a slot, 0 or 1, of a tail with this seed. Returns false if the name is too long.
    pub(super) fn write(&self, tail: &mut [u8], slot: usize, seed: u64) -> bool {
        let at = ANCHORS_AT + slot * ANCHOR_BYTES;
        let Some(out) = tail.get_mut(at..at + ANCHOR_BYTES).filter(|_| self.name.len() <= NAME_MAX) else {
            return false;
        };
        let Anchor { epoch, sequence, position, offset, annotation, identity: [inode, created], ref name } = *self;
        let numbers = [epoch, sequence, position, offset, annotation, inode, created, name.len() as u64];
        // The old one ends before the new one begins.
        out[..8].fill(0);
        for (field, number) in out[8..].chunks_exact_mut(8).zip(numbers) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        let end = ANCHOR_FIELDS + name.len();
        out[ANCHOR_FIELDS..end].copy_from_slice(name);
        let sum = checksum(Key::new(seed, 0), 0, 0, &out[8..end]);
        out[..8].copy_from_slice(&sum.to_le_bytes());
        true
    }

    /// Reads it from a slot, if it is valid.
    pub(super) fn read(tail: &[u8], slot: usize, seed: u64) -> Option<Anchor> {
        let at = ANCHORS_AT + slot * ANCHOR_BYTES;
        let bytes = tail.get(at..at + ANCHOR_BYTES)?;
        let [sum, epoch, sequence, position, offset, annotation, inode, created, len] =
            std::array::from_fn(|field| word(&bytes[field * 8..]));
        let end = usize::try_from(len).ok().filter(|len| *len <= NAME_MAX)? + ANCHOR_FIELDS;
        let is_valid =
            sum == checksum(Key::new(seed, 0), 0, 0, &bytes[8..end]) && offset.checked_add(annotation).is_some();
        let (identity, name) = ([inode, created], bytes[ANCHOR_FIELDS..end].to_vec());
        is_valid.then_some(Anchor { epoch, sequence, position, offset, annotation, identity, name })
    }
}

/// Writes the first bytes of a tail.
pub(super) fn write_seed(tail: &mut [u8], seed: u64) {
    tail[..8].copy_from_slice(&MAGIC);
    tail[8..16].copy_from_slice(&seed.to_le_bytes());
}

/// The seed, if these are the bytes of a tail.
pub(super) fn read_seed(tail: &[u8]) -> Option<u64> {
    (tail.len() >= HEADER_BYTES && tail.starts_with(&MAGIC)).then(|| word(&tail[8..]))
}
