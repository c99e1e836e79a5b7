//! LPUSH, RPUSH, LPUSHX, RPUSHX: add elements at an end.

use kvick_resp::Args;
use kvick_store::collections::list::Side;
use kvick_store::{Collection, EventClass, List};

use super::push_event;
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// The common parts of the four commands.
const fn spec(name: &'static str) -> Spec {
    Spec::new(name, -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::LIST])
        .keys(const { &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::INSERT])] })
        .args(const { &[Arg::key("key"), Arg::string("element").multiple()] })
}

const COMPLEXITY: &str = "O(N), N being the number of elements added: O(1) for each.";

/// LPUSH key element [element ...]
pub const LPUSH: Command<Handler> = Command::new(
    spec("lpush")
        .doc(Group::List, "1.0.0", COMPLEXITY, "Adds elements at the head of a list, which is created if need be.")
        .history(&[("2.4.0", "Several elements can be given.")]),
    lpush,
);

fn lpush(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    push(cx, args, Side::Head, false)
}

/// RPUSH key element [element ...]
pub const RPUSH: Command<Handler> = Command::new(
    spec("rpush")
        .doc(Group::List, "1.0.0", COMPLEXITY, "Adds elements at the tail of a list, which is created if need be.")
        .history(&[("2.4.0", "Several elements can be given.")]),
    rpush,
);

fn rpush(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    push(cx, args, Side::Tail, false)
}

/// LPUSHX key element [element ...]
pub const LPUSHX: Command<Handler> = Command::new(
    spec("lpushx")
        .doc(Group::List, "2.2.0", COMPLEXITY, "Adds elements at the head of a list, if there is such a list.")
        .history(&[("4.0.0", "Several elements can be given.")]),
    lpushx,
);

fn lpushx(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    push(cx, args, Side::Head, true)
}

/// RPUSHX key element [element ...]
pub const RPUSHX: Command<Handler> = Command::new(
    spec("rpushx")
        .doc(Group::List, "2.2.0", COMPLEXITY, "Adds elements at the tail of a list, if there is such a list.")
        .history(&[("4.0.0", "Several elements can be given.")]),
    rpushx,
);

fn rpushx(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    push(cx, args, Side::Tail, true)
}

#[inline]
fn push(cx: &mut Context<'_>, args: Args<'_>, side: Side, only_existing: bool) -> Result<(), Error> {
    let (key, limits) = (cx.key(args, 1), cx.settings.encoding.list);
    let list = if only_existing {
        let Some(list) = cx.db.write::<List>(key)? else {
            cx.reply.int(0);
            return Ok(());
        };
        list
    } else {
        cx.db.write_or_create::<List>(key)?.0
    };
    match args.shared(2) {
        Some(only) if args.len() == 3 => list.push_shared(side, only, limits),
        _ => list.extend(side, args.iter().skip(2), limits),
    }
    let len = list.len();
    let effects = cx.db.effects();
    effects.changed(args.len() as u64 - 2);
    effects.notify(EventClass::LIST, push_event(side), key.bytes);
    cx.reply.int(len as i64);
    Ok(())
}
