//! Splits JSON into tokens.

use super::number::read_number;

/// A token.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Token {
    ObjectBegin,
    ObjectEnd,
    ArrayBegin,
    ArrayEnd,
    /// A string without escapes: its range in the input.
    Plain(usize, usize),
    /// A string with escapes, decoded in the tokens' buffer.
    Escaped,
    Number(f64),
    Boolean(bool),
    Null,
    Colon,
    Comma,
    End,
    /// An error with its description.
    Error(&'static str),
}

impl Token {
    /// Its name in errors.
    pub(super) fn name(self) -> &'static str {
        match self {
            Token::ObjectBegin => "T_OBJ_BEGIN",
            Token::ObjectEnd => "T_OBJ_END",
            Token::ArrayBegin => "T_ARR_BEGIN",
            Token::ArrayEnd => "T_ARR_END",
            Token::Plain(..) | Token::Escaped => "T_STRING",
            Token::Number(_) => "T_NUMBER",
            Token::Boolean(_) => "T_BOOLEAN",
            Token::Null => "T_NULL",
            Token::Colon => "T_COLON",
            Token::Comma => "T_COMMA",
            Token::End => "T_END",
            Token::Error(wrong) => wrong,
        }
    }
}

/// An iterator over the tokens of an input. The input ends at its first zero byte.
pub(super) struct Tokens<'a> {
    input: &'a [u8],
    /// Number of bytes read.
    at: usize,
    /// Position of the last token, or of the error in it.
    token_at: usize,
    /// Whether numbers that JSON does not allow are accepted.
    lenient: bool,
    /// The last string with escapes.
    buffer: &'a mut Vec<u8>,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(input: &'a [u8], lenient: bool, buffer: &'a mut Vec<u8>) -> Self {
        Tokens { input, at: 0, token_at: 0, lenient, buffer }
    }

    /// Number of bytes read.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// Position of the last token, or of the error in it.
    pub(super) fn token_position(&self) -> usize {
        self.token_at
    }

    /// The bytes of a string.
    pub(super) fn string(&self, token: Token) -> Option<&[u8]> {
        match token {
            Token::Plain(start, end) => Some(&self.input[start..end]),
            Token::Escaped => Some(self.buffer),
            _ => None,
        }
    }

    /// The byte `ahead` of the current position; 0 beyond the end.
    #[inline]
    fn peek(&self, ahead: usize) -> u8 {
        self.input.get(self.at + ahead).copied().unwrap_or(0)
    }

    /// Reads the next token.
    pub(super) fn next(&mut self) -> Token {
        while matches!(self.peek(0), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
        self.token_at = self.at;
        let single = match self.peek(0) {
            b'{' => Token::ObjectBegin,
            b'}' => Token::ObjectEnd,
            b'[' => Token::ArrayBegin,
            b']' => Token::ArrayEnd,
            b',' => Token::Comma,
            b':' => Token::Colon,
            0 => return Token::End,
            b'"' => return self.string_token(),
            b'-' | b'0'..=b'9' if !self.lenient && self.is_invalid_number() => return self.error("invalid number"),
            b'-' | b'0'..=b'9' => return self.number_token(),
            b't' if self.takes(b"true") => return Token::Boolean(true),
            b'f' if self.takes(b"false") => return Token::Boolean(false),
            b'n' if self.takes(b"null") => return Token::Null,
            b'i' | b'I' | b'n' | b'N' | b'+' if self.lenient && self.is_invalid_number() => return self.number_token(),
            _ => return self.error("invalid token"),
        };
        self.at += 1;
        single
    }

    fn error(&mut self, wrong: &'static str) -> Token {
        self.token_at = self.at;
        Token::Error(wrong)
    }

    fn takes(&mut self, word: &[u8]) -> bool {
        let there = self.input[self.at..].starts_with(word);
        self.at += if there { word.len() } else { 0 };
        there
    }

    fn number_token(&mut self) -> Token {
        match read_number(&self.input[self.at..]) {
            Some((n, len)) => {
                self.at += len;
                Token::Number(n)
            }
            None => self.error("invalid number"),
        }
    }

    /// Whether the input continues with a number that C accepts but JSON does not. It may also be no number at all.
    fn is_invalid_number(&self) -> bool {
        if self.peek(0) == b'+' {
            return true;
        }
        let sign = usize::from(self.peek(0) == b'-');
        match self.peek(sign) {
            b'0' => matches!(self.peek(sign + 1), b'x' | b'X' | b'0'..=b'9'),
            byte if byte <= b'9' => false,
            _ => {
                let word = self.input.get(self.at + sign..self.at + sign + 3).unwrap_or_default();
                word.eq_ignore_ascii_case(b"inf") || word.eq_ignore_ascii_case(b"nan")
            }
        }
    }

    fn string_token(&mut self) -> Token {
        self.at += 1;
        let start = self.at;
        self.skip_plain();
        if self.peek(0) == b'"' {
            self.at += 1;
            return Token::Plain(start, self.at - 1);
        }
        self.buffer.clear();
        self.buffer.extend_from_slice(&self.input[start..self.at]);
        loop {
            match self.peek(0) {
                b'"' => {
                    self.at += 1;
                    return Token::Escaped;
                }
                0 => return self.error("unexpected end of string"),
                b'\\' => {
                    if let Err(wrong) = self.escape() {
                        return self.error(wrong);
                    }
                }
                _ => {
                    let start = self.at;
                    self.skip_plain();
                    self.buffer.extend_from_slice(&self.input[start..self.at]);
                }
            }
        }
    }

    /// Skips to the next byte of a string that needs decoding.
    fn skip_plain(&mut self) {
        let rest = &self.input[self.at..];
        self.at += memchr::memchr3(b'"', b'\\', 0, rest).unwrap_or(rest.len());
    }

    /// Reads an escape and appends the decoded character. Does not advance on an error.
    fn escape(&mut self) -> Result<(), &'static str> {
        let byte = match self.peek(1) {
            byte @ (b'"' | b'\\' | b'/') => byte,
            b'b' => 0x08,
            b't' => b'\t',
            b'n' => b'\n',
            b'f' => 0x0c,
            b'r' => b'\r',
            b'u' => {
                let (char, len) = self.unicode_escape().ok_or("invalid unicode escape code")?;
                self.buffer.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                self.at += len;
                return Ok(());
            }
            _ => return Err("invalid escape code"),
        };
        self.buffer.push(byte);
        self.at += 2;
        Ok(())
    }

    /// Decodes `\uXXXX`, or two of them that form a surrogate pair; returns the character and the length.
    fn unicode_escape(&self) -> Option<(char, usize)> {
        let first = self.hex4(2)?;
        if first & 0xf800 != 0xd800 {
            return Some((char::from_u32(first)?, 6));
        }
        let paired = first & 0x400 == 0 && self.peek(6) == b'\\' && self.peek(7) == b'u';
        let second = if paired { self.hex4(8)? } else { return None };
        if second & 0xfc00 != 0xdc00 {
            return None;
        }
        let char = char::from_u32(0x10000 + ((first & 0x3ff) << 10 | second & 0x3ff))?;
        Some((char, 12))
    }

    /// Parses the four hexadecimal digits `ahead` of the current position.
    fn hex4(&self, ahead: usize) -> Option<u32> {
        (ahead..ahead + 4).try_fold(0, |n, ahead| Some(n << 4 | (self.peek(ahead) as char).to_digit(16)?))
    }
}
