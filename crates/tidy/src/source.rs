//! Source files, and the little that the rules need to know about Rust's syntax.

use std::ops::Range;

/// A file of the repository.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path, relative to the root of the repository.
    pub path: String,
    /// Its contents.
    pub text: String,
    /// For Rust, the text with a space for every byte of comments and of string and character literals, and with the
    /// same line breaks; empty for other files.
    pub code: String,
}

impl File {
    /// A file with this path and text.
    pub fn new(path: impl Into<String>, text: impl Into<String>) -> File {
        let (path, text) = (path.into(), text.into());
        let code = if path.ends_with(".rs") { code_of(&text) } else { String::new() };
        File { path, text, code }
    }

    /// True for Rust sources.
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The crate whose `src` contains the file, and the path below that.
    pub fn in_crate(&self) -> Option<(&str, &str)> {
        let (name, path) = self.path.strip_prefix("crates/")?.split_once('/')?;
        Some((name, path.strip_prefix("src/")?))
    }
}

/// The number of the line, counted from 1, that an offset into a text belongs to.
pub fn line_of(text: &str, offset: usize) -> usize {
    text.as_bytes()[..offset].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// Rust text with a space for every byte of comments and literals.
fn code_of(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut code = bytes.to_vec();
    let mut at = 0;
    while at < bytes.len() {
        let end = end_of_text(bytes, at);
        for byte in &mut code[at..end] {
            if *byte != b'\n' {
                *byte = b' ';
            }
        }
        at = end.max(at + 1);
    }
    String::from_utf8(code).unwrap_or_default()
}

/// Where the comment or literal that begins at `at` ends; `at` itself if none does.
fn end_of_text(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    let found = |needle: &[u8], from: usize| {
        let found = rest[from..].windows(needle.len()).position(|window| window == needle);
        found.map_or(bytes.len(), |position| at + from + position)
    };
    match rest {
        [b'/', b'/', ..] => found(b"\n", 2),
        [b'/', b'*', ..] => end_of_block_comment(bytes, at),
        [b'"', ..] => end_of_string(bytes, at),
        [b'r', b'"' | b'#', ..] if !continues_word(bytes, at) => {
            let hashes = rest[1..].iter().take_while(|byte| **byte == b'#').count();
            if rest.get(1 + hashes) != Some(&b'"') {
                return at;
            }
            let closing = [&b"\""[..], &b"#".repeat(hashes)].concat();
            (found(&closing, 2 + hashes) + closing.len()).min(bytes.len())
        }
        [b'\'', b'\\', ..] => (found(b"'", 3) + 1).min(bytes.len()),
        [b'\'', first, ..] => {
            // A character literal has its second quote right after one character; otherwise this is a lifetime.
            let len = match first {
                0..0x80 => 1,
                0x80..0xe0 => 2,
                0xe0..0xf0 => 3,
                _ => 4,
            };
            if rest.get(1 + len) == Some(&b'\'') { at + 2 + len } else { at }
        }
        _ => at,
    }
}

/// Whether the byte before `at` belongs to the same word, other than the prefix of a byte or C string.
fn continues_word(bytes: &[u8], at: usize) -> bool {
    let is_word = |at: usize| at > 0 && is_word_byte(bytes[at - 1]);
    is_word(at) && (!matches!(bytes[at - 1], b'b' | b'c') || is_word(at - 1))
}

fn end_of_block_comment(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0);
    while at < bytes.len() {
        match &bytes[at..] {
            [b'/', b'*', ..] => {
                depth += 1;
                at += 2;
            }
            [b'*', b'/', ..] => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    at
}

fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80
}

/// A word, a `::`, or any other character of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token<'a> {
    /// The token itself.
    pub text: &'a str,
    /// Its offset in the code.
    pub offset: usize,
}

/// The tokens of a [`File::code`].
pub fn tokens(code: &str) -> Vec<Token<'_>> {
    let bytes = code.as_bytes();
    let mut tokens = Vec::with_capacity(bytes.len() / 4);
    let mut at = 0;
    while at < bytes.len() {
        let len = match bytes[at] {
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            byte if is_word_byte(byte) => bytes[at..].iter().take_while(|byte| is_word_byte(**byte)).count(),
            b':' if bytes.get(at + 1) == Some(&b':') => 2,
            _ => 1,
        };
        tokens.push(Token { text: &code[at..at + len], offset: at });
        at += len;
    }
    tokens
}

/// The items under `#[cfg(test)]`, as ranges of tokens, attributes included.
pub fn test_items(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    let mut items = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let words: Vec<&str> = tokens[at..].iter().take(7).map(|token| token.text).collect();
        if words == ["#", "[", "cfg", "(", "test", ")", "]"] {
            let end = end_of_item(tokens, at + words.len());
            items.push(at..end);
            at = end;
        } else {
            at += 1;
        }
    }
    items
}

/// The token behind the item that begins at `start`: behind its `;`, or its `{}`, outside of other brackets.
fn end_of_item(tokens: &[Token<'_>], start: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(start) {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ";" if depth == 0 => return at + 1,
            // The end of what the item is in: it was a field or an expression.
            ")" | "]" | "}" if depth == 0 => return at,
            "}" if depth == 1 => return at + 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}
