//! Rust functions that Lua calls.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::NonNull;

use mlua::ffi;

use super::{Lua, Results};

/// A Rust function that Lua can call. It is identified by its type alone, so it needs no storage.
pub(crate) trait Function: Fn(Lua<'_>) -> Results + Copy {}

impl<F: Fn(Lua<'_>) -> Results + Copy> Function for F {}

/// A function of the standard library that a Rust function replaces and may call.
#[derive(Clone, Copy)]
pub(crate) struct NativeFunction(ffi::lua_CFunction);

impl NativeFunction {
    pub(super) fn new(function: ffi::lua_CFunction) -> NativeFunction {
        NativeFunction(function)
    }

    pub(super) fn get(self) -> ffi::lua_CFunction {
        self.0
    }
}

/// The C function for a function type `F`.
///
/// # Safety
/// Only Lua may call it, with the state of a closure that was made for `F`.
pub(super) unsafe extern "C-unwind" fn enter<F: Function>(raw: *mut ffi::lua_State) -> c_int {
    const { assert!(size_of::<F>() == 0, "a function that Lua calls has nothing of its own") };
    // SAFETY: a zero-sized value exists once one has been created, and `push_closure` received one.
    let function: F = unsafe { std::mem::zeroed() };
    // SAFETY: Lua passes its state.
    let lua = Lua { raw: unsafe { NonNull::new_unchecked(raw) }, life: PhantomData };
    match function(lua) {
        Ok(results) => results,
        // SAFETY: the error is on the top of the stack. No Rust frame with a value to drop remains.
        Err(_) => unsafe { ffi::lua_error(raw) },
    }
}

/// The hook that Lua calls periodically while its code runs, and before each line that is debugged.
///
/// # Safety
/// Only Lua may call it, with its state and a record of the event.
pub(super) unsafe extern "C-unwind" fn hook(raw: *mut ffi::lua_State, record: *mut ffi::lua_Debug) {
    // SAFETY: Lua passes its state.
    let lua = Lua { raw: unsafe { NonNull::new_unchecked(raw) }, life: PhantomData };
    // SAFETY: Lua passes a record with the event, and the line if the event is a line.
    let (event, line) = unsafe { ((*record).event, (*record).currentline) };
    let outcome = if event == ffi::LUA_HOOKLINE { lua.stop_at_line(line) } else { lua.check_interrupt() };
    if outcome.is_err() {
        // SAFETY: as in `enter`.
        unsafe { ffi::lua_error(raw) }
    }
}
