//! Commands that reply without accessing data: PING and ECHO.

use crate::context::{Context, Error, Handler, Receiver};
use crate::spec::{Arg, Categories, Command, Flags, Group, Spec};
use kvick_resp::{Args, Version};

/// The commands of this family.
pub const COMMANDS: &[Command<Handler>] = &[PING, ECHO];

/// PING
pub const PING: Command<Handler> = Command::new(
    Spec::new("ping", -1)
        .flags(&[Flags::SUBSCRIBED, Flags::HEALTH_CHECK, Flags::REPLICAS_ONLY])
        .flags(&[Flags::FAST])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "1.0.0", "O(1)", "Answers PONG, or the given message.")
        .tips(&["request_policy:all_shards", "response_policy:all_succeeded"])
        .args(&[Arg::string("message").optional()]),
    ping,
);

fn ping(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    match args.len() {
        // Between messages, the reply has the form of a message.
        1 | 2 if cx.receiver == Receiver::Subscriber && cx.reply.version() == Version::Resp2 => {
            cx.reply.array(2);
            cx.reply.bulk(b"pong");
            cx.reply.bulk(args.get(1).unwrap_or_default());
        }
        1 => cx.reply.simple("PONG"),
        2 => cx.reply.bulk(&args[1]),
        _ => return Err(Error::text("ERR wrong number of arguments for 'ping' command")),
    }
    Ok(())
}

/// ECHO message
pub const ECHO: Command<Handler> = Command::new(
    Spec::new("echo", 2)
        .flags(&[Flags::LOADING, Flags::STALE, Flags::FAST])
        .acl(&[Categories::CONNECTION])
        .doc(Group::Connection, "1.0.0", "O(1)", "Answers the message it was given.")
        .args(&[Arg::string("message")]),
    echo,
);

fn echo(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.reply.bulk(&args[1]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;

    #[test]
    fn ping_answers_and_echo_repeats() {
        let mut bench = Bench::new(&[super::COMMANDS]);
        assert_eq!(bench.run("PING"), "+PONG");
        assert_eq!(bench.run("PING hello"), "$5 hello");
        assert_eq!(bench.run("ECHO hello"), "$5 hello");
        assert!(bench.run("PING one two").starts_with("-ERR wrong number of arguments for 'ping'"));
    }
}
