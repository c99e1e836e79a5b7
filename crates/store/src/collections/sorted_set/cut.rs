//! Places in the order of a sorted set, as the ends of ranges.

use super::element::Element;
use std::cmp::Ordering;

/// A place between two elements: what is before it and what is not. Ranges are pairs of cuts, half open.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cut<'a> {
    /// Before all elements.
    Start,
    /// Behind all elements.
    End,
    /// Before all elements with this score or a higher one; if `behind`, behind those with this score. It is not NaN.
    Score {
        /// The score.
        score: f64,
        /// Whether elements with the score itself are before the cut.
        behind: bool,
    },
    /// The same by members alone. Means something only in sorted sets whose scores are all the same.
    Member {
        /// The member.
        member: &'a [u8],
        /// Whether the member itself is before the cut.
        behind: bool,
    },
    /// Before, or if `behind` behind, the place of this score and member.
    Element {
        /// The score.
        score: f64,
        /// The member.
        member: &'a [u8],
        /// Whether the element itself is before the cut.
        behind: bool,
    },
}

impl Cut<'_> {
    /// The place of an element that is not there.
    pub(super) fn of(element: Element) -> Cut<'static> {
        Cut::Element { score: element.score(), member: element.member(), behind: false }
    }

    /// The place behind an element.
    pub(super) fn behind(element: Element) -> Cut<'static> {
        Cut::Element { score: element.score(), member: element.member(), behind: true }
    }

    /// Whether an element is before the cut. The member is asked for only when the score does not decide.
    #[inline]
    pub(super) fn is_after<'m>(&self, score: f64, member: impl FnOnce() -> &'m [u8]) -> bool {
        match *self {
            Cut::Start => false,
            Cut::End => true,
            Cut::Score { score: at, behind } => score < at || (behind && score == at),
            Cut::Member { member: at, behind } => precedes(member(), at, behind),
            Cut::Element { score: at, member: at_member, behind } => {
                score < at || (score == at && precedes(member(), at_member, behind))
            }
        }
    }

    /// Whether scores count.
    #[inline]
    pub(super) fn needs_score(&self) -> bool {
        matches!(self, Cut::Score { .. } | Cut::Element { .. })
    }

    /// The same for an element of a tree.
    #[inline]
    pub(super) fn is_behind(&self, element: Element) -> bool {
        self.is_after(element.score(), || element.member())
    }
}

#[inline]
fn precedes(member: &[u8], at: &[u8], behind: bool) -> bool {
    match member.cmp(at) {
        Ordering::Less => true,
        Ordering::Equal => behind,
        Ordering::Greater => false,
    }
}
