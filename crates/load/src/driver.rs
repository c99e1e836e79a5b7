//! The loop of one thread: sends requests when they are due, and measures their replies.
//!
//! A turn admits the arrivals that are due, writes the output of each connection once, waits for events or the next
//! turn, and reads replies. Nothing on this path takes a lock or blocks.
//!
//! The arrivals of a turn get the connection that has had room for the longest time, up to its pipeline, then the next
//! one. If all connections of its server have their pipelines full, an arrival waits in a queue with its intended time;
//! if the queue is full as well, it is dropped and counted. So a slow server never slows the schedule down, and no wait
//! is hidden.
//!
//! Waking up costs more than a request. So an open loop sleeps until the next turn, if that is near and the kernel
//! notes when replies arrive ([`crate::stamps`]), and then reads all replies of the turn: their times are not those of
//! the reads. It watches its sockets instead while the next arrival is further away than a turn, and whenever a late
//! read could matter to the server or the schedule: while requests wait for a connection, after large requests and
//! replies, and at the end.

mod events;
mod routes;

use crate::config::Config;
use crate::connection::{Connection, InFlight, State};
use crate::metrics::Interval;
use crate::schedule::Arrivals;
use crate::source::{Outcome, Source};
use crate::topology::SlotMap;
use crate::transport::TlsSettings;
use crate::workload::Plan;
use mio::Poll;
use routes::Routes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

/// Arrivals that one turn admits, so that replies are read between.
const ARRIVALS_PER_TURN: usize = 1024;
/// Bytes that one read takes.
const READ_BUFFER: usize = 256 << 10;
/// Events of one turn.
const EVENTS: usize = 1024;
/// Time between two attempts to connect.
const RETRY_NS: u64 = 100_000_000;
/// How long sockets are watched after a large request or reply.
const WATCH_NS: u64 = 1_000_000_000;
/// A read of as many bytes belongs to a large reply: the sender may wait until it is read.
const LARGE_READ: usize = 16 << 10;
/// Time between two looks at timeouts and closed connections.
const HOUSEKEEPING_NS: u64 = 50_000_000;
/// Redirections of one request.
const REDIRECTS_MAX: u8 = 8;

/// When requests are sent.
pub enum Pace {
    /// By a schedule.
    Open(Box<Arrivals>),
    /// As fast as replies come, up to a number of requests.
    Closed {
        /// The number.
        requests_max: u64,
    },
}

/// The clock of a run, which all threads share.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// A clock that shows 0 at `start`, and until then.
    pub fn starting_at(start: Instant) -> Clock {
        Clock(start)
    }

    /// Waits for the start. Times before it would all be 0.
    fn wait_for_start(self) {
        std::thread::sleep(self.0.saturating_duration_since(Instant::now()));
    }

    /// Nanoseconds since the start.
    #[inline]
    pub fn now_ns(self) -> u64 {
        Instant::now().saturating_duration_since(self.0).as_nanos() as u64
    }
}

/// What a thread has to do.
pub struct Job {
    /// The settings.
    pub config: Arc<Config>,
    /// The number of connections to each endpoint.
    pub connections: usize,
    /// Encryption.
    pub tls: Option<TlsSettings>,
    /// The slots, in a cluster.
    pub slots: SlotMap,
    /// The requests.
    pub source: Source,
    /// Their times.
    pub pace: Pace,
    /// When the measurement begins.
    pub warmup_ns: u64,
    /// When sending ends.
    pub stop_ns: u64,
    /// Ends the run early.
    pub stop: Arc<AtomicBool>,
    /// Takes the intervals.
    pub intervals: Sender<Interval>,
    /// Delivers new slot maps. Something is sent to `wanted_slots` to ask for one.
    pub new_slots: Receiver<SlotMap>,
    /// See [`Self::new_slots`].
    pub wanted_slots: Sender<()>,
}

/// How a request comes to its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    /// In the turn in which it arrived.
    AtOnce,
    /// After it waited for a connection with room.
    AfterWaiting,
    /// Once more, because the first server does not serve its slot.
    Redirected {
        /// After ASKING.
        is_asking: bool,
    },
}

/// A server with its connections.
struct Target {
    endpoint: String,
    is_replica: bool,
    connections: Vec<usize>,
    /// Connections with room, those first that have had it for the longest time.
    listed: VecDeque<usize>,
    /// Requests that wait for one.
    waiting: VecDeque<Plan>,
    /// Whether it has no slots any more. Its lost connections stay closed unless a request waits.
    has_left: bool,
}

/// The loop of one thread.
pub struct Driver {
    job: Job,
    clock: Clock,
    poll: Poll,
    connections: Vec<Connection>,
    targets: Vec<Target>,
    routes: Routes,
    dirty: Vec<usize>,
    buffer: Vec<u8>,
    interval: Interval,
    interval_ns: u64,
    names: Vec<String>,
    /// Requests admitted and neither answered nor failed, waiting ones included.
    admitted: usize,
    waiting: usize,
    started: u64,
    ready_connections: usize,
    /// When arrivals of an open loop are admitted again.
    next_admission_ns: u64,
    next_housekeeping_ns: u64,
    granularity_ns: u64,
    /// Whether replies may be read late, since the kernel notes when they arrive.
    has_stamps: bool,
    /// Until when sockets are watched although that is so.
    watched_until_ns: u64,
    /// The time since the epoch at which the clock showed 0.
    epoch: Duration,
}

impl Driver {
    /// Prepares the loop. Connections are opened by [`Self::connect`].
    pub fn new(job: Job) -> io::Result<Driver> {
        let names = job.source.names();
        let interval_ns = job.config.general.interval * 1_000_000_000;
        let granularity_ns = job.config.client.send_granularity.ns();
        let mut driver = Driver {
            clock: Clock::starting_at(Instant::now()),
            poll: Poll::new()?,
            connections: Vec::new(),
            targets: Vec::new(),
            routes: Routes::new(&job.config.target),
            dirty: Vec::new(),
            buffer: vec![0; READ_BUFFER],
            interval: Interval::new(0, &names),
            interval_ns,
            names,
            admitted: 0,
            waiting: 0,
            started: 0,
            ready_connections: 0,
            next_admission_ns: 0,
            next_housekeeping_ns: 0,
            granularity_ns,
            has_stamps: matches!(job.pace, Pace::Open(_)) && granularity_ns > 0,
            watched_until_ns: 0,
            epoch: Duration::ZERO,
            job,
        };
        driver.add_configured_targets()?;
        Ok(driver)
    }

    /// Opens all connections, and waits until they are ready, at most for the configured time.
    pub fn connect(&mut self) -> Result<(), String> {
        let limit = Duration::from_millis(self.job.config.client.connect_timeout);
        let began = Instant::now();
        self.clock = Clock::starting_at(began);
        let mut events = mio::Events::with_capacity(EVENTS);
        while self.ready_connections < self.connections.len() {
            self.housekeeping(self.clock.now_ns());
            self.poll.poll(&mut events, Some(Duration::from_millis(10))).map_err(|error| error.to_string())?;
            self.handle_events(&events);
            self.flush();
            if began.elapsed() > limit {
                let errors: Vec<_> = self.interval.error_texts.keys().cloned().collect();
                return Err(format!(
                    "only {} of {} connections are ready after {} ms{}{}",
                    self.ready_connections,
                    self.connections.len(),
                    limit.as_millis(),
                    if errors.is_empty() { "" } else { ": " },
                    errors.join(", ")
                ));
            }
        }
        self.interval = Interval::new(0, &self.names);
        self.next_housekeeping_ns = 0;
        Ok(())
    }

    /// Runs to the end of the schedule, and returns where its requests came from.
    pub fn run(mut self, clock: Clock) -> io::Result<Source> {
        self.clock = clock;
        clock.wait_for_start();
        let mut events = mio::Events::with_capacity(EVENTS);
        let drain_ns = self.job.config.general.drain.ns();
        loop {
            let mut now = self.clock.now_ns();
            if self.job.stop.load(Ordering::Relaxed) {
                self.job.stop_ns = self.job.stop_ns.min(now);
            }
            let is_over = (now >= self.job.stop_ns && !self.has_arrivals()) || self.has_sent_all();
            if is_over && (self.admitted == 0 || now >= self.job.stop_ns.saturating_add(drain_ns)) {
                break;
            }
            if now >= self.next_housekeeping_ns {
                self.next_housekeeping_ns = now + HOUSEKEEPING_NS;
                self.housekeeping(now);
            }
            self.publish_until(now);
            // Replies that come in between do not make the turns of sending shorter.
            if !is_over && now >= self.next_admission_ns {
                self.admit_due(now);
            }
            self.flush();
            now = self.clock.now_ns();
            let timeout_ns = self.next_turn_ns(is_over).saturating_sub(now);
            let is_watching = is_over || self.waiting > 0 || now < self.watched_until_ns;
            let sleeps = self.has_stamps && !is_watching && timeout_ns <= self.granularity_ns;
            if self.wait(&mut events, timeout_ns, sleeps)? {
                self.handle_events(&events);
            }
        }
        self.finish();
        Ok(self.job.source)
    }

    /// Whether arrivals are left that were due before the end. A thread that wakes up behind it still admits them.
    fn has_arrivals(&mut self) -> bool {
        let Pace::Open(arrivals) = &mut self.job.pace else { return false };
        arrivals.peek().is_some_and(|next| next < self.job.stop_ns)
    }

    fn has_sent_all(&self) -> bool {
        matches!(self.job.pace, Pace::Closed { requests_max } if self.started >= requests_max)
    }

    /// When there is something to do without an event.
    fn next_turn_ns(&mut self, is_over: bool) -> u64 {
        let next = match &mut self.job.pace {
            Pace::Open(arrivals) if !is_over => {
                let next = arrivals.peek().unwrap_or(u64::MAX).min(self.job.stop_ns);
                next.max(self.next_admission_ns)
            }
            _ => u64::MAX,
        };
        next.min(self.next_housekeeping_ns)
    }

    /// Waits for events, or, if it sleeps, until the timeout. False if there are no events.
    fn wait(&mut self, events: &mut mio::Events, timeout_ns: u64, sleeps: bool) -> io::Result<bool> {
        if sleeps {
            std::thread::sleep(Duration::from_nanos(timeout_ns));
        } else if timeout_ns > 0 {
            // The poll itself rounds up to milliseconds, which is too coarse for a schedule.
            let timeout =
                Timespec { tv_sec: (timeout_ns / 1_000_000_000) as i64, tv_nsec: (timeout_ns % 1_000_000_000) as _ };
            match poll(&mut [PollFd::new(&self.poll.registry(), PollFlags::IN)], Some(&timeout)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(false),
                Ok(_) => {}
                Err(error) => return Err(error.into()),
            }
        }
        match self.poll.poll(events, Some(Duration::ZERO)) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn admit_due(&mut self, now: u64) {
        for _ in 0..ARRIVALS_PER_TURN {
            let intended = match &mut self.job.pace {
                Pace::Open(arrivals) => {
                    let Some(intended) = arrivals.peek().filter(|next| *next <= now && *next < self.job.stop_ns) else {
                        return;
                    };
                    arrivals.step();
                    self.next_admission_ns = now.saturating_add(self.granularity_ns);
                    intended
                }
                Pace::Closed { requests_max } => {
                    let slots = self.ready_connections * self.job.config.client.pipeline;
                    if self.admitted >= slots || self.started >= *requests_max {
                        return;
                    }
                    now
                }
            };
            self.started += 1;
            let is_measured = intended >= self.job.warmup_ns;
            self.interval.counters.scheduled += u64::from(is_measured);
            match self.job.source.plan(intended) {
                Some(plan) => self.admit(plan, now),
                None => self.interval.counters.dropped += u64::from(is_measured),
            }
        }
        // More are due.
        self.next_admission_ns = now;
    }

    /// Sends a request, or lets it wait.
    fn admit(&mut self, plan: Plan, now: u64) {
        self.admitted += 1;
        let target = self.route(&plan);
        if self.targets[target].waiting.is_empty()
            && let Some(connection) = self.next_listed(target)
        {
            self.send(connection, plan, now, Sending::AtOnce);
        } else if self.waiting < self.job.config.client.queue {
            self.waiting += 1;
            if self.is_measured(&plan) {
                self.interval.own_delay.record(now.saturating_sub(plan.intended_ns));
            }
            self.targets[target].waiting.push_back(plan);
        } else {
            self.admitted -= 1;
            self.interval.counters.dropped += u64::from(self.is_measured(&plan));
            self.job.source.end(&plan, Outcome::NotSent);
        }
    }

    #[inline]
    fn is_measured(&self, plan: &Plan) -> bool {
        plan.intended_ns >= self.job.warmup_ns
    }

    /// Takes a connection with room from the list of its target.
    #[inline]
    fn next_listed(&mut self, target: usize) -> Option<usize> {
        let connection = self.targets[target].listed.pop_front()?;
        self.connections[connection].is_listed = false;
        Some(connection)
    }

    /// Lists a connection if it has room.
    #[inline]
    fn list(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.state == State::Ready
            && !connection.is_listed
            && connection.in_flight.len() < self.job.config.client.pipeline
        {
            connection.is_listed = true;
            self.targets[connection.target].listed.push_back(index);
        }
    }

    /// Appends a request to the output of a connection.
    fn send(&mut self, index: usize, plan: Plan, now: u64, sending: Sending) {
        let connection = &mut self.connections[index];
        let is_asking = sending == Sending::Redirected { is_asking: true };
        if is_asking {
            connection.output().extend_from_slice(b"*1\r\n$6\r\nASKING\r\n");
        }
        self.job.source.write(&plan, index, connection.output());
        connection.in_flight.push_back(InFlight {
            plan,
            sent_ns: now,
            has_waited: sending != Sending::AtOnce,
            replies_left: self.job.source.replies(plan.kind) + u16::from(is_asking),
            is_error: false,
            is_miss: false,
            redirected_to: None,
        });
        connection.unwritten += 1;
        self.mark_dirty(index);
        if plan.redirects == 0 && self.is_measured(&plan) {
            self.interval.counters.sent += 1;
        }
        // The requests of a turn share connections, so that they share system calls as well.
        let connection = &mut self.connections[index];
        if !connection.is_listed && connection.in_flight.len() < self.job.config.client.pipeline {
            connection.is_listed = true;
            self.targets[connection.target].listed.push_front(index);
        }
    }

    /// Gives waiting requests to connections that have room.
    fn serve_waiting(&mut self, target: usize, now: u64) {
        while !self.targets[target].waiting.is_empty()
            && let Some(connection) = self.next_listed(target)
            && let Some(plan) = self.targets[target].waiting.pop_front()
        {
            self.waiting -= 1;
            self.send(connection, plan, now, Sending::AfterWaiting);
        }
    }

    /// Lets [`Self::flush`] write the output of a connection.
    fn mark_dirty(&mut self, index: usize) {
        if !std::mem::replace(&mut self.connections[index].is_dirty, true) {
            self.dirty.push(index);
        }
    }

    /// Writes the output of all connections that have some.
    fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for index in dirty.drain(..) {
            let now = self.clock.now_ns();
            let connection = &mut self.connections[index];
            connection.is_dirty = false;
            let unwritten = std::mem::take(&mut connection.unwritten);
            for request in connection.in_flight.iter_mut().rev().take(unwritten) {
                request.sent_ns = now;
                let plan = &request.plan;
                if plan.redirects == 0 && plan.intended_ns >= self.job.warmup_ns {
                    let delay = now.saturating_sub(plan.intended_ns);
                    self.interval.send_delay.record(delay);
                    if !request.has_waited {
                        self.interval.own_delay.record(delay);
                    }
                }
            }
            // The next turn begins with another connection.
            let listed = &mut self.targets[self.connections[index].target].listed;
            if listed.front() == Some(&index) {
                listed.rotate_left(1);
            }
            match self.connections[index].flush() {
                Err(error) => self.close(index, &error.to_string()),
                // The server must read before it can take the rest.
                Ok(()) if self.connections[index].has_output() => self.watched_until_ns = now + WATCH_NS,
                Ok(()) => {}
            }
        }
        // Keeps the allocation.
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
    }

    /// Hands over the intervals that have ended.
    fn publish_until(&mut self, now: u64) {
        let Some(measured) = now.checked_sub(self.job.warmup_ns) else { return };
        let last = self.job.config.general.duration - 1;
        let index = (measured / self.interval_ns).min(last);
        if index > self.interval.index {
            let interval = std::mem::replace(&mut self.interval, Interval::new(index, &self.names));
            // The run has been given up if nobody listens.
            let _ = self.job.intervals.send(interval);
        }
    }

    /// Counts what is left, and hands over the last interval.
    fn finish(&mut self) {
        let warmup_ns = self.job.warmup_ns;
        let measured = |plan: &Plan| plan.intended_ns >= warmup_ns;
        for target in &mut self.targets {
            for plan in target.waiting.drain(..) {
                // A redirected request has been sent before.
                let counters = &mut self.interval.counters;
                let count = if plan.redirects == 0 { &mut counters.unsent } else { &mut counters.unanswered };
                *count += u64::from(measured(&plan));
                let outcome = if plan.redirects == 0 { Outcome::NotSent } else { Outcome::Refused };
                self.job.source.end(&plan, outcome);
            }
        }
        for connection in &mut self.connections {
            for request in connection.in_flight.drain(..) {
                self.interval.counters.unanswered += u64::from(measured(&request.plan));
                self.job.source.end(&request.plan, Outcome::Unknown);
            }
        }
        let interval = std::mem::replace(&mut self.interval, Interval::new(0, &self.names));
        let _ = self.job.intervals.send(interval);
    }
}
