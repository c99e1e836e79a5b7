//! Why TLS cannot be set up.

use std::fmt;

/// The reason why TLS cannot be set up, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsError(String);

impl TlsError {
    /// An error with this text.
    pub fn new(words: impl Into<String>) -> Self {
        TlsError(words.into())
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TlsError {}
