//! Gathers elements in any order, to make a sorted set of them at once: what a command puts together ([`Builder`]), or
//! what a dump holds ([`Loader`]).

use super::element::{Element, Scored};
use super::large::Large;
use super::{Limits, SortedSet, small};
use crate::encodings::Corrupt;
use crate::encodings::listpack::Listpack;
use crate::encodings::members::{Gathering, Members};
use std::cmp::Ordering;

/// Elements that are to be a sorted set.
#[derive(Default)]
pub struct Builder {
    members: Members<Scored>,
}

impl Builder {
    /// One without elements.
    pub fn new() -> Self {
        Self::default()
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// True when there are no elements.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Gives a member the score that `score` derives from the one it has, `None` when it is new. It must not be NaN.
    pub fn update(&mut self, member: &[u8], score: impl FnOnce(Option<f64>) -> f64) {
        match self.members.find_place(member) {
            Ok(place) => {
                let element = Element::at(self.members.get(place));
                element.set_score(score(Some(element.score())));
            }
            Err(vacant) => {
                let element = Element::new(score(None), member);
                // SAFETY: the member was looked for just now; the element is given away.
                unsafe { self.members.insert_at(vacant, element.pointer(), false) };
            }
        }
    }

    /// Removes a member, if it is there.
    pub fn remove(&mut self, member: &[u8]) {
        if let Some(pointer) = self.members.remove(member) {
            Element::at(pointer).free();
        }
    }

    /// The sorted set: small if it is within the limits.
    pub fn build(self, limits: Limits) -> SortedSet {
        let members = || self.members.iter().map(|pointer| Element::at(pointer).member());
        let is_small = self.len() <= limits.entries
            && members().all(|member| member.len() <= limits.value)
            && Listpack::new().fits(members().map(<[u8]>::len).sum());
        if !is_small {
            return SortedSet::from_large(Large::from_members(self.members));
        }
        let mut elements: Vec<Element> = self.members.iter().map(Element::at).collect();
        elements.sort_unstable_by(|a, b| a.order(*b));
        let mut listpack = Listpack::new();
        for element in elements {
            small::push(&mut listpack, element.member(), element.score());
        }
        SortedSet(listpack.into_word(super::SMALL))
    }
}

/// Elements of a large sorted set, read one after the other. In which order does not matter, but it is fast when that is
/// theirs, from either end.
pub struct Loader {
    members: Gathering<Scored>,
    elements: Vec<Element>,
    ascending: bool,
    descending: bool,
}

impl Loader {
    /// One for as many elements as somebody claims.
    pub fn new(claimed: usize) -> Self {
        Loader { members: Gathering::new(claimed), elements: Vec::new(), ascending: true, descending: true }
    }

    /// Adds a member with a score that is not NaN.
    #[inline]
    pub fn add(&mut self, member: &[u8], score: f64) {
        let element = Element::new(score, member);
        if let Some(last) = self.elements.last() {
            let order = last.order(element);
            self.ascending &= order.is_lt();
            self.descending &= order.is_gt();
        }
        self.elements.push(element);
        // SAFETY: the element is new, and given away; its member does not change.
        unsafe { self.members.add(element.pointer(), false) };
    }

    /// The sorted set.
    ///
    /// # Errors
    /// When a member came twice.
    pub fn finish(self) -> Result<SortedSet, Corrupt> {
        let Loader { members, mut elements, ascending, descending } = self;
        let members = members.finish().ok_or(Corrupt)?;
        if descending {
            elements.reverse();
        } else if !ascending {
            // The scores beside the elements, most of which need not be looked at then.
            let mut scored: Vec<(f64, Element)> = elements.iter().map(|element| (element.score(), *element)).collect();
            scored.sort_unstable_by(|(a, one), (b, other)| match a.partial_cmp(b) {
                Some(Ordering::Equal) | None => one.order(*other),
                Some(order) => order,
            });
            elements.clear();
            elements.extend(scored.into_iter().map(|(_, element)| element));
        }
        Ok(SortedSet::from_large(Large::from_sorted(members, &elements)))
    }
}
