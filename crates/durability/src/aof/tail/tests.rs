//! Tests of the recovery: what a killed process may leave of a tail and an increment, and what must not be used.

use super::recovery::{Recovered, recover};
use super::{Anchor, HEADER_BYTES, Identity, SEGMENT_BYTES, file_bytes, map, mapping};
use kvick_store::log::{Audience, Batch, Follower, WriteLog};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;

const NAME: &str = "appendonly.aof.1.incr.aof";
const SEGMENTS: usize = 2;
/// Bytes of the annotation before the last records.
const ANNOTATION: &[u8] = b"#TS:1700000000\r\n";

/// A log with a tail, and the increment of a thread that lags.
struct TestBed {
    dir: TempDir,
    log: WriteLog,
    follower: Follower,
    increment: File,
    sequence: u64,
    /// Bytes of the increment that the log does not have.
    annotated: u64,
    /// The increment as it would be if the thread had written everything.
    whole: Vec<u8>,
}

impl TestBed {
    /// An increment with this content, whose tail begins behind it.
    fn new(content: &[u8]) -> TestBed {
        let dir = tempfile::tempdir().unwrap();
        let (log, path) = (WriteLog::default(), dir.path().join(NAME));
        let follower = log.follow(Audience::DataOnly);
        fs::write(&path, content).unwrap();
        let increment = OpenOptions::new().append(true).read(true).open(&path).unwrap();
        let file = File::options().read(true).write(true).create_new(true).open(dir.path().join("tail")).unwrap();
        mapping::allocate(&file, file_bytes(SEGMENTS)).unwrap();
        log.begin_tail(Box::new(map(&file, SEGMENTS).unwrap()), 5, SEGMENTS);
        let (sequence, annotated) = (0, content.len() as u64);
        let mut test_bed = TestBed { dir, log, follower, increment, sequence, annotated, whole: content.to_vec() };
        test_bed.anchor(0);
        test_bed
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn anchor(&mut self, annotation: u64) {
        let identity = Identity::of(&self.increment).unwrap();
        self.sequence += 1;
        let offset = self.found().len() as u64;
        let mut anchor = Anchor {
            epoch: 0,
            sequence: self.sequence,
            position: offset - self.annotated,
            offset,
            annotation,
            identity: [identity.inode, identity.created_ns],
            name: NAME.into(),
        };
        assert!(self.log.anchor_tail(&mut anchor));
    }

    /// A client's records, which the thread has not written.
    fn append(&mut self, records: &[&[u8]]) {
        let before = self.log.offset() as usize;
        let all = records.concat();
        let databases = (0, 0);
        self.log.append(&Batch {
            databases,
            records: &[&all],
            record_count: records.len(),
            replica_only: &[],
            aof_only: &[],
        });
        assert!(self.log.seal_tail());
        let added = self.log.offset() as usize - before;
        let mut copy = self.log.follow_from(before as u64, Audience::All).unwrap();
        let bytes = copy.read().unwrap();
        assert_eq!(bytes.len(), added);
        self.whole.extend_from_slice(&bytes);
    }

    /// The thread writes everything.
    fn write(&mut self) {
        let bytes = self.follower.read().unwrap();
        self.increment.write_all(&bytes).unwrap();
    }

    /// Everything is appended to the increment, of which only so much was written.
    fn kill_at(&self, len: usize) -> Recovered {
        self.increment.set_len(len as u64).unwrap();
        self.recover()
    }

    fn recover(&self) -> Recovered {
        recover(&self.path("tail"), NAME.as_bytes(), &self.path(NAME)).unwrap()
    }

    fn found(&self) -> Vec<u8> {
        fs::read(self.path(NAME)).unwrap()
    }
}

fn set(value: &str) -> Vec<u8> {
    let mut record = Vec::new();
    kvick_store::log::encode(&mut record, [&b"SET"[..], b"key", value.as_bytes()].into_iter());
    record
}

#[test]
fn increment_is_completed_from_every_byte() {
    let mut test_bed = TestBed::new(&set("before"));
    let start = test_bed.found().len();
    for n in 0..20 {
        let (one, two) = (set(&n.to_string()), set(&"x".repeat(n)));
        let records: [&[u8]; 2] = [&one, &two];
        test_bed.append(&records[..1 + n % 2]);
    }
    test_bed.write();
    let whole = test_bed.whole.clone();
    assert_eq!(test_bed.found(), whole);
    assert_eq!(test_bed.recover(), Recovered::Nothing);
    for len in start..whole.len() {
        assert_eq!(test_bed.kill_at(len), Recovered::Completed((whole.len() - len) as u64));
        assert_eq!(test_bed.found(), whole);
    }
    // Again, after the next process was killed as well.
    assert_eq!(test_bed.recover(), Recovered::Nothing);
    assert_eq!(test_bed.kill_at(start - 1), Recovered::Mismatch);
}

#[test]
fn torn_annotation_is_replaced_by_the_records_behind_it() {
    let mut test_bed = TestBed::new(b"");
    test_bed.append(&[&set(&"a".repeat(100))]);
    test_bed.write();
    let before = test_bed.found();
    test_bed.anchor(ANNOTATION.len() as u64);
    test_bed.append(&[&set("b")]);
    let last = test_bed.whole[before.len()..].to_vec();
    test_bed.increment.write_all(ANNOTATION).unwrap();
    test_bed.write();
    for annotated in 0..=ANNOTATION.len() + last.len() {
        let written = [&before[..], ANNOTATION, &last].concat();
        fs::write(test_bed.path(NAME), &written[..before.len() + annotated]).unwrap();
        test_bed.recover();
        let kept = if annotated < ANNOTATION.len() { &[][..] } else { ANNOTATION };
        assert_eq!(test_bed.found(), [&before[..], kept, &last].concat(), "{annotated} bytes");
    }
}

#[test]
fn tail_of_another_file_is_not_used() {
    let mut test_bed = TestBed::new(b"");
    test_bed.append(&[&set(&"a".repeat(100))]);
    test_bed.write();
    test_bed.append(&[&set("b")]);
    let written = test_bed.found();
    let recover = |name: &str, path: &str| recover(&test_bed.path("tail"), name.as_bytes(), &test_bed.path(path));
    assert_eq!(recover("other", NAME).unwrap(), Recovered::Foreign(NAME.into()));
    assert_eq!(recover(NAME, "absent").unwrap(), Recovered::Nothing);
    // A copy has other content, or too little to tell.
    let mut changed = written.clone();
    changed[50] ^= 1;
    for (content, used) in [(&changed[..], false), (&written[..20], false), (&written, true)] {
        fs::write(test_bed.path("copy"), content).unwrap();
        let outcome = recover(NAME, "copy").unwrap();
        assert_eq!(matches!(outcome, Recovered::Completed(_)), used, "{outcome:?}");
        assert_eq!(fs::read(test_bed.path("copy")).unwrap() == test_bed.whole, used);
    }
    // Another server has appended its own records.
    test_bed.increment.set_len(written.len() as u64).unwrap();
    fs::write(test_bed.path(NAME), [&written[..], b"*1\r\n$4\r\nPING\r\n"].concat()).unwrap();
    assert_eq!(test_bed.recover(), Recovered::Mismatch);
}

#[test]
fn other_files_in_place_of_the_tail_are_ignored() {
    let mut test_bed = TestBed::new(b"");
    test_bed.append(&[&set("a")]);
    let whole = fs::read(test_bed.path("tail")).unwrap();
    for (content, expected) in [
        (&[][..], Recovered::Nothing),
        (&[0; 100_000], Recovered::Nothing),
        (&whole[..HEADER_BYTES - 1], Recovered::Invalid),
        (&[b'x'; 100_000], Recovered::Invalid),
        // Complete so far, but without records.
        (&whole[..HEADER_BYTES], Recovered::Nothing),
    ] {
        fs::write(test_bed.path("other"), content).unwrap();
        let recovered = recover(&test_bed.path("other"), NAME.as_bytes(), &test_bed.path(NAME)).unwrap();
        assert_eq!(recovered, expected);
    }
    assert_eq!(test_bed.found(), b"");
    let absent = recover(&test_bed.path("none"), NAME.as_bytes(), &test_bed.path(NAME)).unwrap();
    assert_eq!(absent, Recovered::Nothing);
    assert!(matches!(test_bed.recover(), Recovered::Completed(_)));
    assert_eq!(test_bed.found(), test_bed.whole);
}

#[test]
fn records_that_are_missing_in_the_middle_end_the_recovery() {
    let mut test_bed = TestBed::new(b"");
    let large = set(&"x".repeat(SEGMENT_BYTES / 4));
    (0..6).for_each(|_| test_bed.append(&[&large]));
    let mut tail = fs::read(test_bed.path("tail")).unwrap();
    // A byte of the fifth record.
    tail[HEADER_BYTES + SEGMENT_BYTES + large.len()] ^= 1;
    fs::write(test_bed.path("tail"), tail).unwrap();
    let Recovered::Completed(bytes) = test_bed.recover() else { panic!("nothing was recovered") };
    assert!(bytes as usize >= 3 * large.len() && bytes as usize <= 5 * large.len(), "{bytes}");
    assert!(test_bed.whole.starts_with(&test_bed.found()));
    assert!(test_bed.found().ends_with(&large));
}
