//! Small sorted sets: a listpack of members, each followed by its score, in order.
//!
//! Whole scores are stored as integers, others as the shortest decimal text
//! that reads back as the same number. A score of minus zero becomes zero.

use super::Cut;
use crate::encodings::listpack::{At, Element, Listpack, View};
use crate::value::{IntBuf, Str};
use kvick_resp::format::{format_double, parse_double};
use std::cmp::Ordering;

/// Whole scores above this magnitude, half of the range of an `i64`, are stored as text.
const INTEGER_MAX: f64 = (i64::MAX / 2) as f64;

/// The score that an element of the listpack represents; `None` if it is not a number.
#[inline]
pub(super) fn parse_score(element: Str<'_>) -> Option<f64> {
    match element {
        Str::Int(number) => Some(number as f64),
        Str::Bytes(text) => parse_double(text),
    }
}

/// The score after a member.
#[inline]
pub(super) fn score_after(view: View<'_>, member: At) -> f64 {
    view.next(member).and_then(|at| parse_score(view.get(at))).unwrap_or_default()
}

/// Calls `f` with a score as an element of a listpack.
#[inline]
fn with_score<T>(score: f64, f: impl FnOnce(Element<'_>) -> T) -> T {
    let whole = score as i64;
    if score.abs() <= INTEGER_MAX && whole as f64 == score {
        return f(Element::int(whole));
    }
    let mut text = Vec::with_capacity(32);
    format_double(score, &mut text);
    f(Element::new(&text))
}

/// Whether an element is before a cut.
#[inline]
fn is_before(view: View<'_>, member: At, cut: &Cut<'_>) -> bool {
    let mut digits = IntBuf::default();
    let score = if cut.needs_score() { score_after(view, member) } else { 0.0 };
    cut.is_after(score, || view.get(member).bytes(&mut digits))
}

/// The member after one.
#[inline]
fn next(view: View<'_>, member: At) -> Option<At> {
    view.next(view.next(member)?)
}

/// The position of a member.
#[inline]
pub(super) fn find(view: View<'_>, member: &[u8]) -> Option<At> {
    view.find(view.first()?, member, 1)
}

/// The rank of a member, and its score.
pub(super) fn rank_of(view: View<'_>, member: &[u8]) -> Option<(usize, f64)> {
    let mut at = view.first();
    let mut rank = 0;
    while let Some(here) = at {
        if view.equals(here, member) {
            return Some((rank, score_after(view, here)));
        }
        rank += 1;
        at = next(view, here);
    }
    None
}

/// The first element that is not before a cut, searching from element number `from` on, and its number.
pub(super) fn find_cut(view: View<'_>, from: usize, cut: &Cut<'_>) -> (usize, Option<At>) {
    let mut rank = from;
    let mut at = view.seek(2 * from as isize);
    while let Some(here) = at
        && is_before(view, here, cut)
    {
        rank += 1;
        at = next(view, here);
    }
    (rank, at)
}

/// Adds a member, which must be absent.
pub(super) fn insert(listpack: &mut Listpack, member: &[u8], score: f64) {
    let cut = Cut::Element { score, member, behind: false };
    let view = listpack.view();
    // Elements are often added in order.
    let at_tail = view.seek(-2).is_none_or(|last| is_before(view, last, &cut));
    let at = if at_tail { None } else { find_cut(view, 0, &cut).1 };
    with_score(score, |score| listpack.insert_all_before(at, &[Element::new(member), score]));
}

/// Changes the score of the member at a position.
pub(super) fn rescore(listpack: &mut Listpack, at: At, member: &[u8], score: f64) {
    let view = listpack.view();
    let cut = Cut::Element { score, member, behind: false };
    let previous = view.prev(at).and_then(|score| view.prev(score));
    let stays = previous.is_none_or(|previous| is_before(view, previous, &cut))
        && !next(view, at).is_some_and(|next| is_before(view, next, &cut));
    if !stays {
        listpack.remove_from(at, 2);
        insert(listpack, member, score);
    } else if let Some(score_at) = view.next(at) {
        with_score(score, |score| listpack.replace_element(score_at, score));
    }
}

/// Appends an element that is greater than all others.
pub(super) fn push(listpack: &mut Listpack, member: &[u8], score: f64) {
    with_score(score, |score| listpack.insert_all_before(None, &[Element::new(member), score]));
}

/// Whether a listpack from outside is a valid small sorted set: pairs
/// in strict order, with numbers as scores and distinct members.
pub(super) fn is_valid(view: View<'_>) -> bool {
    let mut members = std::collections::HashSet::new();
    let mut last: Option<(f64, Vec<u8>)> = None;
    let mut at = view.first();
    while let Some(here) = at {
        let member = view.get(here).bytes(&mut IntBuf::default()).to_vec();
        let Some(score) = view.next(here).and_then(|score| parse_score(view.get(score))) else { return false };
        let in_order = last.as_ref().is_none_or(|(before, name)| match before.partial_cmp(&score) {
            Some(Ordering::Equal) => *name < member,
            order => order == Some(Ordering::Less),
        });
        if !in_order || !members.insert(member.clone()) {
            return false;
        }
        last = Some((score, member));
        at = next(view, here);
    }
    true
}
