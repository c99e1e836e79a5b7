//! The arguments of SORT.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::slot::slot_of_pattern;
use std::ops::Range;

use super::pattern::Pattern;
use crate::context::Error;

const BY_DENIED: Error = Error::text("ERR BY option of SORT denied due to insufficient ACL permissions.");
const GET_DENIED: Error = Error::text("ERR GET option of SORT denied due to insufficient ACL permissions.");

const BY_OTHER_SLOT: Error = Error::text(
    "ERR BY option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
);
const GET_OTHER_SLOT: Error = Error::text(
    "ERR GET option of SORT denied in Cluster mode when keys formed by the pattern may be in different slots.",
);

/// The elements to load from an ordered collection.
pub struct NativeRange {
    /// The positions of the elements.
    pub range: Range<usize>,
    /// Whether to load them in reverse.
    pub reverse: bool,
}

/// The parsed arguments.
pub struct Request<'a> {
    /// The BY pattern; `None` to sort by the elements.
    pub by: Option<Pattern<'a>>,
    /// Whether the elements keep their order, because the BY pattern does not depend on them.
    unsorted: bool,
    /// The GET patterns; empty to return the elements.
    pub get: Vec<Pattern<'a>>,
    /// Offset and count of the sorted elements to return; a negative count means all.
    offset: i64,
    count: i64,
    /// Whether to sort in descending order.
    pub descending: bool,
    /// Whether to compare as strings instead of numbers.
    pub alpha: bool,
    /// The argument index of the destination key.
    pub store: Option<usize>,
}

impl<'a> Request<'a> {
    /// Parses the arguments after the key. STORE is valid only if `may_store` is set. Patterns that refer to other keys
    /// are valid only if the client may read every key and, in cluster mode, these keys are in `slot`, that of the
    /// sorted key.
    pub fn parse(
        args: Args<'a>,
        may_store: bool,
        reads_every_key: bool,
        slot: Option<u16>,
    ) -> Result<Request<'a>, Error> {
        let leaves_slot = |pattern: &[u8]| slot.is_some() && slot_of_pattern(pattern) != slot;
        let mut request = Request {
            by: None,
            unsorted: false,
            get: Vec::new(),
            offset: 0,
            count: -1,
            descending: false,
            alpha: false,
            store: None,
        };
        let mut index = 2;
        while let Some(word) = args.get(index) {
            let argument = args.get(index + 1).ok_or(Error::SYNTAX);
            index += match word.to_ascii_lowercase().as_slice() {
                b"asc" => {
                    request.descending = false;
                    1
                }
                b"desc" => {
                    request.descending = true;
                    1
                }
                b"alpha" => {
                    request.alpha = true;
                    1
                }
                b"limit" => {
                    let count = args.get(index + 2).ok_or(Error::SYNTAX)?;
                    request.offset = parse_i64(argument?).ok_or(Error::NOT_INTEGER)?;
                    request.count = parse_i64(count).ok_or(Error::NOT_INTEGER)?;
                    3
                }
                b"store" if may_store => {
                    argument?;
                    request.store = Some(index + 1);
                    2
                }
                b"by" => {
                    let text = argument?;
                    let pattern = Pattern::parse(text);
                    if pattern.accesses_other_keys() && leaves_slot(text) {
                        return Err(BY_OTHER_SLOT);
                    }
                    if pattern.accesses_other_keys() && !reads_every_key {
                        return Err(BY_DENIED);
                    }
                    request.unsorted |= !pattern.accesses_other_keys();
                    request.by = Some(pattern);
                    2
                }
                b"get" => {
                    let text = argument?;
                    if text != b"#" && leaves_slot(text) {
                        return Err(GET_OTHER_SLOT);
                    }
                    request.get.push(Pattern::parse(text));
                    // As in Valkey, this includes `#`, although it does not refer to another key.
                    if !reads_every_key {
                        return Err(GET_DENIED);
                    }
                    2
                }
                _ => return Err(Error::SYNTAX),
            };
        }
        Ok(request)
    }

    /// Whether it accesses keys other than the one that is sorted.
    pub fn accesses_other_keys(&self) -> bool {
        self.by.iter().chain(&self.get).any(Pattern::accesses_other_keys)
    }

    /// Whether the elements are sorted.
    pub fn sorts(&self) -> bool {
        !self.unsorted
    }

    /// Sorts the members of a set, which have no order, if the result is to be stored or is for a script.
    pub fn order_sets(&mut self, for_script: bool) {
        if self.unsorted && (self.store.is_some() || for_script) {
            (self.unsorted, self.alpha, self.by) = (false, true, None);
        }
    }

    /// The range of the sorted elements to return, out of `len`.
    pub fn range(&self, len: usize) -> Range<usize> {
        let start = usize::try_from(self.offset.max(0)).unwrap_or(usize::MAX).min(len);
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        start..start.saturating_add(count).min(len)
    }

    /// The elements to load from an ordered collection of `len` elements; all of them if they will be sorted.
    pub fn native_range(&self, len: usize) -> NativeRange {
        let Range { start, end } = self.range(len);
        let (range, reverse) = match (self.unsorted, self.descending) {
            (false, _) => (0..len, false),
            (true, false) => (start..end, false),
            (true, true) => (len - end..len - start, true),
        };
        NativeRange { range, reverse }
    }
}
