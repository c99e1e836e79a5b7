//! Pattern functions of strings. Lua's matcher recurses once per part of a pattern that can match in several ways, so a
//! long enough pattern would exhaust the thread's stack.

use crate::lua::shared::Originals;
use crate::lua::{Lua, NativeFunction, Results};

use super::builtins::tail_call_original;

/// Maximum number of such parts in a pattern.
const CHOICES_MAX: usize = 2_000;

/// Installs the replacements in the table on the top of the stack.
pub(super) fn install(lua: Lua<'_>) {
    lua.add_function("find", find);
    lua.add_function("match", matches);
    lua.add_function("gsub", gsub);
    lua.add_function("gmatch", gmatch);
    lua.raw_get_field(-1, "gmatch");
    lua.raw_set_field(-2, "gfind");
}

fn find(lua: Lua<'_>) -> Results {
    if lua.boolean(4) {
        // The pattern is plain text, so it needs no check.
        return tail_call_original(lua, |originals| originals.string_find);
    }
    checked(lua, |originals| originals.string_find)
}

fn matches(lua: Lua<'_>) -> Results {
    checked(lua, |originals| originals.string_match)
}

fn gmatch(lua: Lua<'_>) -> Results {
    checked(lua, |originals| originals.string_gmatch)
}

fn gsub(lua: Lua<'_>) -> Results {
    checked(lua, |originals| originals.string_gsub)
}

/// Continues as a function of the standard library unless the pattern is too complex.
fn checked(lua: Lua<'_>, which: impl Fn(&Originals) -> NativeFunction) -> Results {
    if lua.is_string(2) && lua.bytes(2).is_some_and(|pattern| pattern.len() > CHOICES_MAX && is_complex(pattern)) {
        return Err(lua.error(format_args!("pattern too complex")));
    }
    tail_call_original(lua, which)
}

fn is_complex(pattern: &[u8]) -> bool {
    pattern.iter().filter(|byte| b"*+-?()".contains(byte)).nth(CHOICES_MAX).is_some()
}
