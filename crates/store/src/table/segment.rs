//! Segments and buckets: storage of words, and search, insertion and removal within a segment.
//!
//! See the parent module for the format of words and the invariants.

use super::{Pointer, prefetch_address};
use crate::defrag::Mover;
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

/// Words in a bucket.
pub(super) const BUCKET: usize = 8;
/// Bucket counts of a segment: every size class of the allocator from 64 bytes to 8 KiB.
pub(super) const STEPS: [u16; 24] =
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128];
/// Number of buckets of a segment of the largest size.
pub(super) const STEP_MAX: u16 = STEPS[STEPS.len() - 1];
/// Number of hash bits in a word.
pub(super) const TAG_BITS: u32 = 16;
pub(super) const POINTER_MASK: u64 = 0x0000_ffff_ffff_fffe;
pub(super) const FLAG: u64 = 1;

#[repr(C, align(64))]
pub(super) struct Bucket(pub(super) [u64; BUCKET]);

/// A part of the table that grows independently.
pub(super) struct Segment {
    pub(super) buckets: NonNull<Bucket>,
    pub(super) count: u32,
    pub(super) bucket_count: u16,
    /// Number of leading hash bits that all its elements share.
    pub(super) depth: u8,
    /// The segment is marked if this equals the table's `mark`.
    pub(super) mark: bool,
}

impl Segment {
    pub(super) fn new(bucket_count: u16, depth: u8, mark: bool) -> Self {
        let layout = Self::layout(bucket_count);
        // SAFETY: the layout is not empty.
        let buckets = unsafe { alloc_zeroed(layout) };
        let Some(buckets) = NonNull::new(buckets.cast::<Bucket>()) else { handle_alloc_error(layout) };
        Segment { buckets, count: 0, bucket_count, depth, mark }
    }

    /// A segment for `words`, of the smallest size that leaves room to grow.
    pub(super) fn holding(words: &[u64], depth: u8, mark: bool) -> Self {
        let mut segment = Segment::new(step_for(words.len()), depth, mark);
        words.iter().for_each(|word| segment.insert(*word));
        segment
    }

    pub(super) fn layout(bucket_count: u16) -> Layout {
        // A bucket's size times a step always makes a valid layout.
        Layout::array::<Bucket>(bucket_count as usize).unwrap_or(Layout::new::<Bucket>())
    }

    /// Number of elements before the segment must grow: about nine tenths of the slots, or all of a single bucket.
    #[inline]
    pub(super) const fn capacity_of(bucket_count: u16) -> u32 {
        if bucket_count == 1 { BUCKET as u32 } else { bucket_count as u32 * BUCKET as u32 * 29 / 32 }
    }

    #[inline]
    pub(super) fn capacity(&self) -> u32 {
        Self::capacity_of(self.bucket_count)
    }

    /// The home bucket of a tag.
    #[inline]
    pub(super) fn home(&self, tag: u16) -> usize {
        (tag as usize * self.bucket_count as usize) >> TAG_BITS
    }

    /// The bucket after `at`, wrapping around.
    #[inline]
    pub(super) fn after(&self, at: usize) -> usize {
        let next = at + 1;
        if next == self.bucket_count as usize { 0 } else { next }
    }

    #[inline]
    pub(super) fn bucket(&self, index: usize) -> &Bucket {
        debug_assert!(index < self.bucket_count as usize);
        // SAFETY: the index is below the bucket count (see the parent module).
        unsafe { self.buckets.add(index).as_ref() }
    }

    #[inline]
    pub(super) fn bucket_mut(&mut self, index: usize) -> &mut Bucket {
        debug_assert!(index < self.bucket_count as usize);
        // SAFETY: as above, and the segment is borrowed exclusively.
        unsafe { self.buckets.add(index).as_mut() }
    }

    pub(super) fn all_buckets(&self) -> &[Bucket] {
        // SAFETY: the allocation holds that many initialised buckets.
        unsafe { std::slice::from_raw_parts(self.buckets.as_ptr(), self.bucket_count as usize) }
    }

    pub(super) fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.all_buckets().iter().flat_map(|bucket| bucket.0.iter().copied().take_while(|word| *word != 0))
    }

    /// Adds a word; there must be a free slot.
    #[inline]
    pub(super) fn insert(&mut self, word: u64) {
        debug_assert!(self.count < self.bucket_count as u32 * BUCKET as u32);
        let mut at = self.home(tag_in(word));
        while is_full(self.bucket(at)) {
            at = self.after(at);
        }
        let bucket = self.bucket_mut(at);
        let slot = used(bucket);
        bucket.0[slot] = word;
        self.count += 1;
    }

    /// Removes a word and pulls overflowed ones back, which preserves the invariant of the parent module.
    pub(super) fn remove(&mut self, bucket: usize, slot: usize) -> u64 {
        let (mut hole, was_full) = (bucket, is_full(self.bucket(bucket)));
        let removed = take_word(self.bucket_mut(bucket), slot);
        self.count -= 1;
        if !was_full {
            return removed;
        }
        let mut at = self.after(hole);
        while at != hole {
            let full = is_full(self.bucket(at));
            if let Some(slot) = self.passed_on_over(hole, at) {
                let word = take_word(self.bucket_mut(at), slot);
                self.bucket_mut(hole).0[BUCKET - 1] = word;
                hole = at;
            }
            if !full {
                break;
            }
            at = self.after(at);
        }
        removed
    }

    /// The slot of a word in bucket `at` whose home is `hole` or before it.
    pub(super) fn passed_on_over(&self, hole: usize, at: usize) -> Option<usize> {
        let distance =
            |from: usize, to: usize| if to >= from { to - from } else { to + self.bucket_count as usize - from };
        let gap = distance(hole, at);
        let bucket = self.bucket(at);
        (0..used(bucket)).find(|slot| distance(self.home(tag_in(bucket.0[*slot])), at) >= gap)
    }

    pub(super) fn resize(&mut self, bucket_count: u16) {
        if bucket_count == self.bucket_count {
            return;
        }
        let mut resized = Segment::new(bucket_count, self.depth, self.mark);
        self.words().for_each(|word| resized.insert(word));
        *self = resized;
    }

    /// Offers the buckets to a mover.
    pub(super) fn relocate(&mut self, mover: &mut Mover<'_>) {
        // SAFETY: the segment owns the buckets, which were allocated with this layout and are referenced only here.
        self.buckets = unsafe { mover.offer(self.buckets.cast(), Self::layout(self.bucket_count)) }.cast();
    }

    /// The position in the hash space of the bucket after `home`.
    pub(super) fn next_position(&self, position: u64, home: usize) -> Option<u64> {
        let depth = self.depth as u32;
        let base = if depth == 0 { 0 } else { position >> (64 - depth) << (64 - depth) };
        if home + 1 < self.bucket_count as usize {
            let tag = ((home as u64 + 1) << TAG_BITS).div_ceil(self.bucket_count as u64);
            return Some(base | tag << (64 - TAG_BITS - depth));
        }
        if depth == 0 { None } else { base.checked_add(1 << (64 - depth)) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with the same layout, and not used afterwards.
        unsafe { dealloc(self.buckets.as_ptr().cast(), Self::layout(self.bucket_count)) }
    }
}

/// The smallest step that holds `count` elements with some spare room.
pub(super) fn step_for(count: usize) -> u16 {
    let wanted = count + count / 8;
    STEPS.into_iter().find(|step| Segment::capacity_of(*step) as usize >= wanted).unwrap_or(STEP_MAX)
}

#[inline]
pub(super) fn tag_of(hash: u64, depth: u8) -> u16 {
    ((hash << depth) >> (64 - TAG_BITS)) as u16
}

#[inline]
pub(super) fn tag_in(word: u64) -> u16 {
    (word >> (64 - TAG_BITS)) as u16
}

#[inline]
pub(super) fn pointer_bits(pointer: Pointer) -> u64 {
    let bits = pointer.as_ptr().expose_provenance() as u64;
    debug_assert_eq!(bits & !POINTER_MASK, 0, "pointer out of range or not aligned");
    bits
}

#[inline]
pub(super) fn word_of(tag: u16, pointer: Pointer, flag: bool) -> u64 {
    u64::from(tag) << (64 - TAG_BITS) | pointer_bits(pointer) | u64::from(flag)
}

#[inline]
pub(super) fn pointer_of(word: u64) -> Pointer {
    let pointer = std::ptr::with_exposed_provenance_mut((word & POINTER_MASK) as usize);
    // SAFETY: the words were made by `word_of` from non-null pointers.
    unsafe { NonNull::new_unchecked(pointer) }
}

#[inline]
pub(super) fn is_full(bucket: &Bucket) -> bool {
    bucket.0[BUCKET - 1] != 0
}

#[inline]
pub(super) fn used(bucket: &Bucket) -> usize {
    bucket.0.iter().position(|word| *word == 0).unwrap_or(BUCKET)
}

/// The slots with this tag, in order.
#[inline]
pub(super) fn matches(bucket: &Bucket, tag: u16) -> impl Iterator<Item = usize> {
    let mut bits = tags_equal(bucket, tag);
    std::iter::from_fn(move || {
        while bits != 0 {
            let slot = bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // An empty word has tag 0.
            if bucket.0[slot & (BUCKET - 1)] != 0 {
                return Some(slot);
            }
        }
        None
    })
}

/// A bit mask of the slots with this tag. Uses SIMD and no branches.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn tags_equal(bucket: &Bucket, tag: u16) -> u32 {
    use std::arch::x86_64::*;
    const { assert!(TAG_BITS == 16, "a tag is the upper half of a word's upper half") };
    // SAFETY: SSE2 is part of x86-64; a bucket is four aligned vectors.
    unsafe {
        let words = bucket.0.as_ptr().cast::<f32>();
        let pair = |at: usize| _mm_load_ps(words.add(4 * at));
        // The upper 32 bits of four words each; the shift then selects the upper 16 of these.
        let low = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(pair(0), pair(1)));
        let high = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(pair(2), pair(3)));
        let tags = _mm_packs_epi32(_mm_srai_epi32::<16>(low), _mm_srai_epi32::<16>(high));
        let equal = _mm_cmpeq_epi16(tags, _mm_set1_epi16(tag as i16));
        _mm_movemask_epi8(_mm_packs_epi16(equal, _mm_setzero_si128())) as u32
    }
}

/// A bit mask of the slots with this tag.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) fn tags_equal(bucket: &Bucket, tag: u16) -> u32 {
    let equal = |(slot, word): (usize, &u64)| u32::from(tag_in(*word) == tag) << slot;
    bucket.0.iter().enumerate().map(equal).fold(0, |bits, bit| bits | bit)
}

/// Removes a word from a bucket and fills its slot with the last word.
pub(super) fn take_word(bucket: &mut Bucket, slot: usize) -> u64 {
    let last = used(bucket) - 1;
    bucket.0.swap(slot, last);
    std::mem::take(&mut bucket.0[last])
}

#[inline]
pub(super) fn prefetch(bucket: &Bucket) {
    prefetch_address(std::ptr::from_ref(bucket).cast());
}
