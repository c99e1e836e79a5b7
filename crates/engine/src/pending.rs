//! Session commands that are answered after their handler has returned, such as WAIT and MIGRATE: their statistics and
//! log entries follow when the answer is delivered.

use super::engine::Engine;
use super::invocation::Invocation;
use crate::session::Client;
use kvick_commands::spec::Flags;
use kvick_commands::table::CommandInfo;
use kvick_core::commandlog::Executed;
use kvick_resp::OwnedArgs;
use kvick_runtime::clock::{self, Ticks};

/// Error code of a command that was ended from outside, which counts as rejected.
const UNBLOCKED: &[u8] = b"-UNBLOCKED ";

/// A command that has not been answered yet.
pub struct PendingCommand {
    command: &'static CommandInfo,
    request: OwnedArgs,
    /// Bit mask of the arguments that logs must not show.
    redacted: u32,
    /// Duration of its handler, in ticks.
    ticks: u64,
}

impl Engine {
    /// The client's command will be answered later.
    pub(super) fn begin_pending(&self, client: &mut Client, invocation: Invocation<'_>) {
        client.pending = Some(Box::new(PendingCommand {
            command: invocation.command,
            request: OwnedArgs::from(invocation.args),
            redacted: client.redacted,
            ticks: Ticks::now().since(self.last),
        }));
    }

    /// Counts and logs the command that a client's reply answers, unless that was done when the reply was created.
    pub fn complete_pending(&self, client: &mut Client, reply: &[u8]) {
        let Some(pending) = client.pending.take() else { return };
        let PendingCommand { command, request, redacted, ticks } = *pending;
        self.stats.count(command.id, ticks, 0, self.runtime_config.latency_tracking);
        let error = reply.strip_prefix(b"-");
        if let Some(error) = error {
            if reply.starts_with(UNBLOCKED) {
                self.stats.commands[command.id as usize].rejected.add(1);
                self.stats.count_error(error);
            } else {
                self.stats.count_failure(command.id, Some(error));
            }
        }
        if !command.spec.flags.contains(Flags::SKIP_COMMANDLOG) {
            let error = error.map(<[u8]>::trim_ascii_end);
            let (args, db) = (request.args(), client.db);
            let executed = Executed { args, client: &client.info, redacted, db, error };
            let thresholds = &self.runtime_config.commandlog;
            self.server.commandlog.record_all(clock::ticks_to_us(ticks), reply.len(), executed, thresholds);
        }
    }
}
