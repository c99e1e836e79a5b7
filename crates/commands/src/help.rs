//! The reply of the HELP subcommand of containers.

use kvick_resp::Reply;

/// Replies with the subcommands of `container`. `lines` contains the syntax of each subcommand, followed by
/// explanations that are indented by four blanks.
pub fn reply(reply: &mut Reply<'_>, container: &str, lines: &[&str]) {
    reply.array(lines.len() + 3);
    let name = container.to_ascii_uppercase();
    reply.simple(format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for line in lines {
        reply.simple(line);
    }
    reply.simple("HELP");
    reply.simple("    Show this text.");
}
