//! Runs requests that may run a script, and serves other clients while the script takes long.
//!
//! A script occupies its worker. Once it exceeds `busy-reply-threshold`, the worker periodically runs a turn of its
//! event loop from within the script: it reads requests, executes those that are allowed meanwhile, answers the others
//! with BUSY, and writes replies. To make this possible, the request is executed apart from the worker: its client and
//! its engine are moved out of their places, and a standby engine, which never waits for a lock, replaces the engine.
//!
//! **Invariant**: the connection whose request runs, and those whose input the batch holds, are away meanwhile: they
//! are neither read nor closed. Before the first such turn, the batch's other requests are deferred and its replies are
//! written, so that every connection is answered in order.

use super::Worker;
use super::input::{SHARED, defer};
use super::output::Run;
use super::readiness::Events;
use kvick_core::clients::ClientFlags;
use kvick_engine::batch::{Batch, Request};
use kvick_engine::engine::{AdmittedScriptCall, Engine, Outcome};
use kvick_engine::session::Client;
use kvick_engine::yielding::{DebugConnection, Yield};
use kvick_resp::Args;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The part of a batch behind the current request.
#[derive(Clone, Copy)]
pub(super) struct Rest<'b> {
    /// The remaining requests.
    pub requests: &'b [Request],
    /// The batch that they belong to.
    pub batch: &'b Batch,
    /// Its input.
    pub shared: &'b [u8],
}

/// Result of a request that may have run a script.
pub(super) struct Ran {
    /// Its outcome.
    pub outcome: Outcome,
    /// Bytes of its reply, without shared strings.
    pub reply_bytes: usize,
    /// Whether the rest of the batch was deferred.
    pub is_rest_deferred: bool,
}

/// A worker that serves other clients while one of its requests is executed apart from it.
struct YieldingWorker<'w, 'b> {
    worker: &'w mut Worker,
    /// The connection that sent the request.
    token: usize,
    /// The requests to defer before other clients are served; `None` once they are.
    rest: Option<Rest<'b>>,
    events: Option<Events>,
}

/// Maximum number of events per poll during a script.
const EVENTS: usize = 128;

impl Yield for YieldingWorker<'_, '_> {
    fn yield_now(&mut self) {
        self.defer_rest();
        let events = self.events.get_or_insert_with(|| Events::with_capacity(EVENTS));
        if events.wait(&self.worker.poll, Duration::ZERO).is_ok() {
            self.worker.turn(events);
        }
    }

    fn connection(&mut self) -> Option<&mut dyn DebugConnection> {
        self.defer_rest();
        self.worker.connections.get_mut(self.token).map(|connection| connection as &mut dyn DebugConnection)
    }
}

impl YieldingWorker<'_, '_> {
    fn defer_rest(&mut self) {
        if let Some(rest) = self.rest.take() {
            self.worker.defer_batch(rest);
        }
    }
}

impl Worker {
    /// Executes a request that may run a script. Its reply is appended to the worker's replies.
    pub(super) fn run_apart(
        &mut self,
        token: usize,
        script_call: AdmittedScriptCall,
        args: Args<'_>,
        rest: Rest<'_>,
    ) -> Option<Ran> {
        let connection = self.connections.get_mut(token)?;
        let placeholder = Client::placeholder(connection.client.info.clone(), self.nobody.clone());
        let mut client = std::mem::replace(&mut connection.client, placeholder);
        connection.away = true;
        let mut engine = std::mem::replace(&mut self.engine, self.standby_engine.take()?);
        // The standby engine is a bias revoker and could not wait for this engine to give up exclusive access.
        let bias_owner = engine.suspend_bias();
        let mut out = std::mem::take(&mut self.replies_apart);
        let mut yielding = YieldingWorker { worker: self, token, rest: Some(rest), events: None };
        let outcome = engine.execute_script_call(&mut client, script_call, args, &mut yielding, &mut out);
        let is_rest_deferred = yielding.rest.is_none();
        engine.resume_bias(bias_owner);
        self.standby_engine = Some(std::mem::replace(&mut self.engine, engine));
        if let Some(connection) = self.connections.get_mut(token) {
            connection.client = client;
            connection.away = false;
        }
        if is_rest_deferred {
            self.return_to_service(token, rest.batch);
        }
        let reply_bytes = out.position();
        self.replies.append(&mut out);
        out.bytes.shrink_to(SHARED);
        self.replies_apart = out;
        Some(Ran { outcome, reply_bytes, is_rest_deferred })
    }

    /// Defers the rest of a batch and sends the existing replies, so that other clients can be served.
    fn defer_batch(&mut self, rest: Rest<'_>) {
        for input in &rest.batch.inputs {
            if let Some(connection) = self.connections.get_mut(input.connection) {
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

    /// Returns connections that were away, and does the work that was postponed until locks could be taken again.
    fn return_to_service(&mut self, token: usize, batch: &Batch) {
        self.write_replies();
        for token in batch.inputs.iter().map(|input| input.connection).chain([token]) {
            if let Some(connection) = self.connections.get_mut(token) {
                connection.away = false;
                connection.queued = false;
                self.queue(token);
            }
        }
        self.settle_for_standby();
        self.close_postponed();
    }

    /// Settles the effects that the standby engine's commands had on other clients, for which it could take no locks.
    fn settle_for_standby(&mut self) {
        let Some(standby_engine) = &mut self.standby_engine else { return };
        // A waiter for the global lock must not wait for one engine while the other waits for that waiter.
        self.engine.leave();
        standby_engine.within_batch(Engine::settle_consequences);
        while !self.engine.enter() {}
    }

    /// Whether closing a connection must be postponed, because closing takes locks that a script may hold or because
    /// its request is being executed.
    pub(super) fn postpone_closing(&mut self, token: usize) -> bool {
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

    /// Adds a run of a connection's replies from `start` on, if there are any.
    pub(super) fn push_run(&mut self, token: usize, start: usize) {
        let end = self.replies.position();
        if start < end {
            self.runs.push(Run { token, start, end });
        }
    }

    /// Stops a connection until the script that blocks its next request has ended.
    pub(super) fn block_for_script(&mut self, token: usize) {
        self.engine.blocked_by_script += 1;
        self.server.scripting.blocked_requests.fetch_add(1, Ordering::SeqCst);
        self.paused.push(token);
        self.stop(token, ClientFlags::BLOCKED);
    }

    /// Stops counting retried requests as blocked, so that they no longer delay new scripts.
    pub(super) fn forget_resumed(&mut self) {
        let tried = std::mem::take(&mut self.resumed);
        if tried > 0 {
            self.engine.blocked_by_script -= tried;
            self.server.scripting.blocked_requests.fetch_sub(tried, Ordering::SeqCst);
        }
    }
}
