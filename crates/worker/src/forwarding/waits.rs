//! WAIT and WAITAOF of clients that have written at other nodes.
//!
//! A node answers them for what was written over one connection, and executes nothing else of that connection
//! meanwhile. So the link that has carried a client's last write to a node becomes a **carrier**: clients no longer
//! share it, and the next request opens or takes another link. All clients whose last write to the node went over a
//! carrier wait on it together: the worker sends WAIT with short timeouts, one after the other, and compares each reply
//! with what the clients want. When none is left, the link is used again.
//!
//! The reply is the minimum over all nodes that have executed writes of the client, or over all that own slots if there
//! are none. If this node is one of them, the command is executed here at the end, with the remaining time.

use super::links::{Peer, Purpose};
use super::requests::Sent;
use super::{Forwarded, Waits};
use crate::Worker;
use kvick_commands::timeout::{is_over, left_ms, until_ms};
use kvick_engine::session::Acknowledged;
use kvick_resp::format::parse_i64;
use kvick_resp::{Args, OwnedArgs, Version};
use std::net::SocketAddr;

/// Timeout of a command on a carrier in ms. New clients wait for its end.
const ROUND_MS: i64 = 25;
/// Maximum number of carriers of a worker.
const CARRIERS_MAX: usize = 64;
/// Maximum number of nodes whose writes are remembered for a client. A cluster has about a thousand nodes.
const WRITTEN_MAX: usize = 1024;

const LINK_LOST: &str = "ERR It is unknown whether replicas have what was written, because the link to the node was \
                         lost or is in use";
const TOO_MANY: &str = "ERR Too many clients wait for acknowledgements of other nodes";

/// The link that has carried a client's last write to a node.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    address: SocketAddr,
    link: u64,
}

/// What a waiting client needs, and what it has got so far.
#[derive(Debug)]
pub struct Wait {
    wanted: Wanted,
    /// The nodes that have not acknowledged enough, by link.
    missing: Vec<u64>,
    got: Acknowledged,
}

/// The acknowledgements that a client waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted {
    /// Whether it is WAITAOF.
    on_disk: bool,
    local: i64,
    replicas: i64,
}

/// A link that waits for acknowledgements.
#[derive(Debug)]
pub struct Carrier {
    /// Its number among the links.
    number: usize,
    /// Its ID.
    id: u64,
    /// What was sent and is not answered.
    sent: Option<Wanted>,
    /// The connections that wait, with their clients.
    waiting: Vec<(usize, u64)>,
}

impl Wanted {
    /// The arguments, and until when the client waits at most; `None` if they are invalid.
    fn parse(args: Args<'_>, now_ms: i64) -> Option<(Wanted, Option<i64>)> {
        let on_disk = args.len() == 4;
        let numbers = |at: usize| args.get(at).and_then(parse_i64);
        let wanted = match on_disk {
            true => Wanted { on_disk, local: numbers(1)?, replicas: numbers(2)? },
            false => Wanted { on_disk, local: 0, replicas: numbers(1)? },
        };
        let is_valid = !on_disk || ((0..=1).contains(&wanted.local) && wanted.replicas >= 0);
        let until_ms = until_ms(args.get(args.len() - 1)?, false, now_ms).ok()?;
        is_valid.then_some((wanted, until_ms))
    }

    fn request(self, timeout_ms: i64) -> OwnedArgs {
        let (local, replicas, timeout) = (self.local.to_string(), self.replicas.to_string(), timeout_ms.to_string());
        match self.on_disk {
            true => OwnedArgs::new(["WAITAOF", &local, &replicas, &timeout]),
            false => OwnedArgs::new(["WAIT", &replicas, &timeout]),
        }
    }

    fn is_met(self, local: u64, replicas: u64) -> bool {
        let enough = |got: u64, wanted: i64| u64::try_from(wanted).is_ok_and(|wanted| got >= wanted) || wanted < 0;
        enough(local, self.local) && enough(replicas, self.replicas)
    }
}

/// The numbers in a reply to WAIT or WAITAOF: local disks and replicas.
fn numbers(reply: &[u8], on_disk: bool) -> Option<(u64, u64)> {
    let number = |line: &[u8]| parse_i64(line.strip_prefix(b":")?).and_then(|number| u64::try_from(number).ok());
    let text = reply.strip_suffix(b"\r\n")?;
    if !on_disk {
        return Some((1, number(text)?));
    }
    let text = text.strip_prefix(b"*2\r\n")?;
    let end = text.iter().position(|byte| *byte == b'\r')?;
    Some((number(&text[..end])?, number(text.get(end + 2..)?)?))
}

impl Forwarded {
    /// Notes a write that is sent over a link to a node.
    #[inline]
    pub(super) fn note_written(&mut self, address: SocketAddr, link: u64) {
        match self.written.iter_mut().find(|written| written.address == address) {
            Some(written) => written.link = link,
            None => self.add_written(Written { address, link }),
        }
    }

    #[cold]
    fn add_written(&mut self, written: Written) {
        if self.written.len() >= WRITTEN_MAX {
            self.written.remove(0);
        }
        self.written.push(written);
    }

    /// Ends its wait with the next replies.
    pub(super) fn end_wait(&mut self, now_ms: i64) {
        if let Some(wait) = self.wait.as_deref_mut() {
            // It is over already.
            wait.got.until_ms = Some(now_ms - 1);
        }
    }

    /// Forgets the writes over a link.
    fn forget_written(&mut self, link: u64) {
        self.written.retain(|written| written.link != link);
    }
}

impl Worker {
    /// Begins WAIT or WAITAOF of a client. Nothing of it is outstanding.
    pub(super) fn await_writers(&mut self, token: usize, args: Args<'_>) -> Sent {
        let now_ms = self.engine.now_ms;
        let Some(connection) = self.connections.get(token) else { return Sent::Yes };
        let has_written_here = connection.client.forwarding.as_ref().is_some_and(|elsewhere| elsewhere.wrote_here);
        let Some(forwarded) = connection.forwarded.as_deref() else { return Sent::Yes };
        let mut got = Acknowledged { here: has_written_here, ..Acknowledged::NOTHING };
        let Some((wanted, until_ms)) = Wanted::parse(args, now_ms) else {
            // The command is executed here, which fails.
            return self.finish_wait(token, Ok(Acknowledged::NOTHING));
        };
        got.until_ms = until_ms;
        let written = forwarded.written.clone();
        let mut missing = Vec::new();
        if written.is_empty() && !has_written_here {
            let owners = self.links.routes.owners().unwrap_or_default();
            let myself = self.links.routes.myself();
            got.here = owners.is_empty() || owners.iter().any(|owner| Some(*owner) == myself);
            for address in owners.into_iter().filter(|owner| Some(*owner) != myself) {
                let peer = Peer { address, db: 0, version: Version::Resp2, purpose: Purpose::Requests };
                let id = self.share_link(peer).and_then(|number| Some(self.links.get(number)?.id));
                missing.push(id.unwrap_or_default());
            }
        } else {
            missing.extend(written.iter().map(|written| written.link));
        }
        if missing.is_empty() {
            return self.finish_wait(token, Ok(got));
        }
        let links = missing.clone();
        if let Some(forwarded) = self.forwarded(token) {
            forwarded.wait = Some(Box::new(Wait { wanted, missing, got }));
            forwarded.waits = Waits::Acknowledgements;
            forwarded.stays = true;
        }
        for link in links {
            if let Err(error) = self.join_carrier(token, link) {
                if let Some(forwarded) = self.forwarded(token) {
                    forwarded.waits = Waits::Nothing;
                }
                return self.finish_wait(token, Err(error));
            }
        }
        Sent::Later
    }

    /// Ends a client's wait, if it has one: the command is executed again, and this node answers it.
    pub(super) fn finish_wait(&mut self, token: usize, result: Result<Acknowledged, String>) -> Sent {
        let Some(connection) = self.connections.get_mut(token) else { return Sent::Yes };
        let Some(forwarded) = connection.forwarded.as_deref_mut() else { return Sent::Yes };
        forwarded.wait = None;
        match result {
            Ok(acknowledged) => {
                if let Some(elsewhere) = &mut connection.client.forwarding {
                    elsewhere.acknowledged = Some(acknowledged);
                }
            }
            Err(error) => forwarded.refused = Some(error),
        }
        if forwarded.waits == Waits::Acknowledgements {
            self.resume_forwarded(token);
            return Sent::Later;
        }
        Sent::Here
    }

    /// Has a client wait for acknowledgements of what was written over a link.
    fn join_carrier(&mut self, token: usize, id: u64) -> Result<(), String> {
        let client = self.connections.get(token).map(|connection| connection.client.info.id).unwrap_or_default();
        if let Some(carrier) = self.links.carriers.iter_mut().find(|carrier| carrier.id == id) {
            carrier.waiting.push((token, client));
            return Ok(());
        }
        let found = self.links.all.iter().find(|(_, link)| link.as_deref().is_some_and(|link| link.id == id));
        let number = found.map(|(number, _)| number).filter(|number| self.links.take_unleased(*number));
        let Some(number) = number else {
            if let Some(forwarded) = self.forwarded(token) {
                forwarded.forget_written(id);
            }
            return Err(LINK_LOST.to_owned());
        };
        if self.links.carriers.len() >= CARRIERS_MAX {
            self.reuse_link(number);
            return Err(TOO_MANY.to_owned());
        }
        self.links.carriers.push(Carrier { number, id, sent: None, waiting: vec![(token, client)] });
        self.continue_carrier(self.links.carriers.len() - 1);
        Ok(())
    }

    /// Sends the next command on a carrier, or has the link used again if no client waits.
    fn continue_carrier(&mut self, at: usize) {
        let Some(carrier) = self.links.carriers.get_mut(at) else { return };
        let (number, id) = (carrier.number, carrier.id);
        let now_ms = self.engine.now_ms;
        let mut first: Option<Wanted> = None;
        let mut timeout_ms = ROUND_MS;
        let connections = &self.connections;
        carrier.waiting.retain(|(token, client)| {
            let connection = connections.get(*token).filter(|connection| connection.client.info.id == *client);
            let wait = connection.and_then(|connection| connection.forwarded.as_ref()?.wait.as_deref());
            let Some(wait) = wait.filter(|wait| wait.missing.contains(&id)) else { return false };
            if let Some(until_ms) = wait.got.until_ms {
                // The node's wait must not be over before this one is.
                timeout_ms = timeout_ms.min(left_ms(until_ms, now_ms));
            }
            let wanted = wait.wanted;
            // The one that needs the least is met first; others of its kind get the same numbers.
            first = Some(match first {
                Some(least) if least.on_disk != wanted.on_disk || least.replicas <= wanted.replicas => least,
                _ => wanted,
            });
            true
        });
        match first {
            Some(wanted) => {
                let request = wanted.request(timeout_ms);
                carrier.sent = Some(wanted);
                // Other kinds of waits have their turn in the next round.
                carrier.waiting.rotate_left(1);
                if let Some(link) = self.links.get(number) {
                    link.link.wait(request.args());
                    self.mark_dirty(number);
                }
            }
            None => {
                self.links.carriers.swap_remove(at);
                self.reuse_link(number);
            }
        }
    }

    /// A carrier has got a reply.
    pub(super) fn note_acknowledged(&mut self, number: usize, reply: &[u8]) {
        let Some(at) = self.links.carriers.iter().position(|carrier| carrier.number == number) else { return };
        let carrier = &mut self.links.carriers[at];
        let (id, waiting) = (carrier.id, carrier.waiting.clone());
        let Some(sent) = carrier.sent.take() else { return };
        self.engine.update_clock();
        let numbers = numbers(reply, sent.on_disk).ok_or_else(|| {
            let text = reply.strip_prefix(b"-").unwrap_or(b"ERR Unexpected reply of a cluster node");
            String::from_utf8_lossy(text).trim_end().to_owned()
        });
        for (token, client) in waiting {
            self.acknowledge((token, client), id, sent, &numbers);
        }
        self.continue_carrier(at);
    }

    /// Compares a reply with what a client wants.
    fn acknowledge(
        &mut self,
        (token, client): (usize, u64),
        link: u64,
        sent: Wanted,
        numbers: &Result<(u64, u64), String>,
    ) {
        let now_ms = self.engine.now_ms;
        let connection = self.connections.get_mut(token).filter(|connection| connection.client.info.id == client);
        let Some(forwarded) = connection.and_then(|connection| connection.forwarded.as_deref_mut()) else { return };
        let Some(wait) = forwarded.wait.as_deref_mut() else { return };
        let Some(place) = wait.missing.iter().position(|missing| *missing == link) else { return };
        let (local, replicas) = match numbers {
            Ok(numbers) if wait.wanted.on_disk == sent.on_disk => *numbers,
            Err(text) if wait.wanted == sent => {
                if !text.contains("appendonly is disabled") {
                    // It is no primary any more.
                    forwarded.forget_written(link);
                }
                self.finish_wait(token, Err(text.clone()));
                return;
            }
            _ => return,
        };
        if !wait.wanted.is_met(local, replicas) && wait.got.until_ms.is_none_or(|until_ms| !is_over(until_ms, now_ms)) {
            return;
        }
        wait.missing.swap_remove(place);
        wait.got.local = wait.got.local.min(local);
        wait.got.replicas = wait.got.replicas.min(replicas);
        if wait.missing.is_empty() {
            let got = wait.got;
            self.finish_wait(token, Ok(got));
        }
    }

    /// A link is lost: clients do not get acknowledgements over it any more.
    pub(super) fn lose_carrier(&mut self, number: usize) {
        let Some(at) = self.links.carriers.iter().position(|carrier| carrier.number == number) else { return };
        let Carrier { id, waiting, .. } = self.links.carriers.swap_remove(at);
        for (token, client) in waiting {
            let connection = self.connections.get_mut(token).filter(|connection| connection.client.info.id == client);
            let Some(forwarded) = connection.and_then(|connection| connection.forwarded.as_deref_mut()) else {
                continue;
            };
            forwarded.forget_written(id);
            if forwarded.wait.as_deref().is_some_and(|wait| wait.missing.contains(&id)) {
                self.finish_wait(token, Err(LINK_LOST.to_owned()));
            }
        }
    }

    /// Has clients share a link again that was a carrier, or keeps it for a lease.
    fn reuse_link(&mut self, number: usize) {
        let Some(link) = self.links.get(number) else { return };
        let peer = link.peer;
        if self.links.shared(peer).is_none() {
            self.links.share(peer, number);
        } else {
            self.return_link(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Option<(Wanted, Option<i64>)> {
        Wanted::parse(OwnedArgs::new(words).args(), 1_000)
    }

    #[test]
    fn arguments_are_those_of_the_command() {
        let wanted = |on_disk, local, replicas| Wanted { on_disk, local, replicas };
        assert_eq!(parse(&["WAIT", "2", "50"]), Some((wanted(false, 0, 2), Some(1_050))));
        assert_eq!(parse(&["WAIT", "-2", "0"]), Some((wanted(false, 0, -2), None)));
        assert_eq!(parse(&["WAITAOF", "1", "2", "50"]), Some((wanted(true, 1, 2), Some(1_050))));
        for words in
            [&["WAIT", "x", "0"][..], &["WAIT", "1", "-1"], &["WAITAOF", "2", "0", "0"], &["WAITAOF", "1", "-1", "0"]]
        {
            assert_eq!(parse(words), None, "{words:?}");
        }
    }

    #[test]
    fn replies_have_one_number_or_two() {
        assert_eq!(numbers(b":3\r\n", false), Some((1, 3)));
        assert_eq!(numbers(b"*2\r\n:0\r\n:3\r\n", true), Some((0, 3)));
        for (reply, on_disk) in
            [(&b"-ERR no\r\n"[..], false), (b":3\r\n", true), (b"*2\r\n:1\r\n", true), (b":-1\r\n", false)]
        {
            assert_eq!(numbers(reply, on_disk), None, "{:?}", reply.escape_ascii().to_string());
        }
    }

    #[test]
    fn clients_are_met_by_enough_acknowledgements() {
        let wanted = |local, replicas| Wanted { on_disk: true, local, replicas };
        assert!(wanted(1, 2).is_met(1, 2) && wanted(0, -1).is_met(0, 0));
        assert!(!wanted(1, 2).is_met(0, 2) && !wanted(1, 2).is_met(1, 1));
    }
}
