//! Large byte strings with several owners.
//!
//! A large argument is received into the buffer of a [`SharedBytes`]. The store keeps this buffer as the value, and a
//! reply refers to it until it is written, so the bytes are never copied. **Invariant**: shared bytes do not change. An
//! owner changes them through [`SharedBytes::make_mut`], which copies them first if there are other owners.
//!
//! The kernel can refer to the bytes too: it sends the pages of a large string without copying them, and does not tell
//! when they were sent (see [`SharedBytes::lend`]). Such bytes are copied for a change even if they have one owner.

use crate::pages;
use std::alloc::Layout;
use std::fmt;
use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use triomphe::Arc;

/// The length in bytes from which strings are stored, received and sent as [`SharedBytes`]. Shorter ones are copied,
/// which costs less than counting references and writing one more segment.
pub const SHARED_MIN: usize = 16 * 1024;

/// The length in bytes from which the pages of a string are lent. To send a shorter one by its pages costs as much as
/// to copy it.
pub const LENT_MIN: usize = 64 * 1024;

/// The bytes and what was done with them. The bytes come first, so that a pointer to them is one to both.
#[repr(C)]
#[derive(Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// How often the bytes were sent as a copy; more than [`COPIES`] if pages were lent. It only grows. An owner that
    /// is the only one sees what others wrote before they were dropped.
    sent: AtomicU32,
}

/// How often a string is sent as a copy before its pages are lent. New pages in their place cost as much as is saved by
/// sending a string five to ten times, so a string that is often overwritten must not be lent.
pub const COPIES: u32 = 16;

impl Buffer {
    fn new(bytes: Vec<u8>) -> Self {
        Buffer { bytes, sent: AtomicU32::new(0) }
    }

    fn is_lent(&self) -> bool {
        self.sent.load(Ordering::Relaxed) > COPIES
    }
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Buffer::new(self.bytes.clone())
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.is_lent() && !pages::replace(&mut self.bytes) {
            // The kernel may be sending these pages. Memory that is lost is better than wrong replies.
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}

/// Reference-counted bytes; one word. The allocation behind it has 40 bytes, plus the buffer.
#[derive(Clone, Default)]
pub struct SharedBytes(Arc<Buffer>);

impl SharedBytes {
    /// Shares a buffer, including its spare capacity.
    #[inline]
    pub fn new(bytes: Vec<u8>) -> Self {
        SharedBytes(Arc::new(Buffer::new(bytes)))
    }

    /// The buffer for changes. It is a copy if there are other owners, or if pages were lent.
    #[inline]
    pub fn make_mut(&mut self) -> &mut Vec<u8> {
        if !self.may_change() {
            self.0 = Arc::new(Buffer::clone(&self.0));
        }
        &mut Arc::make_mut(&mut self.0).bytes
    }

    /// The buffer for changes, if there is no other owner and no pages were lent.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut Vec<u8>> {
        if self.may_change() { Arc::get_mut(&mut self.0).map(|buffer| &mut buffer.bytes) } else { None }
    }

    /// Whether neither another owner nor the kernel reads the bytes. The number of owners must be checked first:
    /// another owner can lend pages until it is dropped.
    #[inline]
    fn may_change(&self) -> bool {
        self.0.is_unique() && !self.0.is_lent()
    }

    /// The buffer; a copy of it if there are other owners, or if pages were lent.
    pub fn into_vec(mut self) -> Vec<u8> {
        std::mem::take(self.make_mut())
    }

    /// Notes that the bytes are about to be sent. Returns the range of those that lie in whole pages of their own, if
    /// these are to be sent without a copy: the kernel may then refer to the pages for any time. They are not changed
    /// any more, and are given up when the last owner is gone.
    ///
    /// Memory that was lent cannot be used again as it is, so a string is sent as a copy [several times](COPIES) first.
    pub fn lend(&self) -> Option<Range<usize>> {
        if self.len() < LENT_MIN {
            return None;
        }
        // The last owner sees that pages were lent, because references are dropped in order.
        if !self.0.is_lent() && self.0.sent.fetch_add(1, Ordering::Relaxed) < COPIES {
            return None;
        }
        Some(pages::within(self))
    }

    /// What [`lend`](Self::lend) has returned, if pages are lent already.
    pub fn lent(&self) -> Option<Range<usize>> {
        self.0.is_lent().then(|| pages::within(self))
    }

    /// Bytes of the buffer's allocation.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.bytes.capacity()
    }

    /// The layout of the allocation that holds the references' count and the buffer's fields.
    pub const HEADER: Layout = Self::HEADER_AND_OFFSET.0.pad_to_align();

    const HEADER_AND_OFFSET: (Layout, usize) = match Layout::new::<AtomicUsize>().extend(Layout::new::<Buffer>()) {
        Ok(both) => both,
        Err(_) => unreachable!(),
    };

    /// The address of that allocation.
    pub fn header(&self) -> NonNull<u8> {
        // SAFETY: the address of an allocation.
        unsafe { NonNull::new_unchecked(Arc::heap_ptr(&self.0).cast_mut().cast()) }
    }

    /// The owner of an allocation that was [moved](Self::header).
    ///
    /// # Safety
    ///
    /// There must have been only one owner, which must not be used or dropped afterwards.
    pub unsafe fn moved(header: NonNull<u8>) -> Self {
        // SAFETY: the buffer's fields are behind the count, within the allocation.
        unsafe { Self::from_raw(header.as_ptr().add(Self::HEADER_AND_OFFSET.1).cast()) }
    }

    /// Releases this owner's reference as a pointer.
    #[inline]
    pub fn into_raw(self) -> *const Vec<u8> {
        Arc::into_raw(self.0).cast()
    }

    /// Takes back a reference.
    ///
    /// # Safety
    ///
    /// The pointer must come from [`into_raw`](Self::into_raw), and each one may be taken back only once.
    #[inline]
    pub unsafe fn from_raw(pointer: *const Vec<u8>) -> Self {
        // SAFETY: promised by the caller.
        SharedBytes(unsafe { Arc::from_raw(pointer.cast()) })
    }
}

impl From<Vec<u8>> for SharedBytes {
    fn from(bytes: Vec<u8>) -> Self {
        SharedBytes::new(bytes)
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0.bytes
    }
}

impl PartialEq for SharedBytes {
    fn eq(&self, other: &Self) -> bool {
        self[..] == other[..]
    }
}

impl Eq for SharedBytes {}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self[..].fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_bytes_are_copied_for_a_change() {
        let mut own = SharedBytes::new(b"abc".to_vec());
        let address = own.as_ptr();
        own.make_mut()[0] = b'A';
        assert_eq!((own.as_ptr(), &own[..]), (address, &b"Abc"[..]));
        let other = own.clone();
        assert!(own.get_mut().is_none());
        own.make_mut().push(b'd');
        assert_eq!((&own[..], &other[..], other.as_ptr()), (&b"Abcd"[..], &b"Abc"[..], address));
        let kept = other.into_vec();
        assert_eq!((kept.as_ptr(), own.get_mut().is_some()), (address, true));
    }

    #[test]
    fn a_raw_pointer_keeps_its_reference() {
        let own = SharedBytes::new(b"abc".to_vec());
        let raw = own.clone().into_raw();
        drop(own);
        // SAFETY: just released, and taken back once.
        let mut back = unsafe { SharedBytes::from_raw(raw) };
        assert!(&back[..] == b"abc" && back.get_mut().is_some());
    }

    #[test]
    fn pages_are_lent_after_some_copies_and_not_changed_since() {
        let short = SharedBytes::new(vec![1; LENT_MIN - 1]);
        assert!((0..=COPIES).all(|_| short.lend().is_none()) && short.lent().is_none());
        let mut long = SharedBytes::new(vec![1; 2 * LENT_MIN]);
        assert!((0..COPIES).all(|_| long.lend().is_none()) && long.lent().is_none() && long.get_mut().is_some());
        let pages = long.lend().expect("pages");
        assert_eq!(long.lent(), Some(pages.clone()));
        assert!(pages.end <= long.len() && pages.len() >= 2 * LENT_MIN - 2 * pages::size());
        assert_eq!((long.as_ptr() as usize + pages.start) % pages::size(), 0);
        assert!(long.get_mut().is_none());
        let address = long.as_ptr();
        let copy = long.clone().into_vec();
        assert_ne!(copy.as_ptr(), address);
        long.make_mut()[0] = 2;
        assert!(long.as_ptr() != address && long.lent().is_none() && long.get_mut().is_some());
    }

    #[test]
    fn an_owner_that_becomes_the_only_one_knows_of_lent_pages() {
        for _ in 0..if cfg!(miri) { 3 } else { 200 } {
            let mut own = SharedBytes::new(vec![7; LENT_MIN]);
            assert!((0..COPIES).all(|_| own.lend().is_none()));
            let other = own.clone();
            let thread = std::thread::spawn(move || assert!(other.lend().is_some()));
            let address = own.as_ptr();
            own.make_mut()[0] = 8;
            assert_ne!(own.as_ptr(), address);
            thread.join().expect("no panic");
        }
    }

    #[test]
    fn references_may_be_dropped_in_any_thread() {
        let own = SharedBytes::new(vec![7; 1000]);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let mut other = own.clone();
                std::thread::spawn(move || {
                    assert!(other.iter().all(|byte| *byte == 7));
                    other.make_mut()[0] = 8;
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(own[0], 7);
    }
}
