//! The least that a server can do for requests of a fixed length: it receives their bytes to memory, counts them, and
//! sends a reply of a fixed length. `benches/large_values.py` measures what the kernel's part of GET and SET takes.
//!
//! Usage: `floor --port PORT [ignored...] REQUEST_BYTES REPLY_BYTES KEPT_BYTES`. The last number is the size of the
//! memory through which received bytes go in turn, as a data set that is overwritten would.

use kvick_net::socket::Socket;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Result};

const LISTENER: Token = Token(usize::MAX);
/// valkey-benchmark asks for the configuration first.
const QUESTION: &[u8] = b"*3\r\n$6\r\nCONFIG";
/// Bytes of one read.
const READ: usize = 1 << 20;

struct Sizes {
    request: usize,
    reply: usize,
}

struct Connection {
    socket: Socket,
    received: usize,
    to_send: usize,
}

impl Connection {
    /// Receives and replies until the socket has nothing more, or takes nothing more. Returns false at its end.
    fn turn(&mut self, sizes: &Sizes, kept: &mut [u8], place: &mut usize, reply: &[u8]) -> Result<bool> {
        // A read that does not fill its buffer has emptied the socket.
        let mut is_empty = false;
        loop {
            while self.to_send > 0 {
                let done = (sizes.reply - self.to_send % sizes.reply) % sizes.reply;
                match self.socket.write(&reply[done..sizes.reply]) {
                    Ok(sent) => self.to_send -= sent,
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
    let (mut kept, mut place) = (vec![1; kept.max(READ)], 0);
    let reply = reply_of(reply);
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
                && !open.turn(&sizes, &mut kept, &mut place, &reply).unwrap_or(false)
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
    Ok(Connection { socket, received: 0, to_send: 0 })
}

/// A status or a bulk string of this length in all.
fn reply_of(length: usize) -> Vec<u8> {
    if length == b"+OK\r\n".len() {
        return b"+OK\r\n".to_vec();
    }
    let bulk = |value: usize| format!("${value}\r\n{}\r\n", "v".repeat(value)).into_bytes();
    (0..=length).rev().map(bulk).find(|reply| reply.len() == length).expect("the length of a bulk string")
}
