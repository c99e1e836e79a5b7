//! The reply of a session container's HELP: the same as that of the data containers.

use kvick_engine::session::Session;

/// Replies with the subcommands of `container`: see [`kvick_commands::help::reply`].
pub fn reply(cx: &mut Session<'_>, container: &str, lines: &[&str]) {
    kvick_commands::help::reply(&mut cx.reply, container, lines);
}
