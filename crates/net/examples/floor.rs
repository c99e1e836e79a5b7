//! The least that a server can do for requests of a fixed length: it receives their bytes to memory, counts them, and
//! sends a reply of a fixed length. `benches/large_values.py` measures what the kernel's part of GET and SET takes.
//!
//! Usage: `floor --port PORT [ignored...] REQUEST_BYTES REPLY_BYTES KEPT_BYTES`. The last number is the size of the
//! data set: requests that are longer than their replies are received to all of this memory in turn, as if they
//! overwrote values; longer replies are sent from all of it, and not in turn.

use kvick_net::socket::Socket;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Result};

const LISTENER: Token = Token(usize::MAX);
/// valkey-benchmark asks for the configuration first.
const QUESTION: &[u8] = b"*3\r\n$6\r\nCONFIG";
/// Replies to a pipeline that are sent at once, if they are shorter than their requests.
const SHORT_REPLIES: usize = 1024;
/// Long replies that are passed over, so that the processor does not foresee which one comes next. A prime number, so
/// that all are sent.
const STEP: usize = 617;
/// Bytes of one read.
const READ: usize = 1 << 20;

struct Sizes {
    request: usize,
    reply: usize,
}

/// Encoded replies in contiguous memory.
struct Replies {
    bytes: Vec<u8>,
    /// The length of each.
    len: usize,
    /// How many are passed over from one write to the next.
    step: usize,
    /// The place of the next one to send.
    next: usize,
}

impl Replies {
    fn new(len: usize, count: usize, step: usize) -> Self {
        Replies { bytes: reply_of(len).repeat(count), len, step, next: 0 }
    }

    /// Sends from a place on, at most `max` bytes. Returns how many, and notes the reply behind them as the next one.
    fn send(&mut self, socket: &mut Socket, from: usize, max: usize) -> Result<usize> {
        let sent = socket.write(&self.bytes[from..self.bytes.len().min(from + max)])?;
        self.next = ((from + sent).next_multiple_of(self.len) + self.step * self.len) % self.bytes.len();
        Ok(sent)
    }
}

struct Connection {
    socket: Socket,
    received: usize,
    /// Bytes of replies that were not sent yet.
    to_send: usize,
    /// The place of the rest of a reply that was sent in part.
    rest: Option<usize>,
}

impl Connection {
    /// Receives and replies until the socket has nothing more, or takes nothing more. Returns false at its end.
    fn turn(&mut self, sizes: &Sizes, kept: &mut [u8], place: &mut usize, replies: &mut Replies) -> Result<bool> {
        // A read that does not fill its buffer has emptied the socket.
        let mut is_empty = false;
        loop {
            while self.to_send > 0 {
                let from = self.rest.unwrap_or(replies.next);
                match replies.send(&mut self.socket, from, self.to_send) {
                    Ok(sent) => {
                        self.to_send -= sent;
                        self.rest = Some(from + sent).filter(|end| !end.is_multiple_of(replies.len));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                    Err(error) => return Err(error),
                }
            }
            if is_empty {
                return Ok(true);
            }
            if kept.len() - *place < READ {
                *place = 0;
            }
            let into = &mut kept[*place..*place + READ];
            match self.socket.read(into) {
                Ok(0) => return Ok(false),
                Ok(_) if self.received == 0 && into.starts_with(QUESTION) => {
                    self.socket.write(b"-ERR\r\n")?;
                }
                Ok(received) => {
                    *place += received;
                    self.received += received;
                    self.to_send += self.received / sizes.request * sizes.reply;
                    self.received %= sizes.request;
                    is_empty = received < READ;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let number = |word: Option<&String>| word.and_then(|word| word.parse::<usize>().ok()).expect("a number");
    let port = number(words.iter().skip_while(|word| *word != "--port").nth(1));
    let [request, reply, kept] = [3, 2, 1].map(|from_end| number(words.get(words.len() - from_end)));
    let sizes = Sizes { request, reply };
    let mut replies = match reply > request {
        true => Replies::new(reply, (kept / reply).max(1), STEP),
        false => Replies::new(reply, SHORT_REPLIES, 0),
    };
    let (mut kept, mut place) = (vec![1; if reply > request { READ } else { kept.max(READ) }], 0);
    let mut listener = TcpListener::bind(([127, 0, 0, 1], port as u16).into())?;
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(1024));
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
    let mut connections: Vec<Option<Connection>> = Vec::new();
    loop {
        poll.poll(&mut events, None)?;
        for event in &events {
            if event.token() == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    connections.push(Some(accept(stream, &poll, Token(connections.len()))?));
                }
                continue;
            }
            let connection = &mut connections[event.token().0];
            if let Some(open) = connection
                && !open.turn(&sizes, &mut kept, &mut place, &mut replies).unwrap_or(false)
            {
                *connection = None;
            }
        }
    }
}

fn accept(stream: TcpStream, poll: &Poll, token: Token) -> Result<Connection> {
    stream.set_nodelay(true)?;
    let mut socket = Socket::Tcp(stream);
    socket.register(poll.registry(), token)?;
    Ok(Connection { socket, received: 0, to_send: 0, rest: None })
}

/// A status or a bulk string of this length in all.
fn reply_of(length: usize) -> Vec<u8> {
    if length == b"+OK\r\n".len() {
        return b"+OK\r\n".to_vec();
    }
    let bulk = |value: usize| format!("${value}\r\n{}\r\n", "v".repeat(value)).into_bytes();
    (0..=length).rev().map(bulk).find(|reply| reply.len() == length).expect("the length of a bulk string")
}
