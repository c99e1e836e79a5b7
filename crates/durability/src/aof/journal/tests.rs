//! Simulates machine crashes: generates what the disk may hold of a journal and an increment, and recovers it.

use super::format::{self, Boot, HALF_BLOCKS};
use super::recovery::recover_in;
use super::*;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;

/// A boot other than that of the tests.
const OTHER_BOOT: Boot = Boot([7; 16]);
/// The unit of atomic disk writes, in bytes.
const SECTOR: usize = 512;

/// An increment with its journal, and the simulated disk state.
struct TestBed {
    dir: TempDir,
    increment: File,
    journal: Journal,
    /// What was appended.
    bytes: Vec<u8>,
    /// The committed length.
    committed: u64,
}

impl TestBed {
    fn new() -> TestBed {
        let dir = tempfile::tempdir().unwrap();
        let increment = increment_in(&dir, "increment");
        let mut journal = Journal::create(&dir.path().join("journal")).unwrap();
        while !journal.is_ready().unwrap() {
            std::thread::yield_now();
        }
        journal.begin_increment(&increment, 0).unwrap();
        TestBed { dir, increment, journal, bytes: Vec::new(), committed: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn append(&mut self, bytes: &[u8]) {
        self.increment.write_all(bytes).unwrap();
        self.bytes.extend_from_slice(bytes);
    }

    /// Commits what was appended, as a writer does.
    fn commit(&mut self) {
        let end = self.bytes.len() as u64;
        if !self.journal.commit(self.committed, end).unwrap() {
            self.increment.sync_data().unwrap();
            self.journal.discard_frames(end);
        }
        self.committed = end;
    }

    /// The length of the increment that is on disk.
    fn synced(&self) -> u64 {
        self.journal.increment.as_ref().unwrap().checkpoint.offset()
    }

    fn recover(&self) -> Recovered {
        recover_in(OTHER_BOOT, &self.path("journal"), &self.path("increment")).unwrap()
    }

    fn found(&self) -> Vec<u8> {
        fs::read(self.path("increment")).unwrap()
    }
}

fn increment_in(dir: &TempDir, name: &str) -> File {
    OpenOptions::new().append(true).read(true).create(true).open(dir.path().join(name)).unwrap()
}

/// Pseudorandom numbers (SplitMix64) from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number from `least` to `most`.
    fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.next() % (most - least + 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    fn random_bool(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}

/// Makes random commits; one in a hundred is too large for a frame.
fn commit_some(test_bed: &mut TestBed, random: &mut Random, commits: usize, len_max: usize) {
    for _ in 0..commits {
        let len = if random.below(100) == 0 { FRAME_MAX + 1 } else { 1 + random.below(len_max) };
        let bytes = random.bytes(len);
        test_bed.append(&bytes);
        test_bed.commit();
        test_bed.journal.checkpoint_if_due();
    }
}

#[test]
fn committed_bytes_are_recovered_after_torn_writes() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let mut test_bed = TestBed::new();
        let (commits, len_max) = if seed % 2 == 0 { (20, 20_000) } else { (160, FRAME_MAX) };
        commit_some(&mut test_bed, &mut random, commits, len_max);
        let (committed, synced) = (test_bed.committed, test_bed.synced());
        // The machine stops in the middle of another commit.
        let before = fs::read(test_bed.path("journal")).unwrap();
        let bytes = random.bytes(30_000);
        test_bed.append(&bytes);
        test_bed.commit();
        let mut torn = fs::read(test_bed.path("journal")).unwrap();
        for at in (0..torn.len()).step_by(SECTOR) {
            if random.random_bool() {
                torn[at..at + SECTOR].copy_from_slice(&before[at..at + SECTOR]);
            }
        }
        fs::write(test_bed.path("journal"), torn).unwrap();
        let left = random.between(synced, test_bed.bytes.len() as u64);
        test_bed.increment.set_len(left).unwrap();
        if random.random_bool() {
            // Some file systems write a file's length before its data.
            let zeroed_from = random.between(synced, left);
            test_bed.increment.set_len(zeroed_from).unwrap();
            test_bed.increment.set_len(left).unwrap();
        }
        assert!(matches!(test_bed.recover(), Recovered::Completed(_)), "seed {seed}");
        let found = test_bed.found();
        assert!(found.len() as u64 >= committed, "seed {seed}: {} of {committed} bytes", found.len());
        let same = found.iter().zip(&test_bed.bytes).take_while(|(found, wanted)| found == wanted).count();
        assert!(same as u64 >= committed, "seed {seed}: wrong from byte {same} on, {committed} were committed");
    }
}

#[test]
fn damaged_journal_never_corrupts_the_increment() {
    let mut random = Random(1);
    let mut test_bed = TestBed::new();
    commit_some(&mut test_bed, &mut random, 30, 9_000);
    let whole = fs::read(test_bed.path("journal")).unwrap();
    let used = format::file_offset(0, test_bed.journal.next) as usize;
    for _ in 0..300 {
        let mut damaged = whole[..used].to_vec();
        for _ in 0..1 + random.below(3) {
            let at = random.below(used);
            damaged[at] ^= 1 << random.below(8);
        }
        damaged.truncate(random.below(used + 1));
        fs::write(test_bed.path("journal"), &damaged).unwrap();
        let _ = recover_in(OTHER_BOOT, &test_bed.path("journal"), &test_bed.path("increment"));
        assert_eq!(test_bed.found(), test_bed.bytes);
    }
}

#[test]
fn half_is_reused_only_after_the_increment_is_synced_past_it() {
    let mut random = Random(2);
    let mut test_bed = TestBed::new();
    let mut halves = Vec::new();
    while halves.len() < 4 {
        let bytes = random.bytes(FRAME_MAX);
        test_bed.append(&bytes);
        let (half, end) = (test_bed.journal.half, test_bed.committed);
        test_bed.commit();
        if test_bed.journal.half != half {
            halves.push(test_bed.journal.half);
            let ends = test_bed.journal.increment.as_ref().unwrap().ends;
            assert!(ends[half] == end && ends[test_bed.journal.half] > end);
        }
        assert!(test_bed.journal.next <= HALF_BLOCKS);
    }
    assert_eq!(halves, [1, 0, 1, 0]);
    test_bed.increment.set_len(test_bed.synced()).unwrap();
    assert!(matches!(test_bed.recover(), Recovered::Completed(_)));
    assert_eq!(test_bed.found(), test_bed.bytes);
}

#[test]
fn commit_is_refused_while_the_other_half_is_unsynced() {
    let mut test_bed = TestBed::new();
    let increment = test_bed.journal.increment.as_mut().unwrap();
    // The increment itself is not synced.
    increment.requested.offset = u64::MAX;
    let bytes = vec![b'.'; FRAME_MAX];
    let mut offset = 0;
    let mut commit = |test_bed: &mut TestBed| {
        test_bed.append(&bytes);
        let committed = test_bed.journal.commit(offset, offset + bytes.len() as u64).unwrap();
        offset += if committed { bytes.len() as u64 } else { 0 };
        committed
    };
    let frames_max = 2 * HALF_BLOCKS as usize * format::BLOCK / FRAME_MAX;
    assert!((0..=frames_max).any(|_| !commit(&mut test_bed)));
    let increment = test_bed.journal.increment.as_ref().unwrap();
    assert!(test_bed.journal.half == 1 && increment.ends[1] > increment.ends[0]);
    increment.checkpoint.advance(increment.ends[0]);
    assert!(commit(&mut test_bed) && test_bed.journal.half == 0);
}

#[test]
fn nothing_is_recovered_after_a_process_crash_unless_forced() {
    let mut test_bed = TestBed::new();
    test_bed.append(b"*1\r\n$4\r\nPING\r\n");
    test_bed.commit();
    test_bed.increment.set_len(3).unwrap();
    let (journal, increment) = (test_bed.path("journal"), test_bed.path("increment"));
    assert_eq!(recover(&journal, &increment).unwrap(), Recovered::Nothing);
    assert_eq!(test_bed.found(), b"*1\r");
    // Unless it could not be synced.
    test_bed.journal.force_recovery();
    assert_eq!(recover(&journal, &increment).unwrap(), Recovered::Completed(11));
    assert_eq!(test_bed.found(), test_bed.bytes);
}

#[test]
fn recovery_skips_other_files_and_mismatched_contents() {
    let mut test_bed = TestBed::new();
    test_bed.append(b"first");
    test_bed.commit();
    let other = test_bed.path("other");
    fs::copy(test_bed.path("increment"), &other).unwrap();
    assert_eq!(recover_in(OTHER_BOOT, &test_bed.path("journal"), &other).unwrap(), Recovered::Nothing);
    assert_eq!(
        recover_in(OTHER_BOOT, &test_bed.path("none"), &test_bed.path("increment")).unwrap(),
        Recovered::Nothing
    );
    assert_eq!(recover_in(OTHER_BOOT, &test_bed.path("journal"), &test_bed.path("none")).unwrap(), Recovered::Nothing);
    test_bed.journal.discard_frames(5);
    test_bed.append(b"second");
    test_bed.commit();
    fs::write(test_bed.path("increment"), b"FIRST").unwrap();
    assert_eq!(test_bed.recover(), Recovered::Mismatch);
    fs::write(test_bed.path("increment"), b"fir").unwrap();
    assert_eq!(test_bed.recover(), Recovered::Mismatch);
    fs::write(test_bed.path("increment"), b"first").unwrap();
    assert_eq!(test_bed.recover(), Recovered::Completed(6));
    assert_eq!(test_bed.found(), b"firstsecond");
}

#[test]
fn frames_of_an_earlier_increment_are_not_applied_to_the_next() {
    let mut random = Random(3);
    let mut test_bed = TestBed::new();
    // Both halves hold frames of the first.
    while test_bed.journal.half == 0 {
        commit_some(&mut test_bed, &mut random, 1, FRAME_MAX);
    }
    test_bed.increment.sync_data().unwrap();
    let mut next = increment_in(&test_bed.dir, "next");
    test_bed.journal.begin_increment(&next, 0).unwrap();
    next.write_all(b"next").unwrap();
    assert!(test_bed.journal.commit(0, 4).unwrap());
    assert_eq!(test_bed.recover(), Recovered::Nothing);
    next.set_len(0).unwrap();
    assert_eq!(
        recover_in(OTHER_BOOT, &test_bed.path("journal"), &test_bed.path("next")).unwrap(),
        Recovered::Completed(4)
    );
    assert_eq!(fs::read(test_bed.path("next")).unwrap(), b"next");
}

#[test]
fn closing_a_journal_deletes_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("journal");
    Journal::create(&path).unwrap().close().unwrap();
    assert!(!path.exists());
    remove(&path).unwrap();
}
