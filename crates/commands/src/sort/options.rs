//! The words of SORT.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use std::ops::Range;

use super::pattern::Pattern;
use crate::context::Error;

const BY_DENIED: Error = Error::text("ERR BY option of SORT denied due to insufficient ACL permissions.");
const GET_DENIED: Error = Error::text("ERR GET option of SORT denied due to insufficient ACL permissions.");

/// What a request asks for.
pub struct Request<'a> {
    /// What to sort by, when it is not the elements.
    pub by: Option<Pattern<'a>>,
    /// Whether the elements stay in the order in which they are: sorted by what does not depend on them.
    unsorted: bool,
    /// What to return of each element; the element when it says nothing.
    pub get: Vec<Pattern<'a>>,
    /// The first of the sorted elements to return, and how many; all for a negative number.
    offset: i64,
    count: i64,
    /// From the largest to the smallest.
    pub descending: bool,
    /// As strings, not as numbers.
    pub alpha: bool,
    /// The argument that is the key to store the result at.
    pub store: Option<usize>,
}

impl<'a> Request<'a> {
    /// Reads the words behind the key; STORE is known if `may_store`, and unless the client `reads_every_key` it may not
    /// be led to others.
    pub fn parse(args: Args<'a>, may_store: bool, reads_every_key: bool) -> Result<Request<'a>, Error> {
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
                    let pattern = Pattern::parse(argument?);
                    if pattern.looks_elsewhere() && !reads_every_key {
                        return Err(BY_DENIED);
                    }
                    request.unsorted |= !pattern.looks_elsewhere();
                    request.by = Some(pattern);
                    2
                }
                b"get" => {
                    request.get.push(Pattern::parse(argument?));
                    // As in the reference, also `#`, which does not lead anywhere.
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

    /// Whether it touches keys other than the one that is sorted.
    pub fn looks_elsewhere(&self) -> bool {
        self.by.iter().chain(&self.get).any(Pattern::looks_elsewhere)
    }

    /// Whether the elements are brought into another order.
    pub fn sorts(&self) -> bool {
        !self.unsorted
    }

    /// Has the members of a set, which are in no order, sorted if the result is to be stored or is for a script.
    pub fn order_sets(&mut self, for_script: bool) {
        if self.unsorted && (self.store.is_some() || for_script) {
            (self.unsorted, self.alpha, self.by) = (false, true, None);
        }
    }

    /// Which of `len` sorted elements to return.
    pub fn range(&self, len: usize) -> Range<usize> {
        let start = usize::try_from(self.offset.max(0)).unwrap_or(usize::MAX).min(len);
        let count = usize::try_from(self.count).unwrap_or(usize::MAX);
        start..start.saturating_add(count).min(len)
    }

    /// Which of `len` elements to load that have an order of their own, and whether from the last to the first: all if they are to be
    /// sorted.
    pub fn native_range(&self, len: usize) -> (Range<usize>, bool) {
        let Range { start, end } = self.range(len);
        match (self.unsorted, self.descending) {
            (false, _) => (0..len, false),
            (true, false) => (start..end, false),
            (true, true) => (len - end..len - start, true),
        }
    }
}
