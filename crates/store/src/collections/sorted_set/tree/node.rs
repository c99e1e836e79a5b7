//! Nodes of the tree, and operations on one or two of them.
//!
//! All slots of a node are always initialised; those at or after its
//! length contain [`Element::NONE`] or stale values, and are never read.

use super::super::cut::Cut;
use super::super::element::Element;
use std::ptr::NonNull;

/// Elements in a leaf, which fills one of the allocator's size classes.
pub(super) const LEAF: usize = 77;
/// Children of an inner node, likewise.
pub(super) const FANOUT: usize = 64;
/// Number of elements in a group: a search in a leaf first compares
/// the last element of each group, then those of one group.
const GROUP: usize = 9;

const _: () = assert!(size_of::<Leaf>() == 640 && size_of::<Inner>() <= 2048);

/// A node of either type, determined by its level above the leaves.
pub(super) type Node = NonNull<u8>;

/// Some elements in order, and links to the adjacent leaves.
#[repr(C)]
pub(super) struct Leaf {
    pub previous: Option<NonNull<Leaf>>,
    pub next: Option<NonNull<Leaf>>,
    len: usize,
    elements: [Element; LEAF],
}

impl Leaf {
    pub fn new(elements: &[Element]) -> NonNull<Leaf> {
        let mut leaf = Leaf { previous: None, next: None, len: 0, elements: [Element::NONE; LEAF] };
        leaf.fill(elements);
        NonNull::from(Box::leak(Box::new(leaf)))
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len == LEAF
    }

    #[inline]
    pub fn elements(&self) -> &[Element] {
        &self.elements[..self.len]
    }

    /// Replaces the elements.
    pub fn fill(&mut self, elements: &[Element]) {
        self.elements[..elements.len()].copy_from_slice(elements);
        self.len = elements.len();
    }

    /// Appends elements, which must fit.
    pub fn extend(&mut self, elements: &[Element]) {
        self.elements[self.len..self.len + elements.len()].copy_from_slice(elements);
        self.len += elements.len();
    }

    /// Inserts an element, which must fit.
    #[inline]
    pub fn insert(&mut self, index: usize, element: Element) {
        self.elements.copy_within(index..self.len, index + 1);
        self.elements[index] = element;
        self.len += 1;
    }

    /// Removes `count` elements from `index` on.
    #[inline]
    pub fn remove(&mut self, index: usize, count: usize) {
        self.elements.copy_within(index + count..self.len, index);
        self.len -= count;
    }

    /// Number of elements before the cut. Compares the last element of every group, then the elements
    /// of one group; the elements of each step are loaded together, since they are probably not cached.
    #[inline]
    pub fn rank(&self, cut: &Cut<'_>) -> usize {
        let elements = self.elements();
        let pivots = elements.iter().skip(GROUP - 1).step_by(GROUP);
        pivots.clone().for_each(|pivot| pivot.prefetch());
        let start = GROUP * pivots.take_while(|pivot| cut.precedes_cut(**pivot)).count();
        let group = &elements[start..elements.len().min(start + GROUP)];
        group.iter().for_each(|element| element.prefetch());
        start + group.iter().take_while(|element| cut.precedes_cut(**element)).count()
    }

    /// Records the new address of the element at an index.
    pub fn relocated(&mut self, index: usize, now: Element) {
        self.elements[..self.len][index] = now;
    }

    /// The index of an element, found by its address only.
    #[inline]
    pub fn position(&self, element: Element) -> Option<usize> {
        const STEP: usize = 8;
        let (chunks, rest) = self.elements().as_chunks::<STEP>();
        for (number, chunk) in chunks.iter().enumerate() {
            // No early exit, so that the comparisons can be vectorised.
            if chunk.iter().fold(false, |found, other| found | (*other == element)) {
                return chunk.iter().position(|other| *other == element).map(|at| number * STEP + at);
            }
        }
        rest.iter().position(|other| *other == element).map(|at| chunks.len() * STEP + at)
    }
}

/// Children in order. Each child but the first has a separator: the first element
/// below it, and a copy of its score, so that a search rarely has to read elements.
#[repr(C)]
pub(super) struct Inner {
    len: usize,
    scores: [f64; FANOUT - 1],
    separators: [Element; FANOUT - 1],
    counts: [usize; FANOUT],
    children: [Node; FANOUT],
}

/// A child, existing or to be added: the first element below it, the node, and the number of elements below it.
#[derive(Clone, Copy)]
pub(super) struct Child {
    pub first: Element,
    pub node: Node,
    pub count: usize,
}

impl Inner {
    /// A node with one child.
    pub fn new(node: Node, count: usize) -> NonNull<Inner> {
        let mut inner = Inner {
            len: 1,
            scores: [0.0; FANOUT - 1],
            separators: [Element::NONE; FANOUT - 1],
            counts: [0; FANOUT],
            children: [Node::dangling(); FANOUT],
        };
        (inner.children[0], inner.counts[0]) = (node, count);
        NonNull::from(Box::leak(Box::new(inner)))
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.len == FANOUT
    }

    #[inline]
    pub fn child(&self, index: usize) -> Node {
        self.children[..self.len][index]
    }

    /// Records the new address of a child.
    pub fn set_child(&mut self, index: usize, node: Node) {
        self.children[..self.len][index] = node;
    }

    pub fn children(&self) -> &[Node] {
        &self.children[..self.len]
    }

    #[inline]
    pub fn count(&self, index: usize) -> usize {
        self.counts[..self.len][index]
    }

    #[inline]
    pub fn count_mut(&mut self, index: usize) -> &mut usize {
        &mut self.counts[..self.len][index]
    }

    /// Number of elements below it.
    pub fn total(&self) -> usize {
        self.counts[..self.len].iter().sum()
    }

    /// Number of elements below the children before `index`.
    #[inline]
    pub fn count_before(&self, index: usize) -> usize {
        self.counts[..index].iter().sum()
    }

    /// The child that contains element number `rank`, and the element's
    /// number within it. The last child if there are fewer elements.
    #[inline]
    pub fn child_at(&self, mut rank: usize) -> (usize, usize) {
        for (index, count) in self.counts[..self.len - 1].iter().enumerate() {
            if rank < *count {
                return (index, rank);
            }
            rank -= count;
        }
        (self.len - 1, rank)
    }

    /// The child that contains a cut: the last one that begins before it.
    #[inline]
    pub fn child_of(&self, cut: &Cut<'_>) -> usize {
        let (scores, separators) = (&self.scores[..self.len - 1], &self.separators[..self.len - 1]);
        let below = |at: f64| scores.iter().map(|score| usize::from(*score < at)).sum::<usize>();
        let up_to = |at: f64| scores.iter().map(|score| usize::from(*score <= at)).sum::<usize>();
        let tied = |range: std::ops::Range<usize>| {
            range.start + separators[range].partition_point(|separator| cut.precedes_cut(*separator))
        };
        match *cut {
            Cut::Start => 0,
            Cut::End => self.len - 1,
            Cut::Score { score, after: false } => below(score),
            Cut::Score { score, after: true } => up_to(score),
            Cut::Member { .. } => tied(0..separators.len()),
            Cut::Element { score, .. } => tied(below(score)..up_to(score)),
        }
    }

    /// The first element below child `index`, which must not be the first child.
    pub fn separator(&self, index: usize) -> (f64, Element) {
        (self.scores[..self.len - 1][index - 1], self.separators[index - 1])
    }

    /// Records that child `index`, which must not be the first, begins with this element, or that its score changed.
    #[inline]
    pub fn set_separator(&mut self, index: usize, first: Element) {
        self.scores[..self.len - 1][index - 1] = first.score();
        self.separators[index - 1] = first;
    }

    /// Inserts a child, which must fit, at `index`, which must not be 0.
    pub fn insert(&mut self, index: usize, child: Child) {
        let (len, before) = (self.len, index - 1);
        self.children.copy_within(index..len, index + 1);
        self.counts.copy_within(index..len, index + 1);
        self.scores.copy_within(before..len - 1, index);
        self.separators.copy_within(before..len - 1, index);
        (self.children[index], self.counts[index]) = (child.node, child.count);
        self.len += 1;
        self.set_separator(index, child.first);
    }

    /// Removes a child.
    pub fn remove(&mut self, index: usize) {
        let (len, before) = (self.len, index.saturating_sub(1));
        self.children.copy_within(index + 1..len, index);
        self.counts.copy_within(index + 1..len, index);
        if len > 1 {
            self.scores.copy_within(before + 1..len - 1, before);
            self.separators.copy_within(before + 1..len - 1, before);
        }
        self.len -= 1;
    }

    /// Moves the children from `index` on, which must not be 0, to a new node.
    pub fn split_off(&mut self, index: usize) -> Child {
        let first = self.separators[index - 1];
        let mut right = Inner::new(self.children[index], self.counts[index]);
        // SAFETY: just created, and not referenced elsewhere.
        let node = unsafe { right.as_mut() };
        node.len = self.len - index;
        node.children[..node.len].copy_from_slice(&self.children[index..self.len]);
        node.counts[..node.len].copy_from_slice(&self.counts[index..self.len]);
        node.scores[..node.len - 1].copy_from_slice(&self.scores[index..self.len - 1]);
        node.separators[..node.len - 1].copy_from_slice(&self.separators[index..self.len - 1]);
        self.len = index;
        Child { first, count: node.total(), node: right.cast() }
    }

    /// Appends the children of the next node, which must fit and whose first element is `first`.
    pub fn append(&mut self, right: &Inner, first: Element) {
        let (len, count) = (self.len, right.len);
        self.children[len..len + count].copy_from_slice(&right.children[..count]);
        self.counts[len..len + count].copy_from_slice(&right.counts[..count]);
        self.scores[len..len + count - 1].copy_from_slice(&right.scores[..count - 1]);
        self.separators[len..len + count - 1].copy_from_slice(&right.separators[..count - 1]);
        self.len += count;
        self.set_separator(len, first);
    }
}
