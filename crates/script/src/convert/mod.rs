//! From replies to Lua values and back.
//!
//! | reply | value |
//! | --- | --- |
//! | integer | number |
//! | bulk string | string |
//! | array | table with items from 1 on |
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
//! Numbers become integers in replies, true 1, false and nil null, unless the script chose RESP3.

mod from_reply;
mod to_reply;

pub(crate) use from_reply::push_reply;
pub(crate) use to_reply::write_result;

use crate::lua::Lua;
use crate::run::c_text;

/// The fields by which the tables of replies are known, in the order in which they are looked for.
pub(crate) const FIELDS: [&str; 7] = ["err", "ok", "double", "big_number", "verbatim_string", "map", "set"];

/// The field of an error that was counted when a command answered it.
pub(crate) const COUNTED: &str = "ignore_error_stats_update";

/// Pushes an error's table; `text` is all of it, the code first.
pub(crate) fn push_error(lua: Lua<'_>, text: &[u8]) {
    lua.create_table(0, 1);
    lua.push_bytes(text);
    lua.raw_set_field(-2, "err");
}

/// Pushes an error's table as scripts and commands write errors, which may lack a code: a text of one word gets one,
/// and line ends around the message are dropped.
pub(crate) fn push_written_error(lua: Lua<'_>, text: &[u8]) {
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

fn trim_line_ends(text: &[u8]) -> &[u8] {
    let line_end = |byte: &u8| matches!(byte, b'\r' | b'\n');
    let start = text.iter().position(|byte| !line_end(byte)).unwrap_or(text.len());
    let end = text.iter().rposition(|byte| !line_end(byte)).map_or(start, |last| last + 1);
    &text[start..end]
}
