//! Lua's C interface, as much of it as this crate needs: the only place with `unsafe`.
//!
//! [`Lua`] is one Lua thread, seen from the function that it is running; [`Universe`] owns the state that all threads
//! share. [`function`] makes Rust functions callable from Lua, [`heap`] is where Lua's memory comes from, [`shared`] what
//! belongs to a state beside Lua's own. The rest of the crate keeps to these rules, and the blocks below rely on them:
//!
//! * **Nothing to drop.** Lua leaves a function that fails by a jump. Whoever calls a method that may fail (one that
//!   makes a string, a table or a function, that stores into a table, or that calls) holds no value with a destructor
//!   meanwhile: buffers live in [`shared::State`]. Functions of our own fail by returning [`Raise`], with the error on
//!   the stack; the jump happens outside of Rust.
//! * **Indices are of values.** An index names a value that is on the stack, a pseudo index, or, where "acceptable" is
//!   said, a place just above the top. Debug builds check it.
//! * **There is room.** A function may push [`ROOM`] values; one that needs more calls [`Lua::check_stack`] first.
//! * **Bytes of a string live while the string is on the stack** (or in a table that is), however long their lifetime
//!   claims to be.
//! * **No Lua code runs inside of a method that does not say so.** Tables are read and written raw, and there are no
//!   finalizers: scripts cannot make any.

mod function;
mod heap;
pub(crate) mod shared;

use std::ffi::{CStr, c_char, c_int};
use std::fmt::{self, Write};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::slice;

use mlua::ffi;

pub(crate) use function::{Foreign, Function};
use heap::Heap;
use shared::{Message, Shared, State};

use crate::debugger::Debugger;

/// How many values a function may push without asking for room.
pub(crate) const ROOM: i32 = ffi::LUA_MINSTACK;

/// The pseudo index of the table of globals.
pub(crate) const GLOBALS: i32 = ffi::LUA_GLOBALSINDEX;

/// The pseudo index of the table that only functions of ours see.
pub(crate) const REGISTRY: i32 = ffi::LUA_REGISTRYINDEX;

/// The pseudo index of the running function's first upvalue.
pub(crate) const UPVALUE: i32 = ffi::lua_upvalueindex(1);

/// After how many instructions the hook looks whether the script may go on, as in Valkey.
const HOOK_PERIOD: c_int = 100_000;

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

/// A function failed; the error is the value on the top of the stack.
#[derive(Debug)]
pub(crate) struct Raise;

/// What a function of ours answers: how many of the values on the top of the stack are its results.
pub(crate) type Results = Result<i32, Raise>;

/// How a protected call or a compilation ended, if not well; the error is on the top of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Failed;

/// A value that is kept where scripts do not see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ref(c_int);

/// A function's place in its source.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Whether it is a function of ours or of the standard library: then there is no source.
    pub(crate) native: bool,
    /// The name of the chunk, as it was given when the chunk was compiled.
    pub(crate) source: &'a [u8],
    /// The line that runs, -1 if there is none.
    pub(crate) line: i32,
    /// What the function was called as, if that is known.
    pub(crate) name: Option<&'a [u8]>,
    /// Whether it was called as a method.
    pub(crate) method: bool,
}

/// The parts of the standard library that are opened.
#[derive(Clone, Copy)]
pub(crate) enum Library {
    /// With coroutines.
    Base,
    Table,
    String,
    Math,
    Os,
}

/// One Lua thread, seen from the function that it is running.
#[derive(Clone, Copy)]
pub(crate) struct Lua<'a> {
    raw: NonNull<ffi::lua_State>,
    life: PhantomData<&'a Universe>,
}

/// A Lua state with all its threads and values.
pub(crate) struct Universe {
    main: NonNull<ffi::lua_State>,
    shared: NonNull<Shared>,
}

// SAFETY: nothing of the state is tied to the thread that made it, and whoever has a `&mut Universe` (or the only
// `&Universe`: it is not `Sync`) is alone with it.
unsafe impl Send for Universe {}

impl Universe {
    /// A new state without any library, or `None` if there is no memory for it.
    pub(crate) fn new(state: State) -> Option<Universe> {
        let shared = NonNull::from(Box::leak(Box::new(Shared::new(state))));
        // SAFETY: `shared` outlives the state: it is freed after `lua_close`.
        let main = unsafe { ffi::lua_newstate(heap::allocate, shared.as_ptr().cast()) };
        let Some(main) = NonNull::new(main) else {
            // SAFETY: it was leaked above, and no state has it.
            drop(unsafe { Box::from_raw(shared.as_ptr()) });
            return None;
        };
        let universe = Universe { main, shared };
        universe.lua().shared().main.set(Some(main));
        universe.lua().watch();
        Some(universe)
    }

    /// The main thread, outside of any function.
    pub(crate) fn lua(&self) -> Lua<'_> {
        Lua { raw: self.main, life: PhantomData }
    }
}

impl Drop for Universe {
    fn drop(&mut self) {
        // SAFETY: the state and what it shares are ours, and nobody has either after this.
        unsafe {
            ffi::lua_close(self.main.as_ptr());
            drop(Box::from_raw(self.shared.as_ptr()));
        }
    }
}

impl<'a> Lua<'a> {
    /// What the state has beside Lua's own. The answer is not kept while Lua code may run.
    #[inline]
    pub(crate) fn state(self) -> &'a mut State {
        // SAFETY: rule "no Lua code runs": one function at a time has it, and lets go of it before others may run.
        unsafe { &mut *self.shared().state.get() }
    }

    /// The session of the debugger that the script runs in, if it does. The answer is not kept while Lua code may run.
    pub(crate) fn debugger(self) -> Option<&'a mut Debugger> {
        // SAFETY: it is alive between `engage_debugger` and `dismiss`, and as in `state` one function at a time has it.
        self.state().debugger.map(|mut debugger| unsafe { debugger.as_mut() })
    }

    /// Where Lua's memory comes from.
    #[inline]
    pub(crate) fn heap(self) -> &'a Heap {
        &self.shared().heap
    }

    #[inline]
    fn shared(self) -> &'a Shared {
        let mut shared = std::ptr::null_mut();
        // SAFETY: what `Universe::new` gave comes back, and lives as long as the state.
        unsafe {
            ffi::lua_getallocf(self.raw.as_ptr(), &mut shared);
            &*shared.cast::<Shared>()
        }
    }

    // The stack.

    /// The index of the value on the top: how many values there are.
    #[inline]
    pub(crate) fn top(self) -> i32 {
        // SAFETY: always defined.
        unsafe { ffi::lua_gettop(self.raw.as_ptr()) }
    }

    /// Drops values from the top, or pushes nils, until there are `top`.
    #[inline]
    pub(crate) fn set_top(self, top: i32) {
        debug_assert!(top >= 0);
        // SAFETY: there is room, by the rules.
        unsafe { ffi::lua_settop(self.raw.as_ptr(), top) }
    }

    /// Drops `n` values from the top.
    #[inline]
    pub(crate) fn pop(self, n: i32) {
        debug_assert!((0..=self.top()).contains(&n));
        // SAFETY: there are so many values, by the rules.
        unsafe { ffi::lua_settop(self.raw.as_ptr(), -n - 1) }
    }

    /// Makes room for `n` more values; `false` if the stack may not grow so much.
    #[inline]
    pub(crate) fn check_stack(self, n: i32) -> bool {
        // SAFETY: always defined.
        unsafe { ffi::lua_checkstack(self.raw.as_ptr(), n) != 0 }
    }

    /// Pushes a copy of a value.
    #[inline]
    pub(crate) fn push_value(self, index: i32) {
        self.check(index);
        // SAFETY: there is such a value, and room.
        unsafe { ffi::lua_pushvalue(self.raw.as_ptr(), index) }
    }

    /// Moves the value on the top to an index, and those from there on up.
    #[inline]
    pub(crate) fn insert(self, index: i32) {
        self.check(index);
        // SAFETY: there is such a place.
        unsafe { ffi::lua_insert(self.raw.as_ptr(), index) }
    }

    /// Takes a value out from under others.
    #[inline]
    pub(crate) fn remove(self, index: i32) {
        self.check(index);
        // SAFETY: there is such a value.
        unsafe { ffi::lua_remove(self.raw.as_ptr(), index) }
    }

    /// Takes the value on the top and puts it where another is.
    #[inline]
    pub(crate) fn replace(self, index: i32) {
        self.check(index);
        // SAFETY: there is such a value; the globals, if they are meant, are replaced by a table.
        unsafe { ffi::lua_replace(self.raw.as_ptr(), index) }
    }

    /// Debug builds: whether there is a value at `index`.
    #[inline]
    fn check(self, index: i32) {
        debug_assert!(index <= REGISTRY || (index != 0 && index.abs() <= self.top()), "no value at {index}");
    }

    // Looking at values.

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

    /// The name of the type of the value at an acceptable index, as `type` has it; "no value" if there is none.
    pub(crate) fn type_name(self, index: i32) -> &'static str {
        // SAFETY: the index is acceptable; names are constants.
        let name = unsafe {
            let kind = ffi::lua_type(self.raw.as_ptr(), index);
            CStr::from_ptr(ffi::lua_typename(self.raw.as_ptr(), kind))
        };
        name.to_str().unwrap_or_default()
    }

    /// Whether the value at an acceptable index is a number or a string that reads as one.
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

    /// The number at an acceptable index, or that a string there reads as; 0 otherwise.
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

    /// The bytes of the string at an acceptable index. A number there becomes a string, in place. `None` for anything
    /// else.
    #[inline]
    pub(crate) fn bytes(self, index: i32) -> Option<&'a [u8]> {
        let mut len = 0;
        // SAFETY: the index is acceptable; the string has so many bytes, and stays by the rules.
        unsafe {
            let bytes = ffi::lua_tolstring(self.raw.as_ptr(), index, &mut len);
            (!bytes.is_null()).then(|| slice::from_raw_parts(bytes.cast(), len))
        }
    }

    /// The border of a table, as `#` has it, or the length of a string.
    #[inline]
    pub(crate) fn len(self, index: i32) -> usize {
        self.check(index);
        // SAFETY: there is such a value.
        unsafe { ffi::lua_objlen(self.raw.as_ptr(), index) }
    }

    /// Whether the light userdata at an index is the one of [`push_null`](Self::push_null).
    #[inline]
    pub(crate) fn is_null(self, index: i32) -> bool {
        self.check(index);
        // SAFETY: there is such a value.
        unsafe { ffi::lua_touserdata(self.raw.as_ptr(), index).is_null() }
    }

    /// The address of a light userdata, and null for other values.
    #[inline]
    pub(crate) fn address(self, index: i32) -> *const u8 {
        // SAFETY: the index is acceptable.
        unsafe { ffi::lua_touserdata(self.raw.as_ptr(), index).cast_const().cast() }
    }

    /// What tells a table, a function, a thread or a userdata from others.
    pub(crate) fn pointer(self, index: i32) -> *const u8 {
        // SAFETY: the index is acceptable.
        unsafe { ffi::lua_topointer(self.raw.as_ptr(), index).cast() }
    }

    /// The function of the standard library at an index.
    pub(crate) fn foreign(self, index: i32) -> Option<Foreign> {
        self.check(index);
        // SAFETY: there is such a value.
        unsafe { ffi::lua_tocfunction(self.raw.as_ptr(), index) }.map(Foreign::new)
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
        // SAFETY: there is room; a jump drops nothing, by the rules.
        unsafe { ffi::lua_pushlstring_(self.raw.as_ptr(), bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Pushes the light userdata that stands for null.
    #[inline]
    pub(crate) fn push_null(self) {
        self.push_address(std::ptr::null());
    }

    /// Pushes an address as light userdata. Nothing is ever read from it.
    #[inline]
    pub(crate) fn push_address(self, address: *const u8) {
        // SAFETY: there is room.
        unsafe { ffi::lua_pushlightuserdata(self.raw.as_ptr(), address.cast_mut().cast()) }
    }

    /// Pushes a block of memory that holds `value`, for an upvalue. May fail.
    pub(crate) fn push_block<T: Copy>(self, value: T) {
        const { assert!(align_of::<T>() <= 8) };
        // SAFETY: there is room; blocks are aligned like the largest numbers and pointers.
        unsafe { ffi::lua_newuserdata(self.raw.as_ptr(), size_of::<T>()).cast::<T>().write(value) }
    }

    /// What the block that is the running function's first upvalue holds: the type is that of the function's making.
    #[inline]
    pub(crate) fn block<T: Copy>(self) -> T {
        let block = self.block_address::<T>();
        // SAFETY: `push_block` wrote it.
        unsafe { *block }
    }

    /// Changes what that block holds.
    pub(crate) fn set_block<T: Copy>(self, value: T) {
        let block = self.block_address::<T>();
        // SAFETY: as in `block`, and nobody has a reference to it.
        unsafe { *block = value }
    }

    fn block_address<T>(self) -> *mut T {
        debug_assert_eq!(self.len(UPVALUE), size_of::<T>());
        // SAFETY: the function has that upvalue, by the rules.
        unsafe { ffi::lua_touserdata(self.raw.as_ptr(), UPVALUE).cast() }
    }

    /// Pushes `text` as a string, put together in the state's buffer for messages. May fail.
    pub(crate) fn push_text(self, text: fmt::Arguments<'_>) {
        self.push_bytes(self.message(text));
    }

    fn message(self, text: fmt::Arguments<'_>) -> &'a Message {
        let message = &mut self.state().message;
        message.clear();
        let Ok(()) = message.write_fmt(text) else { unreachable!("messages take whatever is written to them") };
        message
    }

    /// Takes `n` strings from the top and pushes them as one. May fail.
    pub(crate) fn concat(self, n: i32) {
        debug_assert!((1..=self.top()).contains(&n) && (1..=n).all(|i| self.is_string(-i)));
        // SAFETY: there are so many values, and they are strings or numbers: no metamethod is called.
        unsafe { ffi::lua_concat(self.raw.as_ptr(), n) }
    }

    // Tables, raw.

    /// Pushes a new table with room for `items` items and `fields` fields. May fail.
    #[inline]
    pub(crate) fn create_table(self, items: usize, fields: usize) {
        let bounded = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        // SAFETY: there is room.
        unsafe { ffi::lua_createtable(self.raw.as_ptr(), bounded(items), bounded(fields)) }
    }

    /// Replaces the key on the top by what the table at `index` has for it.
    #[inline]
    pub(crate) fn raw_get(self, index: i32) {
        self.check_table(index);
        // SAFETY: it is a table.
        unsafe { ffi::lua_rawget_(self.raw.as_ptr(), index) }
    }

    /// Pushes item `n` of the table at `index`.
    #[inline]
    pub(crate) fn raw_get_item(self, index: i32, n: i32) {
        self.check_table(index);
        // SAFETY: it is a table, and there is room.
        unsafe { ffi::lua_rawgeti_(self.raw.as_ptr(), index, n) }
    }

    /// Pushes the field `name` of the table at `index` (not relative to the top, or taken before the push). May fail.
    #[inline]
    pub(crate) fn raw_get_field(self, index: i32, name: &str) {
        self.check_table(index);
        let index = if index < 0 && index > REGISTRY { index - 1 } else { index };
        self.push_bytes(name);
        self.raw_get(index);
    }

    /// Takes a value and under it a key from the top, and stores them in the table at `index`. May fail, and does if
    /// the key is nil or NaN.
    #[inline]
    pub(crate) fn raw_set(self, index: i32) {
        self.check_table(index);
        // SAFETY: it is a table; a jump drops nothing.
        unsafe { ffi::lua_rawset(self.raw.as_ptr(), index) }
    }

    /// Takes the value on the top and makes it item `n` of the table at `index`. May fail.
    #[inline]
    pub(crate) fn raw_set_item(self, index: i32, n: i32) {
        self.check_table(index);
        // SAFETY: it is a table; a jump drops nothing.
        unsafe { ffi::lua_rawseti_(self.raw.as_ptr(), index, n) }
    }

    /// Takes the value on the top and makes it the field `name` of the table at `index`. May fail.
    #[inline]
    pub(crate) fn raw_set_field(self, index: i32, name: &str) {
        self.check_table(index);
        let index = if index < 0 && index > REGISTRY { index - 1 } else { index };
        self.push_bytes(name);
        self.insert(-2);
        self.raw_set(index);
    }

    /// Replaces the key on the top by the next key of the table at `index` and its value; just takes it, and answers
    /// `false`, if there is none. Fails if there is no such key.
    #[inline]
    pub(crate) fn next(self, index: i32) -> bool {
        self.check_table(index);
        // SAFETY: it is a table, and there is room.
        unsafe { ffi::lua_next(self.raw.as_ptr(), index) != 0 }
    }

    /// Pushes the metatable of a value, if it has one.
    #[inline]
    pub(crate) fn metatable(self, index: i32) -> bool {
        // SAFETY: the index is acceptable, and there is room.
        unsafe { ffi::lua_getmetatable(self.raw.as_ptr(), index) != 0 }
    }

    /// Takes the table (or nil) on the top and makes it the metatable of the value at `index`.
    pub(crate) fn set_metatable(self, index: i32) {
        self.check(index);
        // SAFETY: there is such a value, and on the top is a table or nil.
        unsafe { ffi::lua_setmetatable(self.raw.as_ptr(), index) };
    }

    #[inline]
    fn check_table(self, index: i32) {
        debug_assert_eq!(self.kind(index), Type::Table, "no table at {index}");
    }

    // Functions, calls and errors.

    /// Pushes a function of ours.
    pub(crate) fn push_function<F: Function>(self, function: F) {
        self.push_closure(function, 0);
    }

    /// Adds a function of ours to the table on the top of the stack.
    pub(crate) fn add_function<F: Function>(self, name: &str, function: F) {
        self.push_function(function);
        self.raw_set_field(-2, name);
    }

    /// Takes `upvalues` values from the top and pushes a function of ours that has them.
    pub(crate) fn push_closure<F: Function>(self, function: F, upvalues: i32) {
        let _ = function;
        // SAFETY: there are so many values; `enter` keeps the rules of a function that Lua calls.
        unsafe { ffi::lua_pushcclosure(self.raw.as_ptr(), function::enter::<F>, upvalues) }
    }

    /// Goes on as that function of the standard library, with the arguments of the running one. May fail; runs Lua code
    /// if the function does.
    #[inline]
    pub(crate) fn become_foreign(self, function: Foreign) -> Results {
        // SAFETY: it is a function for Lua to call, and our frames have nothing to drop.
        Ok(unsafe { (function.get())(self.raw.as_ptr()) })
    }

    /// Compiles `source`, named by the string on the top of the stack, and pushes the function. The name has no zeros.
    ///
    /// The parser holds on to the name without telling the collector; that it is on the stack keeps it alive.
    pub(crate) fn compile(self, source: &[u8]) -> Result<(), Failed> {
        debug_assert!(self.bytes(-1).is_some_and(|name| !name.contains(&0)));
        debug_assert!(source.first() != Some(&ffi::LUA_SIGNATURE[0]), "precompiled code is not checked by Lua");
        let source = (source.as_ptr().cast::<c_char>(), source.len());
        // SAFETY: strings end with a zero, so the name does; the source has so many bytes.
        let status = unsafe {
            let name = ffi::lua_tolstring(self.raw.as_ptr(), -1, std::ptr::null_mut());
            ffi::luaL_loadbuffer(self.raw.as_ptr(), source.0, source.1, name)
        };
        if status == ffi::LUA_OK { Ok(()) } else { Err(Failed) }
    }

    /// Calls the function under its `args` arguments on the top of the stack, which takes them all, and pushes its
    /// results: `results` of them or, if that is `None`, all. Errors are given to the function at `handler`, if there
    /// is one, and what it answers is pushed. Runs Lua code.
    pub(crate) fn call_protected(self, args: i32, results: Option<i32>, handler: Option<i32>) -> Result<(), Failed> {
        debug_assert!(args < self.top());
        let (results, handler) = (results.unwrap_or(ffi::LUA_MULTRET), handler.unwrap_or(0));
        // SAFETY: there are so many values, and a function at `handler`.
        let status = unsafe { ffi::lua_pcall(self.raw.as_ptr(), args, results, handler) };
        if status == ffi::LUA_OK { Ok(()) } else { Err(Failed) }
    }

    /// Pushes where the function at `level` is, as `name:line: `, or an empty string; 0 is the running function, 1 the
    /// one that called it. May fail.
    pub(crate) fn push_where(self, level: i32) {
        // SAFETY: there is room.
        unsafe { ffi::luaL_where(self.raw.as_ptr(), level) }
    }

    /// Pushes an error message, with the caller's place before it. What was on the stack may be gone then, so that there
    /// is room.
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

    /// The function at `level`, 0 being the running one, if there are so many.
    pub(crate) fn place(self, level: i32) -> Option<Place<'a>> {
        let mut record = MaybeUninit::<ffi::lua_Debug>::zeroed();
        // SAFETY: all bits zero is a record. `lua_getinfo` fills what it was asked for, of the function that
        // `lua_getstack` found; its strings end with a zero and live as long as the function.
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

    /// Pushes local variable `n`, from 1 on, of the function at `level`, and answers its name: that of a parameter or a
    /// variable, or one in parentheses for a value that has none. `None` if there is no such value.
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

    /// Replaces the function on the top of the stack by its result, or by the error. It runs on a Lua thread of its own:
    /// there the hook looks whether it may go on even if this thread is in its hook, and no lines are told. Runs Lua
    /// code.
    pub(crate) fn call_apart(self) -> Result<(), Failed> {
        self.check(-1);
        // SAFETY: there is room on both stacks, and a function to move; the new thread is on the stack until its result
        // was taken. What may fail there is the protected call alone.
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

    // Keeping values, the hook, the collector.

    /// Takes the value on the top and keeps it. May fail.
    pub(crate) fn keep(self) -> Ref {
        // SAFETY: there is a value.
        Ref(unsafe { ffi::luaL_ref(self.raw.as_ptr(), REGISTRY) })
    }

    /// Pushes a value that is kept.
    #[inline]
    pub(crate) fn push_kept(self, value: Ref) {
        self.raw_get_item(REGISTRY, value.0);
    }

    /// No longer keeps a value.
    pub(crate) fn forget(self, value: Ref) {
        // SAFETY: it is kept; a second time would change nothing that is in use, as the crate forgets each once.
        unsafe { ffi::luaL_unref(self.raw.as_ptr(), REGISTRY, value.0) }
    }

    /// Has the hook look now and then whether what runs may go on; also on threads that this one makes.
    pub(crate) fn watch(self) {
        self.set_hook(ffi::LUA_MASKCOUNT, HOOK_PERIOD);
    }

    /// The same, and has the debugger look at every line.
    pub(crate) fn watch_lines(self) {
        self.set_hook(ffi::LUA_MASKCOUNT | ffi::LUA_MASKLINE, HOOK_PERIOD);
    }

    /// Has the hook look at every instruction, of this thread and of the main one, so that what must end cannot catch
    /// the error and go on.
    fn watch_closely(self) {
        self.set_hook(ffi::LUA_MASKCOUNT, 1);
        if let Some(raw) = self.shared().main.get() {
            Lua { raw, life: PhantomData }.set_hook(ffi::LUA_MASKCOUNT, 1);
        }
    }

    fn set_hook(self, mask: c_int, period: c_int) {
        // SAFETY: `hook` keeps the rules of a function that Lua calls.
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
        // SAFETY: that is how these functions are to be called.
        unsafe {
            ffi::lua_pushcclosure(self.raw.as_ptr(), open, 0);
            ffi::lua_pushstring_(self.raw.as_ptr(), name.as_ptr());
            ffi::lua_call(self.raw.as_ptr(), 1, 0);
        }
    }

    /// Frees all that is not in use.
    pub(crate) fn collect(self) {
        // SAFETY: always defined; there are no finalizers.
        unsafe { ffi::lua_gc(self.raw.as_ptr(), ffi::LUA_GCCOLLECT, 0) };
    }

    /// Lets the collector do some work.
    pub(crate) fn collect_some(self, size: i32) {
        // SAFETY: always defined; there are no finalizers.
        unsafe { ffi::lua_gc(self.raw.as_ptr(), ffi::LUA_GCSTEP, size) };
    }
}
