//! Frames that wait for long take less memory.
//!
//! While a cluster of 1,000 nodes is split in halves, half a million messages wait, each with some 600 gossip entries:
//! 30 GB. But nearly all bytes of an entry are the same in all messages, and most of a header is an empty slot bitmap.

use kvick_cluster::bus::{GOSSIP_ENTRY_BYTES, HEADER_BYTES};
use std::collections::HashMap;
use std::sync::Arc;

/// A message of the bus.
#[derive(Clone, Debug)]
pub(crate) enum Frame {
    Plain(Arc<[u8]>),
    Packed(Box<Packed>),
}

/// See [`Packer`].
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    bytes: u32,
    /// Number of entries.
    entries: u32,
    /// The entries: a number and two times each; then the other bytes, without runs of zeros.
    content: Box<[u8]>,
}

impl Frame {
    /// Number of bytes on the wire.
    pub(crate) fn len(&self) -> usize {
        match self {
            Frame::Plain(frame) => frame.len(),
            Frame::Packed(packed) => packed.bytes as usize,
        }
    }
}

/// Packs frames, and restores them to the byte.
///
/// Entries without their times are numbered. There are few for each node: flags and addresses change rarely.
#[derive(Default)]
pub(crate) struct Packer {
    numbers: HashMap<Entry, u32>,
    known: Vec<Entry>,
}

type Entry = [u8; GOSSIP_ENTRY_BYTES];

/// Where a message has the number of its entries.
const GOSSIP_COUNT: std::ops::Range<usize> = 14..16;

/// The times of an entry.
const TIMES: std::ops::Range<usize> = 40..48;

/// Bytes of a packed entry.
const PACKED_ENTRY_BYTES: usize = 12;

/// Zeros that are worth a run of their own.
const RUN_MIN: usize = 4;

impl Packer {
    /// Packs a frame, unless others share its memory.
    pub(crate) fn pack(&mut self, frame: &mut Frame) {
        let Frame::Plain(plain) = &*frame else { return };
        if Arc::strong_count(plain) == 1 {
            *frame = Frame::Packed(Box::new(self.packed(plain)));
        }
    }

    /// The bytes of a frame.
    pub(crate) fn unpack(&self, frame: Frame) -> Arc<[u8]> {
        match frame {
            Frame::Plain(frame) => frame,
            Frame::Packed(packed) => self.restored(&packed).into(),
        }
    }

    fn packed(&mut self, frame: &[u8]) -> Packed {
        let (before, entries, after) = parts(frame);
        let mut content = Vec::with_capacity(entries.len() * PACKED_ENTRY_BYTES + 512);
        let mut number = 0;
        for entry in entries {
            number = self.number_behind(number, entry);
            content.extend_from_slice(&number.to_le_bytes());
            content.extend_from_slice(&entry[TIMES]);
        }
        for rest in [before, after] {
            shorten(rest, &mut content);
        }
        Packed { bytes: frame.len() as u32, entries: entries.len() as u32, content: content.into() }
    }

    /// The number of an entry. Most messages tell about nodes in the same order, so it is likely to be the next one.
    fn number_behind(&mut self, previous: u32, entry: &Entry) -> u32 {
        let mut known = *entry;
        known[TIMES].fill(0);
        if self.known.get(previous as usize + 1) == Some(&known) {
            return previous + 1;
        }
        let next = self.known.len() as u32;
        let number = *self.numbers.entry(known).or_insert(next);
        if number == next {
            self.known.push(known);
        }
        number
    }

    fn restored(&self, packed: &Packed) -> Vec<u8> {
        let (entries, mut short) = packed.content.split_at(packed.entries as usize * PACKED_ENTRY_BYTES);
        let mut frame = Vec::with_capacity(packed.bytes as usize);
        let before = packed.bytes as usize - packed.entries as usize * GOSSIP_ENTRY_BYTES;
        let before = if packed.entries == 0 { before } else { HEADER_BYTES };
        lengthen(&mut short, before, &mut frame);
        for entry in entries.as_chunks::<PACKED_ENTRY_BYTES>().0 {
            let (number, times) = entry.split_at(4);
            let number = number.try_into().map(u32::from_le_bytes).unwrap_or_default();
            let start = frame.len();
            frame.extend_from_slice(&self.known[number as usize]);
            frame[start..][TIMES].copy_from_slice(times);
        }
        lengthen(&mut short, packed.bytes as usize, &mut frame);
        frame
    }
}

/// What is before the entries of a frame, the entries, and what is after them.
fn parts(frame: &[u8]) -> (&[u8], &[Entry], &[u8]) {
    let whole = (frame, [].as_slice(), [].as_slice());
    let Some((header, rest)) = frame.split_at_checked(HEADER_BYTES) else { return whole };
    let count = header[GOSSIP_COUNT].try_into().map(u16::from_be_bytes).unwrap_or_default();
    match rest.split_at_checked(usize::from(count) * GOSSIP_ENTRY_BYTES) {
        Some((entries, after)) if count > 0 => (header, entries.as_chunks().0, after),
        _ => whole,
    }
}

/// Writes bytes as pieces: the length of what is written as it is (2 bytes), these bytes, and the number of zeros after
/// them (2 bytes).
fn shorten(mut bytes: &[u8], out: &mut Vec<u8>) {
    while !bytes.is_empty() {
        let limit = bytes.len().min(usize::from(u16::MAX));
        let run =
            (0..limit).find(|start| bytes[*start..].iter().take(RUN_MIN).filter(|byte| **byte == 0).count() == RUN_MIN);
        let (plain, rest) = bytes.split_at(run.unwrap_or(limit));
        let zeros = rest.iter().take(usize::from(u16::MAX)).take_while(|byte| **byte == 0).count();
        out.extend_from_slice(&(plain.len() as u16).to_le_bytes());
        out.extend_from_slice(plain);
        out.extend_from_slice(&(zeros as u16).to_le_bytes());
        bytes = &rest[zeros..];
    }
}

/// Appends bytes that [`shorten`] has written until there are `until`.
fn lengthen(short: &mut &[u8], until: usize, out: &mut Vec<u8>) {
    let number =
        |short: &mut &[u8]| short.split_off(..2).and_then(|two| two.try_into().ok()).map_or(0, u16::from_le_bytes);
    while out.len() < until && !short.is_empty() {
        let plain = usize::from(number(short));
        out.extend_from_slice(short.split_off(..plain).unwrap_or_default());
        let zeros = usize::from(number(short));
        out.resize(out.len() + zeros, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(packer: &mut Packer, frame: &[u8]) -> usize {
        let packed = packer.packed(frame);
        let bytes = packed.content.len();
        assert_eq!(&*packer.unpack(Frame::Packed(Box::new(packed))), frame);
        bytes
    }

    #[test]
    fn frames_are_restored_to_the_byte() {
        let mut random = fastrand::Rng::with_seed(7);
        let mut packer = Packer::default();
        for length in (0..300).chain([2_255, 2_256, 2_257, 70_000, 140_000]) {
            for zeros in [0, 50, 100] {
                let frame: Vec<u8> =
                    (0..length).map(|_| if random.u8(0..100) < zeros { 0 } else { random.u8(..) }).collect();
                there_and_back(&mut packer, &frame);
            }
        }
    }

    #[test]
    fn gossip_takes_a_small_part_of_its_memory() {
        let mut random = fastrand::Rng::with_seed(8);
        let mut packer = Packer::default();
        let nodes: Vec<Entry> = (0..300).map(|_| std::array::from_fn(|_| random.u8(..))).collect();
        let mut last = 0;
        for after in [0, 8, 48] {
            let mut frame = vec![0; HEADER_BYTES];
            frame[GOSSIP_COUNT].copy_from_slice(&300_u16.to_be_bytes());
            for node in &nodes {
                let mut entry = *node;
                entry[TIMES].copy_from_slice(&random.u64(..).to_le_bytes());
                frame.extend_from_slice(&entry);
            }
            frame.extend((0..after).map(|_| random.u8(..)));
            last = there_and_back(&mut packer, &frame);
            assert_eq!(packer.known.len(), 300);
        }
        assert!(last < 300 * GOSSIP_ENTRY_BYTES / 8, "{last}");
    }

    #[test]
    fn a_shared_frame_stays_as_it_is() {
        let shared: Arc<[u8]> = vec![1; 3_000].into();
        let mut frame = Frame::Plain(shared.clone());
        Packer::default().pack(&mut frame);
        assert!(matches!(&frame, Frame::Plain(frame) if Arc::ptr_eq(frame, &shared)));
        drop(shared);
        Packer::default().pack(&mut frame);
        assert!(matches!(frame, Frame::Packed(_)));
        assert_eq!(frame.len(), 3_000);
    }
}
