//! Passwords, kept as SHA-256 digests.
//!
//! Comparing digests takes constant time. The server never stores, logs or prints a password that a client sent.

use sha2::{Digest as _, Sha256};
use std::fmt;
use std::hint::black_box;

const BYTES: usize = 32;

/// The digest of a password.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Digest([u8; BYTES]);

impl Digest {
    /// Computes the digest of a password.
    pub fn of(password: &[u8]) -> Self {
        Digest(Sha256::digest(password).into())
    }

    /// Parses 64 lower-case hexadecimal digits; `None` for anything else.
    pub fn parse(digits: &[u8]) -> Option<Self> {
        if digits.len() != 2 * BYTES {
            return None;
        }
        let value = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = value(pair[0])? << 4 | value(pair[1])?;
        }
        Some(Digest(bytes))
    }

    /// Compares two digests in constant time.
    pub fn is_same(&self, other: &Digest) -> bool {
        let pairs = self.0.iter().zip(&other.0);
        pairs.fold(0, |difference, (a, b)| black_box(difference | (a ^ b))) == 0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Digest")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_round_trip_through_hex() {
        let digest = Digest::of(b"foobared");
        let shown = digest.to_string();
        assert_eq!(shown.len(), 64);
        assert_eq!(Digest::parse(shown.as_bytes()), Some(digest));
        assert_eq!(Digest::of(b"abc").to_string(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn a_digest_is_64_lower_case_hex_digits() {
        let shown = Digest::of(b"x").to_string();
        assert!(Digest::parse(shown.to_uppercase().as_bytes()).is_none());
        assert!(Digest::parse(&shown.as_bytes()[1..]).is_none());
        assert!(Digest::parse(format!("{shown}0").as_bytes()).is_none());
        assert!(Digest::parse(shown.replace(|_: char| true, "g").as_bytes()).is_none());
    }

    #[test]
    fn digests_compare_by_all_bytes() {
        assert!(Digest::of(b"a").is_same(&Digest::of(b"a")));
        let digest = Digest::of(b"a");
        for at in 0..BYTES {
            let mut other = digest;
            other.0[at] ^= 1;
            assert!(!digest.is_same(&other));
        }
    }
}
