//! The hash table under every database: tagged pointers in cache-line buckets, grown a segment at a time.
//!
//! ```text
//! hash (64 bits):  | directory index (depth) | tag (16) | ...            | partition (low bits, not used here) |
//!
//! directory  --->  segments  --->  buckets of one cache line: eight words, each  tag << 48 | pointer | flag
//! ```
//!
//! - The **directory** maps the hash's first bits to a **segment** (extendible hashing). A segment that is full at its
//!   largest size splits in two by the next bit; nothing else moves, so no growth step costs more than one segment.
//! - A **segment** is a small array of buckets that grows by a quarter or less ([`STEPS`], each exactly one size class of
//!   the allocator), which keeps the load between 0.72 and 0.9 at every size.
//! - A word keeps the 16 hash bits after the segment's own as its **tag**: enough to find its home bucket again, so that
//!   growing a segment never touches the elements, and to rule out all but one in some thousand of the others.
//! - A bucket that is full passes elements on to the next one, and around. **Invariant**: all buckets from an element's
//!   home up to where it is are full. A search may therefore end at the first bucket with room, and a removal from a
//!   full bucket pulls a passed-on element back.
//! - Words of a bucket are packed: the first empty one ends it.
//! - Everything is ordered by hash, from directory to tag. A **scan position** is a place in the hash space, and stays
//!   meaningful however the table is resized: what lies before it was visited, what lies behind it will be.
//! - Each segment has a **mark**, by which a table can be gone through while it changes: after [`Table::unmark`] each
//!   segment is visited once before it is marked again, and whoever is about to change one marks it first. A segment that
//!   is not marked neither splits, nor joins, nor changes. **Invariant**: as long as nobody asks for that, all are marked.
//!
//! The table stores pointers and one flag bit with each; it never reads what they point to. Comparing keys and finding
//! the full hash (needed for splits only) is done by functions that the caller passes.
//!
//! # Safety
//!
//! Once there is a directory it has 2^depth entries, each the number of a segment: an index made from a hash is in
//! bounds. Buckets are owned by their segment, allocated zeroed with [`STEPS`]' sizes and freed with the same. All bucket indices
//! are below the segment's `bucket_count`, which [`Segment::home`] and [`Segment::after`] guarantee.

mod segment;

use crate::defrag::Mover;
use segment::{
    BUCKET, Bucket, FLAG, POINTER_MASK, STEP_MAX, STEPS, Segment, is_full, matches, pointer_bits, pointer_of, prefetch,
    step_for, tag_in, tag_of, tags_equal, word_of,
};
use std::hint::select_unpredictable;
use std::ptr::NonNull;

/// A pointer stored in the table: at least two-byte aligned and below 2^48.
pub type Pointer = NonNull<u8>;

/// Where an element stands; valid until the table changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    segment: u32,
    bucket: u16,
    slot: u16,
}

/// See the module's documentation.
#[derive(Default)]
pub struct Table {
    /// log2 of the directory's length; meaningless while there is none.
    depth: u8,
    /// What marked segments have for a mark.
    mark: bool,
    directory: Option<Box<[u32]>>,
    segments: Vec<Segment>,
    len: usize,
    flagged: usize,
}

// SAFETY: a table owns its buckets; the pointers in them are plain values to it.
unsafe impl Send for Table {}
// SAFETY: shared access only reads.
unsafe impl Sync for Table {}

impl Table {
    /// An empty table; allocates nothing.
    pub const fn new() -> Self {
        Table { depth: 0, mark: false, directory: None, segments: Vec::new(), len: 0, flagged: 0 }
    }

    /// Makes room for so many elements in an empty table, so that adding them moves none. A table that is not empty stays
    /// as it is.
    pub fn reserve(&mut self, count: usize) {
        /// Elements of a segment, so that one that gets more than its share by chance has room for them.
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

    /// Slots that elements could take, for statistics.
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

    /// Bytes of memory that the table itself takes.
    pub fn memory(&self) -> usize {
        self.capacity() * size_of::<u64>()
            + self.segments.capacity() * size_of::<Segment>()
            + size_of_val(self.directory())
    }

    /// Asks the processor to load the bucket where an element with this hash would be.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        if let Some(segment) = self.segment_of(hash) {
            prefetch(segment.bucket(segment.home(tag_of(hash, segment.depth))));
        }
    }

    /// Asks the processor to load the element that probably has this hash.
    #[inline]
    pub fn prefetch_element(&self, hash: u64) {
        let Some(segment) = self.segment_of(hash) else { return };
        let tag = tag_of(hash, segment.depth);
        let home = segment.home(tag);
        let bucket = segment.bucket(home);
        // What had no room in its bucket is in the next one as a rule. No branch: which way it goes is known when the bucket
        // is there, and what was begun for other keys meanwhile would be lost.
        let is_elsewhere = (tags_equal(bucket, tag) == 0) & is_full(bucket);
        let bucket = segment.bucket(if is_elsewhere { segment.after(home) } else { home });
        let equal = tags_equal(bucket, tag);
        let element = bucket.0[equal.trailing_zeros() as usize % BUCKET] & POINTER_MASK;
        // Where there is none, what is there already is asked for again: finding the page of another element takes as long
        // as waiting for it.
        prefetch_lines(select_unpredictable(equal == 0, std::ptr::from_ref(bucket).addr() as u64, element));
    }

    /// Finds the element with this hash for which `is_it` holds.
    #[inline]
    pub fn find(&self, hash: u64, is_it: impl FnMut(Pointer) -> bool) -> Option<Place> {
        self.find_element(hash, is_it).map(|(place, _)| place)
    }

    /// The same, and the element.
    #[inline]
    pub fn find_element(&self, hash: u64, mut is_it: impl FnMut(Pointer) -> bool) -> Option<(Place, Pointer)> {
        let (number, segment) = self.numbered_segment_of(hash)?;
        let tag = tag_of(hash, segment.depth);
        let home = segment.home(tag);
        let mut at = home;
        loop {
            let bucket = segment.bucket(at);
            for slot in matches(bucket, tag) {
                let element = pointer_of(bucket.0[slot]);
                if is_it(element) {
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

    /// Puts another element with the same hash, and its flag, at `place`.
    #[inline]
    pub fn replace(&mut self, place: Place, pointer: Pointer, flag: bool) {
        let before = self.word(place);
        let word = before & !(POINTER_MASK | FLAG) | pointer_bits(pointer) | u64::from(flag);
        // Memory that does not change is not written: another core may hold it, and would have to give it up.
        if word != before {
            *self.word_mut(place) = word;
            self.flagged = self.flagged - (before & FLAG) as usize + usize::from(flag);
        }
    }

    /// Takes note that the element at `place` lies elsewhere now.
    #[inline]
    pub fn relocated(&mut self, place: Place, now: Pointer) {
        let word = self.word_mut(place);
        *word = *word & !POINTER_MASK | pointer_bits(now);
    }

    /// Offers to a mover what the table is made of, and has `relocate` say for each element where it is now. Begins with the
    /// bucket at `position` in the hash space and goes on until the mover is due, or somewhat further; the rest is as for
    /// [`Table::scan`], but an element may be passed over when the table was resized meanwhile.
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
            mover.offer_vec(&mut self.segments);
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

    /// Adds an element that is not there yet. `hash_of` tells the hash of others, should a segment have to split.
    #[inline]
    pub fn insert(&mut self, hash: u64, pointer: Pointer, flag: bool, hash_of: impl Fn(Pointer) -> u64) {
        if self.directory.is_none() {
            self.begin();
        }
        loop {
            let number = self.directory()[self.directory_index(hash)] as usize;
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

    /// The first segment. Most tables are small, and get no more room than that.
    #[cold]
    fn begin(&mut self) {
        self.segments = Vec::with_capacity(1);
        self.segments.push(Segment::new(STEPS[0], 0, self.mark));
        self.directory = Some([0].into());
        self.depth = 0;
    }

    /// Takes the element at `place` out.
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

    /// All elements, in no particular order. They are fetched from memory ahead of being returned.
    pub fn iter(&self) -> Iter<'_> {
        Iter { buckets: self.segments.first().map_or(&[], Segment::all_buckets), segment: 0, slot: 0, table: self }
    }

    /// A table with the same elements, flags and places, each element having been given to `copy`.
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

    /// Visits the elements of the bucket at `position` in the hash space, and says where the next bucket starts; `None`
    /// after the last one. Starting at 0 and going on until `None` visits every element that is there all the time,
    /// whatever is inserted, removed or resized meanwhile; one that moves may be visited twice.
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

    /// Like [`Table::scan`], but visits only flagged elements, and goes on over at most `buckets` buckets.
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

    /// Finds elements in buckets from `position` on: goes on over at most `buckets` buckets until `wanted` or somewhat more are
    /// found, and says where the next bucket starts, as [`Table::scan`] does. With `flagged` only elements with that flag
    /// are found.
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

    /// An element chosen with equal chances for all; `random` yields random numbers of 64 bits.
    pub fn random(&self, random: impl FnMut() -> u64) -> Option<Pointer> {
        self.random_place(random).map(|place| self.get(place))
    }

    /// The place of an element chosen with equal chances for all.
    ///
    /// Slots are drawn until one is taken. Where there are several segments, a smaller one is drawn as if it were of the
    /// largest size, which is seldom far from the truth: small segments join.
    pub fn random_place(&self, mut random: impl FnMut() -> u64) -> Option<Place> {
        if self.len == 0 {
            return None;
        }
        let bucket_count = if let [only] = self.segments.as_slice() { only.bucket_count } else { STEP_MAX };
        // One number decides all: 32 bits, 29 bits and 3 bits of it, as fractions of what there is to choose from.
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

    /// Takes the marks off all segments.
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

    /// Marks the segment where an element with this hash is or would be, and visits what is in it if it was not marked.
    pub fn mark_around(&mut self, hash: u64, visit: impl FnMut(Pointer)) {
        if let Some((number, _)) = self.numbered_segment_of(hash) {
            self.mark_segment(number as usize, visit);
        }
    }

    /// The same for the segment of a place.
    pub fn mark_at(&mut self, place: Place, visit: impl FnMut(Pointer)) {
        self.mark_segment(place.segment as usize, visit);
    }

    /// The same for the next segment without a mark; false when there is none. The search begins at number `from`, which is
    /// left where the next one may begin.
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

    /// The directory; nothing while there is none.
    #[inline]
    fn directory(&self) -> &[u32] {
        self.directory.as_deref().unwrap_or_default()
    }

    /// The first `depth` bits of a hash; 0 when there are none.
    #[inline]
    fn directory_index(&self, hash: u64) -> usize {
        ((hash >> 1) >> (63 - self.depth as u32)) as usize
    }

    /// The number of the segment of a hash, and the segment.
    #[inline]
    fn numbered_segment_of(&self, hash: u64) -> Option<(u32, &Segment)> {
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

    /// Grows segment `number` by a step, or splits it when it is at its largest.
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
            self.directory = Some(self.directory().iter().flat_map(|n| [*n, *n]).collect());
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

    /// After a split: of the directory's entries for `number`, those with the new bit set now lead to `added`.
    fn point_upper_half_at(&mut self, number: u32, added: u32, depth: u8) {
        let shift = self.depth - depth;
        for (index, entry) in self.directory.iter_mut().flatten().enumerate() {
            if *entry == number && (index >> shift) & 1 == 1 {
                *entry = added;
            }
        }
    }

    /// After a removal: shrinks segment `number` when it is mostly empty, and joins it with its sibling when both are.
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

    /// Joins two siblings: their elements' tags take back the bit that told them apart.
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
    /// The number of the segment that is visited.
    segment: usize,
    /// What is left of it, and the slot in the first bucket of that.
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

/// Loads the first two cache lines of an element.
#[inline]
fn prefetch_lines(address: u64) {
    let first = std::ptr::without_provenance::<u8>(address as usize);
    prefetch_address(first);
    prefetch_address(first.wrapping_add(64));
}

/// Asks the processor for memory that will be written: other cores give it up.
#[inline]
pub(crate) fn prefetch_for_write<T>(target: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no effect but on the caches; processors that do not know this one take it for nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) target, options(nostack, preserves_flags));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = target;
}

#[inline]
pub(crate) fn prefetch_address(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch has no effect but on the caches, whatever the address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests;
