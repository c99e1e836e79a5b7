//! Commands that block on keys, and how they are served.
//!
//! A command that finds nothing requests a wait ([`Block`]). Its request is stored in a [`Waiter`], which joins the
//! queues of its keys while their locks are still held, and its connection is stopped. A thread that changes such a key
//! serves the waiters after its own command: it takes the locks of the waiter's command and runs that command again.
//! When the command replies, the waiter leaves its queues under the same locks, and the reply goes to the worker that
//! owns the connection.
//!
//! A wait can also end by timeout, CLIENT UNBLOCK or disconnection. Each of these must likewise remove the waiter from
//! its queues under the locks. Only the thread that removes it answers, so a waiter is answered exactly once.

use super::engine::Engine;
use super::hot_keys::Used;
use super::invocation::{DataCall, Invocation, Recipient};
use super::routing::redirect_blocked;
use crate::session::Client;
use kvick_acl::check::Request;
use kvick_acl::log::Context as AclContext;
use kvick_commands::context::{Block, Error};
use kvick_commands::spec::Flags;
use kvick_commands::table::CommandInfo;
use kvick_core::Core;
use kvick_core::admission::Reasons;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::commandlog::Executed;
use kvick_core::inbox::{Delivery, Served};
use kvick_core::routing::slot_stats::SlotUsage;
use kvick_core::stats::WorkerStats;
use kvick_replication::ReplicatedCore;
use kvick_replication::role::ROLE_CHANGED_ERROR;
use kvick_resp::{OwnedArgs, Reply, Version};
use kvick_runtime::clock::{self, Ticks};
use kvick_store::slot::slot;
use kvick_store::{Key, Keyspace, Locked, Waiter};
use std::sync::Arc;

/// The request for which a client blocks.
pub struct Blocked {
    /// The client.
    pub client: Arc<ClientInfo>,
    command: &'static CommandInfo,
    request: OwnedArgs,
    /// The request as the client sent it, if it was rewritten.
    received: Option<OwnedArgs>,
    /// Indexes of the arguments that are the keys it waits for.
    keys: Vec<usize>,
    /// The database of the keys.
    pub db: usize,
    version: Version,
    /// Unix time in milliseconds at which the wait ends.
    pub until_ms: Option<i64>,
    /// The rights epoch of the admission word in which the request was allowed.
    rights: u32,
    /// Duration of its first execution, in ticks.
    ticks: u64,
}

impl Blocked {
    /// The blocked request of a waiter that a worker created.
    pub fn of(waiter: &Waiter) -> Option<&Blocked> {
        waiter.purpose.downcast_ref()
    }

    /// The names of the keys that it waits for.
    pub fn key_names(&self) -> impl Iterator<Item = &[u8]> {
        let args = self.request.args();
        self.keys.iter().filter_map(move |index| args.get(*index))
    }

    /// The slot of the keys, in cluster mode.
    pub fn slot(&self) -> Option<u16> {
        self.key_names().next().map(slot)
    }

    /// Memory used by its request, in bytes.
    pub fn memory(&self) -> usize {
        self.request.memory() + self.received.as_ref().map_or(0, OwnedArgs::memory)
    }

    /// The request as the client sent it.
    pub fn received(&self) -> &OwnedArgs {
        self.received.as_ref().unwrap_or(&self.request)
    }

    /// Its command, as logs show it.
    fn executed(&self) -> Executed<'_> {
        let args = self.received.as_ref().unwrap_or(&self.request).args();
        Executed { args, client: &self.client, redacted: 0, db: self.db, error: None }
    }

    /// Whether it has a timeout.
    pub fn is_limited(&self) -> bool {
        self.until_ms.is_some()
    }

    fn keys(&self, keyspace: &'static Keyspace) -> impl Iterator<Item = Key<'_>> {
        self.key_names().map(|bytes| keyspace.key(bytes))
    }

    /// Removes the waiter from its queues, whose locks (or the global lock) the caller holds. Returns false if it was
    /// already served.
    pub fn leave(&self, waiter: &Waiter, locked: &mut Locked) -> bool {
        let keyspace = locked.keyspace();
        locked.leave_queues(self.db, self.keys(keyspace), waiter)
    }

    /// Whether its command may write.
    pub fn writes(&self) -> bool {
        self.command.spec.flags.contains(Flags::WRITE)
    }

    /// Counts and logs the command of a waiter that left its queues unserved, and creates its answer: an error from
    /// outside the command, or a timeout.
    pub fn end(&self, waiter: &Waiter, error: Option<&str>, core: &Core, stats: &WorkerStats) -> Served {
        let runtime_config = core.runtime_config();
        stats.count(self.command.id, self.ticks, 0, runtime_config.latency_tracking);
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, self.version);
        match error {
            Some(text) => {
                stats.commands[self.command.id as usize].rejected.add(1);
                stats.count_error(text.as_bytes());
                reply.error(text);
            }
            None => reply.null_array(),
        }
        let (us, thresholds) = (clock::ticks_to_us(self.ticks), &runtime_config.commandlog);
        if error.is_none()
            && let Some(routing) = core.routing.as_ref().filter(|routing| routing.slot_stats.is_enabled())
            && let Some(slot) = self.slot()
        {
            routing.slot_stats.add(slot, SlotUsage { cpu_us: us, ..SlotUsage::default() });
        }
        let executed = Executed { error: error.map(str::as_bytes), ..self.executed() };
        core.commandlog.record_all(us, out.len(), executed, thresholds);
        Served { client: self.client.clone(), ticket: waiter.ticket(), reply: out, is_last: false }
    }
}

/// Answers blocked clients when the server becomes a replica; the caller holds the global lock.
pub fn unblock_all(core: &ReplicatedCore, global: &mut Locked, stats: &WorkerStats) {
    if core.routing.is_some() {
        // They are redirected to the owner of their slot, now or when the slot map with the new owner is published.
        redirect_blocked(core, global, stats);
        return;
    }
    for client in core.clients.all() {
        let Some(waiter) = client.waiter.lock().clone() else { continue };
        let flags = client.flags();
        if let Some(blocked) = Blocked::of(&waiter)
            // Reads that a replica may serve can keep waiting on it.
            && (blocked.writes() || !flags.contains(ClientFlags::READONLY))
            && blocked.leave(&waiter, global)
        {
            // A client that follows redirections gets the target.
            let primary = core.replication.upstream.target();
            let follows = flags.contains(ClientFlags::CAPA_REDIRECT);
            let text = primary.filter(|_| follows).map(|primary| format!("REDIRECT {}:{}", primary.host, primary.port));
            let mut served = blocked.end(&waiter, Some(text.as_deref().unwrap_or(ROLE_CHANGED_ERROR)), core, stats);
            served.is_last = text.is_none();
            core.answer(served);
        }
    }
}

impl Engine {
    /// Blocks a request, under the locks of its keys.
    pub(super) fn block_request(
        &mut self,
        client: &Client,
        invocation: Invocation<'_>,
        block: Block,
        locked: &mut Locked,
    ) -> Arc<Waiter> {
        let received = OwnedArgs::from(invocation.args);
        let (request, received) = match block.rewritten {
            Some(rewritten) => (rewritten, Some(received)),
            None => (received, None),
        };
        let (kind, wakes_on_deletion, group) = (block.kind, block.wakes_on_deletion, block.group);
        let blocked = Blocked {
            client: client.info.clone(),
            command: invocation.command,
            request,
            received,
            keys: block.keys,
            db: client.db,
            version: client.version,
            until_ms: block.until_ms,
            rights: client.identity.epoch(),
            ticks: Ticks::now().since(self.last),
        };
        let waiter = Waiter::new(kind, wakes_on_deletion, group, Box::new(blocked));
        if let Some(blocked) = Blocked::of(&waiter) {
            let keyspace = self.server.keyspace;
            blocked.keys(keyspace).for_each(|key| locked.join_queue(blocked.db, key, &waiter));
        }
        waiter
    }

    /// Serves clients blocked on keys that commands have changed. Their commands may change further awaited keys.
    /// Called within a batch and without locks.
    pub(super) fn serve_awaited(&mut self) {
        for (db, key) in self.effects.take_ready_keys() {
            self.serve_key(db, &key);
        }
    }

    fn serve_key(&mut self, db: usize, key: &[u8]) {
        let keyspace = self.server.keyspace;
        let key = keyspace.key(key);
        let (mut after, mut exhausted_groups) = (0, Vec::new());
        loop {
            let locked = self.lock_patiently(|_| vec![keyspace.address(db, key)]);
            let kind = locked.kind_at(db, key, self.now_ms);
            let Some(waiter) = locked.next_waiter(db, key, after, kind, &exhausted_groups) else { return };
            drop(locked);
            after = waiter.ticket();
            // If one waiter found nothing, others that look for the same need not be tried.
            if !self.serve(&waiter) && waiter.group != 0 {
                exhausted_groups.push(waiter.group);
            }
        }
    }

    /// Runs a waiter's command again. Returns false when it keeps waiting.
    fn serve(&mut self, waiter: &Waiter) -> bool {
        let Some(blocked) = Blocked::of(waiter) else { return true };
        let (keyspace, args) = (self.server.keyspace, blocked.request.args());
        let Some(handler) = blocked.command.data else { return true };
        let mut locked = self.lock_keys_patiently(blocked.db, blocked.command, args);
        if waiter.has_left() {
            return true;
        }
        if self.server.admission.has(Reasons::LOADING) {
            // The current value is not yet final.
            return false;
        }
        if self.server.admission.has(Reasons::REPLICA) && blocked.writes() && self.server.routing.is_some() {
            // This server has just become a replica, and the client is about to be redirected.
            return false;
        }
        if blocked.client.is_doomed() {
            // A value popped for it would be lost.
            blocked.leave(waiter, &mut locked);
            return true;
        }
        let (mut reply, began) = (Vec::new(), Ticks::now());
        if let Some(error) = self.recheck_permission(blocked) {
            blocked.leave(waiter, &mut locked);
            drop(locked);
            self.stats.commands[blocked.command.id as usize].rejected.add(1);
            self.stats.count_error(error.bytes());
            Reply::new(&mut reply, blocked.version).error(error.bytes());
            let (client, ticket) = (blocked.client.clone(), waiter.ticket());
            self.answer_waiter(Served { client, ticket, reply, is_last: false });
            return true;
        }
        let recipient = Recipient { info: &blocked.client, db: blocked.db };
        let call = DataCall { handler, args, hashed: &[] };
        let author = self.effects.set_noloop_writer(blocked.client.noloop_id());
        let result = self.run_handler(recipient, call, &mut locked, Reply::new(&mut reply, blocked.version));
        self.effects.set_noloop_writer(author);
        let invocation = Invocation { command: blocked.command, args };
        self.track_reads(&blocked.client, blocked.db, invocation, &mut locked);
        if self.block.take().is_some() {
            self.effects.commit(&keyspace.log, args);
            return false;
        }
        if let Err(error) = &result {
            Reply::new(&mut reply, blocked.version).error(error.bytes());
        }
        blocked.leave(waiter, &mut locked);
        self.effects.commit(&keyspace.log, args);
        drop(locked);
        let ticks = self.count(blocked.command, began, &result);
        self.count_slot(blocked.slot(), invocation, ticks, reply.len());
        let executed = Executed { error: result.as_ref().err().map(Error::bytes), ..blocked.executed() };
        self.offer_to_logs(executed, blocked.command, ticks, reply.len());
        self.count_for_sample(&blocked.client, blocked.db, invocation, Used { ticks, reply_bytes: reply.len() });
        let (client, ticket) = (blocked.client.clone(), waiter.ticket());
        self.answer_waiter(Served { client, ticket, reply, is_last: false });
        true
    }

    /// Why a blocked request may no longer run, if rights have changed since and now forbid it.
    fn recheck_permission(&self, blocked: &Blocked) -> Option<Error> {
        if self.server.admission.rights() == blocked.rights {
            return None;
        }
        let name = blocked.client.names.lock().user.clone();
        let (command, args) = (blocked.command, blocked.request.args());
        // The user was deleted, and the client is being disconnected.
        let user = self.server.acl.find(&name)?;
        let request = Request { command, args, db: blocked.db, databases: self.server.keyspace.databases() };
        let denied = user.check(&request).err()?;
        self.record_denied(&blocked.client, &user, denied, AclContext::TopLevel, Invocation { command, args });
        Some(denied.error(&user, command))
    }

    /// Sends the answer to the worker that owns the client.
    pub(super) fn answer_waiter(&mut self, served: Served) {
        self.server.deliver(self.executor, served.client.worker(), Delivery::Served(served));
    }

    /// Removes a waiter from its queues. Returns false if it was already served.
    pub fn cancel_wait(&mut self, waiter: &Waiter) -> bool {
        let Some(blocked) = Blocked::of(waiter) else { return false };
        self.within_batch(|engine| {
            let mut locked = engine.lock_keys_patiently(blocked.db, blocked.command, blocked.request.args());
            blocked.leave(waiter, &mut locked)
        })
    }
}
