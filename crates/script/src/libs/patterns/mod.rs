//! The functions of `string` that search: `find`, `match`, `gmatch` and `gsub`, with the results and error texts of
//! Lua 5.1.
//!
//! They replace Lua's own, which nothing can interrupt while they search, and which exhaust the thread's stack with a
//! pattern that has very many items.

mod matcher;
#[cfg(test)]
mod tests;

use super::check;
use crate::lua::buffer::{Buffer, Storage};
use crate::lua::{Lua, Raise, Results, Type, UPVALUE, c_text};
pub(crate) use matcher::Choice;
use matcher::{Extent, Malformed, Matcher, Progress};
use memchr::memmem;
use std::mem;
use std::ops::Range;

/// Bytes with a meaning of their own in patterns.
const SPECIAL: &[u8] = b"^$*+?.([%-";

/// Memory for choices that is kept from one search to the next.
const CHOICES_KEPT_MAX: usize = 1_000;

/// Replaces the functions in the globals table at `global`.
pub(super) fn install(lua: Lua<'_>, global: i32) {
    lua.raw_get_field(global, "string");
    lua.add_function("find", find);
    lua.add_function("match", matches);
    lua.add_function("gsub", gsub);
    lua.add_function("gmatch", gmatch);
    lua.raw_get_field(-1, "gmatch");
    lua.raw_set_field(-2, "gfind");
    lua.pop(1);
}

/// `string.find(text, pattern, [start, [plain]])`.
fn find(lua: Lua<'_>) -> Results {
    let (text, pattern) = (check::bytes(lua, 1)?, check::bytes(lua, 2)?);
    let start = start(lua, text.len())?;
    if !lua.boolean(4) && c_text(pattern).iter().any(|byte| SPECIAL.contains(byte)) {
        let Some((matcher, found)) = find_first(lua, text, pattern, start)? else { return missing(lua) };
        push_range(lua, &found);
        let captures = matcher.captures().len();
        push_captures(lua, &matcher, captures, &found)?;
        return Ok(2 + captures as i32);
    }
    let Some(offset) = memmem::find(&text[start..], pattern) else { return missing(lua) };
    push_range(lua, &(start + offset..start + offset + pattern.len()));
    Ok(2)
}

/// `string.match(text, pattern, [start])`.
fn matches(lua: Lua<'_>) -> Results {
    let (text, pattern) = (check::bytes(lua, 1)?, check::bytes(lua, 2)?);
    let start = start(lua, text.len())?;
    let Some((matcher, found)) = find_first(lua, text, pattern, start)? else { return missing(lua) };
    push_match(lua, &matcher, &found)
}

/// `string.gmatch(text, pattern)`: an iterator, with the text, the pattern and the next position as its upvalues.
fn gmatch(lua: Lua<'_>) -> Results {
    check::bytes(lua, 1)?;
    check::bytes(lua, 2)?;
    lua.set_top(2);
    lua.push_number(0.0);
    lua.push_closure(next_match, 3);
    Ok(1)
}

fn next_match(lua: Lua<'_>) -> Results {
    const POSITION: i32 = UPVALUE - 2;
    let (text, pattern) = (lua.bytes(UPVALUE).unwrap_or_default(), lua.bytes(UPVALUE - 1).unwrap_or_default());
    let start = lua.number(POSITION) as usize;
    if start > text.len() {
        return Ok(0);
    }
    // Here `^` has no meaning of its own.
    let mut matcher = Matcher::new(text, c_text(pattern), false);
    let Some(found) = search(lua, &mut matcher, start)? else { return Ok(0) };
    lua.push_number((found.end + usize::from(found.is_empty())) as f64);
    lua.replace(POSITION);
    push_match(lua, &matcher, &found)
}

/// `string.gsub(text, pattern, replacement, [count])`.
fn gsub(lua: Lua<'_>) -> Results {
    let (text, pattern) = (check::bytes(lua, 1)?, check::bytes(lua, 2)?);
    let kind = lua.kind(3);
    let count_max = check::optional_integer(lua, 4)?.unwrap_or(text.len() as i64 + 1) as i32;
    if !matches!(kind, Type::Number | Type::String | Type::Function | Type::Table) {
        return Err(check::error(lua, 3, format_args!("string/function/table expected")));
    }
    let (pattern, is_anchored) = without_anchor(pattern);
    let mut matcher = Matcher::new(text, pattern, is_anchored);
    let mut storage = Storage::new();
    let mut result = Buffer::new(lua, &mut storage);
    let (mut at, mut count) = (0, 0);
    while count < count_max {
        let Some(found) = search(lua, &mut matcher, at)? else { break };
        count += 1;
        result.add_bytes(&text[at..found.start]);
        match kind {
            Type::Number | Type::String => add_text(lua, &mut result, &matcher, &found)?,
            _ => add_result(lua, &mut result, &matcher, kind, &found)?,
        }
        at = found.end;
        if found.is_empty() {
            let Some(byte) = text.get(at) else { break };
            result.add_bytes(std::slice::from_ref(byte));
            at += 1;
        }
        if is_anchored {
            break;
        }
    }
    result.add_bytes(&text[at..]);
    result.push();
    lua.push_number(f64::from(count));
    Ok(2)
}

/// Adds the replacement text, in which `%0` to `%9` stand for the match and its captures.
fn add_text(lua: Lua<'_>, result: &mut Buffer<'_>, matcher: &Matcher<'_>, found: &Range<usize>) -> Result<(), Raise> {
    let mut rest = lua.bytes(3).unwrap_or_default();
    while let Some(escape) = memchr::memchr(b'%', rest) {
        result.add_bytes(&rest[..escape]);
        // At the end, the text's terminating NUL byte is escaped.
        let (escaped, tail) = rest[escape + 1..].split_first().unwrap_or((&0, &[]));
        match escaped {
            b'0' => result.add_bytes(&matcher.text()[found.clone()]),
            b'1'..=b'9' => {
                push_capture(lua, matcher, usize::from(escaped - b'1'), found)?;
                result.add_top();
            }
            other => result.add_bytes(std::slice::from_ref(other)),
        }
        rest = tail;
    }
    result.add_bytes(rest);
    Ok(())
}

/// Adds what the replacement function returns or the replacement table contains; the match itself if that is nothing.
/// Runs Lua code.
fn add_result(
    lua: Lua<'_>,
    result: &mut Buffer<'_>,
    matcher: &Matcher<'_>,
    kind: Type,
    found: &Range<usize>,
) -> Result<(), Raise> {
    if kind == Type::Function {
        lua.push_value(3);
        let captures = matcher.captures().len().max(1);
        push_captures(lua, matcher, captures, found)?;
        lua.call(captures as i32, 1);
    } else {
        push_capture(lua, matcher, 0, found)?;
        lua.get(3);
    }
    if !lua.boolean(-1) {
        lua.pop(1);
        lua.push_bytes(&matcher.text()[found.clone()]);
    } else if !lua.is_string(-1) {
        return Err(lua.error(format_args!("invalid replacement value (a {})", lua.type_name(-1))));
    }
    result.add_top();
    Ok(())
}

/// The position in the text that the third argument names, from 0. Negative numbers count from the end.
fn start(lua: Lua<'_>, len: usize) -> Result<usize, Raise> {
    let position = check::optional_integer(lua, 3)?.unwrap_or(1);
    let from_start = if position < 0 { position.saturating_add(len as i64 + 1) } else { position };
    Ok((from_start.max(1) - 1).min(len as i64) as usize)
}

/// The first match from a position on.
fn find_first<'a>(
    lua: Lua<'_>,
    text: &'a [u8],
    pattern: &'a [u8],
    start: usize,
) -> Result<Option<(Matcher<'a>, Range<usize>)>, Raise> {
    let (pattern, is_anchored) = without_anchor(pattern);
    let mut matcher = Matcher::new(text, pattern, is_anchored);
    Ok(search(lua, &mut matcher, start)?.map(|found| (matcher, found)))
}

/// The pattern without the `^` at its beginning, and whether it had one.
fn without_anchor(pattern: &[u8]) -> (&[u8], bool) {
    let pattern = c_text(pattern);
    pattern.strip_prefix(b"^").map_or((pattern, false), |rest| (rest, true))
}

/// The next match from a position on. Ends the script if it has to end.
fn search(lua: Lua<'_>, matcher: &mut Matcher<'_>, start: usize) -> Result<Option<Range<usize>>, Raise> {
    matcher.begin(start, &mut lua.state().choices);
    loop {
        // The list belongs to this function while it runs, but an error must not find it here.
        let mut choices = mem::take(&mut lua.state().choices);
        let progress = matcher.search(&mut choices);
        if progress != Ok(Progress::Paused) && choices.capacity() > CHOICES_KEPT_MAX {
            choices = Vec::new();
        }
        lua.state().choices = choices;
        match progress {
            Ok(Progress::Found(found)) => return Ok(Some(found)),
            Ok(Progress::Missing) => return Ok(None),
            Ok(Progress::Paused) => lua.check_interrupt()?,
            Err(Malformed(text)) => return Err(lua.error(format_args!("{text}"))),
        }
    }
}

fn missing(lua: Lua<'_>) -> Results {
    lua.push_nil();
    Ok(1)
}

/// Pushes the positions of the first and the last byte, from 1.
fn push_range(lua: Lua<'_>, found: &Range<usize>) {
    lua.push_number((found.start + 1) as f64);
    lua.push_number(found.end as f64);
}

/// Returns the captures; the match if the pattern has none.
fn push_match(lua: Lua<'_>, matcher: &Matcher<'_>, found: &Range<usize>) -> Results {
    let captures = matcher.captures().len().max(1);
    push_captures(lua, matcher, captures, found)?;
    Ok(captures as i32)
}

fn push_captures(lua: Lua<'_>, matcher: &Matcher<'_>, count: usize, found: &Range<usize>) -> Result<(), Raise> {
    if !lua.check_stack(count as i32) {
        return Err(lua.error(format_args!("stack overflow (too many captures)")));
    }
    (0..count).try_for_each(|n| push_capture(lua, matcher, n, found))
}

/// Pushes a capture. In a pattern without captures, the first one is the match.
fn push_capture(lua: Lua<'_>, matcher: &Matcher<'_>, n: usize, found: &Range<usize>) -> Result<(), Raise> {
    match matcher.captures().get(n) {
        None if n == 0 => lua.push_bytes(&matcher.text()[found.clone()]),
        None => return Err(lua.error(format_args!("invalid capture index"))),
        Some(capture) => match capture.extent {
            Extent::Open => return Err(lua.error(format_args!("unfinished capture"))),
            Extent::Position => lua.push_number((capture.start + 1) as f64),
            Extent::Bytes(len) => lua.push_bytes(&matcher.text()[capture.start..capture.start + len]),
        },
    }
    Ok(())
}
