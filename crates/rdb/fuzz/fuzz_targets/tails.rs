//! Fuzzes tails of the append-only file: reading any bytes never panics; what is found in a damaged tail was written to
//! it, at that position.

#![no_main]

use kvick_store::log::tail::{Anchor, HEADER_BYTES, SEGMENT_BYTES, TailReader};
use kvick_store::log::{Audience, WriteLog};
use libfuzzer_sys::fuzz_target;

const SEGMENTS: usize = 2;

/// The bytes that continue a file that ends at this position of the last anchor's epoch.
fn missing(tail: &[u8], position: u64) -> Option<Vec<u8>> {
    let reader = TailReader::new(tail)?;
    let anchor = reader.anchors().into_iter().next()?;
    let records = reader.records(anchor.epoch, position);
    assert!(!records.has_gap() || records.missing().next().is_none());
    records.present().for_each(|(at, piece)| assert!(at + piece.len() as u64 <= position));
    Some(records.missing().flatten().copied().collect())
}

fuzz_target!(|input: &[u8]| {
    missing(input, input.len() as u64);
    let [position, records, rest @ ..] = input else { return };
    let log = WriteLog::default();
    let _follower = log.follow(Audience::DataOnly);
    log.begin_tail(Box::new(vec![0; HEADER_BYTES + SEGMENTS * SEGMENT_BYTES]), 1, SEGMENTS);
    let name = b"file".to_vec();
    let (epoch, sequence) = (0, 1);
    log.anchor_tail(&mut Anchor { epoch, sequence, position: 0, offset: 0, annotation: 0, identity: [0; 2], name });
    let (lens, damages) = rest.split_at(rest.len().min(*records as usize));
    let mut whole = Vec::new();
    for len in lens {
        let record: Vec<u8> = (0..=*len as usize * 8).map(|n| ((whole.len() + n) % 251) as u8).collect();
        log.append_raw(&record, false);
        if !log.seal_tail() {
            break;
        }
        whole.extend(record);
    }
    let Some(mut memory) = log.end_tail() else { return };
    let tail = (*memory).as_mut();
    let position = *position as usize * 16;
    let complete = missing(tail, position as u64);
    assert_eq!(complete.as_deref(), Some(whole.get(position..).unwrap_or_default()));
    for damage in damages.chunks_exact(4) {
        let at = u32::from_le_bytes([damage[0], damage[1], damage[2], 0]) as usize % tail.len();
        tail[at] ^= damage[3];
    }
    if let Some(found) = missing(tail, position as u64).filter(|found| !found.is_empty()) {
        assert!(whole[position..].starts_with(&found));
    }
});
