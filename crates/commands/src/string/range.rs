//! APPEND, STRLEN, GETRANGE and SETRANGE: the length of a string, parts of it, and changes in place.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::{EventClass, Expiry, IntBuf};

use super::{check_len, string_in};
use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// APPEND key value
pub const APPEND: Command<Handler> = Command::new(
    Spec::new("append", 3)
        .flags(&[Flags::WRITE, Flags::DENYOOM, Flags::FAST])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::INSERT])])
        .doc(
            Group::String,
            "2.0.0",
            "O(1), amortised over many small appends: room for more is reserved as the string grows.",
            "Appends to the string that a key holds, or creates the key.",
        )
        .args(&[Arg::key("key"), Arg::string("value")]),
    append,
);

fn append(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let tail = &args[2];
    let len = match cx.db.get_for_write(key) {
        None => {
            // A new key is set instead of appended to, since the value may be stored as an integer.
            cx.db.set_bytes(key, tail, Expiry::None);
            tail.len()
        }
        Some(entry) => {
            let len = string_in(entry)?.len();
            check_len(cx, len as u64, tail.len())?;
            cx.db.append(key, tail)
        }
    };
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::STRING, "append", key.bytes);
    cx.reply.uint(len as u64);
    Ok(())
}

/// STRLEN key
pub const STRLEN: Command<Handler> = Command::new(
    Spec::new("strlen", 2)
        .flags(&[Flags::READONLY, Flags::FAST])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::RO])])
        .doc(Group::String, "2.2.0", "O(1)", "Returns the length of the string that a key holds.")
        .args(&[Arg::key("key")]),
    strlen,
);

fn strlen(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let len = match cx.db.get(key) {
        None => 0,
        Some(entry) => string_in(entry)?.len(),
    };
    cx.reply.uint(len as u64);
    Ok(())
}

/// GETRANGE key start end
pub const GETRANGE: Command<Handler> = slice_command("getrange", "2.4.0");

/// SUBSTR key start end: the old name of GETRANGE.
pub const SUBSTR: Command<Handler> = slice_command("substr", "1.0.0");

const SLICE_KEYS: &[KeySpec] = &[KeySpec::at(1, &[KeyFlags::RO, KeyFlags::ACCESS])];
const SLICE_ARGS: &[Arg] = &[Arg::key("key"), Arg::integer("start"), Arg::integer("end")];

const fn slice_command(name: &'static str, since: &'static str) -> Command<Handler> {
    Command::new(
        Spec::new(name, 4)
            .flags(&[Flags::READONLY])
            .acl(&[Categories::STRING])
            .keys(SLICE_KEYS)
            .doc(
                Group::String,
                since,
                "O(N), N being the length of the returned string; O(1) for short ones.",
                "Returns a part of the string that a key holds.",
            )
            .args(SLICE_ARGS),
        getrange,
    )
}

fn getrange(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let start = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    let end = parse_i64(&args[3]).ok_or(Error::NOT_INTEGER)?;
    let key = cx.key(args, 1);
    let Some(entry) = cx.db.get(key) else {
        cx.reply.bulk(b"");
        return Ok(());
    };
    let mut digits = IntBuf::default();
    let bytes = string_in(entry)?.bytes(&mut digits);
    cx.reply.bulk(slice(bytes, start, end));
    Ok(())
}

/// The bytes from `start` to `end`, both inclusive. Negative positions count from the end, where -1 is the last byte;
/// positions before the first byte refer to the first byte.
fn slice(bytes: &[u8], start: i64, end: i64) -> &[u8] {
    if start < 0 && end < 0 && start > end {
        return &[];
    }
    let len = bytes.len() as i64;
    let place = |index: i64| if index < 0 { (len + index).max(0) } else { index };
    let (start, end) = (place(start), place(end).min(len - 1));
    if start > end { &[] } else { &bytes[start as usize..=end as usize] }
}

/// SETRANGE key offset value
pub const SETRANGE: Command<Handler> = Command::new(
    Spec::new("setrange", 4)
        .flags(&[Flags::WRITE, Flags::DENYOOM])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::at(1, &[KeyFlags::RW, KeyFlags::UPDATE])])
        .doc(
            Group::String,
            "2.2.0",
            "O(M), M being the length of the value; O(1) for short ones. Growing the string may copy it.",
            "Overwrites a part of the string that a key holds, or creates the key.",
        )
        .args(&[Arg::key("key"), Arg::integer("offset"), Arg::string("value")]),
    setrange,
);

fn setrange(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    const NEGATIVE: Error = Error::text("ERR offset is out of range");
    let offset = parse_i64(&args[2]).ok_or(Error::NOT_INTEGER)?;
    let offset = u64::try_from(offset).map_err(|_| NEGATIVE)?;
    let value = &args[3];
    let key = cx.key(args, 1);
    let len = match cx.db.get_for_write(key) {
        None => 0,
        Some(entry) => string_in(entry)?.len(),
    };
    if value.is_empty() {
        cx.reply.uint(len as u64);
        return Ok(());
    }
    check_len(cx, offset, value.len())?;
    let end = offset as usize + value.len();
    let bytes = cx.db.string_mut(key, end);
    bytes[offset as usize..end].copy_from_slice(value);
    let len = bytes.len();
    let effects = cx.db.effects();
    effects.changed(1);
    effects.notify(EventClass::STRING, "setrange", key.bytes);
    cx.reply.uint(len as u64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::slice;
    use crate::string::COMMANDS;
    use crate::testing::Bench;

    #[test]
    fn slices_count_from_both_ends() {
        let text = b"Hello World";
        let expected: [(i64, i64, &[u8]); 9] = [
            (0, 3, b"Hell"),
            (0, -1, text),
            (-4, -1, b"orld"),
            (5, 3, b""),
            (5, 5000, b" World"),
            (-5000, 10000, text),
            (-1, -3, b""),
            (0, -100, b"H"),
            (i64::MIN, i64::MAX, text),
        ];
        for (start, end, part) in expected {
            assert_eq!(slice(text, start, end), part, "{start} {end}");
        }
        assert_eq!(slice(b"", 0, -1), b"");
    }

    #[test]
    fn getrange_reads_integers_as_text() {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("SET k -1234");
        assert_eq!(bench.run("GETRANGE k 0 1"), "$2 -1");
        assert_eq!(bench.run("SUBSTR k -2 -1"), "$2 34");
        assert_eq!(bench.run("GETRANGE n 0 1"), "$0");
        assert_eq!(bench.run("GETRANGE n 0 x"), "-ERR value is not an integer or out of range");
        assert_eq!(bench.run("STRLEN k"), ":5");
        assert_eq!(bench.run("STRLEN n"), ":0");
    }

    #[test]
    fn append_grows_or_creates() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run("APPEND k 12"), ":2");
        assert_eq!(bench.run("APPEND k 34"), ":4");
        assert_eq!(bench.events(), ["append"]);
        assert_eq!(bench.run("INCR k"), ":1235");
        assert_eq!(bench.run_words(&[b"APPEND", b"k", b""]), b":4\r\n");
    }

    #[test]
    fn setrange_pads_with_zero_bytes() {
        let mut bench = Bench::new(&[COMMANDS]);
        assert_eq!(bench.run_words(&[b"SETRANGE", b"k", b"5", b""]), b":0\r\n");
        assert_eq!(bench.run("GET k"), "$-1");
        assert_eq!(bench.run("SETRANGE k 1 foo"), ":4");
        assert_eq!(bench.run("GET k"), "$4 \0foo");
        assert_eq!(bench.run("SET k 1234"), "+OK");
        assert_eq!(bench.run("SETRANGE k 1 x"), ":4");
        assert_eq!(bench.run("GET k"), "$4 1x34");
        assert_eq!(bench.run_words(&[b"SETRANGE", b"k", b"0", b""]), b":4\r\n");
        assert!(bench.events().is_empty());
    }

    #[test]
    fn strings_stay_within_the_limit() {
        const TOO_LONG: &str = "-ERR string exceeds maximum allowed size (proto-max-bulk-len)";
        let mut bench = Bench::new(&[COMMANDS]);
        bench.settings.proto_max_bulk_len = 8;
        assert_eq!(bench.run("SETRANGE k 4 world"), TOO_LONG);
        assert_eq!(bench.run("SETRANGE k 9223372036854775807 world"), TOO_LONG);
        assert_eq!(bench.run("SETRANGE k -1 world"), "-ERR offset is out of range");
        assert_eq!(bench.run("SETRANGE k 3 world"), ":8");
        assert_eq!(bench.run("APPEND k x"), TOO_LONG);
    }
}
