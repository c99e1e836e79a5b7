//! Why a script could not be compiled or did not end well.

use std::fmt;

/// An error, as clients see it.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    text: Vec<u8>,
    counted: bool,
}

impl Failure {
    /// An error with that text, the code first (`ERR ...`).
    pub fn new(text: impl Into<Vec<u8>>) -> Failure {
        Failure { text: text.into(), counted: false }
    }

    /// An error that a command answered, and that was counted then.
    pub(crate) fn with_counted(self, counted: bool) -> Failure {
        Failure { counted, ..self }
    }

    /// The text of the error, the code first.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether this is the error of a command that the script called: error statistics have it already.
    pub fn is_counted(&self) -> bool {
        self.counted
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failure({}{})", self.text.escape_ascii(), if self.counted { ", counted" } else { "" })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text))
    }
}

impl std::error::Error for Failure {}
