//! The shape of the radix tree that Valkey would use for a stream's blocks: XINFO reports its number of nodes.

use super::id::Id;

const KEY_LEN: usize = 16;

/// Number of nodes of the tree of ascending IDs. Each ID is a leaf; there is a
/// node where keys diverge; and the bytes between two such nodes form one node.
pub(super) fn nodes(ids: impl Iterator<Item = Id>) -> usize {
    // Depths of the nodes between the root and the current ID where keys diverge; the first one may be the root itself.
    let mut parting: Vec<usize> = Vec::new();
    let mut last: Option<[u8; KEY_LEN]> = None;
    let mut count = 0;
    // The node at `depth`, and the node for the bytes between the parent at `above` and it, if any.
    let below = |above: Option<&usize>, depth: usize| 1 + usize::from(above.map_or(0, |above| above + 1) < depth);
    for id in ids {
        let key = id.to_bytes();
        if let Some(last) = last.replace(key) {
            let depth = last.iter().zip(key).take_while(|(a, b)| **a == *b).count();
            // The last leaf, and the rest of its branch, are complete.
            let mut lower = KEY_LEN;
            while let Some(above) = parting.pop_if(|above| *above > depth) {
                count += below(Some(&above), lower);
                lower = above;
            }
            count += below(Some(&depth), lower);
            if parting.last() != Some(&depth) {
                parting.push(depth);
            }
        }
    }
    if last.is_none() {
        return 1;
    }
    let mut lower = KEY_LEN;
    while let Some(above) = parting.pop() {
        count += below(Some(&above), lower);
        lower = above;
    }
    count + below(None, lower)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn radix_nodes_count_leaves_branches_and_runs() {
        let nodes = |ids: &[(u64, u64)]| nodes(ids.iter().map(|(ms, seq)| Id::new(*ms, *seq)));
        assert_eq!(nodes(&[]), 1);
        assert_eq!(nodes(&[(1, 0)]), 2);
        // A run of seven bytes, a branch, two runs of eight bytes, two leaves.
        assert_eq!(nodes(&[(1, 0), (2, 0)]), 6);
        // A run of fifteen bytes, a branch, leaves.
        assert_eq!(nodes(&[(1, 1), (1, 2), (1, 3)]), 5);
        assert_eq!(nodes(&[(1, 1), (1, 2), (2, 3)]), 8);
        assert_eq!(nodes(&[(1, 1), (2, 2), (1 << 56, 3)]), 9);
    }
}
