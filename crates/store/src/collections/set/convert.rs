//! Conversion of sets between encodings.

use super::{Collection, Encoded, Limits, Set, insert_into_table};
use crate::encodings::Corrupt;
use crate::encodings::element::{self, Plain};
use crate::encodings::intset::Intset;
use crate::encodings::listpack::{Element, Listpack};
use crate::encodings::members::{Gathering, Members};
use crate::value::IntBuf;

impl Set {
    /// Converts to a table; it must not be one.
    #[cold]
    pub(super) fn become_table(&mut self) -> &mut Members<Plain> {
        let mut members = Members::<Plain>::new();
        for member in self.iter() {
            // SAFETY: the members of a set are distinct.
            unsafe { members.insert_new(element::create(member.bytes(&mut IntBuf::default())), false) };
        }
        *self = members.into();
        self.as_table().unwrap_or_else(|| unreachable!("it just became a table"))
    }

    /// Adds the first member that is not an integer: converts to a
    /// listpack if that stays within the limits, else to a table.
    #[cold]
    pub(super) fn add_to_integers(&mut self, member: &[u8], limits: &Limits) {
        let Encoded::Intset(integers) = self.encoded() else { return };
        let outermost = || [integers.get(0), integers.get(integers.len().wrapping_sub(1))].into_iter().flatten();
        let digits = outermost().map(|number| itoa::Buffer::new().format(number).len()).max().unwrap_or(0);
        // No integer between these two takes more bytes than the larger of them.
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

    /// Converts to an intset if all members are integers, and not too many.
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

/// Builds a large set from members that are loaded one after the other.
pub struct Loader(Gathering<Plain>);

impl Loader {
    /// A loader for `claimed` members, a number that need not be correct.
    pub fn new(claimed: usize) -> Self {
        Loader(Gathering::new(claimed))
    }

    /// Adds a member.
    #[inline]
    pub fn add(&mut self, member: &[u8]) {
        // SAFETY: the element is new, and ownership passes to the table.
        unsafe { self.0.add(element::create(member), false) };
    }

    /// The complete set.
    ///
    /// # Errors
    /// If a member occurred twice.
    pub fn finish(self) -> Result<Set, Corrupt> {
        self.0.finish().map(Set::from).ok_or(Corrupt)
    }
}
