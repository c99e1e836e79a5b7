//! Where Lua's memory comes from: the program's allocator, counted.

use std::alloc::{self, Layout};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use mlua::ffi;

use super::shared::Shared;

/// What Lua aligns its values to.
const ALIGN: usize = 8;

/// Up to so many bytes a heap is small: the collector then waits until the heap is several times as large as what was in
/// use, since a cycle costs as much as many short scripts do.
const SMALL_MAX: usize = 1 << 20;

/// How large the heap may become before the next cycle begins, in percent of what was in use after the last one.
const PAUSE_SMALL: c_int = 1000;
const PAUSE_LARGE: c_int = 200;

/// The memory of one state.
pub(crate) struct Heap {
    used: Cell<usize>,
    limit: Cell<usize>,
    /// Beyond this there is something to be done: the limit, or the size up to which the heap is small.
    alert: Cell<usize>,
}

impl Heap {
    pub(super) fn new() -> Heap {
        Heap { used: Cell::new(0), limit: Cell::new(usize::MAX), alert: Cell::new(usize::MAX) }
    }

    /// The bytes in use.
    pub(crate) fn used(&self) -> usize {
        self.used.get()
    }

    /// How many bytes may be in use; what asks for more fails. Only ever set while scripts run, since what runs outside
    /// of a protected call has nobody to fail to.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.set(limit);
        self.alert.set(self.alert.get().min(limit));
    }

    /// Whether the heap is small.
    pub(crate) fn is_small(&self) -> bool {
        self.used.get() <= SMALL_MAX
    }

    /// Has the collector wait long while the heap is small, if it is and may become a good deal larger than that.
    pub(super) fn relax(&self, main: *mut ffi::lua_State, limit: Option<usize>) {
        if self.is_small() && limit.is_none_or(|limit| limit / 8 >= SMALL_MAX) {
            set_pause(main, PAUSE_SMALL);
            self.alert.set(self.limit.get().min(SMALL_MAX));
        }
    }

    /// Whether a block may grow from `old` to `new` bytes; counts it then.
    #[inline]
    fn resize(&self, old: usize, new: usize, main: impl Fn() -> *mut ffi::lua_State) -> bool {
        let used = (self.used.get() - old).saturating_add(new);
        if used > self.alert.get() && new > old && !self.is_allowed(used, main) {
            return false;
        }
        self.used.set(used);
        true
    }

    #[cold]
    fn is_allowed(&self, used: usize, main: impl Fn() -> *mut ffi::lua_State) -> bool {
        if used > SMALL_MAX {
            set_pause(main(), PAUSE_LARGE);
            self.alert.set(self.limit.get());
        }
        used <= self.limit.get()
    }
}

/// Sets the collector's pause. Also while Lua asks for memory: the collector reads it when a cycle ends.
fn set_pause(main: *mut ffi::lua_State, percent: c_int) {
    if !main.is_null() {
        // SAFETY: it is the state's main thread, and this sets a number and nothing else.
        unsafe { ffi::lua_gc(main, ffi::LUA_GCSETPAUSE, percent) };
    }
}

/// Lua's allocator. The heap's limit may refuse what Lua asks for, and so may the system if there is a limit; without
/// one nobody would be told, and the program ends as it does whenever the system has no memory.
pub(super) unsafe extern "C" fn allocate(
    shared: *mut c_void,
    block: *mut c_void,
    old: usize,
    new: usize,
) -> *mut c_void {
    // SAFETY: what `Universe::new` gave.
    let shared = unsafe { &*shared.cast::<Shared>() };
    let heap = &shared.heap;
    let old = if block.is_null() { 0 } else { old };
    let Ok(layout) = Layout::from_size_align(new, ALIGN) else { return std::ptr::null_mut() };
    if !heap.resize(old, new, || shared.main.get().map_or(std::ptr::null_mut(), NonNull::as_ptr)) {
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
