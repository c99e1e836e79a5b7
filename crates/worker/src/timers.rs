//! Periodic work of a worker: expires keys, searches for big keys, closes idle connections, ends pauses.

use super::Worker;
use super::big_keys::BigKeySearch;
use super::blocking::Deadlines;
use super::defrag::DefragState;
use super::handshake::HANDSHAKE_MAX_MS;
use kvick_core::clients::ClientFlags;
use kvick_engine::defrag::Defrag;
use kvick_engine::session::Client;
use kvick_runtime::clock::Ticks;
use kvick_store::Share;
use kvick_store::defrag;
use kvick_store::expire::{Pass, Sweeper};
use std::time::{Duration, Instant};

/// Divisor: each pass checks this share of the connections, so that each is checked about once per second.
const SHARE_PER_PASS: usize = 10;
const CONNECTIONS_PER_PASS_MIN: usize = 5;

/// Interval of checks for clients that wait for the data set to load.
const CHECK_SOON: Duration = Duration::from_millis(5);

/// Time without input after which a connection's input buffer is shrunk to its contents.
const IDLE_INPUT_MS: i64 = 2000;

/// The times at which periodic work is due.
pub struct Timers {
    next: Ticks,
    /// Timeouts of blocked clients.
    pub(super) deadlines: Deadlines,
    sweeper: Sweeper,
    defrag: DefragState,
    pub(super) big_keys: BigKeySearch,
    /// Where the next pass over the connections starts.
    next_connection: usize,
}

impl Timers {
    /// Creates timers that are due at once.
    pub fn new() -> Self {
        Timers {
            next: Ticks::now(),
            deadlines: Deadlines::default(),
            sweeper: Sweeper::default(),
            defrag: DefragState::default(),
            big_keys: BigKeySearch::default(),
            next_connection: 0,
        }
    }

    /// Makes all timers due now.
    pub fn make_due(&mut self) {
        self.next = Ticks::now();
    }

    /// Schedules an early check for clients that wait for the data set to load.
    pub fn check_soon(&mut self) {
        self.next = self.next.min(Ticks::now().after(CHECK_SOON));
    }

    /// Time from `now` until the next timer is due.
    #[inline]
    pub fn wait(&self, now: Ticks, now_ms: i64, defrag: &Defrag) -> Duration {
        let left = self.next.left(now);
        let left = self.defrag.wait(defrag).map_or(left, |wait| left.min(wait));
        self.deadlines.wait(now_ms).map_or(left, |deadline| left.min(deadline))
    }
}

impl Worker {
    /// Runs the timers that are due.
    pub(super) fn run_timers(&mut self) {
        // The engine read the clock at the beginning of the turn or later.
        if self.engine.last >= self.timers.next {
            self.run_due_timers();
        }
    }

    #[inline(never)]
    fn run_due_timers(&mut self) {
        let now = Ticks::now();
        let period = Duration::from_secs(1) / self.engine.runtime_config.hz;
        self.timers.next = now.after(period);
        if self.is_parked() {
            return;
        }
        self.claim_bias();
        self.core_sharing.set_workers(self.server.active_workers());
        if self.server.timers_stopped.load(std::sync::atomic::Ordering::Relaxed) {
            return;
        }
        self.expire(period);
        let us = Ticks::now().us_since(now);
        self.engine.stats.expire_us.add(us);
        self.server.latency.record("expire-cycle", us / 1000, self.engine.runtime_config.latency_threshold_ms);
        self.check_links();
        self.search_big_keys(period);
        self.check_connections();
        for listener in std::mem::take(&mut self.unaccepted) {
            self.accept(listener);
        }
        if !self.paused.is_empty() && self.server.pause.state(self.engine.now_ms).is_none() {
            self.resume_paused();
        } else if let Some(pause) = self.server.pause.state(self.engine.now_ms) {
            let left = Duration::from_millis(pause.until_ms.saturating_sub(self.engine.now_ms).clamp(0, 1000) as u64);
            self.timers.next = self.timers.next.min(now.after(left));
        }
        if self.number == 0 {
            self.server.tick();
        }
        self.engine.stats.timers_us.add(Ticks::now().us_since(now));
    }

    /// Runs a slice of active defragmentation if one is due.
    pub(super) fn defragment(&mut self) {
        if self.server.defrag.percent() > 0 && self.number < self.server.active_workers() {
            self.defragment_now();
        }
    }

    #[cold]
    fn defragment_now(&mut self) {
        let (server, runtime_config) = (self.server, &self.engine.runtime_config);
        let (own, fields_max) = (&mut self.timers.defrag, runtime_config.defrag_fields_max);
        let Some(deadline) = own.begin(&server.defrag, runtime_config.defrag_cycle_us) else { return };
        let threshold_ms = runtime_config.latency_threshold_ms;
        let began = Instant::now();
        if !self.engine.enter() {
            return;
        }
        let mut work = defrag::Work::default();
        let pass = defrag::walk::Pass {
            keyspace: server.keyspace,
            share: Share { worker: self.number, workers: server.active_workers() },
            heap: &mut own.slabs,
            deadline,
            fields_max,
        };
        let mut is_done = own.walk.run(pass, &mut work);
        self.engine.leave();
        if is_done && self.number == 0 {
            is_done = own.defragment_scripts(&server.scripting, deadline, &mut work);
        }
        own.end(&server.defrag, began, is_done);
        let stats = &self.engine.stats;
        stats.defrag_moved.add(work.moved);
        stats.defrag_kept.add(work.kept);
        stats.defrag_keys_moved.add(work.keys_moved);
        stats.defrag_keys_kept.add(work.keys_kept);
        server.latency.record("active-defrag-cycle", began.elapsed().as_millis() as u64, threshold_ms);
    }

    /// Expires keys for at most a quarter of the period, or up to 43 percent depending on the effort setting.
    fn expire(&mut self, period: Duration) {
        if self.number >= self.server.active_workers()
            || self.server.pause.blocks_writes(self.engine.now_ms)
            || self.engine.runtime_config.import_mode
            || !self.server.active_expire.load(std::sync::atomic::Ordering::Relaxed)
        {
            return;
        }
        if self.server.replication.upstream.is_replica() {
            if self.number == 0 {
                self.engine.expire_writable_replica_keys();
            }
            return;
        }
        if self.number == 0 {
            self.engine.forget_writable_replica_keys();
        }
        // This cannot change within a batch: loading and becoming a replica begin under the global lock.
        if self.engine.enter() && !self.engine.is_data_external() {
            self.sweep(period);
        }
        self.engine.leave();
    }

    /// Expires keys; see [`Worker::expire`]. Called within a batch.
    fn sweep(&mut self, period: Duration) {
        let effort = self.engine.runtime_config.expire_effort.saturating_sub(1);
        let (percent, acceptable_percent) = (25 + 2 * effort, 10 - u64::from(effort.min(9)));
        let keyspace = self.server.keyspace;
        let event_mask = self.engine.event_mask();
        let stats = self.engine.stats.clone();
        let ran_out = self.timers.sweeper.run(Pass {
            keyspace,
            share: Share { worker: self.number, workers: self.server.active_workers() },
            now_ms: self.engine.now_ms,
            budget: period * percent / 100,
            acceptable_percent,
            lazy: self.engine.runtime_config.commands.lazy_expire,
            counters: &stats.keyspace,
            effects: self.engine.effects(),
            event_mask,
        });
        self.engine.settle_consequences();
        if ran_out {
            stats.expire_cap_reached.add(1);
        }
    }

    /// Closes connections that were idle or above their soft output limit for too long.
    fn check_connections(&mut self) {
        let count = (self.connections.len() / SHARE_PER_PASS).max(CONNECTIONS_PER_PASS_MIN);
        let timeout_ms = self.engine.runtime_config.timeout.as_millis() as i64;
        let from = self.timers.next_connection;
        let tokens: Vec<usize> = self
            .connections
            .iter()
            .skip_while(|(token, _)| *token < from)
            .take(count)
            .map(|(token, _)| token)
            .collect();
        self.timers.next_connection = if tokens.len() < count { 0 } else { tokens[count - 1] + 1 };
        for token in tokens {
            let Some(connection) = self.connections.get_mut(token) else { continue };
            let idle_ms = idle_ms(&connection.client, self.engine.now_ms);
            if idle_ms > IDLE_INPUT_MS {
                connection.shrink_input();
            }
            if Self::is_doomed(connection) {
                self.close(token);
            } else if timeout_ms > 0 && idle_ms > timeout_ms && connection.may_time_out() {
                kvick_runtime::logging::verbose(format_args!("Closing idle client"));
                self.close(token);
            } else if connection.socket.is_handshaking()
                && self.engine.now_ms - connection.client.info.connected_ms > HANDSHAKE_MAX_MS
            {
                self.abandon(token, "the handshake takes too long");
            } else if connection.above_soft_since.is_some() {
                self.enforce_output_limit(token);
            }
        }
    }
}

fn idle_ms(client: &Client, now_ms: i64) -> i64 {
    if client.info.flags().contains(ClientFlags::BLOCKED) {
        return 0;
    }
    now_ms - client.info.active_ms.load(std::sync::atomic::Ordering::Relaxed)
}
