//! The hash table under every database: tagged pointers in cache-line buckets, grown a segment at a time.
//!
//! ```text
//! hash (64 bits):  | directory index (depth) | tag (16) | ...            | partition (low bits, not used here) |
//!
//! directory  --->  segments  --->  buckets of one cache line: eight words, each  tag << 48 | pointer | flag
//! ```
//!
//! - A table with one segment keeps it in itself and needs no directory.
//! - The **directory** maps the hash's first bits to a **segment** (extendible hashing). A segment that is full at its
//!   largest size splits in two by the next bit; nothing else moves, so no growth step costs more than one segment.
//! - A **segment** is a small array of buckets that grows by a quarter or less ([`STEPS`], each exactly
//!   one size class of the allocator), which keeps the load between 0.72 and 0.9 at every size.
//! - A word keeps the 16 hash bits after the segment's own as its **tag**: enough to find its home bucket
//!   again, so that growing a segment never reads the elements, and to rule out nearly all other elements.
//! - A full bucket overflows into the next one, wrapping around. **Invariant**: all buckets from
//!   an element's home up to the one it is in are full. A search can therefore end at the first
//!   bucket with a free slot, and a removal from a full bucket pulls an overflowed element back.
//! - Words of a bucket are packed: the first empty one ends it.
//! - Everything is ordered by hash, from directory to tag. A **scan position** is a point in the hash space and
//!   stays valid when the table is resized: everything before it has been visited, everything after it will be.
//! - Each segment has a **mark**, which supports a traversal while the table changes: after
//!   [`Table::unmark`], each segment is visited once before it is marked again, and code that is
//!   about to change a segment marks it first. An unmarked segment neither splits, nor joins,
//!   nor changes. **Invariant**: all segments are marked unless such a traversal is running.
//!
//! The table stores pointers and one flag bit with each; it never reads the elements. Functions
//! that the caller passes compare keys and compute the full hash (needed for splits only).
//!
//! # Safety
//!
//! A directory has 2^depth entries, each the number of a segment, so an index computed from a hash is in bounds. Each
//! segment owns its buckets, which are allocated zeroed with one of the [`STEPS`] and freed with the same layout. All
//! bucket indices are below the segment's `bucket_count`, which [`Segment::home`] and [`Segment::after`] guarantee.

mod segment;

use crate::defrag::Mover;
use segment::{
    BUCKET, Bucket, FLAG, POINTER_MASK, STEP_MAX, STEPS, Segment, is_full, matches, pointer_bits, pointer_of, prefetch,
    step_for, tag_in, tag_of, tags_equal, word_of,
};
use smallvec::SmallVec;
use std::hint::select_unpredictable;
use std::ptr::NonNull;

/// A pointer stored in the table: at least two-byte aligned and below 2^48.
pub type Pointer = NonNull<u8>;

/// The position of an element; valid until the table changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    segment: u32,
    bucket: u16,
    slot: u16,
}

/// The hash table. See the module documentation.
#[derive(Default)]
pub struct Table {
    /// log2 of the directory's length; 0 while there is no directory.
    depth: u8,
    /// The value of `mark` in marked segments.
    mark: bool,
    directory: Option<Box<[u32]>>,
    /// The only segment of a small table is in the table itself: one cache line less on the way to an element.
    segments: SmallVec<[Segment; 1]>,
    len: usize,
    flagged: usize,
}

// SAFETY: a table owns its buckets and never dereferences the pointers in them.
unsafe impl Send for Table {}
// SAFETY: shared access only reads.
unsafe impl Sync for Table {}

impl Table {
    /// An empty table; allocates nothing.
    pub const fn new() -> Self {
        Table { depth: 0, mark: false, directory: None, segments: SmallVec::new_const(), len: 0, flagged: 0 }
    }

    /// Reserves room for `count` elements in an empty table, so that
    /// inserting them moves none. Does nothing if the table is not empty.
    pub fn reserve(&mut self, count: usize) {
        /// Expected elements per segment, low enough that a segment
        /// with more than its share by chance does not overflow.
        const SHARE_MAX: usize = Segment::capacity_of(STEP_MAX) as usize * 7 / 8;
        if !self.is_empty() || count <= Segment::capacity_of(STEPS[0]) as usize {
            return;
        }
        let depth = count.div_ceil(SHARE_MAX).next_power_of_two().trailing_zeros() as u8;
        let buckets = step_for(count.div_ceil(1 << depth));
        self.segments = (0..1usize << depth).map(|_| Segment::new(buckets, depth, self.mark)).collect();
        self.directory = Some((0..1u32 << depth).collect());
        self.depth = depth;
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Number of elements whose flag is set.
    pub fn flagged(&self) -> usize {
        self.flagged
    }

    /// Total number of slots, for statistics.
    pub fn capacity(&self) -> usize {
        self.segments.iter().map(|s| s.bucket_count as usize * BUCKET).sum()
    }

    /// Number of segments, for statistics.
    pub fn segment_count(&self) -> usize {
        self.segments.len()
    }

    /// Frees what an empty table keeps for future elements.
    pub fn release(&mut self) {
        debug_assert!(self.is_empty(), "a table is released while it has elements");
        *self = Table::new();
    }

    /// Bytes of memory of the table itself, without the elements.
    pub fn memory(&self) -> usize {
        self.capacity() * size_of::<u64>()
            + if self.segments.spilled() { self.segments.capacity() * size_of::<Segment>() } else { 0 }
            + size_of_val(self.directory())
    }

    /// Prefetches the first segment, the only one of a small table.
    #[inline]
    pub fn prefetch_segments(&self) {
        prefetch_address(self.segments.as_ptr().cast());
    }

    /// Prefetches the home bucket of this hash.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        if let Some(segment) = self.segment_of(hash) {
            prefetch(segment.bucket(segment.home(tag_of(hash, segment.depth))));
        }
    }

    /// Prefetches the element that probably has this hash.
    #[inline]
    pub fn prefetch_element(&self, hash: u64) {
        let Some(segment) = self.segment_of(hash) else { return };
        let tag = tag_of(hash, segment.depth);
        let home = segment.home(tag);
        let bucket = segment.bucket(home);
        // An element that did not fit in its home bucket is usually in the next one. This
        // is computed without a branch: a branch would be resolved only when the bucket
        // has arrived, and a misprediction would discard prefetches begun for other keys.
        let is_elsewhere = (tags_equal(bucket, tag) == 0) & is_full(bucket);
        let bucket = segment.bucket(if is_elsewhere { segment.after(home) } else { home });
        let equal = tags_equal(bucket, tag);
        let element = bucket.0[equal.trailing_zeros() as usize % BUCKET] & POINTER_MASK;
        // If no tag matches, prefetch the bucket again: a prefetch of another
        // element would cost a TLB miss, as slow as waiting for the element.
        prefetch_lines(select_unpredictable(equal == 0, std::ptr::from_ref(bucket).addr() as u64, element));
    }

    /// Finds the element with this hash for which `is_key` returns true.
    #[inline]
    pub fn find(&self, hash: u64, is_key: impl FnMut(Pointer) -> bool) -> Option<Place> {
        self.find_element(hash, is_key).map(|(place, _)| place)
    }

    /// Like [`find`](Self::find), and also returns the element.
    #[inline]
    pub fn find_element(&self, hash: u64, mut is_key: impl FnMut(Pointer) -> bool) -> Option<(Place, Pointer)> {
        let (number, segment) = self.numbered_segment_of(hash)?;
        let tag = tag_of(hash, segment.depth);
        let home = segment.home(tag);
        let mut at = home;
        loop {
            let bucket = segment.bucket(at);
            for slot in matches(bucket, tag) {
                let element = pointer_of(bucket.0[slot]);
                if is_key(element) {
                    return Some((Place { segment: number, bucket: at as u16, slot: slot as u16 }, element));
                }
            }
            if !is_full(bucket) {
                return None;
            }
            at = segment.after(at);
            if at == home {
                return None;
            }
        }
    }

    /// The element at `place`.
    #[inline]
    pub fn get(&self, place: Place) -> Pointer {
        pointer_of(self.word(place))
    }

    /// Replaces the element at `place` and its flag by another element with the same hash.
    #[inline]
    pub fn replace(&mut self, place: Place, pointer: Pointer, flag: bool) {
        let before = self.word(place);
        let word = before & !(POINTER_MASK | FLAG) | pointer_bits(pointer) | u64::from(flag);
        // Memory that does not change is not written: the write would invalidate the line in other cores' caches.
        if word != before {
            *self.word_mut(place) = word;
            self.flagged = self.flagged - (before & FLAG) as usize + usize::from(flag);
        }
    }

    /// Records the new address of the element at `place`.
    #[inline]
    pub fn relocated(&mut self, place: Place, now: Pointer) {
        let word = self.word_mut(place);
        *word = *word & !POINTER_MASK | pointer_bits(now);
    }

    /// Offers the table's allocations to a mover, and calls `relocate` with each element to get its new address.
    /// Starts with the bucket at `position` in the hash space and continues until the mover is due. Otherwise as
    /// for [`Table::scan`], except that an element may be skipped if the table was resized in between.
    pub fn relocate(
        &mut self,
        position: u64,
        mover: &mut Mover<'_>,
        mut relocate: impl FnMut(&mut Mover<'_>, Pointer) -> Pointer,
    ) -> Option<u64> {
        if position == 0 {
            if let Some(directory) = &mut self.directory {
                let mut row = std::mem::take(directory).into_vec();
                mover.offer_vec(&mut row);
                *directory = row.into_boxed_slice();
            }
            if self.segments.spilled() {
                let mut segments = std::mem::take(&mut self.segments).into_vec();
                mover.offer_vec(&mut segments);
                self.segments = SmallVec::from_vec(segments);
            }
        }
        let mut position = position;
        loop {
            let (number, _) = self.numbered_segment_of(position)?;
            let segment = &mut self.segments[number as usize];
            let home = segment.home(tag_of(position, segment.depth));
            if home == 0 {
                segment.relocate(mover);
            }
            for word in segment.bucket_mut(home).0.iter_mut().take_while(|word| **word != 0) {
                *word = *word & !POINTER_MASK | pointer_bits(relocate(mover, pointer_of(*word)));
            }
            position = segment.next_position(position, home)?;
            if mover.is_due() {
                return Some(position);
            }
        }
    }

    /// Adds an element, which must be absent. `hash_of` returns the
    /// hash of other elements, in case a segment has to split.
    #[inline]
    pub fn insert(&mut self, hash: u64, pointer: Pointer, flag: bool, hash_of: impl Fn(Pointer) -> u64) {
        if self.segments.is_empty() {
            self.begin();
        }
        loop {
            let number = if self.depth == 0 { 0 } else { self.directory()[self.directory_index(hash)] as usize };
            let segment = &mut self.segments[number];
            if segment.count < segment.capacity() {
                let tag = tag_of(hash, segment.depth);
                segment.insert(word_of(tag, pointer, flag));
                break;
            }
            self.make_room(number, &hash_of);
        }
        self.len += 1;
        self.flagged += usize::from(flag);
    }

    /// Creates the first segment. Most tables stay that small.
    #[cold]
    fn begin(&mut self) {
        self.segments.clear();
        self.segments.push(Segment::new(STEPS[0], 0, self.mark));
        self.directory = None;
        self.depth = 0;
    }

    /// Removes the element at `place`.
    pub fn remove(&mut self, place: Place) -> Pointer {
        let number = place.segment as usize;
        let segment = &mut self.segments[number];
        let word = segment.remove(place.bucket as usize, place.slot as usize);
        self.len -= 1;
        self.flagged -= (word & FLAG) as usize;
        self.give_back(number);
        pointer_of(word)
    }

    /// Calls `visit` with every element.
    pub fn for_each(&self, visit: impl FnMut(Pointer)) {
        self.iter().for_each(visit);
    }

    /// All elements, in no particular order. Elements are prefetched ahead of being returned.
    pub fn iter(&self) -> Iter<'_> {
        Iter { buckets: self.segments.first().map_or(&[], Segment::all_buckets), segment: 0, slot: 0, table: self }
    }

    /// A table with the same places and flags, in which each element is the result of `copy`.
    pub fn copy_with(&self, mut copy: impl FnMut(Pointer) -> Pointer) -> Table {
        let mut copy_word = |word: &mut u64| {
            if *word != 0 {
                *word = *word & !POINTER_MASK | pointer_bits(copy(pointer_of(*word)));
            }
        };
        let mut copy_segment = |segment: &Segment| {
            let mut copied = Segment::new(segment.bucket_count, segment.depth, false);
            copied.count = segment.count;
            for (number, bucket) in segment.all_buckets().iter().enumerate() {
                let target = copied.bucket_mut(number);
                target.0 = bucket.0;
                target.0.iter_mut().for_each(&mut copy_word);
            }
            copied
        };
        Table {
            depth: self.depth,
            mark: false,
            directory: self.directory.clone(),
            segments: self.segments.iter().map(&mut copy_segment).collect(),
            len: self.len,
            flagged: self.flagged,
        }
    }

    /// Visits the elements of the bucket at `position` in the hash space, and returns the start of the next bucket;
    /// `None` after the last one. Starting at 0 and continuing until `None` visits every element that is present all
    /// the time, whatever is inserted, removed or resized in between; an element that moves may be visited twice.
    pub fn scan(&self, position: u64, mut visit: impl FnMut(Pointer, bool)) -> Option<u64> {
        let segment = self.segment_of(position)?;
        let first_tag = tag_of(position, segment.depth);
        let home = segment.home(first_tag);
        let mut at = home;
        loop {
            let bucket = segment.bucket(at);
            for &word in bucket.0.iter().take_while(|word| **word != 0) {
                let tag = tag_in(word);
                if tag >= first_tag && segment.home(tag) == home {
                    visit(pointer_of(word), word & FLAG != 0);
                }
            }
            if !is_full(bucket) {
                break;
            }
            at = segment.after(at);
            if at == home {
                break;
            }
        }
        segment.next_position(position, home)
    }

    /// Like [`Table::scan`], but visits only flagged elements, in up to `buckets` buckets.
    pub fn scan_flagged(&self, position: u64, buckets: usize, mut visit: impl FnMut(Pointer)) -> Option<u64> {
        let mut position = position;
        for _ in 0..buckets {
            let flagged_only = |pointer, flag| {
                if flag {
                    visit(pointer)
                }
            };
            position = self.scan(position, flagged_only)?;
        }
        Some(position)
    }

    /// Samples elements from `position` on, in up to `buckets` buckets, until about `wanted` are found. Returns the
    /// start of the next bucket, as [`Table::scan`] does. With `flagged`, samples only elements with the flag set.
    pub fn sample(
        &self,
        mut position: u64,
        buckets: usize,
        wanted: usize,
        flagged: bool,
        mut found: impl FnMut(Pointer),
    ) -> Option<u64> {
        let mut count = 0;
        for _ in 0..buckets {
            position = self.scan(position, |pointer, flag| {
                if flag || !flagged {
                    count += 1;
                    found(pointer);
                }
            })?;
            if count >= wanted {
                break;
            }
        }
        Some(position)
    }

    /// An element chosen uniformly at random; `random` returns 64-bit random numbers.
    pub fn random(&self, random: impl FnMut() -> u64) -> Option<Pointer> {
        self.random_place(random).map(|place| self.get(place))
    }

    /// The place of an element chosen uniformly at random.
    ///
    /// Draws slots until one is occupied. If there are several segments, each is drawn as if
    /// it had the largest size; the resulting bias is small, because small segments join.
    pub fn random_place(&self, mut random: impl FnMut() -> u64) -> Option<Place> {
        if self.len == 0 {
            return None;
        }
        let bucket_count = if let [only] = self.segments.as_slice() { only.bucket_count } else { STEP_MAX };
        // One number selects all three: 32, 29 and 3 bits of it, used as fractions of the ranges.
        const _: () = assert!(BUCKET == 1 << 3);
        loop {
            let draw = random();
            let segment = ((draw >> 32) * self.segments.len() as u64) >> 32;
            let bucket = ((draw >> 3 & 0x1fff_ffff) * u64::from(bucket_count)) >> 29;
            let place = Place { segment: segment as u32, bucket: bucket as u16, slot: draw as u16 % BUCKET as u16 };
            if place.bucket < self.segments[segment as usize].bucket_count && self.word(place) != 0 {
                return Some(place);
            }
        }
    }

    /// Unmarks all segments.
    pub fn unmark(&mut self) {
        self.mark = !self.mark;
    }

    /// Marks all segments.
    pub fn mark_all(&mut self) {
        self.segments.iter_mut().for_each(|segment| segment.mark = self.mark);
    }

    /// Whether all segments are marked.
    #[cfg(test)]
    pub fn is_marked(&self) -> bool {
        self.segments.iter().all(|segment| segment.mark == self.mark)
    }

    /// Marks the segment where an element with this hash is or would be, and visits its elements if it was not marked.
    pub fn mark_around(&mut self, hash: u64, visit: impl FnMut(Pointer)) {
        if let Some((number, _)) = self.numbered_segment_of(hash) {
            self.mark_segment(number as usize, visit);
        }
    }

    /// Like [`mark_around`](Self::mark_around), for the segment of a place.
    pub fn mark_at(&mut self, place: Place, visit: impl FnMut(Pointer)) {
        self.mark_segment(place.segment as usize, visit);
    }

    /// Like [`mark_around`](Self::mark_around), for the next unmarked segment; returns false if there
    /// is none. The search starts at segment number `from`, which is advanced past the segment found.
    pub fn mark_next(&mut self, from: &mut usize, visit: impl FnMut(Pointer)) -> bool {
        let start = (*from).min(self.segments.len());
        let mut numbers = (start..self.segments.len()).chain(0..start);
        let Some(number) = numbers.find(|number| self.segments[*number].mark != self.mark) else { return false };
        self.mark_segment(number, visit);
        *from = number + 1;
        true
    }

    fn mark_segment(&mut self, number: usize, mut visit: impl FnMut(Pointer)) {
        const AHEAD: usize = 8;
        let segment = &mut self.segments[number];
        if segment.mark == self.mark {
            return;
        }
        segment.mark = self.mark;
        let mut ahead = segment.words().skip(AHEAD);
        for word in segment.words() {
            if let Some(ahead) = ahead.next() {
                prefetch_lines(ahead & POINTER_MASK);
            }
            visit(pointer_of(word));
        }
    }

    /// The directory; empty while there is none.
    #[inline]
    fn directory(&self) -> &[u32] {
        self.directory.as_deref().unwrap_or_default()
    }

    /// The first `depth` bits of a hash; 0 if `depth` is 0.
    #[inline]
    fn directory_index(&self, hash: u64) -> usize {
        ((hash >> 1) >> (63 - self.depth as u32)) as usize
    }

    /// The segment of a hash, with its number.
    #[inline]
    fn numbered_segment_of(&self, hash: u64) -> Option<(u32, &Segment)> {
        if self.depth == 0 {
            // The only segment is found without the directory, which would be one more cache line.
            return self.segments.first().map(|segment| (0, segment));
        }
        let directory = self.directory.as_deref()?;
        let index = self.directory_index(hash);
        debug_assert!(index < directory.len());
        // SAFETY: the directory has an entry for every value of its index bits, and each names a segment.
        unsafe {
            let number = *directory.get_unchecked(index);
            debug_assert!((number as usize) < self.segments.len());
            Some((number, self.segments.get_unchecked(number as usize)))
        }
    }

    #[inline]
    fn segment_of(&self, hash: u64) -> Option<&Segment> {
        self.numbered_segment_of(hash).map(|(_, segment)| segment)
    }

    #[inline]
    fn word(&self, place: Place) -> u64 {
        self.segments[place.segment as usize].bucket(place.bucket as usize).0[place.slot as usize]
    }

    #[inline]
    fn word_mut(&mut self, place: Place) -> &mut u64 {
        &mut self.segments[place.segment as usize].bucket_mut(place.bucket as usize).0[place.slot as usize]
    }

    /// Grows segment `number` by one step, or splits it if it has the largest size.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, number: usize, hash_of: &impl Fn(Pointer) -> u64) {
        let segment = &mut self.segments[number];
        match STEPS.iter().find(|step| **step > segment.bucket_count) {
            Some(&larger) => segment.resize(larger),
            None => self.split(number, hash_of),
        }
    }

    fn split(&mut self, number: usize, hash_of: &impl Fn(Pointer) -> u64) {
        let Segment { depth: old_depth, mark, .. } = self.segments[number];
        debug_assert_eq!(mark, self.mark, "a segment that is not marked stays as it is");
        if old_depth == self.depth {
            let directory = if self.depth == 0 { &[0][..] } else { self.directory() };
            self.directory = Some(directory.iter().flat_map(|n| [*n, *n]).collect());
            self.depth += 1;
        }
        let depth = old_depth + 1;
        let old = std::mem::replace(&mut self.segments[number], Segment::new(STEPS[0], depth, mark));
        let mut halves: [Vec<u64>; 2] = [Vec::with_capacity(600), Vec::with_capacity(600)];
        let words: Vec<u64> = old.words().collect();
        for (i, &word) in words.iter().enumerate() {
            if let Some(ahead) = words.get(i + 8) {
                prefetch_lines(ahead & POINTER_MASK);
            }
            let hash = hash_of(pointer_of(word));
            let half = (hash >> (64 - depth as u32)) & 1;
            halves[half as usize].push(word_of(tag_of(hash, depth), pointer_of(word), word & FLAG != 0));
        }
        let [low, high] = halves.map(|words| Segment::holding(&words, depth, mark));
        self.segments[number] = low;
        let added = self.segments.len() as u32;
        self.segments.push(high);
        self.point_upper_half_at(number as u32, added, depth);
    }

    /// After a split: points the directory entries of `number` whose new bit is set to `added`.
    fn point_upper_half_at(&mut self, number: u32, added: u32, depth: u8) {
        let shift = self.depth - depth;
        for (index, entry) in self.directory.iter_mut().flatten().enumerate() {
            if *entry == number && (index >> shift) & 1 == 1 {
                *entry = added;
            }
        }
    }

    /// After a removal: shrinks segment `number` if it is mostly empty, and joins it with its sibling if both are.
    #[inline]
    fn give_back(&mut self, number: usize) {
        let segment = &self.segments[number];
        let mostly_empty = segment.bucket_count > 1 && segment.count * 3 < segment.capacity();
        if mostly_empty || (self.len == 0 && self.segments.capacity() > 4) {
            self.shrink(number);
        }
    }

    #[cold]
    #[inline(never)]
    fn shrink(&mut self, number: usize) {
        if self.len == 0 {
            return self.release();
        }
        let segment = &mut self.segments[number];
        segment.resize(step_for(segment.count as usize));
        let (depth, count) = (segment.depth, segment.count);
        if depth == 0 || count > Segment::capacity_of(STEP_MAX) / 4 {
            return;
        }
        let Some(first) = self.directory().iter().position(|n| *n as usize == number) else { return };
        let sibling_index = first ^ (1 << (self.depth - depth));
        let sibling = self.directory()[sibling_index] as usize;
        let other = &self.segments[sibling];
        let alike = other.depth == depth && other.mark == self.mark;
        if alike && other.count + count <= Segment::capacity_of(STEP_MAX) / 2 {
            let (low, high) = if first < sibling_index { (number, sibling) } else { (sibling, number) };
            self.join(low, high);
        }
    }

    /// Joins two siblings: each tag regains the bit that distinguished the two segments.
    fn join(&mut self, low: usize, high: usize) {
        let depth = self.segments[low].depth - 1;
        let halves = [(0u64, low), (1 << 63, high)];
        let words: Vec<u64> = halves
            .into_iter()
            .flat_map(|(bit, number)| {
                self.segments[number].words().map(move |word| {
                    let tag = bit >> 48 | u64::from(tag_in(word)) >> 1;
                    word_of(tag as u16, pointer_of(word), word & FLAG != 0)
                })
            })
            .collect();
        self.segments[low] = Segment::holding(&words, depth, self.mark);
        self.segments.swap_remove(high);
        let moved = self.segments.len() as u32;
        for entry in self.directory.iter_mut().flatten() {
            if *entry == high as u32 {
                *entry = low as u32;
            }
            if *entry == moved {
                *entry = high as u32;
            }
        }
        while self.depth > 0 && self.segments.iter().all(|s| s.depth < self.depth) {
            self.directory = Some(self.directory().iter().step_by(2).copied().collect());
            self.depth -= 1;
        }
    }
}

/// All elements of a table: see [`Table::iter`].
pub struct Iter<'a> {
    table: &'a Table,
    /// The number of the segment being visited.
    segment: usize,
    /// Its remaining buckets, and the next slot in the first of them.
    buckets: &'a [Bucket],
    slot: usize,
}

impl Iterator for Iter<'_> {
    type Item = Pointer;

    #[inline]
    fn next(&mut self) -> Option<Pointer> {
        loop {
            match self.buckets {
                [bucket, rest @ ..] => {
                    if let Some(&word) = bucket.0.get(self.slot).filter(|word| **word != 0) {
                        self.slot += 1;
                        return Some(pointer_of(word));
                    }
                    (self.buckets, self.slot) = (rest, 0);
                    if let Some(ahead) = self.buckets.get(1) {
                        ahead
                            .0
                            .iter()
                            .take_while(|word| **word != 0)
                            .for_each(|word| prefetch_lines(word & POINTER_MASK));
                    }
                }
                [] => {
                    self.segment += 1;
                    self.buckets = self.table.segments.get(self.segment)?.all_buckets();
                }
            }
        }
    }
}

/// Prefetches the first two cache lines of an element.
#[inline]
fn prefetch_lines(address: u64) {
    let first = std::ptr::without_provenance::<u8>(address as usize);
    prefetch_address(first);
    prefetch_address(first.wrapping_add(64));
}

/// Prefetches memory that will be written: takes the cache line exclusively.
#[inline]
pub(crate) fn prefetch_for_write<T>(target: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch affects only caches; processors without this instruction execute it as a no-op.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) target, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = target;
}

#[inline]
pub(crate) fn prefetch_address(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch affects only caches, for any address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests;
