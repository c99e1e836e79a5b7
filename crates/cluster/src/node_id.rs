//! Names of nodes and shards: 40 characters, lower-case letters and digits.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;

/// The name of a node, or of a shard: exactly 40 bytes, each of `a-z` or `0-9`.
///
/// Valkey generates hexadecimal names, but accepts all letters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId([u8; NodeId::LEN]);

/// Bytes that are not the name of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidNodeId;

impl NodeId {
    /// Bytes of a name.
    pub const LEN: usize = 40;

    /// The name made of these bytes. Fails unless each is a lower-case letter or a digit.
    pub fn new(bytes: [u8; NodeId::LEN]) -> Result<NodeId, InvalidNodeId> {
        if is_name(&bytes) { Ok(NodeId(bytes)) } else { Err(InvalidNodeId) }
    }

    /// The hexadecimal name of 20 bytes, which should be random.
    pub fn from_random(random: [u8; NodeId::LEN / 2]) -> NodeId {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut name = [0; NodeId::LEN];
        for (pair, byte) in name.chunks_exact_mut(2).zip(random) {
            pair[0] = DIGITS[usize::from(byte >> 4)];
            pair[1] = DIGITS[usize::from(byte & 15)];
        }
        NodeId(name)
    }

    /// The name as bytes.
    pub fn as_bytes(&self) -> &[u8; NodeId::LEN] {
        &self.0
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        // Never empty: all bytes are ASCII.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Whether these bytes are a name. All bytes are looked at, so that it takes a few instructions.
pub(crate) fn is_name(bytes: &[u8; NodeId::LEN]) -> bool {
    bytes.iter().fold(true, |valid, byte| valid & (byte.is_ascii_lowercase() | byte.is_ascii_digit()))
}

// Maps by name are searched with the bytes of a message.
impl Borrow<[u8; NodeId::LEN]> for NodeId {
    fn borrow(&self) -> &[u8; NodeId::LEN] {
        &self.0
    }
}

impl FromStr for NodeId {
    type Err = InvalidNodeId;

    fn from_str(text: &str) -> Result<NodeId, InvalidNodeId> {
        NodeId::new(text.as_bytes().try_into().map_err(|_| InvalidNodeId)?)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for InvalidNodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a node ID (expected 40 lower-case letters and digits)")
    }
}

impl std::error::Error for InvalidNodeId {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_name_are_the_same() {
        let text = "22acbc687d9c017bd9ff3e1c8f76e6de43760ac4";
        let id: NodeId = text.parse().expect("a name");
        assert_eq!(id.to_string(), text);
        assert_eq!(id.as_bytes(), text.as_bytes());
        assert_eq!(NodeId::from_random([0xa0; 20]).as_str(), "a0".repeat(20));
    }

    #[test]
    fn other_lengths_and_characters_are_refused() {
        for text in ["", &"a".repeat(39), &"a".repeat(41), &"A".repeat(40), &"-".repeat(40), &"ä".repeat(20)] {
            assert_eq!(text.parse::<NodeId>(), Err(InvalidNodeId), "{text}");
        }
        assert!("z".repeat(40).parse::<NodeId>().is_ok());
    }
}
