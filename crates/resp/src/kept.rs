//! Replies that are encoded once for many clients.

use crate::reply::Reply;
use crate::{SHARED_MIN, SharedBytes};

/// An encoded reply.
pub struct KeptReply(Kept);

enum Kept {
    /// All bytes.
    Short(Vec<u8>),
    /// The first byte, and all between it and the last line end.
    Long(u8, SharedBytes),
}

impl KeptReply {
    /// Keeps one complete reply.
    pub fn new(mut bytes: Vec<u8>) -> Self {
        debug_assert!(bytes.ends_with(b"\r\n"));
        if bytes.len() < SHARED_MIN {
            return KeptReply(Kept::Short(bytes));
        }
        let first = bytes.remove(0);
        bytes.truncate(bytes.len() - 2);
        KeptReply(Kept::Long(first, SharedBytes::new(bytes)))
    }
}

impl Reply<'_> {
    /// A reply that is kept. Refers to it if it is long and the output takes shared strings.
    pub fn kept(&mut self, kept: &KeptReply) {
        match &kept.0 {
            Kept::Short(bytes) => self.raw(bytes),
            Kept::Long(first, bytes) => {
                self.raw(&[*first]);
                self.shared_part(bytes);
                self.raw(b"\r\n");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReplyBuffer, Version};

    #[test]
    fn kept_replies_are_written_as_they_were() {
        for len in [0, 1, SHARED_MIN - 100, SHARED_MIN, 10 * SHARED_MIN] {
            let mut encoded = Vec::new();
            let mut reply = Reply::new(&mut encoded, Version::Resp3);
            reply.array(2);
            reply.bulk(&vec![b'x'; len]);
            reply.bulk(b"last");
            let kept = KeptReply::new(encoded.clone());
            let mut copied = Vec::new();
            Reply::new(&mut copied, Version::Resp3).kept(&kept);
            let mut buffer = ReplyBuffer::default();
            buffer.reply(Version::Resp3).ok();
            let start = buffer.position();
            buffer.reply(Version::Resp3).kept(&kept);
            buffer.reply(Version::Resp3).ok();
            assert_eq!(buffer.shared(start..buffer.position()).len(), usize::from(len >= SHARED_MIN), "{len}");
            assert!(copied == encoded, "{len}");
            assert!(buffer.copy_from(0) == [b"+OK\r\n", &encoded[..], b"+OK\r\n"].concat(), "{len}");
        }
    }
}
