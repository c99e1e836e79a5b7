//! The history of changes that a server's data belongs to.
//!
//! A history has an ID; a position in it is an offset of the write log. A server that stops following a primary begins
//! a new history, but remembers the previous one and the offset at which the two diverge, so that other replicas of the
//! same primary can continue with it.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The text for no ID.
const NONE: &str = "0000000000000000000000000000000000000000";

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// Forty hexadecimal digits.
    pub id: String,
    /// The history that this one continues.
    pub previous: Option<Previous>,
}

/// A history that another one continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Previous {
    /// Its ID.
    pub id: String,
    /// The offset at which the other one diverges from it.
    pub end: u64,
}

impl Default for History {
    fn default() -> Self {
        History { id: random_id(), previous: None }
    }
}

impl History {
    /// Starts an unrelated history: the data no longer matches the ID.
    pub fn change_id(&mut self) {
        *self = History::default();
    }

    /// Starts a new history at the log's offset `end`, which continues the present one.
    pub fn shift_id(&mut self, end: u64) {
        let id = std::mem::replace(&mut self.id, random_id());
        self.previous = Some(Previous { id, end });
    }

    /// The primary's history has another ID from the offset `end` on.
    pub fn continue_with_id(&mut self, id: &str, end: u64) {
        if id != self.id {
            let id = std::mem::replace(&mut self.id, id.into());
            self.previous = Some(Previous { id, end });
        }
    }

    /// Adopts the primary's history.
    pub fn adopt(&mut self, id: &str) {
        *self = History { id: id.into(), previous: None };
    }

    /// Whether the history of this ID and this one are the same up to the log's offset `end`.
    pub fn shares(&self, id: &[u8], end: u64) -> bool {
        let same = |known: &str| known.as_bytes().eq_ignore_ascii_case(id);
        same(&self.id) || self.previous.as_ref().is_some_and(|previous| same(&previous.id) && end <= previous.end)
    }

    /// The ID of the previous history, or of none.
    pub fn previous_id(&self) -> &str {
        self.previous.as_ref().map_or(NONE, |previous| &previous.id)
    }

    /// For INFO: the first offset that is not in the previous history; -1 for none.
    pub fn previous_end(&self) -> i64 {
        self.previous.as_ref().map_or(-1, |previous| previous.end.saturating_add(1) as i64)
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
    fn promoted_replica_shares_history_with_its_former_peers() {
        let mut history = History::default();
        history.adopt(&"a".repeat(40));
        assert!(history.shares("A".repeat(40).as_bytes(), u64::MAX));
        history.shift_id(100);
        assert!(history.shares("a".repeat(40).as_bytes(), 100) && !history.shares("a".repeat(40).as_bytes(), 101));
        assert!(history.shares(history.id.clone().as_bytes(), 5000));
        assert_eq!((history.previous_id(), history.previous_end()), (&*"a".repeat(40), 101));
        history.change_id();
        assert_eq!((history.previous_id(), history.previous_end()), (NONE, -1));
    }
}
