//! Subscribing and unsubscribing. Each name is answered by its own push; there is no other reply.

use super::LISTENING;
use kvick_commands::context::Error;
use kvick_commands::spec::{Arg, Channels, Command, Flags, Group, KeyFlags, KeySpec, Spec};
use kvick_commands::table::CommandInfo;
use kvick_core::pubsub::{Kind, Name};
use kvick_engine::session::{Session, SessionHandler};
use kvick_resp::Args;

const SHARD_CHANNELS: &[KeySpec] = &[KeySpec::range(1, -1, 1, &[KeyFlags::NOT_KEY])];

/// Whether a command subscribes or unsubscribes.
pub fn is_listening(command: &CommandInfo) -> bool {
    command.spec.flags.contains(Flags::PUBSUB | Flags::NOSCRIPT)
}

const fn listening(name: &'static str, arity: i16) -> Spec {
    Spec::new(name, arity).flags(LISTENING)
}

/// SUBSCRIBE channel [channel ...]
pub const SUBSCRIBE: Command<SessionHandler> = Command::new(
    listening("subscribe", -2)
        .channels(Channels::Subscribed)
        .doc(Group::PubSub, "2.0.0", "O(N), N being the channels", "Subscribes to channels.")
        .args(&[Arg::string("channel").multiple()]),
    |cx, args| subscribe(cx, Kind::Channel, args),
);

/// PSUBSCRIBE pattern [pattern ...]
pub const PSUBSCRIBE: Command<SessionHandler> = Command::new(
    listening("psubscribe", -2)
        .channels(Channels::SubscribedPatterns)
        .doc(Group::PubSub, "2.0.0", "O(N), N being the patterns", "Subscribes to channels that match patterns.")
        .args(&[Arg::pattern("pattern").multiple()]),
    |cx, args| subscribe(cx, Kind::Pattern, args),
);

/// SSUBSCRIBE shardchannel [shardchannel ...]
pub const SSUBSCRIBE: Command<SessionHandler> = Command::new(
    listening("ssubscribe", -2)
        .channels(Channels::Subscribed)
        .keys(SHARD_CHANNELS)
        .doc(Group::PubSub, "7.0.0", "O(N), N being the channels", "Subscribes to shard channels.")
        .args(&[Arg::string("shardchannel").multiple()]),
    |cx, args| subscribe(cx, Kind::Shard, args),
);

/// UNSUBSCRIBE [channel ...]
pub const UNSUBSCRIBE: Command<SessionHandler> = Command::new(
    listening("unsubscribe", -1)
        .doc(Group::PubSub, "2.0.0", "O(N), N being the channels", "Unsubscribes from channels, or from all of them.")
        .args(&[Arg::string("channel").optional().multiple()]),
    |cx, args| unsubscribe(cx, Kind::Channel, args),
);

/// PUNSUBSCRIBE [pattern ...]
pub const PUNSUBSCRIBE: Command<SessionHandler> = Command::new(
    listening("punsubscribe", -1)
        .doc(Group::PubSub, "2.0.0", "O(N), N being the patterns", "Unsubscribes from patterns, or from all of them.")
        .args(&[Arg::pattern("pattern").optional().multiple()]),
    |cx, args| unsubscribe(cx, Kind::Pattern, args),
);

/// SUNSUBSCRIBE [shardchannel ...]
pub const SUNSUBSCRIBE: Command<SessionHandler> = Command::new(
    listening("sunsubscribe", -1)
        .keys(SHARD_CHANNELS)
        .doc(
            Group::PubSub,
            "7.0.0",
            "O(N), N being the channels",
            "Unsubscribes from shard channels, or from all of them.",
        )
        .args(&[Arg::string("shardchannel").optional().multiple()]),
    |cx, args| unsubscribe(cx, Kind::Shard, args),
);

/// The first word of the answer.
fn word(kind: Kind, begins: bool) -> &'static [u8] {
    match (kind, begins) {
        (Kind::Channel, true) => b"subscribe",
        (Kind::Channel, false) => b"unsubscribe",
        (Kind::Pattern, true) => b"psubscribe",
        (Kind::Pattern, false) => b"punsubscribe",
        (Kind::Shard, true) => b"ssubscribe",
        (Kind::Shard, false) => b"sunsubscribe",
    }
}

fn subscribe(cx: &mut Session<'_>, kind: Kind, args: Args<'_>) -> Result<(), Error> {
    // The others are allowed in transactions for compatibility.
    if kind == Kind::Shard && cx.in_transaction {
        return Err(Error::text("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"));
    }
    let mut own = cx.client.subscriptions.take().unwrap_or_default();
    let place = cx.client.info.place();
    for name in args.iter().skip(1) {
        cx.server.pubsub.subscribe(kind, name, place, &mut own);
        answer(cx, kind, true, Some(name), own.total_with(kind));
    }
    cx.client.set_subscriptions(own);
    Ok(())
}

fn unsubscribe(cx: &mut Session<'_>, kind: Kind, args: Args<'_>) -> Result<(), Error> {
    let mut own = cx.client.subscriptions.take().unwrap_or_default();
    let place = cx.client.info.place();
    let all: Vec<Name>;
    let names: &mut dyn Iterator<Item = &[u8]> = if args.len() > 1 {
        &mut args.iter().skip(1)
    } else {
        all = own.names(kind);
        &mut all.iter().map(|name| &**name)
    };
    let mut any = false;
    for name in names {
        cx.server.pubsub.unsubscribe(kind, name, place, &mut own);
        answer(cx, kind, false, Some(name), own.total_with(kind));
        any = true;
    }
    if !any {
        answer(cx, kind, false, None, own.total_with(kind));
    }
    cx.client.set_subscriptions(own);
    Ok(())
}

/// Reports a subscription change and the number of subscriptions.
fn answer(cx: &mut Session<'_>, kind: Kind, begins: bool, name: Option<&[u8]>, total: usize) {
    cx.client.answered_by_pushes = true;
    cx.reply.push(3);
    cx.reply.bulk(word(kind, begins));
    match name {
        Some(name) => cx.reply.bulk(name),
        None => cx.reply.null(),
    }
    cx.reply.uint(total as u64);
}
