//! Inline requests, typed as a line of text, and the quoting rules they share with configuration files.
//!
//! Arguments are separated by blanks. Within double quotes, `\n`, `\r`, `\t`, `\b`, `\a`,
//! `\xHH` and a backslash before any other byte are escapes; within single quotes, only `\'`
//! is. Quoted and unquoted parts can be adjacent within one argument. A NUL ends the line.

use std::fmt;

use crate::args::Span;
use crate::partial::BIG_ARG;
use crate::shared::SharedBytes;

/// A line with an unclosed quote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unbalanced;

impl fmt::Display for Unbalanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("unbalanced quotes")
    }
}

impl std::error::Error for Unbalanced {}

/// The meaning of a backslash before the last byte of a line.
#[derive(Clone, Copy, PartialEq)]
enum LastEscape {
    /// It escapes that byte, as everywhere else.
    Escape,
    /// It is literal, so that `"a\"` is a complete argument. Used for inline requests.
    Literal,
}

/// Splits a line of a configuration file into arguments.
pub fn split_args(line: &[u8]) -> Result<Vec<Vec<u8>>, Unbalanced> {
    let mut args = Vec::new();
    let mut at = skip_blanks(line, 0);
    while at < line.len() {
        let mut arg = Vec::new();
        at = skip_blanks(line, unescape(line, at, LastEscape::Escape, &mut arg)?);
        args.push(arg);
    }
    Ok(args)
}

/// Splits the inline request `input[start..end]` and appends a span for
/// each argument. Arguments with quotes are unescaped into an owned buffer.
pub(crate) fn split(
    input: &[u8],
    start: usize,
    end: usize,
    spans: &mut Vec<Span>,
    big: &mut Vec<SharedBytes>,
) -> Result<(), Unbalanced> {
    let line = &input[..end];
    let mut at = skip_blanks(line, start);
    while at < end {
        let bare = line[at..].iter().position(|&byte| ends_bare(byte) || is_quote(byte)).unwrap_or(end - at);
        if line.get(at + bare).copied().is_some_and(is_quote) {
            let place = scratch(big);
            let buffer = big[place].make_mut();
            let from = buffer.len();
            at = unescape(line, at, LastEscape::Literal, buffer)?;
            spans.push(Span::owned(place, from, buffer.len() - from));
        } else {
            spans.push(Span { start: at, len: bare });
            at += bare;
        }
        at = skip_blanks(line, at);
    }
    Ok(())
}

/// The index of an owned buffer to append to: the last one, unless that belongs to a big argument.
fn scratch(big: &mut Vec<SharedBytes>) -> usize {
    if big.last().is_none_or(|last| last.len() >= BIG_ARG) {
        big.push(SharedBytes::default());
    }
    big.len() - 1
}

/// The start of the next argument; the line's end if there is none.
fn skip_blanks(line: &[u8], at: usize) -> usize {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    match line.get(at..).unwrap_or_default().iter().position(|byte| !blank(byte)) {
        Some(skipped) if line[at + skipped] != 0 => at + skipped,
        _ => line.len(),
    }
}

fn ends_bare(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0)
}

fn is_quote(byte: u8) -> bool {
    matches!(byte, b'"' | b'\'')
}

/// Appends the argument at `at` to `out` and returns its end.
fn unescape(line: &[u8], mut at: usize, last: LastEscape, out: &mut Vec<u8>) -> Result<usize, Unbalanced> {
    let mut quote = None;
    loop {
        let rest = line.get(at..).unwrap_or_default();
        let (byte, taken) = match (quote, rest) {
            (None, []) => return Ok(at),
            (None, [byte, ..]) if ends_bare(*byte) => return Ok(at),
            (Some(_), [] | [0, ..]) => return Err(Unbalanced),
            (None, [byte, ..]) if is_quote(*byte) => {
                quote = Some(*byte);
                at += 1;
                continue;
            }
            (Some(quoted), [byte, ..]) if quoted == *byte => {
                quote = None;
                at += 1;
                continue;
            }
            (Some(_), [b'\\', _]) if last == LastEscape::Literal => (b'\\', 1),
            (Some(b'"'), [b'\\', b'x', high, low, ..]) if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                (hex(*high) << 4 | hex(*low), 4)
            }
            (Some(b'"'), [b'\\', escaped, ..]) if *escaped != 0 => (control(*escaped), 2),
            (Some(b'\''), [b'\\', b'\'', ..]) => (b'\'', 2),
            (_, [byte, ..]) => (*byte, 1),
        };
        out.push(byte);
        at += taken;
    }
}

/// The byte that `\` and `escaped` represent.
fn control(escaped: u8) -> u8 {
    match escaped {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    }
}

/// The value of a hexadecimal digit.
fn hex(digit: u8) -> u8 {
    match digit {
        b'0'..=b'9' => digit - b'0',
        _ => (digit | 0x20) - b'a' + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_split_at_blanks_outside_quotes() {
        let split = |line: &str| split_args(line.as_bytes());
        let args = |args: &[&str]| Ok(args.iter().map(|arg| arg.as_bytes().to_vec()).collect());
        assert_eq!(split(""), args(&[]));
        assert_eq!(split(" \t\r\n"), args(&[]));
        assert_eq!(split("save 3600  1 \"\" "), args(&["save", "3600", "1", ""]));
        assert_eq!(split(r#"requirepass "a \"b\" \x63""#), args(&["requirepass", r#"a "b" c"#]));
        assert_eq!(split("a\0b c"), args(&["a"]));
        for line in [r#"a "b"#, "a 'b", r#"a "b\""#, r"a 'b\'", "\"a\0\"", "\"\\"] {
            assert_eq!(split(line), Err(Unbalanced), "{line}");
        }
    }
}
