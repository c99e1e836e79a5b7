//! Publishing messages.

use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Channels, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use kvick_core::pubsub::publication::Address;
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;

const PUBLISHING: &[Flags] =
    &[Flags::PUBSUB, Flags::LOADING, Flags::STALE, Flags::FAST, Flags::MAY_REPLICATE, Flags::REPLICAS_ONLY];

/// PUBLISH channel message
pub const PUBLISH: Command<SessionHandler> = Command::new(
    Spec::new("publish", 3)
        .flags(PUBLISHING)
        .channels(Channels::Published)
        .doc(
            Group::PubSub,
            "2.0.0",
            "O(N+M), N being the channel's subscribers and M all patterns that are subscribed to",
            "Publishes a message to a channel.",
        )
        .args(&[Arg::string("channel"), Arg::string("message")]),
    |cx, args| publish(cx, Address::Channel, args),
);

/// SPUBLISH shardchannel message
pub const SPUBLISH: Command<SessionHandler> = Command::new(
    Spec::new("spublish", 3)
        .flags(PUBLISHING)
        .channels(Channels::Published)
        .keys(&[KeySpec::at(1, &[KeyFlags::NOT_KEY])])
        .doc(
            Group::PubSub,
            "7.0.0",
            "O(N), N being the channel's subscribers",
            "Publishes a message to a shard channel.",
        )
        .args(&[Arg::string("shardchannel"), Arg::string("message")]),
    |cx, args| publish(cx, Address::Shard, args),
);

fn publish(cx: &mut Session<'_>, address: Address, args: Args<'_>) -> Result<(), Error> {
    let receivers = cx.server.publish(cx.executor, address, &args[1], &args[2]);
    if let Some(routing) = &cx.server.routing {
        // Subscribers on other nodes receive it through the cluster bus.
        routing.publish_on_bus(address == Address::Shard, &args[1], &args[2]);
        cx.reply.uint(receivers as u64);
        return Ok(());
    }
    // Subscribers on replicas receive it as well.
    let name: &[u8] = if address == Address::Shard { b"SPUBLISH" } else { b"PUBLISH" };
    cx.effects.propagate_replica_only(&[name, &args[1], &args[2]]);
    cx.reply.uint(receivers as u64);
    Ok(())
}
