//! Invalidations: the messages to clients that cache keys.

use crate::clients::ClientInfo;
use kvick_resp::{Reply, Version};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The channel on which a RESP2 client receives redirected invalidations.
const CHANNEL: &[u8] = b"__redis__:invalidate";

/// Bytes of all invalidations that have not been written yet.
static UNWRITTEN: AtomicUsize = AtomicUsize::new(0);

/// Bytes of all invalidations that have not been written yet.
pub fn unwritten_bytes() -> usize {
    UNWRITTEN.load(Ordering::Relaxed)
}

/// The keys that an invalidation covers.
#[derive(Clone)]
pub enum InvalidatedKeys {
    /// These keys, as an array in RESP.
    Keys(Arc<[u8]>),
    /// All keys.
    All,
}

impl InvalidatedKeys {
    /// An invalidation of some keys.
    pub fn keys<'k>(keys: impl ExactSizeIterator<Item = &'k [u8]>) -> InvalidatedKeys {
        let mut array = Vec::new();
        // Arrays and bulk strings have the same form in both versions.
        let mut reply = Reply::new(&mut array, Version::Resp2);
        reply.array(keys.len());
        keys.for_each(|key| reply.bulk(key));
        InvalidatedKeys::Keys(array.into())
    }
}

/// A receiver of an invalidation.
pub struct Target {
    /// The worker's key of the connection.
    pub token: usize,
    /// The id of the client on that connection.
    pub client: u64,
    /// The client that redirects its invalidations to this one, if it is another client.
    pub origin: Option<Arc<ClientInfo>>,
}

/// An invalidation for clients of one worker.
pub struct Invalidation {
    keys: InvalidatedKeys,
    /// Ordered by token.
    targets: Box<[Target]>,
}

impl Drop for Invalidation {
    fn drop(&mut self) {
        UNWRITTEN.fetch_sub(self.memory(), Ordering::Relaxed);
    }
}

impl Invalidation {
    /// An invalidation for these clients.
    pub fn new(keys: InvalidatedKeys, mut targets: Vec<Target>) -> Self {
        targets.sort_by_key(|target| target.token);
        let invalidation = Invalidation { keys, targets: targets.into_boxed_slice() };
        UNWRITTEN.fetch_add(invalidation.memory(), Ordering::Relaxed);
        invalidation
    }

    /// Number of receivers.
    pub fn count(&self) -> usize {
        self.targets.len()
    }

    /// The receivers with tokens in a range.
    pub fn targets(&self, tokens: Range<usize>) -> &[Target] {
        let place = |token| self.targets.partition_point(|target| target.token < token);
        &self.targets[place(tokens.start)..place(tokens.end)]
    }

    /// All receivers, also those that were between two workers when the invalidation was sent.
    pub fn all_targets(&self) -> &[Target] {
        &self.targets
    }

    /// The same invalidation for one of its receivers, which has another token now.
    pub fn for_target(&self, target: &Target, token: usize) -> Invalidation {
        let target = Target { token, client: target.client, origin: target.origin.clone() };
        Invalidation::new(self.keys.clone(), vec![target])
    }

    /// Bytes of the keys.
    pub fn bytes(&self) -> usize {
        match &self.keys {
            InvalidatedKeys::Keys(array) => array.len(),
            InvalidatedKeys::All => 0,
        }
    }

    fn memory(&self) -> usize {
        size_of::<Self>() + self.bytes() + size_of_val(&*self.targets)
    }

    /// Writes the invalidation: a push message in RESP3, a published message in RESP2.
    pub fn write(&self, version: Version, out: &mut Vec<u8>) {
        let mut reply = Reply::new(out, version);
        match version {
            Version::Resp3 => {
                reply.push(2);
                reply.bulk(b"invalidate");
            }
            Version::Resp2 => {
                reply.push(3);
                reply.bulk(b"message");
                reply.bulk(CHANNEL);
            }
        }
        match &self.keys {
            InvalidatedKeys::Keys(array) => reply.raw(array),
            InvalidatedKeys::All => reply.null(),
        }
    }
}

/// Writes the message to a client whose redirection is broken: the client that should receive its invalidations is
/// gone.
pub fn write_disconnected(redirect: u64, out: &mut Vec<u8>) {
    let mut reply = Reply::new(out, Version::Resp3);
    reply.push(2);
    reply.bulk(b"tracking-redir-broken");
    reply.uint(redirect);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalidation_is_a_push_in_resp3_and_a_message_in_resp2() {
        let invalidation = Invalidation::new(InvalidatedKeys::keys([&b"a"[..], b"bc"].into_iter()), Vec::new());
        let written = |version| {
            let mut out = Vec::new();
            invalidation.write(version, &mut out);
            String::from_utf8_lossy(&out).into_owned()
        };
        let keys = "*2\r\n$1\r\na\r\n$2\r\nbc\r\n";
        assert_eq!(written(Version::Resp3), format!(">2\r\n$10\r\ninvalidate\r\n{keys}"));
        let message = "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n";
        assert_eq!(written(Version::Resp2), format!("{message}{keys}"));
    }

    #[test]
    fn targets_are_found_by_their_tokens() {
        let target = |token| Target { token, client: token as u64, origin: None };
        let invalidation = Invalidation::new(InvalidatedKeys::All, [7, 3, 9, 3].map(target).into());
        let clients = |tokens| invalidation.targets(tokens).iter().map(|target| target.client).collect::<Vec<_>>();
        assert_eq!(clients(0..usize::MAX), [3, 3, 7, 9]);
        assert_eq!((clients(3..7), clients(4..9), clients(10..20)), (vec![3, 3], vec![7], vec![]));
    }
}
