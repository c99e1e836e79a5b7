//! Replacements for functions of the standard library. They see through protected tables, and refuse operations that
//! would harm the process.

use super::protect::{is_protected, push_mark, readonly, unwrap_protected};
use crate::libs::check;
use crate::lua::shared::Originals;
use crate::lua::{Lua, NativeFunction, Results, Type, UPVALUE, c_text};

/// Installs the replacements in the globals table at `global`.
pub(super) fn install(lua: Lua<'_>, global: i32) {
    lua.state().originals = Some(originals(lua, global));
    lua.push_value(global);
    lua.add_function("next", next);
    lua.push_function(next);
    lua.push_closure(pairs, 1);
    lua.raw_set_field(global, "pairs");
    lua.add_function("getmetatable", get_metatable);
    lua.add_function("setmetatable", set_metatable);
    lua.add_function("rawget", raw_get);
    lua.add_function("rawset", raw_set);
    lua.add_function("pcall", pcall);
    lua.add_function("unpack", unpack);
    lua.add_function("load", load);
    lua.add_function("loadstring", load_string);
    lua.pop(1);

    lua.raw_get_field(global, "table");
    lua.add_function("insert", table_insert);
    lua.add_function("foreach", table_foreach);
    lua.pop(1);

    // Of the library `os`, scripts can use only `clock`, the CPU time used.
    lua.raw_get_field(global, "os");
    lua.create_table(0, 1);
    lua.raw_get_field(-2, "clock");
    lua.raw_set_field(-2, "clock");
    lua.raw_set_field(global, "os");
    lua.pop(1);
}

fn originals(lua: Lua<'_>, global: i32) -> Originals {
    let find = |path: &str| -> NativeFunction {
        let (table, name) = path.split_once('.').unwrap_or(("_G", path));
        lua.raw_get_field(global, table);
        lua.raw_get_field(-1, name);
        let function = lua.native_function(-1);
        lua.pop(2);
        function.unwrap_or_else(|| unreachable!("the standard library has {path}"))
    };
    Originals {
        get_metatable: find("getmetatable"),
        set_metatable: find("setmetatable"),
        raw_get: find("rawget"),
        raw_set: find("rawset"),
        next: find("next"),
        table_insert: find("table.insert"),
        table_foreach: find("table.foreach"),
    }
}

/// Continues as a function of the standard library.
fn tail_call_original(lua: Lua<'_>, which: impl Fn(&Originals) -> NativeFunction) -> Results {
    match &lua.state().originals {
        Some(originals) => {
            let function = which(originals);
            lua.tail_call_native(function)
        }
        None => Ok(0),
    }
}

/// `getmetatable(value)`: the part of the metatable that scripts may see.
fn get_metatable(lua: Lua<'_>) -> Results {
    if lua.top() >= 1 && push_mark(lua, 1) {
        if lua.kind(-1) != Type::Table {
            lua.push_nil();
        }
        return Ok(1);
    }
    tail_call_original(lua, |originals| originals.get_metatable)
}

/// `setmetatable(table, metatable)`.
fn set_metatable(lua: Lua<'_>) -> Results {
    let metatable = matches!(lua.kind(2), Type::Table | Type::Nil);
    if metatable && is_protected(lua, 1) {
        return Err(readonly(lua));
    }
    tail_call_original(lua, |originals| originals.set_metatable)
}

/// `rawget(table, key)`.
fn raw_get(lua: Lua<'_>) -> Results {
    unwrap_protected(lua, 1);
    tail_call_original(lua, |originals| originals.raw_get)
}

/// `rawset(table, key, value)`.
fn raw_set(lua: Lua<'_>) -> Results {
    if is_protected(lua, 1) && lua.top() >= 3 {
        return Err(readonly(lua));
    }
    tail_call_original(lua, |originals| originals.raw_set)
}

/// `next(table, key)`.
fn next(lua: Lua<'_>) -> Results {
    unwrap_protected(lua, 1);
    tail_call_original(lua, |originals| originals.next)
}

/// `pairs(table)`; its upvalue is the replacement of `next`.
fn pairs(lua: Lua<'_>) -> Results {
    check::table(lua, 1)?;
    lua.push_value(UPVALUE);
    lua.push_value(1);
    lua.push_nil();
    Ok(3)
}

/// `table.insert(table, [position,] value)`.
fn table_insert(lua: Lua<'_>) -> Results {
    if is_protected(lua, 1) && matches!(lua.top(), 2 | 3) {
        return Err(readonly(lua));
    }
    tail_call_original(lua, |originals| originals.table_insert)
}

/// `table.foreach(table, function)`.
fn table_foreach(lua: Lua<'_>) -> Results {
    unwrap_protected(lua, 1);
    tail_call_original(lua, |originals| originals.table_foreach)
}

/// `pcall(function, ...)`: for an error table, returns its text, for compatibility with scripts that expect strings.
fn pcall(lua: Lua<'_>) -> Results {
    check::any(lua, 1)?;
    lua.push_boolean(true);
    lua.insert(1);
    if lua.call_protected(lua.top() - 2, None, None).is_err() {
        if lua.kind(-1) == Type::Table {
            lua.raw_get_field(-1, "err");
            if lua.is_string(-1) {
                lua.replace(-2);
            } else {
                lua.pop(1);
            }
        }
        lua.push_boolean(false);
        lua.replace(1);
    }
    Ok(lua.top())
}

/// `unpack(table, [first, [last]])`; the bounds may be far apart.
fn unpack(lua: Lua<'_>) -> Results {
    check::table(lua, 1)?;
    let first = check::optional_integer(lua, 2)?.map_or(1, |n| n as i32);
    let last = check::optional_integer(lua, 3)?.map_or_else(|| lua.len(1) as i32, |n| n as i32);
    if first > last {
        return Ok(0);
    }
    let len = i64::from(last) - i64::from(first) + 1;
    match i32::try_from(len) {
        Ok(len) if lua.check_stack(len) => {
            (first..=last).for_each(|n| lua.raw_get_item(1, n));
            Ok(len)
        }
        _ => Err(lua.error(format_args!("too many results to unpack"))),
    }
}

/// `loadstring(source, [name])`.
fn load_string(lua: Lua<'_>) -> Results {
    let source = check::bytes(lua, 1)?;
    let name = if matches!(lua.kind(2), Type::None | Type::Nil) { source } else { check::bytes(lua, 2)? };
    lua.push_bytes(c_text(name));
    finish_load(lua, source)
}

/// `load(function, [name])`: the function returns pieces of the source until it returns none.
fn load(lua: Lua<'_>) -> Results {
    check::function(lua, 1)?;
    let name = if matches!(lua.kind(2), Type::None | Type::Nil) { b"=(load)" } else { check::bytes(lua, 2)? };
    lua.set_top(2);
    lua.push_bytes(c_text(name));
    // The source so far is kept on the stack, since the function may call `load` itself.
    lua.push_bytes("");
    loop {
        lua.push_value(1);
        if lua.call_protected(0, Some(1), None).is_err() {
            break;
        }
        match lua.kind(-1) {
            Type::Nil => {
                lua.pop(1);
                return finish_load_of_top(lua);
            }
            Type::String | Type::Number => {
                if lua.bytes(-1).is_some_and(<[u8]>::is_empty) {
                    lua.pop(1);
                    return finish_load_of_top(lua);
                }
                lua.concat(2);
            }
            _ => {
                lua.push_bytes("reader function must return a string");
                break;
            }
        }
    }
    lua.push_nil();
    lua.insert(-2);
    Ok(2)
}

/// Compiles the source on the top of the stack, with its name below it.
fn finish_load_of_top(lua: Lua<'_>) -> Results {
    let source = lua.bytes(-1).unwrap_or_default();
    lua.push_value(-2);
    finish_load(lua, source)
}

/// Compiles `source`, with the string on the top of the stack as its name.
fn finish_load(lua: Lua<'_>, source: &[u8]) -> Results {
    if lua.compile(source).is_ok() {
        return Ok(1);
    }
    lua.push_nil();
    lua.insert(-2);
    Ok(2)
}
