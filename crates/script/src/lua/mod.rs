//! A wrapper of the parts of Lua's C interface that this crate needs: the only module with `unsafe`.
//!
//! [`Lua`] is one Lua thread as seen from the running function; [`GlobalState`] owns the state that all threads share.
//! [`function`] makes Rust functions callable from Lua, [`heap`] manages Lua's memory, and [`shared`] contains the Rust
//! data of a state. The rest of the crate follows these rules, and the unsafe blocks below rely on them:
//!
//! * **Nothing to drop.** Lua leaves a failing function by a jump. A caller of a method that may fail (one that creates
//!   a string, a table or a function, that stores into a table, or that calls) must not hold a value with a destructor;
//!   buffers are in [`shared::State`]. Rust functions fail by returning [`Raise`], with the error on the stack; the
//!   jump happens outside Rust.
//! * **Valid indices.** An index refers to a value on the stack, is a pseudo index, or, where "acceptable" is stated, a
//!   position just above the top. Debug builds check this.
//! * **Stack space.** A function may push [`ROOM`] values; one that needs more calls [`Lua::check_stack`] first.
//! * **The bytes of a string are valid while the string is on the stack** (or in a table that is), regardless of their
//!   declared lifetime.
//! * **No Lua code runs inside a method unless its documentation says so.** Tables are accessed raw, and there are no
//!   finalizers: scripts cannot create any.

pub(crate) mod buffer;
mod dump;
mod function;
mod heap;
pub(crate) mod reference;
pub(crate) mod shared;

use std::ffi::{CStr, c_char, c_int};
use std::fmt::{self, Write};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;

use mlua::ffi;

pub(crate) use function::{Function, NativeFunction};
use heap::Heap;
use reference::Ref;
use shared::{Hooks, Message, Shared, State};

use crate::debugger::session::Debugger;

/// Number of values that a function may push without checking the stack.
pub(crate) const ROOM: i32 = ffi::LUA_MINSTACK;

/// The pseudo index of the globals table.
pub(crate) const GLOBALS: i32 = ffi::LUA_GLOBALSINDEX;

/// The pseudo index of the registry, a table that only native functions can access.
pub(crate) const REGISTRY: i32 = ffi::LUA_REGISTRYINDEX;

/// The pseudo index of the running function's first upvalue.
pub(crate) const UPVALUE: i32 = ffi::lua_upvalueindex(1);

/// Number of instructions between checks whether the script may continue, as in Valkey.
const HOOK_PERIOD: c_int = 100_000;

/// Maximum length of the source: the parser counts some items in 32 bits.
const SOURCE_LEN_MAX: usize = 1 << 30;

/// The text up to its first NUL byte, which is all that Valkey processes.
pub(crate) fn c_text(bytes: &[u8]) -> &[u8] {
    memchr::memchr(0, bytes).map_or(bytes, |end| &bytes[..end])
}

/// The type of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    None,
    Nil,
    Boolean,
    LightUserdata,
    Number,
    String,
    Table,
    Function,
    Other,
}

/// A function failed; the error is on the top of the stack.
#[derive(Debug)]
pub(crate) struct Raise;

/// The result of a Rust function: the number of its results on the top of the stack.
pub(crate) type Results = Result<i32, Raise>;

/// A protected call or a compilation failed; the error is on the top of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failed;

/// The source position of a function.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Whether it is a native function, which has no source.
    pub(crate) native: bool,
    /// The name of the chunk, as passed to the compiler.
    pub(crate) source: &'a [u8],
    /// The current line; -1 if there is none.
    pub(crate) line: i32,
    /// The name by which the function was called, if known.
    pub(crate) name: Option<&'a [u8]>,
    /// Whether it was called as a method.
    pub(crate) method: bool,
}

/// The parts of the standard library to open.
#[derive(Clone, Copy)]
pub(crate) enum Library {
    /// Includes coroutines.
    Base,
    Table,
    String,
    Math,
    Os,
}

/// One Lua thread, as seen from the running function.
#[derive(Clone, Copy)]
pub(crate) struct Lua<'a> {
    raw: NonNull<ffi::lua_State>,
    life: PhantomData<&'a GlobalState>,
}

/// A Lua state with all its threads and values.
pub(crate) struct GlobalState {
    main: NonNull<ffi::lua_State>,
    shared: NonNull<Shared>,
}

// SAFETY: the state is not bound to the thread that created it, and a holder of `&mut GlobalState` (or of the only
// `&GlobalState`: it is not `Sync`) has exclusive access.
unsafe impl Send for GlobalState {}

impl GlobalState {
    /// A new state without libraries, or `None` if there is not enough memory.
    pub(crate) fn new(state: State, hooks: Hooks) -> Option<GlobalState> {
        let shared = NonNull::from(Box::leak(Box::new(Shared::new(state, hooks))));
        // SAFETY: `shared` outlives the state: it is freed after `lua_close`.
        let main = unsafe { ffi::lua_newstate(heap::allocate, shared.as_ptr().cast()) };
        let Some(main) = NonNull::new(main) else {
            // SAFETY: it was leaked above, and no state refers to it.
            drop(unsafe { Box::from_raw(shared.as_ptr()) });
            return None;
        };
        let global_state = GlobalState { main, shared };
        global_state.lua().shared().main.set(Some(main));
        global_state.lua().watch();
        Some(global_state)
    }

    /// The main thread, outside of any function.
    pub(crate) fn lua(&self) -> Lua<'_> {
        Lua { raw: self.main, life: PhantomData }
    }
}

impl Drop for GlobalState {
    fn drop(&mut self) {
        // SAFETY: this value owns the state and the shared data, and neither is used after this.
        unsafe {
            ffi::lua_close(self.main.as_ptr());
            drop(Box::from_raw(self.shared.as_ptr()));
        }
    }
}

impl<'a> Lua<'a> {
    /// The Rust data of the state. The reference must not be held while Lua code may run.
    #[inline]
    pub(crate) fn state(self) -> &'a mut State {
        // SAFETY: rule "no Lua code runs": one function at a time has the reference and releases it before others may
        // run.
        unsafe { &mut *self.shared().state.get() }
    }

    /// The debugger session that the script runs in, if any. The reference must not be held while Lua code may run.
    pub(crate) fn debugger(self) -> Option<&'a mut Debugger> {
        // SAFETY: it is alive between `set_debugger` and `clear_host`; as in `state`, one function at a time has the
        // reference.
        self.state().debugger.map(|mut debugger| unsafe { debugger.as_mut() })
    }

    /// The memory accounting of the state.
    #[inline]
    pub(crate) fn heap(self) -> &'a Heap {
        &self.shared().heap
    }

    #[inline]
    fn shared(self) -> &'a Shared {
        let mut shared = std::ptr::null_mut();
        // SAFETY: the pointer is the one that `GlobalState::new` passed, and it is valid as long as the state.
        unsafe {
            ffi::lua_getallocf(self.raw.as_ptr(), &mut shared);
            &*shared.cast::<Shared>()
        }
    }

    // The stack.

    /// The index of the top value, which is the number of values.
    #[inline]
    pub(crate) fn top(self) -> i32 {
        // SAFETY: valid in any state.
        unsafe { ffi::lua_gettop(self.raw.as_ptr()) }
    }

    /// Pops values or pushes nils until there are `top` values.
    #[inline]
    pub(crate) fn set_top(self, top: i32) {
        debug_assert!(top >= 0);
        // SAFETY: the rules guarantee the space.
        unsafe { ffi::lua_settop(self.raw.as_ptr(), top) }
    }

    /// Pops `n` values.
    #[inline]
    pub(crate) fn pop(self, n: i32) {
        debug_assert!((0..=self.top()).contains(&n));
        // SAFETY: the rules guarantee that there are that many values.
        unsafe { ffi::lua_settop(self.raw.as_ptr(), -n - 1) }
    }

    /// Reserves space for `n` more values; returns `false` if the stack cannot grow that much.
    #[inline]
    pub(crate) fn check_stack(self, n: i32) -> bool {
        // SAFETY: valid in any state.
        unsafe { ffi::lua_checkstack(self.raw.as_ptr(), n) != 0 }
    }

    /// Pushes a copy of a value.
    #[inline]
    pub(crate) fn push_value(self, index: i32) {
        self.check(index);
        // SAFETY: the value exists, and there is space.
        unsafe { ffi::lua_pushvalue(self.raw.as_ptr(), index) }
    }

    /// Moves the top value to an index, and shifts the values from there up.
    #[inline]
    pub(crate) fn insert(self, index: i32) {
        self.check(index);
        // SAFETY: the position exists.
        unsafe { ffi::lua_insert(self.raw.as_ptr(), index) }
    }

    /// Removes a value from the middle of the stack.
    #[inline]
    pub(crate) fn remove(self, index: i32) {
        self.check(index);
        // SAFETY: the value exists.
        unsafe { ffi::lua_remove(self.raw.as_ptr(), index) }
    }

    /// Pops the top value and replaces the value at an index by it.
    #[inline]
    pub(crate) fn replace(self, index: i32) {
        self.check(index);
        // SAFETY: the value exists; the globals are replaced only by a table.
        unsafe { ffi::lua_replace(self.raw.as_ptr(), index) }
    }

    /// Checks in debug builds that there is a value at `index`.
    #[inline]
    fn check(self, index: i32) {
        debug_assert!(index <= REGISTRY || (index != 0 && index.abs() <= self.top()), "no value at {index}");
    }

    // Reading values.

    /// The type of the value at an acceptable index.
    #[inline]
    pub(crate) fn kind(self, index: i32) -> Type {
        // SAFETY: the index is acceptable.
        match unsafe { ffi::lua_type(self.raw.as_ptr(), index) } {
            ffi::LUA_TNONE => Type::None,
            ffi::LUA_TNIL => Type::Nil,
            ffi::LUA_TBOOLEAN => Type::Boolean,
            ffi::LUA_TLIGHTUSERDATA => Type::LightUserdata,
            ffi::LUA_TNUMBER => Type::Number,
            ffi::LUA_TSTRING => Type::String,
            ffi::LUA_TTABLE => Type::Table,
            ffi::LUA_TFUNCTION => Type::Function,
            _ => Type::Other,
        }
    }

    /// The type name of the value at an acceptable index, as returned by `type`; "no value" if there is none.
    pub(crate) fn type_name(self, index: i32) -> &'static str {
        // SAFETY: the index is acceptable; names are constants.
        let name = unsafe {
            let kind = ffi::lua_type(self.raw.as_ptr(), index);
            CStr::from_ptr(ffi::lua_typename(self.raw.as_ptr(), kind))
        };
        name.to_str().unwrap_or_default()
    }

    /// Whether the value at an acceptable index is a number or a string that represents one.
    #[inline]
    pub(crate) fn is_number(self, index: i32) -> bool {
        // SAFETY: the index is acceptable.
        unsafe { ffi::lua_isnumber(self.raw.as_ptr(), index) != 0 }
    }

    /// Whether the value at an acceptable index is a string or a number.
    #[inline]
    pub(crate) fn is_string(self, index: i32) -> bool {
        matches!(self.kind(index), Type::String | Type::Number)
    }

    /// The number at an acceptable index, converted from a string if necessary; 0 for other values.
    #[inline]
    pub(crate) fn number(self, index: i32) -> f64 {
        // SAFETY: the index is acceptable.
        unsafe { ffi::lua_tonumber(self.raw.as_ptr(), index) }
    }

    /// Whether the value at an acceptable index is neither nil nor false.
    #[inline]
    pub(crate) fn boolean(self, index: i32) -> bool {
        // SAFETY: the index is acceptable.
        unsafe { ffi::lua_toboolean(self.raw.as_ptr(), index) != 0 }
    }

    /// The bytes of the string at an acceptable index. Converts a number to a string in place. `None` for other values.
    #[inline]
    pub(crate) fn bytes(self, index: i32) -> Option<&'a [u8]> {
        let mut len = 0;
        // SAFETY: the index is acceptable; the string has `len` bytes and, by the rules, stays valid.
        unsafe {
            let bytes = ffi::lua_tolstring(self.raw.as_ptr(), index, &mut len);
            (!bytes.is_null()).then(|| slice::from_raw_parts(bytes.cast(), len))
        }
    }

    /// The border of a table, as returned by `#`, or the length of a string.
    #[inline]
    pub(crate) fn len(self, index: i32) -> usize {
        self.check(index);
        // SAFETY: the value exists.
        unsafe { ffi::lua_objlen(self.raw.as_ptr(), index) }
    }

    /// Whether the light userdata at an index is that of [`push_null`](Self::push_null).
    #[inline]
    pub(crate) fn is_null(self, index: i32) -> bool {
        self.check(index);
        // SAFETY: the value exists.
        unsafe { ffi::lua_touserdata(self.raw.as_ptr(), index).is_null() }
    }

    /// The address of a light userdata; null for other values.
    #[inline]
    pub(crate) fn address(self, index: i32) -> *const u8 {
        // SAFETY: the index is acceptable.
        unsafe { ffi::lua_touserdata(self.raw.as_ptr(), index).cast_const().cast() }
    }

    /// An address that identifies a table, function, thread or userdata.
    pub(crate) fn pointer(self, index: i32) -> *const u8 {
        // SAFETY: the index is acceptable.
        unsafe { ffi::lua_topointer(self.raw.as_ptr(), index).cast() }
    }

    /// The function of the standard library at an index.
    pub(crate) fn native_function(self, index: i32) -> Option<NativeFunction> {
        self.check(index);
        // SAFETY: the value exists.
        unsafe { ffi::lua_tocfunction(self.raw.as_ptr(), index) }.map(NativeFunction::new)
    }

    // Pushing values.

    /// Pushes nil.
    #[inline]
    pub(crate) fn push_nil(self) {
        // SAFETY: there is room.
        unsafe { ffi::lua_pushnil(self.raw.as_ptr()) }
    }

    /// Pushes a number.
    #[inline]
    pub(crate) fn push_number(self, n: f64) {
        // SAFETY: there is room.
        unsafe { ffi::lua_pushnumber(self.raw.as_ptr(), n) }
    }

    /// Pushes a boolean.
    #[inline]
    pub(crate) fn push_boolean(self, value: bool) {
        // SAFETY: there is room.
        unsafe { ffi::lua_pushboolean(self.raw.as_ptr(), value.into()) }
    }

    /// Pushes a string. May fail.
    #[inline]
    pub(crate) fn push_bytes(self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        // SAFETY: there is space; by the rules, a jump has nothing to drop.
        unsafe { ffi::lua_pushlstring_(self.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Pushes the light userdata that represents null.
    #[inline]
    pub(crate) fn push_null(self) {
        self.push_address(std::ptr::null());
    }

    /// Pushes an address as light userdata. It is never dereferenced.
    #[inline]
    pub(crate) fn push_address(self, address: *const u8) {
        // SAFETY: there is room.
        unsafe { ffi::lua_pushlightuserdata(self.raw.as_ptr(), address.cast_mut().cast()) }
    }

    /// Pushes a memory block that contains `value`, for use as an upvalue. May fail.
    pub(crate) fn push_block<T: Copy>(self, value: T) {
        const { assert!(align_of::<T>() <= 8) };
        // SAFETY: there is space; blocks are aligned for the largest numbers and pointers.
        unsafe { ffi::lua_newuserdata(self.raw.as_ptr(), size_of::<T>()).cast::<T>().write(value) }
    }

    /// Reads the block that is the running function's first upvalue. `T` must be the type with which the function was
    /// created.
    #[inline]
    pub(crate) fn block<T: Copy>(self) -> T {
        let block = self.block_address::<T>();
        // SAFETY: `push_block` wrote it.
        unsafe { *block }
    }

    /// Writes that block.
    pub(crate) fn set_block<T: Copy>(self, value: T) {
        let block = self.block_address::<T>();
        // SAFETY: as in `block`, and there are no references to it.
        unsafe { *block = value }
    }

    fn block_address<T>(self) -> *mut T {
        debug_assert_eq!(self.len(UPVALUE), size_of::<T>());
        // SAFETY: the rules guarantee that the function has that upvalue.
        unsafe { ffi::lua_touserdata(self.raw.as_ptr(), UPVALUE).cast() }
    }

    /// Pushes `text` as a string, formatted in the state's message buffer. May fail.
    pub(crate) fn push_text(self, text: fmt::Arguments<'_>) {
        self.push_bytes(self.message(text));
    }

    fn message(self, text: fmt::Arguments<'_>) -> &'a Message {
        let message = &mut self.state().message;
        message.clear();
        let Ok(()) = message.write_fmt(text) else { unreachable!("messages take whatever is written to them") };
        message
    }

    /// Pops `n` strings and pushes their concatenation. May fail.
    pub(crate) fn concat(self, n: i32) {
        debug_assert!((1..=self.top()).contains(&n) && (1..=n).all(|i| self.is_string(-i)));
        // SAFETY: there are that many values, and they are strings or numbers, so no metamethod is called.
        unsafe { ffi::lua_concat(self.raw.as_ptr(), n) }
    }

    // Raw table access.

    /// Pushes a new table with space for `items` items and `fields` fields. May fail.
    #[inline]
    pub(crate) fn create_table(self, items: usize, fields: usize) {
        let bounded = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        // SAFETY: there is room.
        unsafe { ffi::lua_createtable(self.raw.as_ptr(), bounded(items), bounded(fields)) }
    }

    /// Replaces the key on the top by its value in the table at `index`.
    #[inline]
    pub(crate) fn raw_get(self, index: i32) {
        self.check_table(index);
        // SAFETY: it is a table.
        unsafe { ffi::lua_rawget_(self.raw.as_ptr(), index) }
    }

    /// Replaces the key on the top of the stack by its value in the table at `index`, as `table[key]` does. May fail;
    /// runs Lua code.
    pub(crate) fn get(self, index: i32) {
        self.check_table(index);
        // SAFETY: it is a table.
        unsafe { ffi::lua_gettable(self.raw.as_ptr(), index) };
    }

    /// Pushes item `n` of the table at `index`.
    #[inline]
    pub(crate) fn raw_get_item(self, index: i32, n: i32) {
        self.check_table(index);
        // SAFETY: it is a table, and there is room.
        unsafe { ffi::lua_rawgeti_(self.raw.as_ptr(), index, n) }
    }

    /// Pushes the field `name` of the table at `index`, which is evaluated before the push if it is relative. May fail.
    #[inline]
    pub(crate) fn raw_get_field(self, index: i32, name: &str) {
        self.check_table(index);
        let index = if index < 0 && index > REGISTRY { index - 1 } else { index };
        self.push_bytes(name);
        self.raw_get(index);
    }

    /// Pops a value, and a key below it, and stores them in the table at `index`. May fail; fails if the key is nil or
    /// NaN.
    #[inline]
    pub(crate) fn raw_set(self, index: i32) {
        self.check_table(index);
        // SAFETY: it is a table; a jump has nothing to drop.
        unsafe { ffi::lua_rawset(self.raw.as_ptr(), index) }
    }

    /// Pops the top value and stores it as item `n` of the table at `index`. May fail.
    #[inline]
    pub(crate) fn raw_set_item(self, index: i32, n: i32) {
        self.check_table(index);
        // SAFETY: it is a table; a jump has nothing to drop.
        unsafe { ffi::lua_rawseti_(self.raw.as_ptr(), index, n) }
    }

    /// Pops the top value and stores it as the field `name` of the table at `index`. May fail.
    #[inline]
    pub(crate) fn raw_set_field(self, index: i32, name: &str) {
        self.check_table(index);
        let index = if index < 0 && index > REGISTRY { index - 1 } else { index };
        self.push_bytes(name);
        self.insert(-2);
        self.raw_set(index);
    }

    /// Replaces the key on the top by the next key of the table at `index` and its value. At the end, pops the key and
    /// returns `false`. Fails if the key does not exist.
    #[inline]
    pub(crate) fn next(self, index: i32) -> bool {
        self.check_table(index);
        // SAFETY: it is a table, and there is room.
        unsafe { ffi::lua_next(self.raw.as_ptr(), index) != 0 }
    }

    /// Pushes the metatable of a value, if it has one; returns whether it does.
    #[inline]
    pub(crate) fn metatable(self, index: i32) -> bool {
        // SAFETY: the index is acceptable, and there is room.
        unsafe { ffi::lua_getmetatable(self.raw.as_ptr(), index) != 0 }
    }

    /// Pops a table (or nil) and makes it the metatable of the value at `index`.
    pub(crate) fn set_metatable(self, index: i32) {
        self.check(index);
        // SAFETY: the value exists, and a table or nil is on the top.
        unsafe { ffi::lua_setmetatable(self.raw.as_ptr(), index) };
    }

    #[inline]
    fn check_table(self, index: i32) {
        debug_assert_eq!(self.kind(index), Type::Table, "no table at {index}");
    }

    // Functions, calls and errors.

    /// Pushes a Rust function.
    pub(crate) fn push_function<F: Function>(self, function: F) {
        self.push_closure(function, 0);
    }

    /// Adds a Rust function to the table on the top of the stack.
    pub(crate) fn add_function<F: Function>(self, name: &str, function: F) {
        self.push_function(function);
        self.raw_set_field(-2, name);
    }

    /// Pops `upvalues` values and pushes a Rust function with these upvalues.
    pub(crate) fn push_closure<F: Function>(self, function: F, upvalues: i32) {
        let _ = function;
        // SAFETY: there are that many values; `enter` follows the rules of functions that Lua calls.
        unsafe { ffi::lua_pushcclosure(self.raw.as_ptr(), function::enter::<F>, upvalues) }
    }

    /// Continues as a function of the standard library, with the arguments of the running one. May fail; runs Lua code
    /// if that function does.
    #[inline]
    pub(crate) fn tail_call_native(self, function: NativeFunction) -> Results {
        // SAFETY: it is a function that Lua may call, and the Rust frames have nothing to drop.
        Ok(unsafe { (function.get())(self.raw.as_ptr()) })
    }

    /// Compiles `source`, with the string on the top of the stack as its name, and pushes the function or the error.
    /// The name must not contain NUL bytes.
    ///
    /// Lua does not verify precompiled code, which could do anything, so it is rejected.
    ///
    /// The parser keeps a pointer to the name that the collector does not know; the name stays alive because it is on
    /// the stack.
    pub(crate) fn compile(self, source: &[u8]) -> Result<(), Failed> {
        if source.len() > SOURCE_LEN_MAX {
            self.push_bytes("chunk too long");
            return Err(Failed);
        }
        if source.first() == Some(&ffi::LUA_SIGNATURE[0]) {
            self.push_bytes("precompiled chunks are not allowed: unexpected symbol near 'char(27)'");
            return Err(Failed);
        }
        debug_assert!(self.bytes(-1).is_some_and(|name| !name.contains(&0)));
        let source = (source.as_ptr().cast::<c_char>(), source.len());
        // SAFETY: strings are zero-terminated, and so is the name; the source has the given length.
        let status = unsafe {
            let name = ffi::lua_tolstring(self.raw.as_ptr(), -1, std::ptr::null_mut());
            ffi::luaL_loadbuffer(self.raw.as_ptr(), source.0, source.1, name)
        };
        if status == ffi::LUA_OK { Ok(()) } else { Err(Failed) }
    }

    /// Calls the function below its `args` arguments on the top of the stack, pops them all, and pushes its results:
    /// `results` of them, or all if that is `None`. On an error, pushes the result of the function at `handler`, if
    /// given, or else the error. Runs Lua code.
    pub(crate) fn call_protected(self, args: i32, results: Option<i32>, handler: Option<i32>) -> Result<(), Failed> {
        debug_assert!(args < self.top());
        let (results, handler) = (results.unwrap_or(ffi::LUA_MULTRET), handler.unwrap_or(0));
        // SAFETY: there are that many values, and a function at `handler`.
        let status = unsafe { ffi::lua_pcall(self.raw.as_ptr(), args, results, handler) };
        if status == ffi::LUA_OK { Ok(()) } else { Err(Failed) }
    }

    /// Calls the function below its `args` arguments on the top of the stack, pops them all, and pushes `results`
    /// results. May fail; runs Lua code.
    pub(crate) fn call(self, args: i32, results: i32) {
        debug_assert!(args < self.top());
        // SAFETY: there are that many values; by the rules, a jump has nothing to drop.
        unsafe { ffi::lua_call(self.raw.as_ptr(), args, results) }
    }

    /// Pushes the position of the function at `level` as `name:line: `, or an empty string. Level 0 is the running
    /// function, 1 its caller. May fail.
    pub(crate) fn push_where(self, level: i32) {
        // SAFETY: there is room.
        unsafe { ffi::luaL_where(self.raw.as_ptr(), level) }
    }

    /// Pushes an error message, preceded by the position of the caller. May discard the values on the stack to make
    /// space.
    #[cold]
    pub(crate) fn error(self, text: fmt::Arguments<'_>) -> Raise {
        let message = self.message(text);
        if !self.check_stack(3) {
            self.set_top(0);
        }
        self.push_where(1);
        self.push_bytes(message);
        self.concat(2);
        Raise
    }

    /// The source position of the function at `level`, where 0 is the running one; `None` if there are fewer levels.
    pub(crate) fn place(self, level: i32) -> Option<Place<'a>> {
        let mut record = MaybeUninit::<ffi::lua_Debug>::zeroed();
        // SAFETY: all-zero bytes are a valid record. `lua_getinfo` fills the requested fields for the function that
        // `lua_getstack` found; its strings are zero-terminated and live as long as the function.
        unsafe {
            if ffi::lua_getstack(self.raw.as_ptr(), level, record.as_mut_ptr()) == 0 {
                return None;
            }
            ffi::lua_getinfo(self.raw.as_ptr(), c"nSl".as_ptr(), record.as_mut_ptr());
            let record = record.assume_init();
            let text = |text: *const c_char| (!text.is_null()).then(|| CStr::from_ptr(text).to_bytes());
            Some(Place {
                native: text(record.what) == Some(b"C"),
                source: text(record.source).unwrap_or_default(),
                line: record.currentline,
                name: text(record.name),
                method: text(record.namewhat) == Some(b"method"),
            })
        }
    }

    /// Pushes local variable `n`, counted from 1, of the function at `level`; returns its name. Temporary values have
    /// names in parentheses. `None` if there is no such value.
    pub(crate) fn push_local(self, level: i32, n: i32) -> Option<&'a [u8]> {
        let mut record = MaybeUninit::<ffi::lua_Debug>::zeroed();
        // SAFETY: as in `place`; there is room.
        unsafe {
            if ffi::lua_getstack(self.raw.as_ptr(), level, record.as_mut_ptr()) == 0 {
                return None;
            }
            let name = ffi::lua_getlocal(self.raw.as_ptr(), record.as_ptr(), n);
            (!name.is_null()).then(|| CStr::from_ptr(name).to_bytes())
        }
    }

    /// Replaces the function on the top of the stack by its result or its error. It runs on a separate Lua thread, so
    /// the hook limits it even if this thread is inside its hook, and the debugger does not stop in it. Runs Lua code.
    pub(crate) fn call_apart(self) -> Result<(), Failed> {
        self.check(-1);
        // SAFETY: there is space on both stacks, and a function to move; the new thread is on the stack until its
        // result has been moved. Only the protected call on it may fail.
        unsafe {
            let thread = ffi::lua_newthread(self.raw.as_ptr());
            let apart = Lua { raw: NonNull::new_unchecked(thread), life: PhantomData };
            apart.watch();
            self.insert(-2);
            ffi::lua_xmove(self.raw.as_ptr(), thread, 1);
            let outcome = apart.call_protected(0, Some(1), None);
            ffi::lua_xmove(thread, self.raw.as_ptr(), 1);
            self.remove(-2);
            outcome
        }
    }

    // References, the hook, the collector.

    /// Pops the top value and stores it in the registry. May fail.
    pub(crate) fn keep(self) -> Ref {
        // SAFETY: the value exists.
        Ref(unsafe { ffi::luaL_ref(self.raw.as_ptr(), REGISTRY) })
    }

    /// Pushes a value stored in the registry.
    #[inline]
    pub(crate) fn push_ref(self, value: Ref) {
        self.raw_get_item(REGISTRY, value.0);
    }

    /// Removes a value from the registry.
    pub(crate) fn forget(self, value: Ref) {
        // SAFETY: the reference is valid; the crate releases each reference once.
        unsafe { ffi::luaL_unref(self.raw.as_ptr(), REGISTRY, value.0) }
    }

    /// Enables the periodic check whether the script may continue, also on threads that this one creates.
    pub(crate) fn watch(self) {
        self.set_hook(ffi::LUA_MASKCOUNT, HOOK_PERIOD);
    }

    /// Like [`watch`](Self::watch), and also calls the debugger before every line.
    pub(crate) fn watch_lines(self) {
        self.set_hook(ffi::LUA_MASKCOUNT | ffi::LUA_MASKLINE, HOOK_PERIOD);
    }

    /// What the hook does periodically, for functions that run long without it.
    pub(crate) fn check_interrupt(self) -> Result<(), Raise> {
        (self.shared().hooks.check_interrupt)(self).inspect_err(|_| self.check_every_instruction())
    }

    /// Calls the debugger before a line.
    fn stop_at_line(self, line: i32) -> Result<(), Raise> {
        (self.shared().hooks.at_line)(self, line).inspect_err(|_| self.check_every_instruction())
    }

    /// Checks at every instruction of this thread and of the main one, so that a script that must end cannot catch the
    /// error and continue.
    fn check_every_instruction(self) {
        self.set_hook(ffi::LUA_MASKCOUNT, 1);
        if let Some(raw) = self.shared().main.get() {
            Lua { raw, life: PhantomData }.set_hook(ffi::LUA_MASKCOUNT, 1);
        }
    }

    fn set_hook(self, mask: c_int, period: c_int) {
        // SAFETY: `hook` follows the rules of functions that Lua calls.
        unsafe { ffi::lua_sethook(self.raw.as_ptr(), Some(function::hook), mask, period) };
    }

    /// Opens a part of the standard library.
    pub(crate) fn open(self, library: Library) {
        let (name, open): (&CStr, ffi::lua_CFunction) = match library {
            Library::Base => (c"", ffi::luaopen_base),
            Library::Table => (c"table", ffi::luaopen_table),
            Library::String => (c"string", ffi::luaopen_string),
            Library::Math => (c"math", ffi::luaopen_math),
            Library::Os => (c"os", ffi::luaopen_os),
        };
        // SAFETY: these functions are called in the documented way.
        unsafe {
            ffi::lua_pushcclosure(self.raw.as_ptr(), open, 0);
            ffi::lua_pushstring_(self.raw.as_ptr(), name.as_ptr());
            ffi::lua_call(self.raw.as_ptr(), 1, 0);
        }
    }

    /// Runs a full garbage collection.
    pub(crate) fn collect(self) {
        // SAFETY: valid in any state; there are no finalizers.
        unsafe { ffi::lua_gc(self.raw.as_ptr(), ffi::LUA_GCCOLLECT, 0) };
    }

    /// Runs a step of the garbage collector.
    pub(crate) fn collect_step(self, size: i32) {
        // SAFETY: valid in any state; there are no finalizers.
        unsafe { ffi::lua_gc(self.raw.as_ptr(), ffi::LUA_GCSTEP, size) };
    }
}
