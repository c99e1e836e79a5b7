//! Formats replies as readable text.

use std::io::Write;

use kvick_resp::format::parse_i64;

/// Maximum depth of shown replies, far above that of any command.
const REPLY_DEPTH_MAX: u32 = 64;

/// Appends a reply. Stops soon after `text` exceeds `len_max`.
pub(super) fn reply(reply: &[u8], len_max: usize, text: &mut Vec<u8>) {
    let mut reader = Reader { rest: reply, len_max };
    // A malformed reply is shown up to the error.
    let _ = reader.show(text, REPLY_DEPTH_MAX);
}

struct Reader<'a> {
    rest: &'a [u8],
    len_max: usize,
}

impl<'a> Reader<'a> {
    /// Appends the next value; `None` at the end, on an error, or if the text is long enough.
    fn show(&mut self, text: &mut Vec<u8>, depth: u32) -> Option<()> {
        if text.len() > self.len_max || depth == 0 {
            return None;
        }
        let whole = self.rest;
        let (&kind, line) = self.line()?.split_first()?;
        match kind {
            b'$' | b'=' => match parse_i64(line)? {
                -1 => text.extend_from_slice(b"NULL"),
                len => quote(self.bytes(usize::try_from(len).ok()?)?, text),
            },
            b'+' | b'-' => quote(&whole[..=line.len()], text),
            b'_' => text.extend_from_slice(b"(null)"),
            b'#' => text.extend_from_slice(if line == b"t" { b"#true" } else { b"#false" }),
            b',' => {
                text.extend_from_slice(b"(double) ");
                text.extend_from_slice(line);
            }
            b'*' | b'>' => match parse_i64(line)? {
                -1 => text.extend_from_slice(b"NULL"),
                len => self.items(len, ("[", "]"), text, depth)?,
            },
            b'~' => self.items(parse_i64(line)?, ("~(", ")"), text, depth)?,
            b'%' => self.pairs(parse_i64(line)?, text, depth)?,
            _ => text.extend_from_slice(line),
        }
        Some(())
    }

    fn items(&mut self, len: i64, (open, close): (&str, &str), text: &mut Vec<u8>, depth: u32) -> Option<()> {
        text.extend_from_slice(open.as_bytes());
        for n in 0..len {
            if n > 0 {
                text.push(b',');
            }
            self.show(text, depth - 1)?;
        }
        text.extend_from_slice(close.as_bytes());
        Some(())
    }

    fn pairs(&mut self, len: i64, text: &mut Vec<u8>, depth: u32) -> Option<()> {
        text.push(b'{');
        for n in 0..len {
            if n > 0 {
                text.push(b',');
            }
            self.show(text, depth - 1)?;
            text.extend_from_slice(b" => ");
            self.show(text, depth - 1)?;
        }
        text.push(b'}');
        Some(())
    }

    /// Reads a line.
    fn line(&mut self) -> Option<&'a [u8]> {
        let end = memchr::memchr(b'\r', self.rest)?;
        let line = &self.rest[..end];
        self.rest = self.rest.get(end + 2..)?;
        Some(line)
    }

    /// Reads bytes that are followed by a line end.
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let bytes = self.rest.get(..len)?;
        self.rest = self.rest.get(len + 2..)?;
        Some(bytes)
    }
}

/// Appends bytes in quotes, with unprintable ones in hexadecimal.
fn quote(bytes: &[u8], text: &mut Vec<u8>) {
    text.push(b'"');
    for byte in bytes {
        match byte {
            b'\\' | b'"' => text.extend_from_slice(&[b'\\', *byte]),
            b'\n' => text.extend_from_slice(b"\\n"),
            b'\r' => text.extend_from_slice(b"\\r"),
            b'\t' => text.extend_from_slice(b"\\t"),
            0x07 => text.extend_from_slice(b"\\a"),
            0x08 => text.extend_from_slice(b"\\b"),
            0x20..=0x7e => text.push(*byte),
            _ => {
                // Writing to a vector does not fail.
                let _ = write!(text, "\\x{byte:02x}");
            }
        }
    }
    text.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8]) -> String {
        let mut text = Vec::new();
        reply(bytes, 100, &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    #[test]
    fn replies_are_shown_readably() {
        assert_eq!(shown(b"*3\r\n:1\r\n$3\r\na\"\x01\r\n$-1\r\n"), "[1,\"a\\\"\\x01\",NULL]");
        assert_eq!(shown(b"%1\r\n+OK\r\n~2\r\n#t\r\n,1.5\r\n"), "{\"+OK\" => ~(#true,(double) 1.5)}");
        assert_eq!(shown(b"-ERR no\r\n"), "\"-ERR no\"");
        assert_eq!(shown(b"_\r\n"), "(null)");
        assert_eq!(shown(b"*-1\r\n"), "NULL");
    }

    #[test]
    fn invalid_reply_is_shown_up_to_the_error() {
        for broken in [&b"*1000000000\r\n:1\r\n"[..], b"$5\r\nab\r\n", b"$9223372036854775807\r\nx\r\n", b"", b"%1\r\n"]
        {
            assert!(shown(broken).len() < 20);
        }
        assert!(shown(&b"*1\r\n".repeat(1000)).len() < 100);
    }
}
