//! From an element to the register it belongs to and the value it asks of it.
//!
//! The hash is Austin Appleby's MurmurHash64A with a fixed seed; both are part of the stored format, since sketches
//! written by other servers must go on counting here. The low 14 bits of the hash choose the register, the position of
//! the lowest set bit among the other 50 is the value.

use super::dense::{INDEX_BITS, REGISTERS};

const SEED: u64 = 0xadc8_3b19;
const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
const SHIFT: u32 = 47;

/// What one element asks for: that register `index` be at least `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The register, below [`REGISTERS`].
    pub index: usize,
    /// 1 to 51.
    pub count: u8,
}

impl Mark {
    /// The mark of an element.
    pub fn of(element: &[u8]) -> Mark {
        let hash = murmur(element);
        // A bit above the hash ends the count for hashes whose upper 50 bits are all zero.
        let pattern = hash >> INDEX_BITS | 1 << (64 - INDEX_BITS);
        Mark { index: hash as usize & (REGISTERS - 1), count: pattern.trailing_zeros() as u8 + 1 }
    }
}

/// MurmurHash64A of `bytes`, words read in little-endian order on every machine.
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
    fn elements_land_where_the_reference_puts_them() {
        // As PFDEBUG DECODE of Valkey 9.1 shows them.
        assert_eq!(Mark::of(b""), Mark { index: 5938, count: 2 });
        assert_eq!(Mark::of(b"a"), Mark { index: 12711, count: 2 });
        assert_eq!(Mark::of(b"The quick brown fox jumps over the lazy dog"), Mark { index: 6862, count: 4 });
    }
}
