//! Writing published messages to the connections that are subscribed.
//!
//! A message is encoded once for each audience and protocol into the batch's replies, and every connection that hears it gets
//! a [`Run`] that points there. So a push stands between replies of its connection, behind those of commands that were
//! executed before. Messages are delivered in the order of the worker's inbox, and only so many runs are made in one step; the
//! rest waits for the next turn, before anything later.

use super::Worker;
use super::output::Run;
use crate::pubsub::publication::Publication;
use crate::session::Fate;
use kvick_commands::spec::Flags;
use kvick_resp::Version;
use std::collections::VecDeque;
use std::sync::Arc;

/// Connections that a step writes to.
const RUNS_PER_STEP: usize = 2048;
/// Bytes of messages, not counting copies, after which a step ends.
const BYTES_PER_STEP: usize = 1024 * 1024;

/// Messages that are being delivered.
#[derive(Default)]
pub(super) struct Deliveries {
    queue: VecDeque<Arc<Publication>>,
    /// The audience of the first message that comes next.
    audience: usize,
    /// The least stamp in that audience that has not been looked at.
    stamp: u64,
}

impl Deliveries {
    /// Whether there is nothing to deliver but what may be in the inbox.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

impl Worker {
    /// Delivers published messages, as many as a step allows.
    pub(super) fn deliver_published(&mut self) {
        let mut deliveries = std::mem::take(&mut self.deliveries);
        deliveries.queue.extend(self.engine.inbox().take());
        let (runs_max, bytes_max) = (self.runs.len() + RUNS_PER_STEP, self.replies.len() + BYTES_PER_STEP);
        while let Some(message) = deliveries.queue.front() {
            if !self.deliver_one(&message.clone(), &mut deliveries, runs_max) {
                break;
            }
            deliveries.queue.pop_front();
            (deliveries.audience, deliveries.stamp) = (0, 0);
            self.server.pubsub.delivered(self.number);
            if self.replies.len() >= bytes_max {
                break;
            }
        }
        self.deliveries = deliveries;
    }

    /// Goes on delivering the first message; false when the step is over before everybody has it.
    fn deliver_one(&mut self, message: &Publication, deliveries: &mut Deliveries, runs_max: usize) -> bool {
        let subscribers = self.server.pubsub.subscribers(self.number);
        while let Some(audience) = message.audience(deliveries.audience) {
            // What was written for connections of either protocol.
            let mut written = [None, None];
            for (stamp, token) in subscribers.of(audience, deliveries.stamp, message.horizon) {
                if self.runs.len() >= runs_max {
                    deliveries.stamp = stamp;
                    return false;
                }
                let Some(connection) = self.connections.get(token) else { continue };
                let client = &connection.client;
                if client.fate != Fate::Open || client.info.is_doomed() {
                    continue;
                }
                let known = &mut written[usize::from(client.version == Version::Resp3)];
                let (start, end) = *known.get_or_insert_with(|| {
                    let start = self.replies.len();
                    message.write(audience, client.version, &mut self.replies);
                    (start, self.replies.len())
                });
                self.runs.push(Run { token, start, end });
                self.has_pushes = true;
            }
            (deliveries.audience, deliveries.stamp) = (deliveries.audience + 1, 0);
        }
        true
    }

    /// Whether a connection has to wait because it publishes more than can be delivered; then it is told to go on when that
    /// has changed.
    #[inline]
    pub(super) fn holds_back(&mut self, token: usize) -> bool {
        self.server.pubsub.is_congested() && self.hold_back(token)
    }

    #[cold]
    fn hold_back(&mut self, token: usize) -> bool {
        let last = self.connections.get(token).and_then(|held| self.server.table.get(held.client.last_command));
        let publishes = last.is_some_and(|last| last.spec.flags.intersects(Flags::WRITE | Flags::MAY_REPLICATE));
        if publishes {
            self.held_back.push(token);
        }
        publishes
    }

    /// Lets go on who was held back, once there is no reason any more.
    pub(super) fn release_held_back(&mut self) {
        if !self.held_back.is_empty() && !self.server.pubsub.is_congested() {
            for token in std::mem::take(&mut self.held_back) {
                self.queue(token);
            }
        }
    }
}
