//! Pairs of strings in insertion order, in several blocks: replaces a listpack above a certain size.
//!
//! A growing listpack is copied from one size class to the next; larger classes are coarser, and the freed
//! allocations leave gaps that are hard to reuse. Therefore the pairs are stored in small **blocks**: the
//! first one is part of [`Pairs`] itself, which has a fixed size; the others are [`Buffer`]s, of which only
//! the last one grows. A block contains the elements of its pairs as in a listpack, but without the trailing
//! lengths, since pairs are read forwards only. [`Pairs::to_listpack`] returns the listpack of all pairs.
//!
//! The first block may be empty, others are not. All elements are in their
//! shortest form, so two strings are equal if and only if their encoded bytes are.

use super::buffer::{Buffer, PREFIX};
use super::listpack::element::{backlen_size, decode, is_same, known_len, write_backlen};
use super::listpack::{BYTES_MAX, EMPTY_BYTES, Element, Listpack, View};
use crate::defrag::Mover;
use crate::memory::size_class;
use crate::table::prefetch_address;
use crate::value::Str;
use smallvec::SmallVec;

/// Size of [`Pairs`] itself, in bytes.
const SIZE: usize = 1024;
/// The part of it available to the first block.
const FIRST_BYTES_MAX: usize = SIZE - size_of::<Blocks>() - 3 * size_of::<u32>() - 4;

/// Pairs are added to a block other than the first up to this size in bytes, including the length prefix.
const BLOCK_BYTES: usize = 512;
/// A larger block is split.
const BLOCK_BYTES_MAX: usize = 2 * BLOCK_BYTES;
/// When a block has become smaller, it is joined with a neighbour if both have
/// at most this many bytes in total: limit for the first and second block.
const FIRST_JOINED_BYTES_MAX: usize = FIRST_BYTES_MAX * 3 / 4;
/// The limit for other blocks.
const JOINED_BYTES_MAX: usize = BLOCK_BYTES * 3 / 4;

/// Number of blocks besides the first that are stored without an additional allocation.
const BLOCKS_INLINE: usize = 2;

/// Number of cache lines of each of these that are prefetched while the
/// first block is searched; the hardware prefetcher loads the rest.
const LINES_AHEAD: usize = 4;

type Blocks = SmallVec<[Buffer; BLOCKS_INLINE]>;

/// Pairs of strings. See the module documentation. Fields are in the order of access.
#[derive(Clone)]
#[repr(C, align(8))]
pub struct Pairs {
    /// All blocks but the first.
    blocks: Blocks,
    count: u32,
    /// Size of the listpack of all pairs, in bytes.
    listpack_bytes: u32,
    first_len: u32,
    first: [u8; FIRST_BYTES_MAX],
}

const _: () = assert!(size_of::<Pairs>() == SIZE);

/// The position of a pair, valid until a pair is added, removed or resized.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// 0 for the first block.
    block: usize,
    /// Offset from the beginning of the block.
    offset: usize,
}

/// Size of an element in a listpack, given its size `len` without the trailing length.
#[inline]
fn listpack_size(len: usize) -> u32 {
    (len + backlen_size(len)) as u32
}

/// The offsets of the second element and of the end of the pair at `offset`.
#[inline]
fn bounds(block: &[u8], offset: usize) -> (usize, usize) {
    let second = offset + known_len(&block[offset..]);
    (second, second + known_len(&block[second..]))
}

/// The offsets of the pairs of a block.
fn offsets(block: &[u8]) -> impl Iterator<Item = usize> {
    let from = |offset: usize| (offset < block.len()).then_some(offset);
    std::iter::successors(from(0), move |offset| from(bounds(block, *offset).1))
}

/// The pair at the beginning of `bytes`, and the bytes after it.
#[inline]
fn first_pair(bytes: &[u8]) -> Option<((Str<'_>, Str<'_>), &[u8])> {
    let (first, len) = decode(bytes)?;
    let rest = bytes.get(len..)?;
    let (second, len) = decode(rest)?;
    Some(((first, second), rest.get(len..)?))
}

/// The offset of the pair for which `is_key` returns true, given the bytes from its first element on.
#[inline]
fn find_in(block: &[u8], is_key: impl Fn(&[u8]) -> bool) -> Option<usize> {
    let mut offset = 0;
    while offset < block.len() {
        let inner = &block[offset..];
        if is_key(inner) {
            return Some(offset);
        }
        let second = known_len(inner);
        offset += second + known_len(&inner[second..]);
    }
    None
}

/// The pairs of a block other than the first.
#[inline]
fn content(block: &Buffer) -> &[u8] {
    &block.bytes()[PREFIX..]
}

fn block_of(content: &[u8]) -> Buffer {
    let mut block = Buffer::of_len(PREFIX + content.len());
    block.body_mut().copy_from_slice(content);
    block
}

impl Pairs {
    /// The elements of a listpack as pairs; an unpaired last element is ignored.
    pub fn of_listpack(listpack: View<'_>) -> Box<Self> {
        let mut pairs = Box::new(Pairs {
            blocks: SmallVec::new(),
            count: 0,
            listpack_bytes: EMPTY_BYTES as u32,
            first_len: 0,
            first: [0; FIRST_BYTES_MAX],
        });
        let mut strings = listpack.iter();
        while let (Some(first), Some(second)) = (strings.next(), strings.next()) {
            pairs.push_elements(Element::of(first), Element::of(second));
        }
        pairs
    }

    /// The listpack of all pairs.
    pub fn to_listpack(&self) -> Listpack {
        Listpack::written_by(2 * self.len(), self.listpack_bytes() - EMPTY_BYTES, |mut room| {
            for mut left in self.contents() {
                while !left.is_empty() {
                    let (element, rest) = left.split_at(known_len(left));
                    let (own, behind) = std::mem::take(&mut room).split_at_mut(element.len());
                    let (backlen, behind) = behind.split_at_mut(backlen_size(element.len()));
                    own.copy_from_slice(element);
                    write_backlen(element.len(), backlen);
                    (left, room) = (rest, behind);
                }
            }
        })
    }

    #[inline]
    fn first(&self) -> &[u8] {
        &self.first[..self.first_len as usize]
    }

    /// The pairs of each block.
    #[inline]
    fn contents(&self) -> impl Iterator<Item = &[u8]> {
        std::iter::once(self.first()).chain(self.blocks.iter().map(content))
    }

    #[inline]
    fn content_of(&self, block: usize) -> &[u8] {
        match block.checked_sub(1) {
            None => self.first(),
            Some(other) => content(&self.blocks[other]),
        }
    }

    /// Replaces `old` bytes of a block's content by `new` bytes, which the
    /// caller must write at once. They must fit if it is the first block.
    #[inline]
    fn make_room(&mut self, Place { block, offset }: Place, old: usize, new: usize) -> &mut [u8] {
        match block.checked_sub(1) {
            None => {
                let len = self.first_len as usize;
                self.first.copy_within(offset + old..len, offset + new);
                self.first_len = (len - old + new) as u32;
                &mut self.first[offset..offset + new]
            }
            Some(other) => self.blocks[other].make_room(PREFIX + offset, old, new),
        }
    }

    /// Number of pairs.
    #[inline]
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// True if there are no pairs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Size of the listpack of all pairs, in bytes.
    #[inline]
    pub fn listpack_bytes(&self) -> usize {
        self.listpack_bytes as usize
    }

    /// Whether elements whose strings have `more` bytes in total can be added.
    #[inline]
    pub fn fits(&self, more: usize) -> bool {
        self.listpack_bytes().saturating_add(more) <= BYTES_MAX - 1024
    }

    /// Bytes of memory including itself, rounded up to the allocator's size classes.
    pub fn memory(&self) -> usize {
        let spilled = if self.blocks.spilled() { size_class(self.blocks.capacity() * size_of::<Buffer>()) } else { 0 };
        SIZE + spilled + self.blocks.iter().map(Buffer::memory).sum::<usize>()
    }

    /// Approximate number of allocations.
    pub fn allocations(&self) -> usize {
        1 + self.blocks.len()
    }

    /// The pair whose first element is `first`.
    #[inline]
    pub fn find(&self, first: &[u8]) -> Option<Place> {
        let element = Element::new(first);
        match (element.header(), element.body()) {
            ([header], body) => self.find_with(|inner| {
                inner[0] == *header && inner.get(1..1 + body.len()).is_some_and(|own| is_same(own, body))
            }),
            (header, body) => self.find_with(|inner| {
                inner[0] == header[0] && inner.strip_prefix(header).is_some_and(|inner| inner.starts_with(body))
            }),
        }
    }

    #[inline]
    fn find_with(&self, is_key: impl Fn(&[u8]) -> bool) -> Option<Place> {
        for block in self.blocks.iter().take(BLOCKS_INLINE) {
            (0..LINES_AHEAD).for_each(|line| prefetch_address(block.address().wrapping_add(64 * line)));
        }
        if let Some(offset) = find_in(self.first(), &is_key) {
            return Some(Place { block: 0, offset });
        }
        let mut others = self.blocks.iter().zip(1..);
        others.find_map(|(own, block)| Some(Place { block, offset: find_in(content(own), &is_key)? }))
    }

    /// The pair at an index.
    pub fn seek(&self, mut index: usize) -> Option<Place> {
        for (block, content) in self.contents().enumerate() {
            let mut offset = 0;
            while offset < content.len() {
                if index == 0 {
                    return Some(Place { block, offset });
                }
                index -= 1;
                offset = bounds(content, offset).1;
            }
        }
        None
    }

    /// The pair at a position.
    #[inline]
    pub fn get(&self, place: Place) -> (Str<'_>, Str<'_>) {
        let found = first_pair(&self.content_of(place.block)[place.offset..]);
        found.unwrap_or_else(|| unreachable!("a place of other pairs")).0
    }

    /// All pairs in order.
    pub fn iter(&self) -> impl Iterator<Item = (Str<'_>, Str<'_>)> {
        self.contents().flat_map(|mut left| {
            std::iter::from_fn(move || {
                let (pair, rest) = first_pair(left)?;
                left = rest;
                Some(pair)
            })
        })
    }

    /// Appends a pair. Panics if the listpack would become too
    /// large: check [`Pairs::fits`] first for input from outside.
    #[inline]
    pub fn push(&mut self, first: &[u8], second: &[u8]) {
        self.push_elements(Element::new(first), Element::new(second));
    }

    #[inline]
    fn push_elements(&mut self, first: Element<'_>, second: Element<'_>) {
        let (first_len, second_len) = (first.encoded_len(), second.encoded_len());
        let len = first_len + second_len;
        let first_bytes = self.first_len as usize;
        let room = match self.blocks.last_mut() {
            Some(block) if block.byte_len() + len <= BLOCK_BYTES => block.extend(0, len),
            None if first_bytes + len <= FIRST_BYTES_MAX => {
                self.make_room(Place { block: 0, offset: first_bytes }, 0, len)
            }
            _ => self.add_block(len),
        };
        let (first_room, second_room) = room.split_at_mut(first_len);
        first.write_encoded(first_room);
        second.write_encoded(second_room);
        self.count += 1;
        self.listpack_bytes += listpack_size(first_len) + listpack_size(second_len);
        assert!(self.listpack_bytes() <= BYTES_MAX);
    }

    #[inline(never)]
    fn add_block(&mut self, len: usize) -> &mut [u8] {
        self.blocks.push(Buffer::of_len(PREFIX + len));
        self.blocks.last_mut().map_or(&mut [], Buffer::body_mut)
    }

    /// Replaces the second element of a pair.
    #[inline]
    pub fn replace(&mut self, mut place: Place, second: &[u8]) {
        let element = Element::new(second);
        let content = self.content_of(place.block);
        let (begin, end) = bounds(content, place.offset);
        let (old, new) = (end - begin, element.encoded_len());
        let len_after = content.len() - old + new;
        if len_after > if place.block == 0 { FIRST_BYTES_MAX } else { BLOCK_BYTES_MAX } {
            place = self.divide(place, old, new);
        }
        let (begin, _) = bounds(self.content_of(place.block), place.offset);
        element.write_encoded(self.make_room(Place { offset: begin, ..place }, old, new));
        self.listpack_bytes = self.listpack_bytes - listpack_size(old) + listpack_size(new);
        assert!(self.listpack_bytes() <= BYTES_MAX);
    }

    /// Moves the second half of a block to a new block, before `old` bytes of a pair
    /// are replaced by `new` ones. If the pair is in the first block and would still
    /// not fit, the whole first block is moved. Returns the pair's new position.
    #[inline(never)]
    fn divide(&mut self, place: Place, old: usize, new: usize) -> Place {
        let content = self.content_of(place.block);
        let middle = offsets(content).skip(1).min_by_key(|offset| offset.abs_diff(content.len() / 2));
        let cut = match middle {
            Some(middle) if place.block > 0 || place.offset >= middle || middle - old + new <= FIRST_BYTES_MAX => {
                middle
            }
            None if place.block > 0 => return place,
            _ => 0,
        };
        let later = block_of(&content[cut..]);
        let surplus = content.len() - cut;
        self.make_room(Place { block: place.block, offset: cut }, surplus, 0);
        self.blocks.insert(place.block, later);
        match place.offset.checked_sub(cut) {
            Some(offset) => Place { block: place.block + 1, offset },
            None => place,
        }
    }

    /// Removes a pair.
    pub fn remove(&mut self, place: Place) {
        let (second, end) = bounds(self.content_of(place.block), place.offset);
        self.make_room(place, end - place.offset, 0);
        self.count -= 1;
        self.listpack_bytes -= listpack_size(second - place.offset) + listpack_size(end - second);
        self.join(place.block);
        if let Some(before) = place.block.checked_sub(1) {
            self.join(before);
        }
    }

    /// Joins a block with the next one if they are small; removes an empty one, unless it is the first.
    fn join(&mut self, block: usize) {
        if block > self.blocks.len() {
            return;
        }
        let (len, most) =
            (self.content_of(block).len(), if block == 0 { FIRST_JOINED_BYTES_MAX } else { JOINED_BYTES_MAX });
        let next = self.blocks.get(block).map(|next| content(next).len());
        match next {
            _ if len == 0 && block > 0 => _ = self.blocks.remove(block - 1),
            Some(next) if len + next <= most => {
                let taken = self.blocks.remove(block);
                self.make_room(Place { block, offset: len }, 0, next).copy_from_slice(content(&taken));
            }
            _ => {}
        }
    }

    /// Offers all blocks but the first to a mover, from number `first`
    /// on, until it is due; returns the number to continue from.
    pub fn relocate(&mut self, first: usize, mover: &mut Mover<'_>) -> Option<usize> {
        if first == 0 && self.blocks.spilled() {
            let mut blocks = std::mem::take(&mut self.blocks).into_vec();
            mover.offer_vec(&mut blocks);
            self.blocks = SmallVec::from_vec(blocks);
        }
        for (number, block) in self.blocks.iter_mut().enumerate().skip(first) {
            if mover.is_due() && number > first {
                return Some(number);
            }
            block.relocate(mover);
        }
        None
    }
}

#[cfg(test)]
mod tests;
