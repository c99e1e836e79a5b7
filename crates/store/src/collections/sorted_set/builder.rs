//! Builds sorted sets from elements in any order: results of commands ([`Builder`]) and contents of dumps ([`Loader`]).

use super::element::{Element, Scored};
use super::large::Large;
use super::{Limits, SortedSet, small};
use crate::encodings::Corrupt;
use crate::encodings::listpack::Listpack;
use crate::encodings::members::{Gathering, Members};
use std::cmp::Ordering;

/// Collects the elements of a sorted set.
#[derive(Default)]
pub struct Builder {
    members: Members<Scored>,
}

impl Builder {
    /// An empty builder.
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

    /// Sets a member's score to the result of `score`, which receives
    /// its current one, `None` if it is new. It must not be NaN.
    pub fn update(&mut self, member: &[u8], score: impl FnOnce(Option<f64>) -> f64) {
        match self.members.find_place(member) {
            Ok(place) => {
                let element = Element::at(self.members.get(place));
                element.set_score(score(Some(element.score())));
            }
            Err(vacant) => {
                let element = Element::new(score(None), member);
                // SAFETY: the member was looked up just now; ownership of the element passes to the table.
                unsafe { self.members.insert_at(vacant, element.pointer(), false) };
            }
        }
    }

    /// Removes a member, if it exists.
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

/// Builds a large sorted set from elements that are loaded one after the
/// other, in any order; fast if they are sorted in either direction.
pub struct Loader {
    members: Gathering<Scored>,
    elements: Vec<Element>,
    ascending: bool,
    descending: bool,
}

impl Loader {
    /// A loader for `claimed` elements, a number that need not be correct.
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
        // SAFETY: the element is new, and ownership passes to the table; its member does not change.
        unsafe { self.members.add(element.pointer(), false) };
    }

    /// The complete sorted set.
    ///
    /// # Errors
    /// If a member occurred twice.
    pub fn finish(self) -> Result<SortedSet, Corrupt> {
        let Loader { members, mut elements, ascending, descending } = self;
        let members = members.finish().ok_or(Corrupt)?;
        if descending {
            elements.reverse();
        } else if !ascending {
            // Sort with the scores next to the elements, so that few elements need to be read.
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
