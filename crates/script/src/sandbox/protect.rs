//! Protected tables: empty tables whose metatable looks fields up in a hidden table and refuses stores.

use std::sync::atomic::AtomicU8;

use crate::lua::{Lua, REGISTRY, Raise, Results, Type, c_text};

/// Its address is the key of the mark in the metatables of protected tables; scripts cannot create that key.
static MARK: AtomicU8 = AtomicU8::new(0);

/// The registry key of the metatable of the globals.
pub(super) const GLOBALS_META: &str = "globals metatable";

/// Pops a table and makes the globals look fields up in it.
pub(crate) fn set_globals_index(lua: Lua<'_>) {
    lua.raw_get_field(REGISTRY, GLOBALS_META);
    lua.insert(-2);
    lua.raw_set_field(-2, "__index");
    lua.pop(1);
}

/// The result of `getmetatable` for a protected table.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Nil.
    Nothing,
    /// A protected table with the field `__index`, which is a function.
    Metatable,
}

/// Replaces the table on the top of the stack by a protected one.
pub(crate) fn protect(lua: Lua<'_>, shown: Shown) {
    let hidden = lua.top();
    lua.create_table(0, 0);
    lua.create_table(0, 3);
    lua.push_value(hidden);
    lua.raw_set_field(-2, "__index");
    lua.push_function(reject_store);
    lua.raw_set_field(-2, "__newindex");
    match shown {
        Shown::Nothing => lua.push_boolean(false),
        Shown::Metatable => {
            lua.create_table(0, 1);
            lua.push_function(missing_global);
            lua.raw_set_field(-2, "__index");
            protect(lua, Shown::Nothing);
        }
    }
    mark(lua);
    lua.set_metatable(-2);
    lua.replace(hidden);
}

/// Pops a value and makes it the mark of the metatable below it.
pub(super) fn mark(lua: Lua<'_>) {
    lua.push_address(MARK.as_ptr().cast_const());
    lua.insert(-2);
    lua.raw_set(-3);
}

/// Pushes the mark of the metatable of the value at `index`, if it has one; the mark is false or a table.
pub(super) fn push_mark(lua: Lua<'_>, index: i32) -> bool {
    if !lua.metatable(index) {
        return false;
    }
    lua.push_address(MARK.as_ptr().cast_const());
    lua.raw_get(-2);
    lua.remove(-2);
    if lua.kind(-1) == Type::Nil {
        lua.pop(1);
        return false;
    }
    true
}

/// Whether the value at `index` is a protected table.
pub(crate) fn is_protected(lua: Lua<'_>, index: i32) -> bool {
    let protected = lua.kind(index) == Type::Table && push_mark(lua, index);
    if protected {
        lua.pop(1);
    }
    protected
}

/// If the value at `index`, which must not be relative to the top, is a protected table, replaces it by the hidden
/// table. Only for functions that do not expose the hidden table to scripts.
pub(crate) fn unwrap_protected(lua: Lua<'_>, index: i32) {
    if is_protected(lua, index) {
        lua.metatable(index);
        lua.raw_get_field(-1, "__index");
        lua.replace(index);
        lua.pop(1);
    }
}

/// Makes lookups of missing fields in the table at `table` fail.
pub(crate) fn refuse_missing(lua: Lua<'_>, table: i32) {
    lua.create_table(0, 1);
    lua.push_function(missing_global);
    lua.raw_set_field(-2, "__index");
    lua.set_metatable(table);
}

/// The function that refuses stores into protected tables.
fn reject_store(lua: Lua<'_>) -> Results {
    Err(lua.error(format_args!("{READONLY}")))
}

const READONLY: &str = "Attempt to modify a readonly table";

/// The same error raised by a function that was called to store; it does not include a source position.
pub(super) fn readonly(lua: Lua<'_>) -> Raise {
    lua.push_bytes(READONLY);
    Raise
}

/// The function that refuses lookups of missing globals.
fn missing_global(lua: Lua<'_>) -> Results {
    if lua.top() != 2 {
        return Err(lua.error(format_args!("Wrong number of arguments to luaProtectedTableError")));
    }
    if !lua.is_string(2) {
        let text = "Second argument to luaProtectedTableError must be a string or number";
        return Err(lua.error(format_args!("{text}")));
    }
    lua.push_where(1);
    lua.push_bytes("Script attempted to access nonexistent global variable '");
    lua.push_bytes(c_text(lua.bytes(2).unwrap_or_default()));
    lua.push_bytes("'");
    lua.concat(4);
    Err(Raise)
}
