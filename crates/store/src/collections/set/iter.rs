//! Iteration over the members of a set.

use super::Encoded;
use crate::encodings::element::Plain;
use crate::encodings::members::Layout;
use crate::encodings::{intset, listpack};
use crate::table::{self, Pointer};
use crate::value::Str;

/// All members of a set: see [`Set::iter`](super::Set::iter).
pub struct Iter<'a>(Encoding<'a>);

enum Encoding<'a> {
    Intset(intset::Iter<'a>),
    Listpack(listpack::Iter<'a>),
    Table(table::Iter<'a>),
}

impl<'a> Iter<'a> {
    #[inline]
    pub(super) fn new(encoded: Encoded<'a>) -> Self {
        Iter(match encoded {
            Encoded::Intset(view) => Encoding::Intset(view.iter()),
            Encoded::Listpack(view) => Encoding::Listpack(view.iter()),
            Encoded::Table(members) => Encoding::Table(members.iter()),
        })
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = Str<'a>;

    #[inline]
    fn next(&mut self) -> Option<Str<'a>> {
        match &mut self.0 {
            Encoding::Intset(iter) => iter.next().map(Str::Int),
            Encoding::Listpack(iter) => iter.next(),
            Encoding::Table(iter) => iter.next().map(member),
        }
    }
}

/// The member in an element of the table, valid while the element lives.
#[inline]
pub(super) fn member<'a>(pointer: Pointer) -> Str<'a> {
    // SAFETY: elements of sets have this layout. The callers bind
    // the lifetime to the set, or free the element afterwards.
    Str::Bytes(unsafe { Plain::name(pointer) })
}
