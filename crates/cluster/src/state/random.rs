//! The generator of random numbers of a state machine (SplitMix64): the same seed gives the same run.

use crate::node_id::NodeId;

/// A generator of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The next number.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`; 0 if that is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        if bound == 0 { 0 } else { self.next() % bound }
    }

    /// A random name.
    pub(super) fn node_id(&mut self) -> NodeId {
        let mut bytes = [0; NodeId::LEN / 2];
        for chunk in bytes.chunks_mut(8) {
            let number = self.next().to_be_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
        NodeId::from_random(bytes)
    }
}
