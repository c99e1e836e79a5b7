//! Maps an element to a register and a value.
//!
//! The hash is Austin Appleby's MurmurHash64A with a fixed seed. Both are part of the stored format, since sketches
//! written by other servers must remain valid here. The low 14 bits of the hash select the register; the position of
//! the lowest set bit among the other 50 is the value.

use super::dense::{INDEX_BITS, REGISTERS};

const SEED: u64 = 0xadc8_3b19;
const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
const SHIFT: u32 = 47;

/// The effect of one element: register `index` must be at least `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The register index, below [`REGISTERS`].
    pub index: usize,
    /// 1 to 51.
    pub count: u8,
}

impl Mark {
    /// The mark of an element.
    pub fn of(element: &[u8]) -> Mark {
        let hash = murmur(element);
        // A bit above the hash limits the count if the upper 50 bits of the hash are all zero.
        let pattern = hash >> INDEX_BITS | 1 << (64 - INDEX_BITS);
        Mark { index: hash as usize & (REGISTERS - 1), count: pattern.trailing_zeros() as u8 + 1 }
    }
}

/// MurmurHash64A of `bytes`. Words are read in little-endian order on every machine.
fn murmur(bytes: &[u8]) -> u64 {
    let mut hash = SEED ^ (bytes.len() as u64).wrapping_mul(MULTIPLIER);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let word = mixed(u64::from_le_bytes(*word).wrapping_mul(MULTIPLIER)).wrapping_mul(MULTIPLIER);
        hash = (hash ^ word).wrapping_mul(MULTIPLIER);
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(MULTIPLIER);
    }
    mixed(mixed(hash).wrapping_mul(MULTIPLIER))
}

fn mixed(word: u64) -> u64 {
    word ^ word >> SHIFT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_map_to_the_reference_registers() {
        // The values that PFDEBUG DECODE of Valkey 9.1 shows.
        assert_eq!(Mark::of(b""), Mark { index: 5938, count: 2 });
        assert_eq!(Mark::of(b"a"), Mark { index: 12711, count: 2 });
        assert_eq!(Mark::of(b"The quick brown fox jumps over the lazy dog"), Mark { index: 6862, count: 4 });
    }
}
