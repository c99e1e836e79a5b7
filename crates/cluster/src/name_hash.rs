//! A fast hash for maps by name: received gossip looks up a hundred thousand names a second in a large cluster.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Builds the hashers of one map. Each map has a random seed, so that nobody can choose names that collide.
#[derive(Clone, Debug)]
pub(crate) struct NameHash {
    seed: u64,
}

/// Folds words of eight bytes by multiplication.
pub(crate) struct NameHasher(u64);

/// An odd number with irregular bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Default for NameHash {
    fn default() -> NameHash {
        NameHash { seed: RandomState::new().hash_one(0u8) }
    }
}

impl BuildHasher for NameHash {
    type Hasher = NameHasher;

    fn build_hasher(&self) -> NameHasher {
        NameHasher(self.seed)
    }
}

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        for byte in rest {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * u128::from(FACTOR);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
