//! Access to compiled functions: their bytecode, and the values that they share with other functions.

use std::ffi::{c_int, c_void};
use std::slice;

use mlua::ffi;

use super::Lua;

impl Lua<'_> {
    /// The bytecode of the Lua function at `index`; empty if it is a native function.
    pub(crate) fn bytecode(self, index: i32) -> Vec<u8> {
        let mut out = Vec::new();
        self.push_value(index);
        // SAFETY: there is a function on the top, and `out` outlives the call, which raises no errors.
        unsafe {
            ffi::lua_dump_(self.raw.as_ptr(), append, (&raw mut out).cast());
        }
        self.pop(1);
        out
    }

    /// Pushes upvalue `n`, counted from 1, of the function at `index`; returns whether it exists.
    pub(crate) fn push_upvalue(self, index: i32, n: i32) -> bool {
        self.check(index);
        // SAFETY: there is a function at the index, and room.
        unsafe { !ffi::lua_getupvalue(self.raw.as_ptr(), index, n).is_null() }
    }
}

/// Appends a piece of bytecode.
///
/// # Safety
/// Only `lua_dump` may call it, with `len` bytes at `piece` and the vector that was passed to it.
unsafe extern "C-unwind" fn append(
    _: *mut ffi::lua_State,
    piece: *const c_void,
    len: usize,
    out: *mut c_void,
) -> c_int {
    // SAFETY: see above.
    let (out, piece) = unsafe { (&mut *out.cast::<Vec<u8>>(), slice::from_raw_parts(piece.cast::<u8>(), len)) };
    out.extend_from_slice(piece);
    0
}
