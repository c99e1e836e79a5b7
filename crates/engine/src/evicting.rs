//! Evicts keys before commands while a memory limit is set: see [`kvick_core::eviction`].
//!
//! Summing the allocations of all threads costs too much to do for every command. When a worker finds memory below its
//! limit, it may allocate its share of the remainder before it sums again; until then it checks only its own thread's
//! balance. All shares together do not exceed the remainder, so the limit is exceeded at most by what the current
//! command allocates on each worker. Each batch begins with a new share.

use super::engine::Engine;
use crate::session::Client;
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientInfo;
use kvick_core::eviction::{self, clients};
use kvick_resp::Args;
use kvick_runtime::clock::{Ticks, ticks_to_us};
use kvick_store::eviction::{Evictor, Pass};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Keys evicted between two readings of the clock.
const KEYS_PER_CLOCK_READ: u32 = 16;
/// Arguments of at least this many bytes are accounted for.
const ARGUMENTS_MIN: usize = 4096;
/// Initial size in bytes of each worker's reply buffer; only growth beyond this counts as memory in use.
pub const REPLIES_MIN: usize = 16 * 1024;
/// Maximum sleep while lazy freeing has memory to free.
const LAZY_FREE_WAIT: Duration = Duration::from_millis(1);

/// A worker's eviction state.
pub(super) struct Evicting {
    evictor: Evictor,
    /// The thread's balance up to which it may allocate before memory is summed again.
    allowed: i64,
    /// Whether memory was above its limit before the current command and no key could be evicted.
    is_out_of_memory: bool,
    /// Whether eviction was interrupted for lack of time.
    is_unfinished: bool,
    /// Bytes of evicted keys' names for which notifications are pending, as last published.
    pending_bytes: usize,
    /// Bytes of the reply buffer beyond its initial size, as last published.
    reply_buffer: usize,
    /// Whether all connections must be measured because their limit may have changed.
    clients_are_unmeasured: bool,
}

impl Evicting {
    pub(super) fn new(worker: usize) -> Self {
        Evicting {
            evictor: Evictor::new(worker as u64),
            allowed: i64::MIN,
            is_out_of_memory: false,
            is_unfinished: false,
            pending_bytes: 0,
            reply_buffer: 0,
            clients_are_unmeasured: false,
        }
    }

    /// Discards results that may be outdated.
    #[inline]
    pub(super) fn begin_batch(&mut self) {
        self.allowed = i64::MIN;
    }
}

/// Result of an attempt to make room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Memory is below its limit.
    Enough,
    /// Memory is still above its limit, but keys were evicted and more can be.
    Unfinished,
    /// No key can be evicted.
    Nothing,
}

impl Engine {
    /// Notes that settings may have changed.
    pub(super) fn apply_eviction_settings(&mut self) {
        let limits = &self.runtime_config.eviction;
        self.evicting.begin_batch();
        self.evicting.is_out_of_memory = false;
        self.evicting.is_unfinished = limits.bytes > 0;
        self.evicting.clients_are_unmeasured = limits.clients_bytes > 0;
        if limits.bytes == 0 {
            self.server.eviction.note(false);
            kvick_runtime::memory::unsettle();
        }
    }

    /// Whether memory was above its limit when the current command, transaction or script began and no key could be
    /// evicted: commands that would need more memory are refused.
    #[inline]
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.evicting.is_out_of_memory
    }

    /// The thread's balance up to which commands may run without checking the memory limit; `None` if they must check
    /// it.
    pub(super) fn unchecked_balance_max(&self) -> Option<i64> {
        let is_cared_for = self.accounts_clients() | self.evicting.is_out_of_memory | self.evicting.is_unfinished;
        (!is_cared_for).then_some(self.evicting.allowed)
    }

    /// Whether the memory of connections is accounted for.
    #[inline]
    pub fn accounts_clients(&self) -> bool {
        self.runtime_config.eviction.clients_bytes > 0
    }

    /// Before a command, and without locks: closes connections and evicts keys if memory is above its limit. Returns
    /// false when the command's own connection is closed. `scratch` is the capacity of the reply buffer.
    #[inline(never)]
    pub(super) fn keep_memory_limits(&mut self, client: &Client, args: Args<'_>, scratch: usize) -> bool {
        self.publish_reply_buffer(scratch);
        self.settle_memory();
        let limits = &self.runtime_config.eviction;
        if limits.clients_bytes > 0 {
            let bytes = args.bytes_len();
            self.account_arguments(&client.info, bytes);
            clients::enforce(self.server, limits.clients_bytes, self.now_ms);
            client.info.argument_memory.store(0, Ordering::Relaxed);
            if client.info.is_doomed() {
                return false;
            }
        }
        if limits.bytes > 0 && kvick_runtime::memory::thread_balance() >= self.evicting.allowed {
            self.make_room();
        }
        true
    }

    /// Accounts for large arguments while connections are measured: a parsed request's input no longer counts for its
    /// connection.
    fn account_arguments(&self, client: &ClientInfo, bytes: usize) {
        if bytes > ARGUMENTS_MIN {
            client.argument_memory.store(bytes, Ordering::Relaxed);
            self.server.eviction.clients.account(client);
        }
    }

    /// Evicts keys until memory is below its limit or the maximum delay of a command is reached. Within a batch,
    /// without locks.
    fn make_room(&mut self) {
        self.evicting.is_unfinished = false;
        if !self.may_evict() {
            self.evicting.is_out_of_memory = false;
            return;
        }
        let (excess, freed_before) = self.excess_without_connections();
        let room = match excess {
            ..=0 => Room::Enough,
            excess => self.evict(excess, freed_before),
        };
        self.evicting.is_out_of_memory = room == Room::Nothing;
        self.evicting.is_unfinished = room == Room::Unfinished;
        self.server.eviction.note(room != Room::Enough);
    }

    /// Closes connections that exceed the limit on client memory, which takes precedence over evicting keys. Returns
    /// the bytes by which memory is above its limit afterwards, and the bytes of all keys evicted before memory was
    /// measured.
    fn excess_without_connections(&mut self) -> (i64, i64) {
        let (server, limit) = (self.server, self.runtime_config.eviction.clients_bytes);
        loop {
            // Keys evicted by other workers after the measurement count for this worker too.
            let (closed, freed_before) = (server.eviction.clients.evicted(), server.eviction.freed());
            let excess = self.excess();
            if excess > 0 && limit > 0 {
                // A worker accounts for a connection before it settles the allocation. So the memory measured for
                // connections is accounted for by now, or another worker has just closed some: then measure again.
                clients::enforce(server, limit, self.now_ms);
                if server.eviction.clients.evicted() != closed {
                    continue;
                }
            }
            return (excess, freed_before);
        }
    }

    /// Whether eviction was interrupted for lack of time.
    pub fn is_evicting(&self) -> bool {
        self.evicting.is_unfinished
    }

    /// Continues an eviction that would have delayed commands for too long.
    pub fn continue_evicting(&mut self) {
        if self.evicting.is_unfinished {
            self.within_batch(|engine| {
                engine.make_room();
                engine.settle_consequences();
            });
        }
    }

    /// Whether all connections must be measured because their limit may have changed. The caller measures them.
    pub fn take_clients_unmeasured(&mut self) -> bool {
        std::mem::take(&mut self.evicting.clients_are_unmeasured)
    }

    /// Settles the worker's balance while a memory limit is set. Call it between two commands.
    #[inline]
    pub fn settle_memory(&self) {
        if self.runtime_config.eviction.bytes > 0 {
            kvick_runtime::memory::settle();
        }
    }

    /// Publishes how far the reply buffer has grown beyond its initial size.
    #[inline]
    pub fn publish_reply_buffer(&mut self, capacity: usize) {
        let much = capacity.saturating_sub(REPLIES_MIN);
        if much != self.evicting.reply_buffer {
            self.server.eviction.resize_scratch(self.evicting.reply_buffer, much);
            self.evicting.reply_buffer = much;
        }
    }

    /// Whether keys may currently be evicted.
    fn may_evict(&self) -> bool {
        let is_the_primarys =
            self.runtime_config.replica_ignore_maxmemory && self.server.replication.upstream.is_replica();
        !self.server.pause.blocks_writes(self.now_ms)
            && !self.server.admission.has(Reasons::LOADING)
            && !is_the_primarys
    }

    /// Bytes by which memory is above its limit. If it is below, distributes the remainder among the workers.
    fn excess(&mut self) -> i64 {
        self.settle_memory();
        let excess = eviction::excess(self.server, self.runtime_config.eviction.bytes);
        if excess <= 0 {
            self.evicting.allowed =
                kvick_runtime::memory::thread_balance() - excess / self.server.active_workers() as i64;
        }
        excess
    }

    /// Evicts keys until memory is below its limit or the excess has been freed. Notifications of evicted keys take
    /// memory themselves, but only until they are sent: evicting keys to make up for them could evict all keys.
    #[cold]
    fn evict(&mut self, excess: i64, freed_before: i64) -> Room {
        let Some(policy) = self.runtime_config.eviction.policy.filter(|_| !self.runtime_config.import_mode) else {
            return Room::Nothing;
        };
        let (event_mask, began) = (self.event_mask(), Ticks::now());
        let time_limit = self.runtime_config.eviction.time_limit;
        let mut evicted = 0;
        let room = loop {
            // All workers may detect at once that memory is above its limit.
            if self.server.eviction.freed() - freed_before >= excess {
                break Room::Enough;
            }
            let key_began = Ticks::now();
            let limits = &self.runtime_config.eviction;
            let gone = self.evicting.evictor.evict(Pass {
                keyspace: self.server.keyspace,
                policy,
                samples: limits.samples,
                lazy: limits.lazy,
                now_ms: self.now_ms,
                access: &self.access,
                counters: &self.stats.keyspace,
                effects: &mut self.effects,
                event_mask,
            });
            let Some(bytes) = gone else { break self.await_lazy_free(began, time_limit) };
            self.record_latency("eviction-del", key_began);
            evicted += 1;
            self.server.eviction.add_freed(bytes);
            self.publish_pending_notifications();
            if self.excess() <= 0 {
                break Room::Enough;
            }
            if evicted % KEYS_PER_CLOCK_READ == 0 && elapsed(began) > time_limit {
                break Room::Unfinished;
            }
        };
        self.record_latency("eviction-cycle", began);
        room
    }

    /// Publishes the memory taken by pending notifications.
    pub(super) fn publish_pending_notifications(&mut self) {
        let bytes = self.effects.reclaimed_bytes();
        if bytes != self.evicting.pending_bytes {
            self.server.eviction.resize_pending_invalidations(self.evicting.pending_bytes, bytes);
            self.evicting.pending_bytes = bytes;
        }
    }

    /// No evictable key is left: waits for lazy freeing, which may free enough.
    fn await_lazy_free(&mut self, began: Ticks, time_limit: Duration) -> Room {
        let nap_began = Ticks::now();
        let mut room = Room::Nothing;
        while self.server.keyspace.lazy_free.pending() > 0 && elapsed(began) < time_limit {
            if self.excess() <= 0 {
                room = Room::Enough;
                break;
            }
            std::thread::sleep(time_limit.min(LAZY_FREE_WAIT));
        }
        self.record_latency("eviction-lazyfree", nap_began);
        room
    }

    fn record_latency(&self, event: &'static str, began: Ticks) {
        let threshold_ms = self.runtime_config.latency_threshold_ms;
        if threshold_ms > 0 {
            self.server.latency.record(event, Ticks::now().us_since(began) / 1000, threshold_ms);
        }
    }
}

fn elapsed(began: Ticks) -> Duration {
    Duration::from_micros(ticks_to_us(Ticks::now().since(began)))
}
