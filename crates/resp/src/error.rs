//! Protocol errors: invalid framing of requests.

use std::borrow::Cow;
use std::fmt;

/// A protocol error. The connection cannot be resynchronised: the caller replies `-ERR ` + [`text`](Self::text)
/// and closes it, except after [`UnexpectedInline`](Self::UnexpectedInline), which gets no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    /// An inline request has no line end within 64 KiB.
    BigInline,
    /// The line after `*` has no end within 64 KiB.
    BigMultibulkCount,
    /// The number of arguments is not canonical or is too large.
    InvalidMultibulkLength,
    /// The request has more arguments than permitted before authentication.
    UnauthenticatedMultibulkLength,
    /// The line of an argument's length has no end within 64 KiB.
    BigBulkCount,
    /// An argument's length begins with this byte instead of `$`.
    ExpectedDollar(u8),
    /// An argument's length is not canonical, negative or too large.
    InvalidBulkLength,
    /// An argument is longer than permitted before authentication.
    UnauthenticatedBulkLength,
    /// A carriage return without a line feed, or an argument that does not end at its stated length.
    InvalidCrlf,
    /// An inline request has an unclosed quote.
    UnbalancedQuotes,
    /// An inline request on a replication link, which indicates that the stream is out of step.
    UnexpectedInline,
}

impl ProtocolError {
    /// The text of the error reply, without the code `ERR`. It may
    /// contain one byte that is not ASCII, copied from the request.
    pub fn text(&self) -> Cow<'static, [u8]> {
        use ProtocolError::*;
        let text = match self {
            BigInline => "Protocol error: too big inline request",
            BigMultibulkCount => "Protocol error: too big mbulk count string",
            InvalidMultibulkLength => "Protocol error: invalid multibulk length",
            UnauthenticatedMultibulkLength => "Protocol error: unauthenticated multibulk length",
            BigBulkCount => "Protocol error: too big bulk count string",
            ExpectedDollar(got) => {
                let mut text = b"Protocol error: expected '$', got '".to_vec();
                text.extend_from_slice(&[*got, b'\'']);
                return text.into();
            }
            InvalidBulkLength => "Protocol error: invalid bulk length",
            UnauthenticatedBulkLength => "Protocol error: unauthenticated bulk length",
            InvalidCrlf => "Protocol error: invalid CRLF in request",
            UnbalancedQuotes => "Protocol error: unbalanced quotes in request",
            UnexpectedInline => "Protocol error: unexpected inline request",
        };
        text.as_bytes().into()
    }

    /// The short reason that the server logs about the client.
    pub fn log_reason(&self) -> &'static str {
        use ProtocolError::*;
        match self {
            BigInline => "too big inline request",
            BigMultibulkCount => "too big mbulk count string",
            InvalidMultibulkLength => "invalid mbulk count",
            UnauthenticatedMultibulkLength => "unauth mbulk count",
            BigBulkCount => "too big bulk count string",
            ExpectedDollar(_) => "expected $ but got something else",
            InvalidBulkLength => "invalid bulk length",
            UnauthenticatedBulkLength => "unauth bulk length",
            InvalidCrlf => "invalid CRLF in request",
            UnbalancedQuotes => "unbalanced quotes in inline request",
            UnexpectedInline => "Master using the inline protocol. Desync?",
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl std::error::Error for ProtocolError {}
