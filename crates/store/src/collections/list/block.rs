//! One block of a large list: a listpack (at the head of a list, possibly with
//! spare room at its front), a single large element, or a compressed listpack.
//!
//! A block is never empty, except temporarily within an operation of its list. It stores its
//! number of elements, so that finding an index reads only the blocks and not their contents.

use super::limits::Limits;
use crate::defrag::Mover;
use crate::encodings::listpack::{At, Element, Fronted, Listpack, View};
use crate::encodings::lzf;
use crate::memory::size_class;
use crate::value::Str;
use kvick_resp::SharedBytes;

/// Smaller listpacks, in bytes, are not compressed.
const COMPRESSED_MIN: usize = 48;
/// Minimum number of bytes that compression must save.
const SAVED_MIN: usize = 8;

/// One end of a list, or the direction towards it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The end of the first element: left.
    Head,
    /// The end of the last element: right.
    Tail,
}

impl Side {
    /// The opposite side.
    pub fn other(self) -> Side {
        match self {
            Side::Head => Side::Tail,
            Side::Tail => Side::Head,
        }
    }
}

/// A block. See the module documentation. Takes sixteen bytes.
#[derive(Clone)]
pub(super) enum Block {
    Packed { count: u32, listpack: Listpack },
    Fronted { count: u32, fronted: Box<Fronted> },
    Plain(SharedBytes),
    Compressed { count: u32, packed: Box<Compressed> },
}

const _: () = assert!(size_of::<Block>() == 16);

/// A compressed listpack.
#[derive(Clone)]
pub(super) struct Compressed {
    bytes: Box<[u8]>,
    /// Uncompressed size of the listpack, in bytes.
    bytes_raw: u32,
}

impl Compressed {
    fn decompress(&self) -> Vec<u8> {
        decompress(&self.bytes, self.bytes_raw as usize)
    }
}

fn decompress(packed: &[u8], bytes_raw: usize) -> Vec<u8> {
    lzf::decompress(packed, bytes_raw).unwrap_or_else(|_| unreachable!("what was compressed can be decompressed"))
}

/// The contents of a block, for reading or saving.
#[derive(Clone, Copy, Debug)]
pub enum BlockView<'a> {
    /// One element, too large for a listpack.
    Plain(&'a [u8]),
    /// Elements.
    Packed(View<'a>),
    /// A listpack compressed by [`lzf::compress`], and its uncompressed size in bytes.
    Compressed(&'a [u8], usize),
}

impl BlockView<'_> {
    /// Calls `visit` with each element.
    pub fn for_each(self, mut visit: impl FnMut(Str<'_>)) {
        match self {
            BlockView::Plain(element) => visit(Str::Bytes(element)),
            BlockView::Packed(view) => view.iter().for_each(visit),
            BlockView::Compressed(packed, bytes_raw) => {
                let bytes = decompress(packed, bytes_raw);
                let view = View::check(&bytes).unwrap_or_else(|_| unreachable!("it was a listpack"));
                view.iter().for_each(visit);
            }
        }
    }

    /// Its uncompressed size in bytes.
    pub fn bytes(self) -> usize {
        match self {
            BlockView::Plain(element) => element.len(),
            BlockView::Packed(view) => view.bytes().len(),
            BlockView::Compressed(_, bytes) => bytes,
        }
    }
}

impl Block {
    pub(super) fn of_one(element: &[u8], limits: Limits) -> Block {
        if limits.is_large(element.len()) {
            return Block::Plain(element.to_vec().into());
        }
        let mut listpack = Listpack::new();
        listpack.push_back(element);
        Block::Packed { count: 1, listpack }
    }

    /// A block of a listpack; `None` if that is empty.
    pub(super) fn of_listpack(listpack: Listpack) -> Option<Block> {
        let count = listpack.len() as u32;
        (count > 0).then_some(Block::Packed { count, listpack })
    }

    #[inline]
    pub(super) fn count(&self) -> usize {
        match self {
            Block::Packed { count, .. } | Block::Fronted { count, .. } | Block::Compressed { count, .. } => {
                *count as usize
            }
            Block::Plain(_) => 1,
        }
    }

    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Block::Plain(_))
    }

    /// Size of the listpack or of the large element, in bytes.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        match self {
            Block::Packed { listpack, .. } => listpack.byte_len(),
            Block::Fronted { fronted, .. } => fronted.view().bytes().len(),
            Block::Plain(element) => element.len(),
            Block::Compressed { packed, .. } => packed.bytes_raw as usize,
        }
    }

    /// Bytes of memory, besides the block itself.
    pub(super) fn memory(&self) -> usize {
        match self {
            Block::Packed { listpack, .. } => listpack.memory(),
            Block::Fronted { fronted, .. } => size_class(size_of::<Fronted>()) + fronted.memory(),
            Block::Plain(element) => size_class(SharedBytes::HEADER.size()) + size_class(element.capacity()),
            Block::Compressed { packed, .. } => size_class(size_of::<Compressed>()) + size_class(packed.bytes.len()),
        }
    }

    /// Whether an element of `bytes` bytes can be added.
    #[inline]
    pub(super) fn has_room(&self, bytes: usize, limits: Limits) -> bool {
        !self.is_plain() && !limits.is_large(bytes) && limits.has_room(self.bytes(), self.count(), bytes)
    }

    /// Offers its allocations to a mover.
    pub(super) fn relocate(&mut self, mover: &mut Mover<'_>) {
        match self {
            Block::Packed { listpack, .. } => listpack.relocate(mover),
            Block::Fronted { fronted, .. } => {
                mover.offer_box(fronted);
                fronted.relocate(mover);
            }
            Block::Plain(element) => mover.offer_shared(element),
            Block::Compressed { packed, .. } => {
                mover.offer_box(packed);
                mover.offer_bytes(&mut packed.bytes);
            }
        }
    }

    /// Its contents, without decompressing.
    pub(super) fn view(&self) -> BlockView<'_> {
        match self {
            Block::Packed { listpack, .. } => BlockView::Packed(listpack.view()),
            Block::Fronted { fronted, .. } => BlockView::Packed(fronted.view()),
            Block::Plain(element) => BlockView::Plain(element),
            Block::Compressed { packed, .. } => BlockView::Compressed(&packed.bytes, packed.bytes_raw as usize),
        }
    }

    /// Calls `read` with a listpack of its elements, decompressed if necessary, or with its single large element.
    #[inline]
    pub(super) fn read<R>(&self, read: impl FnOnce(Result<View<'_>, &[u8]>) -> R) -> R {
        match self {
            Block::Packed { listpack, .. } => read(Ok(listpack.view())),
            Block::Fronted { fronted, .. } => read(Ok(fronted.view())),
            Block::Plain(element) => read(Err(element)),
            Block::Compressed { packed, .. } => {
                let bytes = packed.decompress();
                read(Ok(View::check(&bytes).unwrap_or_else(|_| unreachable!("it was a listpack"))))
            }
        }
    }

    /// Adds spare room at the front of a listpack, for a total capacity of `capacity` bytes.
    #[inline(never)]
    pub(super) fn open(&mut self, capacity: usize) {
        if let Block::Packed { count, listpack } = self
            && let Some(fronted) = Fronted::copy_of(listpack.view(), capacity)
        {
            *self = Block::Fronted { count: *count, fronted: Box::new(fronted) };
        }
    }

    /// Removes the spare room at the front of a listpack.
    #[inline]
    pub(super) fn close(&mut self) {
        if let Block::Fronted { count, fronted } = self {
            *self = Block::Packed { count: *count, listpack: fronted.to_listpack() };
        }
    }

    /// Its elements as a listpack that can be modified anywhere, decompressed
    /// if necessary, and their count. `None` for a large element.
    #[inline]
    pub(super) fn packed_mut(&mut self) -> Option<(&mut Listpack, &mut u32)> {
        if !matches!(self, Block::Packed { .. }) {
            self.unpack();
        }
        match self {
            Block::Packed { listpack, count } => Some((listpack, count)),
            _ => None,
        }
    }

    #[inline(never)]
    fn unpack(&mut self) {
        self.decompress();
        self.close();
    }

    #[inline]
    pub(super) fn decompress(&mut self) {
        if let Block::Compressed { count, packed } = self {
            let listpack = Listpack::from_bytes(&packed.decompress());
            let listpack = listpack.unwrap_or_else(|_| unreachable!("it was a listpack"));
            *self = Block::Packed { count: *count, listpack };
        }
    }

    /// Compresses the block if that saves enough.
    pub(super) fn compress(&mut self) {
        let Block::Packed { count, listpack } = self else { return };
        let bytes_raw = listpack.byte_len();
        if bytes_raw < COMPRESSED_MIN {
            return;
        }
        if let Some(bytes) = lzf::compress(listpack.bytes()).filter(|bytes| bytes.len() + SAVED_MIN < bytes_raw) {
            let packed = Compressed { bytes: bytes.into(), bytes_raw: bytes_raw as u32 };
            *self = Block::Compressed { count: *count, packed: Box::new(packed) };
        }
    }

    /// Adds an element, which must fit.
    #[inline]
    pub(super) fn push(&mut self, side: Side, element: &[u8]) {
        if let (Block::Fronted { count, fronted }, Side::Head) = (&mut *self, side)
            && fronted.push_front(Element::new(element))
        {
            *count += 1;
            return;
        }
        let Some((listpack, count)) = self.packed_mut() else { unreachable!("a large element has no room beside it") };
        match side {
            Side::Head => listpack.push_front(element),
            Side::Tail => listpack.push_back(element),
        }
        *count += 1;
    }

    /// Inserts an element, which must fit, before the one at `offset`, or at the end.
    pub(super) fn insert(&mut self, offset: usize, element: &[u8]) {
        let Some((listpack, count)) = self.packed_mut() else { unreachable!("a large element has no room beside it") };
        let at = listpack.view().seek(offset as isize);
        listpack.insert_all_before(at, &[Element::new(element)]);
        *count += 1;
    }

    /// Calls `take` with the element at one end and removes it. The block may then be empty.
    #[inline]
    pub(super) fn pop<R>(&mut self, side: Side, take: impl FnOnce(Str<'_>) -> R) -> R {
        if let (Block::Fronted { count, fronted }, Side::Head) = (&mut *self, side) {
            let view = fronted.view();
            let first = view.first().unwrap_or_else(|| unreachable!("no block is empty"));
            let taken = take(view.get(first));
            fronted.pop_front();
            *count -= 1;
            return taken;
        }
        match self.packed_mut() {
            Some((listpack, count)) => {
                *count -= 1;
                pop_packed(listpack, side, take).unwrap_or_else(|| unreachable!("no block is empty"))
            }
            None => {
                let element = match self {
                    Block::Plain(element) => std::mem::take(element),
                    _ => unreachable!("it is no listpack"),
                };
                *self = Block::Packed { count: 0, listpack: Listpack::new() };
                take(Str::Bytes(&element))
            }
        }
    }

    /// Removes `count` elements from `offset` on. The block may then be empty.
    pub(super) fn remove(&mut self, offset: usize, remove: usize) {
        match self.packed_mut() {
            Some((listpack, count)) => *count -= listpack.remove_range(offset as isize, remove) as u32,
            None => *self = Block::Packed { count: 0, listpack: Listpack::new() },
        }
    }

    /// Splits off the elements from `offset` on, which is neither the first nor the end.
    pub(super) fn split_off(&mut self, offset: usize) -> Block {
        let Some((listpack, count)) = self.packed_mut() else { unreachable!("one element cannot be split") };
        let mut tail = listpack.clone();
        tail.remove_range(0, offset);
        let removed = listpack.remove_range(offset as isize, usize::MAX) as u32;
        *count -= removed;
        Block::Packed { count: removed, listpack: tail }
    }

    /// Appends the elements of another block. Neither may be a large element.
    pub(super) fn append(&mut self, other: &Block) {
        let Some((listpack, count)) = self.packed_mut() else { unreachable!("large elements are not merged") };
        other.read(|view| {
            if let Ok(view) = view {
                listpack.append(view);
            }
        });
        *count += other.count() as u32;
    }

    /// Whether `matches` accepts any element.
    pub(super) fn contains_matching(&self, matches: &impl Fn(Str<'_>) -> bool) -> bool {
        self.read(|view| match view {
            Ok(view) => view.iter().any(matches),
            Err(element) => matches(Str::Bytes(element)),
        })
    }

    /// Removes up to `most` elements that `matches` accepts, starting from side
    /// `from`; returns how many. The block stays compressed if there are none.
    pub(super) fn remove_matching(&mut self, from: Side, most: usize, matches: &impl Fn(Str<'_>) -> bool) -> usize {
        if !self.contains_matching(matches) {
            return 0;
        }
        let Some((listpack, count)) = self.packed_mut() else {
            self.remove(0, 1);
            return 1;
        };
        let removed = remove_matching_packed(listpack, from, most, matches);
        *count -= removed as u32;
        removed
    }
}

/// Calls `take` with the element at one end of a listpack and removes it; `None` if there is none.
#[inline]
pub(super) fn pop_packed<R>(listpack: &mut Listpack, side: Side, take: impl FnOnce(Str<'_>) -> R) -> Option<R> {
    let view = listpack.view();
    let at = match side {
        Side::Head => view.first()?,
        Side::Tail => view.last()?,
    };
    let taken = take(view.get(at));
    listpack.remove(at);
    Some(taken)
}

/// Removes up to `most` elements of a listpack that `matches` accepts, starting from side `from`; returns how many.
pub(super) fn remove_matching_packed(
    listpack: &mut Listpack,
    from: Side,
    most: usize,
    matches: &impl Fn(Str<'_>) -> bool,
) -> usize {
    let mut removed = 0;
    let mut next = end_of(listpack.view(), from);
    while let Some(at) = next.filter(|_| removed < most) {
        let view = listpack.view();
        let is_match = matches(view.get(at));
        next = match (from, is_match) {
            (Side::Head, true) => listpack.remove(at),
            (Side::Head, false) => view.next(at),
            (Side::Tail, true) => {
                let before = view.prev(at);
                listpack.remove(at);
                before
            }
            (Side::Tail, false) => view.prev(at),
        };
        removed += usize::from(is_match);
    }
    removed
}

fn end_of(view: View<'_>, side: Side) -> Option<At> {
    match side {
        Side::Head => view.first(),
        Side::Tail => view.last(),
    }
}
