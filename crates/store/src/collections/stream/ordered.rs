//! A map of IDs to values that grows at its end and shrinks at its
//! beginning: used for blocks of entries, and pending entries.
//!
//! It is a B+ tree of two levels: sorted chunks of up to [`CHUNK_LEN_MAX`] pairs, and the array of chunks. Pairs that
//! are added in order fill chunks completely; a sparse chunk is joined with a neighbour if both fit, so that scattered
//! removals leave no waste. Operations at both ends cost O(1), others a search of both levels and a short move.
//!
//! **Invariants**: IDs ascend within and across chunks; a chunk is empty
//! only if it is the only one, which is then kept for its capacity.

use super::id::Id;
use crate::defrag::Mover;
use crate::memory::size_class;
use std::collections::VecDeque;

/// Pairs in a chunk: a multiple of eight, so that full chunks fill a size class exactly.
const CHUNK_LEN_MAX: usize = 64;
/// A chunk with at most this many pairs after a removal is joined with a neighbour if possible.
const CHUNK_LEN_SPARSE: usize = CHUNK_LEN_MAX / 4;
/// Maximum capacity that an empty map keeps.
const EMPTY_CAPACITY_MAX: usize = 8;

/// The map. See the module documentation.
#[derive(Debug)]
pub struct Ordered<V> {
    chunks: VecDeque<Vec<(Id, V)>>,
    len: usize,
}

/// The position of a pair; valid until the map changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    chunk: usize,
    index: usize,
}

impl<V> Default for Ordered<V> {
    fn default() -> Self {
        Ordered { chunks: VecDeque::new(), len: 0 }
    }
}

impl<V: Clone> Clone for Ordered<V> {
    fn clone(&self) -> Self {
        let mut chunks = VecDeque::with_capacity(self.chunks.len());
        chunks.extend(self.chunks.iter().filter(|chunk| !chunk.is_empty()).cloned());
        Ordered { chunks, len: self.len }
    }
}

impl<V> Ordered<V> {
    /// Number of pairs.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there are no pairs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The lowest pair.
    #[inline]
    pub fn first(&self) -> Option<(Id, &V)> {
        self.chunks.front()?.first().map(|(id, value)| (*id, value))
    }

    /// The highest pair.
    #[inline]
    pub fn last(&self) -> Option<(Id, &V)> {
        self.chunks.back()?.last().map(|(id, value)| (*id, value))
    }

    /// The highest pair, for modification.
    #[inline]
    pub fn last_mut(&mut self) -> Option<(Id, &mut V)> {
        self.chunks.back_mut()?.last_mut().map(|(id, value)| (*id, value))
    }

    /// The position where `id` is or belongs, and whether it exists.
    #[inline]
    fn search(&self, id: Id) -> (Place, bool) {
        let after = self.chunks.partition_point(|chunk| chunk.first().is_some_and(|(first, _)| *first <= id));
        let chunk = after.saturating_sub(1);
        let found = self.chunks.get(chunk).map_or(Err(0), |pairs| pairs.binary_search_by(|(own, _)| own.cmp(&id)));
        let (index, exact) = match found {
            Ok(index) => (index, true),
            Err(index) => (index, false),
        };
        (Place { chunk, index }, exact)
    }

    /// The position of `id`.
    #[inline]
    pub fn find(&self, id: Id) -> Option<Place> {
        let (place, exact) = self.search(id);
        exact.then_some(place)
    }

    /// The value of `id`.
    #[inline]
    pub fn get(&self, id: Id) -> Option<&V> {
        self.find(id).and_then(|place| self.at(place)).map(|(_, value)| value)
    }

    /// The value of `id`, for modification.
    #[inline]
    pub fn get_mut(&mut self, id: Id) -> Option<&mut V> {
        let place = self.find(id)?;
        self.at_mut(place).map(|(_, value)| value)
    }

    /// The pair at a position.
    #[inline]
    pub fn at(&self, place: Place) -> Option<(Id, &V)> {
        self.chunks.get(place.chunk)?.get(place.index).map(|(id, value)| (*id, value))
    }

    /// The pair at a position, for modification.
    #[inline]
    pub fn at_mut(&mut self, place: Place) -> Option<(Id, &mut V)> {
        self.chunks.get_mut(place.chunk)?.get_mut(place.index).map(|(id, value)| (*id, value))
    }

    /// The position of the first pair.
    #[inline]
    pub fn first_place(&self) -> Place {
        Place { chunk: 0, index: 0 }
    }

    /// The position of the last pair, if any.
    #[inline]
    pub fn last_place(&self) -> Option<Place> {
        let chunk = self.chunks.len().checked_sub(1)?;
        Some(Place { chunk, index: self.chunks[chunk].len().checked_sub(1)? })
    }

    /// The position of the last pair up to `id`, if any.
    #[inline]
    pub fn last_up_to(&self, id: Id) -> Option<Place> {
        let (place, exact) = self.search(id);
        if exact {
            return Some(place);
        }
        // A chunk that begins with a higher ID is the first one.
        Some(Place { index: place.index.checked_sub(1)?, ..place })
    }

    /// The next position, where the next pair is, if any.
    #[inline]
    pub fn after(&self, place: Place) -> Place {
        if self.chunks.get(place.chunk).is_some_and(|chunk| place.index + 1 < chunk.len()) {
            Place { index: place.index + 1, ..place }
        } else {
            Place { chunk: place.chunk + 1, index: 0 }
        }
    }

    /// The previous position, if any.
    #[inline]
    pub fn before(&self, place: Place) -> Option<Place> {
        if let Some(index) = place.index.checked_sub(1) {
            return Some(Place { index, ..place });
        }
        let chunk = place.chunk.checked_sub(1)?;
        Some(Place { chunk, index: self.chunks.get(chunk)?.len().checked_sub(1)? })
    }

    /// Adds a pair; if `id` exists, returns the pair's value that
    /// was not added, and the existing value for modification.
    #[inline]
    pub fn insert(&mut self, id: Id, value: V) -> Result<(), (V, &mut V)> {
        if self.last().is_none_or(|(last, _)| last < id) {
            self.push(id, value);
            return Ok(());
        }
        let (place, exact) = self.search(id);
        if exact {
            return Err((value, &mut self.chunks[place.chunk][place.index].1));
        }
        self.insert_between(place, id, value);
        Ok(())
    }

    fn push(&mut self, id: Id, value: V) {
        if self.chunks.back().is_none_or(|chunk| chunk.len() == CHUNK_LEN_MAX) {
            if self.chunks.is_empty() {
                self.chunks.reserve_exact(1);
            }
            // A chunk that was filled once will probably be filled again.
            let capacity = if self.chunks.is_empty() { 1 } else { CHUNK_LEN_MAX };
            self.chunks.push_back(Vec::with_capacity(capacity));
        }
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.push((id, value));
            self.len += 1;
        }
    }

    fn insert_between(&mut self, place: Place, id: Id, value: V) {
        let Place { mut chunk, mut index } = place;
        if self.chunks[chunk].len() == CHUNK_LEN_MAX {
            let half = CHUNK_LEN_MAX / 2;
            let mut upper = Vec::with_capacity(CHUNK_LEN_MAX);
            upper.extend(self.chunks[chunk].drain(half..));
            self.chunks.insert(chunk + 1, upper);
            if index > half {
                (chunk, index) = (chunk + 1, index - half);
            }
        }
        self.chunks[chunk].insert(index, (id, value));
        self.len += 1;
    }

    /// Removes a pair.
    #[inline]
    pub fn remove(&mut self, id: Id) -> Option<V> {
        let place = self.find(id)?;
        let (_, value) = self.chunks[place.chunk].remove(place.index);
        self.len -= 1;
        if self.chunks[place.chunk].len() <= CHUNK_LEN_SPARSE {
            self.tidy(place.chunk);
        }
        Some(value)
    }

    /// Removes the lowest pair.
    pub fn pop_first(&mut self) -> Option<(Id, V)> {
        let (id, _) = self.first()?;
        Some((id, self.remove(id)?))
    }

    /// Restores the invariants after a removal from a chunk with few remaining pairs.
    fn tidy(&mut self, chunk: usize) {
        if self.len == 0 {
            if self.chunks.front().is_some_and(|chunk| chunk.capacity() > EMPTY_CAPACITY_MAX) {
                self.chunks = VecDeque::new();
            }
            return;
        }
        if self.chunks[chunk].is_empty() {
            self.chunks.remove(chunk);
            if self.chunks.len() < self.chunks.capacity() / 4 {
                self.chunks.shrink_to(self.chunks.len() * 2);
            }
            return;
        }
        for lower in [Some(chunk), chunk.checked_sub(1)].into_iter().flatten() {
            let together: usize = self.chunks.range(lower..).take(2).map(Vec::len).sum();
            // Leaves some room in the joined chunk, so that the next insertion does not split it again.
            if together <= CHUNK_LEN_MAX / 2
                && let Some(mut pairs) = self.chunks.remove(lower + 1)
            {
                self.chunks[lower].append(&mut pairs);
                return;
            }
        }
    }

    /// All pairs, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Id, &V)> {
        self.chunks.iter().flatten().map(|(id, value)| (*id, value))
    }

    /// All values, in order, for modification.
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.chunks.iter_mut().flatten().map(|(_, value)| value)
    }

    /// The pairs from `id` on.
    pub fn iter_from(&self, id: Id) -> impl Iterator<Item = (Id, &V)> {
        let (place, _) = self.search(id);
        let rest = self.chunks.range(place.chunk.min(self.chunks.len())..).flatten();
        rest.skip(place.index).map(|(id, value)| (*id, value))
    }

    /// Offers the chunks to a mover, from number `first` on, and calls `relocate` to offer
    /// the values' allocations, until the mover is due. Returns the number to continue from.
    pub fn relocate(
        &mut self,
        first: usize,
        mover: &mut Mover<'_>,
        mut relocate: impl FnMut(&mut Mover<'_>, &mut V),
    ) -> Option<usize> {
        if first == 0 {
            mover.offer_ring(&mut self.chunks);
        }
        for (number, chunk) in self.chunks.iter_mut().enumerate().skip(first) {
            if mover.is_due() && number > first {
                return Some(number);
            }
            mover.offer_vec(chunk);
            chunk.iter_mut().for_each(|(_, value)| relocate(mover, value));
        }
        None
    }

    /// Bytes of memory, without what the values themselves point to.
    pub fn memory(&self) -> usize {
        let pair = size_of::<(Id, V)>();
        let row = self.chunks.capacity() * size_of::<Vec<(Id, V)>>();
        let allocation = |bytes: usize| if bytes == 0 { 0 } else { size_class(bytes) };
        allocation(row) + self.chunks.iter().map(|chunk| allocation(chunk.capacity() * pair)).sum::<usize>()
    }

    /// Number of allocations.
    pub fn allocations(&self) -> usize {
        self.chunks.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn check(map: &Ordered<u32>, model: &BTreeMap<Id, u32>) {
        assert_eq!(map.len(), model.len());
        assert!(map.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK_LEN_MAX) || map.len == 0);
        assert!(map.iter().map(|(id, value)| (id, *value)).eq(model.iter().map(|(id, value)| (*id, *value))));
        assert_eq!(map.first().map(|(id, _)| id), model.keys().next().copied());
        assert_eq!(map.last().map(|(id, _)| id), model.keys().next_back().copied());
    }

    proptest! {
        #[test]
        fn behaves_as_a_sorted_map(operations in prop::collection::vec((0u8..8, 0u64..400, any::<u32>()), 1..1200)) {
            let (mut map, mut model, mut end) = (Ordered::default(), BTreeMap::new(), 400);
            for (operation, ms, value) in operations {
                let id = Id::new(ms, ms % 3);
                match operation {
                    0..3 => {
                        end += 1;
                        prop_assert!(map.insert(Id::new(end, 0), value).is_ok());
                        model.insert(Id::new(end, 0), value);
                    }
                    3 => match map.insert(id, value) {
                        Ok(()) => prop_assert_eq!(model.insert(id, value), None),
                        Err((given, present)) => {
                            *present = given;
                            prop_assert!(model.insert(id, value).is_some());
                        }
                    },
                    4 => prop_assert_eq!(map.remove(id), model.remove(&id)),
                    5 => prop_assert_eq!(map.pop_first(), model.pop_first()),
                    6 => {
                        let up_to = map.last_up_to(id).and_then(|place| map.at(place)).map(|(id, _)| id);
                        prop_assert_eq!(up_to, model.range(..=id).next_back().map(|(id, _)| *id));
                    }
                    _ => {
                        let own = map.iter_from(id).map(|(id, _)| id);
                        prop_assert!(own.eq(model.range(id..).map(|(id, _)| *id)));
                    }
                }
            }
            check(&map, &model);
            check(&map.clone(), &model);
            let (mut place, mut backwards) = (map.last_place(), Vec::new());
            while let Some(at) = place {
                backwards.extend(map.at(at).map(|(id, _)| id));
                place = map.before(at);
            }
            prop_assert!(backwards.into_iter().eq(model.keys().rev().copied()));
        }
    }

    #[test]
    fn scattered_removal_leaves_no_waste() {
        let mut map = Ordered::default();
        for ms in 0..10_000 {
            assert!(map.insert(Id::new(ms, 0), ()).is_ok());
        }
        let full = map.memory();
        for ms in (0..10_000).filter(|ms| ms % 20 != 0) {
            assert!(map.remove(Id::new(ms, 0)).is_some());
        }
        assert!(map.memory() < full / 4, "{} of {full}", map.memory());
        for ms in (0..10_000).filter(|ms| ms % 20 == 0) {
            assert!(map.remove(Id::new(ms, 0)).is_some());
        }
        assert_eq!(map.memory(), 0);
    }

    #[test]
    fn refilled_map_stays_small() {
        let mut map = Ordered::default();
        assert!(map.insert(Id::new(1, 0), ()).is_ok());
        let memory = map.memory();
        for ms in 2..100 {
            assert!(map.remove(Id::new(ms - 1, 0)).is_some());
            assert_eq!((map.first(), map.last_place(), map.last_up_to(Id::MAX)), (None, None, None));
            assert!(map.insert(Id::new(ms, 0), ()).is_ok());
            assert_eq!(map.memory(), memory);
        }
    }
}
