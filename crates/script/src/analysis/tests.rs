//! Scripts and libraries with what the analysis finds in them.

use super::*;
use crate::testing::{DIGEST, machine};
use crate::{Kind, Settings};

/// The calls of a script as text: `K` is a declared key, `?` anything, `K*` and `?*` stand for the rest.
fn calls(script: &str) -> String {
    let mut vm = machine(Kind::Scripts, Settings::default());
    vm.compile_script(DIGEST, script.as_bytes()).expect("code that compiles");
    shown(vm.script_calls(DIGEST).as_deref())
}

fn shown(calls: Option<&[CallSite]>) -> String {
    let word = |word: &Word| match word {
        Word::Text(text) => String::from_utf8_lossy(text).into_owned(),
        Word::Key => "K".to_string(),
        Word::Other => "?".to_string(),
    };
    let rest = |rest| if rest == Rest::Keys { "K*".to_string() } else { "?*".to_string() };
    let call = |call: &CallSite| call.words.iter().map(word).chain(call.rest.map(rest)).collect::<Vec<_>>().join(" ");
    calls.map_or("unknown".to_string(), |calls| calls.iter().map(call).collect::<Vec<_>>().join("; "))
}

#[test]
fn declared_keys_are_recognised() {
    for (script, expected) in [
        ("return 1", ""),
        ("return redis.call('get', KEYS[1])", "get K"),
        ("return server.pcall('SET', KEYS[1], ARGV[1], 'EX', 10)", "SET K ? EX ?"),
        ("local key, n = KEYS[1], 1 redis.call('incrby', key, n) return redis.call('get', key)", "incrby K ?; get K"),
        ("local call = redis.call call('get', KEYS[2]) return {call('get', KEYS[1])}", "get K; get K"),
        ("for i = 1, #KEYS do redis.call('del', KEYS[i]) end", "del K"),
        ("for i, key in ipairs(KEYS) do redis.call('set', key, ARGV[i]) end", "set K ?"),
        (
            "for i, key in ipairs(KEYS) do for _, arg in ipairs(ARGV) do redis.call('sadd', key, arg) end end",
            "sadd K ?",
        ),
        ("return redis.call('del', unpack(KEYS))", "del K*"),
        ("return redis.call('hset', KEYS[1], unpack(ARGV))", "hset K ?*"),
        ("local a, b = unpack(KEYS) return redis.call('rename', a, b)", "rename K K"),
        (
            "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end",
            "get K; del K",
        ),
        ("local name = ARGV[1] and 'get' or 'set' return redis.call(name, KEYS[1])", "? K"),
        ("local name = ARGV[1] and 'get' or 'get' return redis.call(name, KEYS[1])", "get K"),
        ("local r = ARGV[1] and redis or server return r.call('get', KEYS[1])", "get K"),
        ("local key = KEYS[1] local function f() return key end return redis.call('get', KEYS[1]) .. f()", "get K"),
        (
            "for i = 1, 2 do local x = ARGV[i] f = function() return x end end return redis.call('get', KEYS[1])",
            "unknown",
        ),
        (
            "local t = {} for i = 1, 2 do local x = i t[i] = function() return x end end
            local key = KEYS[1] return redis.call('get', key)",
            "get K",
        ),
        ("local f = function(x) return x + redis.call('get', KEYS[1]) end return f(1)", "get K"),
        ("local ok, e = pcall(function() redis.call('incr', KEYS[1]) end) return ok", "incr K"),
        ("redis.log(redis.LOG_WARNING, 'x') redis.setresp(3) return redis.sha1hex(KEYS[1])", ""),
        ("local t = {} for i = 1, 100 do t[i] = i end return redis.call('rpush', KEYS[1], unpack(t))", "rpush K ?*"),
        ("return cjson.encode({redis.call('get', KEYS[1]), string.rep('x', 3)})", "get K"),
        ("local i = 0 repeat i = i + 1 redis.call('incr', KEYS[1]) until i > 3", "incr K"),
        (
            "while true do if redis.call('llen', KEYS[1]) == 0 then break end redis.call('lpop', KEYS[1]) end",
            "llen K; lpop K",
        ),
    ] {
        assert_eq!(calls(script), expected, "{script}");
    }
}

#[test]
fn other_keys_are_not() {
    for (script, expected) in [
        ("return redis.call('get', ARGV[1])", "get ?"),
        ("return redis.call('get', 'key')", "get key"),
        ("return redis.call('get', KEYS[1] .. ':x')", "get ?"),
        ("local key = KEYS[1] if ARGV[1] then key = ARGV[1] end return redis.call('get', key)", "get ?"),
        ("local key = KEYS[1] for i = 1, 2 do redis.call('get', key) key = 'other' end", "get ?"),
        ("local function f(key) return redis.call('get', key) end return f(KEYS[1])", "get ?"),
        ("local key = KEYS[1] local function f() key = 'x' end f() return redis.call('get', key)", "get ?"),
        ("local keys = {KEYS[1]} return redis.call('get', keys[1])", "get ?"),
        ("return redis.call('get', tostring(KEYS[1]))", "get ?*"),
        ("for i, key in ipairs(ARGV) do redis.call('set', key, 1) end", "set ? ?"),
        ("local a = KEYS[1] or 'x' return redis.call('get', a)", "get ?"),
        ("return redis.call(unpack(ARGV))", "?*"),
    ] {
        assert_eq!(calls(script), expected, "{script}");
    }
}

#[test]
fn what_goes_out_of_sight_is_unknown() {
    for script in [
        "return pcall(redis.call, 'get', 'x')",
        "local t = {redis.call} return t[1]('get', 'x')",
        "local t = {} t.call = redis.call return t.call('get', 'x')",
        "local t = {r = redis} return t.r.call('get', 'x')",
        "return _G.redis.call('get', 'x')",
        "return rawget(redis, 'call')('get', 'x')",
        "return redis[ARGV[1]]('get', 'x')",
        "for name, f in pairs(redis) do if name == ARGV[1] then f('get', 'x') end end",
        "return loadstring('return redis.call(\"get\", \"x\")')()",
        "return load(function() return nil end)()",
        "getmetatable(_G).__index.redis.call('get', 'x')",
        "local r = redis local function f() return r.call('get', 'x') end return f()",
        "local function f() return redis end return f().call('get', 'x')",
        "local function f(r) return r.call('get', 'x') end return f(redis)",
        "local r = ARGV[1] and redis or {} return r.call('get', 'x')",
        "KEYS[1] = 'x' return redis.call('get', KEYS[1])",
        "table.insert(KEYS, 1, 'x') return redis.call('get', KEYS[1])",
        "setmetatable(KEYS, {__index = function() return 'x' end}) return redis.call('get', KEYS[9])",
        "local k = KEYS k[1] = 'x' return redis.call('get', KEYS[1])",
        "local t = {KEYS} t[1][1] = 'x' return redis.call('get', KEYS[1])",
        "local k local function f() k[1] = 'x' end k = KEYS f() return redis.call('get', KEYS[1])",
        "for _, k in ipairs({KEYS}) do k[1] = 'x' end return redis.call('get', KEYS[1])",
        "local f = ARGV[1] and redis.call or tostring return f('get', 'x')",
        "coroutine.wrap(redis.call)('get', 'x')",
        "return table.foreach({'x'}, function(_, k) x = k end)",
    ] {
        assert_eq!(calls(script), "unknown", "{script}");
    }
}

fn functions(library: &str) -> Vec<(String, bool)> {
    let mut vm = machine(Kind::Functions, Settings::default());
    let functions = vm.load_library(library.as_bytes(), None).expect("a library");
    functions.iter().map(|function| (shown(function.calls.as_deref()), function.keeps_state)).collect()
}

#[test]
fn functions_and_their_helpers_are_followed() {
    let library = "
        local limit = 10
        local function add(n) return redis.call('incrby', 'total', n) end
        redis.register_function('a', function(keys, args) return redis.call('get', keys[1]) end)
        redis.register_function('b', function(keys, args) add(args[1]) return redis.call('get', keys[1], limit) end)
        redis.register_function('c', function(keys, args) table.sort(keys) return redis.call('get', keys[1]) end)";
    let expected = [("get K", false), ("get K ?; incrby total ?", false), ("unknown", false)];
    assert_eq!(functions(library), expected.map(|(calls, state)| (calls.to_string(), state)));
}

#[test]
fn libraries_with_state_are_recognised() {
    let keeps_state = |library: &str| functions(library).iter().any(|(_, keeps_state)| *keeps_state);
    for library in [
        "local n = 0 redis.register_function('a', function() n = n + 1 return n end)",
        "local t = {} redis.register_function('a', function(keys) t[#t + 1] = 1 return #t end)",
        "local n = 0 local function add() n = n + 1 end
            redis.register_function('a', function() return n end) redis.register_function('b', function() add() end)",
        "local t = {} local function add() t.x = 1 end redis.register_function('a', function() add() end)",
    ] {
        assert!(keeps_state(library), "{library}");
    }
    assert!(!keeps_state(
        "local text, n, f = 'x', 1, function(x) return x end
        redis.register_function('a', function() local sum = 0 for i = 1, n do sum = sum + f(i) end return text end)"
    ));
}
