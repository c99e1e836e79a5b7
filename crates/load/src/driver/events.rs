//! What the sockets of a [`Driver`] report: connections, replies and ends.

use super::{Driver, HOUSEKEEPING_NS, LARGE_READ, REDIRECTS_MAX, RETRY_NS, Sending, WATCH_NS};
use crate::connection::{InFlight, Received, State};
use crate::reply::Kind;
use crate::source::Outcome;
use crate::topology::Redirect;
use crate::transport::Address;
use crate::workload::Plan;
use std::time::{Duration, SystemTime};

impl Driver {
    pub(super) fn handle_events(&mut self, events: &mio::Events) {
        if self.has_stamps {
            // Read anew each time, since the system's time may be set.
            let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.epoch = since_epoch.saturating_sub(Duration::from_nanos(self.clock.now_ns()));
        }
        for event in events {
            let index = event.token().0;
            if event.is_writable() {
                self.handle_writable(index);
            }
            if event.is_readable() || event.is_error() || event.is_read_closed() {
                self.handle_readable(index);
            }
        }
    }

    fn handle_writable(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        let was_ready = connection.state == State::Ready;
        let is_replica = self.targets[connection.target].is_replica;
        match connection.writable(&self.job.config.client, is_replica) {
            Ok(()) => {
                if !was_ready && self.connections[index].state == State::Ready {
                    self.become_ready(index);
                }
                if self.connections[index].has_output() {
                    self.mark_dirty(index);
                }
            }
            Err(error) => self.close(index, &error.to_string()),
        }
    }

    fn become_ready(&mut self, index: usize) {
        self.connections[index].state = State::Ready;
        self.ready_connections += 1;
        self.list(index);
        self.serve_waiting(self.connections[index].target, self.clock.now_ns());
    }

    fn handle_readable(&mut self, index: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        loop {
            match self.connections[index].read(&mut buffer) {
                Ok(Received { count: 0, .. }) => break,
                Ok(received) => {
                    let now = self.clock.now_ns();
                    // Never later than now; before a request was sent is ruled out when it is completed.
                    let stamp = received.arrived.filter(|_| self.has_stamps);
                    let arrived = stamp.map(|time| time.saturating_sub(self.epoch).as_nanos() as u64);
                    let arrived = arrived.map_or(now, |arrived| arrived.min(now));
                    if let Err(error) = self.handle_bytes(index, &buffer[..received.count], arrived, now) {
                        self.close(index, &error);
                        break;
                    }
                    if received.count >= LARGE_READ {
                        self.watched_until_ns = now + WATCH_NS;
                    }
                    if !received.may_have_more {
                        break;
                    }
                }
                Err(error) => {
                    self.close(index, &error.to_string());
                    break;
                }
            }
        }
        self.buffer = buffer;
    }

    /// Takes the replies from bytes that arrived at a time before now.
    fn handle_bytes(&mut self, index: usize, mut input: &[u8], arrived: u64, now: u64) -> Result<(), String> {
        loop {
            let connection = &mut self.connections[index];
            match connection.next_reply(&mut input) {
                Ok(None) => break,
                Ok(Some(Kind::Push)) => {}
                Ok(Some(kind)) => self.handle_reply(index, kind, arrived)?,
                Err(error) => return Err(error.to_string()),
            }
        }
        self.list(index);
        self.serve_waiting(self.connections[index].target, now);
        // A closed loop sends the next requests in the next turn.
        Ok(())
    }

    fn handle_reply(&mut self, index: usize, kind: Kind, arrived: u64) -> Result<(), String> {
        let connection = &mut self.connections[index];
        if let State::Preparing { replies_left } = connection.state {
            if kind == Kind::Error {
                return Err(String::from_utf8_lossy(connection.reader.error()).into_owned());
            }
            connection.state = State::Preparing { replies_left: replies_left - 1 };
            if replies_left == 1 {
                self.become_ready(index);
            }
            return Ok(());
        }
        let Some(request) = connection.in_flight.front_mut() else {
            return Err("a reply without a request".to_owned());
        };
        request.replies_left -= 1;
        let is_last = request.replies_left == 0;
        if kind == Kind::Error {
            self.note_error_reply(index);
        } else if is_last && matches!(kind, Kind::Null | Kind::Empty) {
            request.is_miss = true;
        }
        if is_last {
            let connection = &mut self.connections[index];
            let Some(request) = connection.in_flight.pop_front() else { return Ok(()) };
            if connection.reader.is_capturing() && kind == Kind::Aggregate {
                self.job.source.take_reply(&request.plan, connection.reader.captured());
            }
            self.complete(request, arrived);
        }
        Ok(())
    }

    /// Finds out whether an error is a redirection.
    fn note_error_reply(&mut self, index: usize) {
        let target = self.connections[index].target;
        let reader = &self.connections[index].reader;
        let redirect = Redirect::parse(reader.error(), &self.targets[target].endpoint);
        let word = reader.error().split(|byte| *byte == b' ').next().unwrap_or_default();
        let word = String::from_utf8_lossy(word).into_owned();
        let Some(request) = self.connections[index].in_flight.front() else { return };
        let (plan, known) = (request.plan, request.redirected_to);
        let redirected_to = match redirect {
            Some(redirect) if plan.redirects < REDIRECTS_MAX && self.routes.is_cluster() => {
                let to = self.target_of(&redirect.address);
                if !redirect.is_ask {
                    self.routes.set_owner(redirect.slot, to);
                    self.targets[to].has_left = false;
                    self.want_slots();
                }
                Some((to as u32, redirect.is_ask))
            }
            // EXEC reports that a command within was redirected.
            _ if known.is_some() => known,
            _ => {
                if self.is_measured(&plan) {
                    self.interval.note_error(&word, 1);
                }
                None
            }
        };
        if let Some(request) = self.connections[index].in_flight.front_mut() {
            request.redirected_to = redirected_to;
            request.is_error |= redirected_to.is_none();
        }
    }

    /// Records an answered request, or sends it again elsewhere.
    fn complete(&mut self, request: InFlight, arrived: u64) {
        if let Some((target, is_ask)) = request.redirected_to {
            let plan = Plan { redirects: request.plan.redirects + 1, ..request.plan };
            self.interval.counters.redirects += 1;
            let target = target as usize;
            // A redirected request may exceed the pipeline of its connection, so that ASKING stays with it.
            let ready = |index: &usize| self.connections[*index].state == State::Ready;
            let any = || self.targets[target].connections.iter().copied().find(ready);
            let listed = self.targets[target].listed.front().copied();
            match listed.or_else(any) {
                Some(connection) => {
                    let sending = Sending::Redirected { is_asking: is_ask };
                    self.send(connection, plan, self.clock.now_ns(), sending);
                }
                None => {
                    self.waiting += 1;
                    self.targets[target].waiting.push_back(plan);
                }
            }
            return;
        }
        self.admitted -= 1;
        let plan = &request.plan;
        if self.is_measured(plan) {
            self.interval.counters.answered += 1;
            self.interval.counters.errors += u64::from(request.is_error);
            let stats = &mut self.interval.commands[plan.kind as usize];
            stats.errors += u64::from(request.is_error);
            stats.misses += u64::from(request.is_miss);
            let arrived = arrived.max(request.sent_ns);
            stats.response.record(arrived.saturating_sub(plan.intended_ns));
            stats.service.record(arrived - request.sent_ns);
        }
        let outcome = if request.is_error { Outcome::Refused } else { Outcome::Acknowledged };
        self.job.source.end(plan, outcome);
    }

    /// Ends a connection, which is opened again a moment later.
    pub(super) fn close(&mut self, index: usize, why: &str) {
        let now = self.clock.now_ns();
        let connection = &mut self.connections[index];
        let was_ready = connection.state == State::Ready;
        self.ready_connections -= usize::from(was_ready);
        let target = connection.target;
        let lost = connection.close(self.poll.registry(), now + RETRY_NS);
        if connection.is_listed {
            connection.is_listed = false;
            self.targets[target].listed.retain(|listed| *listed != index);
        }
        self.interval.note_error(why, 1);
        self.interval.counters.reconnects += u64::from(was_ready);
        for request in lost {
            self.admitted -= 1;
            self.interval.counters.failed += u64::from(self.is_measured(&request.plan));
            self.job.source.end(&request.plan, Outcome::Unknown);
        }
        self.want_slots();
    }

    pub(super) fn want_slots(&self) {
        if self.routes.is_cluster() {
            // Without a listener, the slots are not refreshed any more.
            let _ = self.job.wanted_slots.send(());
        }
    }

    /// Opens connections, closes those that wait too long, and takes new slots.
    pub(super) fn housekeeping(&mut self, now: u64) {
        if let Some(slots) = self.job.new_slots.try_iter().last() {
            self.apply_slots(&slots);
        }
        let connect_limit_ns = self.job.config.client.connect_timeout * 1_000_000;
        let request_limit_ns = self.job.config.client.request_timeout * 1_000_000;
        for index in 0..self.connections.len() {
            match self.connections[index].state {
                State::Closed { retry_ns } if retry_ns <= now + HOUSEKEEPING_NS => {
                    let target = &self.targets[self.connections[index].target];
                    if !target.has_left || !target.waiting.is_empty() {
                        self.open(index, now);
                    }
                }
                State::Connecting { since_ns } if now.saturating_sub(since_ns) > connect_limit_ns => {
                    self.close(index, "connecting takes too long");
                }
                State::Ready => {
                    let oldest = self.connections[index].in_flight.front();
                    if oldest.is_some_and(|oldest| now.saturating_sub(oldest.sent_ns) > request_limit_ns) {
                        self.interval.counters.timeouts += 1;
                        self.close(index, "a reply takes too long");
                    }
                }
                _ => {}
            }
        }
    }

    fn open(&mut self, index: usize, now: u64) {
        let target = &self.targets[self.connections[index].target];
        let opened = Address::resolve(&target.endpoint).and_then(|address| {
            let to = (&address, target.endpoint.as_str(), self.job.tls.as_ref());
            self.connections[index].open(to, (self.poll.registry(), index), self.has_stamps, now)
        });
        // One connection without times suffices for reading all replies at once.
        self.has_stamps &= opened.is_err() || self.connections[index].has_stamps;
        if let Err(error) = opened {
            self.close(index, &error.to_string());
        }
    }
}
