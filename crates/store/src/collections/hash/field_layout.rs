//! The layout of one field of a large hash: a single allocation with name, value and expiry.
//!
//! ```text
//! | flags: 1 byte | expiry: 0 or 8 bytes | field | value |     rounded up to a size class
//! ```
//!
//! Field and value are strings with a length prefix, in the layout of [`element`]. A change
//! that keeps the size class is made in place, so counters and values of similar length are not
//! reallocated. A field that had an expiry keeps the space for one until it is reallocated.
//!
//! # Safety
//!
//! Only [`create`] makes elements and only [`update`] changes them. Both write flags
//! and lengths from which the size of the allocation is computed when it is freed.

use super::field::Field;
use crate::encodings::element;
use crate::encodings::members::Layout;
use crate::memory::size_class;
use crate::snapshot::pieces::Piece;
use crate::table::Pointer;
use crate::value::Str;

/// Flag: the element has space for an expiry.
const ROOM: u8 = 1;
/// The stored expiry of a field that has none: valid ones are not negative.
const NONE: i64 = -1;
const FLAGS_LEN: usize = 1;
const EXPIRY_LEN: usize = size_of::<i64>();

/// The layout of the elements of hashes.
pub(super) struct FieldLayout;

/// The parts of a stored field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parts<'a> {
    pub field: &'a [u8],
    pub value: &'a [u8],
    /// Unix time in milliseconds.
    pub expiry: Option<i64>,
}

impl<'a> From<Parts<'a>> for Field<'a> {
    #[inline]
    fn from(parts: Parts<'a>) -> Self {
        Field { name: Str::Bytes(parts.field), value: Str::Bytes(parts.value), expiry: parts.expiry }
    }
}

/// Size of the allocation for a field.
#[inline]
fn size_of_parts(room: bool, field_len: usize, value_len: usize) -> usize {
    let strings = element::header_len(field_len) + field_len + element::header_len(value_len) + value_len;
    size_class(FLAGS_LEN + if room { EXPIRY_LEN } else { 0 } + strings)
}

/// Creates an element.
pub(super) fn create(parts: Parts<'_>) -> Pointer {
    let room = parts.expiry.is_some();
    let pointer = element::allocate(size_of_parts(room, parts.field.len(), parts.value.len()));
    // SAFETY: the allocation has space for all parts.
    unsafe {
        let mut at = pointer.as_ptr();
        at.write(if room { ROOM } else { 0 });
        at = at.add(FLAGS_LEN);
        if room {
            set_expiry(pointer, parts.expiry);
            at = at.add(EXPIRY_LEN);
        }
        at = element::write(at, parts.field);
        element::write(at, parts.value);
    }
    pointer
}

/// Whether the element has space for an expiry.
///
/// # Safety
/// The pointer must be that of an element.
#[inline]
unsafe fn has_room(pointer: Pointer) -> bool {
    // SAFETY: promised by the caller.
    unsafe { pointer.read() & ROOM != 0 }
}

/// The start of the field's name.
///
/// # Safety
/// The pointer must be that of an element.
#[inline]
unsafe fn strings(pointer: Pointer) -> *mut u8 {
    // SAFETY: promised by the caller; flags and expiry are part of the allocation.
    unsafe { pointer.as_ptr().add(FLAGS_LEN + if has_room(pointer) { EXPIRY_LEN } else { 0 }) }
}

/// Writes an expiry, or its absence, into the space for it.
///
/// # Safety
/// The pointer must be that of an element with space for an expiry, and not be used by any other thread.
#[inline]
unsafe fn set_expiry(pointer: Pointer, expiry: Option<i64>) {
    let bytes = expiry.unwrap_or(NONE).to_le_bytes();
    // SAFETY: promised by the caller.
    unsafe { pointer.as_ptr().add(FLAGS_LEN).cast::<[u8; EXPIRY_LEN]>().write(bytes) }
}

/// When the field expires, if ever.
///
/// # Safety
/// The pointer must be that of an element.
#[inline]
pub(super) unsafe fn expiry(pointer: Pointer) -> Option<i64> {
    // SAFETY: promised by the caller.
    unsafe {
        if !has_room(pointer) {
            return None;
        }
        let at = i64::from_le_bytes(pointer.as_ptr().add(FLAGS_LEN).cast::<[u8; EXPIRY_LEN]>().read());
        (at != NONE).then_some(at)
    }
}

/// Name, value and expiry of the field.
///
/// # Safety
/// The pointer must be that of an element that does not change during `'a`.
#[inline]
pub(super) unsafe fn parts<'a>(pointer: Pointer) -> Parts<'a> {
    // SAFETY: promised by the caller; the value follows the field.
    unsafe {
        let strings = strings(pointer);
        let field = element::read(strings);
        let value = element::read(strings.add(element::header_len(field.len()) + field.len()));
        Parts { field, value, expiry: expiry(pointer) }
    }
}

/// Changes a field's value and expiry: in place if both fit, otherwise by returning a
/// new element, and the caller frees the old one. A `value` of `None` keeps the value.
///
/// # Safety
/// The pointer must be that of an element that is not used otherwise, and `value` must not be part of it.
pub(super) unsafe fn update(pointer: Pointer, value: Option<&[u8]>, expiry: Option<i64>) -> Option<Pointer> {
    // SAFETY: promised by the caller. The strings are read before anything is written;
    // writes in place stay within the size class, and update lengths and flags.
    unsafe {
        let old = parts(pointer);
        let room = has_room(pointer);
        let new = Parts { field: old.field, value: value.unwrap_or(old.value), expiry };
        let size = |value: &[u8]| size_of_parts(room, old.field.len(), value.len());
        if expiry.is_some() && !room || size(new.value) != size(old.value) {
            return Some(create(new));
        }
        if room {
            set_expiry(pointer, expiry);
        }
        if let Some(value) = value {
            let field_len = old.field.len();
            element::write(strings(pointer).add(element::header_len(field_len) + field_len), value);
        }
        None
    }
}

// SAFETY: `update` in place does not change the field's name.
unsafe impl Layout for FieldLayout {
    #[inline]
    unsafe fn name<'a>(pointer: Pointer) -> &'a [u8] {
        // SAFETY: promised by the caller.
        unsafe { element::read(strings(pointer)) }
    }

    #[inline]
    unsafe fn size(pointer: Pointer) -> usize {
        // SAFETY: promised by the caller.
        unsafe {
            let Parts { field, value, .. } = parts(pointer);
            size_of_parts(has_room(pointer), field.len(), value.len())
        }
    }

    #[inline]
    unsafe fn free(pointer: Pointer) {
        // SAFETY: allocated by `create` with a size of this class, which updates in place preserve.
        unsafe { element::release(pointer, Self::size(pointer)) }
    }

    unsafe fn copy(pointer: Pointer) -> Pointer {
        // SAFETY: promised by the caller.
        create(unsafe { parts(pointer) })
    }

    unsafe fn piece<'a>(pointer: Pointer) -> Piece<'a> {
        // SAFETY: promised by the caller.
        Piece::Field(unsafe { parts(pointer) }.into())
    }
}
