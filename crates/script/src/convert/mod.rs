//! Conversion between replies and Lua values.
//!
//! | reply | value |
//! | --- | --- |
//! | integer | number |
//! | bulk string | string |
//! | array | table with items starting at 1 |
//! | status | table with the field `ok` |
//! | error | table with the field `err` |
//! | null of RESP2 | false |
//! | null of RESP3 | nil |
//! | boolean | boolean |
//! | double | table with the field `double` |
//! | big number | table with the field `big_number` |
//! | verbatim string | table with the field `verbatim_string`, a table with `format` and `string` |
//! | map | table with the field `map`, a table |
//! | set | table with the field `set`, a table whose keys are the members |
//!
//! In results, numbers become integers. Unless the script has selected RESP3, true becomes 1, and false and nil become
//! null.

mod from_reply;
mod to_reply;

pub(crate) use from_reply::push_reply;
pub(crate) use to_reply::write_result;

use crate::Failure;
use crate::lua::{Lua, c_text};

/// The fields that identify the tables of replies, in order of precedence.
pub(crate) const FIELDS: [&str; 7] = ["err", "ok", "double", "big_number", "verbatim_string", "map", "set"];

/// First stack index of the names of the [`FIELDS`], in this order, which are on the stack of the main thread.
pub(crate) const FIELD_NAMES: i32 = 5;

/// The field of an error that was counted when the command returned it.
pub(crate) const COUNTED: &str = "ignore_error_stats_update";

/// Pushes the table of an error. `text` is the complete text, starting with the error code.
pub(crate) fn push_error(lua: Lua<'_>, text: &[u8]) {
    lua.create_table(0, 1);
    lua.push_bytes(text);
    lua.raw_set_field(-2, "err");
}

/// Pushes the table of an error as written by scripts and commands. A text of a single word gets an error code, and
/// line ends around the message are removed.
pub(crate) fn push_error_text(lua: Lua<'_>, text: &[u8]) {
    let text = c_text(text);
    lua.create_table(0, 2);
    match memchr::memchr(b' ', text) {
        Some(blank) => {
            let (code, message) = (&text[..blank], &text[blank + 1..]);
            lua.push_bytes(code);
            lua.push_bytes(" ");
            lua.push_bytes(trim_line_ends(message));
            lua.concat(3);
        }
        None => {
            lua.push_bytes("ERR ");
            lua.push_bytes(text);
            lua.concat(2);
        }
    }
    lua.raw_set_field(-2, "err");
}

/// The failure for the error table on the top of the stack, without the source position.
pub(crate) fn returned_failure(lua: Lua<'_>) -> Failure {
    let error = lua.top();
    lua.raw_get_field(error, "err");
    lua.raw_get_field(error, COUNTED);
    let text = lua.bytes(-2).map_or(&b"ERR unknown error"[..], c_text);
    let failure = Failure::new(text).with_counted(lua.boolean(-1));
    lua.pop(2);
    failure
}

fn trim_line_ends(text: &[u8]) -> &[u8] {
    let line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let start = text.iter().position(|byte| !line_end(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !line_end(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}

#[cfg(test)]
mod tests {
    use crate::testing::{FakeHost, eval, machine, run};
    use crate::{Kind, Settings};

    /// A Lua function `show` that formats a value as text, with keys and members in order.
    const SHOW: &str = "
        local function show(value)
            if type(value) ~= 'table' then return type(value) .. ' ' .. tostring(value) end
            local parts = {}
            for key, item in pairs(value) do parts[#parts + 1] = show(key) .. ': ' .. show(item) end
            table.sort(parts)
            return '{' .. table.concat(parts, ', ') .. '}'
        end ";

    /// The value of a reply in a script, as text.
    fn value_of(reply: &str) -> String {
        let mut vm = machine(Kind::Scripts, Settings::default());
        let script = format!("{SHOW} return show(redis.pcall('reply', ARGV[1]))");
        let shown = run(&mut vm, &mut FakeHost::default(), &script, &[], &[reply]);
        let (_, text) = shown.split_once("\r\n").unwrap();
        text.trim_end().to_string()
    }

    #[test]
    fn replies_become_values() {
        let cases = [
            ("$1\r\na\r\n", "string a"),
            ("$0\r\n\r\n", "string "),
            ("$4\r\n\r\n\r\n\r\n", "string \r\n\r\n"),
            ("$-1\r\n", "boolean false"),
            ("*-1\r\n", "boolean false"),
            (":-17\r\n", "number -17"),
            ("+OK\r\n", "{string ok: string OK}"),
            (
                "-ERR it  failed\r\n",
                "{string err: string ERR it  failed, string ignore_error_stats_update: boolean true}",
            ),
            ("-FAILED\r\n", "{string err: string ERR FAILED, string ignore_error_stats_update: boolean true}"),
            ("*0\r\n", "{}"),
            (
                "*3\r\n:1\r\n$-1\r\n*1\r\n:2\r\n",
                "{number 1: number 1, number 2: boolean false, number 3: {number 1: number 2}}",
            ),
            ("_\r\n", "nil nil"),
            ("*2\r\n_\r\n:1\r\n", "{number 2: number 1}"),
            ("#t\r\n", "boolean true"),
            ("#f\r\n", "boolean false"),
            (",1.5\r\n", "{string double: number 1.5}"),
            (",-inf\r\n", "{string double: number -inf}"),
            ("(12345678901234567890\r\n", "{string big_number: string 12345678901234567890}"),
            ("=5\r\ntxt:a\r\n", "{string verbatim_string: {string format: string txt, string string: string a}}"),
            ("%1\r\n$1\r\na\r\n:1\r\n", "{string map: {string a: number 1}}"),
            ("%1\r\n_\r\n:1\r\n", "{string map: {}}"),
            ("~2\r\n$1\r\na\r\n:1\r\n", "{string set: {number 1: boolean true, string a: boolean true}}"),
            (">1\r\n$1\r\na\r\n", "{number 1: string a}"),
            ("|1\r\n+a\r\n+b\r\n:3\r\n", "number 3"),
        ];
        for (reply, value) in cases {
            assert_eq!(value_of(reply), value.trim_end(), "{reply:?}");
        }
    }

    #[test]
    fn invalid_reply_is_an_error() {
        let nested = "*1\r\n".repeat(1000);
        for reply in
            ["", "x", "$5\r\na\r\n", "*2\r\n:1\r\n", ":x\r\n", "%-1\r\n", "=1\r\na\r\n", "*9999999999\r\n", &nested]
        {
            let value = value_of(reply);
            assert!(
                value.starts_with("{string err: string ERR the command's reply cannot be read"),
                "{reply:?}: {value}"
            );
        }
    }

    #[test]
    fn scripts_choose_the_resp_version() {
        let script = "local a = redis.call('version') redis.setresp(3) return {a, redis.call('version')}";
        assert_eq!(eval(script), "*2\r\n:2\r\n:3\r\n");
        let mut vm = machine(Kind::Scripts, Settings::default());
        let host = &mut FakeHost::default();
        assert_eq!(run(&mut vm, host, "redis.setresp(3) return true", &[], &[]), ":1\r\n");
        assert_eq!(run(&mut vm, host, "return redis.call('version')", &[], &[]), ":2\r\n");
    }

    #[test]
    fn endless_nesting_ends_with_an_error() {
        for (script, part) in [
            ("local a = {} local b = {a} a[1] = b return a", "*1\r\n"),
            ("local a = {} a.set = {[a] = true} return a", "*1\r\n"),
            ("local a = {} a.map = {x = a} return a", "*2\r\n$1\r\nx\r\n"),
        ] {
            let reply = eval(script);
            assert!(reply.starts_with(&part.repeat(1000)), "{script}");
            assert!(reply.ends_with("-ERR reached lua stack limit\r\n"), "{script}");
        }
    }

    #[test]
    fn command_errors_are_not_counted_twice() {
        let mut vm = machine(Kind::Scripts, Settings::default());
        let mut counted = |script: &str| {
            let mut out = Vec::new();
            let digest = crate::testing::DIGEST;
            vm.compile_script(digest, script.as_bytes()).unwrap();
            let reply = &mut kvick_resp::Reply::new(&mut out, kvick_resp::Version::Resp2);
            let (keys, arguments) = (std::iter::empty(), std::iter::empty());
            let failure = vm.run_script(digest, keys, arguments, &mut FakeHost::default(), reply).unwrap_err();
            assert!(out.is_empty(), "nothing is written for an error");
            failure.is_counted()
        };
        assert!(counted("return redis.call('fail', 'ERR x')"));
        assert!(counted("return redis.pcall('fail', 'ERR x')"));
        assert!(!counted("error('x')"));
        assert!(!counted("return redis.error_reply('x y')"));
        assert!(!counted("return {err = redis.pcall('fail', 'ERR x').err}"));
    }
}
