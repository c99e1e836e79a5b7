//! SET, the older commands that it supersedes, and DELIFEQ.
//!
//! SET without options is the most frequent write. It goes straight to the store without parsing or a lookup. With
//! options, the key is looked up first only if a condition or GET requires it.

use kvick_resp::Args;
use kvick_store::{EventClass, Expiry, IntBuf, Key, Str};
use smallvec::SmallVec;

use super::options::{Condition, Deadline, Expiration, Options, Syntax, TimeForm};
use super::{equals, reply_entry, reply_string, store, string_in};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeyPosition, KeyPositions, KeySpec, Spec};

/// `SET key value [NX | XX | IFEQ comparison-value] [GET] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT
/// unix-time-milliseconds | KEEPTTL]`
pub const SET: Command<Handler> = Command::new(
    Spec::new("set", -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE, KeyFlags::VARIABLE_FLAGS])
            .notes("read as well as written when GET is given")])
        .find_keys(set_keys)
        .doc(Group::String, "1.0.0", "O(1)", "Sets a key to a string, whatever it held before.")
        .history(&[
            ("2.6.12", "Added `EX`, `PX`, `NX` and `XX`."),
            ("6.0.0", "Added `KEEPTTL`."),
            ("6.2.0", "Added `GET`, `EXAT` and `PXAT`."),
            ("7.0.0", "`NX` and `GET` may be combined."),
            ("8.1.0", "Added `IFEQ`."),
        ])
        .args(&[
            Arg::key("key"),
            Arg::string("value"),
            Arg::one_of(
                "condition",
                &[
                    Arg::word("nx", "NX").since("2.6.12"),
                    Arg::word("xx", "XX").since("2.6.12"),
                    Arg::string("comparison-value")
                        .token("IFEQ")
                        .since("8.1.0")
                        .summary("Sets the key only if it holds this value now."),
                ],
            )
            .optional(),
            Arg::word("get", "GET").optional().since("6.2.0"),
            Arg::one_of(
                "expiration",
                &[
                    Arg::integer("seconds").token("EX").since("2.6.12"),
                    Arg::integer("milliseconds").token("PX").since("2.6.12"),
                    Arg::unix_time("unix-time-seconds").token("EXAT").since("6.2.0"),
                    Arg::unix_time("unix-time-milliseconds").token("PXAT").since("6.2.0"),
                    Arg::word("keepttl", "KEEPTTL").since("6.0.0"),
                ],
            )
            .optional(),
        ]),
    set,
);

fn set(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    if args.len() > 3 {
        return set_with_options(cx, args);
    }
    let key = cx.key(args, 1);
    store(cx, key, args, 2, Expiry::None);
    cx.reply.ok();
    Ok(())
}

fn set_with_options(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const INVALID_TIME: Error = Error::text("ERR invalid expire time in 'set' command");
    let options = Options::parse(args, 3, Syntax::Set)?;
    let until = match options.expiration {
        Expiration::At(deadline) => Some((deadline.resolve(cx.db.now_ms(), INVALID_TIME)?, deadline.form)),
        _ => None,
    };
    let key = cx.key(args, 1);
    let unconditional = options.condition == Condition::Always && !options.get;
    if !unconditional && !check_condition(cx, key, &options)? {
        if !options.get {
            cx.reply.null();
        }
        return Ok(());
    }

    match until {
        Some((at, form)) => set_until(cx, args, 2, key, at, form == TimeForm::UnixMilliseconds),
        None => {
            let keep = matches!(options.expiration, Expiration::Keep);
            store(cx, key, args, 2, if keep { Expiry::Keep } else { Expiry::None });
            if options.get && cx.db.effects().has_readers() {
                propagate_without_get(cx, args, options.condition, keep);
            }
        }
    }
    if !options.get {
        cx.reply.ok();
    }
    Ok(())
}

/// Looks the key up; returns whether the condition is met. With GET, also replies with the value, which must be a
/// string.
fn check_condition(cx: &mut Context<'_>, key: Key<'_>, options: &Options<'_>) -> Result<bool, Error> {
    let entry = if options.get { cx.db.get(key) } else { cx.db.get_for_write(key) };
    let compared = matches!(options.condition, Condition::Equal(_));
    let value = match entry {
        Some(entry) if options.get || compared => Some(string_in(entry)?),
        _ => None,
    };
    if options.get {
        match value {
            Some(value) => reply_string(&mut cx.reply, value),
            None => cx.reply.null(),
        }
    }
    Ok(match options.condition {
        Condition::Always => true,
        Condition::Absent => entry.is_none(),
        Condition::Present => entry.is_some(),
        Condition::Equal(text) => value.is_some_and(|value| equals(value, text)),
    })
}

/// Sets the key to argument `index` with the expiry `at`, a Unix time in milliseconds. If that is in the past, the key
/// is deleted instead. Propagates a SET with PXAT, unless the command can be propagated `as_received`.
fn set_until(cx: &mut Context<'_>, args: Args<'_>, index: usize, key: Key<'_>, at: i64, as_received: bool) {
    if cx.db.is_due(at) {
        cx.db.expire(key);
        return;
    }
    store(cx, key, args, index, Expiry::At(at));
    let effects = cx.db.effects();
    effects.notify(EventClass::GENERIC, "expire", key.bytes);
    if !as_received && effects.has_readers() {
        let mut digits = IntBuf::default();
        let at = Str::Int(at).bytes(&mut digits);
        effects.propagate(&[b"SET", key.bytes, &args[index], b"PXAT", at]);
    }
}

/// Propagates a SET without its GET option, which only affects the reply.
fn propagate_without_get(cx: &mut Context<'_>, args: Args<'_>, condition: Condition<'_>, keep: bool) {
    let mut words: SmallVec<[&[u8]; 6]> = SmallVec::new();
    words.extend([b"SET", &args[1], &args[2]]);
    condition.append_to(&mut words);
    if keep {
        words.push(b"KEEPTTL");
    }
    cx.db.effects().propagate(&words);
}

/// With GET, the key is read and written, otherwise only overwritten; ACLs distinguish these.
fn set_keys(args: Args<'_>) -> Option<KeyPositions> {
    let get = args.slice_from(3).iter().any(|word| word.eq_ignore_ascii_case(b"get"));
    let access = if get { KeyFlags::RW | KeyFlags::ACCESS } else { KeyFlags::OW };
    let mut found = KeyPositions::new();
    found.push(KeyPosition { index: 1, flags: access | KeyFlags::UPDATE });
    Some(found)
}

/// SETNX key value
pub const SETNX: Command<Handler> = Command::new(
    Spec::new("setnx", 3)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::OW, KeyFlags::INSERT])])
        .doc(Group::String, "1.0.0", "O(1)", "Sets a key to a string, only if there is no such key.")
        .args(&[Arg::key("key"), Arg::string("value")]),
    setnx,
);

fn setnx(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let absent = cx.db.get_for_write(key).is_none();
    if absent {
        store(cx, key, args, 2, Expiry::None);
    }
    cx.reply.int(absent as i64);
    Ok(())
}

/// SETEX key seconds value
pub const SETEX: Command<Handler> = Command::new(
    Spec::new("setex", 4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::OW, KeyFlags::UPDATE])])
        .doc(Group::String, "2.0.0", "O(1)", "Sets a key to a string for a number of seconds.")
        .args(&[Arg::key("key"), Arg::integer("seconds"), Arg::string("value")]),
    setex,
);

fn setex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const INVALID_TIME: Error = Error::text("ERR invalid expire time in 'setex' command");
    set_for(cx, args, TimeForm::Seconds, INVALID_TIME)
}

/// PSETEX key milliseconds value
pub const PSETEX: Command<Handler> = Command::new(
    Spec::new("psetex", 4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::OW, KeyFlags::UPDATE])])
        .doc(Group::String, "2.6.0", "O(1)", "Sets a key to a string for a number of milliseconds.")
        .args(&[Arg::key("key"), Arg::integer("milliseconds"), Arg::string("value")]),
    psetex,
);

fn psetex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const INVALID_TIME: Error = Error::text("ERR invalid expire time in 'psetex' command");
    set_for(cx, args, TimeForm::Milliseconds, INVALID_TIME)
}

fn set_for(cx: &mut Context<'_>, args: Args<'_>, form: TimeForm, invalid: Error) -> Result<(), Error> {
    let at = Deadline { form, text: &args[2] }.resolve(cx.db.now_ms(), invalid)?;
    let key = cx.key(args, 1);
    set_until(cx, args, 3, key, at, false);
    cx.reply.ok();
    Ok(())
}

/// GETSET key value
pub const GETSET: Command<Handler> = Command::new(
    Spec::new("getset", 3)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])])
        .doc(Group::String, "1.0.0", "O(1)", "Sets a key to a string and returns the one it held before.")
        .args(&[Arg::key("key"), Arg::string("value")]),
    getset,
);

fn getset(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    match cx.db.get(key) {
        None => cx.reply.null(),
        Some(entry) => reply_entry(&mut cx.reply, entry)?,
    }
    store(cx, key, args, 2, Expiry::None);
    let effects = cx.db.effects();
    if effects.has_readers() {
        effects.propagate(&[b"SET", key.bytes, &args[2]]);
    }
    Ok(())
}

/// DELIFEQ key value
pub const DELIFEQ: Command<Handler> = Command::new(
    Spec::new("delifeq", 3)
        .flags(&[Flags::FAST, Flags::WRITE])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::RM, KeyFlags::DELETE])])
        .doc(Group::String, "9.0.0", "O(1)", "Deletes a key if it holds this very string.")
        .args(&[Arg::key("key"), Arg::string("value")]),
    delifeq,
);

fn delifeq(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let matched = match cx.db.get_for_write(key) {
        None => false,
        Some(entry) => equals(string_in(entry)?, &args[2]),
    };
    if matched {
        super::get::delete(cx, key);
    }
    cx.reply.int(matched as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::string::COMMANDS;
    use crate::testing::Bench;

    fn bench() -> Bench {
        Bench::new(&[COMMANDS])
    }

    #[test]
    fn set_overwrites_and_fires_an_event() {
        let mut bench = bench();
        assert_eq!(bench.run("SET k one"), "+OK");
        assert_eq!(bench.events(), ["new", "set"]);
        assert_eq!(bench.run("SET k 12"), "+OK");
        assert_eq!(bench.events(), ["set"]);
        assert_eq!(bench.run("GET k"), "$2 12");
        assert_eq!(bench.propagated(), ["SET k one", "SET k 12"]);
    }

    #[test]
    fn failed_condition_changes_nothing() {
        let mut bench = bench();
        assert_eq!(bench.run("SET k a XX"), "$-1");
        assert_eq!(bench.run("SET k a IFEQ a"), "$-1");
        assert_eq!(bench.run("SET k a NX"), "+OK");
        assert_eq!(bench.run("SET k b NX"), "$-1");
        assert_eq!(bench.run("SET k b IFEQ b"), "$-1");
        assert!(bench.events().is_empty());
        assert_eq!(bench.run("SET k 5 IFEQ a"), "+OK");
        assert_eq!(bench.run("SET k 6 IFEQ 5"), "+OK");
        assert_eq!(bench.propagated(), ["SET k a NX", "SET k 5 IFEQ a", "SET k 6 IFEQ 5"]);
    }

    #[test]
    fn get_replies_with_the_old_value_whether_or_not_it_was_replaced() {
        let mut bench = bench();
        assert_eq!(bench.run("SET k a GET XX"), "$-1");
        assert_eq!(bench.run("SET k a GET"), "$-1");
        assert_eq!(bench.run("SET k b GET NX get"), "$1 a");
        assert_eq!(bench.run("SET k get IFEQ a GET KEEPTTL"), "$1 a");
        assert_eq!(bench.run("SET k c IFEQ get GET"), "$3 get");
        assert_eq!(bench.run("SET k d GET EX 1"), "$1 c");
        let propagated = ["SET k a", "SET k get IFEQ a KEEPTTL", "SET k c IFEQ get", "SET k d PXAT 1700000001000"];
        assert_eq!(bench.propagated(), propagated);
    }

    #[test]
    fn times_are_propagated_as_absolute() {
        let mut bench = bench();
        let requests = [
            "SET k v EX 10",
            "SET k v NX PX 10",
            "SET k v PX 10 XX",
            "SET k v EXAT 1700000010",
            "set k v xx pxat 1700000010000",
            "SETEX k 10 v",
            "PSETEX k 10 v",
        ];
        for request in requests {
            bench.run(request);
        }
        let propagated = [
            "SET k v PXAT 1700000010000",
            "SET k v PXAT 1700000000010",
            "SET k v PXAT 1700000010000",
            "set k v xx pxat 1700000010000",
            "SET k v PXAT 1700000010000",
            "SET k v PXAT 1700000000010",
        ];
        assert_eq!(bench.propagated(), propagated);
        assert_eq!(bench.events(), ["set", "expire"]);
    }

    #[test]
    fn key_lives_until_its_expiry_and_plain_set_clears_it() {
        let mut bench = bench();
        bench.run("SET a v PX 10");
        bench.run("SET b v PX 10");
        bench.run("SET b w KEEPTTL");
        bench.run("SET c v PX 10");
        bench.run("SET c w");
        bench.now_ms += 10;
        assert_eq!(bench.run("MGET a b c"), "*3 $1 v $1 w $1 w");
        bench.now_ms += 1;
        assert_eq!(bench.run("MGET a b c"), "*3 $-1 $-1 $1 w");
    }

    #[test]
    fn expiry_in_the_past_removes_the_key() {
        let mut bench = bench();
        assert_eq!(bench.run("SET k v EXAT 1"), "+OK");
        assert_eq!(bench.run("SET k v"), "+OK");
        assert_eq!(bench.run("SET k w GET PXAT 1"), "$1 v");
        assert_eq!(bench.events(), ["expired"]);
        assert_eq!(bench.run("GET k"), "$-1");
        assert_eq!(bench.propagated(), ["SET k v", "UNLINK k"]);
    }

    #[test]
    fn times_are_checked_after_all_options() {
        let mut bench = bench();
        assert_eq!(bench.run("SET k v EX x NO"), "-ERR syntax error");
        assert_eq!(bench.run("SET k v EX x"), "-ERR value is not an integer or out of range");
        assert_eq!(bench.run("SET k v EX 0"), "-ERR invalid expire time in 'set' command");
        assert_eq!(bench.run("SETEX k -1 v"), "-ERR invalid expire time in 'setex' command");
        assert_eq!(bench.run("PSETEX k 0 v"), "-ERR invalid expire time in 'psetex' command");
        assert_eq!(bench.run("GET k"), "$-1");
    }

    #[test]
    fn large_value_is_stored_whole() {
        let mut bench = bench();
        let value = vec![b'x'; 100_000];
        assert_eq!(bench.run_words(&[b"SET", b"k", &value]), b"+OK\r\n");
        assert_eq!(bench.run("STRLEN k"), ":100000");
    }

    #[test]
    fn deprecated_variants() {
        let mut bench = bench();
        assert_eq!(bench.run("SETNX k a"), ":1");
        assert_eq!(bench.run("SETNX k b"), ":0");
        assert_eq!(bench.run("GETSET k b"), "$1 a");
        assert_eq!(bench.run("GETSET n b"), "$-1");
        assert_eq!(bench.propagated(), ["SETNX k a", "SET k b", "SET n b"]);
    }

    #[test]
    fn delifeq_deletes_equal_values() {
        let mut bench = bench();
        bench.run("SET k 12");
        assert_eq!(bench.run("DELIFEQ k 012"), ":0");
        assert_eq!(bench.run("DELIFEQ k 12"), ":1");
        assert_eq!(bench.events(), ["del"]);
        assert_eq!(bench.run("DELIFEQ k 12"), ":0");
        assert_eq!(bench.propagated(), ["SET k 12", "DEL k"]);
    }
}
