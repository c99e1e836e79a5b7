//! A large sorted set while a snapshot captures it: which of its elements are as they were when that began.
//!
//! The snapshot takes the elements from the highest down, the order in which they are loaded fastest. One that is about to
//! change or go before its turn is taken at once. What is added below, and what has changed, is noted, to be passed over.

use super::cut::Cut;
use super::element::Element;
use super::large::Walk;
use super::tree::Tree;
use crate::snapshot::{Piece, Pieces};
use std::collections::HashSet;

/// Elements that are gone through at once.
const ELEMENTS_PER_STEP: usize = if cfg!(test) { 256 } else { 512 };

/// See the module's documentation.
pub(super) struct Capture {
    pieces: Pieces,
    /// Score and member of the last that was gone through: all above it are done.
    last: Option<(f64, Box<[u8]>)>,
    /// Where elements further down lie that are not as they were, or were not there.
    changed: HashSet<usize>,
}

impl Capture {
    /// Begins.
    pub fn new(pieces: Pieces) -> Capture {
        Capture { pieces, last: None, changed: HashSet::new() }
    }

    /// Where the pieces go.
    pub fn pieces(&self) -> &Pieces {
        &self.pieces
    }

    /// Before this place, elements are still to be gone through.
    fn frontier(&self) -> Cut<'_> {
        match &self.last {
            Some((score, member)) => Cut::Element { score: *score, member, behind: false },
            None => Cut::End,
        }
    }

    /// An element is about to change or go.
    #[cold]
    pub fn before_change(&mut self, element: Element) {
        if self.frontier().is_behind(element) && !self.changed.remove(&address(element)) {
            self.take(element);
        }
    }

    /// An element is new, or has another score.
    #[cold]
    pub fn changed(&mut self, element: Element) {
        if self.frontier().is_behind(element) {
            self.changed.insert(address(element));
        }
    }

    /// An element lies elsewhere now.
    pub fn moved(&mut self, before: Element, now: Element) {
        if before != now && self.changed.remove(&address(before)) {
            self.changed.insert(address(now));
        }
    }

    /// Captures some more; false when that was all.
    pub fn go_on(&mut self, tree: &Tree) -> bool {
        let Some(first) = tree.rank(&self.frontier()).checked_sub(1).filter(|_| !self.pieces.snapshot().is_cancelled())
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
        self.pieces.pass_on();
        true
    }

    fn take(&mut self, element: Element) {
        self.pieces.take(Piece::Scored(element.member(), element.score()));
    }

    /// Ends it: all are captured, or it was cancelled.
    pub fn end(self) {
        self.pieces.end();
    }
}

fn address(element: Element) -> usize {
    element.pointer().as_ptr().addr()
}
