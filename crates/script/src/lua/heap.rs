//! Where Lua's memory comes from: the program's allocator, counted.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::ffi::c_void;

use super::shared::Shared;

/// What Lua aligns its values to.
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

    /// How many bytes may be in use; what asks for more fails. Only ever set while scripts run, since what runs outside
    /// of a protected call has nobody to fail to.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.set(limit);
    }

    /// Whether a block may grow from `old` to `new` bytes, or shrink; counts it then.
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

/// Lua's allocator. The heap's limit may refuse what Lua asks for, and so may the system if there is a limit; without
/// one nobody would be told, and the program ends as it does whenever the system has no memory.
///
/// # Safety
/// Only Lua may call it. `shared` is the heap that the state was made with, and `block` is null or a block of `old` bytes
/// that this function returned.
pub(super) unsafe extern "C" fn allocate(
    shared: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    // SAFETY: what `Universe::new` gave.
    let heap = unsafe { &(*shared.cast::<Shared>()).heap };
    let old = if block.is_null() { 0 } else { old };
    let Ok(layout) = Layout::from_size_align(new, ALIGN) else { return std::ptr::null_mut() };
    if !heap.resize(old, new) {
        return std::ptr::null_mut();
    }
    // SAFETY: Lua gives back blocks with the size that they were made with, and `new` fits a layout.
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
    // Lua relies on it that blocks can become smaller.
    if new <= old { block } else { moved.cast() }
}
