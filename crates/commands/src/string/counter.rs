//! Strings that are numbers: INCR and its variants for 64-bit integers, INCRBYFLOAT for floating-point numbers.
//!
//! A missing key counts as 0, and an existing one keeps its expiry.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::{EventClass, Expiry, Str};

use super::long_double::LongDouble;
use super::string_in;
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

const KEYS: &[KeySpec] = &[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::ACCESS, KeyFlags::UPDATE])];

/// The common parts of these commands.
const fn counter(name: &'static str, arity: i16, since: &'static str, summary: &'static str) -> Spec {
    Spec::new(name, arity)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::STRING])
        .keys(KEYS)
        .doc(Group::String, since, "O(1)", summary)
}

/// INCR key
pub const INCR: Command<Handler> = Command::new(
    counter("incr", 2, "1.0.0", "Adds one to the integer that a key holds.").args(&[Arg::key("key")]),
    |cx, args| add(cx, args, 1),
);

/// DECR key
pub const DECR: Command<Handler> = Command::new(
    counter("decr", 2, "1.0.0", "Takes one from the integer that a key holds.").args(&[Arg::key("key")]),
    |cx, args| add(cx, args, -1),
);

/// INCRBY key increment
pub const INCRBY: Command<Handler> = Command::new(
    counter("incrby", 3, "1.0.0", "Adds a number to the integer that a key holds.")
        .args(&[Arg::key("key"), Arg::integer("increment")]),
    incrby,
);

fn incrby(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let increment = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    add(cx, args, increment)
}

/// DECRBY key decrement
pub const DECRBY: Command<Handler> = Command::new(
    counter("decrby", 3, "1.0.0", "Takes a number from the integer that a key holds.")
        .args(&[Arg::key("key"), Arg::integer("decrement")]),
    decrby,
);

fn decrby(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const OVERFLOW: Error = Error::text("ERR decrement would overflow");
    let decrement = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    add(cx, args, decrement.checked_neg().ok_or(OVERFLOW)?)
}

fn add(cx: &mut Context<'_>, args: Args<'_>, increment: i64) -> Result<(), Error> {
    const OVERFLOW: Error = Error::text("ERR increment or decrement would overflow");
    let key = cx.key(args, 1);
    let sum = cx.db.update_int(key, |entry| {
        let old = match entry {
            None => 0,
            Some(entry) => string_in(entry)?.as_int().ok_or(Error::NOT_INTEGER)?,
        };
        old.checked_add(increment).ok_or(OVERFLOW)
    })?;
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::STRING, "incrby", key.bytes);
    cx.reply.int(sum);
    Ok(())
}

/// INCRBYFLOAT key increment
pub const INCRBYFLOAT: Command<Handler> = Command::new(
    counter("incrbyfloat", 3, "2.6.0", "Adds a number, which may have a fraction, to the number that a key holds.")
        .args(&[Arg::key("key"), Arg::double("increment")]),
    incrbyfloat,
);

fn incrbyfloat(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const NOT_FINITE: Error = Error::text("ERR increment would produce NaN or Infinity");
    let key = cx.key(args, 1);
    let old = match cx.db.get_for_write(key) {
        None => LongDouble::ZERO,
        Some(entry) => match string_in(entry)? {
            Str::Int(number) => number.into(),
            Str::Bytes(text) => LongDouble::parse(text).ok_or(Error::NOT_FLOAT)?,
        },
    };
    let increment = LongDouble::parse(&args[2]).ok_or(Error::NOT_FLOAT)?;
    let sum = old.checked_add(increment).ok_or(NOT_FINITE)?.format();
    cx.db.set_text(key, &sum, Expiry::Keep);
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::STRING, "incrbyfloat", key.bytes);
    // Replicas receive the result, since another version may round or format it differently.
    effects.propagate(&[b"SET", key.bytes, &sum, b"KEEPTTL"]);
    cx.reply.bulk(&sum);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::string::COMMANDS;
    use crate::testing::Bench;

    #[test]
    fn integers_count_from_zero_and_keep_their_expiry() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("DECR n"), ":-1");
        assert_eq!(bench.run("SET k 10 PX 5"), "+OK");
        assert_eq!(bench.run("INCR k"), ":11");
        assert_eq!(bench.run("INCRBY k 17179869184"), ":17179869195");
        assert_eq!(bench.run("DECRBY k 17179869200"), ":-5");
        assert_eq!(bench.events(), ["incrby"]);
        bench.now_ms += 6;
        assert_eq!(bench.run("GET k"), "$-1");
    }

    #[test]
    fn integers_do_not_wrap() {
        const OVERFLOW: &str = "-ERR increment or decrement would overflow";
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("SET max 9223372036854775807");
        bench.run("SET min -9223372036854775808");
        assert_eq!(bench.run("INCR max"), OVERFLOW);
        assert_eq!(bench.run("DECR min"), OVERFLOW);
        assert_eq!(bench.run("INCRBY min -9223372036854775808"), OVERFLOW);
        assert_eq!(bench.run("INCRBY max -9223372036854775808"), ":-1");
        assert_eq!(bench.run("DECRBY max -9223372036854775808"), "-ERR decrement would overflow");
    }

    #[test]
    fn only_canonical_integers_count() {
        const NOT_INTEGER: &str = "-ERR value is not an integer or out of range";
        let mut bench = Bench::new(&[COMMANDS]);
        for text in [" 11", "11 ", "+1", "01", "1.0", "", "9223372036854775808"] {
            bench.run_words(&[b"SET", b"k", text.as_bytes()]);
            assert_eq!(bench.run("INCR k"), NOT_INTEGER, "{text:?}");
        }
        assert_eq!(bench.run("INCRBY n 1.5"), NOT_INTEGER);
        assert_eq!(bench.run("GET n"), "$-1");
    }

    #[test]
    fn fractions_are_propagated_as_their_result() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("INCRBYFLOAT k 10.5"), "$4 10.5");
        assert_eq!(bench.run("INCRBYFLOAT k 0.1"), "$4 10.6");
        assert_eq!(bench.run("INCRBYFLOAT k -5.0e-1"), "$4 10.1");
        assert_eq!(bench.events(), ["incrbyfloat"]);
        assert_eq!(bench.propagated(), ["SET k 10.5 KEEPTTL", "SET k 10.6 KEEPTTL", "SET k 10.1 KEEPTTL"]);
    }

    #[test]
    fn a_whole_result_of_incrbyfloat_stays_a_string() {
        let mut bench = Bench::new(&[COMMANDS, crate::keys::COMMANDS]);
        bench.run("SET k 3.5");
        assert_eq!(bench.run("INCRBYFLOAT k 0.5"), "$1 4");
        assert_eq!(bench.run("OBJECT ENCODING k"), "$6 embstr");
        assert_eq!(bench.run("INCR k"), ":5");
        assert_eq!(bench.run("OBJECT ENCODING k"), "$3 int");
    }

    #[test]
    fn incrbyfloat_rejects_non_numbers() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("SET k 1");
        assert_eq!(bench.run("INCRBYFLOAT k x"), "-ERR value is not a valid float");
        assert_eq!(bench.run("INCRBYFLOAT k +inf"), "-ERR increment would produce NaN or Infinity");
        bench.run("SETRANGE k 2 2");
        assert_eq!(bench.run("INCRBYFLOAT k 1"), "-ERR value is not a valid float");
    }
}
