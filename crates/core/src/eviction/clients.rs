//! Client eviction: closes the largest connections while all connections together exceed `maxmemory-clients`.
//!
//! While a limit is set, each worker accounts for its own connections whenever their memory may have changed. Workers
//! compare the sum with the limit before every command and at the end of every turn. A worker that finds the sum above
//! the limit reads the current memory of all connections and dooms the largest: their memory is no longer counted, they
//! execute no more commands, and the workers that own them close them.

use crate::Core;
use crate::clients::{ClientFlags, ClientInfo};
use crate::message::Message;
use kvick_config::tables::logging::HIDE_USER_DATA_FROM_LOG;
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// Milliseconds before the next attempt when no connection could be evicted.
const RETRY_MS: i64 = 100;

/// See the module's documentation.
#[derive(Default)]
pub struct ClientEviction {
    /// Memory of all accounted connections, in bytes.
    sum: AtomicI64,
    /// Unix time in ms until which no further attempt is made, since nothing could be evicted.
    retry_at_ms: AtomicI64,
    /// Memory of the connections that are about to be closed, in bytes.
    closing_bytes: AtomicUsize,
    /// Connections closed.
    evicted: AtomicU64,
    /// Held while connections are selected for eviction.
    selection: Mutex<()>,
}

impl ClientEviction {
    /// Updates the account of a connection. Only its worker may call this.
    pub fn account(&self, client: &ClientInfo) {
        let memory = if client.is_doomed() { 0 } else { client.memory() };
        self.replace(client, memory);
    }

    /// A connection is gone, and what it took is free.
    pub fn forget(&self, client: &ClientInfo) {
        self.replace(client, 0);
        let closing_bytes = client.closing_bytes.swap(0, Ordering::Relaxed);
        if closing_bytes > 0 {
            self.closing_bytes.fetch_sub(closing_bytes, Ordering::Relaxed);
        }
    }

    /// Moves the memory of a connection that is about to be closed from the sum to `closing_bytes`.
    fn mark_closing(&self, client: &ClientInfo, memory: usize) {
        client.closing_bytes.store(memory, Ordering::Relaxed);
        self.closing_bytes.fetch_add(memory, Ordering::Relaxed);
        self.evicted.fetch_add(1, Ordering::Release);
        // Last, so that a worker that sees the smaller sum also sees the counters above.
        self.replace(client, 0);
    }

    /// Bytes that will be freed when the evicted connections are closed.
    pub fn closing_bytes(&self) -> usize {
        self.closing_bytes.load(Ordering::Relaxed)
    }

    #[inline]
    fn replace(&self, client: &ClientInfo, memory: usize) {
        if client.accounted.load(Ordering::Relaxed) != memory {
            let before = client.accounted.swap(memory, Ordering::Relaxed);
            self.sum.fetch_add(memory as i64 - before as i64, Ordering::Release);
        }
    }

    /// Memory of all accounted connections, in bytes.
    #[inline]
    fn sum(&self) -> u64 {
        self.sum.load(Ordering::Acquire).max(0) as u64
    }

    /// Number of connections evicted.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Acquire)
    }

    pub(super) fn reset(&self) {
        self.evicted.store(0, Ordering::Relaxed);
    }
}

/// Evicts the largest connections if all together use more than `limit` bytes.
#[inline]
pub fn enforce(core: &Core, limit: u64, now_ms: i64) {
    if core.eviction.clients.sum() > limit {
        enforce_slow_path(core, limit, now_ms);
    }
}

#[cold]
fn enforce_slow_path(core: &Core, limit: u64, now_ms: i64) {
    if now_ms >= core.eviction.clients.retry_at_ms.load(Ordering::Relaxed) {
        enforce_now(core, limit, now_ms);
    }
}

/// Like [`enforce`], but reads the memory of all connections first: used when the limit has changed.
pub fn enforce_now(core: &Core, limit: u64, now_ms: i64) {
    let state = &core.eviction.clients;
    // One worker at a time: the next one sees all that this one marks.
    let _selection = state.selection.lock();
    let all = core.clients.all();
    let mut sum: u64 = all.iter().map(|client| client.memory() as u64).sum();
    for (client, memory) in largest_first(all) {
        if sum <= limit {
            return;
        }
        sum -= memory as u64;
        if client.doomed.swap(true, Ordering::SeqCst) {
            // Another worker has already doomed it.
            continue;
        }
        // Again, now that its worker allocates no more for it.
        let memory = client.memory();
        kvick_runtime::logging::notice(format_args!(
            "Evicting client: {} tot-mem={memory}",
            client.described(core.config.read(HIDE_USER_DATA_FROM_LOG))
        ));
        state.mark_closing(&client, memory);
        core.send(client.worker(), Message::Close(client));
    }
    if sum > limit {
        state.retry_at_ms.store(now_ms + RETRY_MS, Ordering::Relaxed);
        kvick_runtime::logging::warning(format_args!("Over client maxmemory after evicting all evictable clients"));
    }
}

/// The connections that may be evicted with their memory, largest first.
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
    fn sum_is_the_current_memory_of_all_connections() {
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
    fn evictable_clients_are_sorted_largest_first() {
        let clients = vec![client(1, 10), client(2, 30), client(3, 20), client(4, 40)];
        clients[3].set_flags(ClientFlags::NO_EVICT, true);
        let ids: Vec<u64> = largest_first(clients).into_iter().map(|(client, _)| client.id).collect();
        assert_eq!(ids, [2, 3, 1]);
    }
}
