//! Large byte strings with several owners.
//!
//! A large argument is received into the buffer of a [`SharedBytes`]. The store keeps this buffer as the value, and a
//! reply refers to it until it is written, so the bytes are never copied. **Invariant**: shared bytes do not change. An
//! owner changes them through [`SharedBytes::make_mut`], which copies them first if there are other owners.

use std::alloc::Layout;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicUsize;
use triomphe::Arc;

/// The length in bytes from which strings are stored, received and sent as [`SharedBytes`]. Shorter ones are copied,
/// which costs less than counting references and writing one more segment.
pub const SHARED_MIN: usize = 16 * 1024;

/// Reference-counted bytes; one word. The allocation behind it has 32 bytes, plus the buffer.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SharedBytes(Arc<Vec<u8>>);

impl SharedBytes {
    /// Shares a buffer, including its spare capacity.
    #[inline]
    pub fn new(bytes: Vec<u8>) -> Self {
        SharedBytes(Arc::new(bytes))
    }

    /// The buffer for changes. It is a copy if there are other owners.
    #[inline]
    pub fn make_mut(&mut self) -> &mut Vec<u8> {
        Arc::make_mut(&mut self.0)
    }

    /// The buffer for changes, if there is no other owner.
    #[inline]
    pub fn get_mut(&mut self) -> Option<&mut Vec<u8>> {
        Arc::get_mut(&mut self.0)
    }

    /// The buffer; a copy of it if there are other owners.
    pub fn into_vec(self) -> Vec<u8> {
        Arc::unwrap_or_clone(self.0)
    }

    /// Bytes of the buffer's allocation.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// The layout of the allocation that holds the references' count and the buffer's fields.
    pub const HEADER: Layout = match Layout::new::<AtomicUsize>().extend(Layout::new::<Vec<u8>>()) {
        Ok((layout, _)) => layout,
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
        let offset = Self::HEADER.size() - size_of::<Vec<u8>>();
        // SAFETY: the buffer's fields are behind the count, at the end of the allocation.
        unsafe { Self::from_raw(header.as_ptr().add(offset).cast()) }
    }

    /// Releases this owner's reference as a pointer.
    #[inline]
    pub fn into_raw(self) -> *const Vec<u8> {
        Arc::into_raw(self.0)
    }

    /// Takes back a reference.
    ///
    /// # Safety
    ///
    /// The pointer must come from [`into_raw`](Self::into_raw), and each one may be taken back only once.
    #[inline]
    pub unsafe fn from_raw(pointer: *const Vec<u8>) -> Self {
        // SAFETY: promised by the caller.
        SharedBytes(unsafe { Arc::from_raw(pointer) })
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
        &self.0
    }
}

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
