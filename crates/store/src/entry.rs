//! One key with its value: a single allocation, laid out by hand.
//!
//! ```text
//! | clock 3 | meta 1 | key length 1 or 4 | value length 1 or 4 (inline strings) | expiry 0, 6 or 14 | key | value |
//! ```
//!
//! - **clock**: 24 bits of access time or access frequency (see [`crate::access`]).
//! - **meta**: kind of value (3 bits), representation of a string (2), whether an
//!   expiry is present (1), whether lengths take four bytes (1), snapshot epoch (1).
//! - **expiry**: Unix time in milliseconds in 48 bits; the value 2^48-1 means that the full 64 bits follow.
//! - **value**: an inline string's bytes, an integer's eight bytes, a pointer
//!   to a separately allocated string, or the [`Word`] of a collection.
//!
//! A key of 16 bytes and a value of 100 take 122 bytes and so the allocator's size class of 128,
//! with or without an expiry; 16 and 10 bytes take 32. Allocations are rounded up to size classes
//! here, so a value can be overwritten in place if the new entry belongs to the same class.
//!
//! # Safety
//!
//! A [`Pointer`] made by [`build`] is valid until [`free`]. [`Entry`] borrows one: the code that makes an `Entry`
//! guarantees that the allocation is neither changed nor freed while the `Entry` lives. Partitions do so by holding
//! their lock. All offsets are computed from the header that `build` wrote, in one place, [`Layout::read`].

mod layout;

use crate::collections::{Collection, Inside, on};
use crate::defrag::Mover;
use crate::memory::size_class;
use crate::object::{Object, Value};
use crate::snapshot::pieces::Gradual;
use crate::value::{INLINE_MAX, Kind, Str};
use crate::word::Word;
use kvick_resp::{SHARED_MIN, SharedBytes};
use layout::{
    EPOCH, EXPIRY_ESCAPE, EXPIRY_SHORT, HAS_EXPIRY, KIND_MASK, LENGTHS, Layout, META, REPR_MASK, REPR_SHIFT, Repr,
    WIDE, embedded_in_reference, expiry_len, is_same, read_48,
};
use std::alloc::{alloc, dealloc, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;

/// The allocation of an entry.
pub type Pointer = NonNull<u8>;

/// Strings of more bytes than this, and collections of more allocations than `LAZY_EFFORT_MIN`, are freed in the
/// background. Freeing a shorter string takes less time than waking the thread.
const LAZY_BYTES_MIN: usize = 4 * 1024 * 1024;
const LAZY_EFFORT_MIN: usize = 64;

/// The content of an entry to be built: a borrowed or an owned value.
pub enum Content<'a> {
    /// A string's bytes, to be copied; at most [`INLINE_MAX`] bytes.
    Bytes(&'a [u8]),
    /// An integer.
    Int(i64),
    /// A string with its own buffer, which others may share.
    Raw(SharedBytes),
    /// A collection.
    Object(Object),
}

impl<'a> Content<'a> {
    /// How a string is stored: as an integer if it is the canonical form of one, inline if it is not large.
    #[inline]
    pub fn from_bytes(bytes: &'a [u8]) -> Content<'a> {
        if bytes.len() <= 20
            && let Some(number) = kvick_resp::format::parse_i64(bytes)
        {
            return Content::Int(number);
        }
        if bytes.len() <= INLINE_MAX { Content::Bytes(bytes) } else { Content::Raw(bytes.to_vec().into()) }
    }

    /// How a value without its key is stored.
    pub fn from_value(value: &'a mut Value) -> Content<'a> {
        match value {
            Value::Int(number) => Content::Int(*number),
            Value::Bytes(bytes) => Content::from_bytes(bytes),
            Value::Raw(bytes) => Content::Raw(std::mem::take(bytes)),
            Value::Object(_) => match std::mem::replace(value, Value::Int(0)) {
                Value::Object(object) => Content::Object(object),
                _ => unreachable!("just seen to be one"),
            },
        }
    }

    fn kind(&self) -> Kind {
        if let Content::Object(object) = self { object.kind() } else { Kind::String }
    }

    fn repr(&self) -> Repr {
        match self {
            Content::Bytes(_) => Repr::Inline,
            Content::Int(_) => Repr::Int,
            Content::Raw(_) | Content::Object(_) => Repr::External,
        }
    }

    fn len(&self) -> usize {
        match self {
            Content::Bytes(bytes) => bytes.len(),
            _ => size_of::<u64>(),
        }
    }
}

/// Makes an entry; `clock` is its 24-bit access clock, `epoch` its snapshot epoch.
#[inline]
pub fn build(key: &[u8], content: Content<'_>, expiry: Option<i64>, clock: u32, epoch: bool) -> Pointer {
    let layout = Layout::plan(content.kind(), content.repr(), key.len(), content.len(), expiry);
    let allocation = layout.allocation();
    // SAFETY: the allocation is never empty.
    let Some(entry) = NonNull::new(unsafe { alloc(allocation) }) else { handle_alloc_error(allocation) };
    // SAFETY: the allocation is as large as the layout that is written.
    unsafe { write(entry, &layout, key, content, expiry, clock, epoch) };
    entry
}

/// Gives an existing entry a new value and expiry without a new allocation, and frees the external part
/// of the old value. Returns the content if the new entry does not fit the allocation's size class.
///
/// # Safety
/// `entry` must be live, and nobody else may be using it.
#[inline]
pub unsafe fn overwrite<'a>(
    entry: Pointer,
    content: Content<'a>,
    expiry: Option<i64>,
    clock: u32,
    epoch: bool,
) -> Result<(), Content<'a>> {
    // SAFETY: promised by the caller.
    let old = unsafe { Layout::read(entry) };
    if let Content::Bytes(bytes) = content
        && expiry.is_none()
        && old.meta & !EPOCH & !WIDE == Kind::String as u8
        && old.value_len == bytes.len()
    {
        let meta = old.meta & !EPOCH | if epoch { EPOCH } else { 0 };
        // SAFETY: as below; the layout stays as it is.
        unsafe {
            let at = entry.as_ptr();
            at.cast::<u32>().write_unaligned((clock & 0x00ff_ffff) | u32::from(meta) << 24);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), at.add(old.value), bytes.len());
        }
        return Ok(());
    }
    let new = Layout::plan(content.kind(), content.repr(), old.key_len, content.len(), expiry);
    if new.allocation() != old.allocation() {
        return Err(content);
    }
    // SAFETY: the entry is live and exclusively borrowed; the new
    // layout fits the same allocation. The key may move within it.
    unsafe {
        free_external(entry, &old);
        let at = entry.as_ptr();
        if new.key != old.key {
            std::ptr::copy(at.add(old.key), at.add(new.key), old.key_len);
        }
        write_around_key(entry, &new, content, expiry, clock, epoch);
    }
    Ok(())
}

/// # Safety
/// The allocation must have the layout's size.
#[inline]
unsafe fn write(
    entry: Pointer,
    layout: &Layout,
    key: &[u8],
    content: Content<'_>,
    expiry: Option<i64>,
    clock: u32,
    epoch: bool,
) {
    // SAFETY: offset and length of the key lie within the layout.
    unsafe {
        std::ptr::copy_nonoverlapping(key.as_ptr(), entry.as_ptr().add(layout.key), key.len());
        write_around_key(entry, layout, content, expiry, clock, epoch);
    }
}

/// # Safety
/// As for `write`; the key has been written.
#[inline]
unsafe fn write_around_key(
    entry: Pointer,
    layout: &Layout,
    content: Content<'_>,
    expiry: Option<i64>,
    clock: u32,
    epoch: bool,
) {
    let at = entry.as_ptr();
    let meta = layout.meta | if epoch { EPOCH } else { 0 };
    // SAFETY: every write stays within the layout.
    unsafe {
        at.cast::<u32>().write_unaligned((clock & 0x00ff_ffff) | u32::from(meta) << 24);
        let inline = matches!(content, Content::Bytes(_));
        if meta & WIDE == 0 {
            at.add(LENGTHS).write(layout.key_len as u8);
            if inline {
                at.add(LENGTHS + 1).write(layout.value_len as u8);
            }
        } else {
            at.add(LENGTHS).cast::<u32>().write_unaligned(layout.key_len as u32);
            if inline {
                at.add(LENGTHS + 4).cast::<u32>().write_unaligned(layout.value_len as u32);
            }
        }
        if let Some(expiry) = expiry {
            write_expiry(at.add(layout.expiry), expiry);
        }
        let value = at.add(layout.value);
        match content {
            Content::Bytes(bytes) => std::ptr::copy_nonoverlapping(bytes.as_ptr(), value, bytes.len()),
            Content::Int(number) => value.cast::<i64>().write_unaligned(number),
            Content::Raw(bytes) => value.cast::<*const Vec<u8>>().write_unaligned(bytes.into_raw()),
            Content::Object(object) => value.cast::<Word>().write(object.into_word()),
        }
    }
}

/// # Safety
/// `expiry_len(expiry)` bytes must be writable.
unsafe fn write_expiry(at: *mut u8, expiry: i64) {
    // SAFETY: promised by the caller.
    unsafe {
        if expiry_len(expiry) == EXPIRY_SHORT {
            std::ptr::copy_nonoverlapping(expiry.to_le_bytes().as_ptr(), at, EXPIRY_SHORT);
        } else {
            std::ptr::copy_nonoverlapping(EXPIRY_ESCAPE.to_le_bytes().as_ptr(), at, EXPIRY_SHORT);
            at.add(EXPIRY_SHORT).cast::<i64>().write_unaligned(expiry);
        }
    }
}

/// # Safety
/// `entry` must be live and laid out as `layout` describes; its value must not be used afterwards.
unsafe fn free_external(entry: Pointer, layout: &Layout) {
    if layout.repr() == Repr::External {
        // SAFETY: an external string's value is a pointer from `SharedBytes::into_raw`, and a collection's is its own
        // word.
        unsafe {
            match Kind::from_bits(layout.meta & KIND_MASK) {
                Kind::String => drop(SharedBytes::from_raw(raw_pointer(entry, layout))),
                kind => drop(Object::from_word(kind, word(entry, layout))),
            }
        }
    }
}

/// # Safety
/// `entry` must be live, and its value external.
unsafe fn raw_pointer(entry: Pointer, layout: &Layout) -> *const Vec<u8> {
    // SAFETY: promised by the caller.
    unsafe { entry.as_ptr().add(layout.value).cast::<*const Vec<u8>>().read_unaligned() }
}

/// # Safety
/// `entry` must be live, and its value a collection.
unsafe fn word(entry: Pointer, layout: &Layout) -> Word {
    // SAFETY: promised by the caller; a word needs no alignment.
    unsafe { entry.as_ptr().add(layout.value).cast::<Word>().read() }
}

/// Frees an entry and its value.
///
/// # Safety
/// `entry` must come from `build` and not be used again.
pub unsafe fn free(entry: Pointer) {
    // SAFETY: promised by the caller.
    unsafe {
        let layout = Layout::read(entry);
        free_external(entry, &layout);
        dealloc(entry.as_ptr(), layout.allocation());
    }
}

/// Offers an entry to a mover; returns its new address.
///
/// # Safety
/// `entry` must be live and not used by any other thread; afterwards, only the returned address is valid.
pub unsafe fn relocate(entry: Pointer, mover: &mut Mover<'_>) -> Pointer {
    // SAFETY: promised by the caller; an entry has its layout's allocation.
    unsafe { mover.offer(entry, Layout::read(entry).allocation()) }
}

/// Offers the allocations outside an entry to a mover, from `position` on: see [`Collection::relocate`].
///
/// # Safety
/// `entry` must be live, and nobody else may be using it.
pub unsafe fn relocate_external(entry: Pointer, position: u64, mover: &mut Mover<'_>) -> Option<u64> {
    // SAFETY: promised by the caller; an external string's value
    // is a pointer from `SharedBytes::into_raw`, and is written back.
    unsafe {
        let layout = Layout::read(entry);
        if layout.repr() != Repr::External {
            return None;
        }
        on!(Kind::from_bits(layout.meta & KIND_MASK), C => {
            collection_mut::<C>(entry)?.relocate(position, mover)
        }, {
            let mut owner = SharedBytes::from_raw(raw_pointer(entry, &layout));
            mover.offer_shared(&mut owner);
            entry.as_ptr().add(layout.value).cast::<*const Vec<u8>>().write_unaligned(owner.into_raw());
            None
        })
    }
}

/// Takes the value out of an entry and frees the rest.
///
/// # Safety
/// As for `free`.
pub unsafe fn into_value(entry: Pointer) -> (Value, Option<i64>) {
    // SAFETY: promised by the caller.
    unsafe {
        let borrowed = Entry::from_pointer(entry);
        let expiry = borrowed.expiry();
        let layout = Layout::read(entry);
        let value = match layout.repr() {
            Repr::External => match borrowed.kind() {
                Kind::String => Value::Raw(SharedBytes::from_raw(raw_pointer(entry, &layout))),
                kind => Value::Object(Object::from_word(kind, word(entry, &layout))),
            },
            _ => borrowed.to_value(),
        };
        dealloc(entry.as_ptr(), layout.allocation());
        (value, expiry)
    }
}

/// The buffer of an external string, for modification. It is copied first if others share it.
///
/// # Safety
/// `entry` must be live and not used otherwise while the result lives.
pub unsafe fn raw_mut<'a>(entry: Pointer) -> Option<&'a mut Vec<u8>> {
    // SAFETY: promised by the caller; the pointer is from `SharedBytes::into_raw`, and is written back. Nobody else
    // can share the buffer meanwhile, because the entry is not used otherwise.
    unsafe {
        let layout = Layout::read(entry);
        if layout.meta & KIND_MASK != Kind::String as u8 || layout.repr() != Repr::External {
            return None;
        }
        let mut owner = SharedBytes::from_raw(raw_pointer(entry, &layout));
        owner.make_mut();
        let buffer = owner.into_raw();
        entry.as_ptr().add(layout.value).cast::<*const Vec<u8>>().write_unaligned(buffer);
        Some(&mut *buffer.cast_mut())
    }
}

/// The collection in an entry, for modification; `None` if the value is of another kind.
///
/// # Safety
/// As for `raw_mut`.
#[inline]
pub unsafe fn collection_mut<'a, C: Collection>(entry: Pointer) -> Option<&'a mut C> {
    // SAFETY: promised by the caller; the kind determines the type
    // of the word, and a collection is a transparent wrapper of it.
    unsafe {
        let layout = Layout::read(entry);
        (layout.meta & KIND_MASK == C::KIND as u8).then(|| &mut *entry.as_ptr().add(layout.value).cast::<C>())
    }
}

/// The value, if it is a collection that can be captured in pieces.
///
/// # Safety
/// As for `raw_mut`.
pub unsafe fn gradual<'a>(entry: Pointer) -> Option<&'a mut dyn Gradual> {
    // SAFETY: promised by the caller.
    unsafe {
        let kind = Kind::from_bits(entry.as_ptr().add(META).read() & KIND_MASK);
        on!(kind, C => collection_mut::<C>(entry)?.gradual(), None)
    }
}

/// Sets the snapshot epoch of an entry.
///
/// # Safety
/// As for `raw_mut`.
pub unsafe fn set_epoch(entry: Pointer, epoch: bool) {
    // SAFETY: promised by the caller.
    unsafe {
        let meta = entry.as_ptr().add(META);
        meta.write(meta.read() & !EPOCH | if epoch { EPOCH } else { 0 });
    }
}

/// Sets the access clock.
///
/// # Safety
/// As for `raw_mut`.
#[inline]
pub unsafe fn set_clock(entry: Pointer, clock: u32) {
    // SAFETY: promised by the caller.
    unsafe {
        let at = entry.as_ptr().cast::<u32>();
        at.write_unaligned(at.read_unaligned() & 0xff00_0000 | (clock & 0x00ff_ffff));
    }
}

/// A key with its value, borrowed.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    entry: Pointer,
    borrowed: PhantomData<&'a [u8]>,
}

impl<'a> Entry<'a> {
    /// Borrows an entry.
    ///
    /// # Safety
    /// It must be live, and neither changed nor freed during `'a`.
    #[inline]
    pub unsafe fn from_pointer(entry: Pointer) -> Entry<'a> {
        Entry { entry, borrowed: PhantomData }
    }

    #[inline]
    fn layout(&self) -> Layout {
        // SAFETY: live, as `from_pointer` was promised.
        unsafe { Layout::read(self.entry) }
    }

    #[inline]
    fn bytes(&self, start: usize, len: usize) -> &'a [u8] {
        // SAFETY: only called with offsets from the entry's own layout.
        unsafe { std::slice::from_raw_parts(self.entry.as_ptr().add(start), len) }
    }

    /// The key.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        let layout = self.layout();
        self.bytes(layout.key, layout.key_len)
    }

    /// Whether its key equals `key`.
    #[inline]
    pub fn has_key(&self, key: &[u8]) -> bool {
        let own = self.key();
        own.len() == key.len() && is_same(own, key)
    }

    #[inline]
    fn meta(&self) -> u8 {
        self.bytes(META, 1)[0]
    }

    /// The kind of its value.
    #[inline]
    pub fn kind(&self) -> Kind {
        Kind::from_bits(self.meta() & KIND_MASK)
    }

    /// The string; `None` if the value is of another kind.
    #[inline]
    pub fn str(&self) -> Option<Str<'a>> {
        let layout = self.layout();
        if layout.meta & KIND_MASK != Kind::String as u8 {
            return None;
        }
        Some(match layout.repr() {
            Repr::Inline => Str::Bytes(self.bytes(layout.value, layout.value_len)),
            // SAFETY: the value is an integer's eight bytes.
            Repr::Int => Str::Int(unsafe { self.entry.as_ptr().add(layout.value).cast::<i64>().read_unaligned() }),
            // SAFETY: the pointer is that of a shared vector, which does not change during `'a`.
            Repr::External => Str::Bytes(unsafe { (*raw_pointer(self.entry, &layout)).as_slice() }),
        })
    }

    /// The string, to be kept beyond the borrow, if it is large.
    #[inline]
    pub fn shared(&self) -> Option<SharedBytes> {
        const EXTERNAL_STRING: u8 = (Repr::External as u8) << REPR_SHIFT | Kind::String as u8;
        if self.meta() & (REPR_MASK | KIND_MASK) == EXTERNAL_STRING { self.shared_external() } else { None }
    }

    #[inline(never)]
    fn shared_external(&self) -> Option<SharedBytes> {
        // SAFETY: the value is a pointer from `SharedBytes::into_raw`. The entry keeps its own reference.
        let owner = ManuallyDrop::new(unsafe { SharedBytes::from_raw(raw_pointer(self.entry, &self.layout())) });
        (owner.len() >= SHARED_MIN).then(|| SharedBytes::clone(&owner))
    }

    /// The collection; `None` if the value is of another kind.
    #[inline]
    pub fn collection<C: Collection>(&self) -> Option<&'a C> {
        let layout = self.layout();
        // SAFETY: the kind determines the type of the word, a collection
        // wraps its word, and it does not change during `'a`.
        (layout.meta & KIND_MASK == C::KIND as u8)
            .then(|| unsafe { &*self.entry.as_ptr().add(layout.value).cast::<C>() })
    }

    /// Its snapshot epoch.
    #[inline]
    pub fn epoch(&self) -> bool {
        self.meta() & EPOCH != 0
    }

    /// Whether it has expired: an entry still exists in the millisecond of its expiry.
    #[inline]
    pub fn is_expired(&self, now_ms: i64) -> bool {
        self.expiry().is_some_and(|at| now_ms > at)
    }

    /// Whether it has an expiry.
    #[inline]
    pub fn has_expiry(&self) -> bool {
        self.meta() & HAS_EXPIRY != 0
    }

    /// Unix time in milliseconds at which it expires.
    #[inline]
    pub fn expiry(&self) -> Option<i64> {
        if !self.has_expiry() {
            return None;
        }
        let layout = self.layout();
        // SAFETY: the layout declares an expiry at this offset; its first bytes determine its length.
        unsafe {
            let at = self.entry.as_ptr().add(layout.expiry);
            match read_48(at) {
                EXPIRY_ESCAPE => Some(at.add(EXPIRY_SHORT).cast::<i64>().read_unaligned()),
                short => Some(short as i64),
            }
        }
    }

    /// True when it has an expiry.
    #[inline]
    pub fn is_volatile(&self) -> bool {
        self.meta() & HAS_EXPIRY != 0
    }

    /// The 24-bit access clock.
    #[inline]
    pub fn clock(&self) -> u32 {
        let bytes = self.bytes(0, META);
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0])
    }

    /// The pointer that the table stores.
    #[inline]
    pub fn pointer(&self) -> Pointer {
        self.entry
    }

    /// Its address. It changes when the entry grows or changes its representation.
    pub fn address(&self) -> usize {
        self.entry.as_ptr() as usize
    }

    /// The name of the value's encoding, as OBJECT ENCODING reports it.
    pub fn encoding(&self) -> &'static str {
        let layout = self.layout();
        match layout.repr() {
            Repr::Int => "int",
            Repr::External => on!(self.kind(), C => self.collection::<C>().map_or("raw", C::encoding), "raw"),
            Repr::Inline if embedded_in_reference(&layout, self.is_volatile()) => "embstr",
            Repr::Inline => "raw",
        }
    }

    /// The internal representation of a collection; [`Inside::Other`] for strings.
    pub fn inside(&self) -> Inside<'a> {
        on!(self.kind(), C => self.collection::<C>().map_or(Inside::Other, C::inside), Inside::Other)
    }

    /// Bytes of memory that key and value take, rounded up to the allocator's size classes.
    /// A large collection's size is estimated from `samples` elements; 0 counts all.
    pub fn memory(&self, samples: usize) -> usize {
        self.layout().allocation().size() + self.external_memory(samples)
    }

    /// The part of [`memory`](Self::memory) outside the entry.
    pub fn external_memory(&self, samples: usize) -> usize {
        let layout = self.layout();
        if layout.repr() != Repr::External {
            return 0;
        }
        let string = || {
            // SAFETY: as in `str`.
            let capacity = unsafe { (*raw_pointer(self.entry, &layout)).capacity() };
            size_class(SharedBytes::HEADER.size()) + if capacity == 0 { 0 } else { size_class(capacity) }
        };
        on!(self.kind(), C => self.collection::<C>().map_or(0, |c| c.memory(samples)), string())
    }

    /// Number of elements of a collection; 0 for strings.
    pub fn elements(&self) -> usize {
        on!(self.kind(), C => self.collection::<C>().map_or(0, C::len), 0)
    }

    /// Estimated work to capture it for a snapshot, in elements.
    pub fn capture_effort(&self) -> usize {
        const BYTES_PER_ELEMENT: usize = 64;
        match self.str() {
            Some(Str::Bytes(bytes)) => 1 + bytes.len() / BYTES_PER_ELEMENT,
            _ => 1 + self.elements(),
        }
    }

    /// Whether the value is large enough to be freed in the background.
    #[inline]
    pub fn is_costly_to_free(&self) -> bool {
        self.meta() & REPR_MASK == (Repr::External as u8) << REPR_SHIFT && self.is_large()
    }

    #[inline(never)]
    fn is_large(&self) -> bool {
        match self.kind() {
            Kind::String => self.external_memory(0) > LAZY_BYTES_MIN,
            kind => on!(kind, C => self.collection::<C>().is_some_and(|c| c.free_effort() > LAZY_EFFORT_MIN), false),
        }
    }

    /// A copy of the value.
    pub fn to_value(&self) -> Value {
        match (self.layout().repr(), self.str()) {
            (_, Some(Str::Int(number))) => Value::Int(number),
            (Repr::External, Some(Str::Bytes(bytes))) => Value::Raw(bytes.to_vec().into()),
            (_, Some(Str::Bytes(bytes))) => Value::Bytes(bytes.to_vec()),
            (_, None) => {
                on!(self.kind(), C => match self.collection::<C>() {
                    Some(collection) => Value::Object(Object::new(collection.clone())),
                    None => unreachable!("the kind is its own"),
                }, unreachable!("strings are seen as such"))
            }
        }
    }
}

#[cfg(test)]
mod tests;
