//! A string under construction whose memory belongs to Lua, so that an error may leave it behind.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use mlua::ffi;

use super::Lua;

/// The memory of a [`Buffer`].
pub(crate) struct Storage(MaybeUninit<ffi::luaL_Buffer>);

impl Storage {
    /// Memory that is not in use.
    pub(crate) fn new() -> Self {
        Storage(MaybeUninit::uninit())
    }
}

/// A string under construction. It keeps a varying number of values on the top of the stack; the caller removes what it
/// pushes on top of them before it uses the buffer.
pub(crate) struct Buffer<'a> {
    raw: NonNull<ffi::luaL_Buffer>,
    life: PhantomData<(Lua<'a>, &'a mut Storage)>,
}

impl<'a> Buffer<'a> {
    /// An empty string.
    pub(crate) fn new(lua: Lua<'a>, storage: &'a mut Storage) -> Self {
        let raw = NonNull::from(&mut storage.0).cast::<ffi::luaL_Buffer>();
        // SAFETY: this initialises the memory, except for bytes that are written before they are read. The memory stays
        // in place, because it is borrowed.
        unsafe { ffi::luaL_buffinit(lua.raw.as_ptr(), raw.as_ptr()) };
        Buffer { raw, life: PhantomData }
    }

    /// Appends bytes. May fail.
    pub(crate) fn add_bytes(&mut self, bytes: &[u8]) {
        // SAFETY: it was initialised, the bytes are valid, and by the rules, a jump has nothing to drop.
        unsafe { ffi::luaL_addlstring(self.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Pops a string or a number and appends it. May fail.
    pub(crate) fn add_top(&mut self) {
        // SAFETY: as above; the caller has pushed a value.
        unsafe { ffi::luaL_addvalue(self.raw.as_ptr()) }
    }

    /// Ends the construction and pushes the string. May fail.
    pub(crate) fn push(self) {
        // SAFETY: as above.
        unsafe { ffi::luaL_pushresult(self.raw.as_ptr()) }
    }
}
