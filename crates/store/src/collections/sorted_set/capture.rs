//! Capture of a large sorted set by a snapshot: tracks which elements are unchanged since the snapshot began.
//!
//! The snapshot takes the elements in descending order, the order in which they are loaded
//! fastest. An element that is about to change or be removed before its turn is taken at once.
//! Elements further down that were added or have changed since are recorded, and skipped later.

use super::cut::Cut;
use super::element::Element;
use super::large::Walk;
use super::tree::Tree;
use crate::snapshot::pieces::{Piece, Pieces};
use std::collections::HashSet;

/// Number of elements that are visited per step.
const ELEMENTS_PER_STEP: usize = if cfg!(test) { 256 } else { 512 };

/// The capture of a sorted set. See the module documentation.
pub(super) struct Capture {
    pieces: Pieces,
    /// Score and member of the last visited element: all elements above it are done.
    last: Option<(f64, Box<[u8]>)>,
    /// Addresses of elements further down that changed or were added after the snapshot began.
    changed: HashSet<usize>,
}

impl Capture {
    /// Begins the capture.
    pub fn new(pieces: Pieces) -> Capture {
        Capture { pieces, last: None, changed: HashSet::new() }
    }

    /// The state that the snapshot needs.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Elements before this position have yet to be visited.
    fn frontier(&self) -> Cut<'_> {
        match &self.last {
            Some((score, member)) => Cut::Element { score: *score, member, behind: false },
            None => Cut::End,
        }
    }

    /// Must be called before an element changes or is removed.
    #[cold]
    pub fn before_change(&mut self, element: Element) {
        if self.frontier().is_behind(element) && !self.changed.remove(&address(element)) {
            self.take(element);
        }
    }

    /// An element was added, or its score changed.
    #[cold]
    pub fn changed(&mut self, element: Element) {
        if self.frontier().is_behind(element) {
            self.changed.insert(address(element));
        }
    }

    /// An element was moved in memory.
    pub fn moved(&mut self, before: Element, now: Element) {
        if before != now && self.changed.remove(&address(before)) {
            self.changed.insert(address(now));
        }
    }

    /// Captures some more; returns false when all elements were captured.
    pub fn capture_next(&mut self, tree: &Tree) -> bool {
        let Some(first) = tree.rank(&self.frontier()).checked_sub(1).filter(|_| !self.pieces.captures().is_cancelled())
        else {
            return false;
        };
        let mut last = None;
        for element in Walk::new(tree, first, true).take(ELEMENTS_PER_STEP) {
            if !self.changed.remove(&address(element)) {
                self.take(element);
            }
            last = Some(element);
        }
        self.last = last.map(|element| (element.score(), element.member().into()));
        self.pieces.flush();
        true
    }

    fn take(&mut self, element: Element) {
        self.pieces.take(Piece::Scored(element.member(), element.score()));
    }

    /// Ends the capture: all elements were captured, or it was cancelled.
    pub fn end(self) {
        self.pieces.end();
    }
}

fn address(element: Element) -> usize {
    element.pointer().as_ptr().addr()
}
