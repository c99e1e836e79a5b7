//! The keys in a request, described as data: where the search for them starts, and which arguments from there are keys.

use super::{KeyPosition, KeyPositions, KeyRange};
use bitflags::bitflags;
use kvick_resp::Args;
use kvick_resp::format::parse_i64;

bitflags! {
    /// How a command uses a key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct KeyFlags: u16 {
        /// Only reads the value.
        const RO = 1 << 0;
        /// Reads and writes the value.
        const RW = 1 << 1;
        /// Overwrites the value.
        const OW = 1 << 2;
        /// Deletes the key.
        const RM = 1 << 3;
        /// Returns or copies user data.
        const ACCESS = 1 << 4;
        /// Modifies user data.
        const UPDATE = 1 << 5;
        /// Adds user data.
        const INSERT = 1 << 6;
        /// Deletes user data.
        const DELETE = 1 << 7;
        /// The argument resembles a key but is not one.
        const NOT_KEY = 1 << 8;
        /// The specification does not cover all keys.
        const INCOMPLETE = 1 << 9;
        /// The flags depend on options.
        const VARIABLE_FLAGS = 1 << 10;
    }
}

impl KeyFlags {
    /// The names that COMMAND INFO shows, in its order.
    pub const SHOWN: &'static [(KeyFlags, &'static str)] = &[
        (KeyFlags::RO, "RO"),
        (KeyFlags::RW, "RW"),
        (KeyFlags::OW, "OW"),
        (KeyFlags::RM, "RM"),
        (KeyFlags::ACCESS, "access"),
        (KeyFlags::UPDATE, "update"),
        (KeyFlags::INSERT, "insert"),
        (KeyFlags::DELETE, "delete"),
        (KeyFlags::NOT_KEY, "not_key"),
        (KeyFlags::INCOMPLETE, "incomplete"),
        (KeyFlags::VARIABLE_FLAGS, "variable_flags"),
    ];
}

/// A specification of a group of keys.
pub struct KeySpec {
    /// How the keys are used.
    pub flags: KeyFlags,
    /// The start of the search.
    pub begin: Begin,
    /// The arguments from there that are keys.
    pub find: Find,
    /// A remark for the documentation, often empty.
    pub notes: &'static str,
}

/// The start of the search for keys.
#[derive(Clone, Copy)]
pub enum Begin {
    /// At this argument.
    Index(usize),
    /// After this word, searched from an argument (negative: backwards, counted from the end).
    Keyword(&'static str, i32),
    /// Unknown.
    Unknown,
}

/// The arguments that are keys.
#[derive(Clone, Copy)]
pub enum Find {
    /// Every `step`th argument up to `last` (relative to the start; negative counts from the end). If `last` is -1 and
    /// `limit` exceeds 1, only the first 1/limit of them.
    Range {
        /// Last key.
        last: i32,
        /// Distance between keys.
        step: usize,
        /// Divisor of the range.
        limit: usize,
    },
    /// As many keys as the argument at `num` specifies: every `step`th, starting at `first` (all relative to the
    /// start).
    KeyNum {
        /// The argument that contains the number of keys.
        num: usize,
        /// The first key.
        first: usize,
        /// Distance between keys.
        step: usize,
    },
    /// Unknown.
    Unknown,
}

impl KeySpec {
    /// One key, at argument `index`.
    pub const fn at(index: usize, flags: &[KeyFlags]) -> Self {
        Self::range(index, 0, 1, flags)
    }

    /// Every `step`th argument from `index` to `last` (negative counts from the end).
    pub const fn range(index: usize, last: i32, step: usize, flags: &[KeyFlags]) -> Self {
        Self::new(Begin::Index(index), Find::Range { last, step, limit: 0 }, flags)
    }

    /// After the argument at `index`, which contains the number of keys, every `step`th argument.
    pub const fn counted(index: usize, step: usize, flags: &[KeyFlags]) -> Self {
        Self::new(Begin::Index(index), Find::KeyNum { num: 0, first: 1, step }, flags)
    }

    /// A specification with any start and search.
    pub const fn new(begin: Begin, find: Find, list: &[KeyFlags]) -> Self {
        let mut flags = KeyFlags::empty();
        let mut i = 0;
        while i < list.len() {
            flags = flags.union(list[i]);
            i += 1;
        }
        KeySpec { flags, begin, find, notes: "" }
    }

    /// Adds a remark.
    pub const fn notes(mut self, notes: &'static str) -> Self {
        self.notes = notes;
        self
    }

    /// The legacy key fields of COMMAND INFO, if they do not depend on the arguments.
    pub(super) fn range_of_keys(&self) -> Option<KeyRange> {
        match (self.begin, self.find) {
            (Begin::Index(first), Find::Range { last, step, .. }) => {
                let last = if last >= 0 { first as i64 + last as i64 } else { last as i64 };
                Some(KeyRange { first: first as i64, last, step: step as i64 })
            }
            _ => None,
        }
    }

    pub(super) fn collect(&self, args: Args<'_>, found: &mut KeyPositions) -> Option<()> {
        let Some(begin) = self.beginning(args)? else { return Some(()) };
        let argc = args.len();
        let mut flags = self.flags;
        let (first, step, count_end) = match self.find {
            Find::Range { last, step, limit } => {
                let end = if last >= 0 {
                    begin + last as usize
                } else {
                    let from_end = argc.checked_sub((-last) as usize)?;
                    if last == -1 && limit > 1 {
                        begin + (argc - begin).checked_div(limit)?.checked_sub(1)?
                    } else {
                        from_end
                    }
                };
                (begin, step, end)
            }
            Find::KeyNum { num, first, step } => {
                let word = args.get(begin + num)?;
                let count = match parse_i64(word) {
                    Some(count) => count,
                    None => {
                        flags = KeyFlags::empty();
                        leading_integer(word)
                    }
                };
                let count = usize::try_from(count).ok().filter(|count| *count > 0)?;
                let first = begin + first;
                (first, step, first.checked_add((count - 1).checked_mul(step)?)?)
            }
            Find::Unknown => return None,
        };
        if count_end >= argc {
            return None;
        }
        let mut index = first;
        while index <= count_end {
            found.push(KeyPosition { index, flags });
            index += step;
        }
        Some(())
    }

    /// The argument where the keys start; `Some(None)` if an optional keyword is absent.
    fn beginning(&self, args: Args<'_>) -> Option<Option<usize>> {
        match self.begin {
            Begin::Index(index) => Some(Some(index)),
            Begin::Unknown => None,
            Begin::Keyword(word, from) => {
                let matches = |index: &usize| args[*index].eq_ignore_ascii_case(word.as_bytes());
                let found = if from > 0 {
                    (from as usize..args.len().saturating_sub(1)).find(matches)
                } else {
                    let last = args.len().checked_sub((-from) as usize)?;
                    (1..=last).rev().find(matches)
                };
                Some(found.map(|index| index + 1))
            }
        }
    }
}

/// The integer at the start of a malformed number, or 0. The command will reply with an error, but its user must have
/// rights for the keys that Valkey sees: any right, since Valkey does not look for their flags in this case.
fn leading_integer(word: &[u8]) -> i64 {
    let word = word.trim_ascii_start();
    let digits = word.strip_prefix(b"+").unwrap_or(word).iter().take_while(|byte| byte.is_ascii_digit());
    digits.fold(0, |number: i64, digit| number.saturating_mul(10).saturating_add(i64::from(digit - b'0')))
}
