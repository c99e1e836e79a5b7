//! Simulates machine crashes: generates what the disk may hold of a journal and an increment, and recovers it.

use super::format::{self, Boot, HALF_BLOCKS};
use super::recovery::recover_in;
use super::*;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use tempfile::TempDir;

/// A boot other than that of the tests.
const LATER: Boot = Boot([7; 16]);
/// The unit of atomic disk writes, in bytes.
const SECTOR: usize = 512;

/// An increment with its journal, and the simulated disk state.
struct Bench {
    folder: TempDir,
    increment: File,
    journal: Journal,
    /// What was appended.
    bytes: Vec<u8>,
    /// The committed length.
    committed: u64,
}

impl Bench {
    fn new() -> Bench {
        let folder = tempfile::tempdir().unwrap();
        let increment = increment_in(&folder, "increment");
        let mut journal = Journal::make(&folder.path().join("journal")).unwrap();
        while !journal.is_ready().unwrap() {
            std::thread::yield_now();
        }
        journal.follow(&increment, 0).unwrap();
        Bench { folder, increment, journal, bytes: Vec::new(), committed: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
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
            self.journal.forget(end);
        }
        self.committed = end;
    }

    /// The length of the increment that is on disk.
    fn synced(&self) -> u64 {
        self.journal.increment.as_ref().unwrap().checkpoint.offset()
    }

    fn recover(&self) -> Recovered {
        recover_in(LATER, &self.path("journal"), &self.path("increment")).unwrap()
    }

    fn found(&self) -> Vec<u8> {
        fs::read(self.path("increment")).unwrap()
    }
}

fn increment_in(folder: &TempDir, name: &str) -> File {
    OpenOptions::new().append(true).read(true).create(true).open(folder.path().join(name)).unwrap()
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

    fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| self.next().to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }
}

/// Makes random commits; one in a hundred is too large for a frame.
fn commit_some(bench: &mut Bench, random: &mut Random, commits: usize, len_max: usize) {
    for _ in 0..commits {
        let len = if random.below(100) == 0 { FRAME_MAX + 1 } else { 1 + random.below(len_max) };
        let bytes = random.bytes(len);
        bench.append(&bytes);
        bench.commit();
        bench.journal.tend();
    }
}

#[test]
fn what_was_committed_is_put_back_whatever_the_disk_has_of_the_rest() {
    for seed in 0..8 {
        let mut random = Random(seed);
        let mut bench = Bench::new();
        let (commits, len_max) = if seed % 2 == 0 { (20, 20_000) } else { (160, FRAME_MAX) };
        commit_some(&mut bench, &mut random, commits, len_max);
        let (committed, synced) = (bench.committed, bench.synced());
        // The machine stops in the middle of another commit.
        let before = fs::read(bench.path("journal")).unwrap();
        let bytes = random.bytes(30_000);
        bench.append(&bytes);
        bench.commit();
        let mut torn = fs::read(bench.path("journal")).unwrap();
        for at in (0..torn.len()).step_by(SECTOR) {
            if random.coin() {
                torn[at..at + SECTOR].copy_from_slice(&before[at..at + SECTOR]);
            }
        }
        fs::write(bench.path("journal"), torn).unwrap();
        let left = random.between(synced, bench.bytes.len() as u64);
        bench.increment.set_len(left).unwrap();
        if random.coin() {
            // Some file systems write a file's length before its data.
            let spoiled = random.between(synced, left);
            bench.increment.set_len(spoiled).unwrap();
            bench.increment.set_len(left).unwrap();
        }
        assert!(matches!(bench.recover(), Recovered::Whole(_)), "seed {seed}");
        let found = bench.found();
        assert!(found.len() as u64 >= committed, "seed {seed}: {} of {committed} bytes", found.len());
        let same = found.iter().zip(&bench.bytes).take_while(|(found, wanted)| found == wanted).count();
        assert!(same as u64 >= committed, "seed {seed}: wrong from byte {same} on, {committed} were committed");
    }
}

#[test]
fn damage_of_a_journal_puts_nothing_wrong_back() {
    let mut random = Random(1);
    let mut bench = Bench::new();
    commit_some(&mut bench, &mut random, 30, 9_000);
    let whole = fs::read(bench.path("journal")).unwrap();
    let used = format::place(0, bench.journal.next) as usize;
    for _ in 0..300 {
        let mut damaged = whole[..used].to_vec();
        for _ in 0..1 + random.below(3) {
            let at = random.below(used);
            damaged[at] ^= 1 << random.below(8);
        }
        damaged.truncate(random.below(used + 1));
        fs::write(bench.path("journal"), &damaged).unwrap();
        let _ = recover_in(LATER, &bench.path("journal"), &bench.path("increment"));
        assert_eq!(bench.found(), bench.bytes);
    }
}

#[test]
fn halves_are_filled_in_turn_and_only_when_the_increment_has_what_they_held() {
    let mut random = Random(2);
    let mut bench = Bench::new();
    let mut halves = Vec::new();
    while halves.len() < 4 {
        let bytes = random.bytes(FRAME_MAX);
        bench.append(&bytes);
        let (half, end) = (bench.journal.half, bench.committed);
        bench.commit();
        if bench.journal.half != half {
            halves.push(bench.journal.half);
            let ends = bench.journal.increment.as_ref().unwrap().ends;
            assert!(ends[half] == end && ends[bench.journal.half] > end);
        }
        assert!(bench.journal.next <= HALF_BLOCKS);
    }
    assert_eq!(halves, [1, 0, 1, 0]);
    bench.increment.set_len(bench.synced()).unwrap();
    assert!(matches!(bench.recover(), Recovered::Whole(_)));
    assert_eq!(bench.found(), bench.bytes);
}

#[test]
fn a_half_is_not_filled_anew_as_long_as_the_increment_lacks_what_it_holds() {
    let mut bench = Bench::new();
    let increment = bench.journal.increment.as_mut().unwrap();
    // The increment itself is not synced.
    increment.asked.offset = u64::MAX;
    let bytes = vec![b'.'; FRAME_MAX];
    let mut offset = 0;
    let mut commit = |bench: &mut Bench| {
        bench.append(&bytes);
        let committed = bench.journal.commit(offset, offset + bytes.len() as u64).unwrap();
        offset += if committed { bytes.len() as u64 } else { 0 };
        committed
    };
    let frames_max = 2 * HALF_BLOCKS as usize * format::BLOCK / FRAME_MAX;
    assert!((0..=frames_max).any(|_| !commit(&mut bench)));
    let increment = bench.journal.increment.as_ref().unwrap();
    assert!(bench.journal.half == 1 && increment.ends[1] > increment.ends[0]);
    increment.checkpoint.reach(increment.ends[0]);
    assert!(commit(&mut bench) && bench.journal.half == 0);
}

#[test]
fn after_a_crash_of_the_process_alone_the_increment_is_as_its_user_left_it() {
    let mut bench = Bench::new();
    bench.append(b"*1\r\n$4\r\nPING\r\n");
    bench.commit();
    bench.increment.set_len(3).unwrap();
    let (journal, increment) = (bench.path("journal"), bench.path("increment"));
    assert_eq!(recover(&journal, &increment).unwrap(), Recovered::Nothing);
    assert_eq!(bench.found(), b"*1\r");
    // Unless it could not be synced.
    bench.journal.demand();
    assert_eq!(recover(&journal, &increment).unwrap(), Recovered::Whole(11));
    assert_eq!(bench.found(), bench.bytes);
}

#[test]
fn nothing_is_put_into_another_file_or_another_state_of_the_same() {
    let mut bench = Bench::new();
    bench.append(b"first");
    bench.commit();
    let other = bench.path("other");
    fs::copy(bench.path("increment"), &other).unwrap();
    assert_eq!(recover_in(LATER, &bench.path("journal"), &other).unwrap(), Recovered::Nothing);
    assert_eq!(recover_in(LATER, &bench.path("none"), &bench.path("increment")).unwrap(), Recovered::Nothing);
    assert_eq!(recover_in(LATER, &bench.path("journal"), &bench.path("none")).unwrap(), Recovered::Nothing);
    bench.journal.forget(5);
    bench.append(b"second");
    bench.commit();
    fs::write(bench.path("increment"), b"FIRST").unwrap();
    assert_eq!(bench.recover(), Recovered::Misfit);
    fs::write(bench.path("increment"), b"fir").unwrap();
    assert_eq!(bench.recover(), Recovered::Misfit);
    fs::write(bench.path("increment"), b"first").unwrap();
    assert_eq!(bench.recover(), Recovered::Whole(6));
    assert_eq!(bench.found(), b"firstsecond");
}

#[test]
fn what_was_of_an_earlier_increment_is_not_of_the_next() {
    let mut random = Random(3);
    let mut bench = Bench::new();
    // Both halves hold frames of the first.
    while bench.journal.half == 0 {
        commit_some(&mut bench, &mut random, 1, FRAME_MAX);
    }
    bench.increment.sync_data().unwrap();
    let mut next = increment_in(&bench.folder, "next");
    bench.journal.follow(&next, 0).unwrap();
    next.write_all(b"next").unwrap();
    assert!(bench.journal.commit(0, 4).unwrap());
    assert_eq!(bench.recover(), Recovered::Nothing);
    next.set_len(0).unwrap();
    assert_eq!(recover_in(LATER, &bench.path("journal"), &bench.path("next")).unwrap(), Recovered::Whole(4));
    assert_eq!(fs::read(bench.path("next")).unwrap(), b"next");
}

#[test]
fn a_journal_that_ends_leaves_nothing_when_it_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal");
    Journal::make(&path).unwrap().end().unwrap();
    assert!(!path.exists());
    remove(&path).unwrap();
}
