//! How the engine gets the locks that commands run under, and what it does when a script has them.
//!
//! Most locks are free, or are had by somebody who lets go of them within microseconds. A script may have them for
//! long. So who waits looks around now and then:
//!
//! - It leaves its batch for a moment when the world is wanted: the script may be the one who wants it.
//! - When a script has been running for a while, it gives up: the request is held until the script has ended, and the
//!   worker goes on with others.
//! - When that has been too long, by `busy-reply-threshold`, held requests are answered that the server is busy, and so
//!   are those that come meanwhile and concern more than keys that are free.
//!
//! **What always holds**: the engine waits with nothing locked, but for a script's own thread, which may wait for more
//! locks.
//!
//! To lock keys for a request, the engine needs the request's [`Admitted`]. While the worker is outside of its batch,
//! other threads may take the world and change users, pause writes, load other data or make the server a replica. So
//! the engine compares the [`Ground`] of the admission again once it holds the locks; from there on it cannot change.
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
use kvick_core::clients::ClientFlags;
use kvick_resp::Args;
use kvick_scripting::{NoScripts, Turn};
use kvick_store::{Address, Key, Locked};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Keys of one command that the processor is asked for in advance.
const PREFETCHED_MAX: usize = 64;
/// How often it is looked whether a lock has become free, 200 us apart, before a script that has been running for a
/// while is taken to have it.
const LOOKS_MAX: u32 = 5;

/// How long a script waits at most for those to go first that had to wait for another.
const PRECEDENCE_MAX: Duration = Duration::from_millis(20);

/// What a command has settled about scripts before it takes locks.
pub(super) enum Scripts {
    /// They may run beside it.
    Any,
    /// It is one.
    Own(#[expect(dead_code, reason = "held")] Turn<'static>),
    /// None may run: it waits for locks within its batch.
    None(#[expect(dead_code, reason = "held")] NoScripts<'static>),
}

/// The state on which a request is admitted, of that which changes only under the global lock: the rights epoch, some
/// reasons of the admission word, and whether commands are paused.
#[derive(Clone, Copy)]
pub(super) struct Ground(u64);

impl Ground {
    /// The reasons that are part of it.
    const REASONS: u64 =
        Reasons::LOADING.union(Reasons::LOADING_BESIDE).union(Reasons::REPLICA).union(Reasons::ENDING).word();
    /// Commands are paused. No reason has this bit.
    const PAUSED: u64 = 1 << 31;
}

impl Engine {
    /// Enters a batch: until it is left, nobody has the world. False when a script has that, and has had it for too
    /// long.
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

    /// Lets others touch partitions beside the present batch.
    #[inline]
    pub(super) fn yield_bias(&mut self) {
        if let Some(exclusive) = self.exclusive.take() {
            self.server.keyspace.global_lock.receive(self.participant, exclusive);
        }
    }

    /// Leaves it.
    pub fn leave(&mut self) {
        if self.in_batch {
            (self.in_batch, self.exclusive) = (false, None);
            self.server.keyspace.global_lock.leave(self.participant);
        }
    }

    /// Runs `work`, which takes locks, within the present batch or one of its own.
    pub(super) fn within_batch<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> T {
        if self.in_batch {
            return work(self);
        }
        while !self.enter() {}
        let result = work(self);
        self.leave();
        result
    }

    /// Locks the one key with this hash for a request; `None` when a script has it, or the request is no longer
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
        let (keyspace, mut looks) = (self.server.keyspace, 0);
        loop {
            if let Some(locked) = keyspace.lock_one_while(keyspace.address_of_hash(db, hash), || false) {
                return Some(locked);
            }
            if !self.goes_on_waiting(&mut looks) {
                return None;
            }
        }
    }

    /// Locks keys for a request, and asks the processor for what several of them will touch; `None` when a script has
    /// one of them, or the request is no longer admitted.
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

    /// Locks partitions for a request, which `addresses` names anew whenever they may be others; `None` when a script
    /// has one of them, or the request is no longer admitted.
    pub(super) fn lock_several(
        &mut self,
        admission: Admitted,
        addresses: impl Fn(&Self) -> Vec<Address>,
    ) -> Option<Locked> {
        let locked = self.try_several(addresses)?;
        self.is_still_admitted(admission).then_some(locked)
    }

    fn try_several(&mut self, addresses: impl Fn(&Self) -> Vec<Address>) -> Option<Locked> {
        let mut looks = 0;
        loop {
            if let Ok(locked) = self.server.keyspace.lock_all_while(addresses(self), || false) {
                return Some(locked);
            }
            if !self.goes_on_waiting(&mut looks) {
                return None;
            }
        }
    }

    /// Locks partitions, however long that takes. Not for a request: the worker may leave its batch, and the caller
    /// checks under the locks what it needs to.
    pub(super) fn lock_patiently(&mut self, addresses: impl Fn(&Self) -> Vec<Address>) -> Locked {
        loop {
            if let Some(locked) = self.try_several(&addresses) {
                return locked;
            }
            while !self.in_batch && !self.enter() {}
        }
    }

    /// Locks the keys that a request names; `None` when a script has one of them, or the request is no longer admitted.
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

    /// Leaves the batch and takes the world for a request; `None`, within the batch again, when a script keeps it from
    /// that, or when the request is no longer admitted.
    pub(super) fn lock_global(&mut self, admission: Admitted) -> Option<Locked> {
        self.leave();
        let running = &self.server.scripting.running;
        let locked = self.server.keyspace.lock_global_while(|| !running.is_shown());
        let locked = locked.filter(|_| self.is_still_admitted(admission));
        if locked.is_none() {
            self.enter();
        }
        locked
    }

    /// The present state, for a client whose rights are those of this epoch.
    #[inline]
    pub(super) fn ground(&self, rights: u32) -> Ground {
        let reasons = self.server.admission.word() & Ground::REASONS;
        let paused = if self.server.pause.is_there() { Ground::PAUSED } else { 0 };
        Ground(kvick_core::admission::Admission::open_word(rights) | reasons | paused)
    }

    /// Whether the data change by somebody else's will alone: they are being loaded, or a primary's.
    pub(super) fn is_others_data(&self) -> bool {
        self.server.admission.has(Reasons::LOADING | Reasons::REPLICA)
    }

    /// Whether a request may still run, now that its keys are locked.
    #[inline]
    fn is_still_admitted(&mut self, admission: Admitted) -> bool {
        let changed = self.ground(self.server.admission.rights()).0 ^ admission.ground().0;
        changed == 0 || !self.is_outdated(changed)
    }

    /// Whether a request has to be checked again because these bits of its ground changed. Requests of a primary run in
    /// any case, except while other data is being loaded.
    #[cold]
    fn is_outdated(&mut self, changed: u64) -> bool {
        let heeded = if self.executor.is_worker() { u64::MAX } else { Reasons::LOADING.word() };
        self.outdated = changed & heeded != 0;
        self.outdated
    }

    /// Settles, before a command takes locks, how it stands to scripts; `None` when one keeps it from running.
    #[inline]
    pub(super) fn settle_scripts(&mut self, command: &CommandInfo, global: bool) -> Option<Scripts> {
        if command.class == Class::Script {
            return self.take_turn().map(Scripts::Own);
        }
        if !global && command.spec.flags.contains(Flags::TOUCHES_ARBITRARY_KEYS) {
            let mut looks = 0;
            loop {
                if let Some(held) = self.server.scripting.without_scripts(|| false) {
                    return Some(Scripts::None(held));
                }
                if !self.goes_on_waiting(&mut looks) {
                    return None;
                }
            }
        }
        Some(Scripts::Any)
    }

    /// Takes the right to run a script; `None` when another has been running for a while.
    pub(super) fn take_turn(&mut self) -> Option<Turn<'static>> {
        let mut looks = 0;
        if !self.let_held_go_first() {
            return None;
        }
        loop {
            if let Some(turn) = self.server.scripting.take_turn(|| false) {
                return Some(turn);
            }
            if !self.goes_on_waiting(&mut looks) {
                return None;
            }
        }
    }

    /// Waits a moment for the other workers to try again what had to wait for the script before: else script after
    /// script could keep them from it. False when the batch was left meanwhile and cannot be entered again.
    #[inline]
    fn let_held_go_first(&mut self) -> bool {
        let others = |engine: &Self| engine.server.scripting.held.load(Ordering::Relaxed) > engine.held;
        if others(self) && !self.server.scripting.running.is_shown() {
            let began = Instant::now();
            while others(self) && began.elapsed() < PRECEDENCE_MAX {
                std::thread::sleep(PRECEDENCE_MAX / 100);
                if !self.goes_on_waiting(&mut 0) {
                    return false;
                }
            }
        }
        true
    }

    /// Whether to go on waiting for a lock. Leaves the batch for a moment when another thread wants the world, so the
    /// caller's admission may be outdated afterwards.
    fn goes_on_waiting(&mut self, looks: &mut u32) -> bool {
        if self.server.scripting.running.is_shown() {
            *looks += 1;
            if *looks > LOOKS_MAX {
                return false;
            }
        }
        if self.in_batch && self.server.keyspace.global_lock.is_wanted() {
            self.leave();
            return self.enter();
        }
        true
    }

    /// Whether a command has to wait for the end of a pause.
    #[cold]
    pub(super) fn is_paused(&mut self, client: &Client, command: &CommandInfo, args: Args<'_>) -> bool {
        // Monitors, which may not use keys, go on.
        match self.server.pause.state_or_forget(self.now_ms) {
            _ if client.is_monitor() => false,
            None => false,
            // As in the reference, a pause of all commands holds CLIENT UNPAUSE too.
            Some((_, true)) => true,
            Some((_, false)) => {
                self.flags_asked(client, command, args).intersects(Flags::WRITE.union(Flags::MAY_REPLICATE))
            }
        }
    }

    /// Whether a script has been running for longer than it should.
    #[inline]
    pub(super) fn is_busy(&self) -> bool {
        self.server.admission.has(Reasons::BUSY)
    }

    /// What those are told whose requests cannot wait for a script any longer.
    pub(super) fn busy_error(&self) -> Option<Error> {
        if !self.is_busy() {
            return None;
        }
        self.server.scripting.running.current().map(|current| current.kind.busy(self.server))
    }

    /// Whether a command, while a script takes too long, concerns more than keys that may be free. A transaction does:
    /// its client should not have to wonder which of its parts came before the script's end.
    pub(super) fn concerns_script(&self, client: &Client, command: &CommandInfo) -> bool {
        let has_keys = !command.spec.keys.is_empty() || command.spec.find_keys.is_some();
        let is_data = command.data.is_some();
        let may_be_free = has_keys && is_data && client.transaction.is_none();
        self.is_busy() && !command.spec.flags.contains(Flags::ALLOW_BUSY) && !may_be_free
    }

    /// Whether a command that comes while a script takes too long has to be held, since to execute or to refuse it
    /// takes the locks of keys that are watched.
    pub(super) fn is_held_by_script(&self, client: &Client, command: &CommandInfo) -> bool {
        let about_watched = match self.table.handler(command) {
            Some(Handler::Control(Control::Watch)) => true,
            _ => client.watching.is_some() && command.spec.flags.contains(Flags::UNWATCHES),
        };
        about_watched && self.is_busy()
    }
}

impl super::Worker {
    /// Holds a connection until the script has ended that has what its next request needs.
    pub(super) fn hold_for_script(&mut self, token: usize) {
        self.engine.held += 1;
        self.server.scripting.held.fetch_add(1, Ordering::SeqCst);
        self.paused.push(token);
        self.stop(token, ClientFlags::BLOCKED);
    }

    /// Those that were held and have been tried again do not keep scripts from beginning any more.
    pub(super) fn forget_resumed(&mut self) {
        let tried = std::mem::take(&mut self.resumed);
        if tried > 0 {
            self.engine.held -= tried;
            self.server.scripting.held.fetch_sub(tried, Ordering::SeqCst);
        }
    }
}
