//! PUBSUB: introspection of subscriptions.

use crate::commands::help;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Command, Flags, Group, Spec};
use kvick_core::pubsub::Kind;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;

const ASKING: &[Flags] = &[Flags::PUBSUB, Flags::LOADING, Flags::STALE];

/// PUBSUB
pub const PUBSUB: Command<SessionHandler> = Command::container(
    Spec::new("pubsub", -2).doc(Group::PubSub, "2.8.0", "Depends on subcommand.", "A container for Pub/Sub commands."),
    &[CHANNELS, HELP, NUMPAT, NUMSUB, SHARDCHANNELS, SHARDNUMSUB],
);

/// `PUBSUB CHANNELS [pattern]`
pub const CHANNELS: Command<SessionHandler> = Command::new(
    Spec::new("channels", -2)
        .flags(ASKING)
        .doc(Group::PubSub, "2.8.0", "O(N), N being the channels", "Returns the active channels.")
        .args(&[Arg::pattern("pattern").optional()]),
    |cx, args| channels(cx, Kind::Channel, args),
);

/// `PUBSUB SHARDCHANNELS [pattern]`
pub const SHARDCHANNELS: Command<SessionHandler> = Command::new(
    Spec::new("shardchannels", -2)
        .flags(ASKING)
        .doc(Group::PubSub, "7.0.0", "O(N), N being the channels", "Returns the active shard channels.")
        .args(&[Arg::pattern("pattern").optional()]),
    |cx, args| channels(cx, Kind::Shard, args),
);

fn channels(cx: &mut Session<'_>, kind: Kind, args: Args<'_>) -> Result<(), Error> {
    if args.len() > 3 {
        return Err(Error::bad_subcommand("PUBSUB", &args[1]));
    }
    let names = cx.server.pubsub.directory().names(kind, args.get(2));
    cx.reply.array(names.len());
    names.iter().for_each(|name| cx.reply.bulk(name));
    Ok(())
}

/// PUBSUB NUMSUB [channel ...]
pub const NUMSUB: Command<SessionHandler> = Command::new(
    Spec::new("numsub", -2)
        .flags(ASKING)
        .doc(Group::PubSub, "2.8.0", "O(N), N being the channels", "Returns the number of subscribers of channels.")
        .args(&[Arg::string("channel").optional().multiple()]),
    |cx, args| counts(cx, Kind::Channel, args),
);

/// PUBSUB SHARDNUMSUB [shardchannel ...]
pub const SHARDNUMSUB: Command<SessionHandler> = Command::new(
    Spec::new("shardnumsub", -2)
        .flags(ASKING)
        .doc(
            Group::PubSub,
            "7.0.0",
            "O(N), N being the channels",
            "Returns the number of subscribers of shard channels.",
        )
        .args(&[Arg::string("shardchannel").optional().multiple()]),
    |cx, args| counts(cx, Kind::Shard, args),
);

fn counts(cx: &mut Session<'_>, kind: Kind, args: Args<'_>) -> Result<(), Error> {
    let names = args.slice_from(2);
    cx.reply.array(names.len() * 2);
    for name in names.iter() {
        cx.reply.bulk(name);
        cx.reply.uint(cx.server.pubsub.directory().count(kind, name) as u64);
    }
    Ok(())
}

/// PUBSUB NUMPAT
pub const NUMPAT: Command<SessionHandler> = Command::new(
    Spec::new("numpat", 2).flags(ASKING).doc(
        Group::PubSub,
        "2.8.0",
        "O(1)",
        "Returns the number of distinct pattern subscriptions.",
    ),
    numpat,
);

fn numpat(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    cx.reply.uint(cx.server.pubsub.directory().size(Kind::Pattern) as u64);
    Ok(())
}

/// PUBSUB HELP
pub const HELP: Command<SessionHandler> = Command::new(
    Spec::new("help", 2).flags(&[Flags::LOADING, Flags::STALE]).doc(
        Group::PubSub,
        "6.2.0",
        "O(1)",
        "Returns help about the subcommands.",
    ),
    pubsub_help,
);

fn pubsub_help(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    help::reply(
        cx,
        "pubsub",
        &[
            "CHANNELS [<pattern>]",
            "    Return the active channels, all or those that match the pattern.",
            "NUMPAT",
            "    Return the number of distinct pattern subscriptions.",
            "NUMSUB [<channel> ...]",
            "    Return the number of subscribers of each channel, without those of patterns.",
            "SHARDCHANNELS [<pattern>]",
            "    Return the active shard channels, all or those that match the pattern.",
            "SHARDNUMSUB [<shardchannel> ...]",
            "    Return the number of subscribers of each shard channel.",
        ],
    );
    Ok(())
}
