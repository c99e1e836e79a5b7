//! The reply of every container's HELP.

use crate::session::Session;

/// Replies with the subcommands of `container`: `lines` are each one's syntax, with explanations indented by four blanks
/// below it.
pub fn reply(cx: &mut Session<'_>, container: &str, lines: &[&str]) {
    cx.reply.array(lines.len() + 3);
    let name = container.to_ascii_uppercase();
    cx.reply.simple(format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        cx.reply.simple(line);
    }
    cx.reply.simple("HELP");
    cx.reply.simple("    Show this text.");
}
