//! Hash slots: the partitions of the key space of a cluster.
//!
//! A key's slot is the CRC16 (XMODEM) of the key, modulo the number of slots. If
//! the key contains a hash tag, a non-empty substring between the first `{` and the
//! next `}`, only that substring is hashed, so that related keys can share a slot.

/// Number of slots in a cluster.
pub const SLOTS: u16 = 16_384;

const POLYNOMIAL: u16 = 0x1021;

/// The CRC's update for each value of its upper byte.
const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < table.len() {
        let (mut sum, mut bit) = ((byte as u16) << 8, 0);
        while bit < u8::BITS {
            sum = if sum & 0x8000 == 0 { sum << 1 } else { (sum << 1) ^ POLYNOMIAL };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

/// The slot of a key.
pub fn slot(key: &[u8]) -> u16 {
    crc16(hashed_part(key)) % SLOTS
}

fn hashed_part(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let inner = &key[open + 1..];
    match inner.iter().position(|byte| *byte == b'}') {
        None | Some(0) => key,
        Some(close) => &inner[..close],
    }
}

fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| (sum << 8) ^ TABLE[usize::from((sum >> 8) as u8 ^ byte)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_match_the_cluster_specification() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!([slot(b""), slot(b"a"), slot(b"foo"), slot(b"123456789")], [0, 15495, 12182, 12739]);
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
