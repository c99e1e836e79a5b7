//! Tests of the tail: what a reader finds in complete, torn, stale and foreign tails.

use super::format::ANCHORS_AT;
use super::*;
use crate::log::{Audience, Batch, WriteLog, encode};
use proptest::prelude::*;
use std::sync::{Arc, Mutex};

const SEED: u64 = 77;

/// Memory that a test can read while the tail has it.
#[derive(Clone)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    fn new(segments: usize) -> Shared {
        Shared(Arc::new(Mutex::new(vec![0; HEADER_BYTES + segments * SEGMENT_BYTES])))
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// Copies the bytes back when the tail is dropped.
struct Memory(Vec<u8>, Shared);

impl AsMut<[u8]> for Memory {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.1.0.lock().unwrap().copy_from_slice(&self.0);
    }
}

fn tail(segments: usize) -> (Tail, Shared) {
    let shared = Shared::new(segments);
    (Tail::new(Box::new(Memory(shared.bytes(), shared.clone())), SEED, segments), shared)
}

fn anchor(name: &str, position: u64) -> Anchor {
    let name = name.as_bytes().to_vec();
    Anchor { epoch: 0, sequence: 1, position, offset: 0, annotation: 0, identity: [1, 2], name }
}

/// The bytes that a file of this length lacks.
fn missing(bytes: &[u8], epoch: u64, position: u64) -> Vec<u8> {
    TailReader::new(bytes).unwrap().records(epoch, position).missing().collect::<Vec<_>>().concat()
}

#[test]
fn records_are_found_from_every_position() {
    let (mut tail, shared) = tail(4);
    let groups: Vec<Vec<u8>> = (0..200u64).map(|n| vec![n as u8; 1 + (n * n * 7 % 2000) as usize]).collect();
    for group in &groups {
        let (one, two) = group.split_at(group.len() / 2);
        tail.push(one);
        tail.push(two);
        tail.seal();
    }
    assert!(!tail.is_full() && tail.used.len() > 1);
    drop(tail);
    let (bytes, all) = (shared.bytes(), groups.concat());
    for position in (0..=all.len()).step_by(331).chain([all.len()]) {
        assert_eq!(missing(&bytes, 1, position as u64), all[position..], "from {position}");
        let reader = TailReader::new(&bytes).unwrap();
        let records = reader.records(1, position as u64);
        for (at, piece) in records.present() {
            assert_eq!(*piece, all[at as usize..at as usize + piece.len()]);
        }
        assert_eq!(records.present().map(|(_, piece)| piece.len()).sum::<usize>(), position);
    }
    // The file is longer, or of another epoch.
    assert!(missing(&bytes, 1, all.len() as u64 + 1).is_empty() && missing(&bytes, 2, 0).is_empty());
}

#[test]
fn group_is_found_only_if_it_is_complete() {
    let (mut tail, shared) = tail(4);
    tail.push(b"first");
    tail.seal();
    tail.push(&[b'x'; 2 * SEGMENT_BYTES]);
    drop(tail);
    assert_eq!(missing(&shared.bytes(), 1, 0), b"first");
    assert_eq!(missing(&shared.bytes(), 1, 3), b"st");
    // The append-only file has a part of the group.
    assert_eq!(missing(&shared.bytes(), 1, 9), b"");
}

#[test]
fn full_tail_keeps_what_it_has_until_it_is_restarted() {
    let (mut tail, shared) = tail(2);
    tail.push(b"kept");
    tail.seal();
    tail.push(&[b'x'; 3 * SEGMENT_BYTES]);
    tail.seal();
    assert!(tail.is_full());
    tail.push(b"late");
    tail.seal();
    tail.release(u64::MAX);
    assert!(tail.is_full());
    tail.restart(Box::new(Memory(shared.bytes(), shared.clone())), 2);
    assert!(!tail.is_full());
    let (other, _) = self::tail(2);
    let before = {
        tail.push(b"next");
        tail.seal();
        drop((tail, other));
        shared.bytes()
    };
    assert_eq!((missing(&before, 2, 0), missing(&before, 1, 4)), (b"next".to_vec(), Vec::new()));
}

#[test]
fn released_segments_are_reused_and_the_rest_is_kept() {
    let (mut tail, shared) = tail(3);
    let group = [b'a'; SEGMENT_BYTES / 3];
    for n in 0..100u64 {
        tail.push(&group);
        tail.seal();
        tail.release((n * group.len() as u64).saturating_sub(10));
    }
    assert!(!tail.is_full());
    drop(tail);
    let bytes = shared.bytes();
    let end = 100 * group.len() as u64;
    assert_eq!(missing(&bytes, 1, end - group.len() as u64 - 10).len(), group.len() + 10);
    let reader = TailReader::new(&bytes).unwrap();
    assert!(reader.records(1, 5).has_gap() && reader.records(1, 5).missing().next().is_none());
    assert!(!reader.records(1, end + 5).has_gap());
}

#[test]
fn last_two_anchors_are_found() {
    let (mut tail, shared) = tail(1);
    assert!(tail.anchor(&mut anchor("one", 1)));
    let mut second = Anchor { sequence: 2, ..anchor("two", 2) };
    assert!(tail.anchor(&mut second) && second.epoch == 1);
    // It is revoked, so the first one stays.
    tail.revoke_anchor();
    let third = Anchor { sequence: 3, epoch: 1, ..anchor("three", 3) };
    assert!(tail.anchor(&mut third.clone()));
    assert!(!tail.anchor(&mut anchor(&"n".repeat(256), 4)));
    tail.revoke_anchor();
    drop(tail);
    let mut bytes = shared.bytes();
    let names = |bytes: &[u8]| {
        let anchors = TailReader::new(bytes).unwrap().anchors();
        anchors.into_iter().map(|anchor| String::from_utf8(anchor.name).unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(names(&bytes), ["three", "one"]);
    // One of them is torn.
    bytes[ANCHORS_AT + 20] ^= 1;
    assert_eq!(names(&bytes).len(), 1);
}

#[test]
fn log_copies_what_the_append_only_file_receives() {
    let (log, shared) = (WriteLog::default(), Shared::new(4));
    let mut data = log.follow(Audience::DataOnly);
    let mut record = Vec::new();
    encode(&mut record, [&b"SET"[..], b"a", b"1"].into_iter());
    let start = log.begin_tail(Box::new(Memory(shared.bytes(), shared.clone())), SEED, 4);
    assert_eq!((start, log.is_in_tail(0), log.is_in_tail(1)), (0, true, false));
    assert!(log.anchor_tail(&mut anchor("file", 0)) && log.is_in_tail(u64::MAX));
    let len = record.len();
    let three = [&record[..], &record, &record].concat();
    let aof_only = [(0, b"first".to_vec()), (len, b"second".to_vec()), (3 * len, b"third".to_vec())];
    let parts = [0..len, len..2 * len, 2 * len..3 * len];
    for replica_only in [&[][..], &parts[..1], &parts[1..2], &parts[1..]] {
        for aof_only in [&[][..], &aof_only[..1], &aof_only] {
            let databases = (aof_only.len(), 0);
            log.append(&Batch { databases, records: &[&three], record_count: 3, replica_only, aof_only });
        }
        log.append_replica_only(&[b"PING"]);
        log.append_raw(&record, false);
    }
    let read = data.read().unwrap();
    assert!(log.seal_tail());
    drop(log.end_tail());
    assert!(!log.is_in_tail(log.offset()));
    assert_eq!(String::from_utf8(missing(&shared.bytes(), 1, 0)).unwrap(), String::from_utf8(read).unwrap());
}

#[test]
fn log_says_which_records_a_full_tail_lacks() {
    let (log, shared) = (WriteLog::default(), Shared::new(2));
    let _follower = log.follow(Audience::DataOnly);
    log.begin_tail(Box::new(Memory(shared.bytes(), shared.clone())), SEED, 1);
    assert!(log.anchor_tail(&mut anchor("file", 0)));
    log.append_raw(b"fits", false);
    assert!(log.seal_tail());
    let end = log.offset();
    log.append_raw(b"is not sealed", false);
    log.append_raw(&[b'x'; SEGMENT_BYTES], false);
    assert!(!log.seal_tail() && log.is_in_tail(end) && !log.is_in_tail(end + 1));
    assert_eq!(log.restart_tail(Box::new(Memory(shared.bytes(), shared.clone())), 2), log.offset());
    assert!(!log.is_in_tail(end));
    assert!(log.anchor_tail(&mut anchor("file", 0)) && log.is_in_tail(u64::MAX));
    log.append_raw(&[b'x'; SEGMENT_BYTES], false);
    assert!(log.seal_tail());
    log.reset(0);
    assert!(!log.is_in_tail(1));
}

proptest! {
    /// However a tail is damaged, what is found was written there.
    #[test]
    fn damaged_tails_never_yield_other_bytes(
        lens in prop::collection::vec(1usize..4000, 1..60),
        damages in prop::collection::vec((0usize..200_000, any::<u8>()), 0..4),
        cut in 0usize..200_000,
        position in 0u64..100_000,
    ) {
        let (mut tail, shared) = tail(3);
        let all: Vec<u8> = (0..lens.iter().sum()).map(|n: usize| (n * 31 % 251) as u8).collect();
        let mut at = 0;
        for len in lens {
            tail.push(&all[at..at + len]);
            tail.seal();
            at += len;
        }
        drop(tail);
        let mut bytes = shared.bytes();
        for (at, byte) in damages {
            let at = at % bytes.len();
            bytes[at] ^= byte;
        }
        bytes.truncate(cut.max(20));
        let Some(reader) = TailReader::new(&bytes) else { return Ok(()) };
        reader.anchors();
        let records = reader.records(1, position);
        let missing: Vec<u8> = records.missing().flatten().copied().collect();
        if !missing.is_empty() {
            prop_assert!(all[position as usize..].starts_with(&missing));
        }
        for (at, piece) in records.present() {
            prop_assert_eq!(piece, &all[at as usize..at as usize + piece.len()]);
        }
    }
}
