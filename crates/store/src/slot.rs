//! Hash slots: the partitions of the key space of a cluster.
//!
//! A key's slot is the CRC16 (XMODEM) of the key, modulo the number of slots. If
//! the key contains a hash tag, a non-empty substring between the first `{` and the
//! next `}`, only that substring is hashed, so that related keys can share a slot.
//!
//! Every request of a cluster computes the CRC of its keys, by [`folding`] if the processor can multiply polynomials.
//! Otherwise it takes sixteen bytes at a time, each looked up in a table of its own ("slicing"): the CRC is linear, so
//! the sum over a block is the sum of what each byte adds at its distance from the block's end. The lookups do not
//! depend on each other. The CRC starts at 0, so leading zero bytes do not change it, and a key's odd bytes are its
//! first block, padded in front.

#[cfg(target_arch = "x86_64")]
mod folding;

use std::sync::LazyLock;

/// Number of slots in a cluster.
pub const SLOTS: u16 = 16_384;

const POLYNOMIAL: u16 = 0x1021;

/// Bytes per block.
const BLOCK: usize = 16;

/// By distance from the end of a block: what each value of that byte adds to the CRC.
static TABLES: [[u16; 256]; BLOCK] = {
    let mut tables = [[0; 256]; BLOCK];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = ((byte as u16) << 8, 0);
        while bit < u8::BITS {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ POLYNOMIAL };
            bit += 1;
        }
        tables[0][byte] = sum;
        byte += 1;
    }
    let mut distance = 1;
    while distance < BLOCK {
        let mut byte = 0;
        while byte < 256 {
            // Followed by one more zero byte.
            let before = tables[distance - 1][byte];
            tables[distance][byte] = (before << 8) ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        distance += 1;
    }
    tables
};

/// The slot of a key.
#[inline]
pub fn slot(key: &[u8]) -> u16 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("pclmulqdq") {
        // SAFETY: the processor supports the instruction.
        let sum = unsafe { folding::crc16_without_brace(key) };
        return sum.unwrap_or_else(|| crc16_of_tagged(key)) % SLOTS;
    }
    (if has_brace(key) { crc16_of_tagged(key) } else { crc16(key) }) % SLOTS
}

/// A short text whose slot is `slot`, for use as a hash tag: the first in the order of length, then of digits,
/// lower-case and upper-case letters. Empty for numbers that are not slots.
pub fn tag(slot: u16) -> &'static str {
    static TAGS: LazyLock<Vec<String>> = LazyLock::new(find_tags);
    TAGS.get(usize::from(slot)).map_or("", String::as_str)
}

fn find_tags() -> Vec<String> {
    const LETTERS: &[u8; 62] = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    let mut tags = vec![String::new(); usize::from(SLOTS)];
    let (mut left, mut number) = (tags.len(), 0);
    while left > 0 {
        // Texts in their order, as numbers with 62 digits.
        let (mut text, mut rest) = (String::new(), number);
        loop {
            text.insert(0, char::from(LETTERS[rest % LETTERS.len()]));
            match (rest / LETTERS.len()).checked_sub(1) {
                None => break,
                Some(more) => rest = more,
            }
        }
        let tag = &mut tags[usize::from(slot(text.as_bytes()))];
        if tag.is_empty() {
            *tag = text;
            left -= 1;
        }
        number += 1;
    }
    tags
}

/// The CRC of the part of a key that determines its slot.
#[cold]
fn crc16_of_tagged(key: &[u8]) -> u16 {
    crc16(hashed_part(key))
}

/// The slot of all keys that match a glob-style pattern, if the pattern shows that they have the same: it contains a
/// hash tag without special characters, and none before it, or has no special characters at all.
pub fn slot_of_pattern(pattern: &[u8]) -> Option<u16> {
    let is_special = |byte: &u8| matches!(byte, b'*' | b'?' | b'[' | b'\\');
    let Some(special) = pattern.iter().position(is_special) else { return Some(slot(pattern)) };
    let (plain, tag) = (&pattern[..special], hashed_part(&pattern[..special]));
    (tag.len() < plain.len()).then(|| crc16(tag) % SLOTS)
}

fn hashed_part(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let inner = &key[open + 1..];
    match inner.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &inner[..close],
    }
}

/// Whether a key contains an opening brace, eight bytes at a time.
#[inline]
fn has_brace(key: &[u8]) -> bool {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let in_word = |word: u64| {
        let zero_where_brace = word ^ u64::from_ne_bytes([b'{'; 8]);
        zero_where_brace.wrapping_sub(ONES) & !zero_where_brace & (ONES << 7)
    };
    let (words, tail) = key.as_chunks::<8>();
    match key.last_chunk::<8>() {
        // The last word overlaps the one before.
        Some(last) => words.iter().chain([last]).fold(0, |found, word| found | in_word(u64::from_ne_bytes(*word))) != 0,
        None => tail.contains(&b'{'),
    }
}

/// What a word adds to the CRC, its last byte being `after` bytes from the block's end.
#[inline(always)]
fn add_word(word: u64, after: usize) -> u16 {
    let bytes = word.to_le_bytes();
    let mut sum = 0;
    for (distance, byte) in bytes.into_iter().enumerate() {
        sum ^= TABLES[after + distance][usize::from(byte)];
    }
    sum
}

/// Up to seven bytes as a big-endian number.
#[inline(always)]
fn short_word(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two halves overlap.
        (Some(first), Some(last)) => {
            u64::from(u32::from_be_bytes(*first)) << (8 * (len - 4)) | u64::from(u32::from_be_bytes(*last))
        }
        _ => bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)),
    }
}

#[inline]
fn crc16(bytes: &[u8]) -> u16 {
    let (head, blocks) = bytes.split_at(bytes.len() % BLOCK);
    let mut sum = match head.split_last_chunk::<8>() {
        None => add_word(short_word(head), 0),
        Some((first, last)) => add_word(short_word(first), 8) ^ add_word(u64::from_be_bytes(*last), 0),
    };
    for block in blocks.as_chunks::<BLOCK>().0 {
        let number = u128::from_be_bytes(*block) ^ u128::from(sum) << (8 * (BLOCK - 2));
        sum = add_word((number >> 64) as u64, 8) ^ add_word(number as u64, 0);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, bit by bit.
    fn reference(bytes: &[u8]) -> u16 {
        bytes.iter().fold(0, |sum, byte| {
            (0..8).fold(
                sum ^ u16::from(*byte) << 8,
                |sum: u16, _| {
                    if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ POLYNOMIAL }
                },
            )
        })
    }

    #[test]
    fn slots_match_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!([slot(b""), slot(b"a"), slot(b"foo"), slot(b"123456789")], [0, 15495, 12182, 12739]);
    }

    #[test]
    fn crc_of_all_lengths_matches_the_definition() {
        let mut random = 1u64;
        let bytes: Vec<u8> = (0..400)
            .map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (random >> 56) as u8
            })
            .collect();
        for len in 0..100 {
            for part in bytes.windows(len.max(1)).map(|part| &part[..len]) {
                assert_eq!(crc16(part), reference(part), "{}", part.escape_ascii());
                if !part.contains(&b'{') {
                    assert_eq!(slot(part), reference(part) % SLOTS, "{}", part.escape_ascii());
                }
            }
        }
    }

    #[test]
    fn braces_are_found_at_every_place() {
        for len in 0..40 {
            let mut key = vec![b'z'; len];
            assert!(!has_brace(&key));
            assert_eq!(slot(&key), reference(&key) % SLOTS);
            for at in 0..len {
                key[at] = b'{';
                assert!(has_brace(&key), "{at} of {len}");
                assert_eq!(slot(&[&key, &b"a}b"[..]].concat()), reference(&[&key[at + 1..], b"a"].concat()) % SLOTS);
                // The neighbours differ from a brace by one bit or by one.
                for other in [b'|', b'z', b'}', 0xfb, 0x7a, 0, 0xff, 0x80] {
                    key[at] = other;
                    assert!(!has_brace(&key), "{other} at {at} of {len}");
                }
            }
        }
    }

    #[test]
    fn every_slot_has_a_short_tag() {
        for (slot, expected) in [(0, "06S"), (1, "Qi"), (51, "6od"), (16000, "he"), (16383, "6ZJ"), (SLOTS, "")] {
            assert_eq!(tag(slot), expected);
        }
        assert!((0..SLOTS).all(|number| slot(tag(number).as_bytes()) == number && tag(number).len() <= 3));
    }

    #[test]
    fn patterns_with_a_complete_hash_tag_or_no_wildcard_have_a_slot() {
        for (pattern, key) in
            [("{a}*", "a"), ("x{ab}[1]", "ab"), ("plain", "plain"), ("", ""), ("{}x", "{}x"), ("{x", "{x")]
        {
            assert_eq!(slot_of_pattern(pattern.as_bytes()), Some(slot(key.as_bytes())), "{pattern}");
        }
        for pattern in ["*", "*{a}", "{*}", "{a*}", "{}*", "{a?", "\\{a}", "[{a}]"] {
            assert_eq!(slot_of_pattern(pattern.as_bytes()), None, "{pattern}");
        }
    }

    #[test]
    fn hash_tag_between_first_braces_determines_slot() {
        assert_eq!(slot(b"{foo}.bar"), slot(b"foo"));
        assert_eq!(slot(b"{foo}{bar}"), slot(b"foo"));
        assert_eq!(slot(b"x{{foo}y}"), slot(b"{foo"));
        for whole in [&b"{}foo"[..], b"{foo", b"foo}", b"}foo{", b"foo{}{bar}"] {
            assert_eq!(slot(whole), crc16(whole) % SLOTS, "{}", whole.escape_ascii());
        }
    }
}
