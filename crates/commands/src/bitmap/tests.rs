//! Tests of the bitmap commands on a keyspace.

use super::COMMANDS;
use crate::context::{Args, Context, Error, Handler};
use crate::spec::{Command, KeyFlags, KeySpec, Spec};
use crate::testing::Bench;
use kvick_resp::OwnedArgs;
use kvick_store::Expiry;

/// Commands that store and read plain strings.
static STRINGS: &[Command<Handler>] = &[
    Command::new(Spec::new("put", 3).keys(&[KeySpec::at(1, &[KeyFlags::OW])]), put),
    Command::new(Spec::new("peek", 2).keys(&[KeySpec::at(1, &[KeyFlags::RO])]), peek),
];

/// Stores a string with an expiry.
fn put(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let at = cx.db.now_ms() + 1000;
    cx.db.set_bytes(key, &args[2], Expiry::At(at));
    cx.reply.ok();
    Ok(())
}

/// Replies with the bytes, and whether the key has an expiry.
fn peek(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let entry = cx.db.peek(key).ok_or(Error::NO_KEY)?;
    let text = entry.str().ok_or(Error::WRONG_TYPE)?.bytes(&mut Default::default()).escape_ascii().to_string();
    cx.reply.simple(format!("{text} {} {}", entry.is_volatile(), entry.encoding()));
    Ok(())
}

fn bench() -> Bench {
    Bench::new(&[COMMANDS, STRINGS])
}

#[test]
fn setting_a_bit_creates_and_grows_the_string() {
    let mut bench = bench();
    assert_eq!(bench.run("SETBIT b 1 1"), ":0");
    assert_eq!(bench.events(), ["new", "setbit"]);
    assert_eq!(bench.run("SETBIT b 1 1"), ":1");
    assert!(bench.events().is_empty());
    assert_eq!(bench.run("SETBIT b 23 0"), ":0");
    assert_eq!(bench.events(), ["setbit"]);
    assert_eq!(bench.run("peek b"), "+@\\x00\\x00 false raw");
    assert_eq!(bench.run("GETBIT b 1"), ":1");
    assert_eq!(bench.run("GETBIT b 4294967295"), ":0");
    assert_eq!(bench.run("GETBIT none 1"), ":0");
    assert_eq!(bench.propagated(), ["SETBIT b 1 1", "SETBIT b 23 0"].map(str::to_owned));
}

#[test]
fn integer_strings_are_bitmaps_of_their_digits() {
    let mut bench = bench();
    bench.run("put n 7");
    assert_eq!(bench.run("GETBIT n 2"), ":1");
    assert_eq!(bench.run("BITCOUNT n"), ":5");
    assert_eq!(bench.run("SETBIT n 6 0"), ":1");
    assert_eq!(bench.run("peek n"), "+5 true raw");
}

#[test]
fn out_of_range_offsets_and_bits_are_rejected() {
    let mut bench = bench();
    const OFFSET: &str = "-ERR bit offset is not an integer or out of range";
    for line in ["SETBIT b -1 1", "SETBIT b x 1", "SETBIT b 4294967296 1", "GETBIT b 4294967296", "GETBIT b -1"] {
        assert_eq!(bench.run(line), OFFSET, "{line}");
    }
    for line in ["SETBIT b 0 2", "SETBIT b 0 -1", "SETBIT b 0 x"] {
        assert_eq!(bench.run(line), "-ERR bit is not an integer or out of range", "{line}");
    }
    bench.settings.proto_max_bulk_len = 2;
    assert_eq!(bench.run("SETBIT b 15 1"), ":0");
    assert_eq!(bench.run("SETBIT b 16 1"), OFFSET);
}

#[test]
fn counting_takes_ranges_of_bytes_and_of_bits() {
    let mut bench = bench();
    bench.run("put s foobar");
    let known = [
        ("", 26),
        (" 0 0", 4),
        (" 1 1 BYTE", 6),
        (" 5 30 bit", 17),
        (" -2", 7),
        (" 10 -34 bit", 4),
        (" -2 1", 0),
        (" 1000", 0),
        (" -100 -200", 0),
    ];
    for (range, count) in known {
        assert_eq!(bench.run(&format!("BITCOUNT s{range}")), format!(":{count}"), "{range}");
    }
    assert_eq!(bench.run("BITCOUNT none 0 10 bit"), ":0");
    for line in ["BITCOUNT s 0 1 hello", "BITCOUNT s 0 1 bit more"] {
        assert_eq!(bench.run(line), "-ERR syntax error", "{line}");
    }
    assert_eq!(bench.run("BITCOUNT s a b"), "-ERR value is not an integer or out of range");
}

#[test]
fn bitpos_of_zero_may_be_after_the_string_without_an_end() {
    let mut bench = bench();
    bench.run_words(&[b"put", b"ones", b"\xff\xff\xff"]);
    bench.run_words(&[b"put", b"zeros", b"\0\0"]);
    bench.run_words(&[b"put", b"empty", b""]);
    let known = [
        ("ones 0", 24),
        ("ones 0 1", 24),
        ("ones 0 0 -1", -1),
        ("ones 0 3", -1),
        ("ones 1", 0),
        ("ones 1 2", 16),
        ("ones 1 9 12 BIT", 9),
        ("ones 0 9 12 BIT", -1),
        ("zeros 1", -1),
        ("zeros 0 1", 8),
        ("empty 0", -1),
        ("none 0", 0),
        ("none 1", -1),
        ("none 0 5 6 bit", 0),
    ];
    for (arguments, position) in known {
        assert_eq!(bench.run(&format!("BITPOS {arguments}")), format!(":{position}"), "{arguments}");
    }
    assert_eq!(bench.run("BITPOS ones 2"), "-ERR The bit argument must be 1 or 0.");
    assert_eq!(bench.run("BITPOS ones x"), "-ERR value is not an integer or out of range");
    assert_eq!(bench.run("BITPOS ones 1 0 1 byte more"), "-ERR syntax error");
}

#[test]
fn combining_stores_the_result_without_expiry() {
    let mut bench = bench();
    bench.run("put a abc");
    bench.run("put b AB");
    bench.run("put t old");
    assert_eq!(bench.run("BITOP AND t a b"), ":3");
    assert_eq!(bench.events(), ["set"]);
    assert_eq!(bench.run("peek t"), "+AB\\x00 false raw");
    assert_eq!(bench.run("BITOP or t b a none"), ":3");
    assert_eq!(bench.run("peek t"), "+abc false raw");
    assert_eq!(bench.run("BITOP XOR a a b"), ":3");
    assert_eq!(bench.run("peek a"), "+  c false raw");
    bench.run("put n 12");
    assert_eq!(bench.run("BITOP OR t n"), ":2");
    assert_eq!(bench.run("peek t"), "+12 false raw");
    assert_eq!(bench.run("BITOP NOT t n"), ":2");
    assert_eq!(bench.run("peek t"), "+\\xce\\xcd false raw");
}

#[test]
fn combining_missing_keys_deletes_the_target() {
    let mut bench = bench();
    bench.run("put t old");
    assert_eq!(bench.run("BITOP AND t none other"), ":0");
    assert_eq!(bench.events(), ["del"]);
    assert_eq!(bench.run("peek t"), "-ERR no such key");
    bench.propagated();
    assert_eq!(bench.run("BITOP NOT t none"), ":0");
    assert!(bench.events().is_empty());
    assert!(bench.propagated().is_empty());
    assert_eq!(bench.run("BITOP NOT t a b"), "-ERR BITOP NOT must be called with a single source key.");
    assert_eq!(bench.run("BITOP NAND t a b"), "-ERR syntax error");
}

#[test]
fn bitfields_answer_old_or_new_values_by_subcommand() {
    let mut bench = bench();
    assert_eq!(bench.run("BITFIELD b SET i8 0 -100 GET i8 0 INCRBY i8 0 1"), "*3 :0 :-100 :-99");
    assert_eq!(bench.events(), ["new", "setbit"]);
    assert_eq!(bench.run("BITFIELD b SET u8 #1 65 SET u8 #2 66"), "*2 :0 :0");
    assert_eq!(bench.run("peek b"), "+\\x9dAB false raw");
    assert_eq!(bench.run("BITFIELD m SET i8 0 10 SET i8 64 10 INCRBY i8 10 99900"), "*3 :0 :0 :60");
    assert_eq!(bench.run("BITFIELD b"), "*0");
    assert_eq!(bench.run("BITFIELD_RO none GET u63 7 GET i64 #3"), "*2 :0 :0");
    assert_eq!(bench.run("peek none"), "-ERR no such key");
}

#[test]
fn last_overflow_option_applies() {
    let mut bench = bench();
    bench.run("BITFIELD b SET u8 0 250");
    bench.propagated();
    let line = "BITFIELD b OVERFLOW FAIL INCRBY u8 0 10 OVERFLOW SAT INCRBY u8 0 10 OVERFLOW WRAP INCRBY u8 0 3";
    assert_eq!(bench.run(line), "*3 $-1 :255 :2");
    assert_eq!(bench.propagated(), [line]);
    assert_eq!(bench.run("BITFIELD b OVERFLOW FAIL INCRBY u8 0 255"), "*1 $-1");
    assert!(bench.propagated().is_empty());
}

#[test]
fn key_created_by_failing_write_is_propagated() {
    let mut bench = bench();
    assert_eq!(bench.run("BITFIELD new OVERFLOW FAIL SET u8 0 300"), "*1 $-1");
    assert_eq!(bench.run("peek new"), "+\\x00 false raw");
    assert_eq!(bench.propagated(), ["BITFIELD new OVERFLOW FAIL SET u8 0 300"]);
}

#[test]
fn invalid_bitfield_leaves_the_key_unchanged() {
    let mut bench = bench();
    let bad_type = "-ERR Invalid bitfield type. Use something like i16 u8. Note that u64 is not supported but i64 is.";
    let known = [
        ("SET u64 0 1", bad_type),
        ("SET i65 0 1", bad_type),
        ("SET u0 0 1", bad_type),
        ("SET I8 0 1", bad_type),
        ("SET u8 -1 1", "-ERR bit offset is not an integer or out of range"),
        ("SET u8 #-1 1", "-ERR bit offset is not an integer or out of range"),
        ("SET u8 #9223372036854775807 1", "-ERR bit offset is not an integer or out of range"),
        ("SET u8 0 x", "-ERR value is not an integer or out of range"),
        ("SET u8 0", "-ERR syntax error"),
        ("OVERFLOW", "-ERR syntax error"),
        ("OVERFLOW x", "-ERR Invalid OVERFLOW type specified"),
    ];
    for (operation, error) in known {
        assert_eq!(bench.run(&format!("BITFIELD b SET u8 0 1 {operation}")), error, "{operation}");
    }
    assert_eq!(bench.run("BITFIELD_RO b GET u8 0 SET u8 0 1"), "-ERR BITFIELD_RO only supports the GET subcommand");
    assert_eq!(bench.run("peek b"), "-ERR no such key");
}

#[test]
fn bitfields_that_only_get_only_read_their_key() {
    let flags = |line: &str| {
        let args = OwnedArgs::new(line.split(' '));
        let keys = super::bitfield::BITFIELD.spec.key_positions(args.args()).unwrap();
        assert_eq!((keys.len(), keys[0].index), (1, 1));
        keys[0].flags
    };
    let reads = KeyFlags::RO | KeyFlags::ACCESS;
    let writes = KeyFlags::RW | KeyFlags::ACCESS | KeyFlags::UPDATE;
    assert_eq!(flags("BITFIELD b"), reads);
    assert_eq!(flags("BITFIELD b get u8 0 OVERFLOW sat GET u8 1"), reads);
    assert_eq!(flags("BITFIELD b GET u8 0 SET u8 0 1"), writes);
    assert_eq!(flags("BITFIELD b GET u8"), writes);
    assert_eq!(flags("BITFIELD b what"), writes);
}
