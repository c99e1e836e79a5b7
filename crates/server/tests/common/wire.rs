//! A connection with a strict parser of replies: it accepts only well-formed RESP2 and RESP3. It recognises the version
//! by the reply, since a connection may change its version at any time.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No reply of a server nests as deep.
const DEPTH_MAX: usize = 64;

/// A reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A status.
    Simple(String),
    /// An error, of either form.
    Error(String),
    /// A number: an integer, a double or a big one.
    Number(String),
    /// A string, or a verbatim one.
    Bulk(Vec<u8>),
    /// Nothing, in any form.
    Null,
    /// True or false.
    Boolean(bool),
    /// An array, a set, or a map as names and values in turn.
    Array(Vec<Reply>),
    /// A push message.
    Push(Vec<Reply>),
}

impl Reply {
    /// The text of a string or status, empty if it is none.
    pub fn text(&self) -> String {
        match self {
            Reply::Simple(text) => text.clone(),
            Reply::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        }
    }

    /// The value of an integer, 0 if it is none.
    pub fn integer(&self) -> i64 {
        match self {
            Reply::Number(text) => text.parse().unwrap_or(0),
            _ => 0,
        }
    }

    /// The items of an array; empty for other types.
    pub fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) => items,
            _ => &[],
        }
    }

    /// The value of a name in a map.
    pub fn field(&self, name: &str) -> Option<&Reply> {
        let mut pairs = self.items().chunks_exact(2);
        pairs.find(|pair| pair[0].text() == name).map(|pair| &pair[1])
    }
}

/// A connection.
pub struct Wire {
    stream: BufReader<TcpStream>,
}

impl Wire {
    /// Connects to a local server. `patience` is the timeout of connecting, reading and writing.
    pub fn connect(port: u16, patience: Duration) -> Result<Wire> {
        Wire::connect_to(([127, 0, 0, 1], port).into(), patience)
    }

    /// The same for any address.
    pub fn connect_to(address: SocketAddr, patience: Duration) -> Result<Wire> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Wire { stream: BufReader::new(stream) })
    }

    /// Sends requests at once.
    pub fn send(&mut self, requests: &[Vec<Vec<u8>>]) -> Result<()> {
        let mut bytes = Vec::new();
        for request in requests {
            bytes.extend(format!("*{}\r\n", request.len()).bytes());
            for argument in request {
                bytes.extend(format!("${}\r\n", argument.len()).bytes());
                bytes.extend(argument);
                bytes.extend(b"\r\n");
            }
        }
        self.stream.get_mut().write_all(&bytes)
    }

    /// Sends a request of plain words and reads its reply.
    pub fn ask(&mut self, words: &[&str]) -> Result<Reply> {
        self.send(&[words.iter().map(|word| word.as_bytes().to_vec()).collect()])?;
        self.read()
    }

    /// Reads a reply. What is not well formed is an error of the kind [`ErrorKind::InvalidData`].
    pub fn read(&mut self) -> Result<Reply> {
        self.reply(0)
    }

    fn reply(&mut self, depth: usize) -> Result<Reply> {
        if depth > DEPTH_MAX {
            return Err(malformed("a reply that nests too deep", b""));
        }
        let line = self.line()?;
        let Some((&kind, rest)) = line.split_first() else { return Err(malformed("an empty line", &line)) };
        let text = || String::from_utf8_lossy(rest).into_owned();
        Ok(match kind {
            b'+' => Reply::Simple(text()),
            b'-' => Reply::Error(text()),
            b':' | b'(' if is_integer(rest) => Reply::Number(text()),
            b',' if is_double(rest) => Reply::Number(text()),
            b'_' if rest.is_empty() => Reply::Null,
            b'#' if matches!(rest, b"t" | b"f") => Reply::Boolean(rest == b"t"),
            b'$' | b'*' if rest == b"-1" => Reply::Null,
            b'$' => Reply::Bulk(self.bulk(length(rest)?)?),
            b'!' => Reply::Error(String::from_utf8_lossy(&self.bulk(length(rest)?)?).into_owned()),
            b'=' => {
                let bytes = self.bulk(length(rest)?)?;
                if bytes.get(3) != Some(&b':') {
                    return Err(malformed("a verbatim string without its format", &bytes));
                }
                Reply::Bulk(bytes[4..].to_vec())
            }
            b'*' | b'~' => Reply::Array(self.many(length(rest)?, depth)?),
            b'%' => Reply::Array(self.many(2 * length(rest)?, depth)?),
            b'>' => Reply::Push(self.many(length(rest)?, depth)?),
            b'|' => {
                self.many(2 * length(rest)?, depth)?;
                self.reply(depth + 1)?
            }
            _ => return Err(malformed("an unknown reply", &line)),
        })
    }

    fn many(&mut self, count: usize, depth: usize) -> Result<Vec<Reply>> {
        (0..count).map(|_| self.reply(depth + 1)).collect()
    }

    fn bulk(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.stream.by_ref().take(len as u64 + 2).read_to_end(&mut bytes)?;
        if bytes.len() != len + 2 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if !bytes.ends_with(b"\r\n") {
            return Err(malformed("a string without its end", &bytes));
        }
        bytes.truncate(len);
        Ok(bytes)
    }

    /// A line without its end.
    fn line(&mut self) -> Result<Vec<u8>> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line)?;
        match line.strip_suffix(b"\r\n") {
            _ if line.is_empty() => Err(ErrorKind::UnexpectedEof.into()),
            Some(line) if !line.contains(&b'\r') => Ok(line.to_vec()),
            _ => Err(malformed("a line with the wrong end", &line)),
        }
    }
}

fn malformed(what: &str, bytes: &[u8]) -> Error {
    let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(200)]);
    Error::new(ErrorKind::InvalidData, format!("{what}: {shown:?}"))
}

fn is_integer(text: &[u8]) -> bool {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

fn is_double(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok())
}

fn length(digits: &[u8]) -> Result<usize> {
    let text = std::str::from_utf8(digits).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    text.and_then(|text| text.parse().ok()).ok_or_else(|| malformed("no length", digits))
}
