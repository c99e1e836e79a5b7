//! Functions that Lua calls.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::NonNull;

use mlua::ffi;

use super::{Lua, Results};

/// A function of ours that Lua can call: one that is known by its type alone, so that nothing has to be kept for it.
pub(crate) trait Function: Fn(Lua<'_>) -> Results + Copy {}

impl<F: Fn(Lua<'_>) -> Results + Copy> Function for F {}

/// A function of the standard library, to be called by one of ours that stands in its place.
#[derive(Clone, Copy)]
pub(crate) struct Foreign(ffi::lua_CFunction);

impl Foreign {
    pub(super) fn new(function: ffi::lua_CFunction) -> Foreign {
        Foreign(function)
    }

    pub(super) fn get(self) -> ffi::lua_CFunction {
        self.0
    }
}

/// What Lua calls for a function `F`.
///
/// # Safety
/// Only Lua may call it, with the state of a closure that was made for `F`.
pub(super) unsafe extern "C-unwind" fn enter<F: Function>(raw: *mut ffi::lua_State) -> c_int {
    const { assert!(size_of::<F>() == 0, "a function that Lua calls has nothing of its own") };
    // SAFETY: a value without bytes is there as soon as one was made, and `push_closure` was given one.
    let function: F = unsafe { std::mem::zeroed() };
    // SAFETY: Lua calls with its state.
    let lua = Lua { raw: unsafe { NonNull::new_unchecked(raw) }, life: PhantomData };
    match function(lua) {
        Ok(results) => results,
        // SAFETY: the error is on the top of the stack. No frame of ours is left that has something to drop.
        Err(_) => unsafe { ffi::lua_error(raw) },
    }
}

/// What Lua calls now and then while its code runs, and before each line of what is debugged.
///
/// # Safety
/// Only Lua may call it, with its state and a record of the event.
pub(super) unsafe extern "C-unwind" fn hook(raw: *mut ffi::lua_State, record: *mut ffi::lua_Debug) {
    // SAFETY: Lua calls with its state.
    let lua = Lua { raw: unsafe { NonNull::new_unchecked(raw) }, life: PhantomData };
    // SAFETY: Lua calls with a record that says why, and of what line if that is why.
    let (event, line) = unsafe { ((*record).event, (*record).currentline) };
    let outcome =
        if event == ffi::LUA_HOOKLINE { crate::debugger::at_line(lua, line) } else { crate::run::may_go_on(lua) };
    if outcome.is_err() {
        lua.watch_closely();
        // SAFETY: as in `enter`.
        unsafe { ffi::lua_error(raw) }
    }
}
