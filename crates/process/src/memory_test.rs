//! `--test-memory`: tests the machine's memory.
//!
//! Each pass fills the memory with a pattern, reads all of it back, and writes and reads the complement, so that every
//! bit is tested as 0 and as 1. The patterns detect common faults: solid and alternating bits for stuck cells, each
//! word's own address for address line faults, random words for cells that disturb their neighbours.

use std::hint::black_box;
use std::io::Write;
use std::process::ExitCode;

/// The usage message.
pub const USAGE: &str = "\
Please say how much memory to test, in megabytes.
Example: kvick-server --test-memory 4096

";

const ROUNDS: u64 = 3;
const WORDS_PER_MEGABYTE: usize = (1 << 20) / size_of::<u64>();

/// Tests this amount of memory, and prints the result.
pub fn run(megabytes: u64) -> ExitCode {
    let words = usize::try_from(megabytes).ok().and_then(|count| count.checked_mul(WORDS_PER_MEGABYTE));
    let mut memory: Vec<u64> = Vec::new();
    match words.filter(|words| *words > 0 && memory.try_reserve_exact(*words).is_ok()) {
        Some(words) => memory.resize(words, 0),
        None => {
            eprintln!("Unable to allocate {megabytes} megabytes. Choose an amount of memory that is free.");
            return ExitCode::FAILURE;
        }
    }
    let mut faults = 0;
    for round in 1..=ROUNDS {
        for pattern in Pattern::ALL {
            print!("\rRound {round} of {ROUNDS}: {:<20}", pattern.name());
            // Progress output is optional.
            let _ = std::io::stdout().flush();
            faults += check(&mut memory, |index| pattern.word(index, round));
            faults += check(&mut memory, |index| !pattern.word(index, round));
        }
    }
    if faults > 0 {
        println!("\n{faults} words of memory lost their contents: the memory of this machine is faulty. Replace it.");
        return ExitCode::FAILURE;
    }
    println!("\nNo memory errors found.");
    ExitCode::SUCCESS
}

#[derive(Clone, Copy)]
enum Pattern {
    Solid,
    Alternating,
    Address,
    Random,
}

impl Pattern {
    const ALL: [Pattern; 4] = [Pattern::Solid, Pattern::Alternating, Pattern::Address, Pattern::Random];

    fn name(self) -> &'static str {
        match self {
            Pattern::Solid => "solid bits",
            Pattern::Alternating => "alternating bits",
            Pattern::Address => "addresses",
            Pattern::Random => "random words",
        }
    }

    fn word(self, index: usize, round: u64) -> u64 {
        let index = index as u64;
        match self {
            Pattern::Solid => 0,
            Pattern::Alternating => 0x5555_5555_5555_5555_u64.rotate_left((index & 1) as u32),
            Pattern::Address => index,
            Pattern::Random => scramble(index ^ round << 56),
        }
    }
}

/// The output function of SplitMix64 (Steele, Lea and Flood, 2014).
fn scramble(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills the memory with a pattern, and counts the words that read back differently.
fn check(memory: &mut [u64], word: impl Fn(usize) -> u64) -> usize {
    memory.iter_mut().enumerate().for_each(|(index, cell)| *cell = word(index));
    // From here on the compiler must assume that the memory has unknown content.
    let memory = black_box(memory);
    memory.iter().enumerate().filter(|(index, cell)| **cell != word(*index)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_memory_passes_every_pattern() {
        let mut memory = vec![0; 4096];
        for pattern in Pattern::ALL {
            assert_eq!(check(&mut memory, |index| pattern.word(index, 1)), 0);
            assert_eq!(check(&mut memory, |index| !pattern.word(index, 1)), 0);
        }
    }

    #[test]
    fn a_word_that_changes_is_counted() {
        let mut memory = vec![0; 4096];
        // The word read back differs from the one written, as with a faulty cell.
        let reads = std::cell::Cell::new(0);
        let faulty = |index: usize| {
            reads.set(reads.get() + 1);
            u64::from(index == 77 && reads.get() > 4096)
        };
        assert_eq!(check(&mut memory, faulty), 1);
    }

    #[test]
    fn more_memory_than_available_is_refused() {
        assert_eq!(format!("{:?}", run(u64::MAX)), format!("{:?}", ExitCode::FAILURE));
        assert_eq!(format!("{:?}", run(0)), format!("{:?}", ExitCode::FAILURE));
    }
}
