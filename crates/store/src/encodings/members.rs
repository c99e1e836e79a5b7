//! The members of large collections, found by name: a [`Table`] that owns its elements.
//!
//! Sets, hashes and sorted sets store different data with each member, so an element is one allocation
//! in a [`Layout`] of its type. This module uses only the name, and operations of the layout to free and
//! copy elements. Names are hashed with the process-wide hasher of elements ([`crate::hash::elements`]).
//!
//! An unsuccessful search returns the hash ([`Vacant`]), so that adding the name does not hash it again.
//! Each element has one flag (hashes flag fields with an expiry), which can be counted and scanned for.
//!
//! A snapshot captures large collections [in pieces](Gradual), one segment of the
//! table at a time: before an element is changed, added or removed, its segment is
//! captured. Elements may change in place only after [`Members::before_change`].
//!
//! # Safety
//!
//! Every pointer in the table is that of an element of layout `L` that the table
//! owns: `unsafe` functions pass ownership of elements to it, and `remove` and
//! `replace` return ownership to the caller. All other functions only borrow.

use super::element;
use crate::defrag::Mover;
use crate::hash::elements;
use crate::memory::WEIGHED;
use crate::snapshot::pieces::{Captures, Gradual, Piece, Pieces};
use crate::table::{Iter, Place, Pointer, Table};
use std::marker::PhantomData;
use std::sync::Arc;

/// The memory layout of the elements of a collection.
///
/// # Safety
/// The name of an element must not change while the element is in a table. An element must be one allocation,
/// made by [`element::allocate`] with the size that `size` returns, and must contain no pointers.
pub unsafe trait Layout: Send + 'static {
    /// The name that an element is found by.
    ///
    /// # Safety
    /// The pointer must be that of an element of this layout that lives, with its name unchanged, during `'a`.
    unsafe fn name<'a>(pointer: Pointer) -> &'a [u8];

    /// Bytes of memory of an element, rounded up to the allocator's size class.
    ///
    /// # Safety
    /// The pointer must be that of an element of this layout.
    unsafe fn size(pointer: Pointer) -> usize;

    /// Frees an element.
    ///
    /// # Safety
    /// The pointer must be that of an element of this layout, which is not used afterwards.
    unsafe fn free(pointer: Pointer);

    /// A copy of an element.
    ///
    /// # Safety
    /// The pointer must be that of an element of this layout.
    unsafe fn copy(pointer: Pointer) -> Pointer;

    /// The element in the form that snapshots take.
    ///
    /// # Safety
    /// As for `name`, and the whole element must not change.
    unsafe fn piece<'a>(pointer: Pointer) -> Piece<'a>;
}

/// The hash of a name that was not found, for [`Members::insert_at`].
#[derive(Clone, Copy, Debug)]
pub struct Vacant(u64);

/// The members of a collection. See the module documentation.
pub struct Members<L: Layout> {
    table: Table,
    /// Present while a snapshot captures the members. Otherwise, all segments of the table are marked.
    capture: Option<Box<Capture>>,
    layout: PhantomData<L>,
}

/// A running capture of the members: marked segments are captured.
struct Capture {
    pieces: Pieces,
    /// The segment at which the search for the next one begins.
    next: usize,
}

/// Collections with at least this many members are captured in pieces.
const GRADUAL_MIN: usize = 2048;

impl<L: Layout> Default for Members<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L: Layout> Members<L> {
    /// An empty collection; allocates nothing.
    pub const fn new() -> Self {
        Members { table: Table::new(), capture: None, layout: PhantomData }
    }

    /// The table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Offers the elements and the table to a mover, from `position` in the table on: see [`Table::relocate`].
    pub fn relocate(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
        self.table.relocate(position, mover, |mover, pointer| {
            // SAFETY: the table owns its elements, of this layout, and takes the new pointer.
            unsafe { mover.offer(pointer, element::layout(L::size(pointer))) }
        })
    }

    /// Offers only the table.
    pub fn relocate_table(&mut self, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
        self.table.relocate(position, mover, |_, pointer| pointer)
    }

    /// Offers an element, whose address the caller updates in other places, and returns its new address.
    ///
    /// # Safety
    /// The element must be in this table.
    pub unsafe fn relocate_element(&mut self, pointer: Pointer, mover: &mut Mover<'_>) -> Pointer {
        // SAFETY: an element of this table, of this layout; its address in the table is replaced.
        unsafe {
            let hash = elements().hash(L::name(pointer));
            let Some(place) = self.table.find(hash, |other| other == pointer) else { return pointer };
            let now = mover.offer(pointer, element::layout(L::size(pointer)));
            self.table.relocated(place, now);
            now
        }
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// True when there are no elements.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Number of elements whose flag is set.
    #[inline]
    pub fn flagged(&self) -> usize {
        self.table.flagged()
    }

    /// The place of the element with this name, or the hash needed to add it.
    #[inline]
    pub fn find_place(&self, name: &[u8]) -> Result<Place, Vacant> {
        let hash = elements().hash(name);
        // SAFETY: pointers in the table are those of elements of this layout.
        self.table.find(hash, |pointer| unsafe { L::name(pointer) } == name).ok_or(Vacant(hash))
    }

    /// The element with this name.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<Pointer> {
        self.find_place(name).ok().map(|place| self.table.get(place))
    }

    /// Whether an element with this name exists.
    #[inline]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.find_place(name).is_ok()
    }

    /// The element at a place.
    #[inline]
    pub fn get(&self, place: Place) -> Pointer {
        self.table.get(place)
    }

    /// Prefetches the first memory that a search for a name will access.
    #[inline]
    pub fn prefetch(&self, name: &[u8]) {
        self.table.prefetch_bucket(elements().hash(name));
    }

    /// Adds an element whose name was looked up and not found.
    ///
    /// # Safety
    /// `pointer` must be that of an element of layout `L`, whose ownership is passed. `vacant`
    /// must have been returned for its name, and the members must not have changed since.
    #[inline]
    pub unsafe fn insert_at(&mut self, vacant: Vacant, pointer: Pointer, flag: bool) {
        if self.capture.is_some() {
            self.capture_around(vacant.0);
        }
        // SAFETY: pointers in the table are those of elements of this layout.
        self.table.insert(vacant.0, pointer, flag, |other| elements().hash(unsafe { L::name(other) }));
    }

    /// Adds an element whose name is known to be absent.
    ///
    /// # Safety
    /// `pointer` must be that of an element of layout `L`, whose name is absent and whose ownership is passed.
    pub unsafe fn insert_new(&mut self, pointer: Pointer, flag: bool) {
        // SAFETY: promised by the caller.
        unsafe { self.insert_at(Vacant(elements().hash(L::name(pointer))), pointer, flag) }
    }

    /// Replaces the element at a place by another with the same name, or
    /// by itself, and sets its flag. Returns ownership of the old one.
    ///
    /// # Safety
    /// `pointer` must be that of an element of layout `L` with the name of the
    /// existing one (or that element itself), and its ownership is passed.
    #[inline]
    pub unsafe fn replace(&mut self, place: Place, pointer: Pointer, flag: bool) -> Pointer {
        self.before_change(place);
        let before = self.table.get(place);
        self.table.replace(place, pointer, flag);
        before
    }

    /// Must be called before the element at a place changes in place.
    #[inline]
    pub fn before_change(&mut self, place: Place) {
        if self.capture.is_some() {
            self.capture_at(place);
        }
    }

    #[cold]
    fn capture_at(&mut self, place: Place) {
        if let Some(capture) = &mut self.capture {
            // SAFETY: pointers in the table are those of elements of this layout.
            self.table.mark_at(place, |pointer| capture.pieces.take(unsafe { L::piece(pointer) }));
        }
    }

    #[cold]
    fn capture_around(&mut self, hash: u64) {
        if let Some(capture) = &mut self.capture {
            // SAFETY: as above.
            self.table.mark_around(hash, |pointer| capture.pieces.take(unsafe { L::piece(pointer) }));
        }
    }

    /// Returns itself if it is large enough to be captured in pieces, or is being captured.
    pub fn gradual(&mut self) -> Option<&mut dyn Gradual> {
        if self.len() >= GRADUAL_MIN || self.capture.is_some() { Some(self) } else { None }
    }

    /// Removes the element with this name and returns its ownership.
    #[inline]
    pub fn remove(&mut self, name: &[u8]) -> Option<Pointer> {
        self.find_place(name).ok().map(|place| self.remove_at(place))
    }

    /// Removes the element at a place and returns its ownership.
    #[inline]
    pub fn remove_at(&mut self, place: Place) -> Pointer {
        self.before_change(place);
        self.table.remove(place)
    }

    /// All elements, in no particular order.
    #[inline]
    pub fn iter(&self) -> Iter<'_> {
        self.table.iter()
    }

    /// Visits a bucket of elements and their flags: see [`Table::scan`].
    pub fn scan(&self, position: u64, visit: impl FnMut(Pointer, bool)) -> Option<u64> {
        self.table.scan(position, visit)
    }

    /// Visits flagged elements in up to `buckets` buckets: see [`Table::scan_flagged`].
    pub fn scan_flagged(&self, position: u64, buckets: usize, visit: impl FnMut(Pointer)) -> Option<u64> {
        self.table.scan_flagged(position, buckets, visit)
    }

    /// One call of a command of the SCAN family: visits `count` or slightly more
    /// elements, and returns the next cursor; cursor 0 starts and ends a scan.
    pub fn scan_some(&self, cursor: u64, count: usize, mut visit: impl FnMut(Pointer)) -> u64 {
        let (mut position, mut seen) = (cursor << CURSOR_SHIFT, 0);
        // If many buckets are empty, a call returns fewer elements rather than taking long.
        for _ in 0..=count.saturating_mul(10) {
            let next = self.table.scan(position, |pointer, _| {
                seen += 1;
                visit(pointer);
            });
            let Some(next) = next else { return 0 };
            position = next;
            if seen >= count {
                break;
            }
        }
        position >> CURSOR_SHIFT
    }

    /// An element chosen uniformly at random; `random` returns 64-bit random numbers.
    #[inline]
    pub fn random(&self, random: impl FnMut() -> u64) -> Option<Pointer> {
        self.table.random(random)
    }

    /// The place of an element chosen uniformly at random.
    #[inline]
    pub fn random_place(&self, random: impl FnMut() -> u64) -> Option<Place> {
        self.table.random_place(random)
    }

    /// Bytes of memory of the elements and their table, estimated from `samples` elements; 0 counts all.
    pub fn memory(&self, samples: usize) -> usize {
        let samples = if samples == 0 { self.len() } else { samples.min(self.len()) };
        // SAFETY: pointers in the table are those of elements of this layout.
        let sampled: usize = self.iter().take(samples).map(|pointer| unsafe { L::size(pointer) }).sum();
        let elements = sampled as f64 / samples.max(1) as f64 * self.len() as f64;
        self.table.memory() + elements as usize
    }
}

/// Collects members that are loaded one after the other and must be distinct, as in a dump.
///
/// They are inserted in batches, so that uncached memory can be prefetched. The expected number
/// is not trusted: room is reserved for at most a few times as many as were added so far.
pub struct Gathering<L: Layout> {
    members: Members<L>,
    waiting: Vec<Waiting>,
    claimed: usize,
    twice: bool,
}

struct Waiting {
    hash: u64,
    pointer: Pointer,
    flag: bool,
}

/// Maximum number of elements in a batch.
const WAITING_MAX: usize = 1 << 18;
/// Room is reserved for at most this many times the current number of elements.
const CLAIM_RATIO_MAX: usize = 4;

impl<L: Layout> Gathering<L> {
    /// An empty collection for `claimed` elements, a number that need not be correct.
    pub fn new(claimed: usize) -> Self {
        Gathering { members: Members::new(), waiting: Vec::with_capacity(claimed.min(1024)), claimed, twice: false }
    }

    /// Adds an element.
    ///
    /// # Safety
    /// `pointer` must be that of an element of layout `L`, whose ownership is
    /// passed, and which is neither changed nor freed before [`Gathering::finish`].
    #[inline]
    pub unsafe fn add(&mut self, pointer: Pointer, flag: bool) {
        // SAFETY: promised by the caller.
        let hash = elements().hash(unsafe { L::name(pointer) });
        self.waiting.push(Waiting { hash, pointer, flag });
        if self.waiting.len() == WAITING_MAX {
            self.place();
        }
    }

    /// The members; `None` if two had the same name.
    pub fn finish(mut self) -> Option<Members<L>> {
        self.place();
        (!self.twice).then(|| std::mem::take(&mut self.members))
    }

    #[cold]
    #[inline(never)]
    fn place(&mut self) {
        const AHEAD: usize = 12;
        let table = &mut self.members.table;
        table.reserve(self.claimed.min(CLAIM_RATIO_MAX * self.waiting.len()));
        for (number, Waiting { hash, pointer, flag }) in self.waiting.iter().enumerate() {
            if let Some(ahead) = self.waiting.get(number + AHEAD) {
                table.prefetch_bucket(ahead.hash);
            }
            // SAFETY: pointers in the table, and waiting ones, are those of elements
            // of this layout. A duplicate is freed here, and not used afterwards.
            unsafe {
                let name = L::name(*pointer);
                if table.find(*hash, |other| L::name(other) == name).is_some() {
                    self.twice = true;
                    L::free(*pointer);
                } else {
                    table.insert(*hash, *pointer, *flag, |other| elements().hash(L::name(other)));
                }
            }
        }
        self.waiting.clear();
    }
}

impl<L: Layout> Drop for Gathering<L> {
    fn drop(&mut self) {
        // SAFETY: the waiting elements are owned, and not in the table.
        self.waiting.iter().for_each(|waiting| unsafe { L::free(waiting.pointer) });
    }
}

/// A cursor is a position in the hash space without its last bits, which are always zero, so it stays below 2^48.
const CURSOR_SHIFT: u32 = 16;

impl<L: Layout> Clone for Members<L> {
    fn clone(&self) -> Self {
        // SAFETY: pointers in the table are those of elements of this layout.
        let table = self.table.copy_with(|pointer| unsafe { L::copy(pointer) });
        Members { table, capture: None, layout: PhantomData }
    }
}

impl<L: Layout> Gradual for Members<L> {
    fn captures(&self) -> Option<&Arc<Captures>> {
        self.capture.as_ref().map(|capture| capture.pieces.captures())
    }

    fn begin(&mut self, pieces: Pieces) {
        debug_assert!(self.capture.is_none());
        self.table.unmark();
        self.capture = Some(Box::new(Capture { pieces, next: 0 }));
    }

    fn capture_next(&mut self) -> bool {
        let Some(capture) = &mut self.capture else { return false };
        let Capture { pieces, next } = &mut **capture;
        if pieces.captures().is_cancelled() {
            self.table.mark_all();
        // SAFETY: pointers in the table are those of elements of this layout.
        } else if self.table.mark_next(next, |pointer| pieces.take(unsafe { L::piece(pointer) })) {
            pieces.flush();
            return true;
        }
        if let Some(capture) = self.capture.take() {
            capture.pieces.end();
        }
        false
    }

    fn weight(&self) -> usize {
        self.memory(WEIGHED)
    }
}

impl<L: Layout> Drop for Members<L> {
    fn drop(&mut self) {
        if let Some(capture) = self.capture.take() {
            // The snapshot captures the rest and drops it.
            let captures = capture.pieces.captures().clone();
            let table = std::mem::take(&mut self.table);
            captures.keep_remainder(Box::new(Members::<L> { table, capture: Some(capture), layout: PhantomData }));
            return;
        }
        // SAFETY: the table owns its elements, and is dropped with them.
        self.table.for_each(|pointer| unsafe { L::free(pointer) });
    }
}

#[cfg(test)]
mod tests {
    use super::super::element::{Plain, create};
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    type Names = Members<Plain>;

    fn name(pointer: &Pointer) -> &[u8] {
        // SAFETY: all elements of these tests are plain ones; tests free them last.
        unsafe { Plain::name(*pointer) }
    }

    /// Adds a name with a flag, or sets its flag; returns whether it was new.
    fn add(members: &mut Names, name: &[u8], flag: bool) -> bool {
        match members.find_place(name) {
            // SAFETY: the new elements have this name, and removed ones are freed once.
            Ok(place) => unsafe {
                let old = members.replace(place, create(name), flag);
                Plain::free(old);
                false
            },
            Err(vacant) => {
                // SAFETY: as above.
                unsafe { members.insert_at(vacant, create(name), flag) };
                true
            }
        }
    }

    fn remove(members: &mut Names, name: &[u8]) -> bool {
        // SAFETY: the caller owns a removed element.
        members.remove(name).map(|pointer| unsafe { Plain::free(pointer) }).is_some()
    }

    fn numbered(n: u32) -> Vec<u8> {
        format!("member:{n}").into_bytes()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u32, bool),
        Remove(u32),
        /// Adds or removes a run of names.
        AddMany(u32, u32),
        RemoveMany(u32, u32),
        Clone,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            10 => (0..3000u32, any::<bool>()).prop_map(|(n, flag)| Step::Add(n, flag)),
            10 => (0..3000u32).prop_map(Step::Remove),
            1 => (0..3000u32, 0..2000u32).prop_map(|(from, count)| Step::AddMany(from, count)),
            1 => (0..3000u32, 0..2000u32).prop_map(|(from, count)| Step::RemoveMany(from, count)),
            1 => Just(Step::Clone),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 60 }))]

        #[test]
        fn behaves_as_map(steps in prop::collection::vec(step(), 1..200)) {
            let (mut members, mut model) = (Names::new(), HashMap::<Vec<u8>, bool>::new());
            for step in steps {
                match step {
                    Step::Add(n, flag) => {
                        let new = model.insert(numbered(n), flag).is_none();
                        prop_assert_eq!(add(&mut members, &numbered(n), flag), new);
                    }
                    Step::Remove(n) => {
                        let there = model.remove(&numbered(n)).is_some();
                        prop_assert_eq!(remove(&mut members, &numbered(n)), there);
                    }
                    Step::AddMany(from, count) => (from..from + count).map(numbered).for_each(|name| {
                        add(&mut members, &name, false);
                        model.insert(name, false);
                    }),
                    Step::RemoveMany(from, count) => (from..from + count).map(numbered).for_each(|name| {
                        remove(&mut members, &name);
                        model.remove(&name);
                    }),
                    Step::Clone => members = members.clone(),
                }
                prop_assert_eq!(members.len(), model.len());
                prop_assert_eq!(members.flagged(), model.values().filter(|flag| **flag).count());
            }
            prop_assert!(model.keys().all(|key| members.find(key).is_some_and(|pointer| name(&pointer) == key)));
            let listed: HashSet<Vec<u8>> = members.iter().map(|pointer| name(&pointer).to_vec()).collect();
            prop_assert_eq!(listed, model.into_keys().collect::<HashSet<_>>());
        }

        #[test]
        fn scan_lists_all_stable_elements_during_changes(
            stable in 1..600u32,
            at_start in 0..6000u32,
            count in 1..50usize,
            batches in prop::collection::vec(any::<(bool, u16)>(), 1..100),
        ) {
            let mut members = Names::new();
            (0..stable + at_start).for_each(|n| assert!(add(&mut members, &numbered(n), false)));
            let (mut cursor, mut seen, mut end) = (0, HashSet::new(), stable + at_start);
            let mut batches = batches.into_iter().cycle();
            for _ in 0..100_000 {
                cursor = members.scan_some(cursor, count, |pointer| {
                    seen.insert(name(&pointer).to_vec());
                });
                if cursor == 0 {
                    break;
                }
                prop_assert!(cursor < 1 << 48);
                let (grow, by) = batches.next().unwrap_or_default();
                for _ in 0..by % 300 {
                    if grow && end < 20_000 {
                        add(&mut members, &numbered(end), false);
                        end += 1;
                    } else if !grow && end > stable {
                        end -= 1;
                        remove(&mut members, &numbered(end));
                    }
                }
            }
            prop_assert_eq!(cursor, 0);
            prop_assert!((0..stable).all(|n| seen.contains(&numbered(n))));
        }
    }

    #[test]
    fn gathering_collects_added_fields_and_detects_duplicates() {
        let gather = |count: u32, claimed: usize, again: Option<u32>| {
            let mut gathering = Gathering::<Plain>::new(claimed);
            // SAFETY: new elements, whose ownership is passed.
            (0..count).chain(again).for_each(|n| unsafe { gathering.add(create(&numbered(n)), n % 7 == 0) });
            gathering.finish()
        };
        let sizes: &[u32] = if cfg!(miri) { &[0, 9, 300] } else { &[0, 1, 8, 9, 813, 5000, 300_000] };
        for count in sizes.iter().copied() {
            for claimed in [0, count as usize, usize::MAX] {
                let members = gather(count, claimed, None).expect("all are different");
                assert_eq!(members.len(), count as usize);
                assert_eq!(members.flagged(), count.div_ceil(7) as usize);
                assert!((0..count).all(|n| members.contains(&numbered(n))) && !members.contains(&numbered(count)));
                let slack = if claimed == usize::MAX { CLAIM_RATIO_MAX } else { 1 };
                assert!(members.table.memory() <= 256 + 16 * slack * count.max(8) as usize);
            }
            if count > 0 {
                assert!(gather(count, count as usize, Some(count / 2)).is_none());
            }
        }
        // An unfinished collection frees its elements.
        let mut gathering = Gathering::<Plain>::new(3);
        // SAFETY: as above.
        unsafe { gathering.add(create(b"x"), false) };
    }

    #[test]
    fn scan_without_changes_lists_each_element_once_near_the_count() {
        let mut members = Names::new();
        assert_eq!(members.scan_some(0, 10, |_| panic!("nothing is there")), 0);
        (0..5000).for_each(|n| assert!(add(&mut members, &numbered(n), n % 7 == 0)));
        let (mut cursor, mut seen) = (0, Vec::new());
        loop {
            let before = seen.len();
            cursor = members.scan_some(cursor, 10, |pointer| seen.push(name(&pointer).to_vec()));
            if cursor == 0 {
                break;
            }
            assert!((10..40).contains(&(seen.len() - before)));
        }
        assert_eq!(seen.len(), 5000);
        assert_eq!(seen.into_iter().collect::<HashSet<_>>().len(), 5000);
        assert_eq!(members.scan_some(0, usize::MAX, |_| ()), 0);
        let mut flagged = 0;
        assert_eq!(members.scan_flagged(0, usize::MAX, |_| flagged += 1), None);
        assert_eq!(flagged, members.flagged());
    }

    #[test]
    fn arbitrary_cursors_are_accepted() {
        let mut members = Names::new();
        (0..3000).for_each(|n| assert!(add(&mut members, &numbered(n), false)));
        for cursor in [1, 2, 12345, (1 << 48) - 1, 1 << 48, u64::MAX, u64::MAX >> 1, 0x1234_5678_9abc_def0] {
            members.scan_some(cursor, 5, |_| ());
        }
    }

    #[test]
    fn memory_counts_the_table_and_the_elements() {
        let mut members = Names::new();
        (0..10_000).for_each(|n| assert!(add(&mut members, format!("member:{n:012}").as_bytes(), false)));
        let (estimated, counted) = (members.memory(5), members.memory(0));
        assert_eq!(estimated, counted);
        let each = counted as f64 / 10_000.0;
        assert!((32.0..36.0).contains(&each), "{each}");
        assert_eq!(Names::new().memory(0), 0);
    }

    #[test]
    fn random_members_are_members() {
        let mut members = Names::new();
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            seed ^ seed >> 31
        };
        (0..300).for_each(|n| assert!(add(&mut members, &numbered(n), false)));
        for left in (0..300).rev() {
            let place = members.random_place(&mut random).expect("not empty");
            let pointer = members.remove_at(place);
            assert!(!members.contains(name(&pointer)) && members.len() == left);
            // SAFETY: removed just now.
            unsafe { Plain::free(pointer) };
        }
        assert!(members.random(random).is_none());
    }
}
