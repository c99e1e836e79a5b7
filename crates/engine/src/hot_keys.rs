//! Samples the keys of commands for HOTKEYS: see [`kvick_core::hot_keys`].
//!
//! A sample is a data command of a client, alone, in a transaction or called by a script, and counts for each key that
//! the command names. What it used is divided equally among its keys. Commands that only look at how a key is stored
//! are not counted, as in Valkey. While nothing is sampled this costs one decrement on the slow path and nothing on the
//! fast path.

use super::engine::Engine;
use super::invocation::Invocation;
use super::slot_usage::request_bytes;
use kvick_commands::random;
use kvick_commands::table::CommandInfo;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::executor::Executor;
use kvick_core::hot_keys::summary::Usage;

/// The full names of commands that are not counted begin with this.
const INTROSPECTION: &str = "object|";

/// What a command used.
#[derive(Clone, Copy)]
pub(super) struct Used {
    /// Its duration.
    pub ticks: u64,
    /// Length of its reply.
    pub reply_bytes: usize,
}

/// Whether a command accesses keys for a client.
fn is_access(command: &CommandInfo) -> bool {
    command.data.is_some() && !command.full_name.starts_with(INTROSPECTION)
}

impl Engine {
    /// Applies the settings. Only workers execute commands of clients.
    pub(super) fn apply_hot_key_settings(&mut self) {
        if self.executor.is_worker() {
            self.sampler.set_percentage(self.runtime_config.hot_keys.effective_percentage(), random::next());
        }
    }

    /// Counts an executed command, and adds its keys to the hot keys if it is a sample.
    #[inline]
    pub(super) fn count_for_sample(&mut self, client: &ClientInfo, db: usize, invocation: Invocation<'_>, used: Used) {
        if self.sampler.advance(1) {
            self.take_sample(client, db, invocation, used);
        }
    }

    /// Adds the keys of a sampled command to the hot keys.
    #[cold]
    #[inline(never)]
    pub(super) fn take_sample(&mut self, client: &ClientInfo, db: usize, invocation: Invocation<'_>, used: Used) {
        self.sampler.restart(random::next());
        let Executor::Worker(worker) = self.executor else { return };
        let Invocation { command, args } = invocation;
        if !is_access(command) || client.flags().intersects(ClientFlags::FROM_LOG | ClientFlags::SLOT_IMPORT) {
            return;
        }
        let keys = self.keys_of(command, args);
        let count = keys.len().max(1) as u64;
        let usage = Usage {
            accesses: 1,
            ticks: used.ticks / count,
            bytes: (request_bytes(args) + used.reply_bytes as u64) / count,
        };
        for key in keys {
            self.server.hot_keys.record(worker, self.server.keyspace, db, key, usage);
        }
    }
}
