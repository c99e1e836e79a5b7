//! Large sorted sets: a tree that keeps the order, and a table that finds members.
//!
//! A snapshot [captures](super::capture) them in pieces: the capture is notified before
//! an element changes or is removed, and of elements that are new or have changed.
//!
//! **Invariant**: both contain the same elements. The table owns them; an
//! element to be deleted is removed from the tree first and freed last.

use super::Change;
use super::capture::Capture;
use super::element::{Element, Scored};
use super::tree::{Position, Tree};
use crate::defrag::Mover;
use crate::encodings::members::{Members, Vacant};
use crate::memory::WEIGHED;
use crate::snapshot::pieces::{Captures, Gradual, Pieces};
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Large {
    members: Members<Scored>,
    tree: Tree,
    /// Present while a snapshot captures the set.
    capture: Option<Box<Capture>>,
}

/// Sets with at least this many elements are captured in pieces.
const GRADUAL_MIN: usize = 2048;

impl Large {
    /// Makes a sorted set of the elements in a table.
    pub fn from_members(members: Members<Scored>) -> Large {
        let mut elements: Vec<Element> = members.iter().map(Element::at).collect();
        elements.sort_unstable_by(|a, b| a.order(*b));
        Large::from_sorted(members, &elements)
    }

    /// Makes a sorted set of the elements in a table, which are also given in order.
    pub fn from_sorted(members: Members<Scored>, elements: &[Element]) -> Large {
        Large { members, tree: Tree::of_sorted(elements), capture: None }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn members(&self) -> &Members<Scored> {
        &self.members
    }

    #[inline]
    pub fn find(&self, member: &[u8]) -> Option<Element> {
        self.members.find(member).map(Element::at)
    }

    /// Adds a member that is known to be absent.
    pub fn add_new(&mut self, member: &[u8], score: f64) {
        let element = Element::new(score, member);
        self.tree.insert(element);
        if let Some(capture) = &mut self.capture {
            capture.changed(element);
        }
        // SAFETY: the element is new, and so is its member.
        unsafe { self.members.insert_new(element.pointer(), false) };
    }

    fn add_at(&mut self, vacant: Vacant, member: &[u8], score: f64) {
        let element = Element::new(score, member);
        self.tree.insert(element);
        if let Some(capture) = &mut self.capture {
            capture.changed(element);
        }
        // SAFETY: the member was looked up, and nothing has changed since.
        unsafe { self.members.insert_at(vacant, element.pointer(), false) };
    }

    /// See [`super::SortedSet::update`].
    pub fn update(&mut self, member: &[u8], decide: impl FnOnce(Option<f64>) -> Option<f64>) -> Change {
        match self.members.find_place(member) {
            Ok(place) => {
                let element = Element::at(self.members.get(place));
                match decide(Some(element.score())) {
                    Some(score) if score != element.score() => {
                        if let Some(capture) = &mut self.capture {
                            capture.before_change(element);
                        }
                        self.tree.rescore(element, score);
                        if let Some(capture) = &mut self.capture {
                            capture.changed(element);
                        }
                        Change::Updated
                    }
                    _ => Change::None,
                }
            }
            Err(vacant) => match decide(None) {
                Some(score) => {
                    self.add_at(vacant, member, score);
                    Change::Added
                }
                None => Change::None,
            },
        }
    }

    pub fn remove(&mut self, member: &[u8]) -> bool {
        let Ok(place) = self.members.find_place(member) else { return false };
        let element = Element::at(self.members.get(place));
        if let Some(capture) = &mut self.capture {
            capture.before_change(element);
        }
        self.tree.remove(element);
        self.members.remove_at(place);
        element.free();
        true
    }

    /// Removes existing elements by rank.
    pub fn remove_range(&mut self, rank: usize, count: usize) {
        let (members, capture) = (&mut self.members, &mut self.capture);
        self.tree.remove_range(rank, count, |element| {
            if let Some(capture) = capture {
                capture.before_change(element);
            }
            members.remove(element.member());
            element.free();
        });
    }

    /// See [`super::Collection::gradual`].
    pub fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        if self.len() >= GRADUAL_MIN || self.capture.is_some() { Some(self) } else { None }
    }

    /// See [`super::Collection::relocate`]. Positions are ranks
    /// first, then positions in the table with the top bit set.
    pub fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
        /// Marks positions in the table, whose last bit is unused.
        const IN_TABLE: u64 = 1 << 63;
        let mut in_table = position << 1;
        if position & IN_TABLE == 0 {
            let (members, capture) = (&mut self.members, &mut self.capture);
            let rank = self.tree.relocate(position as usize, mover, |mover, element| {
                // SAFETY: the table contains the elements of the tree, which takes the new address.
                let now = Element::at(unsafe { members.relocate_element(element.pointer(), mover) });
                if let Some(capture) = capture {
                    capture.moved(element, now);
                }
                now
            });
            if let Some(rank) = rank {
                return Some(rank as u64);
            }
            if mover.is_due() {
                return Some(IN_TABLE);
            }
            in_table = 0;
        }
        self.members.relocate_table(in_table, mover).map(|next| IN_TABLE | next >> 1)
    }

    pub fn memory(&self, samples: usize) -> usize {
        crate::memory::size_class(size_of::<Large>()) + self.members.memory(samples) + self.tree.memory()
    }

    /// Verifies the tree, and that the table contains the same elements.
    #[cfg(test)]
    pub fn check(&self) {
        self.tree.check();
        assert_eq!(self.members.len(), self.tree.len());
        let mut position = self.tree.at(0);
        while let Some(at) = position {
            let element = self.tree.get(at);
            assert_eq!(self.find(element.member()), Some(element));
            position = self.tree.next(at);
        }
    }
}

impl Gradual for Large {
    fn captures(&self) -> Option<&Arc<Captures>> {
        self.capture.as_ref().map(|capture| capture.pieces().captures())
    }

    fn begin(&mut self, pieces: Pieces) {
        self.capture = Some(Box::new(Capture::new(pieces)));
    }

    fn capture_next(&mut self) -> bool {
        let Some(capture) = &mut self.capture else { return false };
        if capture.capture_next(&self.tree) {
            return true;
        }
        if let Some(capture) = self.capture.take() {
            capture.end();
        }
        false
    }

    fn weight(&self) -> usize {
        self.memory(WEIGHED)
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        if let Some(capture) = self.capture.take() {
            // The snapshot captures the rest and drops it.
            let captures = capture.pieces().captures().clone();
            let (members, tree) = (std::mem::take(&mut self.members), std::mem::take(&mut self.tree));
            captures.keep_remainder(Box::new(Large { members, tree, capture: Some(capture) }));
        }
    }
}

impl Clone for Large {
    fn clone(&self) -> Large {
        let mut copy = Large::default();
        let mut position = self.tree.at(0);
        while let Some(at) = position {
            let element = self.tree.get(at);
            copy.add_new(element.member(), element.score());
            position = self.tree.next(at);
        }
        copy
    }
}

/// Iterates over consecutive elements of a tree.
pub(super) struct Walk<'a> {
    tree: &'a Tree,
    at: Option<Position>,
    reverse: bool,
}

impl<'a> Walk<'a> {
    /// Starts at element number `rank`, towards the end or, if `reverse`, the beginning.
    pub fn new(tree: &'a Tree, rank: usize, reverse: bool) -> Walk<'a> {
        Walk { tree, at: tree.at(rank), reverse }
    }
}

impl Iterator for Walk<'_> {
    type Item = Element;

    #[inline]
    fn next(&mut self) -> Option<Element> {
        /// How many elements ahead to prefetch.
        const AHEAD: isize = 6;
        let at = self.at?;
        if self.reverse {
            self.tree.prefetch(at, -AHEAD);
            self.at = self.tree.previous(at);
        } else {
            self.tree.prefetch(at, AHEAD);
            self.at = self.tree.next(at);
        }
        Some(self.tree.get(at))
    }
}
