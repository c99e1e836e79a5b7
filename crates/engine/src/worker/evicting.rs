//! Making room before commands, while there is a limit of memory: see [`kvick_core::eviction`].
//!
//! Adding up what all threads have allocated costs too much for every command. So when a worker finds memory below its
//! limit, it may allocate its share of what is left before it adds up again, and looks only at its own thread's balance
//! until then. All shares together are no more than what was left, so the limit is exceeded by no more than what the
//! command in hand takes, on each worker. Each batch begins with a new share.

use super::Worker;
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

/// Keys that go between two looks at the clock.
const KEYS_PER_LOOK: u32 = 16;
/// Bytes of arguments from which on they are counted.
const ARGUMENTS_MIN: usize = 4096;
/// Bytes for the replies of a batch that each worker begins with; more do not count as memory in use.
pub(super) const SCRATCH_MIN: usize = 16 * 1024;
/// Longest sleep while lazy freeing has something to free.
const NAP: Duration = Duration::from_millis(1);

/// A worker's part in eviction.
pub(super) struct Evicting {
    evictor: Evictor,
    /// The thread's balance up to which it may allocate before all is added up again.
    allowed: i64,
    /// Whether memory was above its limit before the present command, and no key may go.
    is_out_of_memory: bool,
    /// Whether keys have to go that have not gone yet, for lack of time.
    is_unfinished: bool,
    /// Bytes of the names of keys that have gone and of which nobody has been told, as far as others know.
    untold: usize,
    /// Bytes that the worker has for the replies of a batch, above what is usual, as far as others know.
    scratch: usize,
    /// Whether the connections have to be looked at all: their limit may be new.
    clients_are_unseen: bool,
}

impl Evicting {
    pub(super) fn new(worker: usize) -> Self {
        Evicting {
            evictor: Evictor::new(worker as u64),
            allowed: i64::MIN,
            is_out_of_memory: false,
            is_unfinished: false,
            untold: 0,
            scratch: 0,
            clients_are_unseen: false,
        }
    }

    /// What was found out so far may have changed.
    #[inline]
    pub(super) fn begin_batch(&mut self) {
        self.allowed = i64::MIN;
    }
}

/// What came of an attempt to make room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Memory is below its limit.
    Enough,
    /// It is not yet, but keys have gone and more can go.
    Unfinished,
    /// No key may go.
    Nothing,
}

impl Engine {
    /// Takes note that settings may have changed.
    pub(super) fn renew_eviction(&mut self) {
        let limits = &self.runtime_config.eviction;
        self.evicting.begin_batch();
        self.evicting.is_out_of_memory = false;
        self.evicting.is_unfinished = limits.bytes > 0;
        self.evicting.clients_are_unseen = limits.clients_bytes > 0;
        if limits.bytes == 0 {
            self.server.eviction.note(false);
            kvick_runtime::memory::unsettle();
        }
    }

    /// Whether memory was above its limit when the present command, transaction or script began, and no key may go:
    /// then commands that would need more of it are refused.
    #[inline]
    pub(super) fn is_out_of_memory(&self) -> bool {
        self.evicting.is_out_of_memory
    }

    /// The thread's balance up to which commands may go on without minding the limit of memory, if they may at all.
    pub(super) fn balance_without_care(&self) -> Option<i64> {
        let is_cared_for = self.accounts_clients() | self.evicting.is_out_of_memory | self.evicting.is_unfinished;
        (!is_cared_for).then_some(self.evicting.allowed)
    }

    /// Whether what connections take is accounted for.
    #[inline]
    pub(super) fn accounts_clients(&self) -> bool {
        self.runtime_config.eviction.clients_bytes > 0
    }

    /// Before a command, and without locks: closes connections and evicts keys if need be. False when the command's own
    /// connection is closed. `scratch` is the capacity of the buffer for replies.
    #[inline(never)]
    pub(super) fn mind_memory(
        &mut self,
        client: &Client,
        args: Args<'_>,
        owned_arg: Option<&[u8]>,
        scratch: usize,
    ) -> bool {
        self.publish_scratch(scratch);
        self.settle_memory();
        let limits = &self.runtime_config.eviction;
        if limits.clients_bytes > 0 {
            let bytes = args.iter().chain(owned_arg).map(<[u8]>::len).sum();
            self.account_arguments(&client.info, bytes);
            clients::enforce(self.server, limits.clients_bytes, self.now_ms);
            client.info.argument_memory.store(0, Ordering::Relaxed);
            if client.info.is_doomed() {
                return false;
            }
        }
        if limits.bytes > 0 && kvick_runtime::memory::own_balance() >= self.evicting.allowed {
            self.make_room();
        }
        true
    }

    /// Has large arguments counted while connections are looked at: what was received of a request is theirs no more.
    fn account_arguments(&self, client: &ClientInfo, bytes: usize) {
        if bytes > ARGUMENTS_MIN {
            client.argument_memory.store(bytes, Ordering::Relaxed);
            self.server.eviction.clients.account(client);
        }
    }

    /// Evicts keys until memory is below its limit, as long as a command may be held up. In a batch, without locks.
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

    /// Bytes by which memory is above its limit after connections were closed that exceed their own limit: they are
    /// closed before keys are evicted. Also returns the bytes of all keys evicted before memory was measured.
    fn excess_without_connections(&mut self) -> (i64, i64) {
        let (server, limit) = (self.server, self.runtime_config.eviction.clients_bytes);
        loop {
            // Keys that other workers evict after memory was measured count for this worker too.
            let (closed, freed_before) = (server.eviction.clients.evicted(), server.eviction.freed());
            let excess = self.excess();
            if excess > 0 && limit > 0 {
                // Workers account for a connection before they settle what they allocated for it. So what was measured
                // for connections is accounted for now, or another worker has just closed some: then measure again.
                clients::enforce(server, limit, self.now_ms);
                if server.eviction.clients.evicted() != closed {
                    continue;
                }
            }
            return (excess, freed_before);
        }
    }

    /// Settles the worker's balance while there is a limit of memory. Call it between two commands.
    #[inline]
    pub(super) fn settle_memory(&self) {
        if self.runtime_config.eviction.bytes > 0 {
            kvick_runtime::memory::settle();
        }
    }

    /// Lets others know how much memory the replies of a batch take, if it is much.
    #[inline]
    pub(super) fn publish_scratch(&mut self, capacity: usize) {
        let much = capacity.saturating_sub(SCRATCH_MIN);
        if much != self.evicting.scratch {
            self.server.eviction.resize_scratch(self.evicting.scratch, much);
            self.evicting.scratch = much;
        }
    }

    /// Whether this is a time at which keys may go.
    fn may_evict(&self) -> bool {
        let is_the_primarys = self.runtime_config.replica_keeps_all && self.server.replication.upstream.is_replica();
        !self.server.pause.keeps_data(self.now_ms) && !self.server.admission.has(Reasons::LOADING) && !is_the_primarys
    }

    /// Bytes by which memory is above its limit. If it is not, what is left is shared out.
    fn excess(&mut self) -> i64 {
        self.settle_memory();
        let excess = eviction::excess(self.server, self.runtime_config.eviction.bytes);
        if excess <= 0 {
            self.evicting.allowed = kvick_runtime::memory::own_balance() - excess / self.server.workers() as i64;
        }
        excess
    }

    /// Evicts keys until memory is no more above its limit, or as much is freed as it was above. Telling of keys that
    /// go takes memory in its turn, for messages that will soon be sent: were more keys to go for that, all of them
    /// might.
    #[cold]
    fn evict(&mut self, excess: i64, freed_before: i64) -> Room {
        let Some(policy) = self.runtime_config.eviction.policy.filter(|_| !self.runtime_config.import_mode) else {
            return Room::Nothing;
        };
        let (heard, began) = (self.heard(), Ticks::now());
        let patience = self.runtime_config.eviction.patience;
        let mut evicted = 0;
        let room = loop {
            // All workers may find at once that memory is above its limit.
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
                heard,
            });
            let Some(bytes) = gone else { break self.await_lazy_free(began, patience) };
            self.record_latency("eviction-del", key_began);
            evicted += 1;
            self.server.eviction.add_freed(bytes);
            self.publish_untold();
            if self.excess() <= 0 {
                break Room::Enough;
            }
            if evicted % KEYS_PER_LOOK == 0 && elapsed(began) > patience {
                break Room::Unfinished;
            }
        };
        self.record_latency("eviction-cycle", began);
        room
    }

    /// Lets others know how much memory is taken by what clients are about to be told.
    pub(super) fn publish_untold(&mut self) {
        let bytes = self.effects.lost_bytes();
        if bytes != self.evicting.untold {
            self.server.eviction.resize_untold(self.evicting.untold, bytes);
            self.evicting.untold = bytes;
        }
    }

    /// No key is left that may go: perhaps it is enough to wait until those are freed that have gone.
    fn await_lazy_free(&mut self, began: Ticks, patience: Duration) -> Room {
        let nap_began = Ticks::now();
        let mut room = Room::Nothing;
        while self.server.keyspace.lazy_free.pending() > 0 && elapsed(began) < patience {
            if self.excess() <= 0 {
                room = Room::Enough;
                break;
            }
            std::thread::sleep(patience.min(NAP));
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

impl Worker {
    /// Whether keys have to go before anything is waited for.
    pub(super) fn is_evicting(&self) -> bool {
        self.engine.evicting.is_unfinished
    }

    /// Goes on where commands would have been held up for too long, and closes connections if all take too much.
    pub(super) fn go_on_evicting(&mut self) {
        if self.engine.evicting.is_unfinished {
            self.engine.within_batch(|engine| {
                engine.make_room();
                engine.settle_consequences();
            });
        }
        let limit = self.engine.runtime_config.eviction.clients_bytes;
        if std::mem::take(&mut self.engine.evicting.clients_are_unseen) {
            for (_, connection) in &self.connections {
                self.server.eviction.clients.account(&connection.client.info);
            }
            clients::enforce_at_once(self.server, limit, self.engine.now_ms);
        } else if limit > 0 {
            clients::enforce(self.server, limit, self.engine.now_ms);
        }
    }

    /// Lets others know how much memory the replies of a batch take, if it is much.
    #[inline]
    pub(super) fn publish_scratch(&mut self) {
        self.engine.publish_scratch(self.replies.capacity());
    }

    /// Takes note of what a connection takes.
    #[inline]
    pub(super) fn account_client(&self, token: usize) {
        if self.engine.accounts_clients()
            && let Some(connection) = self.connections.get(token)
        {
            self.server.eviction.clients.account(&connection.client.info);
        }
    }
}
