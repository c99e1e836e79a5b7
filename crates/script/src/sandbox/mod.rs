//! The global environment of scripts: the available globals, and the protection of shared tables.
//!
//! Lua has no read-only tables. To [protect](mod@protect) a table, scripts receive an empty table instead, whose
//! metatable looks fields up in the hidden table and refuses stores. [`builtins`] replaces the functions of the
//! standard library that would reveal the difference. Scripts cannot reach a hidden table: metatables that refer to it
//! carry a mark, and for these `getmetatable` returns what it returns in Valkey.
//!
//! ```text
//! globals of scripts (empty, protected) --> all globals --> error: no such global
//!                                             |-- redis, server (protected) --> hidden table
//!                                             |-- string, cjson, ... (protected) --> hidden table
//!                                             `-- KEYS, ARGV
//! ```
//!
//! The globals of functions look up all globals while the functions run, and a table with `server.register_function`
//! while their library is loaded.

mod builtins;
pub(crate) mod protect;

use crate::lua::{GLOBALS, Library, Lua, REGISTRY};
use crate::settings::{Identity, Kind, Settings};
use crate::{api, library, libs, run};
use protect::{GLOBALS_META, Shown, mark, protect, refuse_missing};

/// Globals of the standard library that are removed.
const ABSENT: [&str; 8] = ["dofile", "loadfile", "print", "newproxy", "module", "require", "getfenv", "setfenv"];

/// Creates the global environment for scripts or functions in a new state, and the base of its stack.
pub(crate) fn build(lua: Lua<'_>, kind: Kind, identity: &Identity, settings: &Settings) {
    for library in [Library::Base, Library::Table, Library::String, Library::Math, Library::Os] {
        lua.open(library);
    }
    lua.push_value(GLOBALS);
    let global = lua.top();
    builtins::install(lua, global);
    for name in ABSENT.iter().filter(|name| !(settings.insecure_api && name.ends_with("fenv"))) {
        lua.push_nil();
        lua.raw_set_field(global, name);
    }
    libs::install(lua, global);
    api::install(lua, global, kind, identity);

    protect_members(lua, global);
    protect_strings(lua, global);
    refuse_missing(lua, global);
    lua.push_value(global);
    protect(lua, Shown::Metatable);
    lua.metatable(-1);
    lua.raw_set_field(REGISTRY, GLOBALS_META);
    lua.push_value(-1);
    lua.raw_set_field(global, "_G");
    lua.replace(GLOBALS);
    if kind == Kind::Functions {
        library::install(lua, identity);
    }
    run::init_stack_base(lua);
}

/// Protects all tables among the globals. A table with two names gets only one replacement.
fn protect_members(lua: Lua<'_>, global: i32) {
    const TABLES: [&str; 9] = ["string", "table", "math", "os", "coroutine", "cjson", "cmsgpack", "struct", "bit"];
    for name in TABLES {
        lua.raw_get_field(global, name);
        protect(lua, Shown::Nothing);
        lua.raw_set_field(global, name);
    }
    lua.raw_get_field(global, "server");
    protect(lua, Shown::Nothing);
    for name in ["server", "redis"] {
        lua.push_value(-1);
        lua.raw_set_field(global, name);
    }
    lua.pop(1);
}

/// Protects the metatable of strings, the only basic type that has one. `getmetatable` returns a table that looks
/// fields up in the protected table `string`.
fn protect_strings(lua: Lua<'_>, global: i32) {
    lua.push_bytes("");
    lua.metatable(-1);
    lua.create_table(0, 1);
    lua.raw_get_field(global, "string");
    lua.raw_set_field(-2, "__index");
    protect(lua, Shown::Nothing);
    mark(lua);
    lua.pop(2);
}

#[cfg(test)]
mod tests {
    use crate::testing::{FakeHost, eval, machine, run};
    use crate::{Kind, Settings};

    #[test]
    fn globals_do_not_outlive_a_script() {
        let mut vm = machine(Kind::Scripts, Settings::default());
        let host = &mut FakeHost::default();
        for script in [
            "x = 1",
            "rawset(_G, 'x', 1)",
            "_G.x = 1",
            "getmetatable(_G).__index = function() return 1 end",
            "setmetatable(_G, {__index = {x = 1}})",
            "getmetatable('').__index = {x = 1}",
            "getmetatable('').x = 1",
            "table.insert(string, 'x')",
            "for k, v in pairs(_G) do if type(v) == 'table' then v.x = 1 end end",
            "local k, v = next(redis) redis[k] = 1",
            "table.foreach(_G, function(k, v) if type(v) == 'table' and k ~= 'KEYS' and k ~= 'ARGV' then v.x = 1 end \
             end)",
            "rawset(getmetatable(_G), 'x', 1)",
            "rawset(getmetatable(''), 'x', 1)",
            "setmetatable(string, {})",
        ] {
            let reply = run(&mut vm, host, script, &[], &[]);
            assert!(reply.contains("Attempt to modify a readonly table"), "{script}: {reply}");
        }
        // These two are writable, and new for each script.
        run(&mut vm, host, "KEYS.x = 1 KEYS[1] = 2 ARGV[7] = 1 setmetatable(KEYS, {__index = {y = 1}})", &["a"], &[]);
        let script =
            "return {KEYS[1], tostring(KEYS.x), tostring(KEYS.y), tostring(ARGV[7]), tostring(getmetatable(KEYS))}";
        let reply = run(&mut vm, host, script, &["b"], &[]);
        assert_eq!(reply, "*5\r\n$1\r\nb\r\n$3\r\nnil\r\n$3\r\nnil\r\n$3\r\nnil\r\n$3\r\nnil\r\n");
        let missing = run(&mut vm, host, "return x", &[], &[]);
        assert!(missing.contains("nonexistent global variable 'x'"), "{missing}");
        assert_eq!(
            run(&mut vm, host, "return {type(string.x), #redis, ('').x == nil}", &[], &[]),
            "*3\r\n$3\r\nnil\r\n:0\r\n:1\r\n"
        );
    }

    #[test]
    fn hidden_tables_stay_hidden() {
        // All global tables that a script can reach, through fields and metatables, are protected or copies owned by
        // the script.
        let script = "
            local seen, found = {}, {}
            local function visit(value, path)
                if type(value) ~= 'table' or seen[value] or value == KEYS or value == ARGV then return end
                seen[value] = true
                if pcall(rawset, value, 'x', 1) then found[#found + 1] = path end
                visit(getmetatable(value), path .. '.meta')
                for k, v in pairs(value) do visit(v, path .. '.' .. tostring(k)) end
                for k, v in next, value do visit(v, path .. '.' .. tostring(k)) end
            end
            visit(_G, '_G')
            visit(getmetatable(''), 'string metatable')
            return table.concat(found, ' ')";
        // These are tables of the script itself.
        assert_eq!(eval(&script.replace("visit(_G", "seen[seen], seen[found] = true, true visit(_G")), "$0\r\n\r\n");
    }

    #[test]
    fn deprecated_functions_exist_if_enabled() {
        let mut vm = machine(Kind::Scripts, Settings { insecure_api: true, ..Settings::default() });
        let host = &mut FakeHost::default();
        assert_eq!(run(&mut vm, host, "return getfenv()", &[], &[]), "*0\r\n");
        assert_eq!(run(&mut vm, host, "setfenv(0, {redis = 1}) return 1", &[], &[]), ":1\r\n");
        assert_eq!(
            run(&mut vm, host, "return {type(redis), type(loadstring('return redis')())}", &[], &[]),
            "*2\r\n$5\r\ntable\r\n$5\r\ntable\r\n"
        );
        let reply = run(&mut vm, host, "getfenv(0).x = 1", &[], &[]);
        assert!(reply.contains("readonly"), "{reply}");
        let reply = run(&mut vm, host, "rawset(getfenv(string.len), 'x', 1)", &[], &[]);
        assert!(reply.contains("readonly"), "{reply}");
        let reply = run(&mut vm, host, "rawset(getfenv(redis.call), 'x', 1)", &[], &[]);
        assert!(reply.contains("readonly"), "{reply}");
        assert!(eval("return getfenv").contains("nonexistent global variable 'getfenv'"));
    }

    #[test]
    fn bytecode_is_rejected() {
        for script in [
            "return loadstring(string.dump(function() return 1 end))",
            "local code, done = string.dump(function() return 1 end), false
             return (load(function() if not done then done = true return code end end))",
        ] {
            assert_eq!(eval(script), "$-1\r\n", "{script}");
        }
        let error = eval("\x1bLua");
        assert!(error.starts_with("-ERR Error compiling script (new function): "), "{error}");
    }

    #[test]
    fn memory_beyond_the_limit_is_an_error() {
        let mut vm = machine(Kind::Scripts, Settings { memory_max: Some(1 << 20), ..Settings::default() });
        let host = &mut FakeHost::default();
        for script in [
            "return ('x'):rep(100000000)",
            "local t = {} while true do t[#t + 1] = {} end",
            "local s = 'x' while true do s = s .. s end",
            "return cjson.decode('[' .. ('[],'):rep(100000) .. '1]')",
            "return #cmsgpack.pack(('x'):rep(400000), ('x'):rep(400000))",
            "local function f() return {f()} end return f()",
            "return {pcall(function() local t = {} while true do t[#t + 1] = {} end end)}",
        ] {
            let reply = run(&mut vm, host, script, &[], &[]);
            assert!(reply.contains("not enough memory") || reply.contains("stack overflow"), "{script}: {reply}");
            assert_eq!(run(&mut vm, host, "return 1", &[], &[]), ":1\r\n");
        }
        vm.collect();
        assert!(vm.memory() < 200_000, "{}", vm.memory());
    }
}
