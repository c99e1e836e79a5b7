//! Push messages of other nodes: invalidations, and messages of shard channels.

use super::gather::{bulk, elements};

/// A push message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Push<'a> {
    /// These keys have changed.
    Invalidated(Vec<&'a [u8]>),
    /// All keys may have changed.
    InvalidatedAll,
    /// A message was published on a shard channel.
    ShardMessage {
        /// The channel.
        channel: &'a [u8],
        /// The message.
        message: &'a [u8],
    },
    /// A subscription to a shard channel has begun.
    Subscribed(&'a [u8]),
    /// A subscription to a shard channel has ended.
    Unsubscribed(&'a [u8]),
    /// Something else.
    Other,
}

impl Push<'_> {
    /// Parses a complete push message.
    pub fn parse(message: &[u8]) -> Push<'_> {
        parse(message).unwrap_or(Push::Other)
    }
}

fn parse(message: &[u8]) -> Option<Push<'_>> {
    let parts = elements(message)?;
    let (kind, rest) = parts.split_first()?;
    Some(match (bulk(kind)?, rest) {
        (b"invalidate", [keys]) => match elements(keys) {
            Some(keys) => Push::Invalidated(keys.into_iter().map(bulk).collect::<Option<_>>()?),
            None => Push::InvalidatedAll,
        },
        (b"smessage", [channel, message]) => Push::ShardMessage { channel: bulk(channel)?, message: bulk(message)? },
        (b"ssubscribe", [channel, _]) => Push::Subscribed(bulk(channel)?),
        (b"sunsubscribe", [channel, _]) => Push::Unsubscribed(bulk(channel)?),
        _ => Push::Other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_told_apart() {
        for (message, expected) in [
            (">2\r\n$10\r\ninvalidate\r\n*2\r\n$1\r\na\r\n$0\r\n\r\n", Push::Invalidated(vec![b"a", b""])),
            (">2\r\n$10\r\ninvalidate\r\n_\r\n", Push::InvalidatedAll),
            (
                ">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$2\r\n\r\n\r\n",
                Push::ShardMessage { channel: b"c", message: b"\r\n" },
            ),
            (">3\r\n$10\r\nssubscribe\r\n$1\r\nc\r\n:1\r\n", Push::Subscribed(b"c")),
            (">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n", Push::Unsubscribed(b"c")),
            (">2\r\n$8\r\nsmessage\r\n$1\r\nc\r\n", Push::Other),
            (">1\r\n:1\r\n", Push::Other),
            (">0\r\n", Push::Other),
        ] {
            assert_eq!(Push::parse(message.as_bytes()), expected, "{message}");
        }
    }
}
