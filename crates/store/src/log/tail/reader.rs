//! Reads a tail that another process left behind. Any bytes may be read; nothing is taken for granted.

use super::format::{Anchor, Frame, HEADER_BYTES, Key, SEGMENT_BYTES, frame_bytes, read_seed};

/// The bytes of a tail.
pub struct TailReader<'a> {
    bytes: &'a [u8],
    seed: u64,
}

/// The records of an epoch around the position at which a file ends.
#[derive(Debug, PartialEq, Eq)]
pub struct Records<'a> {
    /// They follow each other without a gap, and one of them holds the position or borders on it.
    frames: Vec<Frame<'a>>,
    position: u64,
    /// Whether records after the position are not connected with it.
    has_gap: bool,
}

impl<'a> TailReader<'a> {
    /// Reads the header; `None` if this is no tail.
    pub fn new(bytes: &'a [u8]) -> Option<TailReader<'a>> {
        Some(TailReader { bytes, seed: read_seed(bytes)? })
    }

    /// The valid anchors, the last one first.
    pub fn anchors(&self) -> Vec<Anchor> {
        let mut anchors: Vec<Anchor> = (0..2).filter_map(|slot| Anchor::read(self.bytes, slot, self.seed)).collect();
        anchors.sort_by_key(|anchor| std::cmp::Reverse(anchor.sequence));
        anchors
    }

    /// The records of an epoch around a position.
    pub fn records(&self, epoch: u64, position: u64) -> Records<'a> {
        let key = Key::new(self.seed, epoch);
        let mut frames = Vec::new();
        for mut rest in self.bytes.get(HEADER_BYTES..).unwrap_or_default().chunks(SEGMENT_BYTES) {
            while let Some(frame) = Frame::read(rest, key) {
                rest = rest.get(frame_bytes(frame.bytes.len())..).unwrap_or_default();
                frames.push(frame);
            }
        }
        frames.sort_by_key(|frame| frame.position);
        let is_later = frames.last().is_some_and(|frame| frame.end() > position);
        let mut runs = frames.chunk_by(|one, next| one.end() == next.position);
        let around = |run: &&[Frame<'_>]| {
            run.first().is_some_and(|first| first.position <= position)
                && run.last().is_some_and(|last| last.end() >= position)
        };
        let frames = runs.find(around).unwrap_or_default().to_vec();
        Records { has_gap: is_later && frames.is_empty(), frames, position }
    }
}

impl Records<'_> {
    /// The pieces that the file lacks, up to the end of the last complete group of records.
    pub fn missing(&self) -> impl Iterator<Item = &[u8]> {
        let complete = self.frames.iter().rposition(|frame| frame.ends_group).map_or(0, |last| last + 1);
        self.frames[..complete].iter().filter_map(|frame| {
            let present = self.position.saturating_sub(frame.position).min(frame.bytes.len() as u64);
            Some(&frame.bytes[present as usize..]).filter(|bytes| !bytes.is_empty())
        })
    }

    /// The pieces before the position, each with its own position: the file has them too.
    pub fn present(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.frames.iter().filter_map(|frame| {
            let present = self.position.saturating_sub(frame.position).min(frame.bytes.len() as u64);
            (present > 0).then(|| (frame.position, &frame.bytes[..present as usize]))
        })
    }

    /// Whether bytes between the position and the records after it are in neither of both.
    pub fn has_gap(&self) -> bool {
        self.has_gap
    }
}
