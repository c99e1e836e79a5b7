//! Running what may run a script, and attending to others while that takes too long.
//!
//! A script occupies its worker. When it has taken longer than `busy-reply-threshold`, the worker does a turn of its
//! loop now and then, from within the script: it reads, answers that the server is busy or what is allowed meanwhile,
//! and writes. For that the request is executed apart from the worker: its client and its engine are taken out of their
//! places, and an understudy stands in for the engine, which takes no lock that it would have to wait for.
//!
//! **What always holds**: the connection whose request runs, and those whose input the batch holds, are away meanwhile:
//! they are neither read nor closed. The batch's other requests are put off before the first such turn, and its replies
//! are written, so that every connection is answered in order.

use super::Worker;
use super::batch::{Batch, Request};
use super::connection::Connection;
use super::engine::{Engine, Outcome};
use super::input::{SHARED, defer};
use super::output::Run;
use super::permission::Admitted;
use super::readiness::Events;
use super::script_call::Yield;
use crate::session::Client;
use kvick_resp::Args;
use std::time::Duration;

/// What a batch has left to execute behind the present request.
#[derive(Clone, Copy)]
pub(super) struct Rest<'b> {
    /// The requests.
    pub requests: &'b [Request],
    /// The batch that they belong to.
    pub batch: &'b Batch,
    /// Its input.
    pub shared: &'b [u8],
}

/// What became of a request that may have run a script.
pub(super) struct Ran {
    /// The outcome.
    pub outcome: Outcome,
    /// Bytes of its reply.
    pub reply_bytes: usize,
    /// Whether the rest of the batch was put off.
    pub put_off: bool,
}

/// A worker while a request of one of its connections is executed apart from it.
struct YieldingWorker<'w, 'b> {
    worker: &'w mut Worker,
    /// The connection whose request it is.
    token: usize,
    /// What is to be put off before others are attended to; `None` once it was.
    rest: Option<Rest<'b>>,
    events: Option<Events>,
}

/// Events taken from the poll in a turn within a script.
const EVENTS: usize = 128;

impl Yield for YieldingWorker<'_, '_> {
    fn yield_now(&mut self) {
        self.put_off_rest();
        let events = self.events.get_or_insert_with(|| Events::with_capacity(EVENTS));
        if events.wait(&self.worker.poll, Duration::ZERO).is_ok() {
            self.worker.turn(events);
        }
    }

    fn connection(&mut self) -> Option<&mut Connection> {
        self.put_off_rest();
        self.worker.connections.get_mut(self.token)
    }
}

impl YieldingWorker<'_, '_> {
    fn put_off_rest(&mut self) {
        if let Some(rest) = self.rest.take() {
            self.worker.put_off(rest);
        }
    }
}

impl Worker {
    /// Executes a request that may run a script, whose reply stands at the end of the worker's replies afterwards.
    pub(super) fn run_apart(
        &mut self,
        token: usize,
        script_call: (Admitted, u32),
        args: Args<'_>,
        rest: Rest<'_>,
    ) -> Option<Ran> {
        let connection = self.connections.get_mut(token)?;
        let stand_in = Client::stand_in(connection.client.info.clone(), connection.client.identity.clone());
        let mut client = std::mem::replace(&mut connection.client, stand_in);
        connection.away = true;
        let mut engine = std::mem::replace(&mut self.engine, self.standby_engine.take()?);
        // The understudy is a visitor, who could not wait for this engine to be alone no more.
        engine.yield_bias();
        let bias_owner = engine.bias_owner.take();
        let mut out = std::mem::take(&mut self.replies_apart);
        let mut attendance = YieldingWorker { worker: self, token, rest: Some(rest), events: None };
        let outcome = engine.execute_script_call(&mut client, script_call, args, &mut attendance, &mut out);
        let put_off = attendance.rest.is_none();
        engine.bias_owner = bias_owner;
        self.standby_engine = Some(std::mem::replace(&mut self.engine, engine));
        if let Some(connection) = self.connections.get_mut(token) {
            connection.client = client;
            connection.away = false;
        }
        if put_off {
            self.come_back(token, rest.batch);
        }
        self.replies.extend_from_slice(&out);
        let reply_bytes = out.len();
        out.clear();
        out.shrink_to(SHARED);
        self.replies_apart = out;
        Some(Ran { outcome, reply_bytes, put_off })
    }

    /// Puts off the rest of a batch, and sends the replies that there are, so that others can be attended to.
    fn put_off(&mut self, rest: Rest<'_>) {
        for (token, _, _) in &rest.batch.held {
            if let Some(connection) = self.connections.get_mut(*token) {
                connection.away = true;
            }
        }
        for run in rest.requests.chunk_by(|one, next| one.connection == next.connection) {
            let token = run[0].connection;
            if let Some(connection) = self.connections.get_mut(token) {
                defer(connection, run, rest.batch, rest.shared);
                self.queue(token);
            }
        }
        self.shared = vec![0; SHARED];
        self.shared_used = 0;
        self.write_replies();
    }

    /// Has connections that were away come back, and does what had to wait until locks could be taken again.
    fn come_back(&mut self, token: usize, batch: &Batch) {
        self.write_replies();
        for token in batch.held.iter().map(|(token, _, _)| *token).chain([token]) {
            if let Some(connection) = self.connections.get_mut(token) {
                connection.away = false;
                connection.queued = false;
                self.queue(token);
            }
        }
        self.settle_for_standby();
        self.close_postponed();
    }

    /// Deals with what the understudy's commands did to others, for which it could take no locks.
    fn settle_for_standby(&mut self) {
        let Some(standby_engine) = &mut self.standby_engine else { return };
        // Who wants the world must not wait for the one while the other waits for that.
        self.engine.leave();
        standby_engine.within_batch(Engine::settle_consequences);
        while !self.engine.enter() {}
    }

    /// Whether a connection cannot be closed now, since that takes locks that a script may have, or since its request
    /// is being executed. It is closed later.
    pub(super) fn postpones_closing(&mut self, token: usize) -> bool {
        let Some(connection) = self.connections.get_mut(token) else { return false };
        let takes_locks = connection.waiter.is_some() || connection.client.watching.is_some();
        let postponed = connection.away || (takes_locks && self.engine.is_busy());
        if postponed {
            connection.client.info.doomed.store(true, std::sync::atomic::Ordering::SeqCst);
            self.postponed.push(token);
        }
        postponed
    }

    /// Closes the connections whose closing was postponed.
    pub(super) fn close_postponed(&mut self) {
        for token in std::mem::take(&mut self.postponed) {
            if self.connections.get(token).is_some_and(Self::is_doomed) {
                self.close(token);
            }
        }
    }

    /// The run of a connection's replies from `start` on, if there are any.
    pub(super) fn push_run(&mut self, token: usize, start: usize) {
        let end = self.replies.len();
        if start < end {
            self.runs.push(Run { token, start, end });
        }
    }

    /// An engine that stands in while the worker's own runs a script.
    pub(super) fn standby_engine(engine: &Engine) -> std::io::Result<Box<Engine>> {
        let participant = engine.server.keyspace.global_lock.join();
        let participant = participant.ok_or_else(|| std::io::Error::other("too many workers"))?;
        Ok(Box::new(Engine::new(engine.server, engine.executor, engine.stats.clone(), participant)))
    }
}
