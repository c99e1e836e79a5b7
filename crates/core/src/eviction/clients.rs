//! Eviction of clients: while all connections together take more than they may, the largest are closed.
//!
//! Each worker accounts for its own connections, whenever something about them may have changed, and only while there is a
//! limit. The sum is looked at before every command and at the end of every turn. Whoever finds it above the limit looks at
//! all connections as they are now, marks the largest as doomed, which ends their memory's being counted and keeps them from
//! executing anything, and has their workers close them.

use crate::Core;
use crate::clients::{ClientFlags, ClientInfo};
use crate::message::Message;
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Milliseconds after which it is tried again when all that may be closed was.
const RETRY_MS: i64 = 100;

/// See the module's documentation.
#[derive(Default)]
pub struct ClientEviction {
    /// What all connections that are accounted for take, in bytes.
    sum: AtomicI64,
    /// Unix time in ms until which there is nothing that could be closed.
    futile_until_ms: AtomicI64,
    /// What those take that are about to be closed, in bytes.
    leaving: AtomicUsize,
    /// Connections closed.
    evicted: AtomicU64,
    /// Held while connections are chosen that are to be closed.
    choosing: Mutex<()>,
}

impl ClientEviction {
    /// Accounts for a connection as it is now. Only its worker may do so.
    pub fn account(&self, client: &ClientInfo) {
        let memory = if client.is_doomed() { 0 } else { client.memory() };
        self.replace(client, memory);
    }

    /// A connection is gone, and what it took is free.
    pub fn forget(&self, client: &ClientInfo) {
        self.replace(client, 0);
        let left = client.leaving.swap(0, Ordering::Relaxed);
        if left > 0 {
            self.leaving.fetch_sub(left, Ordering::Relaxed);
        }
    }

    /// A connection is about to be closed that takes so much memory.
    fn dismiss(&self, client: &ClientInfo, memory: usize) {
        client.leaving.store(memory, Ordering::Relaxed);
        self.leaving.fetch_add(memory, Ordering::Relaxed);
        self.evicted.fetch_add(1, Ordering::Release);
        // Last, so that a worker that sees the smaller sum also sees the counters above.
        self.replace(client, 0);
    }

    /// Bytes that will be free as soon as those are closed that are to be closed.
    pub fn leaving(&self) -> usize {
        self.leaving.load(Ordering::Relaxed)
    }

    #[inline]
    fn replace(&self, client: &ClientInfo, memory: usize) {
        if client.accounted.load(Ordering::Relaxed) != memory {
            let before = client.accounted.swap(memory, Ordering::Relaxed);
            self.sum.fetch_add(memory as i64 - before as i64, Ordering::Release);
        }
    }

    /// What connections take together, in bytes, as far as they are accounted for.
    #[inline]
    fn sum(&self) -> u64 {
        self.sum.load(Ordering::Acquire).max(0) as u64
    }

    /// Connections that were closed.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Acquire)
    }

    pub(super) fn reset(&self) {
        self.evicted.store(0, Ordering::Relaxed);
    }
}

/// Has the largest connections closed if all together take more than `limit` bytes.
#[inline]
pub fn enforce(core: &Core, limit: u64, now_ms: i64) {
    if core.eviction.clients.sum() > limit {
        enforce_slowly(core, limit, now_ms);
    }
}

#[cold]
fn enforce_slowly(core: &Core, limit: u64, now_ms: i64) {
    if now_ms >= core.eviction.clients.futile_until_ms.load(Ordering::Relaxed) {
        enforce_at_once(core, limit, now_ms);
    }
}

/// The same, whatever is accounted for so far: the limit is new.
pub fn enforce_at_once(core: &Core, limit: u64, now_ms: i64) {
    let state = &core.eviction.clients;
    // One worker at a time: the next one sees all that this one dismisses.
    let _choosing = state.choosing.lock();
    let all = core.clients.all();
    let mut sum: u64 = all.iter().map(|client| client.memory() as u64).sum();
    for (client, memory) in largest_first(all) {
        if sum <= limit {
            return;
        }
        sum -= memory as u64;
        if client.doomed.swap(true, Ordering::SeqCst) {
            // Another worker was quicker.
            continue;
        }
        // Again, now that its worker allocates no more for it.
        let memory = client.memory();
        kvick_runtime::logging::notice(format_args!(
            "Evicting client: {} tot-mem={memory}",
            client.described(core.config.read(HIDE_USER_DATA_FROM_LOG))
        ));
        state.dismiss(&client, memory);
        core.send(client.worker, Message::Close(client));
    }
    if sum > limit {
        state.futile_until_ms.store(now_ms + RETRY_MS, Ordering::Relaxed);
        kvick_runtime::logging::warning(format_args!("Over client maxmemory after evicting all evictable clients"));
    }
}

/// Those that may be closed, with what they take.
fn largest_first(all: Vec<Arc<ClientInfo>>) -> Vec<(Arc<ClientInfo>, usize)> {
    let mut candidates: Vec<_> = all
        .into_iter()
        .filter(|client| !client.flags().contains(ClientFlags::NO_EVICT))
        .map(|client| {
            let memory = client.memory();
            (client, memory)
        })
        .collect();
    candidates.sort_by_key(|(_, memory)| Reverse(*memory));
    candidates
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(id: u64, input: usize) -> Arc<ClientInfo> {
        let client = ClientInfo::new(id, 0, -1, String::new(), String::new(), true, 0);
        client.input_memory.store(input, Ordering::Relaxed);
        Arc::new(client)
    }

    #[test]
    fn the_sum_is_that_of_the_connections_as_they_are_now() {
        let state = ClientEviction::default();
        let clients = [client(1, 1000), client(2, 5000)];
        clients.iter().for_each(|client| state.account(client));
        let empty = client(3, 0).memory() as u64;
        assert_eq!(state.sum(), 2 * empty + 6000);
        clients[0].input_memory.store(0, Ordering::Relaxed);
        state.account(&clients[0]);
        clients[1].doomed.store(true, Ordering::SeqCst);
        state.account(&clients[1]);
        assert_eq!(state.sum(), empty);
        clients.iter().for_each(|client| state.forget(client));
        assert_eq!(state.sum(), 0);
    }

    #[test]
    fn the_largest_that_may_be_closed_come_first() {
        let clients = vec![client(1, 10), client(2, 30), client(3, 20), client(4, 40)];
        clients[3].set_flags(ClientFlags::NO_EVICT, true);
        let ids: Vec<u64> = largest_first(clients).into_iter().map(|(client, _)| client.id).collect();
        assert_eq!(ids, [2, 3, 1]);
    }
}
