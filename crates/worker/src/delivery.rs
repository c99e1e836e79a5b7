//! Delivers the worker's [inbox](kvick_core::inbox) to its connections: published messages to subscribers,
//! invalidations to clients that cache keys, and answers to blocked clients.
//!
//! A message is encoded into the batch's replies once per audience and protocol; each recipient gets a [`Run`] that
//! points there. So a push is placed between the replies of its connection, behind those of commands executed before.
//!
//! The cost of a delivery is in the writes, not in creating runs. So messages and invalidations are delivered in waves.
//! A wave consists of all messages pending in the worker's inbox, and visits the connections slice by slice, in the
//! order of their tokens: each connection of a slice gets all messages of the wave, written with one call. The number
//! of connections reached between two writes of replies is bounded; the next slice waits for the next turn, and the
//! next wave for the end of the current one. So a message to very many clients delays other clients only briefly, and
//! each connection gets messages published meanwhile with one call.
//!
//! Messages are numbered, and each connection records the number up to which it has received its messages. Before a
//! connection's requests are executed during a wave, it receives the remaining messages of the wave.

use super::Worker;
use super::connection::Connection;
use super::output::Run;
use kvick_commands::spec::Flags;
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientInfo;
use kvick_core::inbox::Delivery;
use kvick_core::pubsub::Audience;
use kvick_core::pubsub::publication::Publication;
use kvick_core::pubsub::subscribers::Subscribers;
use kvick_core::tracking::Invalidation;
use kvick_engine::session::{Fate, ReplyMode};
use kvick_resp::Version;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum number of connections reached between two writes of replies, and tokens in a slice.
const REACHED_MAX: usize = 128;
/// Maximum number of messages in a wave.
const WAVE_MAX: usize = 64;
/// Size in bytes from which no more messages are added to a wave.
const WAVE_BYTES: usize = 1024 * 1024;

/// A message to several connections.
enum Pending {
    Message(Arc<Publication>),
    Invalidation(Invalidation),
}

impl Pending {
    fn bytes(&self) -> usize {
        match self {
            Pending::Message(message) => message.bytes(),
            Pending::Invalidation(invalidation) => invalidation.bytes(),
        }
    }

    /// Number of recipients.
    fn recipients(&self, subscribers: &Subscribers) -> usize {
        match self {
            Pending::Message(message) => message.audiences().map(|audience| subscribers.count(audience)).sum(),
            Pending::Invalidation(invalidation) => invalidation.count(),
        }
    }
}

/// Where a message is among the replies, per protocol, once it is encoded.
#[derive(Default)]
pub(super) struct Encoded([Option<Range<usize>>; 2]);

/// Deliveries in progress.
#[derive(Default)]
pub(super) struct Deliveries {
    queue: VecDeque<Pending>,
    /// The number of the first message in the queue.
    first: u64,
    /// Number of messages, from the front of the queue, in the current wave; 0 between waves.
    wave: usize,
    /// First token of the wave's next slice.
    next_token: usize,
    /// Tokens in a slice of the wave.
    width: usize,
}

impl Deliveries {
    /// Whether nothing is pending, apart from messages that may be in the inbox.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Begins a wave with the pending messages.
    fn begin_wave(&mut self, subscribers: &Subscribers) {
        let (mut bytes, mut recipients) = (0, 0);
        self.wave = 0;
        for message in self.queue.iter().take(WAVE_MAX) {
            self.wave += 1;
            bytes += message.bytes();
            recipients += message.recipients(subscribers);
            if bytes > WAVE_BYTES {
                break;
            }
        }
        self.next_token = 0;
        self.width = if recipients <= REACHED_MAX { usize::MAX } else { REACHED_MAX };
    }

    /// The tokens of the next slice.
    fn next_slice(&mut self) -> Range<usize> {
        let end = self.next_token.saturating_add(self.width);
        std::mem::replace(&mut self.next_token, end)..end
    }

    /// Ends a wave. Returns the number of its messages.
    fn end_wave(&mut self) -> usize {
        let wave = std::mem::take(&mut self.wave);
        self.queue.drain(..wave);
        self.first += wave as u64;
        wave
    }
}

impl Worker {
    /// Delivers messages to as many connections as a turn allows.
    pub(super) fn deliver_pending(&mut self) {
        self.drain_inbox();
        if self.standby_engine.is_none() {
            // A long script runs, and its client is moved out: messages wait for its end.
            return;
        }
        if self.slots_lost {
            self.leave_lost_shard_channels();
        }
        let mut deliveries = std::mem::take(&mut self.deliveries);
        let bytes_max = self.replies.len() + WAVE_BYTES;
        let subscribers = self.server.pubsub.subscribers(self.number);
        while !deliveries.is_empty() && self.reached < REACHED_MAX && self.replies.len() < bytes_max {
            if deliveries.wave == 0 {
                deliveries.begin_wave(&subscribers);
            }
            let slice = deliveries.next_slice();
            for (number, pending) in (deliveries.first..).zip(deliveries.queue.range(..deliveries.wave)) {
                self.deliver_message(number, pending, &subscribers, &slice);
                // Other threads may evict meanwhile, and messages in transit must not cause eviction.
                self.publish_reply_buffer();
            }
            if slice.end >= self.connections.capacity() {
                (0..deliveries.end_wave()).for_each(|_| self.server.inboxes.delivered(self.number));
            }
        }
        self.deliveries = deliveries;
    }

    /// Delivers to a connection the messages that other connections have received before it or will receive together
    /// with it.
    #[inline]
    pub(super) fn catch_up(&mut self, token: usize) {
        if !self.deliveries.is_empty()
            && self.standby_engine.is_some()
            && let Some(connection) = self.connections.get(token)
            && (connection.client.subscriptions.is_some() || connection.client.tracking.is_some())
        {
            self.deliver_missed(token, connection.heard_to);
        }
    }

    #[cold]
    pub(super) fn deliver_missed(&mut self, token: usize, heard_to: u64) {
        let deliveries = std::mem::take(&mut self.deliveries);
        let subscribers = self.server.pubsub.subscribers(self.number);
        let known = usize::try_from(heard_to.saturating_sub(deliveries.first)).unwrap_or(usize::MAX);
        // The current wave has passed all tokens below `next_token`.
        let passed = if token < deliveries.next_token { deliveries.wave } else { 0 };
        let known = known.max(passed);
        for (number, pending) in (deliveries.first..).zip(&deliveries.queue).skip(known) {
            self.deliver_message(number, pending, &subscribers, &(token..token + 1));
        }
        if let Some(connection) = self.connections.get_mut(token) {
            connection.heard_to = deliveries.first + deliveries.queue.len() as u64;
        }
        self.deliveries = deliveries;
    }

    /// Delivers the message with this number to connections with tokens in a range.
    fn deliver_message(&mut self, number: u64, pending: &Pending, subscribers: &Subscribers, tokens: &Range<usize>) {
        match pending {
            Pending::Message(message) => {
                for audience in message.audiences() {
                    self.deliver_to(number, message, audience, subscribers.of(audience, tokens.clone()));
                }
            }
            Pending::Invalidation(invalidation) => self.deliver_invalidation(number, invalidation, tokens.clone()),
        }
    }

    /// Takes messages from the inbox. Messages to a single connection are delivered at once.
    pub(super) fn drain_inbox(&mut self) {
        let deliveries: Vec<Delivery> = self.engine.inbox().take().collect();
        self.adopt_connections();
        for delivery in deliveries {
            match delivery {
                Delivery::Published(message) => self.deliveries.queue.push_back(Pending::Message(message)),
                Delivery::Invalidated(invalidation) => {
                    self.readdress(&invalidation);
                    self.deliveries.queue.push_back(Pending::Invalidation(invalidation))
                }
                Delivery::Served(served) => {
                    self.deliver(served);
                    self.server.inboxes.delivered(self.number);
                }
                Delivery::ToSource(client, request) => {
                    self.deliver_to_source(&client, &request);
                    self.server.inboxes.delivered(self.number);
                }
                Delivery::UnblockedElsewhere(client, error) => {
                    self.unblock_elsewhere(&client, error);
                    self.server.inboxes.delivered(self.number);
                }
                Delivery::Disconnected(client) => {
                    self.deliver_disconnection(&client);
                    self.server.inboxes.delivered(self.number);
                }
                Delivery::SlotsLost => {
                    self.slots_lost = true;
                    self.server.inboxes.delivered(self.number);
                }
            }
        }
    }

    /// Delivers a message to the clients of an audience that had subscribed when it was published.
    fn deliver_to(
        &mut self,
        number: u64,
        message: &Publication,
        audience: Audience<'_>,
        connections: impl Iterator<Item = (usize, u64)>,
    ) {
        let mut encoded = Encoded::default();
        for (token, stamp) in connections {
            let Some(connection) = self.connections.get(token) else { continue };
            let client = &connection.client;
            if connection.heard_to > number || stamp >= message.horizon {
                continue;
            }
            if client.fate != Fate::Open || client.info.is_doomed() {
                continue;
            }
            if audience == Audience::Monitors && client.reply_mode == ReplyMode::Off {
                continue;
            }
            let version = client.version;
            self.push(token, version, &mut encoded, |out| message.write(audience, version, out));
        }
    }

    /// Sends a request to the source of a slot import.
    fn deliver_to_source(&mut self, client: &Arc<ClientInfo>, request: &[u8]) {
        let owner = client.worker();
        if owner != self.number {
            return self.forward(owner, Delivery::ToSource(client.clone(), request.to_vec()));
        }
        let token = client.token.load(Ordering::Relaxed);
        let is_open = |connection: &Connection| {
            connection.client.info.id == client.id && connection.client.fate == Fate::Open && !client.is_doomed()
        };
        if self.connections.get(token).is_some_and(is_open) {
            let version = Version::Resp2;
            self.push(token, version, &mut Encoded::default(), |out| out.extend_from_slice(request));
        }
    }

    /// Delivers a message to an existing connection. It is encoded unless `encoded` has it for this
    /// protocol.
    pub(super) fn push(
        &mut self,
        token: usize,
        version: Version,
        encoded: &mut Encoded,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let Range { start, end } = encoded.0[usize::from(version == Version::Resp3)]
            .get_or_insert_with(|| {
                let start = self.replies.position();
                write(&mut self.replies.bytes);
                start..self.replies.position()
            })
            .clone();
        let connection = &mut self.connections[token];
        if connection.reached_in != self.writes {
            connection.reached_in = self.writes;
            self.reached += 1;
        } else if let Some(last) = self.runs.get_mut(connection.last_run as usize)
            && (last.token, last.end) == (token, start)
        {
            // Messages of a wave to the same connections are adjacent.
            last.end = end;
            return;
        }
        connection.last_run = self.runs.len() as u32;
        self.runs.push(Run { token, start, end });
    }

    /// Whether a connection must wait because it publishes more than can be delivered; it is resumed once deliveries
    /// have caught up.
    #[inline]
    pub(super) fn throttles(&mut self, token: usize) -> bool {
        self.server.inboxes.is_congested() && self.throttle(token)
    }

    #[cold]
    fn throttle(&mut self, token: usize) -> bool {
        let last = self.connections.get(token).and_then(|c| self.server.catalogue.get(c.client.last_command));
        let publishes = self.server.admission.has(Reasons::MONITORED)
            || last.is_some_and(|last| last.spec.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE));
        if publishes {
            self.throttled.push(token);
        }
        publishes
    }

    /// Resumes throttled connections once deliveries have caught up.
    pub(super) fn release_throttled(&mut self) {
        if !self.throttled.is_empty() && !self.server.inboxes.is_congested() {
            for token in std::mem::take(&mut self.throttled) {
                self.queue(token);
            }
        }
    }
}
