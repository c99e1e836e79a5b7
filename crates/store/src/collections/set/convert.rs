//! How sets go from one encoding to another.

use super::{Collection, Encoded, Limits, Set, insert_into_table};
use crate::encodings::Corrupt;
use crate::encodings::element::{self, Plain};
use crate::encodings::intset::Intset;
use crate::encodings::listpack::{Element, Listpack};
use crate::encodings::members::{Gathering, Members};
use crate::value::IntBuf;

impl Set {
    /// Makes it a table, which it must not be yet.
    #[cold]
    pub(super) fn become_table(&mut self) -> &mut Members<Plain> {
        let mut members = Members::<Plain>::new();
        for member in self.iter() {
            // SAFETY: members of a set are all different.
            unsafe { members.insert_new(element::create(member.bytes(&mut IntBuf::default())), false) };
        }
        *self = members.into();
        self.as_table().unwrap_or_else(|| unreachable!("it just became a table"))
    }

    /// Adds the first member that is no integer: to a listpack if that holds all within its limits, else to a table.
    #[cold]
    pub(super) fn add_to_integers(&mut self, member: &[u8], limits: &Limits) {
        let Encoded::Intset(integers) = self.encoded() else { return };
        let outermost = || [integers.get(0), integers.get(integers.len().wrapping_sub(1))].into_iter().flatten();
        let digits = outermost().map(|number| itoa::Buffer::new().format(number).len()).max().unwrap_or(0);
        // No integer between these two takes more than the larger one.
        let size = outermost().map(|number| Element::int(number).size()).max().unwrap_or(0) * integers.len();
        let short = member.len().max(digits) <= limits.listpack_value;
        let mut listpack = Listpack::new();
        if short && integers.len() < limits.listpack_entries && listpack.fits(size.saturating_add(member.len())) {
            integers.iter().for_each(|number| listpack.push_back_int(number));
            listpack.push_back(member);
            *self = listpack.into();
        } else {
            insert_into_table(self.become_table(), member);
        }
    }

    /// Makes it an intset if all members are integers, and not too many.
    pub fn narrow(&mut self, limits: &Limits) {
        if matches!(self.encoded(), Encoded::Intset(_)) || self.len() > limits.intset_entries() {
            return;
        }
        let mut integers = Intset::new();
        for member in self.iter() {
            match member.as_int() {
                Some(number) => integers.insert(number),
                None => return,
            };
        }
        *self = integers.into();
    }
}

/// Members of a large set, read one after the other.
pub struct Loader(Gathering<Plain>);

impl Loader {
    /// One for as many members as somebody claims.
    pub fn new(claimed: usize) -> Self {
        Loader(Gathering::new(claimed))
    }

    /// Adds a member.
    #[inline]
    pub fn add(&mut self, member: &[u8]) {
        // SAFETY: the element is new, and given away.
        unsafe { self.0.add(element::create(member), false) };
    }

    /// The set.
    ///
    /// # Errors
    /// When a member came twice.
    pub fn finish(self) -> Result<Set, Corrupt> {
        self.0.finish().map(Set::from).ok_or(Corrupt)
    }
}
