//! Evicts keys between turns, and accounts for the memory of connections.

use super::Worker;
use kvick_core::eviction::clients;

impl Worker {
    /// Whether keys must be evicted before the worker waits for anything.
    pub(super) fn is_evicting(&self) -> bool {
        self.engine.is_evicting()
    }

    /// Continues an eviction that would have delayed commands for too long, and closes connections if all of them
    /// together exceed their limit.
    pub(super) fn continue_evicting(&mut self) {
        self.engine.continue_evicting();
        let limit = self.engine.runtime_config.eviction.clients_bytes;
        if self.engine.take_clients_unmeasured() {
            for (_, connection) in &self.connections {
                self.server.eviction.clients.account(&connection.client.info);
            }
            clients::enforce_now(self.server, limit, self.engine.now_ms);
        } else if limit > 0 {
            clients::enforce(self.server, limit, self.engine.now_ms);
        }
    }

    /// Publishes the memory of the worker's reply buffer.
    #[inline]
    pub(super) fn publish_reply_buffer(&mut self) {
        self.engine.publish_reply_buffer(self.replies.bytes.capacity());
    }

    /// Accounts for a connection's memory.
    #[inline]
    pub(super) fn account_client(&self, token: usize) {
        if self.engine.accounts_clients()
            && let Some(connection) = self.connections.get(token)
        {
            self.server.eviction.clients.account(&connection.client.info);
        }
    }
}
