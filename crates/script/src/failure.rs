//! Errors of scripts.

use std::fmt;

/// An error, in the form that clients receive.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    text: Vec<u8>,
    counted: bool,
}

impl Failure {
    /// An error with this text, starting with the error code (`ERR ...`).
    pub fn new(text: impl Into<Vec<u8>>) -> Failure {
        Failure { text: text.into(), counted: false }
    }

    /// Sets whether it is the error of a command and was counted then.
    pub(crate) fn with_counted(self, counted: bool) -> Failure {
        Failure { counted, ..self }
    }

    /// The text of the error, starting with the error code.
    pub fn text(&self) -> &[u8] {
        &self.text
    }

    /// Whether this is the error of a command that the script called, so that error statistics already include it.
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
