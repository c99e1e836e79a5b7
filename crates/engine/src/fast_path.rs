//! The fast path: consecutive requests of one connection that each access one key or none and need nothing else of the
//! server.
//!
//! Most requests are of this kind and arrive in pipelines. The work they share is done once for all of them: checking
//! the client's identity and rights, choosing the reply buffer, and deciding how expired keys are treated. Each request
//! then costs only its key's lock, its handler, its statistics, and a check of the few words through which other
//! threads announce changes.
//!
//! **Invariant**: a request on the fast path has the same effect and the same reply as one passed to
//! [`Engine::execute`]. The fast path stops before any request that needs more, and leaves it to that function. Any
//! condition that ends the fast path is detected before the next request takes a lock.

use super::batch::{Batch, Request, ResolvedCommand};
use super::dispatch::of_client;
use super::engine::Engine;
use super::hot_keys::Used;
use super::invocation::Invocation;
use crate::session::{Client, ReplyMode};
use kvick_commands::context::{Circumstances, Context, Error};
use kvick_commands::table::{CommandInfo, FastPath};
use kvick_core::admission::Reasons;
use kvick_core::commandlog;
use kvick_core::routing::Routing;
use kvick_resp::{Args, ReplyBuffer};
use kvick_runtime::clock::Ticks;
use kvick_store::hash::slot_of;
use kvick_store::{Db, Env, Key};

/// Why the fast path ended after a request that it executed.
enum End<'a> {
    /// It was the last request, or the next one does not qualify.
    Nothing,
    /// The request failed.
    Failed(Executed<'a>, Error),
    /// It may belong in the slow log or the large command log.
    Remarkable(Executed<'a>),
    /// Its effects concern other clients.
    ConcernsOthers,
}

/// A request that the fast path executed.
struct Executed<'a> {
    command: &'static CommandInfo,
    args: Args<'a>,
    ticks: u64,
    reply_bytes: usize,
}

impl Engine {
    /// The admission word and the memory balance under which a client's requests may take the fast path, if they
    /// currently may.
    #[inline]
    pub(super) fn fast_path_for(&self, client: &Client) -> Option<(u64, i64)> {
        let word = self.server.admission.word();
        let balance_max = match word ^ client.fast_word() {
            0 => i64::MAX,
            // A memory limit is set, but no eviction is needed yet.
            bits if bits == Reasons::LIMITED.word() => self.unchecked_balance_max()?,
            _ => return None,
        };
        let unusual = self.counts_slots()
            | client.transaction.is_some()
            | client.tracking.is_some()
            | client.is_confined_to_subscriptions()
            | client.is_asking();
        let replies = (client.reply_mode == ReplyMode::On) | client.is_slot_import();
        let plain = self.in_batch & self.script_us.is_none() & replies & !client.is_reset;
        (plain && !unusual).then_some((word, balance_max))
    }

    /// Executes requests from the first on while they qualify for the fast path and their replies end before
    /// `replies_max`. Returns their number.
    #[inline]
    pub fn take_fast_path(
        &mut self,
        client: &mut Client,
        requests: &[Request],
        batch: &Batch,
        shared: &[u8],
        replies_max: usize,
        out: &mut ReplyBuffer,
    ) -> usize {
        let mut done = 0;
        // A sample for HOTKEYS interrupts the fast path.
        while done < requests.len() {
            let (count, is_sampled) = self.execute_fast(client, &requests[done..], batch, shared, replies_max, out);
            done += count;
            if !is_sampled {
                break;
            }
        }
        done
    }

    /// The same up to the next sample; also returns whether the last request was one.
    #[inline(never)]
    fn execute_fast(
        &mut self,
        client: &mut Client,
        requests: &[Request],
        batch: &Batch,
        shared: &[u8],
        replies_max: usize,
        out: &mut ReplyBuffer,
    ) -> (usize, bool) {
        let Some((word, balance_max)) = self.fast_path_for(client) else { return (0, false) };
        if client.forwarding.as_ref().is_some_and(|elsewhere| elsewhere.outstanding) {
            // The replies would overtake those of other nodes.
            return (0, false);
        }
        let (server, runtime_config, stats) = (self.server, &*self.runtime_config, &*self.stats);
        let routing = server.routing.as_ref();
        let (admission, pause, inbox) = (&server.admission, &server.pause, self.inbox());
        let (flags, is_logged, when_expired) =
            (client.info.flags(), self.is_logged(&client.info), self.when_expired(&client.info));
        // The slots of an import are not this node's yet, and its commands have no replies.
        let (imports, out_start) = (client.is_slot_import(), out.position());
        let mut locked = server.keyspace.lock_nothing();
        // Clients on the fast path are unrestricted.
        let circumstances = Circumstances { reads_every_key: true, ..self.circumstances(flags) };
        let settings = &runtime_config.commands;
        let env = Env::command(self.now_ms, &self.access, &stats.keyspace, &mut self.effects);
        let env = of_client(env, flags, settings, when_expired);
        let (db, reply) = (Db::new(&mut locked, client.db, env), out.reply(client.version));
        let mut context = Context::new(db, reply, settings, circumstances);
        let is_limited = balance_max != i64::MAX;
        let (mut done, mut last, mut end, mut failed_at) = (0, self.last, End::Nothing, 0);
        // The last request before the fast path ends.
        let mut latest = Used { ticks: 0, reply_bytes: 0 };
        let requests = &requests[..requests.len().min(self.sampler.left())];
        for request in requests {
            let ResolvedCommand::For(command, hash) = request.resolved else { break };
            let Some((fast_path, handler)) = command.fast_path else { break };
            let args = batch.args(request, shared);
            let (start, len_before) = (context.reply.position(), context.reply.len());
            let changed = (admission.word() != word) | pause.may_concern_all_slots() | inbox.has_deliveries();
            if changed
                || len_before > replies_max
                || client.info.is_doomed()
                || (is_limited && kvick_runtime::memory::thread_balance() >= balance_max)
            {
                break;
            }
            match (fast_path, hash) {
                (FastPath::Key(index), Some(hash)) => {
                    let slot = slot_of(hash);
                    let is_here = |routing: &Routing| routing.serves(slot) && !pause.slots.holds(slot);
                    if !imports && routing.is_some_and(|routing| !is_here(routing)) {
                        break;
                    }
                    debug_assert!(command.spec.accepts(args.len()), "looked at when it was parsed");
                    let key = Key { bytes: args.get(index).unwrap_or_default(), hash };
                    let event_mask = || server.notified_classes(runtime_config.notified_events);
                    if !context.db.begin_keyed(key, self.exclusive.as_ref(), is_logged, event_mask) {
                        break;
                    }
                }
                (FastPath::Nothing, _) if command.spec.accepts(args.len()) => context.db.begin_keyless(),
                _ => break,
            }
            let result = handler(&mut context, args);
            if context.db.end_keyed(args) {
                client.write_offset = server.keyspace.log.offset();
            }
            done += 1;
            client.last_command = command.id;
            let now = Ticks::now();
            let ticks = now.since(last);
            last = now;
            let effects = context.db.effects();
            let (dirty, concerns_others) = (effects.dirty(), effects.has_pending_notifications());
            stats.count(command.id, ticks, dirty, runtime_config.latency_tracking);
            if let Err(error) = result {
                context.reply.error(error.bytes());
                failed_at = start;
                let reply_bytes = context.reply.len() - len_before;
                latest = Used { ticks, reply_bytes };
                end = End::Failed(Executed { command, args, ticks, reply_bytes }, error);
                break;
            }
            let reply_bytes = context.reply.len() - len_before;
            latest = Used { ticks, reply_bytes };
            if ticks >= runtime_config.slow_ticks
                || reply_bytes >= runtime_config.large_reply_bytes
                || commandlog::Executed::bytes_max_of(args) >= runtime_config.large_request_bytes
            {
                end = End::Remarkable(Executed { command, args, ticks, reply_bytes });
                break;
            }
            if concerns_others {
                end = End::ConcernsOthers;
                break;
            }
        }
        debug_assert!(context.block.is_none(), "commands with one key do not wait");
        if let Some(remark) = context.log_message.take() {
            kvick_runtime::logging::verbose(format_args!("{remark}"));
        }
        drop(context);
        self.last = last;
        client.commands += done as u64;
        if client.forwarding.is_some() {
            client.note_writes_here(&requests[..done]);
        }
        let has_failed = matches!(end, End::Failed(..));
        self.leave_fast_path(client, end);
        let is_sampled = self.sampler.advance(done);
        if is_sampled {
            self.sample_fast(client, &requests[..done], batch, shared, latest);
        }
        if imports {
            if has_failed {
                self.fail_import(client, &out.bytes[failed_at..]);
            }
            out.truncate(out_start);
        }
        (done, is_sampled)
    }

    /// Performs the follow-up work of the last request on the fast path.
    #[inline]
    fn leave_fast_path(&mut self, client: &Client, end: End<'_>) {
        match end {
            End::Nothing => return,
            End::Failed(executed, error) => {
                self.stats.count_failure(executed.command.id, Some(error.bytes()));
                self.offer_fast_to_logs(client, executed, Some(error.bytes()));
            }
            End::Remarkable(executed) => self.offer_fast_to_logs(client, executed, None),
            End::ConcernsOthers => {}
        }
        if self.effects.has_pending_notifications() {
            self.settle_consequences();
        }
    }

    /// Adds the key of the last of these requests to the hot keys.
    #[cold]
    fn sample_fast(&mut self, client: &Client, requests: &[Request], batch: &Batch, shared: &[u8], used: Used) {
        let Some(request) = requests.last() else { return };
        let ResolvedCommand::For(command, _) = request.resolved else { return };
        let invocation = Invocation { command, args: batch.args(request, shared) };
        self.take_sample(&client.info, client.db, invocation, used);
    }

    fn offer_fast_to_logs(&mut self, client: &Client, executed: Executed<'_>, error: Option<&[u8]>) {
        let Executed { command, args, ticks, reply_bytes } = executed;
        let executed = commandlog::Executed { error, ..client.executed(args) };
        self.offer_to_logs(executed, command, ticks, reply_bytes);
    }
}
