//! Decodes JSON to Lua values.

use super::Config;
use super::token::{Token, Tokens};
use crate::libs::check;
use crate::lua::shared::Level;
use crate::lua::{Lua, Raise, Results};

/// `decode(text)`.
pub(super) fn decode(lua: Lua<'_>) -> Results {
    if lua.top() != 1 {
        return Err(check::error(lua, 1, format_args!("expected 1 argument")));
    }
    let config = lua.block::<Config>();
    let input = check::bytes(lua, 1)?;
    if let [first, second, ..] = input
        && (*first == 0 || *second == 0)
    {
        return Err(lua.error(format_args!("JSON parser does not support UTF-16 or UTF-32")));
    }
    let state = lua.state();
    let levels = &mut state.levels;
    levels.clear();
    let mut tokens = Tokens::new(input, config.decode_invalid_numbers, &mut state.text);
    let mut token = tokens.next();
    while let Some(next) = push_value(lua, &config, &mut tokens, token, levels)? {
        token = next;
    }
    match tokens.next() {
        Token::End => Ok(1),
        token => Err(unexpected(lua, &tokens, "the end", token)),
    }
}

/// Pushes the value that starts with `token`. While that completes the enclosing array or object, continues with the
/// one around it. Returns the first token of the next value, if any.
fn push_value(
    lua: Lua<'_>,
    config: &Config,
    tokens: &mut Tokens<'_>,
    token: Token,
    levels: &mut Vec<Level>,
) -> Result<Option<Token>, Raise> {
    match token {
        Token::Plain(..) | Token::Escaped => lua.push_bytes(tokens.string(token).unwrap_or_default()),
        Token::Number(n) => lua.push_number(n),
        Token::Boolean(value) => lua.push_boolean(value),
        Token::Null => lua.push_null(),
        Token::ArrayBegin | Token::ObjectBegin => {
            let keyed = token == Token::ObjectBegin;
            let depth = levels.len() + 1;
            if depth > config.decode_max_depth as usize || !lua.check_stack(if keyed { 3 } else { 2 }) {
                let at = tokens.position();
                return Err(
                    lua.error(format_args!("Found too many nested data structures ({depth}) at character {at}"))
                );
            }
            lua.create_table(0, 0);
            let next = tokens.next();
            if next != if keyed { Token::ObjectEnd } else { Token::ArrayEnd } {
                levels.push(Level { keyed, done: 0, len: 0 });
                return begin_item(lua, tokens, keyed, next).map(Some);
            }
        }
        _ => return Err(unexpected(lua, tokens, "value", token)),
    }
    // A value is complete: store it in its container, which may be complete as well.
    while let Some(level) = levels.last_mut() {
        level.done += 1;
        if level.keyed {
            lua.raw_set(-3);
        } else {
            // Cannot overflow: Lua strings, and so inputs, are shorter.
            lua.raw_set_item(-2, level.done as i32);
        }
        match (tokens.next(), level.keyed) {
            (Token::ObjectEnd, true) | (Token::ArrayEnd, false) => levels.pop(),
            (Token::Comma, keyed) => {
                let token = tokens.next();
                return begin_item(lua, tokens, keyed, token).map(Some);
            }
            (token, true) => return Err(unexpected(lua, tokens, "comma or object end", token)),
            (token, false) => return Err(unexpected(lua, tokens, "comma or array end", token)),
        };
    }
    Ok(None)
}

/// Pushes the key of an item, if it has one; returns the first token of its value.
fn begin_item(lua: Lua<'_>, tokens: &mut Tokens<'_>, keyed: bool, token: Token) -> Result<Token, Raise> {
    if !keyed {
        return Ok(token);
    }
    let Some(key) = tokens.string(token) else {
        return Err(unexpected(lua, tokens, "object key string", token));
    };
    lua.push_bytes(key);
    match tokens.next() {
        Token::Colon => Ok(tokens.next()),
        token => Err(unexpected(lua, tokens, "colon", token)),
    }
}

/// The error for an unexpected token.
#[cold]
fn unexpected(lua: Lua<'_>, tokens: &Tokens<'_>, expected: &str, token: Token) -> Raise {
    let (found, at) = (token.name(), tokens.token_position() + 1);
    lua.error(format_args!("Expected {expected} but found {found} at character {at}"))
}
