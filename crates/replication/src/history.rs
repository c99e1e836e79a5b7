//! Which history of changes a server's data belong to.
//!
//! A history has an ID, and a place in it is an offset of the write log. A server that stops following a primary begins
//! a history of its own, but remembers the one that it came from and how far the two are the same, so that those who
//! followed the same primary can go on with it.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The text that stands for no ID.
const NONE: &str = "0000000000000000000000000000000000000000";

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Forty hexadecimal digits.
    pub id: String,
    /// The history that this one goes on from, and the offset from which on they differ.
    pub previous: Option<(String, u64)>,
}

impl Default for History {
    fn default() -> Self {
        History { id: random_id(), previous: None }
    }
}

impl History {
    /// The data are not any more what the ID says, and go on from no other history.
    pub fn begin_anew(&mut self) {
        *self = History::default();
    }

    /// What comes from here on, behind the log's offset `end`, is a history of its own.
    pub fn branch_off(&mut self, end: u64) {
        let before = std::mem::replace(&mut self.id, random_id());
        self.previous = Some((before, end));
    }

    /// The primary's history, of which this one is a part, goes by another ID from the offset `end` on.
    pub fn renamed(&mut self, id: &str, end: u64) {
        if id != self.id {
            let before = std::mem::replace(&mut self.id, id.into());
            self.previous = Some((before, end));
        }
    }

    /// The data are those of a primary's history.
    pub fn adopt(&mut self, id: &str) {
        *self = History { id: id.into(), previous: None };
    }

    /// Whether what lies before the log's offset `end` is the same in the history of this ID as in this one.
    pub fn shares(&self, id: &[u8], end: u64) -> bool {
        let same = |known: &str| known.as_bytes().eq_ignore_ascii_case(id);
        same(&self.id) || self.previous.as_ref().is_some_and(|(known, until)| same(known) && end <= *until)
    }

    /// The ID of the previous history, or of none.
    pub fn previous_id(&self) -> &str {
        self.previous.as_ref().map_or(NONE, |(id, _)| id)
    }

    /// As INFO counts: the first offset that is not the previous history's; -1 for none.
    pub fn previous_end(&self) -> i64 {
        self.previous.as_ref().map_or(-1, |(_, end)| end.saturating_add(1) as i64)
    }
}

/// Forty hexadecimal digits from the system's random source.
pub fn random_id() -> String {
    let word = || RandomState::new().build_hasher().finish();
    let digits: String = (0..3).map(|_| format!("{:016x}", word())).collect();
    digits[..40].to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_promoted_replica_goes_on_for_those_who_followed_the_same_primary() {
        let mut history = History::default();
        history.adopt(&"a".repeat(40));
        assert!(history.shares("A".repeat(40).as_bytes(), u64::MAX));
        history.branch_off(100);
        assert!(history.shares("a".repeat(40).as_bytes(), 100) && !history.shares("a".repeat(40).as_bytes(), 101));
        assert!(history.shares(history.id.clone().as_bytes(), 5000));
        assert_eq!((history.previous_id(), history.previous_end()), (&*"a".repeat(40), 101));
        history.begin_anew();
        assert_eq!((history.previous_id(), history.previous_end()), (NONE, -1));
    }
}
