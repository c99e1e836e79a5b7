//! Reading a listpack.
//!
//! Everything here is memory-safe for any bytes: inconsistent ones end an iteration early, or cause a
//! panic if a position of another listpack is used. Bytes that passed [`View::check`] are consistent.

use super::element::{
    BACKLEN_MAX, END, backlen_size, decode, encoded_len, integer, is_same, read_backlen, short_string_len,
    write_backlen,
};
use super::{COUNT_UNKNOWN, HEADER};
use crate::encodings::Corrupt;
use crate::value::{IntBuf, Str};
use smallvec::SmallVec;
use std::num::NonZeroU32;

/// The position of an element. Valid until the listpack changes at or before it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct At(NonZeroU32);

impl At {
    #[inline]
    pub(super) fn new(offset: usize) -> Option<At> {
        NonZeroU32::new(offset as u32).map(At)
    }

    /// The distance from the listpack's first byte.
    #[inline]
    pub fn offset(self) -> usize {
        self.0.get() as usize
    }
}

/// A string to search for, and the integer as which it may be stored.
#[derive(Clone, Copy, Debug)]
pub struct Needle<'a> {
    bytes: &'a [u8],
    number: Option<i64>,
}

impl<'a> Needle<'a> {
    /// Prepares a search for a string.
    #[inline]
    pub fn new(bytes: &'a [u8]) -> Self {
        Needle { bytes, number: integer(bytes) }
    }

    /// Whether an element is this string. In a listpack from outside,
    /// a string that is an integer may also be stored as a string.
    #[inline]
    pub fn is(self, element: Str<'_>) -> bool {
        match element {
            Str::Bytes(bytes) => bytes == self.bytes,
            Str::Int(number) => self.number == Some(number),
        }
    }
}

/// Size of the trailing length for `len`, if `behind` begins with it; else 0.
#[cold]
fn long_backlen_of(len: usize, behind: &[u8]) -> usize {
    let mut backlen = [0; BACKLEN_MAX];
    let backlen = &mut backlen[..backlen_size(len)];
    write_backlen(len, backlen);
    if behind.starts_with(backlen) { backlen.len() } else { 0 }
}

/// A borrowed listpack.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct View<'a>(&'a [u8]);

impl<'a> View<'a> {
    /// Validates bytes from outside: the sizes must add up, every element must be valid
    /// and readable from both ends, and the number of elements must match the header.
    pub fn check(bytes: &'a [u8]) -> Result<View<'a>, Corrupt> {
        let (header, _) = bytes.split_first_chunk::<HEADER>().ok_or(Corrupt)?;
        let total = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
        if total != bytes.len() || total > super::BYTES_MAX || total == HEADER {
            return Err(Corrupt);
        }
        let end = total - 1;
        let (mut offset, mut count) = (HEADER, 0);
        while offset < end {
            let inner = &bytes[offset..end];
            let len = encoded_len(inner).ok_or(Corrupt)?;
            let behind = inner.get(len..).ok_or(Corrupt)?;
            // Nearly all trailing lengths are one byte, so avoid a call for the comparison.
            let backlen_len = if backlen_size(len) == 1 {
                usize::from(behind.first() == Some(&(len as u8)))
            } else {
                long_backlen_of(len, behind)
            };
            if backlen_len == 0 {
                return Err(Corrupt);
            }
            offset += len + backlen_len;
            count += 1;
        }
        let claimed = u16::from_le_bytes([header[4], header[5]]);
        let counted = claimed == COUNT_UNKNOWN || usize::from(claimed) == count;
        if bytes[end] == END && counted { Ok(View(bytes)) } else { Err(Corrupt) }
    }

    /// Whether all elements are distinct strings, in either representation; `skip` elements are skipped
    /// after each one checked. A few elements are compared pairwise; many are compared by hash.
    pub fn are_distinct(self, skip: usize) -> bool {
        /// Maximum number of elements that are compared pairwise.
        const FEW: usize = 32;
        let elements = || self.iter().step_by(skip + 1);
        let mut seen: SmallVec<[Str<'_>; FEW]> = SmallVec::new();
        if self.len() / (skip + 1) <= FEW {
            return elements().all(|element| {
                let new = !seen.iter().any(|other| element.is_same(*other));
                seen.push(element);
                new
            });
        }
        let (hasher, mut text) = (crate::hash::elements(), IntBuf::default());
        let mut hashes: Vec<(u64, Str<'_>)> =
            elements().map(|element| (hasher.hash(element.bytes(&mut text)), element)).collect();
        hashes.sort_unstable_by_key(|(hash, _)| *hash);
        // Equal strings have equal hashes; different strings rarely
        // do, so only elements with equal hashes are compared.
        hashes.chunk_by(|(a, _), (b, _)| a == b).all(|same| {
            let pairs = same.iter().enumerate();
            pairs.flat_map(|(i, (_, a))| same[..i].iter().map(move |(_, b)| (a, b))).all(|(a, b)| !a.is_same(*b))
        })
    }

    /// Bytes that are known to be a listpack.
    #[inline]
    pub(super) fn known(bytes: &'a [u8]) -> Self {
        View(bytes)
    }

    /// All bytes, including header and terminator.
    #[inline]
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Number of elements: from the header, or counted if 65535 or more.
    #[inline]
    pub fn len(self) -> usize {
        match self.known_len() {
            Some(len) => len,
            None => self.iter().count(),
        }
    }

    #[inline]
    pub(super) fn known_len(self) -> Option<usize> {
        let count = u16::from_le_bytes([self.0[4], self.0[5]]);
        (count != COUNT_UNKNOWN).then_some(count.into())
    }

    /// True when there are no elements.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0.len() <= HEADER + 1
    }

    /// The offset of the terminator.
    #[inline]
    pub(super) fn end(self) -> usize {
        self.0.len() - 1
    }

    #[inline]
    fn at(self, offset: usize) -> Option<At> {
        if offset < self.end() { At::new(offset) } else { None }
    }

    /// Whether elements whose strings have `more` bytes in total can be added.
    #[inline]
    pub fn fits(self, more: usize) -> bool {
        self.0.len().saturating_add(more) <= super::BYTES_MAX - 1024
    }

    /// The first element.
    #[inline]
    pub fn first(self) -> Option<At> {
        self.at(HEADER)
    }

    /// The last element.
    #[inline]
    pub fn last(self) -> Option<At> {
        self.before(self.end())
    }

    /// The next element.
    #[inline]
    pub fn next(self, at: At) -> Option<At> {
        self.at(self.after(at)?)
    }

    /// The offset at which the next element would begin.
    #[inline]
    pub(super) fn after(self, at: At) -> Option<usize> {
        let len = encoded_len(&self.0[at.offset()..])?;
        Some(at.offset() + len + backlen_size(len))
    }

    /// The previous element.
    #[inline]
    pub fn prev(self, at: At) -> Option<At> {
        self.before(at.offset())
    }

    #[inline]
    fn before(self, offset: usize) -> Option<At> {
        if offset <= HEADER {
            return None;
        }
        let (len, size) = read_backlen(&self.0[HEADER..offset])?;
        let begin = offset.checked_sub(len + size)?;
        if begin < HEADER { None } else { self.at(begin) }
    }

    /// The element at an index, counted from the last one (-1) if negative. Walks from the nearer end.
    pub fn seek(self, index: isize) -> Option<At> {
        let from_tail = match self.known_len() {
            Some(len) => {
                let index = if index < 0 { index + len as isize } else { index };
                let index = usize::try_from(index).ok().filter(|index| *index < len)?;
                return if index > len / 2 { self.walk_back(len - 1 - index) } else { self.walk(index) };
            }
            None => index < 0,
        };
        if from_tail { self.walk_back(!index as usize) } else { self.walk(index as usize) }
    }

    fn walk(self, steps: usize) -> Option<At> {
        (0..steps).try_fold(self.first()?, |at, _| self.next(at))
    }

    fn walk_back(self, steps: usize) -> Option<At> {
        (0..steps).try_fold(self.last()?, |at, _| self.prev(at))
    }

    /// The element at a position.
    #[inline]
    pub fn get(self, at: At) -> Str<'a> {
        decode(&self.0[at.offset()..]).map_or(Str::Bytes(&[]), |(element, _)| element)
    }

    /// Size of the element, in bytes.
    #[inline]
    pub fn size_of(self, at: At) -> usize {
        self.after(at).map_or(0, |after| after - at.offset())
    }

    /// Whether the element is this string.
    #[inline]
    pub fn equals(self, at: At, needle: &[u8]) -> bool {
        match self.get(at) {
            Str::Bytes(bytes) => bytes == needle,
            Str::Int(number) => integer(needle) == Some(number),
        }
    }

    /// The first element equal to this string, checking every `skip + 1`st from `from` on.
    #[inline]
    pub fn find(self, from: At, needle: &[u8], skip: usize) -> Option<At> {
        self.find_needle(from, Needle::new(needle), skip)
    }

    /// Like [`find`](Self::find), for a prepared string.
    #[inline]
    pub fn find_needle(self, from: At, needle: Needle<'_>, skip: usize) -> Option<At> {
        match needle.number {
            Some(_) => self.find_with(from, skip, |inner| {
                let (element, len) = decode(inner)?;
                Some((needle.is(element), len))
            }),
            None => self.find_with(from, skip, |inner| {
                // Nearly all elements are short strings, most of which differ in length.
                if let Some(len) = short_string_len(*inner.first()?) {
                    let own = inner.get(1..1 + len)?;
                    return Some((len == needle.bytes.len() && is_same(own, needle.bytes), 1 + len));
                }
                let (element, len) = decode(inner)?;
                Some((matches!(element, Str::Bytes(bytes) if bytes == needle.bytes), len))
            }),
        }
    }

    /// The first element for which `look` returns true, checking every `skip + 1`st from `from` on. `look`
    /// receives the bytes from the element on, and also returns the element's length without its trailing length.
    #[inline]
    fn find_with(self, from: At, skip: usize, look: impl Fn(&[u8]) -> Option<(bool, usize)>) -> Option<At> {
        let mut offset = from.offset();
        let end = self.end();
        let mut left_to_skip = 0;
        while offset < end {
            let inner = &self.0[offset..];
            let len = if left_to_skip > 0 {
                left_to_skip -= 1;
                encoded_len(inner)?
            } else {
                left_to_skip = skip;
                let (is_wanted, len) = look(inner)?;
                if is_wanted {
                    return At::new(offset);
                }
                len
            };
            offset += len + backlen_size(len);
        }
        None
    }

    /// All elements in order.
    #[inline]
    pub fn iter(self) -> Iter<'a> {
        Iter { view: self, offset: HEADER }
    }

    /// The elements from one on.
    #[inline]
    pub fn iter_from(self, at: At) -> Iter<'a> {
        Iter { view: self, offset: at.offset() }
    }

    /// All elements in reverse order.
    #[inline]
    pub fn iter_rev(self) -> IterRev<'a> {
        IterRev { view: self, offset: self.end() }
    }

    /// The elements from one back to the first.
    #[inline]
    pub fn iter_rev_from(self, at: At) -> IterRev<'a> {
        IterRev { view: self, offset: self.after(at).unwrap_or(HEADER) }
    }
}

impl std::fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Elements in order.
#[derive(Clone)]
pub struct Iter<'a> {
    view: View<'a>,
    /// The offset of the next element.
    offset: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Str<'a>;

    #[inline]
    fn next(&mut self) -> Option<Str<'a>> {
        let (element, len) = decode(&self.view.0[self.offset..])?;
        self.offset += len + backlen_size(len);
        Some(element)
    }
}

/// Elements in reverse order.
#[derive(Clone)]
pub struct IterRev<'a> {
    view: View<'a>,
    /// The offset of the end of the next element.
    offset: usize,
}

impl<'a> Iterator for IterRev<'a> {
    type Item = Str<'a>;

    #[inline]
    fn next(&mut self) -> Option<Str<'a>> {
        let at = self.view.before(self.offset)?;
        self.offset = at.offset();
        Some(self.view.get(at))
    }
}
