//! The links to other nodes: connections, setup, reading and writing.

use super::answers::Parked;
use super::caching::push_peer;
use super::channels::Channels;
use super::routes::Routes;
use super::unblocking::UNBLOCKS;
use super::waits::Carrier;
use crate::readiness::Event;
use crate::{FIRST_LINK, Worker};
use kvick_config::tables::cluster::{CLUSTER_FORWARD_PASSWORD, CLUSTER_FORWARD_USER, CLUSTER_NODE_TIMEOUT};
use kvick_core::tracking::invalidation::InvalidatedKeys;
use kvick_forward::{Answer, Broken, CachedKeys, Link, Redirect, Request, Setup, Subscription, Ticket, Unanswered};
use kvick_net::peer::PeerSocket;
use kvick_resp::{OwnedArgs, Version};
use mio::Token;
use slab::Slab;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Maximum bytes per read.
const READ: usize = 64 * 1024;
/// Maximum number of reads from a link per turn.
const READS_PER_TURN: usize = 8;
/// Maximum number of links without a lease that are kept for the next one.
const IDLE_MAX: usize = 64;
/// Time after which a connection that is not made, or not set up, is given up.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Minimum time between two log lines about lost links.
const LOG_EVERY: Duration = Duration::from_secs(1);
/// Time for which a replica that failed to execute a request gets no others.
const AVOIDED: Duration = Duration::from_secs(1);

/// What a link is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Peer {
    /// The node's address.
    pub address: SocketAddr,
    /// The database.
    pub db: usize,
    /// The version of the protocol.
    pub version: Version,
    /// What it carries.
    pub purpose: Purpose,
}

/// What a link carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Requests for a primary.
    Requests,
    /// Reads of clients that have sent READONLY, for a replica.
    Reads,
    /// Requests of clients that cache keys, for a primary: it sends invalidations of the keys that were read, with
    /// RESP2 over the link for pushes.
    Tracked,
    /// Requests of the client with this ID, which caches keys but wants no invalidations of its own changes (NOLOOP).
    /// In broadcasting mode, the node reports all other changes.
    Own { client: u64, broadcasts: bool },
    /// Invalidations for such a client, if its protocol is RESP2.
    OwnPushes(u64),
    /// Pushes: messages of shard channels, and invalidations for links with RESP2.
    Pushes,
    /// Invalidations of all keys, for clients in broadcasting mode.
    Broadcasts,
}

/// A link with its socket.
pub struct PeerLink {
    pub peer: Peer,
    pub link: Link,
    /// Unique among the links of all workers.
    pub id: u64,
    socket: PeerSocket,
    is_connected: bool,
    opened: Instant,
    /// When it last made progress.
    active: Instant,
    /// The connection whose lease it is.
    pub lease: Option<usize>,
    is_dirty: bool,
    /// Whether a client may cache keys that it has read over this link.
    has_cached: bool,
}

/// All links of a worker.
#[derive(Default)]
pub struct Links {
    /// Taken out while its replies are passed on.
    pub all: Slab<Option<Box<PeerLink>>>,
    /// The links that clients share.
    shared: Vec<(Peer, usize)>,
    /// Links that were leased, the one that is idle for the longest time first.
    idle: Vec<usize>,
    /// Links that wait for acknowledgements.
    pub carriers: Vec<Carrier>,
    /// Replies on carriers that are being read.
    acknowledged: Vec<(usize, Vec<u8>)>,
    /// Replies to CLIENT UNBLOCK on links that are being read.
    unblocked: Vec<(Ticket, Vec<u8>)>,
    /// Waiting clients that are to be unblocked as soon as their node can be asked, or has got their request.
    pub unblock_later: Vec<Ticket>,
    /// Number of links that were opened.
    opened: u64,
    /// Changes when clients that shared a link have to share another one.
    changed: u64,
    /// Links with something to send.
    dirty: Vec<usize>,
    /// Links that may have more to be read.
    unread: Vec<usize>,
    /// Requests to be sent again, in order of time.
    pub parked: VecDeque<Parked>,
    /// Connections that wait for room.
    pub stalled: Vec<usize>,
    pub routes: Routes,
    /// The keys of other nodes that clients cache.
    pub cached: CachedKeys,
    /// The shard channels of other nodes that clients are subscribed to.
    pub channels: Channels,
    /// Changes of subscriptions on links that are being read.
    pub changes: Vec<(usize, Subscription)>,
    /// Replicas that have just failed to execute a request, with the time until which reads go to their primaries.
    avoided: Vec<(SocketAddr, Instant)>,
    logged: Option<Instant>,
}

impl Links {
    /// Whether [`Worker::continue_forwarding`] may have something to do.
    #[inline]
    pub fn has_work(&self) -> bool {
        !self.unread.is_empty() || !self.parked.is_empty() || self.channels.is_due()
    }

    /// Whether a link may have more to be read, which the poll does not report.
    #[inline]
    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Limits the time of a wait by the first request to be sent again.
    #[inline]
    pub fn limit_wait(&self, wait: Duration) -> Duration {
        let due = self.parked.front().map(|first| first.due).into_iter().chain(self.channels.due()).min();
        due.map_or(wait, |due| wait.min(due.saturating_duration_since(Instant::now())))
    }

    /// Has reads go to primaries instead of this replica for some time.
    pub fn avoid(&mut self, address: SocketAddr) {
        let now = Instant::now();
        self.avoided.retain(|(other, until)| *other != address && *until > now);
        self.avoided.push((address, now + AVOIDED));
    }

    /// A replica of the owner of a slot, always the same for a client while nothing changes.
    pub fn replica(&self, slot: u16, client: u64) -> Option<SocketAddr> {
        let now = Instant::now();
        let is_avoided = |address| self.avoided.iter().any(|(other, until)| *other == address && *until > now);
        let mut replicas = self.routes.replicas(slot);
        replicas.retain(|address| !is_avoided(*address));
        let choice = client.checked_rem(replicas.len() as u64)?;
        replicas.get(choice as usize).copied()
    }

    /// Adds a request to a link, which is written at the end of the turn. Returns the node's address and the link's ID.
    #[inline]
    pub(super) fn push(&mut self, number: usize, request: Request<'_>, ticket: Ticket) -> Option<(SocketAddr, u64)> {
        let link = self.all.get_mut(number)?.as_deref_mut()?;
        if link.link.is_empty() {
            link.active = Instant::now();
        }
        link.link.push(request, ticket);
        link.has_cached |= ticket.caches;
        if !std::mem::replace(&mut link.is_dirty, true) {
            self.dirty.push(number);
        }
        Some((link.peer.address, link.id))
    }

    /// Whether a link has less than this many bytes of unanswered requests.
    #[inline]
    pub(super) fn has_room(&self, number: usize, bytes_max: usize) -> bool {
        self.all.get(number).and_then(Option::as_ref).is_some_and(|link| link.link.bytes() < bytes_max)
    }

    pub(super) fn get(&mut self, number: usize) -> Option<&mut PeerLink> {
        self.all.get_mut(number)?.as_deref_mut()
    }

    /// Identifies by what requests are sent now: the slot map, and which links are shared.
    #[inline]
    pub fn generation(&self) -> (u64, u64) {
        (self.routes.generation, self.changed)
    }

    /// Has clients share a link.
    pub fn share(&mut self, peer: Peer, number: usize) {
        self.shared.push((peer, number));
    }

    /// Takes a link that clients share, or that is idle, so that no more requests are sent over it. False if it is
    /// leased.
    pub fn take_unleased(&mut self, number: usize) -> bool {
        if let Some(at) = self.shared.iter().position(|(_, shared)| *shared == number) {
            self.shared.swap_remove(at);
            // What is sent over the next link must not overtake what is outstanding on this one.
            self.changed += 1;
            return true;
        }
        let at = self.idle.iter().position(|idle| *idle == number);
        at.map(|at| self.idle.remove(at)).is_some()
    }

    /// Takes an idle link, the one that is idle for the longest time.
    fn take_idle(&mut self, peer: Peer) -> Option<usize> {
        let is_for =
            |number: &usize| self.all.get(*number).and_then(Option::as_ref).is_some_and(|link| link.peer == peer);
        let at = self.idle.iter().position(is_for)?;
        Some(self.idle.remove(at))
    }

    /// The shared links of a purpose.
    pub fn of_purpose(&self, purpose: Purpose) -> Vec<usize> {
        self.shared.iter().filter(|(peer, _)| peer.purpose == purpose).map(|(_, number)| *number).collect()
    }

    /// The links whose node sends invalidations of the keys that are read over them to this link for pushes.
    pub fn redirected_to(&self, pushes: Peer) -> Vec<usize> {
        let is_redirected = |purpose| match (pushes.purpose, purpose) {
            (Purpose::OwnPushes(receiver), Purpose::Own { client, .. }) => client == receiver,
            (Purpose::OwnPushes(_), _) => false,
            (_, purpose) => purpose == Purpose::Tracked,
        };
        let is_one = |link: &PeerLink| {
            let Peer { address, purpose, version, .. } = link.peer;
            address == pushes.address && is_redirected(purpose) && version == Version::Resp2
        };
        let all = self.all.iter();
        all.filter(|(_, link)| link.as_deref().is_some_and(is_one)).map(|(number, _)| number).collect()
    }

    pub(super) fn shared(&self, peer: Peer) -> Option<usize> {
        self.shared.iter().find(|(known, _)| *known == peer).map(|(_, number)| *number)
    }
}

impl Worker {
    /// Whether the link to a node has room for another request.
    pub(super) fn has_room(&self, peer: Peer) -> bool {
        let link = self.links.shared(peer).and_then(|number| self.links.all.get(number)?.as_ref());
        link.is_none_or(|link| link.link.bytes() < self.engine.runtime_config.forward_link_max)
    }

    /// Sends a request over the link that clients share. Returns false if there is no link and none can be made now.
    #[inline]
    pub(super) fn push_shared(&mut self, peer: Peer, request: Request<'_>, ticket: Ticket) -> bool {
        let Some(number) = self.share_link(peer) else { return false };
        self.push_to(number, request, ticket)
    }

    /// The link that clients share, which is opened if there is none.
    #[inline]
    pub(super) fn share_link(&mut self, peer: Peer) -> Option<usize> {
        if let Some(number) = self.links.shared(peer) {
            return Some(number);
        }
        let number = self.links.take_idle(peer).or_else(|| self.open_link(peer))?;
        self.links.share(peer, number);
        Some(number)
    }

    /// Sends a request over a link.
    pub(super) fn push_to(&mut self, number: usize, request: Request<'_>, ticket: Ticket) -> bool {
        let Some((address, id)) = self.links.push(number, request, ticket) else { return false };
        if ticket.writes {
            let connection = self.connections.get_mut(ticket.connection);
            let connection = connection.filter(|connection| connection.client.info.id == ticket.client);
            if let Some(forwarded) = connection.and_then(|connection| connection.forwarded.as_deref_mut()) {
                forwarded.note_written(address, id);
            }
        }
        true
    }

    /// Has a link written at the end of the turn.
    #[inline]
    pub(super) fn mark_dirty(&mut self, number: usize) {
        let Some(link) = self.links.get(number) else { return };
        if !std::mem::replace(&mut link.is_dirty, true) {
            self.links.dirty.push(number);
        }
    }

    /// A link for one connection alone.
    pub(super) fn lease_link(&mut self, token: usize, peer: Peer) -> Option<usize> {
        let number = match peer.purpose {
            // Nobody else shares it, and its node has to know who writes.
            Purpose::Own { .. } => self.share_link(peer)?,
            _ => self.links.take_idle(peer).or_else(|| self.open_link(peer))?,
        };
        self.links.get(number)?.lease = Some(token);
        Some(number)
    }

    /// Keeps a link whose lease has ended for the next one. Nothing may be outstanding on it, and its node must not
    /// remember anything of the client.
    pub(super) fn return_link(&mut self, number: usize) {
        let is_shared = self.links.shared.iter().any(|(_, shared)| *shared == number);
        if !is_shared && self.links.idle.len() >= IDLE_MAX {
            self.drop_link(number);
            return;
        }
        if let Some(link) = self.links.get(number) {
            link.lease = None;
            if !is_shared {
                self.links.idle.push(number);
            }
        }
    }

    /// Closes a link without answering what is outstanding on it.
    pub(super) fn drop_link(&mut self, number: usize) -> Option<Box<PeerLink>> {
        let link = self.links.all.try_remove(number).flatten();
        self.links.shared.retain(|(_, shared)| *shared != number);
        for list in [&mut self.links.idle, &mut self.links.dirty, &mut self.links.unread] {
            list.retain(|listed| *listed != number);
        }
        if let Some(link) = &link {
            self.lose_pushes(link.peer, link.has_cached);
        }
        link
    }

    #[cold]
    fn open_link(&mut self, peer: Peer) -> Option<usize> {
        let setup = self.setup(peer)?;
        let materials = if self.links.routes.tls { Some(self.server.tls.materials()?) } else { None };
        let opened = PeerSocket::connect(peer.address, None, materials.as_deref()).and_then(|mut socket| {
            let number = self.links.all.vacant_key();
            socket.register(self.poll.registry(), Token(FIRST_LINK + number))?;
            Ok(socket)
        });
        let socket = opened.inspect_err(|error| self.log_lost(peer, error)).ok()?;
        let now = Instant::now();
        self.links.opened += 1;
        let link = PeerLink {
            peer,
            link: Link::new(setup),
            id: ((self.number as u64) << 48) | self.links.opened,
            socket,
            is_connected: false,
            opened: now,
            active: now,
            lease: None,
            is_dirty: false,
            has_cached: false,
        };
        Some(self.links.all.insert(Some(Box::new(link))))
    }

    /// The first commands on a link. A node of Valkey ignores the capability: it forwards nothing in any case. `None`
    /// if another link has to be there before.
    fn setup(&mut self, peer: Peer) -> Option<Setup> {
        let receiver = match (peer.purpose, peer.version) {
            (Purpose::Tracked, Version::Resp2) => Some(self.push_receiver(push_peer(peer.address))?.to_string()),
            (Purpose::Own { client, .. }, Version::Resp2) => {
                let pushes = Peer { purpose: Purpose::OwnPushes(client), ..push_peer(peer.address) };
                Some(self.push_receiver(pushes)?.to_string())
            }
            _ => None,
        };
        let mut setup = Setup { bytes: Vec::new(), required: Vec::new() };
        let mut add = |words: &[&[u8]], is_required: bool| {
            kvick_forward::encode::encode(OwnedArgs::new(words).args(), &mut setup.bytes);
            setup.required.push(is_required);
        };
        let values = self.server.config.values();
        if let Some(password) = values.read(CLUSTER_FORWARD_PASSWORD) {
            match values.read(CLUSTER_FORWARD_USER) {
                Some(user) => add(&[b"AUTH", &user, &password], true),
                None => add(&[b"AUTH", &password], true),
            }
        }
        if peer.version == Version::Resp3 {
            add(&[b"HELLO", b"3"], true);
        }
        add(&[b"CLIENT", b"CAPA", b"direct"], false);
        add(&[b"CLIENT", b"SETINFO", b"LIB-NAME", b"kvick-forward"], false);
        // Also for CLIENT UNBLOCK.
        add(&[b"CLIENT", b"ID"], matches!(peer.purpose, Purpose::Pushes | Purpose::OwnPushes(_)));
        if peer.db != 0 {
            add(&[b"SELECT", peer.db.to_string().as_bytes()], true);
        }
        match (peer.purpose, &receiver) {
            (Purpose::Requests | Purpose::Pushes | Purpose::OwnPushes(_), _) => {}
            (Purpose::Reads, _) => add(&[b"READONLY"], true),
            (Purpose::Tracked, None) => add(&[b"CLIENT", b"TRACKING", b"ON"], true),
            (Purpose::Tracked, Some(id)) => add(&[b"CLIENT", b"TRACKING", b"ON", b"REDIRECT", id.as_bytes()], true),
            (Purpose::Own { broadcasts, .. }, _) => {
                let mut words: Vec<&[u8]> = vec![b"CLIENT", b"TRACKING", b"ON", b"NOLOOP"];
                if let Some(id) = &receiver {
                    words.extend([&b"REDIRECT"[..], id.as_bytes()]);
                }
                if broadcasts {
                    words.push(b"BCAST");
                }
                add(&words, true);
            }
            (Purpose::Broadcasts, _) => add(&[b"CLIENT", b"TRACKING", b"ON", b"BCAST"], true),
        }
        Some(setup)
    }

    fn log_lost(&mut self, peer: Peer, reason: &dyn std::fmt::Display) {
        if self.links.logged.is_none_or(|logged| logged.elapsed() >= LOG_EVERY) {
            self.links.logged = Some(Instant::now());
            kvick_runtime::logging::notice(format_args!("Lost a link for forwarding to {}: {reason}", peer.address));
        }
    }

    /// Handles an event of a link.
    pub(crate) fn serve_link(&mut self, number: usize, event: Event) {
        let Some(link) = self.links.get(number) else { return };
        if !link.is_connected {
            match link.socket.connected() {
                Some(Ok(_)) => link.is_connected = true,
                None => return,
                Some(Err(error)) => return self.break_link(number, &error),
            }
        }
        if event.is_writable() {
            self.write_link(number);
        }
        if event.is_readable() || event.is_read_closed() || event.is_error() {
            self.read_link(number);
        }
    }

    /// Writes what was pushed in this turn, with one call per link.
    #[inline]
    pub(crate) fn flush_links(&mut self) {
        while let Some(number) = self.links.dirty.pop() {
            if let Some(link) = self.links.get(number) {
                link.is_dirty = false;
                self.write_link(number);
            }
        }
    }

    fn write_link(&mut self, number: usize) {
        let Some(link) = self.links.get(number).filter(|link| link.is_connected) else { return };
        let result = loop {
            let unsent = link.link.unsent();
            if unsent.is_empty() {
                break link.socket.flush();
            }
            match link.socket.write(unsent) {
                Ok(written) => link.link.advance(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        if let Err(error) = result
            && error.kind() != io::ErrorKind::WouldBlock
        {
            self.break_link(number, &error);
        }
    }

    /// Reads from a link, up to a turn's limit, and passes the replies on.
    fn read_link(&mut self, number: usize) {
        // Taken out: passing on replies needs the worker.
        let Some(mut link) = self.links.all.get_mut(number).and_then(Option::take) else { return };
        let was_ready = link.link.is_ready();
        let mut redirected = Vec::new();
        let mut reads = 0;
        let end: Result<bool, Box<dyn std::fmt::Display>> = loop {
            match link.socket.read_to(link.link.inbox(), READ) {
                Ok(0) => break Err(Box::new("it has closed the connection")),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => break Err(Box::new(error)),
            }
            if let Err(broken) = self.pass_replies(number, &mut link, &mut redirected) {
                break Err(Box::new(describe(broken)));
            }
            self.write_many_replies();
            reads += 1;
            if reads == READS_PER_TURN {
                break Ok(true);
            }
        };
        if reads > 0 {
            link.active = Instant::now();
        }
        let (peer, lease, has_ended) = (link.peer, link.lease, link.link.is_empty());
        let has_room = link.link.bytes() < self.engine.runtime_config.forward_link_max / 2;
        let has_become_ready = !was_ready && link.link.is_ready();
        if let Some(place) = self.links.all.get_mut(number) {
            *place = Some(link);
        }
        if has_become_ready {
            self.unblock_again();
            // What has changed before is not known.
            match peer.purpose {
                Purpose::Broadcasts => self.invalidate_all_cached(true),
                Purpose::Own { client, broadcasts: true } => self.invalidate_own(client, &InvalidatedKeys::All),
                _ => {}
            }
        }
        for (number, subscription) in std::mem::take(&mut self.links.changes) {
            if let Some(link) = self.links.get(number) {
                link.link.subscribe(subscription);
                self.mark_dirty(number);
            }
        }
        for (number, reply) in std::mem::take(&mut self.links.acknowledged) {
            self.note_acknowledged(number, &reply);
        }
        for (ticket, reply) in std::mem::take(&mut self.links.unblocked) {
            self.note_unblocked(ticket, &reply);
        }
        for (unanswered, redirect) in redirected {
            self.redirect(unanswered, redirect, peer, lease.is_some());
        }
        match end {
            Ok(has_more) => {
                if has_more {
                    self.links.unread.push(number);
                }
                if has_become_ready {
                    self.write_link(number);
                }
                if let Some(token) = lease
                    && has_ended
                {
                    self.settle_lease(token, number);
                }
            }
            Err(reason) => self.break_link(number, &*reason),
        }
        if has_room && !self.links.stalled.is_empty() {
            self.resume_stalled();
        }
    }

    fn pass_replies(
        &mut self,
        number: usize,
        link: &mut PeerLink,
        redirected: &mut Vec<(Unanswered, Redirect)>,
    ) -> Result<(), Broken> {
        while let Some(answer) = link.link.next_answer()? {
            match answer {
                Answer::Reply(ticket, reply, request) => {
                    if link.peer.purpose == Purpose::Reads && is_out_of_service(reply) {
                        self.links.avoid(link.peer.address);
                        let bytes = request.to_vec();
                        let unanswered = Unanswered { ticket, bytes, commands: 1, reads: true, sent: true };
                        redirected.push((unanswered, Redirect::Later));
                        continue;
                    }
                    if ticket.connection == UNBLOCKS {
                        self.links.unblocked.push((ticket, reply.to_vec()));
                        continue;
                    }
                    self.pass_reply(ticket, reply);
                    if ticket.caches && !matches!(link.peer.purpose, Purpose::Own { .. }) {
                        self.note_cached(ticket.client, request);
                    }
                }
                Answer::Redirected(unanswered, redirect) => redirected.push((unanswered, redirect)),
                Answer::Waited(reply) => self.links.acknowledged.push((number, reply.to_vec())),
                Answer::Push(push) => self.receive_push(link.peer, push),
                Answer::Subscribed(subscription, error) => self.note_subscribed(link.peer, subscription, error),
            }
        }
        Ok(())
    }

    /// Closes a link and decides about the requests that were not answered.
    #[cold]
    pub(super) fn break_link(&mut self, number: usize, reason: &dyn std::fmt::Display) {
        let Some(link) = self.drop_link(number) else { return };
        let PeerLink { peer, link, lease, .. } = *link;
        if !link.is_empty() || !link.is_ready() {
            self.log_lost(peer, reason);
            if peer.purpose == Purpose::Reads {
                self.links.avoid(peer.address);
            }
        }
        let is_refused = !link.is_ready() && reason.to_string().starts_with(REFUSED);
        if let Some(token) = lease {
            self.lose_lease(token, number);
        }
        self.lose_carrier(number);
        for unanswered in link.into_unanswered() {
            if unanswered.ticket.connection == UNBLOCKS {
                self.unblock_later(unanswered.ticket);
            } else if is_refused {
                self.pass_error(unanswered.ticket, &format!("ERR {reason}"));
            } else {
                self.retry_lost(unanswered, peer, lease.is_some());
            }
        }
        self.resume_stalled();
    }

    /// Closes links that are not needed or that hang.
    pub(crate) fn check_links(&mut self) {
        self.check_channels();
        self.unblock_again();
        if self.server.tracking.prefixes() == 0 && self.links.all.is_empty() {
            return;
        }
        self.links.routes.update(self.server);
        if self.number == 0 {
            self.check_broadcasts();
        }
        self.check_own_links();
        let node_timeout = Duration::from_millis(self.server.config.read(CLUSTER_NODE_TIMEOUT));
        let routes = &self.links.routes;
        let hangs = |link: &PeerLink| {
            let is_new = !link.link.is_ready() && link.opened.elapsed() > CONNECT_MAX;
            // The poll reports no end of a node that is cut off, but another one has its slots by now.
            let is_gone = !routes.has_owner(link.peer.address) && link.active.elapsed() > node_timeout;
            is_new || is_gone
        };
        let all = self.links.all.iter();
        let hanging: Vec<usize> =
            all.filter(|(_, link)| link.as_deref().is_some_and(hangs)).map(|(number, _)| number).collect();
        hanging.into_iter().for_each(|number| self.break_link(number, &"it does not answer"));
    }

    /// Reads the links that may have more, and sends requests again that are due.
    pub(crate) fn continue_forwarding(&mut self) {
        for number in std::mem::take(&mut self.links.unread) {
            self.read_link(number);
        }
        self.send_parked();
        self.continue_subscribing();
    }
}

/// Whether a replica has no data to read from at present.
fn is_out_of_service(reply: &[u8]) -> bool {
    reply.starts_with(b"-LOADING ") || reply.starts_with(b"-MASTERDOWN ")
}

/// Begins the reason for which a link is lost whose setup the node has refused.
const REFUSED: &str = "The node refuses to execute forwarded requests";

fn describe(broken: Broken) -> String {
    match broken {
        Broken::Malformed => "its reply is malformed".into(),
        Broken::TooLong => "its reply is too long".into(),
        Broken::Unexpected => "it has sent a reply to no request".into(),
        Broken::Refused(error) => format!("{REFUSED}: {error}"),
    }
}
