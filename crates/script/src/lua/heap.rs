//! Lua's memory: the global allocator, with accounting.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::ffi::c_void;

use super::shared::Shared;

/// The alignment that Lua's values require.
const ALIGN: usize = 8;

/// The memory of one state.
pub(crate) struct Heap {
    used: Cell<usize>,
    limit: Cell<usize>,
}

impl Heap {
    pub(super) fn new() -> Heap {
        Heap { used: Cell::new(0), limit: Cell::new(usize::MAX) }
    }

    /// The bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }

    /// Sets the limit of bytes in use; allocations beyond it fail. Set only while scripts run, since code outside
    /// protected calls cannot handle failures.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.set(limit);
    }

    /// Whether a block may be resized from `old` to `new` bytes; updates the count if so.
    #[inline]
    fn resize(&self, old: usize, new: usize) -> bool {
        let used = (self.used.get() - old).saturating_add(new);
        let fits = used <= self.limit.get() || new <= old;
        if fits {
            self.used.set(used);
        }
        fits
    }
}

/// Lua's allocation function. It fails if the limit would be exceeded. If the system is out of memory, it fails if
/// there is a limit; without one the failure could not be handled, and the process ends as in any out-of-memory
/// condition.
///
/// # Safety
/// Only Lua may call it. `shared` is the heap that the state was made with, and `block` is null or a block of `old`
/// bytes that this function returned.
pub(super) unsafe extern "C" fn allocate(
    shared: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    // SAFETY: the pointer that `GlobalState::new` passed.
    let heap = unsafe { &(*shared.cast::<Shared>()).heap };
    let old = if block.is_null() { 0 } else { old };
    let Ok(layout) = Layout::from_size_align(new, ALIGN) else { return std::ptr::null_mut() };
    if !heap.resize(old, new) {
        return std::ptr::null_mut();
    }
    // SAFETY: Lua frees blocks with the size that they were allocated with, and `new` fits a layout.
    let moved = unsafe {
        let old_layout = Layout::from_size_align_unchecked(old, ALIGN);
        match (old, new) {
            (0, 0) => return std::ptr::null_mut(),
            (0, _) => alloc::alloc(layout),
            (_, 0) => {
                alloc::dealloc(block.cast(), old_layout);
                return std::ptr::null_mut();
            }
            _ => alloc::realloc(block.cast(), old_layout, new),
        }
    };
    if !moved.is_null() {
        return moved.cast();
    }
    if heap.limit.get() == usize::MAX {
        alloc::handle_alloc_error(layout);
    }
    heap.used.set(heap.used.get() - new + old);
    // Lua relies on shrinking a block never failing.
    if new <= old { block } else { moved.cast() }
}
