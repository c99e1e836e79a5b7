//! Acquires the locks under which commands run, and handles locks held by a script.
//!
//! Most locks are free, or are released within microseconds. A script may hold them for long. So a waiting thread
//! periodically does the following:
//!
//! - It leaves its batch for a moment when a thread wants the global lock: that thread may be the script's.
//! - When a script has been running for a while, it stops waiting: the request is blocked by the script, and the
//!   worker continues with others.
//! - When the script exceeds `busy-reply-threshold`, blocked requests are answered with a BUSY error, and so are new
//!   requests that concern more than free keys.
//!
//! **Invariant**: the engine never waits while it holds a lock, except on the thread of a script that runs alone, which
//! may wait for further locks.
//!
//! To lock keys for a request, the engine needs the request's [`Admitted`]. While the worker is outside of its batch,
//! other threads may take the global lock and change users, pause writes, load other data or make the server a replica.
//! So the engine compares the [`Ground`] of the admission again once it holds the locks; from then on it cannot change.
//! If it differs, the engine releases the locks, and the request is checked again from the start.

use super::engine::{Engine, Keys};
use super::permission::Admitted;
use crate::handlers::Handler;
use crate::session::Client;
use crate::transactions::Control;
use kvick_commands::context::Error;
use kvick_commands::spec::Flags;
use kvick_commands::table::{Class, CommandInfo};
use kvick_core::admission::Reasons;
use kvick_core::routing::Routing;
use kvick_resp::Args;
use kvick_scripting::{NoScripts, SharedTurn, Turn};
use kvick_store::global_lock::BiasOwner;
use kvick_store::{Address, Key, Locked};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum number of keys of one command that are prefetched.
const PREFETCHED_MAX: usize = 64;
/// Duration of an attempt to take a lock.
const ATTEMPT: Duration = Duration::from_micros(200);
/// Checks of a condition before a waiting thread lets others run.
const SPINS: u32 = 100;
/// Number of attempts to take a lock after which a script that has been running for a while is assumed
/// to hold it.
const ATTEMPTS_MAX: u32 = 5;

/// Time for which new scripts give precedence to a request that waits for long scripts; each attempt renews it.
const WANTED_MS: i64 = 100;
/// Maximum time for which a script waits for requests that an earlier script blocked.
const PRECEDENCE_MAX: Duration = Duration::from_millis(20);

/// How a command relates to scripts, decided before it takes locks.
pub(super) enum Scripts {
    /// Scripts may run concurrently.
    Any,
    /// The command runs a script alone.
    Own(#[expect(dead_code, reason = "held")] Turn<'static>),
    /// No script may run alone: the command runs a confined one, which waited for others.
    Shared(#[expect(dead_code, reason = "held")] SharedTurn<'static>),
    /// No script may run: the command waits for locks within its batch.
    None(#[expect(dead_code, reason = "held")] NoScripts<'static>),
}

/// When a confined script starts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Confined {
    /// Unless the gate is closed.
    AtOnce,
    /// After those that closed the gate.
    AfterOthers,
}

/// The state on which a request is admitted, limited to what changes only under the global lock: the rights epoch, some
/// reasons of the admission word, whether commands are paused, and the generations of the slot map and of held slots.
#[derive(Clone, Copy)]
pub(super) struct Ground(u64);

impl Ground {
    /// The admission word's reasons that are part of the ground.
    const REASONS: u64 =
        Reasons::LOADING.union(Reasons::ASYNC_LOADING).union(Reasons::REPLICA).union(Reasons::SHUTTING_DOWN).word();
    /// Commands are paused. No reason uses this bit.
    const PAUSED: u64 = 1 << 31;
    /// The lowest bits of the sum of the generations of the slot map and of held slots. No reason uses these bits.
    const SLOTS_SHIFT: u32 = 16;
    const SLOTS_MASK: u64 = 0x7fff;
}

impl Engine {
    /// Enters a batch: until the worker leaves it, no thread can take the global lock. Returns false when a script
    /// holds the global lock and has exceeded its time.
    pub fn enter(&mut self) -> bool {
        let admission = &self.server.admission;
        let global = &self.server.keyspace.global_lock;
        if let Some(bias_owner) = &self.bias_owner {
            self.exclusive = global.enter_exclusive(bias_owner);
            if self.exclusive.is_some() {
                self.in_batch = true;
                return true;
            }
        }
        self.in_batch = global.enter_while(self.participant, || !admission.has(Reasons::BUSY));
        if self.in_batch
            && let Some(bias_owner) = &mut self.bias_owner
        {
            self.exclusive = global.become_exclusive(bias_owner);
        }
        self.in_batch
    }

    /// Whether this engine owns the global lock's bias, or has lent it to a script.
    #[inline]
    pub fn has_bias(&self) -> bool {
        self.bias_owner.is_some()
    }

    /// Gives the bias up for good: another worker is active. Called outside a batch.
    pub fn disown_bias(&mut self) {
        if let Some(bias_owner) = self.bias_owner.take() {
            self.server.keyspace.global_lock.clear_bias_owner(bias_owner);
        }
    }

    /// Makes this engine, which belongs to the only worker, the owner of the global lock's bias.
    pub fn own_bias(&mut self) {
        self.bias_owner = Some(self.server.keyspace.global_lock.set_bias_owner(self.participant));
    }

    /// Gives up exclusive access and the bias, until [`resume_bias`](Self::resume_bias).
    pub fn suspend_bias(&mut self) -> Option<BiasOwner> {
        self.yield_bias();
        self.bias_owner.take()
    }

    /// Takes the bias back.
    pub fn resume_bias(&mut self, bias_owner: Option<BiasOwner>) {
        self.bias_owner = bias_owner;
    }

    /// Gives up exclusive access, so that other threads may access partitions during the current batch.
    #[inline]
    pub fn yield_bias(&mut self) {
        if let Some(exclusive) = self.exclusive.take() {
            self.server.keyspace.global_lock.end_exclusive(self.participant, exclusive);
        }
    }

    /// Leaves the batch.
    pub fn leave(&mut self) {
        if self.in_batch {
            (self.in_batch, self.exclusive) = (false, None);
            self.server.keyspace.global_lock.leave(self.participant);
        }
    }

    /// Runs `work`, which takes locks, within the current batch or a separate one.
    pub fn within_batch<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        if self.in_batch {
            return work(self);
        }
        while !self.enter() {}
        let result = work(self);
        self.leave();
        result
    }

    /// Locks the one key with this hash for a request; `None` when a script holds its lock, or the request is no longer
    /// admitted.
    #[inline]
    pub(super) fn lock_hash(&mut self, admission: Admitted, db: usize, hash: u64) -> Option<Locked> {
        let locked = self.try_hash(db, hash)?;
        self.is_still_admitted(admission).then_some(locked)
    }

    #[inline]
    fn try_hash(&mut self, db: usize, hash: u64) -> Option<Locked> {
        let keyspace = self.server.keyspace;
        match keyspace.try_lock_one(keyspace.address_of_hash(db, hash)) {
            Some(locked) => Some(locked),
            None => self.lock_contended(db, hash),
        }
    }

    #[cold]
    fn lock_contended(&mut self, db: usize, hash: u64) -> Option<Locked> {
        let (keyspace, mut attempts) = (self.server.keyspace, 0);
        loop {
            if let Some(locked) = keyspace.lock_one_while(keyspace.address_of_hash(db, hash), || false) {
                return Some(locked);
            }
            if !self.keep_waiting(&mut attempts) {
                return None;
            }
        }
    }

    /// Locks keys for a request and prefetches the memory of several; `None` when a script holds one of the locks, or
    /// the request is no longer admitted.
    pub(super) fn lock_hashed(&mut self, admission: Admitted, db: usize, keys: &[Key<'_>]) -> Option<Locked> {
        let locked = self.try_hashed(db, keys)?;
        self.is_still_admitted(admission).then_some(locked)
    }

    fn try_hashed(&mut self, db: usize, keys: &[Key<'_>]) -> Option<Locked> {
        let keyspace = self.server.keyspace;
        match keys {
            [] => Some(keyspace.lock_nothing()),
            [key] => self.try_hash(db, key.hash),
            keys => {
                let ahead = keys.iter().take(PREFETCHED_MAX).map(|key| key.hash);
                let ahead = ahead.collect::<SmallVec<[u64; PREFETCHED_MAX]>>();
                keyspace.prefetch(db, &ahead, self.exclusive.as_ref());
                if let Some(exclusive) = &self.exclusive {
                    return Some(keyspace.lock_nothing_alone(exclusive));
                }
                self.try_several(|_| keys.iter().map(|key| keyspace.address(db, *key)).collect())
            }
        }
    }

    /// Locks partitions for a request. `addresses` computes them again whenever they may have changed. `None` when a
    /// script holds one of the locks, or the request is no longer admitted.
    pub(super) fn lock_several(
        &mut self,
        admission: Admitted,
        addresses: impl Fn(&Self) -> Vec<Address>,
    ) -> Option<Locked> {
        let locked = self.try_several(addresses)?;
        self.is_still_admitted(admission).then_some(locked)
    }

    fn try_several(&mut self, addresses: impl Fn(&Self) -> Vec<Address>) -> Option<Locked> {
        let mut attempts = 0;
        loop {
            if let Ok(locked) = self.server.keyspace.lock_all_while(addresses(self), || false) {
                return Some(locked);
            }
            if !self.keep_waiting(&mut attempts) {
                return None;
            }
        }
    }

    /// Locks partitions, however long that takes. Not for requests: the worker may leave its batch meanwhile, so the
    /// caller must check its preconditions under the locks.
    pub(super) fn lock_patiently(&mut self, addresses: impl Fn(&Self) -> Vec<Address>) -> Locked {
        loop {
            if let Some(locked) = self.try_several(&addresses) {
                return locked;
            }
            while !self.in_batch && !self.enter() {}
        }
    }

    /// Locks the keys that a request names; `None` when a script holds one of the locks, or the request is no longer
    /// admitted.
    pub(super) fn lock_keys(&mut self, admission: Admitted, db: usize, args: Args<'_>) -> Option<Locked> {
        let keys: Keys<'_> = self.keys_of(admission.command(), args);
        self.lock_hashed(admission, db, &keys)
    }

    /// Locks the keys that a command names, however long that takes; see [`lock_patiently`](Self::lock_patiently).
    pub(super) fn lock_keys_patiently(&mut self, db: usize, command: &CommandInfo, args: Args<'_>) -> Locked {
        loop {
            let keys: Keys<'_> = self.keys_of(command, args);
            if let Some(locked) = self.try_hashed(db, &keys) {
                return locked;
            }
            while !self.in_batch && !self.enter() {}
        }
    }

    /// Leaves the batch and takes the global lock for a request; `None`, within the batch again, when a script prevents
    /// it or the request is no longer admitted.
    pub(super) fn lock_global(&mut self, admission: Admitted) -> Option<Locked> {
        self.leave();
        let running = &self.server.scripting.running;
        let locked = self.server.keyspace.lock_global_while(|| !running.is_visible());
        if locked.is_none() {
            self.want_all();
        }
        let locked = locked.filter(|_| self.is_still_admitted(admission));
        if locked.is_none() {
            self.enter();
        }
        locked
    }

    /// The current state, for a client whose rights are those of this epoch.
    #[inline]
    pub(super) fn ground(&self, rights: u32) -> Ground {
        let reasons = self.server.admission.word() & Ground::REASONS;
        let paused = if self.server.pause.may_be_active() { Ground::PAUSED } else { 0 };
        let held = &self.server.pause.slots;
        // Both only grow, so their sum changes if one of them does.
        let generation = |routing: &Routing| routing.generation().wrapping_add(held.generation());
        let slots = self.server.routing.as_ref().map_or(0, generation) & Ground::SLOTS_MASK;
        let slots = slots << Ground::SLOTS_SHIFT;
        Ground(kvick_core::admission::Admission::open_word(rights) | reasons | paused | slots)
    }

    /// Whether the data are changed only by another source: they are being loaded or come from a primary.
    pub fn is_data_external(&self) -> bool {
        self.server.admission.has(Reasons::LOADING | Reasons::REPLICA)
    }

    /// Whether a request may still run now that its keys are locked.
    #[inline]
    fn is_still_admitted(&mut self, admission: Admitted) -> bool {
        let changed = self.ground(self.server.admission.rights()).0 ^ admission.ground().0;
        changed == 0 || !self.is_outdated(changed)
    }

    /// Whether a request must be checked again because these bits of its ground changed. A primary's requests always
    /// run, except while other data are being loaded.
    #[cold]
    fn is_outdated(&mut self, changed: u64) -> bool {
        let heeded = if self.executor.is_worker() { u64::MAX } else { Reasons::LOADING.word() };
        self.outdated = changed & heeded != 0;
        self.outdated
    }

    /// Decides how a command relates to scripts before it takes locks; `None` when a script prevents it from running.
    #[inline]
    pub(super) fn settle_scripts(
        &mut self,
        command: &CommandInfo,
        global: bool,
        confined: Option<Confined>,
    ) -> Option<Scripts> {
        match confined {
            Some(_) if self.is_all_wanted() || !self.let_blocked_go_first() => return None,
            Some(Confined::AtOnce) => return Some(Scripts::Any),
            Some(Confined::AfterOthers) => return self.share_turn().map(Scripts::Shared),
            None => {}
        }
        if command.class == Class::Script {
            return self.acquire_turn().map(Scripts::Own);
        }
        if !global && command.spec.flags.contains(Flags::TOUCHES_ARBITRARY_KEYS) {
            let mut attempts = 0;
            loop {
                if let Some(held) = self.server.scripting.without_scripts(|| false) {
                    return self.wait_until(&mut attempts, || held.is_alone()).then_some(Scripts::None(held));
                }
                if !self.keep_waiting(&mut attempts) {
                    return None;
                }
            }
        }
        Some(Scripts::Any)
    }

    /// Waits for scripts that run alone; `None` when one has been running for a while.
    fn share_turn(&mut self) -> Option<SharedTurn<'static>> {
        let mut attempts = 0;
        loop {
            if let Some(turn) = self.server.scripting.share_turn() {
                return Some(turn);
            }
            if !self.keep_waiting(&mut attempts) {
                return None;
            }
        }
    }

    /// Takes the right to run a script alone; `None` when another script has been running for a while.
    pub(super) fn acquire_turn(&mut self) -> Option<Turn<'static>> {
        let mut attempts = 0;
        if !self.let_blocked_go_first() {
            return None;
        }
        loop {
            if let Some(turn) = self.server.scripting.acquire_turn(|| false) {
                return self.wait_until(&mut attempts, || turn.is_alone()).then_some(turn);
            }
            if !self.keep_waiting(&mut attempts) {
                return None;
            }
        }
    }

    /// Waits a moment for other workers to retry requests that the previous script blocked; otherwise consecutive
    /// scripts could starve them. Returns false when the worker left its batch meanwhile and cannot enter it again.
    #[inline]
    fn let_blocked_go_first(&mut self) -> bool {
        let others =
            |engine: &Self| engine.server.scripting.blocked_requests.load(Ordering::Relaxed) > engine.blocked_by_script;
        if others(self) && !self.server.scripting.running.is_visible() {
            let began = Instant::now();
            while others(self) && began.elapsed() < PRECEDENCE_MAX {
                std::thread::sleep(PRECEDENCE_MAX / 100);
                if !self.keep_waiting(&mut 0) {
                    return false;
                }
            }
        }
        true
    }

    /// Waits until the confined scripts of other workers have ended. Returns false when one has been running for a
    /// while. Most end within microseconds, unless their threads are preempted.
    fn wait_until(&mut self, attempts: &mut u32, have_ended: impl Fn() -> bool) -> bool {
        let began = Instant::now();
        let mut spins = 0u32;
        while !have_ended() {
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else if began.elapsed() < ATTEMPT {
                std::thread::yield_now();
            } else {
                std::thread::sleep(ATTEMPT);
                if !self.keep_waiting(attempts) {
                    self.want_all();
                    return false;
                }
            }
        }
        true
    }

    /// A request has to wait until no long script runs.
    fn want_all(&self) {
        self.server.scripting.all_wanted_ms.store(self.unix_us() / 1000, Ordering::Relaxed);
    }

    /// Whether such a request waits for long scripts. New confined scripts then wait as well; otherwise long scripts
    /// that overlap could starve it.
    #[inline]
    fn is_all_wanted(&self) -> bool {
        let scripting = &self.server.scripting;
        let since_ms = || self.unix_us() / 1000 - scripting.all_wanted_ms.load(Ordering::Relaxed);
        scripting.running.is_visible() && since_ms() < WANTED_MS
    }

    /// Whether to continue waiting for a lock. Leaves the batch for a moment when another thread wants the global lock,
    /// so the caller's admission may be outdated afterwards.
    fn keep_waiting(&mut self, attempts: &mut u32) -> bool {
        if self.server.scripting.running.is_visible() {
            *attempts += 1;
            if *attempts > ATTEMPTS_MAX {
                return false;
            }
        }
        if self.in_batch && self.server.keyspace.global_lock.is_requested() {
            self.leave();
            return self.enter();
        }
        true
    }

    /// Whether a command must wait for the end of a pause.
    #[cold]
    pub(super) fn is_paused(&mut self, client: &Client, command: &CommandInfo, args: Args<'_>) -> bool {
        let writes = Flags::WRITE.union(Flags::MAY_REPLICATE);
        if self.server.pause.slots.holds_any() {
            let may_write = self.flags_asked(client, command, args).intersects(writes);
            if self.is_slot_paused(client, command, args, may_write) {
                return true;
            }
        }
        // Monitors, which may not access keys, are not paused.
        match self.server.pause.state_or_clear(self.now_ms) {
            _ if client.is_monitor() => false,
            None => false,
            // As in the reference, a pause of all commands also blocks CLIENT UNPAUSE.
            Some(pause) if pause.pauses_all => true,
            Some(_) => self.flags_asked(client, command, args).intersects(writes),
        }
    }

    /// Whether a script has exceeded `busy-reply-threshold`.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.server.admission.has(Reasons::BUSY)
    }

    /// The error for requests that cannot wait for a script any longer.
    pub(super) fn busy_error(&self) -> Option<Error> {
        if !self.is_busy() {
            return None;
        }
        self.server.scripting.running.current().map(|current| current.kind.busy(self.server))
    }

    /// Whether, while a long script runs, a command concerns more than keys that may be free. A transaction does, so
    /// that all of it runs either before or after the script's end.
    pub(super) fn concerns_script(&self, client: &Client, command: &CommandInfo) -> bool {
        let has_keys = !command.spec.keys.is_empty() || command.spec.find_keys.is_some();
        let is_data = command.data.is_some();
        let may_be_free = has_keys && is_data && client.transaction.is_none();
        self.is_busy() && !command.spec.flags.contains(Flags::ALLOW_BUSY) && !may_be_free
    }

    /// Whether a command that arrives while a long script runs is blocked, because executing or refusing it requires
    /// the locks of watched keys.
    pub(super) fn is_blocked_by_script(&self, client: &Client, command: &CommandInfo) -> bool {
        let about_watched = match self.table.handler(command) {
            Some(Handler::Control(Control::Watch)) => true,
            _ => client.watching.is_some() && command.spec.flags.contains(Flags::UNWATCHES),
        };
        about_watched && self.is_busy()
    }
}
