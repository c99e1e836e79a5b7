//! A B+ tree of elements ordered by score and member, with counts: the order of large sorted sets.
//!
//! ```text
//!              inner node    | 3 elements | 2 elements |            children with their numbers of elements,
//!                            |  separator: 2.5 "d"     |            and the first element of all but the first child
//!                           /                 \
//!              leaf   | a b c |   <-->   | d e |                    pointers to elements, nothing else
//! ```
//!
//! - **Leaves** hold eight bytes per element and are doubly linked. A full leaf moves elements to
//!   a neighbour before it splits, and two full ones become three, so that leaves stay more than
//!   three quarters full; leaves at either end are left full if elements are added in order.
//! - **Inner nodes** hold for each child the number of elements below it, so that a rank is a sum along one
//!   descent, and for each child but the first a separator: its first element, with a copy of its score. A
//!   descent compares scores that are contiguous in memory and reads elements only where scores are equal.
//! - An existing element is found in its leaf by its address, without reading any element.
//!
//! # Safety
//!
//! The following hold between method calls; `Tree::check` verifies them in tests:
//!
//! - All leaves are `height` levels below the root; all other nodes are [`Inner`] nodes. Nodes are boxed; each is
//!   owned by its parent, the root by the tree. There is a root if and only if there are elements; no node is empty.
//! - Elements are strictly ordered across all leaves, and `next` and `previous` link the leaves in this order.
//! - A count is the number of elements below a child; a separator is the first element below its child, and its score.
//!
//! [`Tree::leaf`] and similar methods, through which all nodes are accessed, rely on the first invariant. References
//! to nodes live for one statement or block, and no other reference to a node exists while it is mutably borrowed.

mod node;

use super::cut::Cut;
use super::element::Element;
use crate::defrag::Mover;
use node::{Child, FANOUT, Inner, LEAF, Leaf, Node};
use smallvec::SmallVec;
use std::alloc::Layout;
use std::ptr::NonNull;

/// Leaves and inner nodes with fewer entries are joined with a neighbour if possible.
const LEAF_SMALL: usize = LEAF / 3;
const INNER_SMALL: usize = FANOUT / 4;
/// The maximum size of a node after a join.
const LEAF_JOINED_MAX: usize = LEAF * 3 / 4;
const INNER_JOINED_MAX: usize = FANOUT * 3 / 4;
/// Two neighbouring leaves with more elements than this become three; with fewer, they share their elements.
const SHARED_MAX: usize = 2 * LEAF - 6;

/// The tree. See the module documentation. It does not free its elements.
#[derive(Default)]
pub(super) struct Tree {
    root: Option<Node>,
    /// Levels of inner nodes.
    height: usize,
    len: usize,
    leaves: usize,
    inners: usize,
}

/// The inner nodes from the root down to a leaf, each with the index of the child on the path.
type Path = SmallVec<[(NonNull<Inner>, usize); 6]>;

/// The position of an element. Valid until the tree changes.
#[derive(Clone, Copy)]
pub(super) struct Position {
    leaf: NonNull<Leaf>,
    index: usize,
}

// SAFETY: a tree owns its nodes; the elements in them belong to the sorted set that owns the tree.
unsafe impl Send for Tree {}
// SAFETY: shared access only reads.
unsafe impl Sync for Tree {}

/// Elements in a leaf, and children of an inner node, of a tree that is built in one pass: leaves room for insertions.
const LEAF_FILLED: usize = LEAF * 7 / 8;
const INNER_FILLED: usize = FANOUT * 7 / 8;

/// Pieces of about the same length, none of them longer than `max`.
fn pieces<T>(items: &[T], max: usize) -> impl Iterator<Item = &[T]> {
    let (len, count) = (items.len(), items.len().div_ceil(max));
    (0..count).map(move |number| &items[len * number / count..len * (number + 1) / count])
}

impl Tree {
    /// A tree of elements that are in strict order.
    pub fn of_sorted(elements: &[Element]) -> Tree {
        debug_assert!(elements.is_sorted_by(|a, b| a.order(*b).is_lt()));
        let mut tree = Tree { len: elements.len(), ..Tree::default() };
        let mut level: Vec<Child> = Vec::with_capacity(elements.len().div_ceil(LEAF_FILLED));
        for piece in pieces(elements, LEAF_FILLED) {
            let leaf = match level.last() {
                None => tree.new_leaf(piece),
                Some(before) => tree.new_leaf_after(before.node.cast(), piece),
            };
            level.push(Child { first: piece[0], node: leaf.cast(), count: piece.len() });
        }
        while level.len() > 1 {
            level = pieces(&level, INNER_FILLED).map(|children| tree.new_inner(children)).collect();
            tree.height += 1;
        }
        tree.root = level.first().map(|only| only.node);
        tree
    }

    /// A parent node of these children.
    fn new_inner(&mut self, children: &[Child]) -> Child {
        let Child { first, node, count } = children[0];
        let inner = Inner::new(node, count);
        for (index, child) in children.iter().enumerate().skip(1) {
            self.inner_mut(inner).insert(index, *child);
        }
        self.inners += 1;
        Child { first, node: inner.cast(), count: self.inner(inner).total() }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory that the nodes take.
    pub fn memory(&self) -> usize {
        self.leaves * size_of::<Leaf>() + self.inners * crate::memory::size_class(size_of::<Inner>())
    }

    /// Number of nodes.
    pub fn node_count(&self) -> usize {
        self.leaves + self.inners
    }

    /// Number of elements before a cut.
    pub fn rank(&self, cut: &Cut<'_>) -> usize {
        let mut before = 0;
        let Some(leaf) = self.descend(|inner| {
            let child = inner.child_of(cut);
            before += inner.count_before(child);
            child
        }) else {
            return 0;
        };
        before + self.leaf(leaf).rank(cut)
    }

    /// Number of elements before an existing one.
    pub fn rank_of(&self, element: Element) -> usize {
        let (cut, mut before) = (Cut::behind(element), 0);
        let Some(leaf) = self.descend(|inner| {
            let child = inner.child_of(&cut);
            before += inner.count_before(child);
            child
        }) else {
            unreachable!("a tree with an element has a root");
        };
        before + self.position_in(leaf, element)
    }

    /// Element number `rank`, counted from 0.
    pub fn at(&self, mut rank: usize) -> Option<Position> {
        if rank >= self.len {
            return None;
        }
        let leaf = self.descend(|inner| {
            let child;
            (child, rank) = inner.child_at(rank);
            child
        })?;
        Some(Position { leaf, index: rank })
    }

    /// The element at a position.
    #[inline]
    pub fn get(&self, position: Position) -> Element {
        self.leaf(position.leaf).elements()[position.index]
    }

    /// The position after one.
    #[inline]
    pub fn next(&self, position: Position) -> Option<Position> {
        let leaf = self.leaf(position.leaf);
        if position.index + 1 < leaf.len() {
            return Some(Position { index: position.index + 1, ..position });
        }
        leaf.next.map(|leaf| Position { leaf, index: 0 })
    }

    /// The position before one.
    #[inline]
    pub fn previous(&self, position: Position) -> Option<Position> {
        if position.index > 0 {
            return Some(Position { index: position.index - 1, ..position });
        }
        let leaf = self.leaf(position.leaf).previous?;
        Some(Position { leaf, index: self.leaf(leaf).len() - 1 })
    }

    /// Prefetches the element that is `distance` after a position, or before it if negative, if it is in the same leaf.
    #[inline]
    pub fn prefetch(&self, position: Position, distance: isize) {
        let elements = self.leaf(position.leaf).elements();
        if let Some(element) = position.index.checked_add_signed(distance).and_then(|index| elements.get(index)) {
            element.prefetch();
        }
    }

    /// Adds an element, which must be absent.
    pub fn insert(&mut self, element: Element) {
        let cut = Cut::of(element);
        let (path, leaf) = self.path(|inner| inner.child_of(&cut));
        let Some(mut leaf) = leaf else {
            self.grow_first_leaf(element);
            return;
        };
        self.len += 1;
        for (inner, child) in &path {
            *self.inner_mut(*inner).count_mut(*child) += 1;
        }
        let index = self.leaf(leaf).rank(&cut);
        // SAFETY: a leaf of this tree, borrowed for this block.
        let node = unsafe { leaf.as_mut() };
        if node.is_full() {
            self.insert_into_full(path, leaf, index, element);
        } else {
            node.insert(index, element);
        }
    }

    /// Removes an existing element.
    pub fn remove(&mut self, element: Element) {
        let (path, leaf, index) = self.locate(element);
        self.remove_run(path, leaf, index, 1);
    }

    /// Removes `count` existing elements from number `rank` on, and calls `removed` with each in order.
    pub fn remove_range(&mut self, rank: usize, mut count: usize, mut removed: impl FnMut(Element)) {
        while count > 0 {
            let mut index = rank;
            let (path, leaf) = self.path(|inner| {
                let child;
                (child, index) = inner.child_at(index);
                child
            });
            let Some(leaf) = leaf else { return };
            let elements = self.leaf(leaf).elements();
            let run = count.min(elements.len() - index);
            elements[index..index + run].iter().for_each(|element| removed(*element));
            self.remove_run(path, leaf, index, run);
            count -= run;
        }
    }

    /// Changes the score of an existing element, and moves it if its position changes.
    pub fn rescore(&mut self, element: Element, score: f64) {
        let (path, leaf, index) = self.locate(element);
        let here = Position { leaf, index };
        let member = element.member();
        let is_after = |at: Position| {
            let cut = Cut::Element { score, member, behind: false };
            cut.is_behind(self.get(at))
        };
        let stays = self.previous(here).is_none_or(is_after) && !self.next(here).is_some_and(is_after);
        if stays {
            element.set_score(score);
            if index == 0 {
                self.set_first(&path, element);
            }
        } else {
            self.remove_run(path, leaf, index, 1);
            element.set_score(score);
            self.insert(element);
        }
    }

    /// Offers the nodes to a mover, from the leaf with element number `rank` on, and calls `relocate` with
    /// each element to get its new address, until the mover is due. Returns the number to continue from.
    pub fn relocate(
        &mut self,
        mut rank: usize,
        mover: &mut Mover<'_>,
        mut relocate: impl FnMut(&mut Mover<'_>, Element) -> Element,
    ) -> Option<usize> {
        while rank < self.len {
            let mut index = rank;
            let (mut path, leaf) = self.path(|inner| {
                let child;
                (child, index) = inner.child_at(index);
                child
            });
            let leaf = self.relocate_nodes(&mut path, leaf?, mover);
            for at in index..self.leaf(leaf).len() {
                let before = self.leaf(leaf).elements()[at];
                let now = relocate(mover, before);
                if now != before {
                    self.leaf_mut(leaf).relocated(at, now);
                    if at == 0 {
                        self.set_first(&path, now);
                    }
                }
            }
            rank += self.leaf(leaf).len() - index;
            if mover.is_due() && rank < self.len {
                return Some(rank);
            }
        }
        None
    }

    /// Offers a leaf, and the inner nodes on the path of which it is the first leaf; returns the leaf's new address.
    fn relocate_nodes(&mut self, path: &mut Path, leaf: NonNull<Leaf>, mover: &mut Mover<'_>) -> NonNull<Leaf> {
        let firsts = path.iter().rev().take_while(|(_, child)| *child == 0).count();
        for level in path.len() - firsts..path.len() {
            // SAFETY: a box of this tree, whose address is replaced in the one place where it is stored.
            let now = unsafe { mover.offer(path[level].0.cast(), Layout::new::<Inner>()) };
            self.set_node(&path[..level], now);
            path[level].0 = now.cast();
        }
        // SAFETY: a box of this tree, whose address is replaced in the three places where it is stored.
        let now = unsafe { mover.offer(leaf.cast(), Layout::new::<Leaf>()) }.cast();
        if now != leaf {
            let (previous, next) = (self.leaf(now).previous, self.leaf(now).next);
            if let Some(previous) = previous {
                self.leaf_mut(previous).next = Some(now);
            }
            if let Some(next) = next {
                self.leaf_mut(next).previous = Some(now);
            }
            self.set_node(path, now.cast());
        }
        now
    }

    /// Records the new address of the node at the end of a path from the root.
    fn set_node(&mut self, way: &[(NonNull<Inner>, usize)], node: Node) {
        match way.last() {
            Some((inner, child)) => self.inner_mut(*inner).set_child(*child, node),
            None => self.root = Some(node),
        }
    }

    /// The position of an existing element: the path to its leaf, and its index there.
    fn locate(&self, element: Element) -> (Path, NonNull<Leaf>, usize) {
        let cut = Cut::behind(element);
        let (path, Some(leaf)) = self.path(|inner| inner.child_of(&cut)) else {
            unreachable!("a tree with an element has a root");
        };
        (path, leaf, self.position_in(leaf, element))
    }

    fn position_in(&self, leaf: NonNull<Leaf>, element: Element) -> usize {
        match self.leaf(leaf).position(element) {
            Some(index) => index,
            None => unreachable!("an element is in the leaf that its score and member lead to"),
        }
    }

    /// Descends to a leaf; `choose` selects the child.
    #[inline]
    fn descend(&self, mut choose: impl FnMut(&Inner) -> usize) -> Option<NonNull<Leaf>> {
        let mut node = self.root?;
        for _ in 0..self.height {
            let inner = self.inner(node.cast());
            node = inner.child(choose(inner));
        }
        Some(node.cast())
    }

    /// Like `descend`, and returns the path. The leaf is `None` if the tree is empty.
    #[inline]
    fn path(&self, mut choose: impl FnMut(&Inner) -> usize) -> (Path, Option<NonNull<Leaf>>) {
        let mut path = Path::new();
        let Some(mut node) = self.root else { return (path, None) };
        for _ in 0..self.height {
            let inner = self.inner(node.cast());
            let child = choose(inner);
            path.push((node.cast(), child));
            node = inner.child(child);
        }
        (path, Some(node.cast()))
    }

    #[inline]
    fn leaf(&self, leaf: NonNull<Leaf>) -> &Leaf {
        // SAFETY: a leaf of this tree.
        unsafe { leaf.as_ref() }
    }

    #[inline]
    fn leaf_mut(&mut self, mut leaf: NonNull<Leaf>) -> &mut Leaf {
        // SAFETY: a leaf of this tree.
        unsafe { leaf.as_mut() }
    }

    #[inline]
    fn inner(&self, inner: NonNull<Inner>) -> &Inner {
        // SAFETY: an inner node of this tree.
        unsafe { inner.as_ref() }
    }

    #[inline]
    fn inner_mut(&mut self, mut inner: NonNull<Inner>) -> &mut Inner {
        // SAFETY: an inner node of this tree.
        unsafe { inner.as_mut() }
    }

    #[cold]
    fn grow_first_leaf(&mut self, element: Element) {
        let leaf = self.new_leaf(&[element]);
        (self.root, self.height, self.len) = (Some(leaf.cast()), 0, 1);
    }

    fn new_leaf(&mut self, elements: &[Element]) -> NonNull<Leaf> {
        self.leaves += 1;
        Leaf::new(elements)
    }

    /// Adds a leaf after another.
    fn new_leaf_after(&mut self, before: NonNull<Leaf>, elements: &[Element]) -> NonNull<Leaf> {
        let leaf = self.new_leaf(elements);
        let after = self.leaf_mut(before).next.replace(leaf);
        let node = self.leaf_mut(leaf);
        (node.previous, node.next) = (Some(before), after);
        if let Some(after) = after {
            self.leaf_mut(after).previous = Some(leaf);
        }
        leaf
    }

    /// Inserts into a full leaf. The counts on the path were already incremented.
    #[cold]
    fn insert_into_full(&mut self, mut path: Path, leaf: NonNull<Leaf>, index: usize, element: Element) {
        if path.is_empty() {
            self.grow_root();
            // The leaf is the only child of the new root.
            path.extend(self.root.map(|root| (root.cast(), 0)));
        }
        let node = self.leaf(leaf);
        if index == LEAF && node.next.is_none() {
            // Appending in order leaves full leaves behind.
            let added = self.new_leaf_after(leaf, &[element]);
            self.attach(path, Child { first: element, node: added.cast(), count: 1 });
        } else if index == 0 && node.previous.is_none() {
            let old: SmallVec<[Element; LEAF]> = SmallVec::from_slice(node.elements());
            let added = self.new_leaf_after(leaf, &old);
            self.leaf_mut(leaf).fill(&[element]);
            self.attach(path, Child { first: old[0], node: added.cast(), count: LEAF });
        } else {
            self.share(path, leaf, index, element);
        }
    }

    /// Inserts into a full leaf by sharing with a neighbour, or by splitting two leaves into three, or one into two.
    fn share(&mut self, mut path: Path, leaf: NonNull<Leaf>, index: usize, element: Element) {
        let Some((parent, at)) = path.last_mut() else { return };
        let (parent, node) = (*parent, self.inner(*parent));
        let before = at.checked_sub(1).map(|left| node.count(left));
        let behind = (*at + 1 < node.len()).then(|| node.count(*at + 1));
        let mut elements: SmallVec<[Element; 2 * LEAF + 1]> = SmallVec::from_slice(self.leaf(leaf).elements());
        elements.insert(index, element);
        let left = match (before, behind) {
            (None, None) => {
                let (low, high) = elements.split_at(elements.len() / 2);
                self.leaf_mut(leaf).fill(low);
                let added = self.new_leaf_after(leaf, high);
                return self.attach(path, Child { first: high[0], node: added.cast(), count: high.len() });
            }
            (Some(before), behind) if behind.is_none_or(|behind| before <= behind) => {
                *at -= 1;
                let left = node.child(*at).cast();
                elements.insert_from_slice(0, self.leaf(left).elements());
                left
            }
            _ => {
                elements.extend_from_slice(self.leaf(node.child(*at + 1).cast()).elements());
                leaf
            }
        };
        let at = *at;
        let right = self.inner(parent).child(at + 1).cast();
        let leaves = if elements.len() <= SHARED_MAX { 2 } else { 3 };
        let (first, rest) = elements.split_at(elements.len() / leaves);
        let (second, third) = rest.split_at(rest.len() / (leaves - 1));
        self.leaf_mut(left).fill(first);
        self.leaf_mut(right).fill(second);
        let parent = self.inner_mut(parent);
        (*parent.count_mut(at), *parent.count_mut(at + 1)) = (first.len(), second.len() + third.len());
        parent.set_separator(at + 1, second[0]);
        if let Some(third_first) = third.first() {
            let added = self.new_leaf_after(right, third);
            if let Some((_, at)) = path.last_mut() {
                *at += 1;
            }
            self.attach(path, Child { first: *third_first, node: added.cast(), count: third.len() });
        }
    }

    /// Adds a new root above the current one.
    fn grow_root(&mut self) {
        if let Some(root) = self.root {
            self.inners += 1;
            self.root = Some(Inner::new(root, self.len).cast());
            self.height += 1;
        }
    }

    /// Adds a child after the one that the path ends with, whose count included it so far.
    fn attach(&mut self, mut path: Path, mut child: Child) {
        while let Some((parent, at)) = path.pop() {
            let node = self.inner_mut(parent);
            *node.count_mut(at) -= child.count;
            if !node.is_full() {
                node.insert(at + 1, child);
                return;
            }
            // Appending children in order leaves full nodes behind, as with elements.
            let half = if at + 1 == FANOUT { FANOUT - 1 } else { FANOUT / 2 };
            let mut right = node.split_off(half);
            if at < half {
                node.insert(at + 1, child);
            } else {
                self.inner_mut(right.node.cast()).insert(at + 1 - half, child);
                right.count += child.count;
            }
            self.inners += 1;
            if path.is_empty() {
                self.grow_root();
                path.extend(self.root.map(|root| (root.cast(), 0)));
            }
            child = right;
        }
    }

    /// Updates the separator after the leaf at the end of the path got
    /// another first element, or a first element with another score.
    #[inline]
    fn set_first(&mut self, path: &Path, first: Element) {
        if let Some((inner, child)) = path.iter().rev().find(|(_, child)| *child > 0) {
            self.inner_mut(*inner).set_separator(*child, first);
        }
    }

    /// Removes `count` elements of the leaf at the end of the path.
    fn remove_run(&mut self, path: Path, leaf: NonNull<Leaf>, index: usize, count: usize) {
        self.len -= count;
        for (inner, child) in &path {
            *self.inner_mut(*inner).count_mut(*child) -= count;
        }
        self.leaf_mut(leaf).remove(index, count);
        let node = self.leaf(leaf);
        if index == 0 {
            // Separators of nodes that are now empty are removed below; any other is replaced by the next element.
            let next = node.elements().first().copied();
            if let Some(next) = next.or_else(|| node.next.map(|next| self.leaf(next).elements()[0])) {
                self.set_first(&path, next);
            }
        }
        if self.leaf(leaf).len() < LEAF_SMALL {
            self.rebalance(path);
        }
    }

    /// Joins or removes nodes from the end of the path upwards, as long as they are small.
    #[cold]
    fn rebalance(&mut self, mut path: Path) {
        let mut level = 0;
        while let Some((parent, at)) = path.pop() {
            if !self.merge_child(parent, at, level) {
                return;
            }
            level += 1;
        }
        self.collapse_root();
    }

    /// Removes a child if it is empty, or joins it with a neighbour
    /// if both are small. Returns whether there is one child less.
    fn merge_child(&mut self, parent: NonNull<Inner>, at: usize, level: usize) -> bool {
        let child = self.inner(parent).child(at);
        let len = self.node_len(child, level);
        if len == 0 {
            self.drop_node(child, level);
            self.inner_mut(parent).remove(at);
            return true;
        }
        let (small, joined_max) =
            if level == 0 { (LEAF_SMALL, LEAF_JOINED_MAX) } else { (INNER_SMALL, INNER_JOINED_MAX) };
        if len >= small {
            return false;
        }
        let neighbours = [at.checked_sub(1), (at + 1 < self.inner(parent).len()).then_some(at + 1)];
        let size = |index: &usize| self.node_len(self.inner(parent).child(*index), level);
        let Some(other) = neighbours.into_iter().flatten().min_by_key(size) else { return false };
        if len + size(&other) > joined_max {
            return false;
        }
        self.join(parent, at.min(other), level);
        true
    }

    /// Joins child `at` with the one after it.
    fn join(&mut self, parent: NonNull<Inner>, at: usize, level: usize) {
        let node = self.inner(parent);
        let (left, right) = (node.child(at), node.child(at + 1));
        let (count, (_, first)) = (node.count(at + 1), node.separator(at + 1));
        if level == 0 {
            let elements: SmallVec<[Element; LEAF]> = SmallVec::from_slice(self.leaf(right.cast()).elements());
            self.leaf_mut(left.cast()).extend(&elements);
        } else {
            // SAFETY: two different inner nodes of this tree, borrowed for this statement.
            unsafe { left.cast::<Inner>().as_mut().append(right.cast::<Inner>().as_ref(), first) };
        }
        self.drop_node(right, level);
        let node = self.inner_mut(parent);
        node.remove(at + 1);
        *node.count_mut(at) += count;
    }

    fn node_len(&self, node: Node, level: usize) -> usize {
        if level == 0 { self.leaf(node.cast()).len() } else { self.inner(node.cast()).len() }
    }

    /// Frees a node whose content was moved elsewhere.
    fn drop_node(&mut self, node: Node, level: usize) {
        if level > 0 {
            self.inners -= 1;
            // SAFETY: made from a box, and about to be removed from its parent.
            drop(unsafe { Box::from_raw(node.cast::<Inner>().as_ptr()) });
            return;
        }
        self.leaves -= 1;
        // SAFETY: as above.
        let leaf = unsafe { Box::from_raw(node.cast::<Leaf>().as_ptr()) };
        if let Some(previous) = leaf.previous {
            self.leaf_mut(previous).next = leaf.next;
        }
        if let Some(next) = leaf.next {
            self.leaf_mut(next).previous = leaf.previous;
        }
    }

    /// Removes roots with only one child, or none.
    fn collapse_root(&mut self) {
        while let Some(root) = self.root {
            let only = match self.node_len(root, self.height) {
                0 => None,
                1 if self.height > 0 => Some(self.inner(root.cast()).child(0)),
                _ => return,
            };
            self.drop_node(root, self.height);
            self.root = only;
            self.height = self.height.saturating_sub(1);
        }
    }

    /// Verifies the invariants of the module documentation.
    ///
    /// # Panics
    /// If it does not hold.
    #[cfg(test)]
    pub fn check(&self) {
        let Some(root) = self.root else {
            assert_eq!((self.len, self.leaves, self.inners), (0, 0, 0), "an empty tree has nothing");
            return;
        };
        let mut leaves = Vec::new();
        let mut inners = 0;
        let (count, _) = self.check_node(root, self.height, &mut leaves, &mut inners);
        assert_eq!((count, leaves.len(), inners), (self.len, self.leaves, self.inners));
        for (index, leaf) in leaves.iter().enumerate() {
            let leaf = self.leaf(*leaf);
            assert_eq!(leaf.previous, index.checked_sub(1).map(|before| leaves[before]), "links lead back");
            assert_eq!(leaf.next, leaves.get(index + 1).copied(), "links lead on");
        }
        let elements: Vec<Element> = leaves.iter().flat_map(|leaf| self.leaf(*leaf).elements()).copied().collect();
        assert!(elements.is_sorted_by(|a, b| a.order(*b).is_lt()), "elements are in order");
    }

    /// The number of elements below a node, and its first element.
    #[cfg(test)]
    fn check_node(
        &self,
        node: Node,
        level: usize,
        leaves: &mut Vec<NonNull<Leaf>>,
        inners: &mut usize,
    ) -> (usize, Element) {
        assert!(self.node_len(node, level) > 0, "no node is empty");
        if level == 0 {
            leaves.push(node.cast());
            let elements = self.leaf(node.cast()).elements();
            return (elements.len(), elements[0]);
        }
        *inners += 1;
        let inner = self.inner(node.cast());
        let mut first = None;
        for (index, child) in inner.children().iter().enumerate() {
            let (count, first_below) = self.check_node(*child, level - 1, leaves, inners);
            assert_eq!(count, inner.count(index), "counts are right");
            if first.is_some() {
                let separator = inner.separator(index);
                assert_eq!(separator, (first_below.score(), first_below), "separators are the first elements");
            }
            first = first.or(Some(first_below));
        }
        (inner.total(), first.unwrap_or(Element::NONE))
    }

    fn free_below(&mut self, node: Node, level: usize) {
        if level > 0 {
            let children: SmallVec<[Node; FANOUT]> = self.inner(node.cast()).children().into();
            children.into_iter().for_each(|child| self.free_below(child, level - 1));
        } else {
            let leaf = self.leaf_mut(node.cast());
            (leaf.previous, leaf.next) = (None, None);
        }
        self.drop_node(node, level);
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        if let Some(root) = self.root.take() {
            self.free_below(root, self.height);
        }
    }
}

#[cfg(test)]
mod tests;
