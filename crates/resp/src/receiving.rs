//! The buffer for a big argument.
//!
//! It grows with the bytes received, not with the stated length: 64 KiB at first, then to at most 16 times the bytes
//! received or about to be read up to 1 MiB, and four times from there on. It never grows beyond the argument, so that
//! the store can keep it as it is. The line end behind the argument is compared and not kept. **Invariant**:
//! `buffer.len() + needs` is always the length of the argument and its line end; `buffer` contains only received bytes.

use std::mem::MaybeUninit;

/// The first allocation, unless the argument is shorter.
const CAPACITY_MIN: usize = 64 * 1024;
/// How many times larger than the bytes received the buffer may be.
const GROWTH: usize = 4;
/// The same for a buffer of up to [`FAST_GROWTH_MAX`] bytes, so that an argument of that size is moved only once, when
/// little of it has arrived.
const FAST_GROWTH: usize = 16;
const FAST_GROWTH_MAX: usize = 1024 * 1024;

/// A big argument that is being received.
pub(crate) struct Receiving {
    buffer: Vec<u8>,
    needs: usize,
    /// Whether something else than a line end follows the argument.
    is_malformed: bool,
}

const LINE_END: [u8; 2] = *b"\r\n";

impl Receiving {
    /// An argument of `len` bytes, none of which has arrived.
    pub(crate) fn new(len: usize) -> Self {
        Receiving { buffer: Vec::new(), needs: len + LINE_END.len(), is_malformed: false }
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

    /// Number of missing bytes without the line end.
    pub(crate) fn missing(&self) -> usize {
        self.needs.saturating_sub(LINE_END.len())
    }

    /// Takes the argument's bytes and its line end from the front of `input`, and returns their number.
    pub(crate) fn copy_from(&mut self, input: &[u8]) -> usize {
        let (body, behind) = input.split_at(input.len().min(self.missing()));
        self.make_room(body.len());
        self.buffer.extend_from_slice(body);
        self.needs -= body.len();
        let mut taken = body.len();
        if self.needs <= LINE_END.len() {
            for (byte, expected) in behind.iter().zip(&LINE_END[LINE_END.len() - self.needs..]) {
                self.is_malformed |= byte != expected;
                self.needs -= 1;
                taken += 1;
            }
        }
        taken
    }

    /// Takes over a buffer that contains the beginning of the argument.
    pub(crate) fn begin_with(&mut self, buffer: Vec<u8>) {
        assert!(self.buffer.is_empty() && buffer.len() <= self.missing(), "only the beginning of an argument");
        self.needs -= buffer.len();
        self.buffer = buffer;
    }

    /// Whether the buffer has less room than the argument needs.
    pub(crate) fn must_grow(&self) -> bool {
        self.buffer.capacity() - self.buffer.len() < self.missing()
    }

    /// Makes room for up to `arrived` bytes.
    pub(crate) fn expect(&mut self, arrived: usize) {
        self.make_room(arrived.min(self.missing()));
    }

    /// The buffer for the next bytes; empty if only the line end is missing.
    pub(crate) fn spare(&mut self) -> &mut [MaybeUninit<u8>] {
        let missing = self.missing();
        self.make_room(missing.min(1));
        let spare = self.buffer.spare_capacity_mut();
        let len = spare.len().min(missing);
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
        assert!(n <= self.missing() && len <= self.buffer.capacity(), "more bytes than there was room for");
        // SAFETY: `len` is within the capacity, and the caller guarantees the bytes between the old length and `len`.
        unsafe { self.buffer.set_len(len) };
        self.needs -= n;
        self.needs
    }

    /// The argument without its line end; `None` if it is followed
    /// by something else. Must be called when no bytes are missing.
    pub(crate) fn finish(self) -> Option<Vec<u8>> {
        debug_assert_eq!(self.needs, 0);
        (!self.is_malformed).then_some(self.buffer)
    }

    /// Reserves room for `n` bytes that have arrived or are about to.
    fn make_room(&mut self, n: usize) {
        let len = self.buffer.len();
        if self.buffer.capacity() - len < n {
            let fast = (FAST_GROWTH * (len + n)).min(FAST_GROWTH_MAX);
            let capacity = (GROWTH * (len + n)).max(fast).max(CAPACITY_MIN).min(len + self.missing());
            if len < self.buffer.capacity() / 2 {
                // The allocator would copy the unused part too.
                let mut grown = Vec::with_capacity(capacity);
                grown.extend_from_slice(&self.buffer);
                self.buffer = grown;
            } else {
                self.buffer.reserve_exact(capacity - len);
            }
        }
    }
}
