//! GET, and the commands that read and change a key: GETEX its expiry, and GETDEL, which deletes it.

use kvick_resp::Args;
use kvick_store::{EventClass, IntBuf, Key, Str};

use super::options::{Expiration, Options, Syntax};
use super::reply_entry;
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// GET key
pub const GET: Command<Handler> = Command::new(
    Spec::new("get", 2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(Group::String, "1.0.0", "O(1)", "Returns the string that a key holds.")
        .args(&[Arg::key("key")]),
    get,
);

fn get(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    match cx.db.get(key) {
        None => cx.reply.null(),
        Some(entry) => reply_entry(&mut cx.reply, entry)?,
    }
    Ok(())
}

/// GETEX key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]
pub const GETEX: Command<Handler> = Command::new(
    Spec::new("getex", -2)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])
            .notes("written because its expiry may change")])
        .doc(Group::String, "6.2.0", "O(1)", "Returns the string that a key holds and sets or clears its expiry.")
        .args(&[
            Arg::key("key"),
            Arg::one_of(
                "expiration",
                &[
                    Arg::integer("seconds").token("EX"),
                    Arg::integer("milliseconds").token("PX"),
                    Arg::unix_time("unix-time-seconds").token("EXAT"),
                    Arg::unix_time("unix-time-milliseconds").token("PXAT"),
                    Arg::word("persist", "PERSIST"),
                ],
            )
            .optional(),
        ]),
    getex,
);

fn getex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const INVALID_TIME: Error = Error::text("ERR invalid expire time in 'getex' command");
    let options = Options::parse(args, 2, Syntax::GetEx)?;
    let deadline = match options.expiration {
        Expiration::At(deadline) => {
            let at = deadline.resolve(cx.db.now_ms(), INVALID_TIME)?;
            Some((at, deadline.form.is_absolute()))
        }
        _ => None,
    };
    let key = cx.key(args, 1);
    let Some(entry) = cx.db.get(key) else {
        cx.reply.null();
        return Ok(());
    };
    reply_entry(&mut cx.reply, entry)?;
    let expires = entry.expiry().is_some();
    match deadline {
        Some((at, true)) if cx.db.is_due(at) => {
            cx.db.expire(key);
        }
        Some((at, _)) => expire_at(cx, key, at),
        None if expires && matches!(options.expiration, Expiration::Persist) => persist(cx, key),
        None => {}
    }
    Ok(())
}

fn expire_at(cx: &mut Context<'_>, key: Key<'_>, at: i64) {
    cx.db.set_expiry(key, Some(at));
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::GENERIC, "expire", key.bytes);
    if effects.has_readers() {
        let mut digits = IntBuf::default();
        effects.propagate(&[b"PEXPIREAT", key.bytes, Str::Int(at).bytes(&mut digits)]);
    }
}

fn persist(cx: &mut Context<'_>, key: Key<'_>) {
    cx.db.set_expiry(key, None);
    let effects = cx.db.effects();
    effects.changed(1);
    effects.propagate(&[b"PERSIST", key.bytes]);
    effects.notify(EventClass::GENERIC, "persist", key.bytes);
}

/// GETDEL key
pub const GETDEL: Command<Handler> = Command::new(
    Spec::new("getdel", 2)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::DELETE])])
        .doc(Group::String, "6.2.0", "O(1)", "Deletes a key and returns the string it held.")
        .args(&[Arg::key("key")]),
    getdel,
);

fn getdel(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    match cx.db.get(key) {
        None => cx.reply.null(),
        Some(entry) => {
            reply_entry(&mut cx.reply, entry)?;
            delete(cx, key);
        }
    }
    Ok(())
}

/// Deletes an existing key and propagates DEL.
pub(super) fn delete(cx: &mut Context<'_>, key: Key<'_>) {
    cx.db.remove(key, false);
    let effects = cx.db.effects();
    effects.changed(1);
    effects.propagate(&[b"DEL", key.bytes]);
    effects.notify(EventClass::GENERIC, "del", key.bytes);
}

#[cfg(test)]
mod tests {
    use crate::string::COMMANDS;
    use crate::testing::Bench;

    #[test]
    fn get_counts_hits_and_misses() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("SET k v");
        assert_eq!(bench.run("GET k"), "$1 v");
        assert_eq!(bench.run("GET n"), "$-1");
        assert_eq!((bench.counters.hits.get(), bench.counters.misses.get()), (1, 1));
    }

    #[test]
    fn getex_sets_and_clears_the_expiry() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("SET k v");
        assert_eq!(bench.run("GETEX k"), "$1 v");
        assert_eq!(bench.run("GETEX k PERSIST"), "$1 v");
        assert!(bench.events().is_empty());
        assert_eq!(bench.run("GETEX k EX 10"), "$1 v");
        assert_eq!(bench.events(), ["expire"]);
        assert_eq!(bench.run("GETEX k PERSIST"), "$1 v");
        assert_eq!(bench.events(), ["persist"]);
        assert_eq!(bench.run("GETEX k PXAT 1700000000005"), "$1 v");
        assert_eq!(bench.run("GETEX k EXAT 1"), "$1 v");
        assert_eq!(bench.events(), ["expired"]);
        assert_eq!(bench.run("GETEX k EX 10"), "$-1");
        let propagated = ["SET k v", "PEXPIREAT k 1700000010000", "PERSIST k", "PEXPIREAT k 1700000000005", "UNLINK k"];
        assert_eq!(bench.propagated(), propagated);
    }

    #[test]
    fn getex_checks_its_options_even_without_a_key() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("GETEX n KEEPTTL"), "-ERR syntax error");
        assert_eq!(bench.run("GETEX n EX 0"), "-ERR invalid expire time in 'getex' command");
    }

    #[test]
    fn getdel_is_propagated_as_del() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("SET k v");
        assert_eq!(bench.run("GETDEL k"), "$1 v");
        assert_eq!(bench.events(), ["del"]);
        assert_eq!(bench.run("GETDEL k"), "$-1");
        assert_eq!(bench.propagated(), ["SET k v", "DEL k"]);
    }
}
