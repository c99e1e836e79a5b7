//! Key expiry: EXPIRE and its variants set it, TTL and its variants return it, PERSIST removes it.
//!
//! Times are stored and propagated as Unix times in milliseconds. Setting a time in the past deletes the key at once.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::{EventClass, IntBuf, Str};
use smallvec::SmallVec;

use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

const UPDATED_KEY: &[KeySpec] = &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::UPDATE])];
const READ_KEY: &[KeySpec] = &[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])];
const KEY: &[Arg] = &[Arg::key("key")];
const CONDITION: Arg = CONDITIONS.since("7.0.0");
/// The conditions in COMMAND DOCS.
pub(crate) const CONDITIONS: Arg = Arg::one_of(
    "condition",
    &[Arg::word("nx", "NX"), Arg::word("xx", "XX"), Arg::word("gt", "GT"), Arg::word("lt", "LT")],
)
.optional();

/// The common parts of the commands that set the expiry.
const fn setter(name: &'static str, since: &'static str, summary: &'static str, args: &'static [Arg]) -> Spec {
    Spec::new(name, -3)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .keys(UPDATED_KEY)
        .doc(Group::Generic, since, "O(1)", summary)
        .history(&[("7.0.0", "Added `NX`, `XX`, `GT` and `LT`.")])
        .args(args)
}

/// EXPIRE key seconds [NX | XX | GT | LT]
pub const EXPIRE: Command<Handler> = Command::new(
    setter(
        "expire",
        "1.0.0",
        "Lets a key expire after a number of seconds.",
        &[Arg::key("key"), Arg::integer("seconds"), CONDITION],
    ),
    |cx, args| {
        const INVALID: Error = Error::text("ERR invalid expire time in 'expire' command");
        let now_ms = cx.db.now_ms();
        expire(cx, args, Form { unit_ms: 1000, since_ms: now_ms, invalid: INVALID })
    },
);

/// PEXPIRE key milliseconds [NX | XX | GT | LT]
pub const PEXPIRE: Command<Handler> = Command::new(
    setter(
        "pexpire",
        "2.6.0",
        "Lets a key expire after a number of milliseconds.",
        &[Arg::key("key"), Arg::integer("milliseconds"), CONDITION],
    ),
    |cx, args| {
        const INVALID: Error = Error::text("ERR invalid expire time in 'pexpire' command");
        let now_ms = cx.db.now_ms();
        expire(cx, args, Form { unit_ms: 1, since_ms: now_ms, invalid: INVALID })
    },
);

/// EXPIREAT key unix-time-seconds [NX | XX | GT | LT]
pub const EXPIREAT: Command<Handler> = Command::new(
    setter(
        "expireat",
        "1.2.0",
        "Lets a key expire at a Unix time in seconds.",
        &[Arg::key("key"), Arg::unix_time("unix-time-seconds"), CONDITION],
    ),
    |cx, args| {
        const INVALID: Error = Error::text("ERR invalid expire time in 'expireat' command");
        expire(cx, args, Form { unit_ms: 1000, since_ms: 0, invalid: INVALID })
    },
);

/// PEXPIREAT key unix-time-milliseconds [NX | XX | GT | LT]
pub const PEXPIREAT: Command<Handler> = Command::new(
    setter(
        "pexpireat",
        "2.6.0",
        "Lets a key expire at a Unix time in milliseconds.",
        &[Arg::key("key"), Arg::unix_time("unix-time-milliseconds"), CONDITION],
    ),
    |cx, args| {
        const INVALID: Error = Error::text("ERR invalid expire time in 'pexpireat' command");
        expire(cx, args, Form { unit_ms: 1, since_ms: 0, invalid: INVALID })
    },
);

/// The meaning of a command's time argument.
struct Form {
    /// Milliseconds per unit.
    unit_ms: i64,
    /// The Unix time that the argument is relative to.
    since_ms: i64,
    /// The error if the number is too large.
    invalid: Error,
}

impl Form {
    /// The Unix time in milliseconds. Times before the epoch become the epoch, which is in the past as well.
    fn resolve(&self, text: &[u8]) -> Result<i64, Error> {
        let number = parse_i64(text).ok_or(Error::NOT_INTEGER)?;
        let ms = number.checked_mul(self.unit_ms).and_then(|ms| ms.checked_add(self.since_ms));
        ms.map(|ms| ms.max(0)).ok_or_else(|| self.invalid.clone())
    }

    /// Whether the argument is already a Unix time in milliseconds.
    fn is_final(&self) -> bool {
        self.unit_ms == 1 && self.since_ms == 0
    }
}

/// The conditions for setting the expiry.
#[derive(Default)]
pub(crate) struct Conditions {
    /// NX: the key has no expiry.
    absent: bool,
    /// XX: the key has an expiry.
    present: bool,
    /// GT: the new expiry is later than the current one; a key without expiry never expires.
    later: bool,
    /// LT: the new expiry is earlier.
    earlier: bool,
}

impl Conditions {
    /// Parses the conditions.
    pub(crate) fn parse<'a>(words: impl Iterator<Item = &'a [u8]>) -> Result<Conditions, Error> {
        const NX_AND_OTHERS: Error = Error::text("ERR NX and XX, GT or LT options at the same time are not compatible");
        const GT_AND_LT: Error = Error::text("ERR GT and LT options at the same time are not compatible");
        let mut conditions = Conditions::default();
        for word in words {
            let asked = match word.to_ascii_lowercase().as_slice() {
                b"nx" => &mut conditions.absent,
                b"xx" => &mut conditions.present,
                b"gt" => &mut conditions.later,
                b"lt" => &mut conditions.earlier,
                _ => return Err(Error::quoting(&[b"ERR Unsupported option ", word])),
            };
            *asked = true;
        }
        if conditions.absent && (conditions.present || conditions.later || conditions.earlier) {
            return Err(NX_AND_OTHERS);
        }
        if conditions.later && conditions.earlier {
            return Err(GT_AND_LT);
        }
        Ok(conditions)
    }

    /// Whether `at` may replace `present`.
    pub(crate) fn allow(&self, at: i64, present: Option<i64>) -> bool {
        !(self.absent && present.is_some()
            || self.present && present.is_none()
            || self.later && present.is_none_or(|present| at <= present)
            || self.earlier && present.is_some_and(|present| at >= present))
    }
}

fn expire(cx: &mut Context<'_>, args: Args<'_>, form: Form) -> Result<(), Error> {
    let options = args.slice_from(3);
    let conditions = Conditions::parse(options.iter())?;
    let at = form.resolve(&args[2])?;
    let key = cx.key(args, 1);
    let allowed = cx.db.get_for_write(key).is_some_and(|entry| conditions.allow(at, entry.expiry()));
    cx.reply.int(allowed as i64);
    if !allowed {
        return Ok(());
    }
    if cx.db.is_due(at) {
        cx.db.expire(key);
        return Ok(());
    }
    cx.db.set_expiry(key, Some(at));
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::GENERIC, "expire", key.bytes);
    if !form.is_final() && effects.has_readers() {
        let mut digits = IntBuf::default();
        let mut words: SmallVec<[&[u8]; 6]> = SmallVec::new();
        words.extend([b"PEXPIREAT", key.bytes, Str::Int(at).bytes(&mut digits)]);
        words.extend(options.iter());
        effects.propagate(&words);
    }
    Ok(())
}

/// The common parts of the commands that return an expiry.
const fn getter(name: &'static str, since: &'static str, summary: &'static str) -> Spec {
    Spec::new(name, 2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .keys(READ_KEY)
        .doc(Group::Generic, since, "O(1)", summary)
        .args(KEY)
}

/// The common parts of the commands that return the time left.
const fn countdown(name: &'static str, since: &'static str, summary: &'static str) -> Spec {
    getter(name, since, summary)
        .tips(&["nondeterministic_output"])
        .history(&[("2.8.0", "Added the reply -2 for a key that does not exist.")])
}

/// TTL key
pub const TTL: Command<Handler> =
    Command::new(countdown("ttl", "1.0.0", "Tells in how many seconds a key will expire."), |cx, args| {
        let now_ms = cx.db.now_ms();
        reply_expiry(cx, args, |at| rounded_seconds(left_ms(at, now_ms)))
    });

/// PTTL key
pub const PTTL: Command<Handler> =
    Command::new(countdown("pttl", "2.6.0", "Tells in how many milliseconds a key will expire."), |cx, args| {
        let now_ms = cx.db.now_ms();
        reply_expiry(cx, args, |at| left_ms(at, now_ms))
    });

/// EXPIRETIME key
pub const EXPIRETIME: Command<Handler> = Command::new(
    getter("expiretime", "7.0.0", "Tells the Unix time in seconds at which a key will expire."),
    |cx, args| reply_expiry(cx, args, rounded_seconds),
);

/// PEXPIRETIME key
pub const PEXPIRETIME: Command<Handler> = Command::new(
    getter("pexpiretime", "7.0.0", "Tells the Unix time in milliseconds at which a key will expire."),
    |cx, args| reply_expiry(cx, args, |at| at),
);

/// The time left in milliseconds. In import mode, an expired key may be visible; its time left is 0.
pub(crate) fn left_ms(at: i64, now_ms: i64) -> i64 {
    at.saturating_sub(now_ms).max(0)
}

/// Seconds, rounded half up.
pub(crate) fn rounded_seconds(ms: i64) -> i64 {
    ms / 1000 + i64::from(ms % 1000 >= 500)
}

/// Replies with the result of `of` for the expiry of the key; -1 if it has none, -2 if the key does not exist.
fn reply_expiry(cx: &mut Context<'_>, args: Args<'_>, of: impl FnOnce(i64) -> i64) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let ttl = match cx.db.get_untouched(key) {
        None => -2,
        Some(entry) => entry.expiry().map_or(-1, of),
    };
    cx.reply.int(ttl);
    Ok(())
}

/// PERSIST key
pub const PERSIST: Command<Handler> = Command::new(
    Spec::new("persist", 2)
        .flags(&[Flags::WRITE, Flags::FAST])
        .acl(&[Categories::KEYSPACE])
        .keys(UPDATED_KEY)
        .doc(Group::Generic, "2.2.0", "O(1)", "Keeps a key from expiring.")
        .args(KEY),
    persist,
);

fn persist(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let expires = cx.db.get_for_write(key).is_some_and(|entry| entry.is_volatile());
    if expires {
        cx.db.set_expiry(key, None);
        let effects = cx.db.effects();
        effects.changed(1);
        effects.notify(EventClass::GENERIC, "persist", key.bytes);
    }
    cx.reply.int(expires as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::Bench;
    use crate::{keys, string};

    const NOW_S: i64 = 1_700_000_000;

    fn bench() -> Bench {
        Bench::new(&[keys::COMMANDS, string::COMMANDS])
    }

    #[test]
    fn ttl_reports_seconds_or_milliseconds_relative_or_absolute() {
        let mut bench = bench();
        let ttl = |bench: &mut Bench, key: &str| {
            ["TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"].map(|name| bench.run(&format!("{name} {key}")))
        };
        assert_eq!(ttl(&mut bench, "n"), [":-2"; 4]);
        bench.run("SET k v");
        assert_eq!(ttl(&mut bench, "k"), [":-1"; 4]);
        assert_eq!(bench.run("PEXPIRE k 10499"), ":1");
        assert_eq!(ttl(&mut bench, "k"), [":10", ":10499", ":1700000010", ":1700000010499"]);
        assert_eq!(bench.run("PEXPIRE k 10500"), ":1");
        assert_eq!(ttl(&mut bench, "k")[0], ":11");
        assert_eq!(bench.run("PEXPIREAT k 9223372036854775807"), ":1");
        assert_eq!(ttl(&mut bench, "k")[2], ":9223372036854776");
    }

    #[test]
    fn key_lives_until_its_expiry() {
        let mut bench = bench();
        bench.run("MSET a v b v c v d v e v");
        bench.run("EXPIRE a 1");
        bench.run("PEXPIRE b 1000");
        bench.run(&format!("EXPIREAT c {}", NOW_S + 1));
        bench.run(&format!("PEXPIREAT d {}001", NOW_S + 1));
        bench.run("EXPIRE e 1");
        assert_eq!(bench.run("PERSIST e"), ":1");
        assert_eq!(bench.events(), ["persist"]);
        assert_eq!(bench.run("PERSIST e"), ":0");
        assert_eq!(bench.run("PERSIST n"), ":0");
        bench.now_ms += 1000;
        assert_eq!(bench.run("EXISTS a b c d e"), ":5");
        bench.now_ms += 1;
        assert_eq!(bench.run("EXISTS a b c d e"), ":2");
        // An expired key is not revived.
        bench.now_ms += 1;
        assert_eq!(bench.run("EXPIRE d 10"), ":0");
    }

    #[test]
    fn times_are_propagated_as_absolute() {
        let mut bench = bench();
        bench.run("SET k v");
        bench.run("EXPIRE k 10");
        assert_eq!(bench.events(), ["expire"]);
        bench.run("pexpire k 20 xx");
        bench.run("EXPIREAT k 1700000030 GT");
        bench.run("pexpireat k 1700000040000 GT");
        bench.run("EXPIRE k 1 GT");
        bench.run("EXPIRE n 1");
        bench.run("PERSIST k");
        let propagated = [
            "SET k v",
            "PEXPIREAT k 1700000010000",
            "PEXPIREAT k 1700000000020 xx",
            "PEXPIREAT k 1700000030000 GT",
            "pexpireat k 1700000040000 GT",
            "PERSIST k",
        ];
        assert_eq!(bench.propagated(), propagated);
    }

    #[test]
    fn expiry_in_the_past_deletes_the_key() {
        let mut bench = bench();
        for (count, request) in ["EXPIRE k -1", "PEXPIRE k 0", "EXPIREAT k 1", "PEXPIREAT k -5"].iter().enumerate() {
            bench.run("SET k v");
            assert_eq!(bench.run(request), ":1");
            assert_eq!(bench.events(), ["expired"]);
            assert_eq!(bench.run("EXISTS k"), ":0");
            assert_eq!(bench.counters.expired.get(), count as u64 + 1);
            assert_eq!(bench.propagated(), ["SET k v", "UNLINK k"]);
        }
        bench.settings.lazy_expire = false;
        bench.run("SET k v");
        bench.run("EXPIRE k -1");
        assert_eq!(bench.propagated(), ["SET k v", "DEL k"]);
    }

    #[test]
    fn expire_conditions_compare_with_the_current_expiry() {
        let mut bench = bench();
        // Replies for a key without expiry, and for a later, an equal and an earlier time than the current expiry.
        let cases = [
            ("NX", [":1", ":0", ":0", ":0"]),
            ("XX", [":0", ":1", ":1", ":1"]),
            ("GT", [":0", ":1", ":0", ":0"]),
            ("LT", [":1", ":0", ":0", ":1"]),
            ("xx GT", [":0", ":1", ":0", ":0"]),
            ("LT XX", [":0", ":0", ":0", ":1"]),
        ];
        for (condition, expected) in cases {
            let before = ["SET k v", "SET k v EX 100", "SET k v EX 100", "SET k v EX 100"];
            let replies = [100, 200, 100, 50].into_iter().zip(before).map(|(seconds, before)| {
                bench.run(before);
                bench.run(&format!("EXPIRE k {seconds} {condition}"))
            });
            assert_eq!(replies.collect::<Vec<_>>(), expected, "{condition}");
        }
    }

    #[test]
    fn arguments_are_checked_options_first() {
        let mut bench = bench();
        assert_eq!(bench.run("EXPIRE k x AB"), "-ERR Unsupported option AB");
        let nx = "-ERR NX and XX, GT or LT options at the same time are not compatible";
        for options in ["NX XX", "GT NX", "LT NX GT"] {
            assert_eq!(bench.run(&format!("EXPIRE k 1 {options}")), nx);
        }
        let both = "-ERR GT and LT options at the same time are not compatible";
        assert_eq!(bench.run("EXPIRE k 1 LT GT"), both);
        assert_eq!(bench.run("EXPIRE k x NX"), "-ERR value is not an integer or out of range");
        for seconds in ["9223370399119966", "9223372036854776", "-9223372036854776"] {
            let reply = bench.run(&format!("EXPIRE k {seconds}"));
            assert_eq!(reply, "-ERR invalid expire time in 'expire' command");
        }
        let invalid = "-ERR invalid expire time in 'pexpire' command";
        assert_eq!(bench.run("PEXPIRE k 9223372036854770000"), invalid);
        assert_eq!(bench.run("PEXPIRE k -9223372036854775808"), ":0");
        assert_eq!(bench.run("EXPIREAT k 9223372036854776"), "-ERR invalid expire time in 'expireat' command");
    }
}
