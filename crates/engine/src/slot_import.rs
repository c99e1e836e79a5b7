//! Commands of slot imports: those that the source of an atomic slot migration sends.
//!
//! They are executed as sent by the source, whatever the state of this server, and have no replies. One that fails ends
//! the import.

use super::engine::Engine;
use crate::session::{Client, Fate};
use kvick_commands::table::CommandInfo;
use kvick_runtime::logging;

/// Bytes of an error that are logged at most.
const ERROR_SHOWN_MAX: usize = 4096;

impl Engine {
    /// Ends an import, one of whose commands has failed with this reply.
    #[cold]
    pub(super) fn fail_import(&self, client: &mut Client, reply: &[u8]) {
        let line = reply.split(|byte| *byte == b'\r').next().unwrap_or_default();
        let error = String::from_utf8_lossy(&line[..line.len().min(ERROR_SHOWN_MAX)]);
        if !error.starts_with("-OOM") {
            let command = self.server.catalogue.get(client.last_command);
            let name = command.map_or("<unknown>", |command| &*command.full_name);
            logging::warning(format_args!(
                "== CRITICAL == This slot-import-target is sending an error to its slot-import-source: '{error}' after \
                 processing the command '{name}'"
            ));
        }
        self.server.slot_migration.import_failed(self.server, client.info.id, &error);
        client.fate = Fate::Close;
    }

    /// Ends migrations because data were flushed.
    #[inline]
    pub(super) fn end_migrations_after(&self, command: &CommandInfo) {
        if self.server.slot_migration.is_active() && matches!(command.spec.name, "flushall" | "flushdb") {
            self.server.slot_migration.flushed(self.server);
        }
    }
}
