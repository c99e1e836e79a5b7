//! Replies of the server as JSON: a decoder of RESP3 that writes JSON while bytes arrive.
//!
//! | RESP | JSON |
//! | --- | --- |
//! | bulk string, UTF-8 | `"text"` |
//! | bulk string, other bytes | `{"hex":"00ff"}` |
//! | simple string | `{"status":"OK"}` |
//! | error | `{"error":"ERR ..."}` |
//! | integer | a number, or `{"integer":"..."}` if its magnitude exceeds 2^53 - 1 |
//! | double, big number | `{"double":"1.5"}`, `{"big":"..."}`, as the server writes them |
//! | boolean, null | `true`, `false`, `null` |
//! | verbatim string | `{"format":"txt","text":"..."}`, or `{"format":"txt","hex":"..."}` |
//! | array, set, push | `[...]`, `{"set":[...]}`, `{"push":[...]}` |
//! | map | `{"map":[[key,value],...]}`, in the server's order |
//!
//! The conversion loses nothing. A reply whose JSON exceeds a limit becomes `{"too_large":N}` with that limit: the
//! rest is read and dropped, so memory is bounded whatever the server sends.

use kvick_resp::format::parse_i64;

/// Bytes of a line: a type, a length, a number, a status or an error.
const LINE_BYTES_MAX: usize = 64 * 1024;
/// Aggregates within each other.
const DEPTH_MAX: usize = 512;
/// The greatest integer that every JSON reader keeps exactly.
const INTEGER_MAX: u64 = (1 << 53) - 1;

/// A complete reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its JSON.
    pub json: String,
    /// Whether and how it differs from an ordinary reply.
    pub kind: Kind,
}

impl Reply {
    /// Whether it is an error.
    pub fn is_error(&self) -> bool {
        matches!(self.kind, Kind::Error(_))
    }
}

/// The kinds of replies that need attention.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Any other reply.
    Ordinary,
    /// An error, with its text.
    Error(String),
    /// A map.
    Map,
    /// A message that replies to no command.
    Push,
}

/// The bytes are not RESP3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// The aggregates that have a form of their own in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Array,
    Set,
    Push,
    Map,
    /// Attributes of the next value, which are dropped.
    Attributes,
}

/// An aggregate that is not complete.
#[derive(Debug)]
struct Open {
    shape: Shape,
    /// Values that it lacks.
    missing: u64,
    is_empty: bool,
}

/// A bulk string that is not complete.
#[derive(Debug)]
struct Bulk {
    is_verbatim: bool,
    /// Bytes of content that are still missing, then two for the end of the line.
    missing: u64,
    content: Vec<u8>,
    /// Whether the content is kept.
    is_kept: bool,
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Decoder {
    bytes_max: usize,
    line: Vec<u8>,
    bulk: Option<Bulk>,
    open: Vec<Open>,
    kind: Option<Kind>,
    json: String,
    is_too_large: bool,
    /// Depth of attributes; while it is not zero, nothing is written.
    attributes: usize,
}

impl Decoder {
    /// A decoder whose replies have at most about `bytes_max` bytes of JSON.
    pub fn new(bytes_max: usize) -> Decoder {
        Decoder {
            bytes_max,
            line: Vec::new(),
            bulk: None,
            open: Vec::new(),
            kind: None,
            json: String::new(),
            is_too_large: false,
            attributes: 0,
        }
    }

    /// Takes bytes from the front of `input` until a reply is complete or none are left.
    ///
    /// # Errors
    /// If the bytes are not RESP3. The decoder is of no further use then.
    pub fn decode(&mut self, input: &mut &[u8]) -> Result<Option<Reply>, Malformed> {
        while !input.is_empty() {
            let is_complete = match self.bulk.take() {
                Some(bulk) => self.read_bulk(bulk, input)?,
                None => self.read_line(input)?,
            };
            if is_complete && let Some(reply) = self.complete_value() {
                return Ok(Some(reply));
            }
        }
        Ok(None)
    }

    /// Reads the rest of a bulk string; true if it is complete.
    fn read_bulk(&mut self, mut bulk: Bulk, input: &mut &[u8]) -> Result<bool, Malformed> {
        let content = bulk.missing.saturating_sub(2);
        let taken = usize::try_from(content).unwrap_or(usize::MAX).min(input.len());
        if bulk.is_kept {
            bulk.content.extend_from_slice(&input[..taken]);
        }
        *input = &input[taken..];
        bulk.missing -= taken as u64;
        while let (1..=2, Some((first, rest))) = (bulk.missing, input.split_first()) {
            if *first != if bulk.missing == 2 { b'\r' } else { b'\n' } {
                return Err(Malformed);
            }
            *input = rest;
            bulk.missing -= 1;
        }
        if bulk.missing > 0 {
            self.bulk = Some(bulk);
            return Ok(false);
        }
        if bulk.is_kept {
            self.write_bulk(&bulk);
        }
        Ok(true)
    }

    fn write_bulk(&mut self, bulk: &Bulk) {
        let mut json = std::mem::take(&mut self.json);
        match bulk.content.get(..4).filter(|_| bulk.is_verbatim) {
            Some(prefix) => {
                json.push_str("{\"format\":");
                push_text(&mut json, &String::from_utf8_lossy(&prefix[..3]));
                let text = &bulk.content[4..];
                match std::str::from_utf8(text) {
                    Ok(text) => {
                        json.push_str(",\"text\":");
                        push_text(&mut json, text);
                    }
                    Err(_) => {
                        json.push_str(",\"hex\":\"");
                        push_hex(&mut json, text);
                        json.push('"');
                    }
                }
                json.push('}');
            }
            None => push_bytes(&mut json, &bulk.content),
        }
        self.json = json;
        self.check_size();
    }

    /// Reads a line, and what it begins; true if that is a complete value.
    fn read_line(&mut self, input: &mut &[u8]) -> Result<bool, Malformed> {
        let end = input.iter().position(|byte| *byte == b'\n').map_or(input.len(), |end| end + 1);
        self.line.extend_from_slice(&input[..end]);
        *input = &input[end..];
        if self.line.len() > LINE_BYTES_MAX {
            return Err(Malformed);
        }
        if self.line.last() != Some(&b'\n') {
            return Ok(false);
        }
        let line = std::mem::take(&mut self.line);
        let is_complete = self.begin_value(line.strip_suffix(b"\r\n").ok_or(Malformed)?)?;
        self.line = line;
        self.line.clear();
        Ok(is_complete)
    }

    /// Begins the value that a line announces; true if it is complete.
    fn begin_value(&mut self, line: &[u8]) -> Result<bool, Malformed> {
        let (kind, rest) = line.split_first().ok_or(Malformed)?;
        // Attributes have no place of their own in an aggregate.
        let is_written = if *kind == b'|' { self.is_writing() } else { self.begin_item() };
        if self.kind.is_none() && self.attributes == 0 {
            self.kind = match kind {
                b'-' => Some(Kind::Error(String::from_utf8_lossy(rest).into_owned())),
                b'>' => Some(Kind::Push),
                b'%' => Some(Kind::Map),
                b'|' => None,
                _ => Some(Kind::Ordinary),
            };
        }
        match kind {
            b'+' => self.write_form(is_written, "status", rest),
            b'-' => self.write_form(is_written, "error", rest),
            b',' => self.write_form(is_written, "double", rest),
            b'(' => self.write_form(is_written, "big", rest),
            b':' => {
                let number = parse_i64(rest).ok_or(Malformed)?;
                match number.unsigned_abs() <= INTEGER_MAX {
                    true => self.write(is_written, &number.to_string()),
                    false => self.write_form(is_written, "integer", rest),
                }
            }
            b'#' => match rest {
                b"t" => self.write(is_written, "true"),
                b"f" => self.write(is_written, "false"),
                _ => return Err(Malformed),
            },
            b'_' => self.write(is_written, "null"),
            b'$' | b'=' if rest != b"-1" => {
                let length = length(rest)?;
                let room = self.bytes_max.saturating_sub(self.json.len()) as u64;
                if is_written && length > room {
                    self.is_too_large = true;
                }
                self.bulk = Some(Bulk {
                    is_verbatim: *kind == b'=',
                    missing: length.checked_add(2).ok_or(Malformed)?,
                    content: Vec::new(),
                    is_kept: is_written && !self.is_too_large,
                });
                return Ok(false);
            }
            b'$' | b'=' => self.write(is_written, "null"),
            b'*' if rest == b"-1" => self.write(is_written, "null"),
            b'*' | b'~' | b'>' | b'%' | b'|' => return self.begin_aggregate(*kind, length(rest)?, is_written),
            _ => return Err(Malformed),
        }
        Ok(true)
    }

    fn begin_aggregate(&mut self, kind: u8, length: u64, is_written: bool) -> Result<bool, Malformed> {
        let (shape, opening, values) = match kind {
            b'~' => (Shape::Set, "{\"set\":[", length),
            b'>' => (Shape::Push, "{\"push\":[", length),
            b'%' => (Shape::Map, "{\"map\":[", length.checked_mul(2).ok_or(Malformed)?),
            b'|' => (Shape::Attributes, "", length.checked_mul(2).ok_or(Malformed)?),
            _ => (Shape::Array, "[", length),
        };
        if self.open.len() >= DEPTH_MAX {
            return Err(Malformed);
        }
        self.write(is_written, opening);
        self.attributes += usize::from(shape == Shape::Attributes);
        self.open.push(Open { shape, missing: values, is_empty: true });
        Ok(values == 0)
    }

    /// Whether values are written, and not dropped.
    fn is_writing(&self) -> bool {
        !self.is_too_large && self.attributes == 0
    }

    /// Writes the separator before a value in the innermost aggregate. Returns whether values are written at all.
    fn begin_item(&mut self) -> bool {
        if !self.is_writing() {
            return false;
        }
        let Some(open) = self.open.last_mut() else { return true };
        let is_first = std::mem::replace(&mut open.is_empty, false);
        let is_key = open.shape == Shape::Map && open.missing.is_multiple_of(2);
        match (is_first, is_key) {
            (true, true) => self.json.push('['),
            (false, true) => self.json.push_str(",["),
            (true, false) => {}
            (false, false) => self.json.push(','),
        }
        true
    }

    /// Counts a complete value, and those that it completes. Returns the reply if that is complete.
    fn complete_value(&mut self) -> Option<Reply> {
        let mut is_closed_by_nothing = self.open.last().is_some_and(|open| open.missing == 0);
        loop {
            if !is_closed_by_nothing {
                let Some(open) = self.open.last_mut() else { break };
                open.missing -= 1;
                if open.shape == Shape::Map && open.missing.is_multiple_of(2) {
                    let is_written = self.is_writing();
                    self.write(is_written, "]");
                }
                if self.open.last().is_some_and(|open| open.missing > 0) {
                    return None;
                }
            }
            is_closed_by_nothing = false;
            let shape = self.open.pop()?.shape;
            let is_written = self.is_writing();
            match shape {
                Shape::Array => self.write(is_written, "]"),
                Shape::Set | Shape::Push | Shape::Map => self.write(is_written, "]}"),
                // The value that the attributes belong to follows in the same place.
                Shape::Attributes => {
                    self.attributes -= 1;
                    return None;
                }
            }
        }
        let json = std::mem::take(&mut self.json);
        let json = match std::mem::take(&mut self.is_too_large) {
            true => format!("{{\"too_large\":{}}}", self.bytes_max),
            false => json,
        };
        Some(Reply { json, kind: self.kind.take().unwrap_or(Kind::Ordinary) })
    }

    fn write(&mut self, is_written: bool, text: &str) {
        if is_written {
            self.json.push_str(text);
            self.check_size();
        }
    }

    /// Writes `{"name":"text"}`.
    fn write_form(&mut self, is_written: bool, name: &str, text: &[u8]) {
        if is_written {
            self.json.push_str("{\"");
            self.json.push_str(name);
            self.json.push_str("\":");
            push_text(&mut self.json, &String::from_utf8_lossy(text));
            self.json.push('}');
            self.check_size();
        }
    }

    fn check_size(&mut self) {
        if self.json.len() > self.bytes_max {
            self.is_too_large = true;
            self.json = String::new();
        }
    }
}

fn length(digits: &[u8]) -> Result<u64, Malformed> {
    parse_i64(digits).and_then(|length| u64::try_from(length).ok()).ok_or(Malformed)
}

/// Appends bytes as a JSON string, or in hexadecimal if they are not UTF-8.
pub fn push_bytes(json: &mut String, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => push_text(json, text),
        Err(_) => {
            json.push_str("{\"hex\":\"");
            push_hex(json, bytes);
            json.push_str("\"}");
        }
    }
}

/// Appends a JSON string.
pub fn push_text(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' => json.push_str("\\\""),
            '\\' => json.push_str("\\\\"),
            '\n' => json.push_str("\\n"),
            // Line separators end lines of JavaScript, and DEL is invisible.
            '\0'..='\x1f' | '\x7f' | '\u{2028}' | '\u{2029}' => {
                json.push_str(&format!("\\u{:04x}", u32::from(character)));
            }
            other => json.push(other),
        }
    }
    json.push('"');
}

fn push_hex(json: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        json.push(char::from(DIGITS[usize::from(byte >> 4)]));
        json.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

/// The bytes of hexadecimal digits; `None` if they are not that.
pub fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return None;
    }
    let nibble = |byte: u8| char::from(byte).to_digit(16);
    digits.as_bytes().chunks_exact(2).map(|pair| u8::try_from(nibble(pair[0])? << 4 | nibble(pair[1])?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const LIMIT: usize = 1024;

    /// Decodes a reply in pieces of `step` bytes, and checks that nothing is left.
    fn decode(bytes: &[u8], step: usize, limit: usize) -> Reply {
        let mut decoder = Decoder::new(limit);
        let mut found = None;
        for mut piece in bytes.chunks(step) {
            assert_eq!(found, None, "the reply has ended");
            found = decoder.decode(&mut piece).expect("a valid reply");
            assert!(piece.is_empty());
        }
        found.expect("a complete reply")
    }

    fn json_of(bytes: &[u8]) -> Value {
        let whole = decode(bytes, bytes.len(), LIMIT);
        for step in 1..4 {
            assert_eq!(decode(bytes, step, LIMIT), whole);
        }
        serde_json::from_str(&whole.json).unwrap_or_else(|error| panic!("{}: {error}", whole.json))
    }

    #[test]
    fn every_type_has_its_form() {
        assert_eq!(json_of(b"+OK\r\n"), json!({"status": "OK"}));
        assert_eq!(json_of(b"-ERR no \"x\"\r\n"), json!({"error": "ERR no \"x\""}));
        assert_eq!(json_of(b":-7\r\n"), json!(-7));
        assert_eq!(json_of(b":9007199254740993\r\n"), json!({"integer": "9007199254740993"}));
        assert_eq!(json_of(b",inf\r\n"), json!({"double": "inf"}));
        assert_eq!(json_of(b"(12345678901234567890123\r\n"), json!({"big": "12345678901234567890123"}));
        assert_eq!(json_of(b"*3\r\n#t\r\n#f\r\n_\r\n"), json!([true, false, null]));
        assert_eq!(json_of(b"$6\r\na\"\r\n\x7f\x00\r\n"), json!("a\"\r\n\x7f\0"));
        assert_eq!(json_of(b"$3\r\n\x00\xff\x10\r\n"), json!({"hex": "00ff10"}));
        assert_eq!(json_of(b"=7\r\ntxt:abc\r\n"), json!({"format": "txt", "text": "abc"}));
        assert_eq!(json_of(b"=5\r\ntxt:\xff\r\n"), json!({"format": "txt", "hex": "ff"}));
        assert_eq!(json_of(b"$-1\r\n"), json!(null));
        assert_eq!(json_of(b"*0\r\n"), json!([]));
        assert_eq!(json_of(b"$0\r\n\r\n"), json!(""));
        assert_eq!(json_of(b"~2\r\n:1\r\n*1\r\n*0\r\n"), json!({"set": [1, [[]]]}));
        assert_eq!(
            json_of(b"%2\r\n+a\r\n%0\r\n$1\r\nb\r\n*1\r\n:1\r\n"),
            json!({"map": [
            [{"status": "a"}, {"map": []}], ["b", [1]]]})
        );
    }

    #[test]
    fn attributes_are_dropped() {
        assert_eq!(json_of(b"*2\r\n|1\r\n+ttl\r\n*2\r\n:1\r\n|0\r\n:2\r\n$1\r\na\r\n:2\r\n"), json!(["a", 2]));
        assert_eq!(decode(b"|1\r\n+a\r\n+b\r\n>1\r\n:1\r\n", 3, LIMIT).kind, Kind::Push);
    }

    #[test]
    fn kinds_are_those_of_the_whole_reply() {
        let kind = |bytes: &[u8]| decode(bytes, 2, LIMIT).kind;
        assert_eq!(kind(b"-NOPERM x\r\n"), Kind::Error("NOPERM x".into()));
        assert_eq!(kind(b"*1\r\n-ERR\r\n"), Kind::Ordinary);
        assert_eq!(kind(b"%0\r\n"), Kind::Map);
        assert_eq!(kind(b">1\r\n%0\r\n"), Kind::Push);
    }

    #[test]
    fn large_replies_are_read_and_dropped() {
        let long = "x".repeat(2 * LIMIT);
        for reply in [
            format!("${}\r\n{long}\r\n", long.len()),
            format!("*2\r\n${}\r\n{long}\r\n:1\r\n", long.len()),
            format!("*{LIMIT}\r\n{}", ":1\r\n".repeat(LIMIT)),
            format!("%1\r\n+{long}\r\n*1\r\n_\r\n"),
        ] {
            for step in [1, 1000] {
                assert_eq!(decode(reply.as_bytes(), step, LIMIT).json, format!("{{\"too_large\":{LIMIT}}}"));
            }
        }
    }

    #[test]
    fn a_claimed_length_takes_no_memory() {
        let mut decoder = Decoder::new(LIMIT);
        for mut claim in [&b"*1000000000\r\n"[..], b"$1000000000000\r\nabc"] {
            assert_eq!(decoder.decode(&mut claim), Ok(None));
        }
        assert!(decoder.json.capacity() <= 2 * LIMIT);
    }

    #[test]
    fn malformed_bytes_are_refused() {
        let nested = b"*1\r\n".repeat(DEPTH_MAX + 1);
        for bytes in
            [&b"?\r\n"[..], b"\r\n", b":x\r\n", b"$-2\r\n", b"*-5\r\n", b"$1\r\nabc", b"#x\r\n", b"+a\n", &nested]
        {
            let mut input = bytes;
            assert_eq!(Decoder::new(LIMIT).decode(&mut input), Err(Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn hexadecimal_digits_are_read() {
        assert_eq!(parse_hex("00fF"), Some(vec![0, 255]));
        for wrong in ["0", "0g", "+1", "é"] {
            assert_eq!(parse_hex(wrong), None, "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_without_panic(bytes: Vec<u8>, limit in 0usize..64) {
            let mut input = &bytes[..];
            let mut decoder = Decoder::new(limit);
            while let Ok(Some(reply)) = decoder.decode(&mut input) {
                prop_assert!(serde_json::from_str::<Value>(&reply.json).is_ok(), "{}", reply.json);
            }
        }

        #[test]
        fn mixtures_of_resp_give_json(parts in proptest::collection::vec(0usize..13, 0..60)) {
            let pieces: [&[u8]; 13] = [b"*2\r\n", b"%1\r\n", b"~1\r\n", b"|1\r\n", b">1\r\n", b"*0\r\n", b"%0\r\n",
                b":1\r\n", b"+a\r\n", b"$2\r\n\xffb\r\n", b"_\r\n", b"-e\r\n", b"|0\r\n"];
            let bytes: Vec<u8> = parts.iter().flat_map(|part| pieces[*part]).copied().collect();
            let mut input = &bytes[..];
            let mut decoder = Decoder::new(60);
            while let Some(reply) = decoder.decode(&mut input).expect("valid") {
                prop_assert!(serde_json::from_str::<Value>(&reply.json).is_ok(), "{}", reply.json);
            }
        }

        #[test]
        fn bytes_survive_the_conversion(bytes: Vec<u8>) {
            let mut json = String::new();
            push_bytes(&mut json, &bytes);
            let back = match serde_json::from_str(&json).expect("json") {
                Value::String(text) => text.into_bytes(),
                other => parse_hex(other["hex"].as_str().expect("digits")).expect("bytes"),
            };
            prop_assert_eq!(back, bytes);
        }
    }
}
