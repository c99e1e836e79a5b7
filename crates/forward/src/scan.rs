//! Cursors of SCAN over several nodes: the upper bits are the number of the node, the lower ones its own cursor.

/// Bits of a node's own cursor: fourteen for the slot, and as many as a hash table of that slot has.
const OWN_BITS: u32 = 53;
/// Maximum number of nodes. Cursors are below 2^63, because some clients take them for signed numbers.
pub const NODES_MAX: u64 = 1 << (63 - OWN_BITS);

/// The node that a cursor belongs to, and the node's own cursor.
pub fn divide(cursor: u64) -> (u64, u64) {
    (cursor >> OWN_BITS, cursor & ((1 << OWN_BITS) - 1))
}

/// The cursor behind node `node`'s own cursor `own`, which is 0 at the end of the node. `None` if there is none.
pub fn next_cursor(node: u64, own: u64, is_last: bool) -> Option<u64> {
    match own {
        0 if is_last => Some(0),
        0 => Some((node + 1) << OWN_BITS),
        _ if own >> OWN_BITS == 0 && node < NODES_MAX => Some(node << OWN_BITS | own),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_goes_from_node_to_node() {
        assert_eq!(divide(0), (0, 0));
        let next = |node, own, is_last| next_cursor(node, own, is_last).map(divide);
        assert_eq!(next(0, 77, false), Some((0, 77)));
        assert_eq!(next(2, 77, true), Some((2, 77)));
        assert_eq!(next(0, 0, false), Some((1, 0)));
        assert_eq!(next(2, 0, true), Some((0, 0)));
        assert_eq!(next(0, u64::MAX, false), None);
    }
}
