//! A link to another node: the requests that it has carried and that are not answered yet.
//!
//! ```text
//!  outbox:  | unanswered, sent ... | not sent yet ... |
//!           ^ head                 ^ sent             ^ end
//! ```
//!
//! Requests stay in the outbox until they are answered, so that a redirected request can be sent elsewhere, and so that
//! it is known which requests a broken link has not sent. A link is for one database and one version of the protocol:
//! replies pass through unchanged.

use super::encode::encode;
use super::frame::{Malformed, Scanner};
use super::push::Push;
use super::redirect::Redirect;
use kvick_resp::format::parse_u64;
use kvick_resp::{Args, OwnedArgs};
use std::collections::VecDeque;
use std::ops::Range;

/// Maximum bytes of one reply.
const REPLY_MAX: usize = 1 << 30;
/// Buffers above this size are freed when they are empty, in bytes.
const KEPT_MAX: usize = 256 * 1024;

/// What the reply to a request belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The connection of the client.
    pub connection: usize,
    /// The ID of the client: another one may have the connection by now.
    pub client: u64,
    /// Number of the reply in the client's [queue](crate::ReplyQueue).
    pub reply: u64,
    /// Part of the request, if it was divided.
    pub part: u32,
    /// Whether the client receives the reply.
    pub wanted: bool,
    /// Whether the client caches the keys that it reads.
    pub caches: bool,
    /// Whether it may write.
    pub writes: bool,
    /// How often the request has been sent before.
    pub attempts: u8,
    /// The slot of its keys; `None` if it is for one node, whatever slots that has.
    pub slot: Option<u16>,
}

/// A request for a link.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// One command, or several of which only the last one's reply counts (MULTI to EXEC).
    pub content: Content<'a>,
    /// Number of commands.
    pub commands: u32,
    /// Whether ASKING precedes it.
    pub asking: bool,
    /// Whether it only reads, so that it may be repeated if it is unknown whether it was executed.
    pub reads: bool,
}

/// The commands of a request.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// In RESP.
    Encoded(&'a [u8]),
    /// One command by its arguments.
    Args(Args<'a>),
}

/// The first requests on a link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// In RESP.
    pub bytes: Vec<u8>,
    /// For each command whether the link is unusable if it fails.
    pub required: Vec<bool>,
}

/// A request without a reply.
#[derive(Debug)]
struct Pending {
    /// Its length in the outbox.
    len: usize,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// ASKING.
    Preparation,
    Request {
        ticket: Ticket,
        /// Replies that are still to come.
        replies: u32,
        commands: u32,
        reads: bool,
        /// The first redirection among its replies.
        redirect: Option<Redirect>,
    },
    /// SSUBSCRIBE or SUNSUBSCRIBE, which is answered by a push or an error.
    Subscription(Subscription),
    /// WAIT or WAITAOF.
    Wait,
}

/// Begins or ends the subscription of a link to a shard channel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Subscription {
    /// The channel.
    pub channel: Vec<u8>,
    /// Whether it begins.
    pub begins: bool,
}

/// What a reply means.
#[derive(Debug, PartialEq)]
pub enum Answer<'a> {
    /// The reply to a request, and the request.
    Reply(Ticket, &'a [u8], &'a [u8]),
    /// The request was not executed and is to be sent elsewhere.
    Redirected(Unanswered, Redirect),
    /// The reply to a [wait](Link::wait).
    Waited(&'a [u8]),
    /// A subscription has begun or ended, or the node has refused that with this error.
    Subscribed(Subscription, Option<&'a [u8]>),
    /// A push message.
    Push(Push<'a>),
}

/// A request that was not answered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unanswered {
    /// Where its reply belongs.
    pub ticket: Ticket,
    /// The request.
    pub bytes: Vec<u8>,
    /// Number of its commands.
    pub commands: u32,
    /// Whether it only reads.
    pub reads: bool,
    /// Whether some of it was sent, so that it may have been executed.
    pub sent: bool,
}

/// Why a link cannot be used any more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// The peer sent something that is no reply.
    Malformed,
    /// A reply is too long.
    TooLong,
    /// The peer sent a reply to no request.
    Unexpected,
    /// The peer refused a required part of the setup with this error.
    Refused(String),
}

impl From<Malformed> for Broken {
    fn from(_: Malformed) -> Self {
        Broken::Malformed
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Link {
    setup: Setup,
    setup_sent: usize,
    setup_answered: usize,
    outbox: Vec<u8>,
    /// Start of the oldest unanswered request.
    head: usize,
    /// End of the bytes that were sent.
    sent: usize,
    pending: VecDeque<Pending>,
    inbox: Vec<u8>,
    /// Start of the first reply in the inbox that was not taken.
    read: usize,
    scanner: Scanner,
    client_id: Option<u64>,
}

impl Link {
    /// A link that begins with `setup`.
    pub fn new(setup: Setup) -> Self {
        Link {
            setup,
            setup_sent: 0,
            setup_answered: 0,
            outbox: Vec::new(),
            head: 0,
            sent: 0,
            pending: VecDeque::new(),
            inbox: Vec::new(),
            read: 0,
            scanner: Scanner::default(),
            client_id: None,
        }
    }

    /// Adds a request.
    #[inline]
    pub fn push(&mut self, request: Request<'_>, ticket: Ticket) {
        const ASKING: &[u8] = b"*1\r\n$6\r\nASKING\r\n";
        if request.asking {
            self.outbox.extend_from_slice(ASKING);
            self.pending.push_back(Pending { len: ASKING.len(), kind: Kind::Preparation });
        }
        let start = self.outbox.len();
        match request.content {
            Content::Encoded(bytes) => self.outbox.extend_from_slice(bytes),
            Content::Args(args) => encode(args, &mut self.outbox),
        }
        let Request { commands, reads, .. } = request;
        let kind = Kind::Request { ticket, replies: commands, commands, reads, redirect: None };
        self.pending.push_back(Pending { len: self.outbox.len() - start, kind });
    }

    /// Begins or ends a subscription. The link must use RESP3.
    pub fn subscribe(&mut self, subscription: Subscription) {
        let start = self.outbox.len();
        let command: &[u8] = if subscription.begins { b"SSUBSCRIBE" } else { b"SUNSUBSCRIBE" };
        encode(OwnedArgs::new([command, &subscription.channel]).args(), &mut self.outbox);
        self.pending.push_back(Pending { len: self.outbox.len() - start, kind: Kind::Subscription(subscription) });
    }

    /// Waits for the acknowledgement of what was written over this link: WAIT or WAITAOF with its arguments. The peer
    /// executes nothing else of the link meanwhile. The reply is not for a client.
    pub fn wait(&mut self, args: Args<'_>) {
        let start = self.outbox.len();
        encode(args, &mut self.outbox);
        self.pending.push_back(Pending { len: self.outbox.len() - start, kind: Kind::Wait });
    }

    /// The ID of this connection at the peer, if the setup asks for it and the peer has accepted it.
    pub fn client_id(&self) -> Option<u64> {
        self.client_id.filter(|_| self.is_ready())
    }

    /// Number of requests without a reply.
    #[inline]
    pub fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether all requests are answered.
    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Bytes of requests without a reply.
    #[inline]
    pub fn bytes(&self) -> usize {
        self.outbox.len() - self.head
    }

    /// Memory in use, in bytes.
    pub fn memory(&self) -> usize {
        self.outbox.capacity() + self.inbox.capacity() + self.pending.capacity() * size_of::<Pending>()
    }

    /// Whether the peer has accepted the setup.
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.setup_answered == self.setup.required.len()
    }

    /// What is to be sent now: nothing behind the setup before that is accepted.
    #[inline]
    pub fn unsent(&self) -> &[u8] {
        if self.is_ready() { &self.outbox[self.sent..] } else { &self.setup.bytes[self.setup_sent..] }
    }

    /// The first `n` bytes of [`unsent`](Self::unsent) were sent.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        if self.is_ready() {
            self.sent += n;
        } else {
            self.setup_sent += n;
        }
    }

    /// Where received bytes are to be appended.
    #[inline]
    pub fn inbox(&mut self) -> &mut Vec<u8> {
        if self.read > 0 && self.read == self.inbox.len() {
            self.inbox.clear();
            self.read = 0;
            if self.inbox.capacity() > KEPT_MAX {
                self.inbox = Vec::new();
            }
        }
        &mut self.inbox
    }

    /// Takes the next complete reply.
    ///
    /// # Errors
    /// If the link cannot be used any more.
    #[inline]
    pub fn next_answer(&mut self) -> Result<Option<Answer<'_>>, Broken> {
        loop {
            self.shrink();
            let Some(reply) = self.next_reply()? else { return Ok(None) };
            let is_push = self.inbox[reply.start] == b'>';
            if is_push {
                return Ok(Some(self.answer_push(reply)));
            }
            if !self.is_ready() {
                self.answer_setup(reply)?;
                continue;
            }
            let Some(front) = self.pending.front_mut() else { return Err(Broken::Unexpected) };
            if let Kind::Request { replies, redirect, .. } = &mut front.kind {
                if redirect.is_none() {
                    *redirect = Redirect::parse(&self.inbox[reply.clone()]);
                }
                *replies -= 1;
                if *replies > 0 {
                    continue;
                }
            }
            let Some(Pending { len, kind }) = self.pending.pop_front() else { return Err(Broken::Unexpected) };
            let start = self.head;
            self.head += len;
            let request = start..start + len;
            let (ticket, commands, reads, redirect) = match kind {
                Kind::Request { ticket, commands, reads, redirect, .. } => (ticket, commands, reads, redirect),
                Kind::Subscription(subscription) => {
                    return Ok(Some(Answer::Subscribed(subscription, Some(&self.inbox[reply]))));
                }
                Kind::Wait => return Ok(Some(Answer::Waited(&self.inbox[reply]))),
                Kind::Preparation => continue,
            };
            if let Some(redirect) = redirect {
                let bytes = self.outbox[request].to_vec();
                return Ok(Some(Answer::Redirected(
                    Unanswered { ticket, bytes, commands, reads, sent: true },
                    redirect,
                )));
            }
            return Ok(Some(Answer::Reply(ticket, &self.inbox[reply], &self.outbox[request])));
        }
    }

    /// What a push means: it may answer a change of a subscription.
    #[cold]
    fn answer_push(&mut self, message: Range<usize>) -> Answer<'_> {
        let push = Push::parse(&self.inbox[message]);
        let answered = match (&push, self.pending.front().map(|front| &front.kind)) {
            (Push::Subscribed(channel), Some(Kind::Subscription(front))) => front.begins && front.channel == *channel,
            (Push::Unsubscribed(channel), Some(Kind::Subscription(front))) => {
                !front.begins && front.channel == *channel
            }
            _ => false,
        };
        if answered && let Some(Pending { len, kind: Kind::Subscription(subscription) }) = self.pending.pop_front() {
            self.head += len;
            return Answer::Subscribed(subscription, None);
        }
        Answer::Push(push)
    }

    /// The place of the next complete reply, which is taken.
    #[inline]
    fn next_reply(&mut self) -> Result<Option<Range<usize>>, Broken> {
        match self.scanner.scan(&self.inbox[self.read..])? {
            Some(len) => {
                let start = self.read;
                self.read += len;
                Ok(Some(start..self.read))
            }
            None => {
                if self.inbox.len() - self.read > REPLY_MAX {
                    return Err(Broken::TooLong);
                }
                if self.read > 0 {
                    self.inbox.drain(..self.read);
                    self.read = 0;
                }
                Ok(None)
            }
        }
    }

    fn answer_setup(&mut self, reply: Range<usize>) -> Result<(), Broken> {
        let is_required = self.setup.required.get(self.setup_answered).copied().unwrap_or(false);
        let reply = &self.inbox[reply];
        if is_required && reply.first() == Some(&b'-') {
            let text = String::from_utf8_lossy(&reply[1..]).trim_end().to_owned();
            return Err(Broken::Refused(text));
        }
        if let Some(number) = reply.strip_prefix(b":").and_then(|rest| rest.strip_suffix(b"\r\n")) {
            // Only CLIENT ID has such a reply.
            self.client_id = parse_u64(number);
        }
        self.setup_answered += 1;
        Ok(())
    }

    /// Frees the bytes of answered requests.
    #[inline]
    fn shrink(&mut self) {
        if self.head == 0 {
            // Nothing is to be freed.
        } else if self.pending.is_empty() {
            self.outbox.clear();
            (self.head, self.sent) = (0, 0);
            if self.outbox.capacity() > KEPT_MAX {
                self.outbox = Vec::new();
            }
        } else if self.head > KEPT_MAX && self.head > self.outbox.len() / 2 {
            self.outbox.drain(..self.head);
            self.sent -= self.head;
            self.head = 0;
        }
    }

    /// Ends the link: the requests that were not answered, in order.
    pub fn into_unanswered(self) -> Vec<Unanswered> {
        let (mut at, mut unanswered) = (self.head, Vec::new());
        for Pending { len, kind } in self.pending {
            if let Kind::Request { ticket, commands, reads, .. } = kind {
                let bytes = self.outbox[at..at + len].to_vec();
                unanswered.push(Unanswered { ticket, bytes, commands, reads, sent: at < self.sent });
            }
            at += len;
        }
        unanswered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redirect::Target;

    fn ticket(reply: u64) -> Ticket {
        Ticket {
            connection: 1,
            client: 2,
            reply,
            part: 0,
            wanted: true,
            caches: false,
            writes: false,
            attempts: 0,
            slot: Some(7),
        }
    }

    fn request(bytes: &[u8]) -> Request<'_> {
        Request { content: Content::Encoded(bytes), commands: 1, asking: false, reads: false }
    }

    fn ready() -> Link {
        Link::new(Setup { bytes: Vec::new(), required: Vec::new() })
    }

    fn send_all(link: &mut Link) -> String {
        let sent = String::from_utf8_lossy(link.unsent()).into_owned();
        link.advance(sent.len());
        sent
    }

    #[test]
    fn requests_wait_for_the_setup() {
        let mut link = Link::new(Setup { bytes: b"AUTH CAPA".to_vec(), required: vec![true, false] });
        link.push(request(b"GET a"), ticket(0));
        assert_eq!(send_all(&mut link), "AUTH CAPA");
        assert_eq!(send_all(&mut link), "");
        link.inbox().extend_from_slice(b"+OK\r\n-ERR unknown\r\n");
        assert_eq!(link.next_answer(), Ok(None));
        assert_eq!(send_all(&mut link), "GET a");
        link.inbox().extend_from_slice(b"$1\r\nx\r\n");
        assert_eq!(link.next_answer(), Ok(Some(Answer::Reply(ticket(0), b"$1\r\nx\r\n", b"GET a"))));
        assert_eq!(link.next_answer(), Ok(None));
        assert_eq!((link.bytes(), link.len()), (0, 0));
    }

    #[test]
    fn a_refused_login_breaks_the_link() {
        let mut link = Link::new(Setup { bytes: b"AUTH".to_vec(), required: vec![true] });
        link.inbox().extend_from_slice(b"-WRONGPASS invalid\r\n");
        assert_eq!(link.next_answer(), Err(Broken::Refused("WRONGPASS invalid".to_owned())));
    }

    #[test]
    fn a_redirected_request_comes_back() {
        let mut link = ready();
        link.push(Request { asking: true, ..request(b"SET a 1") }, ticket(0));
        link.push(request(b"GET b"), ticket(1));
        send_all(&mut link);
        link.inbox().extend_from_slice(b"+OK\r\n-MOVED 7 h:1\r\n+b\r\n");
        let unanswered =
            Unanswered { ticket: ticket(0), bytes: b"SET a 1".to_vec(), commands: 1, reads: false, sent: true };
        let target = Target { slot: 7, host: "h".to_owned(), port: 1 };
        assert_eq!(link.next_answer(), Ok(Some(Answer::Redirected(unanswered, Redirect::Moved(target)))));
        assert_eq!(link.next_answer(), Ok(Some(Answer::Reply(ticket(1), b"+b\r\n", b"GET b"))));
    }

    #[test]
    fn a_transaction_has_one_reply_and_is_redirected_as_a_whole() {
        let mut link = ready();
        let transaction = Request { commands: 3, ..request(b"MULTI INCR EXEC") };
        link.push(transaction, ticket(0));
        link.push(transaction, ticket(1));
        link.inbox().extend_from_slice(b"+OK\r\n+QUEUED\r\n*1\r\n:1\r\n+OK\r\n-ASK 7 h:1\r\n-EXECABORT no\r\n");
        assert_eq!(link.next_answer(), Ok(Some(Answer::Reply(ticket(0), b"*1\r\n:1\r\n", b"MULTI INCR EXEC"))));
        let Ok(Some(Answer::Redirected(unanswered, Redirect::Ask(_)))) = link.next_answer() else {
            panic!("not redirected");
        };
        assert_eq!((&unanswered.bytes[..], unanswered.commands), (&b"MULTI INCR EXEC"[..], 3));
    }

    #[test]
    fn the_end_of_a_link_tells_what_was_sent() {
        let mut link = ready();
        link.push(request(b"SET a"), ticket(0));
        link.advance(3);
        link.push(request(b"SET b"), ticket(1));
        let sent: Vec<(u64, bool)> = link.into_unanswered().iter().map(|one| (one.ticket.reply, one.sent)).collect();
        assert_eq!(sent, [(0, true), (1, false)]);
    }

    #[test]
    fn memory_of_answered_requests_is_freed() {
        let (mut link, big) = (ready(), vec![b'x'; KEPT_MAX]);
        for number in 0..100 {
            link.push(request(&big), ticket(number));
        }
        link.advance(big.len() * 100);
        for number in 0..100 {
            link.inbox().extend_from_slice(b"+OK\r\n");
            assert!(matches!(link.next_answer(), Ok(Some(Answer::Reply(of, ..))) if of.reply == number));
        }
        assert_eq!(link.next_answer(), Ok(None));
        assert!(link.memory() < KEPT_MAX, "{}", link.memory());
    }

    #[test]
    fn pushes_and_errors_answer_changes_of_subscriptions() {
        let mut link = ready();
        let change = |begins| Subscription { channel: b"c".to_vec(), begins };
        link.subscribe(change(true));
        link.push(request(b"PING"), ticket(0));
        link.subscribe(change(false));
        link.subscribe(change(true));
        let push = |word: &str| format!(">3\r\n${}\r\n{word}\r\n$1\r\nc\r\n:1\r\n", word.len());
        // The node ends the subscription by itself once.
        for word in ["ssubscribe", "sunsubscribe"] {
            link.inbox().extend_from_slice(push(word).as_bytes());
        }
        link.inbox().extend_from_slice(b"+PONG\r\n");
        link.inbox().extend_from_slice(push("sunsubscribe").as_bytes());
        link.inbox().extend_from_slice(b"-MOVED 7 h:1\r\n");
        assert_eq!(link.next_answer(), Ok(Some(Answer::Subscribed(change(true), None))));
        assert_eq!(link.next_answer(), Ok(Some(Answer::Push(Push::Unsubscribed(b"c")))));
        assert_eq!(link.next_answer(), Ok(Some(Answer::Reply(ticket(0), b"+PONG\r\n", b"PING"))));
        assert_eq!(link.next_answer(), Ok(Some(Answer::Subscribed(change(false), None))));
        let error = &b"-MOVED 7 h:1\r\n"[..];
        assert_eq!(link.next_answer(), Ok(Some(Answer::Subscribed(change(true), Some(error)))));
        assert_eq!(link.next_answer(), Ok(None));
        assert!(link.is_empty() && link.bytes() == 0);
    }

    #[test]
    fn replies_to_waits_are_told_apart() {
        let mut link = ready();
        link.push(request(b"SET a"), ticket(0));
        link.wait(OwnedArgs::new(["WAIT", "1", "25"]).args());
        assert_eq!(send_all(&mut link), "SET a*3\r\n$4\r\nWAIT\r\n$1\r\n1\r\n$2\r\n25\r\n");
        link.inbox().extend_from_slice(b"+OK\r\n:1\r\n");
        assert_eq!(link.next_answer(), Ok(Some(Answer::Reply(ticket(0), b"+OK\r\n", b"SET a"))));
        assert!(!link.is_empty());
        assert_eq!(link.next_answer(), Ok(Some(Answer::Waited(b":1\r\n"))));
        assert_eq!(link.next_answer(), Ok(None));
        assert!(link.is_empty() && link.bytes() == 0);
        link.wait(OwnedArgs::new(["WAIT", "1", "25"]).args());
        assert_eq!(link.into_unanswered(), [], "no client is to be answered");
    }

    #[test]
    fn a_reply_to_nothing_breaks_the_link() {
        let mut link = ready();
        link.inbox().extend_from_slice(b"+OK\r\n");
        assert_eq!(link.next_answer(), Err(Broken::Unexpected));
    }
}
