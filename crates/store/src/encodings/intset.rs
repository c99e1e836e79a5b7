//! Sorted sets of integers in one allocation, all of the width of the widest one. The format is Valkey's.
//!
//! ```text
//! | width: u32, 2, 4 or 8 bytes | count: u32 | integers of that width, ascending |     all little-endian
//! ```
//!
//! A number that does not fit widens all integers; they never become narrower. [`Intset`] owns the bytes
//! in an allocation of their size class, so that growth within the class is free; a [`View`] reads them.
//!
//! # Safety
//!
//! The pointer of an [`Intset`] is that of an allocation of `layout(n)`, where `n`
//! is [`HEADER`] plus count times width, as stored in the header; its first `n`
//! bytes are initialised, and either [`View::check`] accepts them or the count is 0.

use super::Corrupt;
use crate::defrag::Mover;
use crate::memory::size_class;
use crate::word::Word;
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error, realloc};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// Bytes before the first integer.
pub const HEADER: usize = 8;

/// Maximum number of integers: Valkey accepts it, and the size in bytes fits 32 bits.
pub const LEN_MAX: usize = 1 << 28;

/// The size of each integer in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
enum Width {
    Two = 2,
    Four = 4,
    Eight = 8,
}

impl Width {
    #[inline]
    fn of(number: i64) -> Width {
        if i16::try_from(number).is_ok() {
            Width::Two
        } else if i32::try_from(number).is_ok() {
            Width::Four
        } else {
            Width::Eight
        }
    }

    fn from_bytes(bytes: [u8; 4]) -> Option<Width> {
        match u32::from_le_bytes(bytes) {
            2 => Some(Width::Two),
            4 => Some(Width::Four),
            8 => Some(Width::Eight),
            _ => None,
        }
    }
}

/// A borrowed intset.
#[derive(Clone, Copy)]
pub struct View<'a> {
    bytes: &'a [u8],
    width: Width,
}

impl<'a> View<'a> {
    /// Validates bytes from outside as an intset with at least one integer.
    pub fn check(bytes: &'a [u8]) -> Result<View<'a>, Corrupt> {
        let (width, rest) = bytes.split_first_chunk().ok_or(Corrupt)?;
        let (count, body) = rest.split_first_chunk().ok_or(Corrupt)?;
        let (width, count) = (Width::from_bytes(*width).ok_or(Corrupt)?, u32::from_le_bytes(*count) as usize);
        if count == 0 || count > LEN_MAX || count.checked_mul(width as usize) != Some(body.len()) {
            return Err(Corrupt);
        }
        let view = View { bytes, width };
        if view.iter().is_sorted_by(|before, after| before < after) { Ok(view) } else { Err(Corrupt) }
    }

    /// All bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.bytes
    }

    #[inline]
    fn body(self) -> &'a [u8] {
        self.bytes.get(HEADER..).unwrap_or_default()
    }

    /// Number of integers.
    #[inline]
    pub fn len(self) -> usize {
        self.body().len() / self.width as usize
    }

    /// True if there are no integers.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.body().is_empty()
    }

    /// Integer number `index`, in ascending order.
    #[inline]
    pub fn get(self, index: usize) -> Option<i64> {
        let body = self.body();
        match self.width {
            Width::Two => body.as_chunks().0.get(index).map(|bytes| i16::from_le_bytes(*bytes).into()),
            Width::Four => body.as_chunks().0.get(index).map(|bytes| i32::from_le_bytes(*bytes).into()),
            Width::Eight => body.as_chunks().0.get(index).map(|bytes| i64::from_le_bytes(*bytes)),
        }
    }

    /// The index of a number, or the index at which to insert it.
    #[inline]
    pub fn find(self, number: i64) -> Result<usize, usize> {
        // Numbers are often added in order.
        match self.get(self.len().wrapping_sub(1)) {
            None => return Err(0),
            Some(last) if last < number => return Err(self.len()),
            Some(_) => {}
        }
        let body = self.body();
        match self.width {
            Width::Two => body.as_chunks().0.binary_search_by_key(&number, |bytes| i16::from_le_bytes(*bytes).into()),
            Width::Four => body.as_chunks().0.binary_search_by_key(&number, |bytes| i32::from_le_bytes(*bytes).into()),
            Width::Eight => body.as_chunks().0.binary_search_by_key(&number, |bytes| i64::from_le_bytes(*bytes)),
        }
    }

    /// Whether it contains a number.
    #[inline]
    pub fn contains(self, number: i64) -> bool {
        self.find(number).is_ok()
    }

    /// All integers, ascending.
    #[inline]
    pub fn iter(self) -> Iter<'a> {
        Iter { view: self, next: 0 }
    }
}

/// The integers of an intset, ascending.
#[derive(Clone)]
pub struct Iter<'a> {
    view: View<'a>,
    next: usize,
}

impl Iterator for Iter<'_> {
    type Item = i64;

    #[inline]
    fn next(&mut self) -> Option<i64> {
        let number = self.view.get(self.next)?;
        self.next += 1;
        Some(number)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.view.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Iter<'_> {}

/// An owned intset. See the module documentation.
#[repr(transparent)]
pub struct Intset(NonNull<u8>);

// SAFETY: it owns its bytes.
unsafe impl Send for Intset {}
// SAFETY: shared references only read.
unsafe impl Sync for Intset {}

/// The allocation of an intset of `bytes` bytes. Aligned so that a [`Word`] can hold it.
#[inline]
fn layout(bytes: usize) -> Layout {
    // SAFETY: the alignment is a power of two, and sizes are below 2^32.
    unsafe { Layout::from_size_align_unchecked(size_class(bytes), 8) }
}

impl Default for Intset {
    fn default() -> Self {
        Self::new()
    }
}

impl Intset {
    /// An empty intset.
    pub fn new() -> Self {
        Self::copy_of(&[Width::Two as u8, 0, 0, 0, 0, 0, 0, 0])
    }

    /// A copy of bytes from outside, after validation.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Corrupt> {
        View::check(bytes).map(Self::from)
    }

    /// A copy of an intset's bytes.
    fn copy_of(bytes: &[u8]) -> Self {
        let layout = layout(bytes.len());
        // SAFETY: the layout is not empty.
        let Some(pointer) = NonNull::new(unsafe { alloc(layout) }) else { handle_alloc_error(layout) };
        // SAFETY: the allocation is new and has at least that many bytes.
        unsafe { pointer.as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        Intset(pointer)
    }

    /// Borrows it for reading.
    #[inline]
    pub fn view(&self) -> View<'_> {
        // SAFETY: the pointer is that of an intset's bytes, which are borrowed.
        unsafe { view_at(self.0) }
    }

    /// Number of integers.
    #[inline]
    pub fn len(&self) -> usize {
        self.view().len()
    }

    /// True if there are no integers.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.view().is_empty()
    }

    /// Offers its allocation to a mover.
    pub fn relocate(&mut self, mover: &mut Mover<'_>) {
        // SAFETY: the allocation is its own, of this layout, and is referenced only here.
        self.0 = unsafe { mover.offer(self.0, layout(self.view().bytes.len())) };
    }

    /// Bytes of memory, rounded up to the allocator's size class.
    pub fn memory(&self) -> usize {
        size_class(self.view().bytes.len())
    }

    /// Adds a number; returns false if it existed. There must be fewer than [`LEN_MAX`].
    #[inline]
    pub fn insert(&mut self, number: i64) -> bool {
        let (view, needed) = (self.view(), Width::of(number));
        if needed > view.width {
            self.widen(needed);
        }
        let view = self.view();
        let Err(index) = view.find(number) else { return false };
        let (len, width) = (view.len(), view.width);
        assert!(len < LEN_MAX, "an intset of {len} integers");
        self.reallocate(len, len + 1, width);
        let (from, size) = (HEADER + index * width as usize, width as usize);
        // SAFETY: there is room for one more at the end; the bytes from the index on move up by one integer.
        unsafe {
            let place = self.0.as_ptr().add(from);
            std::ptr::copy(place, place.add(size), (len - index) * size);
            place.copy_from_nonoverlapping(number.to_le_bytes().as_ptr(), size);
        }
        self.set_len(len + 1);
        true
    }

    /// Removes a number; returns false if it did not exist.
    #[inline]
    pub fn remove(&mut self, number: i64) -> bool {
        let Ok(index) = self.view().find(number) else { return false };
        self.remove_at(index);
        true
    }

    /// Removes the number at an index, which must be below the length.
    pub fn remove_at(&mut self, index: usize) {
        let view = self.view();
        let (len, width) = (view.len(), view.width);
        assert!(index < len, "integer {index} of {len}");
        let size = width as usize;
        // SAFETY: the bytes after the index are within the integers, and move down by one integer.
        unsafe {
            let place = self.0.as_ptr().add(HEADER + index * size);
            std::ptr::copy(place.add(size), place, (len - index - 1) * size);
        }
        self.set_len(len - 1);
        self.reallocate(len, len - 1, width);
    }

    /// Makes all integers wider.
    #[cold]
    fn widen(&mut self, width: Width) {
        let view = self.view();
        let mut bytes = Vec::with_capacity(HEADER + view.len() * width as usize);
        bytes.extend((width as u32).to_le_bytes());
        bytes.extend((view.len() as u32).to_le_bytes());
        for number in view.iter() {
            bytes.extend(&number.to_le_bytes()[..width as usize]);
        }
        *self = Self::copy_of(&bytes);
    }

    #[inline]
    fn set_len(&mut self, len: usize) {
        // SAFETY: within the header, and aligned.
        unsafe { self.0.as_ptr().cast::<u32>().add(1).write((len as u32).to_le()) }
    }

    /// Resizes the allocation from one number of integers to another.
    #[inline]
    fn reallocate(&mut self, from: usize, to: usize, width: Width) {
        let [from, to] = [from, to].map(|len| layout(HEADER + len * width as usize));
        if from != to {
            // SAFETY: allocated with that layout; the new size is neither zero nor too large.
            let pointer = unsafe { realloc(self.0.as_ptr(), from, to.size()) };
            self.0 = NonNull::new(pointer).unwrap_or_else(|| handle_alloc_error(to));
        }
    }

    /// Releases ownership of it as a word.
    pub fn into_word(self, tag: u8) -> Word {
        Word::new(ManuallyDrop::new(self).0, tag)
    }

    /// Takes ownership of an intset given as a word.
    ///
    /// # Safety
    /// The word must come from `into_word`; neither it nor a copy of it may be used afterwards.
    pub unsafe fn from_word(word: Word) -> Self {
        Intset(word.pointer())
    }
}

impl From<View<'_>> for Intset {
    fn from(view: View<'_>) -> Self {
        Self::copy_of(view.bytes)
    }
}

impl Clone for Intset {
    fn clone(&self) -> Self {
        self.view().into()
    }
}

impl Drop for Intset {
    fn drop(&mut self) {
        let layout = layout(self.view().bytes.len());
        // SAFETY: allocated with that layout, and dropped once.
        unsafe { dealloc(self.0.as_ptr(), layout) }
    }
}

/// # Safety
/// The pointer must be that of an intset's bytes, which neither change nor are freed during `'a`.
#[inline]
unsafe fn view_at<'a>(pointer: NonNull<u8>) -> View<'a> {
    // SAFETY: promised by the caller; the allocation is aligned for the header's fields, which determine its length.
    unsafe {
        let width = match pointer.as_ptr().read() {
            2 => Width::Two,
            4 => Width::Four,
            _ => Width::Eight,
        };
        let len = u32::from_le(pointer.as_ptr().cast::<u32>().add(1).read()) as usize;
        View { bytes: std::slice::from_raw_parts(pointer.as_ptr(), HEADER + len * width as usize), width }
    }
}

/// The intset of a word.
///
/// # Safety
/// The word must come from [`Intset::into_word`], and the intset must neither change nor be freed during `'a`.
#[inline]
pub unsafe fn view_of<'a>(word: Word) -> View<'a> {
    // SAFETY: promised by the caller.
    unsafe { view_at(word.pointer()) }
}

/// Mutable access to the intset of a word. On drop, the word is updated to its new address, with the same tag.
pub struct Mut<'a> {
    word: &'a mut Word,
    intset: ManuallyDrop<Intset>,
}

impl<'a> Mut<'a> {
    /// Starts the access.
    ///
    /// # Safety
    /// The word must come from [`Intset::into_word`], and own it. The result must be dropped, not leaked.
    #[inline]
    pub unsafe fn new(word: &'a mut Word) -> Self {
        Mut { intset: ManuallyDrop::new(Intset(word.pointer())), word }
    }
}

impl std::ops::Deref for Mut<'_> {
    type Target = Intset;

    #[inline]
    fn deref(&self) -> &Intset {
        &self.intset
    }
}

impl std::ops::DerefMut for Mut<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Intset {
        &mut self.intset
    }
}

impl Drop for Mut<'_> {
    #[inline]
    fn drop(&mut self) {
        *self.word = Word::new(self.intset.0, self.word.tag());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn of(numbers: &[i64]) -> Intset {
        let mut intset = Intset::new();
        numbers.iter().for_each(|number| assert!(intset.insert(*number)));
        intset
    }

    #[test]
    fn dump_bytes_match_the_reference() {
        assert_eq!(of(&[]).view().bytes(), [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(of(&[5, -2]).view().bytes(), [2, 0, 0, 0, 2, 0, 0, 0, 0xfe, 0xff, 5, 0]);
        assert_eq!(of(&[5, 65535]).view().bytes(), [4, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0xff, 0xff, 0, 0]);
        assert_eq!(of(&[1 << 32]).view().bytes(), [8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn allocation_matches_its_size_class() {
        assert_eq!(
            [of(&[]), of(&[1]), of(&[1, 2, 3, 4]), of(&[1, 2, 3, 4, 5])].map(|set| set.memory()),
            [8, 16, 16, 24]
        );
    }

    #[test]
    fn loaded_bytes_are_validated() {
        let good = of(&[-70_000, 3, 70_000]).view().bytes().to_vec();
        assert_eq!(Intset::from_bytes(&good).map(|set| set.view().bytes().to_vec()), Ok(good.clone()));
        for len in 0..good.len() {
            assert!(Intset::from_bytes(&good[..len]).is_err(), "cut to {len}");
        }
        for (index, byte) in [(0, 3), (0, 2), (0, 8), (1, 1), (4, 0), (4, 4), (7, 255), (11, 1), (15, 0x7f)] {
            let mut bad = good.clone();
            bad[index] = byte;
            assert!(Intset::from_bytes(&bad).is_err(), "byte {index} is {byte}");
        }
        assert!(Intset::from_bytes(of(&[]).view().bytes()).is_err());
        assert!(Intset::from_bytes(&[2, 0, 0, 0, 2, 0, 0, 0, 1, 0, 1, 0]).is_err());
        assert!(Intset::from_bytes(&[8, 0, 0, 0, 255, 255, 255, 255]).is_err());
    }

    fn numbers() -> impl Strategy<Value = i64> {
        prop_oneof![
            -40..40i64,
            any::<i64>(),
            any::<i32>().prop_map(i64::from),
            Just(i64::MIN),
            Just(i64::MAX),
            Just(i64::from(i16::MAX) + 1),
            Just(i64::from(i32::MIN) - 1),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_set(steps in prop::collection::vec((any::<bool>(), numbers()), 1..200)) {
            let (mut word, mut model) = (Intset::new().into_word(5), BTreeSet::new());
            for (add, number) in steps {
                // SAFETY: the word owns its intset.
                let mut intset = unsafe { Mut::new(&mut word) };
                if add {
                    prop_assert_eq!(intset.insert(number), model.insert(number));
                } else {
                    prop_assert_eq!(intset.remove(number), model.remove(&number));
                }
                prop_assert_eq!(intset.view().contains(number), add);
                prop_assert_eq!(intset.len(), model.len());
            }
            prop_assert_eq!(word.tag(), 5);
            // SAFETY: the word is not used again.
            let intset = unsafe { Intset::from_word(word) };
            prop_assert!(intset.view().iter().eq(model.iter().copied()));
            let copied = Intset::from_bytes(intset.clone().view().bytes());
            prop_assert_eq!(copied.map_or(0, |copied| copied.len()), model.len());
        }

        #[test]
        fn arbitrary_bytes_are_safe(
            bytes in prop::collection::vec(prop_oneof![Just(0u8), Just(2), Just(4), any::<u8>()], 0..40)
        ) {
            if let Ok(view) = View::check(&bytes) {
                prop_assert!(view.iter().all(|number| view.contains(number)));
            }
        }
    }
}
