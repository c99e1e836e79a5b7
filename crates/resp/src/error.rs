//! What can be wrong with a request's framing.

use std::borrow::Cow;
use std::fmt;

/// A request that breaks the protocol. The connection cannot be resynchronised: the caller replies
/// `-ERR ` + [`text`](Self::text) and closes it, except after [`UnexpectedInline`](Self::UnexpectedInline), which gets
/// no reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    /// 64 KiB of an inline request came without a line end.
    BigInline,
    /// 64 KiB came after `*` without a line end.
    BigMultibulkCount,
    /// The number of arguments is not a canonical number or too large.
    InvalidMultibulkLength,
    /// More arguments than a client may send before it has authenticated.
    UnauthenticatedMultibulkLength,
    /// 64 KiB came where an argument's length was due without a line end.
    BigBulkCount,
    /// An argument's length begins with this byte and not with `$`.
    ExpectedDollar(u8),
    /// An argument's length is not a canonical number, negative or too large.
    InvalidBulkLength,
    /// A longer argument than a client may send before it has authenticated.
    UnauthenticatedBulkLength,
    /// A carriage return without its line feed, or an argument that does not end where its length says.
    InvalidCrlf,
    /// An inline request opens a quote and does not close it.
    UnbalancedQuotes,
    /// An inline request on a replication link, which means the stream is out of step.
    UnexpectedInline,
}

impl ProtocolError {
    /// The error reply's text without the code `ERR`. It may hold one byte that is not ASCII, the one that was sent.
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
