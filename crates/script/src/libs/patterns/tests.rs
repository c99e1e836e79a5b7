//! Comparisons with Lua's own functions, and interruption.

use crate::testing::{FakeHost, eval, machine, run};
use crate::{Kind, Settings, Vm};
use proptest::prelude::*;

/// Calls all functions with a text, a pattern, a replacement and a number, and shows all results and errors.
const CALLS: &str = "
    local s, p, r, n = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
    local out = {}
    local function show(...)
        for i = 1, select('#', ...) do out[#out + 1] = tostring((select(i, ...))) end
        out[#out + 1] = ';'
    end
    show(pcall(string.find, s, p, n))
    show(pcall(string.find, s, p, n, true))
    show(pcall(string.match, s, p, n))
    show(pcall(string.gsub, s, p, r))
    show(pcall(string.gsub, s, p, r, n))
    show(pcall(string.gsub, s, p, function(...) return '<' .. table.concat({...}, ',') .. '>' end))
    show(pcall(string.gsub, s, p, {a = 'x', b = 1, ab = false}))
    show(pcall(string.gsub, s, p, {a = {}}))
    show(pcall(function() for a, b, c in s:gmatch(p) do show(a, b, c) end end))
    return table.concat(out, ' ')";

/// What Lua's own functions say.
fn expected(lua: &mlua::Lua, arguments: &[&str]) -> String {
    lua.globals().set("ARGV", arguments).expect("a global");
    let shown = lua.load(CALLS).set_name("@user_script").eval::<mlua::LuaString>().expect("a text");
    let shown = shown.as_bytes();
    format!("${}\r\n{}\r\n", shown.len(), String::from_utf8_lossy(&shown))
}

fn compare(vm: &mut Vm, lua: &mlua::Lua, arguments: &[&str]) {
    let shown = run(vm, &mut FakeHost::default(), CALLS, &[], arguments);
    assert_eq!(shown, expected(lua, arguments), "{arguments:?}");
}

#[test]
fn results_are_those_of_lua() {
    let (mut vm, lua) = (machine(Kind::Scripts, Settings::default()), mlua::Lua::new());
    for pattern in [
        "",
        "a",
        "b*",
        "a-b",
        "a?b",
        "^a",
        "^",
        "$",
        "a$",
        "a$b",
        "(a)(b)",
        "()",
        "(a()b)",
        "((a)b)",
        "(a)%1",
        "%1",
        "(%1)",
        "(a",
        "a)",
        "%",
        "[",
        "[]",
        "[]]",
        "[^]]",
        "[a",
        "[a%",
        "[%]",
        "[%]]",
        "[a-",
        "[a-]",
        "[a-c]+",
        "[^a]",
        "[%a-z]",
        "[+--]",
        "%b()",
        "%b",
        "%ba",
        "%f",
        "%f[%w]%w+",
        "%f[",
        "%f[%z]",
        "%z",
        "%%",
        "%.",
        "[%z]",
        "a.-b",
        "(.-)%s",
        "%S+",
        "[%c%d%l%p%s%u%w%x%A]",
        "%0",
        "().",
        "(.)(.)(.)",
        "a\0b",
        "\0",
        "[\0]",
        "%\0",
        "(()",
        "[^^]",
    ] {
        for text in ["", "a", "ab", "aab(b)a", "a b(c)] ^%1\0b", "aaab\nb$", "A-z_0.+\u{b}"] {
            for (replacement, n) in [("<%0>", "1"), ("%1%2", "-3"), ("%%", "2"), ("x%", "100"), ("%x%9", "0")] {
                compare(&mut vm, &lua, &[text, pattern, replacement, n]);
            }
        }
    }
}

#[test]
fn a_pattern_may_have_32_captures() {
    assert_eq!(eval("return select('#', ('a'):match(('()'):rep(32)))"), ":32\r\n");
    assert!(eval("return ('a'):match(('()'):rep(33))").starts_with("-ERR user_script:1: too many captures"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn random_patterns_match_as_in_lua(
        text in "[ab()%\\]. ]{0,10}",
        pattern in "([ab.]|[*+?$^-]|\\(|\\)|%[ab1fwS(]|\\[|\\]|[ab][*+?-]|\\[[ab^-]{1,3}\\]|%b\\(\\)|\\(\\.-\\)){0,8}",
        replacement in "[a%012]{0,5}",
        n in -12i32..12,
    ) {
        thread_local! {
            static LUA: mlua::Lua = mlua::Lua::new();
        }
        let mut vm = machine(Kind::Scripts, Settings::default());
        LUA.with(|lua| compare(&mut vm, lua, &[&text, &pattern, &replacement, &n.to_string()]));
    }
}

#[test]
fn a_search_that_takes_too_long_is_interrupted() {
    for call in [
        "text:find(pattern)",
        "text:match(pattern)",
        "text:gsub(pattern, '')",
        "text:gmatch(pattern)()",
        "pcall(string.find, text, pattern)",
        "coroutine.resume(coroutine.create(function() return text:find(pattern) end))",
    ] {
        let script = format!("local text, pattern = ('a'):rep(100), ('a-'):rep(20) .. 'b' {call} while true do end");
        let host = &mut FakeHost { checks_left: Some(5), ..FakeHost::default() };
        let reply = run(&mut machine(Kind::Scripts, Settings::default()), host, &script, &[], &[]);
        assert!(reply.starts_with("-ERR Script killed by user with SCRIPT KILL."), "{call}: {reply}");
    }
}

#[test]
fn a_search_goes_on_after_a_pause() {
    // Over a million steps.
    let script =
        "return {tostring(('a'):rep(80):find('.-.-.-b')), (('a'):rep(80) .. 'b'):match('(a-)(a-)(a-)b()', 40)}";
    let rest = "a".repeat(41);
    assert_eq!(eval(script), format!("*5\r\n$3\r\nnil\r\n$0\r\n\r\n$0\r\n\r\n$41\r\n{rest}\r\n:82\r\n"));
}

#[test]
fn long_patterns_need_no_stack() {
    for call in [
        "string.find(text, pattern)",
        "string.match(text, pattern)",
        "string.gsub(text, pattern, '')",
        "string.gmatch(text, pattern)()",
        "text:find(pattern)",
    ] {
        let script = format!("local text, pattern = ('a'):rep(200000), ('a?'):rep(200000) return {call}");
        assert!(!eval(&script).starts_with('-'), "{call}");
    }
    assert_eq!(eval("local long = ('a?'):rep(5000) return (long .. 'b'):find(long, 1, true)"), ":1\r\n");
    assert_eq!(eval("return (('a'):rep(5000)):find(('a'):rep(4000))"), ":1\r\n");
    assert_eq!(eval("return #(('a'):rep(1000)):match(('a?'):rep(1000))"), ":1000\r\n");
}
