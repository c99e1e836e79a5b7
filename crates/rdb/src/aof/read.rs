//! Strict reading of the commands of an append-only file, which distinguishes truncated from corrupt files.

use kvick_resp::{Args, Span};
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};

/// Size of the buffer, in bytes.
const BUFFER: usize = 256 * 1024;
/// Maximum size of a count or length with sign and line end, in bytes.
const NUMBER_LINE_MAX: usize = 32;
/// Maximum size of an annotation in bytes, including its line end.
const ANNOTATION_MAX: usize = 1024;
/// A larger request buffer is shrunk after use, in bytes.
const REQUEST_KEPT: usize = 1 << 20;
/// The same for the number of words.
const SPANS_KEPT: usize = 1 << 16;

/// Reads the commands of one file.
pub struct Reader<R> {
    input: BufReader<R>,
    offset: u64,
    line: u64,
    bytes: Vec<u8>,
    spans: Vec<Span>,
}

/// An item of a file.
#[derive(Debug)]
pub enum Item<'a> {
    /// A request.
    Request(Args<'a>),
    /// An annotation: the following commands were executed at or after this Unix time in seconds.
    Timestamp(i64),
    /// Another annotation.
    Annotation,
}

/// Why a file cannot be read any further.
#[derive(Debug)]
pub struct ReadError {
    /// The offset in the file.
    pub offset: u64,
    /// The error.
    pub defect: Defect,
}

/// The kinds of [`ReadError`].
#[derive(Debug)]
pub enum Defect {
    /// An I/O error.
    Io(io::Error),
    /// The file ends in the middle of an item.
    End,
    /// The file ends within a word: its stated length and the number of bytes present.
    ShortWord(u64, u64),
    /// An unexpected byte.
    Prefix {
        /// The expected byte.
        expected: u8,
        /// The byte found.
        found: u8,
    },
    /// A line or word ends with these bytes instead of CR LF.
    LineEnd(u8, u8),
    /// An invalid number of words, or an invalid length.
    Number(i64),
    /// An annotation without a line end, or an invalid timestamp.
    Annotation,
}

impl ReadError {
    /// Whether the file is merely truncated.
    pub fn is_cut_off(&self) -> bool {
        matches!(self.defect, Defect::End | Defect::ShortWord(..))
    }
}

impl std::error::Error for ReadError {}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:16x}: ", self.offset)?;
        match &self.defect {
            Defect::Io(error) => error.fmt(f),
            Defect::End => f.write_str("Unexpected end of file"),
            Defect::ShortWord(expected, found) => write!(f, "Expected to read {expected} bytes, got {found} bytes"),
            Defect::Prefix { expected, found } => {
                write!(f, "Expected prefix '{}', got: '{}'", char::from(*expected), char::from(*found))
            }
            Defect::LineEnd(one, other) => write!(f, "Expected \\r\\n, got: {one:02x}{other:02x}"),
            Defect::Number(number) => write!(f, "{number} is not in the suitable range"),
            Defect::Annotation => f.write_str("Invalid annotation"),
        }
    }
}

impl<R: Read> Reader<R> {
    /// Reads the commands of `input`, which begins at `offset` of the file.
    pub fn new(input: R, offset: u64) -> Self {
        let input = BufReader::with_capacity(BUFFER, input);
        Reader { input, offset, line: 1, bytes: Vec::new(), spans: Vec::new() }
    }

    /// Number of bytes read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The current line number: the number of line ends read, excluding those within words, plus one.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next item; `None` at the end.
    pub fn next_item(&mut self) -> Result<Option<Item<'_>>, ReadError> {
        self.bytes.clear();
        self.bytes.shrink_to(REQUEST_KEPT);
        self.spans.clear();
        self.spans.shrink_to(SPANS_KEPT);
        match self.peek()? {
            None => Ok(None),
            Some(b'#') => self.annotation().map(Some),
            Some(_) => {
                let start = self.offset;
                let words = self.number(b'*')?;
                if words < 1 {
                    return Err(ReadError { offset: start, defect: Defect::Number(words) });
                }
                for _ in 0..words {
                    self.word()?;
                }
                Ok(Some(Item::Request(Args::new(&self.bytes, &self.spans, &[]))))
            }
        }
    }

    fn peek(&mut self) -> Result<Option<u8>, ReadError> {
        loop {
            match self.input.fill_buf() {
                Ok(buffer) => return Ok(buffer.first().copied()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(ReadError { offset: self.offset, defect: Defect::Io(error) }),
            }
        }
    }

    /// Reads a line of at most `max` bytes into `line`, including its end if that is within `max`.
    fn read_line(&mut self, line: &mut [u8], max: usize) -> Result<usize, ReadError> {
        let mut len = 0;
        while len < max {
            let Some(byte) = self.peek()? else { break };
            line[len] = byte;
            len += 1;
            self.input.consume(1);
            self.offset += 1;
            if byte == b'\n' {
                break;
            }
        }
        Ok(len)
    }

    /// Reads a line that consists of a prefix and a number.
    fn number(&mut self, prefix: u8) -> Result<i64, ReadError> {
        let (start, mut line) = (self.offset, [0; NUMBER_LINE_MAX]);
        let len = self.read_line(&mut line, NUMBER_LINE_MAX)?;
        let fail = |defect| Err(ReadError { offset: start, defect });
        match line[..len].first() {
            None => return fail(Defect::End),
            Some(found) if *found != prefix => return fail(Defect::Prefix { expected: prefix, found: *found }),
            Some(_) => {}
        }
        let digits = 1 + usize::from(line[1] == b'-');
        let end = digits + line[digits..len.max(digits)].iter().take_while(|byte| byte.is_ascii_digit()).count();
        match &line[end..len.max(end)] {
            b"\r\n" => {}
            // A line that is truncated by the end of the file.
            b"" | b"\r" if len < NUMBER_LINE_MAX => return fail(Defect::End),
            rest => {
                let byte = |at: usize| rest.get(at).copied().unwrap_or(0);
                return fail(Defect::LineEnd(byte(0), byte(1)));
            }
        }
        self.line += 1;
        let number = std::str::from_utf8(&line[1..end]).ok().and_then(|text| text.parse().ok());
        number.map_or_else(|| fail(Defect::Number(0)), Ok)
    }

    fn word(&mut self) -> Result<(), ReadError> {
        let start = self.offset;
        let len = self.number(b'$')?;
        let Some(claimed) = u64::try_from(len).ok().filter(|len| *len < i64::MAX as u64 - 2) else {
            return Err(ReadError { offset: start, defect: Defect::Number(len) });
        };
        let (from, content) = (self.bytes.len(), self.offset);
        let read = match self.input.buffer().get(..claimed as usize + 2) {
            Some(word) => {
                self.bytes.extend_from_slice(word);
                self.input.consume(claimed as usize + 2);
                claimed + 2
            }
            // Grows as the bytes arrive, regardless of the stated length.
            None => match self.input.by_ref().take(claimed + 2).read_to_end(&mut self.bytes) {
                Ok(read) => read as u64,
                Err(error) => return Err(ReadError { offset: content, defect: Defect::Io(error) }),
            },
        };
        self.offset += read;
        if read < claimed + 2 {
            return Err(ReadError { offset: content, defect: Defect::ShortWord(claimed + 2, read) });
        }
        let end = self.bytes.len() - 2;
        if self.bytes[end..] != *b"\r\n" {
            let defect = Defect::LineEnd(self.bytes[end], self.bytes[end + 1]);
            return Err(ReadError { offset: content, defect });
        }
        self.line += 1;
        self.bytes.truncate(end);
        self.spans.push(Span { start: from, len: end - from });
        Ok(())
    }

    fn annotation(&mut self) -> Result<Item<'_>, ReadError> {
        let (start, mut line) = (self.offset, [0; ANNOTATION_MAX]);
        let len = self.read_line(&mut line, ANNOTATION_MAX)?;
        let line = &line[..len];
        let Some(content) = line.strip_suffix(b"\n") else {
            let defect = if len < ANNOTATION_MAX { Defect::End } else { Defect::Annotation };
            return Err(ReadError { offset: start, defect });
        };
        let Some(time) = content.strip_prefix(b"#TS:") else { return Ok(Item::Annotation) };
        let time = time.strip_suffix(b"\r").and_then(|time| std::str::from_utf8(time).ok()?.parse().ok());
        time.map(Item::Timestamp).ok_or(ReadError { offset: start, defect: Defect::Annotation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &[u8]) -> (Vec<String>, u64, Option<ReadError>) {
        let (mut reader, mut items) = (Reader::new(file, 0), Vec::new());
        loop {
            let offset = reader.offset();
            match reader.next_item() {
                Ok(None) => return (items, offset, None),
                Err(error) => return (items, offset, Some(error)),
                Ok(Some(Item::Request(args))) => {
                    items.push(args.iter().map(String::from_utf8_lossy).collect::<Vec<_>>().join(" "));
                }
                Ok(Some(other)) => items.push(format!("{other:?}")),
            }
        }
    }

    const FILE: &[u8] =
        b"#TS:12\r\n*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n# more\r\n*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n";

    #[test]
    fn requests_and_annotations_are_read_in_order() {
        let (items, offset, error) = read(FILE);
        assert_eq!(items, ["Timestamp(12)", "SELECT 0", "Annotation", "SET  \r\n\r\n"]);
        assert!(error.is_none() && offset == FILE.len() as u64);
    }

    #[test]
    fn a_file_truncated_anywhere_is_truncated_not_damaged() {
        let whole = [0, 8, 31, 39, FILE.len()];
        for len in 0..FILE.len() {
            let (_, offset, error) = read(&FILE[..len]);
            let last = whole.iter().rev().find(|end| **end <= len).unwrap();
            assert_eq!(offset, *last as u64, "cut at {len}");
            assert_eq!(error.is_none(), *last == len, "cut at {len}");
            assert!(error.is_none_or(|error| error.is_cut_off()), "cut at {len}");
        }
    }

    #[test]
    fn damage_is_reported_with_its_offset() {
        for (file, offset) in [
            (&b"*1\r\n$4\r\nPING\r\n!!!"[..], 14),
            (b"*0\r\n", 0),
            (b"*1\r\n*4\r\n", 4),
            (b"*1\r\n$4\r\nPINGxx*1\r\n", 8),
            (b"*1\r\n$-1\r\n", 4),
            (b"*1\n", 0),
            (b"*x\r\n", 0),
            (b"*99999999999999999999\r\n", 0),
            (b"*000000000000000000000000000000000000000000001\r\n", 0),
            (b"#TS:x\r\n", 0),
        ] {
            let error = read(file).2.unwrap();
            assert!(!error.is_cut_off() && error.offset == offset, "{error}");
        }
    }

    #[test]
    fn a_claimed_length_reserves_no_memory() {
        let mut reader = Reader::new(&b"*1\r\n$4000000000000\r\nabc"[..], 0);
        assert!(reader.next_item().is_err_and(|error| error.is_cut_off()));
        assert!(reader.bytes.capacity() < 1 << 16);
    }
}
