//! Redirections: the errors MOVED, ASK, TRYAGAIN and CLUSTERDOWN of a node that has not executed a request.

use kvick_resp::format::parse_i64;

/// What a node answered instead of executing a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Redirect {
    /// Another node owns the slot.
    Moved(Target),
    /// Another node has this key, or would have it; the slot is being migrated.
    Ask(Target),
    /// It can be executed later: some of its keys have been migrated, or the node knows no owner of the slot now.
    Later,
}

/// Errors after which a request is sent again later.
const LATER: &[&[u8]] = &[
    b"TRYAGAIN Multiple keys request during rehashing of slot",
    b"CLUSTERDOWN The cluster is down",
    b"CLUSTERDOWN Hash slot not served",
];

/// A slot and a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The slot.
    pub slot: u16,
    /// The node's IP address or host name; empty for that of the node that answered.
    pub host: String,
    /// Its port.
    pub port: u16,
}

impl Redirect {
    /// The redirection in a reply.
    #[inline]
    pub fn parse(reply: &[u8]) -> Option<Redirect> {
        if reply.first() == Some(&b'-') { Redirect::parse_error(&reply[1..]) } else { None }
    }

    #[cold]
    fn parse_error(line: &[u8]) -> Option<Redirect> {
        let line = line.strip_suffix(b"\r\n")?;
        // The exact texts: a script may reply with an error that begins in the same way.
        if LATER.contains(&line) {
            return Some(Redirect::Later);
        }
        let mut words = line.split(|byte| *byte == b' ');
        let kind = words.next()?;
        let constructor = match kind {
            b"MOVED" => Redirect::Moved,
            b"ASK" => Redirect::Ask,
            _ => return None,
        };
        let slot = parse_i64(words.next()?).and_then(|slot| u16::try_from(slot).ok())?;
        let endpoint = std::str::from_utf8(words.next()?).ok()?;
        let (host, port) = endpoint.rsplit_once(':')?;
        Some(constructor(Target { slot, host: host.to_owned(), port: port.parse().ok()? }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_redirections_and_nothing_else() {
        let target = |host: &str| Target { slot: 3999, host: host.to_owned(), port: 6381 };
        for (reply, expected) in [
            ("-MOVED 3999 127.0.0.1:6381\r\n", Some(Redirect::Moved(target("127.0.0.1")))),
            ("-ASK 3999 ::1:6381\r\n", Some(Redirect::Ask(target("::1")))),
            ("-MOVED 3999 :6381\r\n", Some(Redirect::Moved(target("")))),
            ("-TRYAGAIN Multiple keys request during rehashing of slot\r\n", Some(Redirect::Later)),
            ("-CLUSTERDOWN The cluster is down\r\n", Some(Redirect::Later)),
            ("-TRYAGAIN says a script\r\n", None),
            ("-MOVED 99999 127.0.0.1:6381\r\n", None),
            ("-MOVED 1\r\n", None),
            ("-ERR MOVED 3999 127.0.0.1:6381\r\n", None),
            ("$5\r\n-ASK \r\n", None),
        ] {
            assert_eq!(Redirect::parse(reply.as_bytes()), expected, "{reply}");
        }
    }
}
