//! Replies of a peer, such as a primary or the target of MIGRATE, that fit on one line.

/// A reply in one line, without the end of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A status.
    Status {
        /// The first word.
        word: &'a str,
        /// What follows the first word.
        rest: &'a str,
    },
    /// An error.
    Error {
        /// The error code: the first word of `text`.
        code: &'a str,
        /// The whole text, including the code.
        text: &'a str,
    },
    /// A reply of another type, or none of the protocol.
    Other,
}

impl<'a> Reply<'a> {
    /// Parses a line.
    pub fn parse(line: &'a str) -> Reply<'a> {
        let split = |text: &'a str| text.split_once(|c: char| c.is_ascii_whitespace()).unwrap_or((text, ""));
        if let Some(text) = line.strip_prefix('+') {
            let (word, rest) = split(text);
            Reply::Status { word, rest }
        } else if let Some(text) = line.strip_prefix('-') {
            Reply::Error { code: split(text).0, text }
        } else {
            Reply::Other
        }
    }

    /// Whether it is a status.
    pub fn is_status(self) -> bool {
        matches!(self, Reply::Status { .. })
    }

    /// Whether it is an error.
    pub fn is_error(self) -> bool {
        matches!(self, Reply::Error { .. })
    }

    /// Whether it is an error of a server that runs, but requires authentication or other permissions.
    pub fn is_permission_error(self) -> bool {
        match self {
            Reply::Error { code: "NOAUTH" | "NOPERM", .. } => true,
            // Servers before the code NOAUTH.
            Reply::Error { code: "ERR", text } => text.starts_with("ERR operation not permitted"),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_split_after_its_first_word() {
        assert_eq!(Reply::parse("+CONTINUE"), Reply::Status { word: "CONTINUE", rest: "" });
        assert_eq!(Reply::parse("+FULLRESYNC id 7"), Reply::Status { word: "FULLRESYNC", rest: "id 7" });
        assert!(Reply::parse("+").is_status() && !Reply::parse("+").is_error());
    }

    #[test]
    fn error_code_is_the_first_word() {
        let code = |line| match Reply::parse(line) {
            Reply::Error { code, text } if line[1..] == *text => Some(code),
            _ => None,
        };
        assert_eq!(code("-ERR no such thing"), Some("ERR"));
        assert_eq!(code("-LOADINGS x"), Some("LOADINGS"));
        assert_eq!(code("-NOMASTERLINK"), Some("NOMASTERLINK"));
        assert_eq!(code("-"), Some(""));
    }

    #[test]
    fn other_lines_are_neither_status_nor_error() {
        for line in ["", ":1", "$5", "PONG", " +OK"] {
            assert_eq!(Reply::parse(line), Reply::Other, "{line}");
        }
    }

    #[test]
    fn permission_errors_are_recognized() {
        for line in ["-NOAUTH Authentication required.", "-NOPERM", "-ERR operation not permitted"] {
            assert!(Reply::parse(line).is_permission_error(), "{line}");
        }
        for line in ["-NOAUTHX", "-ERR operation", "-LOADING x", "+NOAUTH", "NOAUTH"] {
            assert!(!Reply::parse(line).is_permission_error(), "{line}");
        }
    }
}
