//! The common parts of SCAN, SSCAN, HSCAN and ZSCAN: cursor, options, and reply.

use kvick_resp::format::{format_u64, parse_i64};
use kvick_resp::{Args, Reply, Version};
use kvick_store::Kind;
use kvick_store::slot::{SLOTS, slot_of_pattern};

use crate::context::Error;
use kvick_resp::glob;

/// The kind of object that is scanned, which determines the valid options.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scanned {
    /// The keys of a database; allows TYPE.
    Keys,
    /// The keys of a cluster, slot by slot; allows TYPE and SLOT.
    Slots,
    /// The members of a set.
    Set,
    /// The fields of a hash; allows NOVALUES.
    Hash,
    /// The members of a sorted set; allows NOSCORES.
    SortedSet,
}

/// A filter of names.
#[derive(Clone, Copy)]
pub enum Names<'a> {
    /// All names.
    All,
    /// Names that match a glob-style pattern.
    Like(&'a [u8]),
}

impl<'a> Names<'a> {
    /// The names that match `pattern`.
    pub fn matching(pattern: &'a [u8]) -> Names<'a> {
        if pattern == b"*" { Names::All } else { Names::Like(pattern) }
    }

    /// The slot of all names that it accepts, if the pattern determines it.
    pub fn slot(self) -> Option<u16> {
        match self {
            Names::All => None,
            Names::Like(pattern) => slot_of_pattern(pattern),
        }
    }

    /// Whether the filter accepts a name.
    #[inline]
    pub fn include(self, name: &[u8]) -> bool {
        match self {
            Names::All => true,
            Names::Like(pattern) => glob::matches(pattern, name, false),
        }
    }
}

/// The options of a scan.
pub struct ScanOptions<'a> {
    /// MATCH.
    pub names: Names<'a>,
    /// COUNT: approximate number of elements to examine; 10 by default.
    pub count: usize,
    /// TYPE.
    pub kind: Option<Kind>,
    /// NOVALUES or NOSCORES.
    pub names_only: bool,
    /// SLOT.
    pub slot: Option<u16>,
}

impl<'a> ScanOptions<'a> {
    /// Parses the words after the cursor.
    pub fn parse(words: Args<'a>, scanned: Scanned) -> Result<ScanOptions<'a>, Error> {
        const COUNT_DEFAULT: usize = 10;
        let mut options =
            ScanOptions { names: Names::All, count: COUNT_DEFAULT, kind: None, names_only: false, slot: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut argument = || words.next().ok_or(Error::SYNTAX);
            match word.to_ascii_lowercase().as_slice() {
                b"count" => options.count = parse_count(argument()?)?,
                b"match" => options.names = Names::matching(argument()?),
                b"type" if matches!(scanned, Scanned::Keys | Scanned::Slots) => {
                    options.kind = Some(parse_kind(argument()?)?)
                }
                b"novalues" if scanned != Scanned::Hash => {
                    return Err(Error::text("ERR NOVALUES option can only be used in HSCAN"));
                }
                b"noscores" if scanned != Scanned::SortedSet => {
                    return Err(Error::text("ERR NOSCORES option can only be used in ZSCAN"));
                }
                b"novalues" | b"noscores" => options.names_only = true,
                b"slot" if scanned == Scanned::Slots => {
                    let slot = parse_slot(argument()?)?;
                    if options.slot.replace(slot).is_some() {
                        return Err(Error::text("ERR SLOT option can only be specified once"));
                    }
                }
                _ => return Err(Error::SYNTAX),
            }
        }
        Ok(options)
    }
}

fn parse_count(text: &[u8]) -> Result<usize, Error> {
    match parse_i64(text).ok_or(Error::NOT_INTEGER)? {
        count @ 1.. => Ok(usize::try_from(count).unwrap_or(usize::MAX)),
        _ => Err(Error::SYNTAX),
    }
}

/// Parses the number of a slot.
pub fn parse_slot(text: &[u8]) -> Result<u16, Error> {
    let number = parse_i64(text).and_then(|number| u16::try_from(number).ok()).filter(|number| *number < SLOTS);
    number.ok_or(Error::text("ERR Invalid or out of range slot"))
}

fn parse_kind(name: &[u8]) -> Result<Kind, Error> {
    let unknown = || Error::quoting(&[b"ERR unknown type name '", name, b"'"]);
    Kind::from_name(name).ok_or_else(unknown)
}

/// Parses a cursor as Valkey does: as a signed integer that may not be negative, and if it is no such integer, as C's
/// `strtoull` does. That function allows leading blanks and a sign, wraps negative numbers, and stops at a zero byte.
pub fn parse_cursor(text: &[u8]) -> Result<u64, Error> {
    const INVALID: Error = Error::text("ERR invalid cursor");
    if let Some(number) = parse_i64(text) {
        return u64::try_from(number).map_err(|_| INVALID);
    }
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let text = &text[text.iter().take_while(|byte| is_blank(byte)).count()..];
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    let digits = digits.iter().all(u8::is_ascii_digit).then(|| std::str::from_utf8(digits).ok()).flatten();
    let number = digits.and_then(|digits| digits.parse::<u64>().ok()).ok_or(INVALID)?;
    Ok(if is_negative { number.wrapping_neg() } else { number })
}

/// The elements of a scan, buffered because the next cursor precedes them in the reply.
pub struct Listing {
    bytes: Vec<u8>,
    version: Version,
    len: usize,
}

impl Listing {
    /// An empty listing in the protocol version of `reply`.
    pub fn new(reply: &Reply<'_>) -> Listing {
        Listing { bytes: Vec::new(), version: reply.version(), len: 0 }
    }

    /// Adds a string.
    pub fn add(&mut self, bytes: &[u8]) {
        self.add_with(|reply| reply.bulk(bytes));
    }

    /// Adds the one value that `write` writes.
    pub fn add_with(&mut self, write: impl FnOnce(&mut Reply<'_>)) {
        write(&mut Reply::new(&mut self.bytes, self.version));
        self.len += 1;
    }

    /// Replies with the next cursor and the elements.
    pub fn reply(self, reply: &mut Reply<'_>, next: u64) {
        let mut digits = Vec::with_capacity(20);
        format_u64(next, &mut digits);
        self.reply_with(reply, &digits);
    }

    /// Like [`reply`](Self::reply), with any cursor.
    pub fn reply_with(self, reply: &mut Reply<'_>, next: &[u8]) {
        reply.array(2);
        reply.bulk(next);
        reply.array(self.len);
        reply.raw(&self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_resp::OwnedArgs;

    fn parse(line: &str, scanned: Scanned) -> Result<(usize, bool, bool), String> {
        let words = OwnedArgs::new(line.split_whitespace());
        let options = ScanOptions::parse(words.args(), scanned).map_err(|error| error.to_string())?;
        Ok((options.count, options.names.include(b"other"), options.names_only))
    }

    #[test]
    fn scan_options_depend_on_the_scanned_type() {
        assert_eq!(parse("", Scanned::Set), Ok((10, true, false)));
        assert_eq!(parse("count 3 Match x* COUNT 7", Scanned::Set), Ok((7, false, false)));
        assert_eq!(parse("match *", Scanned::Hash), Ok((10, true, false)));
        assert_eq!(parse("NOVALUES", Scanned::Hash), Ok((10, true, true)));
        assert_eq!(parse("noscores count 1", Scanned::SortedSet), Ok((1, true, true)));
        let only = |option: &str, command: &str| Err(format!("ERR {option} option can only be used in {command}"));
        for scanned in [Scanned::Keys, Scanned::Set, Scanned::SortedSet] {
            assert_eq!(parse("novalues", scanned), only("NOVALUES", "HSCAN"));
        }
        for scanned in [Scanned::Keys, Scanned::Set, Scanned::Hash] {
            assert_eq!(parse("noscores", scanned), only("NOSCORES", "ZSCAN"));
        }
        assert_eq!(parse("type string", Scanned::Keys), Ok((10, true, false)));
        assert_eq!(parse("slot 1 SLOT 2", Scanned::Slots), Err("ERR SLOT option can only be specified once".into()));
        for text in ["-1", "16384", "x", "65537"] {
            let refused = Err("ERR Invalid or out of range slot".into());
            assert_eq!(parse(&format!("slot {text}"), Scanned::Slots), refused);
        }
        for line in ["slot 1", "type string", "count", "match", "count 0", "count -1", "other"] {
            assert_eq!(parse(line, Scanned::Set), Err("ERR syntax error".into()), "{line}");
        }
        assert_eq!(parse("count x", Scanned::Set), Err("ERR value is not an integer or out of range".into()));
    }

    #[test]
    fn arbitrary_cursors_are_accepted() {
        for (text, cursor) in [
            ("0", 0),
            ("007", 7),
            (" +5", 5),
            ("18446744073709551615", u64::MAX),
            ("-0", 0),
            ("-18446744073709551615", 1),
            ("\u{b}4\0x", 4),
        ] {
            assert_eq!(parse_cursor(text.as_bytes()), Ok(cursor), "{text}");
        }
        for text in ["", " ", "-1", "++1", "5 ", "0x5", "18446744073709551616"] {
            assert_eq!(parse_cursor(text.as_bytes()), Err(Error::text("ERR invalid cursor")), "{text}");
        }
    }
}
