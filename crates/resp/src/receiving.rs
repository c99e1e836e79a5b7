//! The buffer a big argument is received into.
//!
//! It grows with what has arrived, not with what was announced: 64 KiB at first, then to at most twice the bytes that
//! are there, and never beyond the argument and its line end. Invariant: `buffer.len() + needs` is always the length of
//! the argument and its line end; only the bytes below `buffer.len()` were received.

use std::mem::MaybeUninit;

/// The first allocation, unless the argument is shorter.
const CAPACITY_MIN: usize = 64 * 1024;

/// A big argument on its way in.
pub(crate) struct Receiving {
    buffer: Vec<u8>,
    needs: usize,
}

impl Receiving {
    /// An argument of `len` bytes, of which none has arrived.
    pub(crate) fn new(len: usize) -> Self {
        Receiving { buffer: Vec::new(), needs: len + 2 }
    }

    /// How many bytes are missing, the line end included.
    pub(crate) fn needs(&self) -> usize {
        self.needs
    }

    /// How many bytes have arrived.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    /// The memory held, in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.buffer.capacity()
    }

    /// Copies what belongs to the argument from the front of `input`, and returns how many bytes that was.
    pub(crate) fn copy_from(&mut self, input: &[u8]) -> usize {
        let n = input.len().min(self.needs);
        self.make_room(n);
        self.buffer.extend_from_slice(&input[..n]);
        self.needs -= n;
        n
    }

    /// Where the next bytes belong; empty only if none is missing.
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        self.make_room(self.needs.min(1));
        let spare = self.buffer.spare_capacity_mut();
        let len = spare.len().min(self.needs);
        &mut spare[..len]
    }

    /// Takes note that `n` bytes were written to [`spare`](Self::spare); returns how many are missing.
    ///
    /// # Safety
    ///
    /// The first `n` bytes of the slice that `spare` last returned must have been initialised, and no other method
    /// called since.
    pub(crate) unsafe fn filled(&mut self, n: usize) -> usize {
        let len = self.buffer.len() + n;
        assert!(n <= self.needs && len <= self.buffer.capacity(), "more bytes than there was room for");
        // SAFETY: `len` is within the capacity, and the caller vouches for the bytes between the old length and it.
        unsafe { self.buffer.set_len(len) };
        self.needs -= n;
        self.needs
    }

    /// The argument without its line end, or `None` if something else follows it. To be called when no byte is
    /// missing.
    pub(crate) fn finish(mut self) -> Option<Vec<u8>> {
        debug_assert_eq!(self.needs, 0);
        if !self.buffer.ends_with(b"\r\n") {
            return None;
        }
        self.buffer.truncate(self.buffer.len() - 2);
        Some(self.buffer)
    }

    /// Makes room for `n` bytes that have arrived or are about to.
    fn make_room(&mut self, n: usize) {
        let len = self.buffer.len();
        if self.buffer.capacity() - len < n {
            let capacity = (2 * (len + n)).max(CAPACITY_MIN).min(len + self.needs);
            self.buffer.reserve_exact(capacity - len);
        }
    }
}
