//! The keyed hash of the keyspace: SipHash-1-3 (Aumasson and Bernstein, 2012), with a secret generated at startup.
//!
//! Clients choose the keys that are hashed, so the function must not let them construct
//! collisions: SipHash is a pseudo-random function as long as its secret is not known. One
//! compression round and three finalisation rounds is the variant commonly used for hash tables.
//!
//! In cluster mode, the low bits of a key's hash are its [slot], so that keys of a slot share a partition and the slot
//! is never computed twice. Tables do not use these bits.

use crate::slot::{SLOTS, slot};

/// A key with its hash, computed once.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// The key itself.
    pub bytes: &'a [u8],
    /// Its hash.
    pub hash: u64,
}

/// A hash function with its secret.
#[derive(Clone, Copy)]
pub struct KeyHasher {
    k0: u64,
    k1: u64,
    by_slot: bool,
}

/// The bits of a hash that are the slot, in cluster mode.
const SLOT_MASK: u64 = SLOTS as u64 - 1;

/// The slot of a key with this hash, which was computed in cluster mode.
#[inline]
pub const fn slot_of(hash: u64) -> u16 {
    (hash & SLOT_MASK) as u16
}

impl KeyHasher {
    /// A hasher with a new random secret from the operating system.
    pub fn random() -> Self {
        use std::hash::{BuildHasher, Hasher, RandomState};
        let draw = || RandomState::new().build_hasher().finish();
        Self::with_secret(draw(), draw())
    }

    /// A hasher with a given secret.
    pub const fn with_secret(k0: u64, k1: u64) -> Self {
        KeyHasher { k0, k1, by_slot: false }
    }

    /// This hasher in cluster mode: the low bits of a hash are the key's slot.
    pub const fn by_slot(self) -> Self {
        KeyHasher { by_slot: true, ..self }
    }

    /// Whether the low bits of a hash are the key's slot.
    pub const fn is_by_slot(&self) -> bool {
        self.by_slot
    }

    /// Hashes `bytes`.
    #[inline]
    pub fn hash(&self, bytes: &[u8]) -> u64 {
        let hash = self.siphash(bytes);
        if self.by_slot { (hash & !SLOT_MASK) | u64::from(slot(bytes)) } else { hash }
    }

    #[inline]
    fn siphash(&self, bytes: &[u8]) -> u64 {
        let mut state = State {
            v0: self.k0 ^ 0x736f_6d65_7073_6575,
            v1: self.k1 ^ 0x646f_7261_6e64_6f6d,
            v2: self.k0 ^ 0x6c79_6765_6e65_7261,
            v3: self.k1 ^ 0x7465_6462_7974_6573,
        };
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            state.absorb(u64::from_le_bytes(*word));
        }
        state.absorb(tail_word(tail) | (bytes.len() as u64) << 56);
        state.v2 ^= 0xff;
        state.round();
        state.round();
        state.round();
        state.v0 ^ state.v1 ^ state.v2 ^ state.v3
    }
}

/// The hasher for the elements of collections, one per process.
/// The first call of this or [`set_elements`] determines it.
#[inline]
pub fn elements() -> KeyHasher {
    *ELEMENTS.get_or_init(KeyHasher::random)
}

/// Sets the hasher for elements. Has no effect after its first use.
pub fn set_elements(hasher: KeyHasher) {
    // A hasher that is already in use must stay.
    let _ = ELEMENTS.set(hasher);
}

static ELEMENTS: std::sync::OnceLock<KeyHasher> = std::sync::OnceLock::new();

/// Up to seven bytes as a little-endian word.
#[inline]
fn tail_word(tail: &[u8]) -> u64 {
    let mut word = 0u64;
    for (i, &byte) in tail.iter().enumerate() {
        word |= u64::from(byte) << (8 * i);
    }
    word
}

struct State {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl State {
    #[inline(always)]
    fn absorb(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.v0 ^= word;
    }

    #[inline(always)]
    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::KeyHasher;

    #[test]
    #[allow(deprecated)]
    fn matches_reference_for_all_short_lengths() {
        use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hasher};
        // The standard library's default hasher is SipHash-1-3 with a zero key.
        let ours = KeyHasher::with_secret(0, 0);
        let bytes: Vec<u8> = (0..100).collect();
        for len in 0..bytes.len() {
            let mut reference = BuildHasherDefault::<DefaultHasher>::default().build_hasher();
            reference.write(&bytes[..len]);
            assert_eq!(ours.hash(&bytes[..len]), reference.finish(), "length {len}");
        }
    }

    #[test]
    fn hashes_by_slot_differ_only_in_the_slot() {
        let hasher = KeyHasher::with_secret(1, 2);
        for key in [&b""[..], b"key", b"{tag}key", b"a longer key, which has several blocks"] {
            let hash = hasher.by_slot().hash(key);
            assert_eq!(super::slot_of(hash), crate::slot::slot(key));
            assert_eq!(hash >> 14, hasher.hash(key) >> 14);
        }
    }

    #[test]
    fn secrets_change_the_hash() {
        assert_ne!(KeyHasher::with_secret(1, 2).hash(b"key"), KeyHasher::with_secret(1, 3).hash(b"key"));
        assert_ne!(KeyHasher::random().hash(b"key"), KeyHasher::random().hash(b"key"));
    }
}
