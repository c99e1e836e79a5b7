//! Arguments of stream commands: IDs, bounds of ranges, numbers.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::collections::stream::{Id, NewId};
use smallvec::SmallVec;

use crate::context::Error;

/// A list of IDs.
pub type Ids = SmallVec<[Id; 8]>;

const BAD_ID: Error = Error::text("ERR Invalid stream ID specified as stream command argument");

/// Parses an ID. A missing sequence number becomes `seq_missing`.
pub fn id(text: &[u8], seq_missing: u64) -> Result<Id, Error> {
    Id::parse(text, seq_missing).ok_or(BAD_ID)
}

/// Parses an ID, or `-` or `+` for the lowest and the highest ID.
pub fn id_or_end(text: &[u8], seq_missing: u64) -> Result<Id, Error> {
    match text {
        b"-" => Ok(Id::MIN),
        b"+" => Ok(Id::MAX),
        _ => id(text, seq_missing),
    }
}

/// Parses the ID of a new entry.
pub fn new_id(text: &[u8]) -> Result<NewId, Error> {
    match Id::parse_open(text) {
        _ if text == b"*" => Ok(NewId::Auto),
        Some((ms, None)) => Ok(NewId::Ms(ms)),
        Some((ms, Some(seq))) => Ok(NewId::Exact(Id::new(ms, seq))),
        None => Err(BAD_ID),
    }
}

/// Parses the IDs from argument `from` on.
pub fn ids(args: Args<'_>, from: usize) -> Result<Ids, Error> {
    args.slice_from(from).iter().map(|text| id(text, 0)).collect()
}

/// Parses the first ID of a range; after `(`, the range starts at the next ID.
pub fn range_start(text: &[u8]) -> Result<Id, Error> {
    match text {
        [b'(', beyond @ ..] if !beyond.is_empty() => {
            id(beyond, 0)?.next().ok_or(Error::text("ERR invalid start ID for the interval"))
        }
        _ => id_or_end(text, 0),
    }
}

/// Parses the last ID of a range; after `(`, the range ends at the previous ID.
pub fn range_end(text: &[u8]) -> Result<Id, Error> {
    match text {
        [b'(', beyond @ ..] if !beyond.is_empty() => {
            id(beyond, u64::MAX)?.prev().ok_or(Error::text("ERR invalid end ID for the interval"))
        }
        _ => id_or_end(text, u64::MAX),
    }
}

/// Parses an integer.
pub fn integer(text: &[u8]) -> Result<i64, Error> {
    parse_i64(text).ok_or(Error::NOT_INTEGER)
}

/// Parses an integer, with a specific error.
pub fn integer_or(text: &[u8], error: &'static str) -> Result<i64, Error> {
    parse_i64(text).ok_or(Error::text(error))
}

/// Compares an argument with a keyword, case-insensitively.
pub fn is(text: &[u8], word: &str) -> bool {
    text.eq_ignore_ascii_case(word.as_bytes())
}

/// The error if the key or the group does not exist.
pub fn no_group(key: &[u8], group: &[u8], tail: &str) -> Error {
    Error::quoting(&[b"NOGROUP No such key '", key, b"' or consumer group '", group, b"'", tail.as_bytes()])
}

/// The error if the group does not exist.
pub fn no_such_group(key: &[u8], group: &[u8]) -> Error {
    Error::quoting(&[b"NOGROUP No such consumer group '", group, b"' for key name '", key, b"'"])
}

/// The error of a container for an unknown subcommand or wrong arguments.
pub fn bad_subcommand(args: Args<'_>, container: &str) -> Error {
    Error::bad_subcommand(container, args.get(1).unwrap_or_default())
}
