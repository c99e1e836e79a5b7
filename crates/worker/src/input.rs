//! Reads from sockets and parses requests into a batch.

use super::Worker;
use super::blocking::Stop;
use super::connection::{Connection, Deferred};
use super::forwarding::Sent;
use super::large_arguments::READ_BEHIND_BIG;
use super::long_script::Rest;
use super::output::{RUNS_MAX, Run};
use super::violation;
use kvick_commands::table::{Class, CommandInfo};
use kvick_engine::batch::{Batch, DeclaredKey, DetachedInput, Request, ResolvedCommand, Source};
use kvick_engine::engine::Outcome;
use kvick_engine::script_call;
use kvick_engine::services::Services;
use kvick_engine::session::Fate;
use kvick_net::socket::Socket;
use kvick_resp::format::parse_i64;
use kvick_resp::{Args, BIG_ARG, Limits, OwnedArgs, Parsed, Repeat, SharedBytes};
use kvick_store::global_lock::Exclusive;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;

/// Maximum bytes read from one connection per turn.
const READ: usize = 32 * 1024;
/// Size in bytes of the input buffer shared by connections: the input of one batch.
pub const SHARED: usize = 8 * READ;
/// Requests after which a batch takes no further connection; the last connection may exceed it.
const REQUESTS: usize = 64;
/// Bytes of replies to one connection after which its remaining requests wait for the next turn.
const REPLIES_MAX: usize = 1024 * 1024;
/// Bytes of replies after which they are written before the batch continues with another connection.
const REPLIES_WRITTEN: usize = 256 * 1024;
/// Maximum number of declared script keys that are prefetched.
const DECLARED_MAX: usize = 4;

/// Result of a read.
pub(super) enum Read {
    /// This many bytes arrived, and there may be more.
    More(usize),
    /// This many bytes arrived, and the socket is now empty.
    Drained(usize),
    /// The peer closed the connection, or it broke.
    Ended,
}

/// A request, parsed and as far as possible resolved.
struct ParsedRequest<'a> {
    args: Args<'a>,
    resolved: ResolvedCommand,
}

/// Result of a request executed outside of the fast path.
struct Executed {
    /// Whether all requests behind it were deferred, because a long script served other clients.
    is_rest_deferred: bool,
    /// Why no further requests of its connection may run.
    stop: Option<Stop>,
}

impl Worker {
    /// Serves the connections that were ready at the start of the turn, batch by batch.
    pub(super) fn serve_ready(&mut self) {
        let mut left = self.ready.len();
        if left == 0 {
            return;
        }
        // While a long script holds the global lock, requests are answered without a batch.
        self.engine.enter();
        while left > 0 {
            left -= 1;
            let Some(token) = self.ready.pop_front() else { break };
            self.read_connection(token);
            if (self.is_batch_full() || self.has_large_arguments()) && left > 0 {
                self.execute_batch();
                if !self.server.aof.replies_await_fsync() {
                    // Clients answered now can continue while other connections are served.
                    self.engine.leave();
                    self.write_replies();
                    self.engine.enter();
                }
            }
        }
        // The list may have shrunk: connections closed meanwhile were removed.
        self.execute_batch();
        self.engine.leave();
        self.write_replies();
    }

    /// Whether the batch must be executed before more input is read.
    pub(super) fn is_batch_full(&self) -> bool {
        self.shared.len() - self.shared_used < 2 * READ || self.batch.requests.len() >= REQUESTS
    }

    /// Reads once from a connection and parses its input.
    fn read_connection(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        if connection.away {
            // It is queued again when it returns.
            return;
        }
        connection.queued = false;
        if Self::is_doomed(connection) {
            return self.close(token);
        }
        if std::mem::take(&mut connection.unwritten) {
            self.write_waiting(token);
        }
        let Some(connection) = self.connections.get_mut(token) else { return };
        if connection.stopped {
            if connection.socket.is_handshaking() {
                connection.queued = true;
                return self.handshakes.push(token);
            }
            // The peer has closed, so a reply would have no recipient.
            return if connection.read_closed && !connection.is_held_back() {
                self.close(token)
            };
        }
        if !connection.deferred.is_empty() {
            return self.serve_deferred_behind_batch(token);
        }
        let runtime_config = &self.engine.runtime_config;
        let trusted = !connection.client.must_authenticate(self.server);
        let limits = Limits { authenticated: trusted, ..runtime_config.limits };
        let read = if connection.parser.is_receiving() {
            self.read_big(token, &limits)
        } else if connection.pending.len() <= READ {
            let read = match self.expected_form(token, &limits) {
                Some(form) => self.read_expected(token, form, &limits),
                None => self.read_shared(token, &limits),
            };
            match read {
                Read::More(n) if self.connections[token].sends_big => self.read_behind(n, token, &limits),
                read => read,
            }
        } else {
            self.read_pending(token, &limits)
        };
        self.after_read(token, read, &limits);
    }

    fn after_read(&mut self, token: usize, read: Read, limits: &Limits) {
        let stats = &self.engine.stats;
        let Some(connection) = self.connections.get_mut(token) else { return };
        let (n, more) = match read {
            Read::More(n) => (n, true),
            // Only an empty read shows that nothing is left, not even the end of the stream.
            Read::Drained(n) => (n, connection.read_closed && n > 0),
            Read::Ended
                if (connection.awaiting_fsync > 0 || connection.forwarded.is_some())
                    && connection.client.fate != Fate::Close =>
            {
                // Its requests were executed, and their replies are pending, maybe in this turn's.
                connection.client.fate = Fate::CloseAfterReply;
                let end = self.replies.position();
                return self.runs.push(Run { token, start: end, end });
            }
            Read::Ended => return self.close(token),
        };
        stats.bytes_in.add(n as u64);
        stats.reads.add(1);
        let info = &connection.client.info;
        info.bytes_in.add(n as u64);
        info.active_ms.store(self.engine.now_ms, Ordering::Relaxed);
        let buffered = connection.buffered_input();
        if buffered > 0 || info.input.load(Ordering::Relaxed) > 0 {
            connection.publish_input();
        }
        if limits.query_buffer_exceeded(buffered) {
            stats.input_limit_disconnections.add(1);
            kvick_runtime::logging::warning(format_args!(
                "Closing client that reached max query buffer length: id={} addr={} qbuf={buffered}",
                info.id, info.peer
            ));
            return self.close(token);
        }
        if connection.client.is_slot_import() {
            self.core_sharing.set_importing(true);
            self.memory_ahead.follow();
        }
        if more {
            self.queue(token);
        } else if connection.awaits_short_rest() {
            connection.socket.acknowledge();
        }
        self.account_client(token);
    }

    /// Reads into the shared buffer: the common case. Buffered input of the connection is copied there first.
    fn read_shared(&mut self, token: usize, limits: &Limits) -> Read {
        let connection = &mut self.connections[token];
        let (start, behind) = (self.shared_used, self.shared_used + connection.pending.len());
        // A large argument is best read where it is kept; a record of TLS is decrypted elsewhere in any case.
        let room = if connection.sends_big && !connection.socket.is_tls() { READ_BEHIND_BIG } else { READ };
        let read = match connection.unparsed {
            true => Read::More(0),
            false => {
                let read = connection.socket.read(&mut self.shared[behind..behind + room]);
                outcome(&connection.socket, read, room)
            }
        };
        let (Read::More(n) | Read::Drained(n)) = read else { return read };
        if !connection.pending.is_empty() {
            self.shared[start..behind].copy_from_slice(&connection.pending);
        }
        if self.parse_shared(token, start, behind + n, limits) { Read::More(n) } else { read }
    }

    /// Parses input in the shared buffer. What it leaves is kept in an allocation of its exact size. Returns whether
    /// that must be parsed again.
    #[inline]
    pub(super) fn parse_shared(&mut self, token: usize, start: usize, end: usize, limits: &Limits) -> bool {
        let connection = &mut self.connections[token];
        let input = &self.shared[start..end];
        let exclusive = self.engine.exclusive.as_ref();
        let (server, batch, template) = (self.server, &mut self.batch, &mut self.template);
        let big = batch.big.len();
        let mut parse = Parse { server, template, exclusive, batch, connection, token, limits };
        let parsed = parse.all(Source::Shared(start, end), input);
        let rest = &input[parsed.bytes..];
        let holds_any = !rest.is_empty() || !connection.pending.is_empty();
        if holds_any && (rest.len() != connection.pending.len() || parsed.bytes > 0) {
            connection.pending = rest.to_vec();
        }
        connection.unparsed = parsed.more;
        let has_big = self.batch.big.len() > big;
        connection.sends_big = parsed.big || has_big;
        self.shared_used = end;
        if parsed.requests && (has_big || end - start >= BIG_ARG) {
            self.note_form(token);
        }
        parsed.more
    }

    /// Adds a request whose last argument was received apart from what precedes it, which is in the shared buffer.
    /// `first_span` is where its spans begin.
    pub(super) fn add_apart(
        &mut self,
        token: usize,
        (start, end): (usize, usize),
        first_span: usize,
        value: Vec<u8>,
        limits: &Limits,
    ) {
        self.batch.big.push(SharedBytes::new(value));
        let connection = &mut self.connections[token];
        let exclusive = self.engine.exclusive.as_ref();
        let (server, batch, template) = (self.server, &mut self.batch, &mut self.template);
        let mut parse = Parse { server, template, exclusive, batch, connection, token, limits };
        parse.add(Source::Shared(start, end), &self.shared[start..end], first_span, &mut Last::default());
        self.shared_used = end;
    }

    /// Appends to the buffered beginning of a long request.
    fn read_pending(&mut self, token: usize, limits: &Limits) -> Read {
        let connection = &mut self.connections[token];
        let mut input = std::mem::take(&mut connection.pending);
        Connection::reserve_input(&mut input, READ);
        let room = (input.capacity() - input.len()).min(READ);
        let read = match connection.unparsed {
            true => Read::More(0),
            false => {
                let read = connection.socket.read_append(&mut input, room);
                outcome(&connection.socket, read, room)
            }
        };
        let number = self.batch.inputs.len();
        let exclusive = self.engine.exclusive.as_ref();
        let (server, batch, template) = (self.server, &mut self.batch, &mut self.template);
        let mut parse = Parse { server, template, exclusive, batch, connection, token, limits };
        let parsed = parse.all(Source::Detached(number), &input);
        if parsed.requests {
            self.batch.inputs.push(DetachedInput { connection: token, bytes: input, parsed: parsed.bytes });
        } else {
            input.drain(..parsed.bytes);
            if !input.is_empty() {
                connection.pending = input;
            }
        }
        connection.unparsed = parsed.more;
        match read {
            Read::Drained(n) if parsed.more => Read::More(n),
            read => read,
        }
    }

    /// Executes the batch and returns its detached inputs to their connections.
    fn execute_batch(&mut self) {
        if self.batch.requests.len() == 1 && self.execute_only() {
            return;
        }
        self.execute_whole_batch();
    }

    /// Executes the batch's only request on the fast path if it qualifies, which is common when
    /// clients wait for each reply. It skips grouping and prefetching. Returns whether it did.
    #[inline]
    fn execute_only(&mut self) -> bool {
        let Worker { engine, batch, connections, replies, shared, server, .. } = self;
        let is_plain = batch.requests[0].is_for_fast_path() && batch.inputs.is_empty();
        let token = batch.requests[0].connection;
        if !is_plain || engine.inbox().has_deliveries() || !self.deliveries.is_empty() || server.inboxes.is_congested()
        {
            return false;
        }
        let Some(connection) = connections.get_mut(token).filter(|connection| connection.client.fate == Fate::Open)
        else {
            return false;
        };
        engine.begin_batch();
        let start = replies.position();
        let client = &mut connection.client;
        if engine.take_fast_path(client, &batch.requests, batch, shared, replies.len() + REPLIES_MAX, replies) == 0 {
            return false;
        }
        connection.client.publish();
        batch.clear();
        self.shared_used = 0;
        let start = if self.engine.inbox().has_deliveries() { self.deliver_between(token, start) } else { start };
        self.account_client(token);
        self.runs.push(Run { token, start, end: self.replies.position() });
        self.write_many_replies();
        true
    }

    #[inline(never)]
    fn execute_whole_batch(&mut self) {
        self.engine.begin_batch();
        // Messages published and keys changed before these requests were sent are delivered before their replies.
        if self.engine.inbox().has_deliveries() {
            self.deliver_pending();
        }
        if self.engine.runtime_config.prefetches {
            let keys = self.batch.prefetch(self.server.keyspace, self.engine.exclusive.as_ref());
            if keys > 0 {
                self.engine.stats.prefetched_batches.add(1);
                self.engine.stats.prefetched_keys.add(keys as u64);
            }
        }
        let mut batch = std::mem::take(&mut self.batch);
        let shared = std::mem::take(&mut self.shared);
        let requests = std::mem::take(&mut batch.requests);
        let mut at = 0;
        while at < requests.len() {
            let token = requests[at].connection;
            let count = requests[at..].iter().take_while(|request| request.connection == token).count();
            if self.execute_run(token, &requests[at..], count, &batch, &shared) {
                break;
            }
            at += count;
        }
        self.shared = shared;
        batch.requests = requests;
        for input in batch.inputs.drain(..) {
            if let Some(connection) = self.connections.get_mut(input.connection) {
                connection.keep_input(input.bytes, input.parsed);
            }
        }
        batch.clear();
        self.batch = batch;
        self.shared_used = 0;
    }

    /// Executes the first `count` requests, all of one connection. Returns whether all requests behind the current one
    /// were deferred.
    fn execute_run(&mut self, token: usize, all: &[Request], count: usize, batch: &Batch, shared: &[u8]) -> bool {
        let requests = &all[..count];
        if self.throttles(token) {
            if let Some(connection) = self.connections.get_mut(token) {
                defer(connection, requests, batch, shared);
            }
            return false;
        }
        self.catch_up(token);
        let Some(mut connection) = self.connections.get_mut(token) else { return false };
        let mut start = self.replies.position();
        let (mut next, mut is_rest_deferred) = (0, false);
        while next < requests.len() {
            if requests[next].is_for_fast_path() && connection.client.fate == Fate::Open {
                if connection.client.forwarding.is_some() {
                    next += self.send_plain(token, &requests[next..], batch, shared);
                    let Some(same) = self.connections.get_mut(token) else { return is_rest_deferred };
                    connection = same;
                    if next == requests.len() {
                        break;
                    }
                }
                let replies_max = self.replies.len() - self.replies.len_since(start) + REPLIES_MAX;
                let client = &mut connection.client;
                let left = &requests[next..];
                next += self.engine.take_fast_path(client, left, batch, shared, replies_max, &mut self.replies);
                if self.engine.inbox().has_deliveries() {
                    start = self.deliver_between(token, start);
                    let Some(same) = self.connections.get_mut(token) else { return is_rest_deferred };
                    connection = same;
                }
                if next == requests.len() {
                    break;
                }
            }
            let (number, request) = (next, &requests[next]);
            next += 1;
            if connection.client.fate != Fate::Open || connection.client.info.doomed.load(Ordering::Relaxed) {
                break;
            }
            if self.replies.len_since(start) > REPLIES_MAX || self.runs.len() >= RUNS_MAX {
                defer(connection, &requests[number..], batch, shared);
                self.queue(token);
                break;
            }
            let rest = Rest { requests: &all[next..], batch, shared };
            let parsed = ParsedRequest { args: batch.args(request, shared), resolved: request.resolved };
            let executed = self.execute_one(token, parsed, rest, &mut start);
            is_rest_deferred = executed.is_rest_deferred;
            let Some(same) = self.connections.get_mut(token) else { return is_rest_deferred };
            connection = same;
            if let Some(stop) = executed.stop {
                let is_pending = stop.is_pending();
                let from = if is_pending { number } else { next };
                if is_pending || !is_rest_deferred {
                    defer(connection, &requests[from..], batch, shared);
                }
                self.stop_for(token, stop);
                break;
            }
            if is_rest_deferred {
                break;
            }
        }
        if let Some(connection) = self.connections.get(token) {
            connection.client.publish();
            if connection.client.feed.is_some() {
                self.register_feed(token);
            }
        }
        self.account_client(token);
        self.runs.push(Run { token, start, end: self.replies.position() });
        self.write_many_replies();
        is_rest_deferred
    }

    /// Executes a request of an existing connection, outside of the fast path, and delivers messages behind its reply.
    /// `rest` is what to defer before a long script serves other clients, `start` where the connection's replies begin
    /// that are not assigned to it yet.
    fn execute_one(&mut self, token: usize, request: ParsedRequest<'_>, rest: Rest<'_>, start: &mut usize) -> Executed {
        let ParsedRequest { args, resolved } = request;
        let mut is_rest_deferred = false;
        let stop = loop {
            let Some(connection) = self.connections.get_mut(token) else {
                return Executed { is_rest_deferred, stop: None };
            };
            let awaits_others = connection.awaits_others();
            if awaits_others && connection.forwarded.as_mut().is_some_and(|forwarded| forwarded.must_drain()) {
                break Some(Stop::Others);
            }
            let reply_start = self.replies.position();
            let outcome = self.engine.execute(&mut connection.client, args, resolved, &mut self.replies);
            let outcome = match outcome {
                Outcome::ScriptCall(script_call) => {
                    self.push_run(token, *start);
                    let Some(ran) = self.run_apart(token, script_call, args, rest) else {
                        return Executed { is_rest_deferred, stop: None };
                    };
                    is_rest_deferred = ran.is_rest_deferred;
                    *start = self.replies.position() - ran.reply_bytes;
                    ran.outcome
                }
                outcome => outcome,
            };
            match outcome {
                Outcome::Done if awaits_others || self.has_forwarded(token) => {
                    self.settle_local(token, reply_start, awaits_others);
                    break None;
                }
                Outcome::Done | Outcome::ScriptCall(_) => break None,
                Outcome::Elsewhere(command, destination) => {
                    match self.send_elsewhere(token, command, destination, args) {
                        Sent::Yes => break None,
                        Sent::Alone => break Some(Stop::Lease),
                        Sent::Later => break Some(Stop::Others),
                        Sent::Here => {}
                    }
                }
                Outcome::Again => *start = self.deliver_between(token, *start),
                Outcome::BlockedByScript => break Some(Stop::Script),
                Outcome::Paused => break Some(Stop::Pause),
                Outcome::Waits(waiter) => break Some(Stop::Wait(waiter)),
            }
        };
        if stop.is_none() && self.engine.inbox().has_deliveries() {
            *start = self.deliver_between(token, *start);
        }
        Executed { is_rest_deferred, stop }
    }

    /// Inserts deliveries behind the replies made for a connection from `start` on, the last of which may belong to the
    /// command that caused them. Returns where the next replies begin.
    fn deliver_between(&mut self, token: usize, start: usize) -> usize {
        self.runs.push(Run { token, start, end: self.replies.position() });
        self.deliver_pending();
        self.replies.position()
    }

    /// Writes the batch's replies if they exceed the threshold.
    pub(super) fn write_many_replies(&mut self) {
        self.publish_reply_buffer();
        if self.replies.len() > REPLIES_WRITTEN || self.runs.len() >= RUNS_MAX {
            self.write_replies();
        }
    }

    /// Executes the input read in this turn, then a connection's deferred requests: one of them may run a script,
    /// during which the worker reads again.
    fn serve_deferred_behind_batch(&mut self, token: usize) {
        if !self.batch.is_empty() {
            self.execute_batch();
        }
        // It may have been closed or stopped meanwhile; if it is resumed, it will be served then.
        if self.connections.get(token).is_some_and(|connection| !connection.away && !connection.stopped) {
            self.serve_deferred(token);
        }
    }

    /// Executes deferred requests, up to a turn's limit.
    fn serve_deferred(&mut self, token: usize) {
        if self.throttles(token) {
            return;
        }
        self.catch_up(token);
        let mut start = self.replies.position();
        let mut stop = None;
        self.engine.begin_batch();
        let nothing = Batch::default();
        while let Some(connection) = self.connections.get_mut(token)
            && let Some(deferred) = connection.deferred.pop_front()
        {
            let (args, resolved) = match &deferred {
                Deferred::Request(owned) => (owned.args(), ResolvedCommand::Unresolved),
                Deferred::Broken(error) => (Args::new(&[], &[], &[]), ResolvedCommand::Broken(*error)),
            };
            let rest = Rest { requests: &[], batch: &nothing, shared: &[] };
            let executed = self.execute_one(token, ParsedRequest { args, resolved }, rest, &mut start);
            stop = executed.stop;
            let Some(connection) = self.connections.get_mut(token) else { return };
            if let Some(stop) = &stop {
                if stop.is_pending() {
                    connection.deferred.push_front(deferred);
                }
                break;
            }
            let is_much = self.replies.len_since(start) > REPLIES_MAX || self.runs.len() >= RUNS_MAX;
            if connection.client.fate != Fate::Open || is_much {
                break;
            }
        }
        let Some(connection) = self.connections.get_mut(token) else { return };
        if connection.deferred.is_empty() {
            connection.deferred = VecDeque::new();
        }
        connection.client.publish();
        let becomes_replica = connection.client.feed.is_some();
        // Before replies are written, which may close the connection: a waiter must be known to it by then.
        match stop {
            Some(stop) => self.stop_for(token, stop),
            None => self.queue(token),
        }
        self.account_client(token);
        self.runs.push(Run { token, start, end: self.replies.position() });
        self.write_many_replies();
        if becomes_replica {
            self.register_feed(token);
        }
    }
}

/// Defers requests of a connection.
pub(super) fn defer(connection: &mut Connection, requests: &[Request], batch: &Batch, shared: &[u8]) {
    connection.deferred.extend(requests.iter().map(|request| match request.resolved {
        ResolvedCommand::Broken(error) => Deferred::Broken(error),
        _ => Deferred::Request(OwnedArgs::from(batch.args(request, shared))),
    }));
}

/// The start of the preceding request of any connection, if its first argument is its only key.
#[derive(Default)]
pub(super) struct RequestTemplate {
    repeat: Repeat,
    /// Its command.
    command: Option<&'static CommandInfo>,
}

/// Parses the input of one connection.
struct Parse<'a> {
    server: &'static Services,
    template: &'a mut RequestTemplate,
    /// Proof that no other thread accesses the keyspace meanwhile, if that holds.
    exclusive: Option<&'a Exclusive>,
    batch: &'a mut Batch,
    connection: &'a mut Connection,
    token: usize,
    limits: &'a Limits,
}

/// The preceding request.
#[derive(Default)]
struct Last<'a> {
    /// Its command, and the name used in the request.
    command: Option<(&'a [u8], &'static CommandInfo)>,
}

/// Result of parsing.
struct Found {
    /// Bytes consumed.
    bytes: usize,
    /// Whether requests were added to the batch.
    requests: bool,
    /// Whether unparsed input must wait until the parsed requests are executed.
    more: bool,
    /// Whether it ends within a large argument.
    big: bool,
}

impl Parse<'_> {
    /// Parses all requests in `input`. Before authentication it parses only one, because parsing of the next depends on
    /// its result.
    #[inline]
    fn all(&mut self, source: Source, input: &[u8]) -> Found {
        if input.first() == Some(&violation::TLS_HANDSHAKE) && violation::is_tls(input) && self.is_new() {
            return self.reject_tls(input.len());
        }
        let (mut pos, before) = (0, self.batch.requests.len());
        let mut last = Last::default();
        let (mut more, mut big) = (false, false);
        // Before authentication input is checked more strictly.
        let mut may_repeat = self.limits.authenticated && !self.connection.parser.is_partial();
        loop {
            let (first_span, start) = (self.batch.spans.len(), pos);
            let Batch { spans, big: buffers, .. } = &mut *self.batch;
            if may_repeat
                && let Some(command) = self.template.command
                && let Some(end) = self.template.repeat.parse(input, pos, spans, self.limits.bulk_len_max)
            {
                pos = end;
                self.add_keyed(source, input, first_span, command);
                if pos == input.len() {
                    break;
                }
                continue;
            }
            match self.connection.parser.parse(input, &mut pos, spans, buffers, self.limits) {
                Parsed::Request => {
                    let keyed = self.add(source, input, first_span, &mut last);
                    if may_repeat && let Some(command) = keyed {
                        self.template.repeat.learn(input, start, &self.batch.spans[first_span..]);
                        self.template.command = Some(command);
                    }
                    may_repeat = self.limits.authenticated;
                }
                Parsed::Incomplete => break,
                Parsed::Big { .. } => {
                    pos = input.len();
                    big = true;
                    break;
                }
                Parsed::Error(error) => {
                    violation::log(self.server, &self.connection.client.info, error, &input[pos..]);
                    pos = input.len();
                    self.push(source, first_span, ResolvedCommand::Broken(error));
                    break;
                }
            }
            if !self.limits.authenticated || pos == input.len() {
                more = pos < input.len();
                break;
            }
        }
        Found { bytes: pos, requests: self.batch.requests.len() > before, more, big }
    }

    /// Whether the connection has executed nothing yet.
    fn is_new(&self) -> bool {
        self.connection.client.commands == 0
    }

    /// Sends an error to the client and closes the connection in the next turn.
    #[cold]
    fn reject_tls(&mut self, bytes: usize) -> Found {
        violation::log_tls(&self.connection.client.info);
        self.connection.output.push(violation::NO_TLS);
        self.connection.unwritten = true;
        self.connection.client.fate = Fate::CloseAfterReply;
        Found { bytes, requests: false, more: true, big: false }
    }

    /// Adds a request. Returns its command if its first argument is its only key.
    #[inline]
    fn add<'i>(
        &mut self,
        source: Source,
        input: &'i [u8],
        first_span: usize,
        last: &mut Last<'i>,
    ) -> Option<&'static CommandInfo> {
        let args = Args::new(input, &self.batch.spans[first_span..], &self.batch.big);
        let span = self.batch.spans[first_span];
        // Pipelines mostly repeat the preceding command, and comparing is faster than a lookup.
        let command = match (input.get(span.start..span.start + span.len), last.command) {
            (Some(name), Some((known, command))) if known == name => Some(command),
            (Some(name), _) => {
                let command = self.server.catalogue.find(name);
                last.command = command.map(|command| (name, command));
                command
            }
            // The name of an inline request lies in a separate buffer.
            (None, _) => args.get(0).and_then(|name| self.server.catalogue.find(name)),
        };
        let mut keyed = None;
        let resolved = match command {
            Some(command) if command.subcommands.is_empty() => {
                let key = command.single_key.and_then(|index| args.get(index));
                let key = key.filter(|_| command.spec.accepts(args.len()));
                keyed = key.and(command.single_key.filter(|index| *index == 1)).map(|_| command);
                let hash = key.map(|key| self.hash(key));
                if command.class == Class::Script {
                    let declared = self.declared(args);
                    self.batch.declared.extend(declared);
                }
                ResolvedCommand::For(command, hash)
            }
            _ => ResolvedCommand::Unresolved,
        };
        self.push(source, first_span, resolved);
        keyed
    }

    /// The first keys that a script declares. Starts prefetching them.
    #[inline(never)]
    fn declared(&self, args: Args<'_>) -> SmallVec<[DeclaredKey; DECLARED_MAX]> {
        let count = args.get(script_call::KEYS_COUNT).and_then(parse_i64);
        let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(0).min(DECLARED_MAX);
        let keys = (script_call::FIRST_KEY..).map_while(|index| args.get(index)).take(count);
        keys.map(|key| DeclaredKey { db: self.connection.client.db, hash: self.hash(key) }).collect()
    }

    /// Adds a request that has the same command and argument count as the preceding one.
    #[inline]
    fn add_keyed(&mut self, source: Source, input: &[u8], first_span: usize, command: &'static CommandInfo) {
        let key = self.batch.spans[first_span + 1];
        let key = input.get(key.start..key.start + key.len).unwrap_or_default();
        let hash = self.hash(key);
        self.push(source, first_span, ResolvedCommand::For(command, Some(hash)));
    }

    /// Hashes a key and starts prefetching its bucket, which arrives before the request is executed.
    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        let hash = self.server.keyspace.key(key).hash;
        self.server.keyspace.prefetch_bucket(self.connection.client.db, hash, self.exclusive);
        hash
    }

    #[inline]
    fn push(&mut self, source: Source, first_span: usize, resolved: ResolvedCommand) {
        let (spans, db) = (first_span..self.batch.spans.len(), self.connection.client.db);
        self.batch.requests.push(Request { connection: self.token, source, spans, resolved, db });
    }
}

pub(super) fn outcome(socket: &Socket, read: io::Result<usize>, room: usize) -> Read {
    match read {
        Ok(0) => Read::Ended,
        Ok(n) if n == room || socket.has_more() => Read::More(n),
        Ok(n) => Read::Drained(n),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            if socket.has_more() {
                Read::More(0)
            } else {
                Read::Drained(0)
            }
        }
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Read::More(0),
        Err(_) => Read::Ended,
    }
}
