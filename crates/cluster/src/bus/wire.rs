//! Reads and appends the fields of messages: big-endian integers, names, texts that end with a zero byte.

use super::{ADDRESS_BYTES, DecodeError, EncodeError};
use crate::field;
use crate::node_id::NodeId;

/// Bytes of a message that were not read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], DecodeError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(array)
    }

    /// The next `length` bytes.
    pub(super) fn bytes(&mut self, length: usize) -> Result<&'a [u8], DecodeError> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(DecodeError::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, DecodeError> {
        self.array::<1>().map(|[byte]| *byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, DecodeError> {
        self.array().map(|bytes| u16::from_be_bytes(*bytes))
    }

    pub(super) fn u32(&mut self) -> Result<u32, DecodeError> {
        self.array().map(|bytes| u32::from_be_bytes(*bytes))
    }

    pub(super) fn u64(&mut self) -> Result<u64, DecodeError> {
        self.array().map(|bytes| u64::from_be_bytes(*bytes))
    }

    /// A node's name.
    pub(super) fn node_id(&mut self) -> Result<NodeId, DecodeError> {
        NodeId::new(*self.array()?).map_err(|_| DecodeError::NodeId)
    }

    /// A node's name, or zeros for none.
    pub(super) fn optional_node_id(&mut self) -> Result<Option<NodeId>, DecodeError> {
        if self.0.starts_with(&[0; NodeId::LEN]) {
            self.array::<{ NodeId::LEN }>()?;
            return Ok(None);
        }
        self.node_id().map(Some)
    }

    /// An IP address; empty if it is not known. Senders do not clear what follows the zero byte.
    pub(super) fn address(&mut self) -> Result<&'a str, DecodeError> {
        let address = terminated_text(self.array::<ADDRESS_BYTES>()?).ok_or(DecodeError::Address)?;
        if field::is_address(address) { Ok(address) } else { Err(DecodeError::Address) }
    }
}

/// The text before the first zero byte. `None` if there is no zero byte, or if the text is not UTF-8.
pub(super) fn terminated_text(bytes: &[u8]) -> Option<&str> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&bytes[..end]).ok()
}

/// Whether [`Reader::address`] succeeds on these bytes. The characters of usual addresses have a fast path.
pub(super) fn is_terminated_address(bytes: &[u8; ADDRESS_BYTES]) -> bool {
    match bytes.iter().find(|byte| !field::is_plain_in_address(**byte)) {
        Some(0) => true,
        _ => Reader(bytes).address().is_ok(),
    }
}

/// Appends an IP address, padded with zeros.
pub(super) fn write_address(out: &mut Vec<u8>, address: &str) -> Result<(), EncodeError> {
    if address.len() >= ADDRESS_BYTES || !field::is_address(address) {
        return Err(EncodeError::Address);
    }
    out.extend_from_slice(address.as_bytes());
    write_zeros(out, ADDRESS_BYTES - address.len());
    Ok(())
}

/// Appends zeros.
pub(super) fn write_zeros(out: &mut Vec<u8>, count: usize) {
    out.resize(out.len() + count, 0);
}
