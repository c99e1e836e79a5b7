//! Positions in the order of a sorted set, used as the ends of ranges.

use super::element::Element;
use std::cmp::Ordering;

/// A position between two elements. Ranges are half-open pairs of cuts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cut<'a> {
    /// Before all elements.
    Start,
    /// After all elements.
    End,
    /// Before all elements with this score or a higher one; if `after`, after those with this score. Must not be NaN.
    Score {
        /// The score.
        score: f64,
        /// Whether elements with this score are before the cut.
        after: bool,
    },
    /// Like `Score`, but by member only. Meaningful only if all scores of the sorted set are equal.
    Member {
        /// The member.
        member: &'a [u8],
        /// Whether the member itself is before the cut.
        after: bool,
    },
    /// Before the position of this score and member, or after it if `after`.
    Element {
        /// The score.
        score: f64,
        /// The member.
        member: &'a [u8],
        /// Whether the element itself is before the cut.
        after: bool,
    },
}

impl Cut<'_> {
    /// The position of an element that is absent.
    pub(super) fn of(element: Element) -> Cut<'static> {
        Cut::Element { score: element.score(), member: element.member(), after: false }
    }

    /// The position after an element.
    pub(super) fn after_element(element: Element) -> Cut<'static> {
        Cut::Element { score: element.score(), member: element.member(), after: true }
    }

    /// Whether an element is before the cut. `member` is called only if the score does not decide.
    #[inline]
    pub(super) fn is_after<'m>(&self, score: f64, member: impl FnOnce() -> &'m [u8]) -> bool {
        match *self {
            Cut::Start => false,
            Cut::End => true,
            Cut::Score { score: at, after } => score < at || (after && score == at),
            Cut::Member { member: at, after } => precedes(member(), at, after),
            Cut::Element { score: at, member: at_member, after } => {
                score < at || (score == at && precedes(member(), at_member, after))
            }
        }
    }

    /// Whether the cut depends on scores.
    #[inline]
    pub(super) fn needs_score(&self) -> bool {
        matches!(self, Cut::Score { .. } | Cut::Element { .. })
    }

    /// Whether an element of a tree is before the cut.
    #[inline]
    pub(super) fn precedes_cut(&self, element: Element) -> bool {
        self.is_after(element.score(), || element.member())
    }
}

#[inline]
fn precedes(member: &[u8], at: &[u8], after: bool) -> bool {
    match member.cmp(at) {
        Ordering::Less => true,
        Ordering::Equal => after,
        Ordering::Greater => false,
    }
}
