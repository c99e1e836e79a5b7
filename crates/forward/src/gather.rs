//! Merges the replies to the parts of a request.

use super::frame::Scanner;
use kvick_resp::format::parse_i64;
use kvick_resp::{Reply, Version};

/// How replies are merged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Merge {
    /// The sum of integers.
    Sum,
    /// All replies are equal, for example OK; one of them.
    Same,
    /// The elements of arrays, in the order of the parts.
    Concatenation,
    /// The elements of arrays: for each element of the merged array its part; elements of a part are in order.
    Elements(Vec<u32>),
    /// Arrays of 0 and 1, merged to whether all parts have 1 at a place.
    All,
    /// Any one that is not null, chosen by this number; null if all are.
    Any(u64),
    /// The only reply, to a scan of one node: at its end, the cursor is this one, where the next node begins, or 0.
    Scan(u64),
}

/// The replies to the parts of a request, until all have arrived.
#[derive(Debug)]
pub struct Gather {
    merge: Merge,
    replies: Vec<Option<Vec<u8>>>,
    missing: usize,
}

impl Gather {
    /// Expects replies to `parts` parts.
    pub fn new(merge: Merge, parts: usize) -> Self {
        Gather { merge, replies: vec![None; parts], missing: parts }
    }

    /// Adds the reply to a part. Returns the merged reply once all have been added. If some are errors, that is the
    /// first of these, in the order of the parts.
    pub fn add(&mut self, part: u32, reply: &[u8]) -> Option<Vec<u8>> {
        let place = self.replies.get_mut(part as usize).filter(|place| place.is_none())?;
        *place = Some(reply.to_vec());
        self.missing -= 1;
        (self.missing == 0).then(|| self.merged())
    }

    fn merged(&self) -> Vec<u8> {
        let replies: Vec<&[u8]> = self.replies.iter().flatten().map(Vec::as_slice).collect();
        if let Some(error) = replies.iter().find(|reply| reply.first() == Some(&b'-')) {
            return error.to_vec();
        }
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, Version::Resp2);
        let merged = match &self.merge {
            Merge::Sum => sum(&replies).map(|sum| reply.int(sum)),
            Merge::Same => replies.first().map(|first| reply.raw(first)),
            Merge::Concatenation => concatenate(&replies, &mut reply),
            Merge::Elements(parts) => interleave(&replies, parts, &mut reply),
            Merge::All => all(&replies, &mut reply),
            Merge::Scan(next) => scan(&replies, *next, &mut reply),
            Merge::Any(number) => {
                let found: Vec<&&[u8]> = replies.iter().filter(|reply| !is_null(reply)).collect();
                let chosen = found.get((number % found.len().max(1) as u64) as usize);
                chosen.copied().or(replies.first()).map(|chosen| reply.raw(chosen))
            }
        };
        if merged.is_none() {
            out.clear();
            Reply::new(&mut out, Version::Resp2).error("ERR Unexpected reply of a cluster node");
        }
        out
    }
}

fn is_null(reply: &[u8]) -> bool {
    matches!(reply, b"$-1\r\n" | b"_\r\n" | b"*-1\r\n")
}

fn integer(reply: &[u8]) -> Option<i64> {
    parse_i64(reply.strip_prefix(b":")?.strip_suffix(b"\r\n")?)
}

fn sum(replies: &[&[u8]]) -> Option<i64> {
    replies.iter().try_fold(0i64, |sum, reply| sum.checked_add(integer(reply)?))
}

/// The text of a bulk string.
pub(super) fn bulk(reply: &[u8]) -> Option<&[u8]> {
    let end = reply.iter().position(|byte| *byte == b'\n')? + 1;
    let text = reply.strip_prefix(b"$")?.get(end - 1..)?.strip_suffix(b"\r\n")?;
    let len = parse_i64(reply[1..end].strip_suffix(b"\r\n")?)?;
    (usize::try_from(len).ok()? == text.len()).then_some(text)
}

/// The elements of an array, a set or a push message.
pub(super) fn elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    let end = reply.iter().position(|byte| *byte == b'\n')? + 1;
    let (kind, text) = reply[..end].strip_suffix(b"\r\n")?.split_first()?;
    if !matches!(kind, b'*' | b'~' | b'>') {
        return None;
    }
    let (mut rest, mut elements) = (&reply[end..], Vec::new());
    while !rest.is_empty() {
        let (element, behind) = rest.split_at_checked(Scanner::default().scan(rest).ok()??)?;
        elements.push(element);
        rest = behind;
    }
    (parse_i64(text) == Some(elements.len() as i64)).then_some(elements)
}

fn concatenate(replies: &[&[u8]], reply: &mut Reply<'_>) -> Option<()> {
    let parts: Vec<Vec<&[u8]>> = replies.iter().map(|part| elements(part)).collect::<Option<_>>()?;
    reply.array(parts.iter().map(Vec::len).sum());
    parts.iter().flatten().for_each(|element| reply.raw(element));
    Some(())
}

fn interleave(replies: &[&[u8]], order: &[u32], reply: &mut Reply<'_>) -> Option<()> {
    let parts: Option<Vec<_>> = replies.iter().map(|part| Some(elements(part)?.into_iter())).collect();
    let mut parts = parts?;
    reply.array(order.len());
    for part in order {
        reply.raw(parts.get_mut(*part as usize)?.next()?);
    }
    Some(())
}

fn scan(replies: &[&[u8]], next: u64, reply: &mut Reply<'_>) -> Option<()> {
    let parts = elements(replies.first()?)?;
    let [cursor, found] = parts[..] else { return None };
    reply.array(2);
    if cursor == b"$1\r\n0\r\n" {
        reply.bulk(next.to_string().as_bytes());
    } else {
        reply.raw(cursor);
    }
    reply.raw(found);
    Some(())
}

fn all(replies: &[&[u8]], reply: &mut Reply<'_>) -> Option<()> {
    let parts: Vec<Vec<&[u8]>> = replies.iter().map(|part| elements(part)).collect::<Option<_>>()?;
    let len = parts.first()?.len();
    reply.array(len);
    for index in 0..len {
        let mut is_everywhere = true;
        for part in &parts {
            is_everywhere &= integer(part.get(index)?)? != 0;
        }
        reply.int(is_everywhere.into());
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(merge: Merge, replies: &[&str], expected: &str) {
        let mut gather = Gather::new(merge, replies.len());
        let mut merged = None;
        for (part, reply) in replies.iter().enumerate().rev() {
            assert_eq!(merged, None);
            merged = gather.add(part as u32, reply.as_bytes());
        }
        assert_eq!(merged.map(|merged| String::from_utf8_lossy(&merged).into_owned()).as_deref(), Some(expected));
    }

    #[test]
    fn replies_are_merged_by_kind() {
        check(Merge::Sum, &[":1\r\n", ":0\r\n", ":41\r\n"], ":42\r\n");
        check(Merge::Same, &["+OK\r\n", "+OK\r\n"], "+OK\r\n");
        check(
            Merge::Concatenation,
            &["*1\r\n$1\r\na\r\n", "*0\r\n", "*2\r\n+b\r\n+c\r\n"],
            "*3\r\n$1\r\na\r\n+b\r\n+c\r\n",
        );
        check(Merge::Elements(vec![1, 0, 1]), &["*1\r\n$-1\r\n", "*2\r\n+b\r\n+c\r\n"], "*3\r\n+b\r\n$-1\r\n+c\r\n");
        check(Merge::All, &["*2\r\n:1\r\n:1\r\n", "*2\r\n:1\r\n:0\r\n"], "*2\r\n:1\r\n:0\r\n");
        let found = |cursor: &str| format!("*2\r\n${}\r\n{cursor}\r\n*1\r\n$1\r\nk\r\n", cursor.len());
        check(Merge::Scan(0), &[&found("96")], &found("96"));
        check(Merge::Scan(5461), &[&found("0")], &found("5461"));
        check(Merge::Scan(0), &[&found("0")], &found("0"));
        check(Merge::Any(3), &["$-1\r\n", "$1\r\na\r\n", "$1\r\nb\r\n"], "$1\r\nb\r\n");
        check(Merge::Any(3), &["$-1\r\n", "$-1\r\n"], "$-1\r\n");
    }

    #[test]
    fn an_error_of_a_part_is_the_reply() {
        check(Merge::Sum, &[":1\r\n", "-ERR two\r\n", "-ERR three\r\n"], "-ERR two\r\n");
        for merge in [Merge::Sum, Merge::Concatenation, Merge::All, Merge::Elements(vec![0, 0])] {
            check(merge, &["+what\r\n"], "-ERR Unexpected reply of a cluster node\r\n");
        }
        check(Merge::Elements(vec![0, 0]), &["*1\r\n+a\r\n"], "-ERR Unexpected reply of a cluster node\r\n");
    }
}
