//! The limits of the compact encodings of all collections, with their defaults.

use crate::collections::stream::BlockLimits;
use crate::collections::{hash, list, set, sorted_set};

/// The limits up to which collections use compact encodings. Commands and loaders of dumps build values under them.
#[derive(Clone, Copy, Debug)]
pub struct EncodingLimits {
    /// Limits of lists.
    pub list: list::Limits,
    /// Limits of hashes.
    pub hash: hash::Limits,
    /// Limits of sets.
    pub set: set::Limits,
    /// Limits of sorted sets.
    pub sorted_set: sorted_set::Limits,
    /// Limits of the blocks of streams.
    pub stream: BlockLimits,
}

impl EncodingLimits {
    /// The defaults of the configuration directives.
    pub const DEFAULT: EncodingLimits = EncodingLimits {
        list: list::Limits { max_listpack_size: -2, compress_depth: 0 },
        hash: hash::Limits { fields: 512, bytes: 64 },
        set: set::Limits { intset_entries: 512, listpack_entries: 128, listpack_value: 64 },
        sorted_set: sorted_set::Limits { entries: 128, value: 64 },
        stream: BlockLimits { bytes: 4096, entries: 100 },
    };
}

impl Default for EncodingLimits {
    fn default() -> Self {
        Self::DEFAULT
    }
}
