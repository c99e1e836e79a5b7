//! Consumer groups: how far a group has read, its consumers, and
//! the entries that were delivered and not yet acknowledged.
//!
//! A pending entry is one record in the group's list, ordered by ID, which refers to
//! its consumer; the consumer's own list contains only the ID. **Invariant**: an ID
//! is in a consumer's list if and only if the group's record refers to that consumer.

use super::id::Id;
use super::ordered::Ordered;
use crate::defrag::Mover;
use crate::memory::size_class;
use std::sync::atomic::{AtomicI64, Ordering};

/// Identifies a consumer of a group in pending entries. Valid until the consumer is deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConsumerId(u32);

/// The consumer of loaded entries whose consumer has not been loaded yet.
const NO_OWNER: ConsumerId = ConsumerId(u32::MAX);

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pending {
    /// Unix time in milliseconds of the last delivery.
    pub delivered_ms: i64,
    /// Number of deliveries.
    pub deliveries: u64,
    consumer: ConsumerId,
}

impl Pending {
    /// The consumer that it was delivered to.
    #[inline]
    pub fn consumer(&self) -> ConsumerId {
        self.consumer
    }
}

/// A consumer of a group.
#[derive(Debug)]
pub struct Consumer {
    name: Box<[u8]>,
    /// Changed only under the keyspace's locks, even through a shared reference.
    seen_ms: AtomicI64,
    /// Unix time in milliseconds at which it last received an entry; -1 for never.
    pub active_ms: i64,
    pending: Ordered<()>,
}

impl Consumer {
    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Unix time in milliseconds of its last request.
    pub fn seen_ms(&self) -> i64 {
        self.seen_ms.load(Ordering::Relaxed)
    }

    /// Records a request.
    #[inline]
    pub fn see(&self, now_ms: i64) {
        self.seen_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Number of its pending entries.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }
}

impl Clone for Consumer {
    fn clone(&self) -> Self {
        Consumer {
            name: self.name.clone(),
            seen_ms: AtomicI64::new(self.seen_ms()),
            active_ms: self.active_ms,
            pending: self.pending.clone(),
        }
    }
}

/// A position in the groups' memory, for defragmentation.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct RelocatePosition {
    group: usize,
    /// 0 for the group's pending entries, then its consumers.
    part: usize,
    /// A chunk of pending entries.
    chunk: usize,
}

impl RelocatePosition {
    const PART_BITS: u32 = 20;
    const CHUNK_BITS: u32 = 27;

    /// The position packed into 62 bits; `None` if it does not fit.
    pub fn pack(self) -> Option<u64> {
        let group = (self.group as u64) << Self::PART_BITS | self.part as u64;
        let packed = group << Self::CHUNK_BITS | self.chunk as u64;
        (RelocatePosition::unpack(packed) == self).then_some(packed)
    }

    /// The position from its packed form.
    pub fn unpack(packed: u64) -> RelocatePosition {
        let bits = |shift: u32, bits: u32| (packed >> shift & ((1 << bits) - 1)) as usize;
        RelocatePosition {
            group: bits(Self::PART_BITS + Self::CHUNK_BITS, 62 - Self::PART_BITS - Self::CHUNK_BITS),
            part: bits(Self::CHUNK_BITS, Self::PART_BITS),
            chunk: bits(0, Self::CHUNK_BITS),
        }
    }
}

/// An inconsistency in a loaded group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BadGroup {
    /// Two consumers have the same name.
    ConsumerTwice,
    /// An entry is pending twice.
    PendingTwice,
    /// A consumer has an entry that is not pending in its group.
    NotPending,
    /// A pending entry is assigned to a consumer twice.
    OwnedTwice,
    /// A pending entry is assigned to two consumers.
    OwnedByAnother,
    /// A pending entry has no consumer.
    NotOwned,
}

/// A consumer group.
#[derive(Clone, Debug)]
pub struct Group {
    name: Box<[u8]>,
    /// The last ID that was delivered.
    pub last_id: Id,
    /// Number of entries that were read, counted from the stream's first; `None` if unknown.
    pub entries_read: Option<u64>,
    pending: Ordered<Pending>,
    /// The consumers, indexed by `ConsumerId`, with gaps where consumers were deleted.
    consumers: Vec<Option<Box<Consumer>>>,
    /// The consumers in order of their names.
    by_name: Vec<ConsumerId>,
}

impl Group {
    fn new(name: &[u8], last_id: Id, entries_read: Option<u64>) -> Group {
        let pending = Ordered::default();
        Group { name: name.into(), last_id, entries_read, pending, consumers: Vec::new(), by_name: Vec::new() }
    }

    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Its pending entries.
    pub fn pending(&self) -> &Ordered<Pending> {
        &self.pending
    }

    /// The pending entry with this ID.
    pub fn pending_mut(&mut self, id: Id) -> Option<&mut Pending> {
        self.pending.get_mut(id)
    }

    /// Delivers an entry: it becomes pending for `consumer` with one delivery, whatever its previous state.
    #[inline]
    pub fn deliver(&mut self, id: Id, consumer: ConsumerId, now_ms: i64) {
        let fresh = Pending { delivered_ms: now_ms, deliveries: 1, consumer };
        if let Err((fresh, present)) = self.pending.insert(id, fresh) {
            let before = std::mem::replace(present, fresh).consumer;
            if before != consumer {
                self.remove_from_owner(id, before);
                self.own(id, consumer);
            }
        } else {
            self.own(id, consumer);
        }
        if let Some(consumer) = self.consumer_mut(consumer) {
            consumer.active_ms = now_ms;
        }
    }

    /// Assigns a pending entry to `consumer`.
    pub fn assign(&mut self, id: Id, consumer: ConsumerId) {
        let Some(pending) = self.pending.get_mut(id) else { return };
        let before = std::mem::replace(&mut pending.consumer, consumer);
        if before != consumer {
            self.remove_from_owner(id, before);
            self.own(id, consumer);
        }
    }

    /// Removes a pending entry; returns false if there was none.
    #[inline]
    pub fn forget(&mut self, id: Id) -> bool {
        let Some(pending) = self.pending.remove(id) else { return false };
        self.remove_from_owner(id, pending.consumer);
        true
    }

    #[inline]
    fn own(&mut self, id: Id, consumer: ConsumerId) {
        if let Some(consumer) = self.consumer_mut(consumer) {
            let _added = consumer.pending.insert(id, ());
            debug_assert!(_added.is_ok(), "an entry has one consumer");
        }
    }

    #[inline]
    fn remove_from_owner(&mut self, id: Id, consumer: ConsumerId) {
        if let Some(consumer) = self.consumer_mut(consumer) {
            consumer.pending.remove(id);
        }
    }

    /// The consumers, in order of their names.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = &Consumer> {
        self.by_name.iter().map(|id| self.consumer(*id))
    }

    /// A consumer's pending entries, in order of their IDs, from `from` on.
    pub fn pending_of<'a>(&'a self, consumer: &'a Consumer, from: Id) -> impl Iterator<Item = (Id, &'a Pending)> {
        consumer.pending.iter_from(from).filter_map(|(id, ())| Some((id, self.pending.get(id)?)))
    }

    /// The next pending entry of a consumer from `from` on.
    pub fn next_pending_of(&self, consumer: ConsumerId, from: Id) -> Option<Id> {
        self.consumer(consumer).pending.iter_from(from).next().map(|(id, ())| id)
    }

    /// A consumer.
    ///
    /// # Panics
    /// If it was deleted, or belongs to another group.
    #[inline]
    pub fn consumer(&self, id: ConsumerId) -> &Consumer {
        let consumer = self.consumers.get(id.0 as usize).and_then(Option::as_deref);
        consumer.unwrap_or_else(|| unreachable!("consumers that are named are there"))
    }

    #[inline]
    fn consumer_mut(&mut self, id: ConsumerId) -> Option<&mut Consumer> {
        self.consumers.get_mut(id.0 as usize)?.as_deref_mut()
    }

    fn find_name(&self, name: &[u8]) -> Result<usize, usize> {
        self.by_name.binary_search_by(|id| (*self.consumer(*id).name).cmp(name))
    }

    /// The consumer with this name.
    #[inline]
    pub fn find_consumer(&self, name: &[u8]) -> Option<ConsumerId> {
        self.find_name(name).ok().map(|index| self.by_name[index])
    }

    /// Creates a consumer, seen now and never active; `None` if the name exists.
    pub fn create_consumer(&mut self, name: &[u8], now_ms: i64) -> Option<ConsumerId> {
        let index = self.find_name(name).err()?;
        let gap = if self.by_name.len() == self.consumers.len() {
            self.consumers.push(None);
            self.consumers.len() - 1
        } else {
            self.consumers.iter().position(Option::is_none)?
        };
        let id = ConsumerId(gap as u32);
        self.consumers[gap] = Some(Box::new(Consumer {
            name: name.into(),
            seen_ms: AtomicI64::new(now_ms),
            active_ms: -1,
            pending: Ordered::default(),
        }));
        self.by_name.insert(index, id);
        Some(id)
    }

    /// Records a delivery to a consumer.
    pub fn set_active(&mut self, consumer: ConsumerId, now_ms: i64) {
        if let Some(consumer) = self.consumer_mut(consumer) {
            consumer.active_ms = now_ms;
        }
    }

    /// Adds a pending entry without a consumer, to be set with
    /// [`Group::assign`]; returns false if the entry is already pending.
    pub fn add_pending(&mut self, id: Id, delivered_ms: i64, deliveries: u64) -> bool {
        self.pending.insert(id, Pending { delivered_ms, deliveries, consumer: NO_OWNER }).is_ok()
    }

    /// Deletes a consumer and its pending entries, and returns the
    /// number of these; `None` if the consumer does not exist.
    pub fn delete_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let id = self.by_name.remove(self.find_name(name).ok()?);
        let consumer = self.consumers[id.0 as usize].take()?;
        for (entry, ()) in consumer.pending.iter() {
            self.pending.remove(entry);
        }
        while let Some(None) = self.consumers.last() {
            self.consumers.pop();
        }
        Some(consumer.pending.len())
    }

    /// Loads a pending entry whose consumer has not been loaded yet.
    pub fn load_pending(&mut self, id: Id, delivered_ms: i64, deliveries: u64) -> Result<(), BadGroup> {
        if self.add_pending(id, delivered_ms, deliveries) { Ok(()) } else { Err(BadGroup::PendingTwice) }
    }

    /// Loads a consumer.
    pub fn load_consumer(&mut self, name: &[u8], seen_ms: i64, active_ms: i64) -> Result<ConsumerId, BadGroup> {
        let id = self.create_consumer(name, seen_ms).ok_or(BadGroup::ConsumerTwice)?;
        self.set_active(id, active_ms);
        Ok(id)
    }

    /// Loads the consumer of a pending entry.
    pub fn load_owner(&mut self, id: Id, consumer: ConsumerId) -> Result<(), BadGroup> {
        let pending = self.pending.get(id).ok_or(BadGroup::NotPending)?;
        match pending.consumer {
            NO_OWNER => self.assign(id, consumer),
            owner if owner == consumer => return Err(BadGroup::OwnedTwice),
            _ => return Err(BadGroup::OwnedByAnother),
        }
        Ok(())
    }

    /// Checks that all pending entries have a consumer; the last step of loading a group.
    pub fn loaded(&self) -> Result<(), BadGroup> {
        let owned = self.pending.iter().all(|(_, pending)| pending.consumer != NO_OWNER);
        if owned { Ok(()) } else { Err(BadGroup::NotOwned) }
    }

    /// Offers its allocations to a mover, from `place` on, until it is due; returns the position to continue from.
    fn relocate(&mut self, place: RelocatePosition, mover: &mut Mover<'_>) -> Option<RelocatePosition> {
        let RelocatePosition { mut part, mut chunk, .. } = place;
        if part == 0 {
            if chunk == 0 {
                mover.offer_bytes(&mut self.name);
                mover.offer_vec(&mut self.consumers);
                mover.offer_vec(&mut self.by_name);
            }
            if let Some(chunk) = self.pending.relocate(chunk, mover, |_, _| ()) {
                return Some(RelocatePosition { chunk, ..place });
            }
            (part, chunk) = (1, 0);
        }
        for (index, consumer) in self.consumers.iter_mut().enumerate().skip(part - 1) {
            let Some(consumer) = consumer else { continue };
            if mover.is_due() && index >= part {
                return Some(RelocatePosition { part: index + 1, chunk: 0, ..place });
            }
            if chunk == 0 {
                mover.offer_box(consumer);
                mover.offer_bytes(&mut consumer.name);
            }
            if let Some(chunk) = consumer.pending.relocate(chunk, mover, |_, ()| ()) {
                return Some(RelocatePosition { part: index + 1, chunk, ..place });
            }
            chunk = 0;
        }
        None
    }

    fn memory(&self) -> usize {
        let own = size_class(self.name.len().max(1)) + self.pending.memory();
        let lists =
            size_class((self.consumers.capacity() * 8).max(8)) + size_class((self.by_name.capacity() * 4).max(8));
        let consumers = self.consumers().map(|consumer| {
            size_class(size_of::<Consumer>()) + size_class(consumer.name.len().max(1)) + consumer.pending.memory()
        });
        own + lists + consumers.sum::<usize>()
    }
}

/// The groups of a stream, in order of their names.
#[derive(Clone, Default, Debug)]
pub struct Groups(Vec<Group>);

impl Groups {
    fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.0.binary_search_by(|group| (*group.name).cmp(name))
    }

    /// Number of groups.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no groups.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All groups, in order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Group> {
        self.0.iter()
    }

    /// The group with this name.
    #[inline]
    pub fn get(&self, name: &[u8]) -> Option<&Group> {
        self.find(name).ok().map(|index| &self.0[index])
    }

    /// The group with this name, for modification.
    #[inline]
    pub fn get_mut(&mut self, name: &[u8]) -> Option<&mut Group> {
        self.find(name).ok().map(|index| &mut self.0[index])
    }

    /// Creates a group; `None` if the name exists.
    pub fn create(&mut self, name: &[u8], last_id: Id, entries_read: Option<u64>) -> Option<&mut Group> {
        let index = self.find(name).err()?;
        if self.0.is_empty() {
            // Most streams have at most one group.
            self.0.reserve_exact(1);
        }
        self.0.insert(index, Group::new(name, last_id, entries_read));
        Some(&mut self.0[index])
    }

    /// Deletes a group; returns false if there was none.
    pub fn destroy(&mut self, name: &[u8]) -> bool {
        let found = self.find(name);
        found.map(|index| self.0.remove(index)).is_ok()
    }

    /// Offers their allocations to a mover, from `spot` on, until it is due; returns the position to continue from.
    pub(super) fn relocate(&mut self, spot: RelocatePosition, mover: &mut Mover<'_>) -> Option<RelocatePosition> {
        if spot == RelocatePosition::default() {
            mover.offer_vec(&mut self.0);
        }
        for (number, group) in self.0.iter_mut().enumerate().skip(spot.group) {
            let begin = if number == spot.group {
                spot
            } else {
                RelocatePosition { group: number, ..RelocatePosition::default() }
            };
            if mover.is_due() && number > spot.group {
                return Some(begin);
            }
            if let Some(next) = group.relocate(begin, mover) {
                return Some(next);
            }
        }
        None
    }

    pub(super) fn memory(&self) -> usize {
        let row = if self.0.capacity() == 0 { 0 } else { size_class(self.0.capacity() * size_of::<Group>()) };
        row + self.0.iter().map(Group::memory).sum::<usize>()
    }

    pub(super) fn allocations(&self) -> usize {
        let of = |group: &Group| 1 + group.pending.allocations() + group.by_name.len();
        self.iter().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64) -> Id {
        Id::new(ms, 0)
    }

    fn pending_of(group: &Group, consumer: ConsumerId) -> Vec<u64> {
        group.pending_of(group.consumer(consumer), Id::MIN).map(|(id, _)| id.ms).collect()
    }

    /// Every pending entry is in its consumer's list, and in no other.
    fn check(group: &Group) {
        let owned: usize = group.consumers().map(Consumer::pending_len).sum();
        assert_eq!(owned, group.pending.len());
        for (id, pending) in group.pending.iter() {
            assert!(group.consumer(pending.consumer).pending.get(id).is_some());
        }
    }

    #[test]
    fn delivered_entries_are_pending_until_acknowledged() {
        let mut groups = Groups::default();
        let group = groups.create(b"g", Id::MIN, None).unwrap();
        let (a, b) = (group.create_consumer(b"a", 1).unwrap(), group.create_consumer(b"b", 1).unwrap());
        (1..=3).for_each(|ms| group.deliver(id(ms), a, 5));
        group.deliver(id(2), b, 6);
        assert_eq!((pending_of(group, a), pending_of(group, b)), (vec![1, 3], vec![2]));
        group.assign(id(3), b);
        assert!(group.forget(id(1)) && !group.forget(id(1)));
        assert_eq!((pending_of(group, a), pending_of(group, b)), (vec![], vec![2, 3]));
        assert_eq!(group.consumer(b).active_ms, 6);
        check(group);
        check(&group.clone());
        assert_eq!(group.delete_consumer(b"b"), Some(2));
        assert!(group.pending.is_empty() && group.delete_consumer(b"b").is_none());
    }

    #[test]
    fn consumers_are_found_by_name_and_listed_in_order() {
        let mut groups = Groups::default();
        let group = groups.create(b"g", Id::MIN, None).unwrap();
        for name in [b"c", b"a", b"d", b"b"] {
            assert!(group.create_consumer(name, 1).is_some() && group.create_consumer(name, 1).is_none());
        }
        assert_eq!(group.delete_consumer(b"a"), Some(0));
        let e = group.create_consumer(b"e", 1).unwrap();
        group.deliver(id(1), e, 2);
        assert_eq!(group.find_consumer(b"e"), Some(e));
        let names: Vec<_> = group.consumers().map(|consumer| consumer.name()[0]).collect();
        assert_eq!(names, *b"bcde");
        check(group);
    }

    #[test]
    fn groups_are_listed_in_order() {
        let mut groups = Groups::default();
        for name in [b"c", b"a", b"b"] {
            assert!(groups.create(name, Id::MIN, None).is_some() && groups.create(name, Id::MAX, None).is_none());
        }
        assert!(groups.destroy(b"b") && !groups.destroy(b"b"));
        assert!(groups.iter().map(|group| group.name()).eq([b"a", b"c"]));
        assert!(groups.get(b"a").is_some() && groups.get(b"b").is_none());
    }

    #[test]
    fn loaded_parts_must_be_consistent() {
        let mut groups = Groups::default();
        let group = groups.create(b"g", Id::MIN, Some(3)).unwrap();
        assert_eq!(group.load_pending(id(1), 5, 2), Ok(()));
        assert_eq!(group.load_pending(id(1), 5, 2), Err(BadGroup::PendingTwice));
        assert_eq!(group.loaded(), Err(BadGroup::NotOwned));
        let a = group.load_consumer(b"a", 7, 6).unwrap();
        assert_eq!(group.load_consumer(b"a", 7, 6), Err(BadGroup::ConsumerTwice));
        assert_eq!(group.load_owner(id(2), a), Err(BadGroup::NotPending));
        assert_eq!(group.load_owner(id(1), a), Ok(()));
        let b = group.load_consumer(b"b", 7, 6).unwrap();
        assert_eq!(group.load_owner(id(1), a), Err(BadGroup::OwnedTwice));
        assert_eq!(group.load_owner(id(1), b), Err(BadGroup::OwnedByAnother));
        assert_eq!(group.loaded(), Ok(()));
        check(group);
    }
}
