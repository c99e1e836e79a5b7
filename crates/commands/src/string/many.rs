//! Several keys in one command: MGET, MSET, MSETNX, MSETEX.
//!
//! A key may be given twice; the last value is kept. Conditions apply to all keys together and are checked before any
//! key is set.

use std::ops::Range;

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::{EventClass, Expiry, IntBuf, Str};
use smallvec::SmallVec;

use super::options::{Condition, Expiration, Options, Syntax, TimeForm};
use super::{reply_string, store};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// MGET key [key ...]
pub const MGET: Command<Handler> = Command::new(
    Spec::new("mget", -2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::STRING])
        .tips(&["request_policy:multi_shard"])
        .keys(&[KeySpec::range(1, -1, 1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::String,
            "1.0.0",
            "O(N), N being the number of keys.",
            "Returns the strings that several keys hold, all at one moment.",
        )
        .args(&[Arg::key("key").multiple()]),
    mget,
);

fn mget(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    cx.reply.array(args.len() - 1);
    for index in 1..args.len() {
        let key = cx.key(args, index);
        match cx.db.get(key).and_then(|entry| entry.str()) {
            None => cx.reply.null(),
            Some(value) => reply_string(&mut cx.reply, value),
        }
    }
    Ok(())
}

/// MSET key value [key value ...]
pub const MSET: Command<Handler> = Command::new(
    Spec::new("mset", -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::STRING])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .keys(&[KeySpec::range(1, -1, 2, &[KeyFlags::OW, KeyFlags::UPDATE])])
        .doc(
            Group::String,
            "1.0.1",
            "O(N), N being the number of keys.",
            "Sets several keys to strings, all at one moment.",
        )
        .args(&[PAIRS]),
    mset,
);

const PAIRS: Arg = Arg::block("data", &[Arg::key("key"), Arg::string("value")]).multiple();

fn mset(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    if args.len().is_multiple_of(2) {
        return Err(Error::text("ERR wrong number of arguments for 'mset' command"));
    }
    store_pairs(cx, args, 1..args.len(), Expiry::None);
    cx.reply.ok();
    Ok(())
}

/// MSETNX key value [key value ...]
pub const MSETNX: Command<Handler> = Command::new(
    Spec::new("msetnx", -3)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::range(1, -1, 2, &[KeyFlags::OW, KeyFlags::INSERT])])
        .doc(
            Group::String,
            "1.0.1",
            "O(N), N being the number of keys.",
            "Sets several keys to strings, only if there is none of them yet.",
        )
        .args(&[PAIRS]),
    msetnx,
);

fn msetnx(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    if args.len().is_multiple_of(2) {
        return Err(Error::text("ERR wrong number of arguments for 'msetnx' command"));
    }
    let absent = all_keys(cx, args, 1..args.len(), false);
    if absent {
        store_pairs(cx, args, 1..args.len(), Expiry::None);
    }
    cx.reply.int(absent as i64);
    Ok(())
}

/// MSETEX numkeys key value [key value ...] [NX | XX]
/// [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]
pub const MSETEX: Command<Handler> = Command::new(
    Spec::new("msetex", -4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::STRING])
        .tips(&["request_policy:multi_shard", "response_policy:all_succeeded"])
        .keys(&[KeySpec::counted(1, 2, &[KeyFlags::OW, KeyFlags::UPDATE])])
        .doc(
            Group::String,
            "9.1.0",
            "O(N), N being the number of keys.",
            "Sets several keys to strings at one moment, on a condition or for a time.",
        )
        .args(&[
            Arg::integer("numkeys"),
            PAIRS,
            Arg::one_of("condition", &[Arg::word("nx", "NX"), Arg::word("xx", "XX")]).optional(),
            Arg::one_of(
                "expiration",
                &[
                    Arg::integer("seconds").token("EX"),
                    Arg::integer("milliseconds").token("PX"),
                    Arg::unix_time("unix-time-seconds").token("EXAT"),
                    Arg::unix_time("unix-time-milliseconds").token("PXAT"),
                    Arg::word("keepttl", "KEEPTTL"),
                ],
            )
            .optional(),
        ]),
    msetex,
);

fn msetex(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const INVALID_COUNT: Error = Error::text("ERR invalid numkeys value or out of range");
    const INVALID_TIME: Error = Error::text("ERR invalid expire time in 'msetex' command");
    const COUNT_MAX: i64 = i32::MAX as i64;
    let count = match parse_i64(&args[1]) {
        Some(count @ 1..=COUNT_MAX) => count as usize,
        _ => return Err(INVALID_COUNT),
    };
    let pairs = 2..2 + 2 * count;
    if pairs.end > args.len() {
        return Err(Error::SYNTAX);
    }
    let options = Options::parse(args, pairs.end, Syntax::MSetEx)?;
    let (expiry, as_received) = match options.expiration {
        Expiration::At(deadline) => {
            let at = deadline.resolve(cx.db.now_ms(), INVALID_TIME)?;
            (Expiry::At(at), deadline.form == TimeForm::UnixMilliseconds)
        }
        Expiration::Keep => (Expiry::Keep, true),
        Expiration::Unsaid | Expiration::Persist => (Expiry::None, true),
    };
    let fits = match options.condition {
        Condition::Absent => all_keys(cx, args, pairs.clone(), false),
        Condition::Present => all_keys(cx, args, pairs.clone(), true),
        Condition::Always | Condition::Equal(_) => true,
    };
    if fits {
        store_pairs(cx, args, pairs.clone(), expiry);
        if let Expiry::At(at) = expiry
            && !as_received
        {
            propagate_with_time(cx, args, pairs, options.condition, at);
        }
    }
    cx.reply.int(fits as i64);
    Ok(())
}

/// Whether all keys, at every second argument of `pairs`, exist (or do not exist, if `exist` is false).
fn all_keys(cx: &mut Context<'_>, args: Args<'_>, pairs: Range<usize>, exist: bool) -> bool {
    pairs.step_by(2).all(|index| {
        let key = cx.key(args, index);
        cx.db.get_for_write(key).is_some() == exist
    })
}

/// Sets the keys at every second argument of `pairs` to the arguments that follow them. An expiry in the past is stored
/// as well; the key has then expired.
fn store_pairs(cx: &mut Context<'_>, args: Args<'_>, pairs: Range<usize>, expiry: Expiry) {
    for index in pairs.step_by(2) {
        let key = cx.key(args, index);
        store(cx, key, args, index + 1, expiry);
        if let Expiry::At(_) = expiry {
            cx.db.effects().notify(EventClass::GENERIC, "expire", key.bytes);
        }
    }
}

/// Propagates MSETEX with an absolute time.
fn propagate_with_time<'a>(
    cx: &mut Context<'_>,
    args: Args<'a>,
    pairs: Range<usize>,
    condition: Condition<'a>,
    at: i64,
) {
    let effects = cx.db.effects();
    if effects.has_readers() {
        let mut digits = IntBuf::default();
        let mut words: SmallVec<[&[u8]; 16]> = args.iter().take(pairs.end).collect();
        condition.append_to(&mut words);
        words.extend([b"PXAT", Str::Int(at).bytes(&mut digits)]);
        effects.propagate(&words);
    }
}

#[cfg(test)]
mod tests {
    use crate::string::COMMANDS;
    use crate::testing::Bench;

    #[test]
    fn mset_and_mget_take_any_number_of_keys() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("MSET a 1 b 2 a 3"), "+OK");
        assert_eq!(bench.run("MGET a n b"), "*3 $1 3 $-1 $1 2");
        assert_eq!(bench.run("MSET a 1 b"), "-ERR wrong number of arguments for 'mset' command");
        assert_eq!(bench.run("MSETNX a 1 b"), "-ERR wrong number of arguments for 'msetnx' command");
        assert_eq!(bench.propagated(), ["MSET a 1 b 2 a 3"]);
    }

    #[test]
    fn msetnx_sets_all_or_nothing() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("MSETNX a 1 a 2"), ":1");
        assert_eq!(bench.run("MSETNX b 1 a 3"), ":0");
        assert_eq!(bench.run("MGET a b"), "*2 $1 2 $-1");
    }

    #[test]
    fn msetex_sets_all_or_nothing_on_either_condition() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("MSETEX 2 a 1 b 1 XX"), ":0");
        assert_eq!(bench.run("MSETEX 1 a 1 NX"), ":1");
        assert_eq!(bench.run("MSETEX 2 a 2 b 2 NX"), ":0");
        assert_eq!(bench.run("MSETEX 2 a 2 b 2 XX"), ":0");
        assert_eq!(bench.run("MGET a b"), "*2 $1 1 $-1");
        assert_eq!(bench.run("MSETEX 2 a 2 b 2"), ":1");
        assert_eq!(bench.run("MSETEX 2 a 3 b 3 XX"), ":1");
        assert_eq!(bench.run("MGET a b"), "*2 $1 3 $1 3");
    }

    #[test]
    fn msetex_sets_one_expiry_for_all_keys() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("MSETEX 2 a 1 b 1 NX PX 10");
        assert_eq!(bench.events(), ["new", "set", "expire", "new", "set", "expire"]);
        bench.run("MSETEX 1 a 2 KEEPTTL");
        bench.run("msetex 1 b 2 pxat 1700000000010");
        bench.run("MSETEX 1 c 1 PXAT 1");
        assert_eq!(bench.run("MGET a b c"), "*3 $1 2 $1 2 $-1");
        bench.now_ms += 11;
        assert_eq!(bench.run("MGET a b"), "*2 $-1 $-1");
        let propagated = [
            "MSETEX 2 a 1 b 1 NX PXAT 1700000000010",
            "MSETEX 1 a 2 KEEPTTL",
            "msetex 1 b 2 pxat 1700000000010",
            "MSETEX 1 c 1 PXAT 1",
            "UNLINK c",
            "MULTI",
            "UNLINK a",
            "UNLINK b",
            "EXEC",
        ];
        assert_eq!(bench.propagated(), propagated);
    }

    #[test]
    fn msetex_validates_the_count() {
        let mut bench = Bench::new(&[COMMANDS]);
        for count in ["0", "-1", "1.5", "x", "2147483648", "9223372036854775808"] {
            let reply = bench.run(&format!("MSETEX {count} a 1"));
            assert_eq!(reply, "-ERR invalid numkeys value or out of range", "{count}");
        }
        for request in
            ["MSETEX 2 a 1", "MSETEX 2147483647 a 1", "MSETEX 1 a 1 b", "MSETEX 1 a 1 GET", "MSETEX 1 a 1 EX"]
        {
            assert_eq!(bench.run(request), "-ERR syntax error", "{request}");
        }
        assert_eq!(bench.run("MSETEX 1 a 1 EX 0"), "-ERR invalid expire time in 'msetex' command");
    }
}
