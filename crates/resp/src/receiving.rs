//! The buffer for a big argument.
//!
//! It grows with the bytes received, not with the stated length: 64 KiB at first, then to at most twice
//! the bytes received, and never beyond the argument and its line end. **Invariant**: `buffer.len() +
//! needs` is always the length of the argument and its line end; `buffer` contains only received bytes.

use std::mem::MaybeUninit;

/// The first allocation, unless the argument is shorter.
const CAPACITY_MIN: usize = 64 * 1024;

/// A big argument that is being received.
pub(crate) struct Receiving {
    buffer: Vec<u8>,
    needs: usize,
}

impl Receiving {
    /// An argument of `len` bytes, none of which has arrived.
    pub(crate) fn new(len: usize) -> Self {
        Receiving { buffer: Vec::new(), needs: len + 2 }
    }

    /// Number of missing bytes, including the line end.
    pub(crate) fn needs(&self) -> usize {
        self.needs
    }

    /// Number of bytes received.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The memory in use, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.buffer.capacity()
    }

    /// Copies the argument's bytes from the front of `input`, and returns their number.
    pub(crate) fn copy_from(&mut self, input: &[u8]) -> usize {
        let n = input.len().min(self.needs);
        self.make_room(n);
        self.buffer.extend_from_slice(&input[..n]);
        self.needs -= n;
        n
    }

    /// The buffer for the next bytes; empty only if none are missing.
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        self.make_room(self.needs.min(1));
        let spare = self.buffer.spare_capacity_mut();
        let len = spare.len().min(self.needs);
        &mut spare[..len]
    }

    /// Records that `n` bytes were written to [`spare`](Self::spare); returns how many are missing.
    ///
    /// # Safety
    ///
    /// The first `n` bytes of the slice that `spare` last returned must have
    /// been initialised, and no other method may have been called since.
    pub(crate) unsafe fn filled(&mut self, n: usize) -> usize {
        let len = self.buffer.len() + n;
        assert!(n <= self.needs && len <= self.buffer.capacity(), "more bytes than there was room for");
        // SAFETY: `len` is within the capacity, and the caller guarantees the bytes between the old length and `len`.
        unsafe { self.buffer.set_len(len) };
        self.needs -= n;
        self.needs
    }

    /// The argument without its line end; `None` if it is followed
    /// by something else. Must be called when no bytes are missing.
    pub(crate) fn finish(mut self) -> Option<Vec<u8>> {
        debug_assert_eq!(self.needs, 0);
        if !self.buffer.ends_with(b"\r\n") {
            return None;
        }
        self.buffer.truncate(self.buffer.len() - 2);
        Some(self.buffer)
    }

    /// Reserves room for `n` bytes that have arrived or are about to.
    fn make_room(&mut self, n: usize) {
        let len = self.buffer.len();
        if self.buffer.capacity() - len < n {
            let capacity = (2 * (len + n)).max(CAPACITY_MIN).min(len + self.needs);
            self.buffer.reserve_exact(capacity - len);
        }
    }
}
