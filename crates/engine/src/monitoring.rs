//! MONITOR: shows executed commands to monitors.
//!
//! A line is put into the inboxes while the command's locks are held, so lines about a key arrive in the order of
//! execution; those of a transaction arrive together. Without monitors this code is never reached: the engine tests one
//! bit of the admission word, which it reads anyway.

use super::engine::Engine;
use super::invocation::Invocation;
use crate::session::Client;
use kvick_commands::spec::Flags;
use kvick_core::admission::Reasons;
use kvick_core::monitor::{Origin, write_line};
use kvick_resp::Args;
use kvick_runtime::clock;

impl Engine {
    /// Whether any monitor is connected.
    #[inline]
    pub fn is_monitored(&self) -> bool {
        self.server.admission.has(Reasons::MONITORED)
    }

    /// Shows a client's command that was just executed to the monitors.
    #[inline]
    pub(super) fn monitor(&mut self, client: &Client, invocation: Invocation<'_>) {
        let Invocation { command, args } = invocation;
        if self.is_monitored() && !command.spec.flags.intersects(Flags::ADMIN | Flags::SKIP_MONITOR) {
            self.write_monitor_line(Origin::Client(&client.info), client.db, args, client.redacted);
        }
    }

    /// Shows a command that runs a script, before those that the script calls.
    #[inline]
    pub(super) fn monitor_script_call(&mut self, client: &Client, args: Args<'_>) {
        if self.is_monitored() {
            self.write_monitor_line(Origin::Client(&client.info), client.db, args, client.redacted);
        }
    }

    /// Shows a command that a script called.
    #[inline]
    pub(super) fn monitor_called(&mut self, client: &Client, invocation: Invocation<'_>) {
        let Invocation { command, args } = invocation;
        if self.is_monitored() && !command.spec.flags.intersects(Flags::ADMIN | Flags::SKIP_MONITOR) {
            self.write_monitor_line(Origin::Script, client.db, args, client.redacted);
        }
    }

    /// Shows a command executed in a database, regardless of the command's flags.
    #[cold]
    fn write_monitor_line(&mut self, origin: Origin<'_>, db: usize, args: Args<'_>, redacted: u32) {
        if self.server.admission.has(Reasons::LOADING) {
            return;
        }
        write_line(&mut self.monitor_lines.text, clock::unix_us(), db, origin, args, redacted);
        self.send_monitor_lines();
    }

    /// Sends the lines that are ready.
    pub(super) fn send_monitor_lines(&mut self) {
        if let Some(lines) = self.monitor_lines.take() {
            self.server.feed_monitors(self.executor, &lines);
        }
    }
}
