//! Tests of the HyperLogLog commands on a keyspace, including forged values.

use std::cell::RefCell;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::hash::Mark;
use super::value::Sketch;
use super::{COMMANDS, value};
use crate::context::{Args, Context, Error, Handler};
use crate::spec::{Command, KeyFlags, KeySpec, Spec};
use crate::testing::Bench;
use kvick_store::{Expiry, Kind};

/// Commands that store raw bytes, to forge sketches.
static FORGERY: &[Command<Handler>] = &[
    Command::new(Spec::new("forge", 3).keys(&[KeySpec::at(1, &[KeyFlags::OW])]), forge),
    Command::new(Spec::new("peek", 2).keys(&[KeySpec::at(1, &[KeyFlags::RO])]), peek),
];

fn forge(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    cx.db.set_bytes(key, &args[2], Expiry::None);
    cx.reply.ok();
    Ok(())
}

fn peek(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let key = cx.key(args, 1);
    let Some(entry) = cx.db.peek(key).filter(|entry| entry.kind() == Kind::String) else { return Err(Error::NO_KEY) };
    cx.reply.raw(entry.str().ok_or(Error::WRONG_TYPE)?.bytes(&mut Default::default()));
    Ok(())
}

fn bench() -> Bench {
    Bench::new(&[COMMANDS, FORGERY])
}

const WRONG_TYPE: &str = "-WRONGTYPE Key is not a valid HyperLogLog string value.";
const CORRUPT: &str = "-INVALIDOBJ Corrupted HLL object detected";

fn sparse(code: &[u8]) -> Vec<u8> {
    [b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80", code].concat()
}

fn dense(registers: &[u8; 12288]) -> Vec<u8> {
    [b"HYLL\0\0\0\0\0\0\0\0\0\0\0\x80", &registers[..]].concat()
}

#[test]
fn stored_bytes_match_the_reference() {
    let mut bench = bench();
    assert_eq!(bench.run("PFADD h a b c"), ":1");
    assert_eq!(bench.run_words(&[b"peek", b"h"]), b"HYLL\x01\0\0\0\0\0\0\0\0\0\0\x80`\xf3\x80P\xb1\x84K\xfb\x80BZ");
    assert_eq!(bench.run("PFDEBUG DECODE h"), "$44 Z:8436 v:1,1 Z:4274 v:2,1 Z:3068 v:1,1 Z:603");
}

#[test]
fn adding_reports_whether_a_register_changed() {
    let mut bench = bench();
    assert_eq!(bench.run("PFADD h"), ":1");
    assert_eq!(bench.events(), ["new", "pfadd"]);
    assert_eq!(bench.run("PFADD h"), ":0");
    assert_eq!(bench.run("PFADD h a b c"), ":1");
    assert_eq!(bench.events(), ["pfadd"]);
    assert_eq!(bench.run("PFADD h a b c"), ":0");
    assert!(bench.events().is_empty());
    assert_eq!(bench.run("PFDEBUG TODENSE h"), ":1");
    assert_eq!(bench.run("PFADD h a b c"), ":0");
    assert_eq!(bench.run("PFADD h d"), ":1");
    assert_eq!(bench.run("PFCOUNT h"), ":4");
    assert_eq!(
        bench.propagated(),
        ["PFADD h", "PFADD h a b c", "PFDEBUG TODENSE h", "PFADD h d", "PFCOUNT h"].map(str::to_owned)
    );
}

#[test]
fn estimate_is_cached_until_a_register_changes() {
    let mut bench = bench();
    let stale = |bench: &mut Bench| bench.run_words(&[b"peek", b"h"])[15] >> 7 == 1;
    bench.run("PFADD h a b c");
    assert!(stale(&mut bench));
    assert_eq!(bench.run("PFCOUNT h"), ":3");
    assert!(!stale(&mut bench));
    assert_eq!(bench.run("PFCOUNT h"), ":3");
    bench.propagated();
    assert_eq!(bench.run("PFCOUNT h"), ":3");
    assert!(bench.propagated().is_empty());
    bench.run("PFADD h a b c");
    assert!(!stale(&mut bench));
    bench.run("PFADD h 1 2 3");
    assert!(stale(&mut bench));
    assert_eq!(bench.run("PFCOUNT h"), ":6");
}

#[test]
fn unions_count_common_elements_once() {
    let mut bench = bench();
    for line in ["PFADD a 1 2 3", "PFADD b 2 3 4", "PFADD c 3 4 5"] {
        bench.run(line);
    }
    assert_eq!(bench.run("PFCOUNT a b c none"), ":5");
    assert_eq!(bench.run("PFCOUNT none"), ":0");
    assert_eq!(bench.run("PFMERGE d a b c"), "+OK");
    assert_eq!(bench.events(), ["new", "pfadd"]);
    assert_eq!(bench.run("PFDEBUG ENCODING d"), "+sparse");
    bench.run("PFDEBUG TODENSE b");
    assert_eq!(bench.run("PFMERGE e a b c"), "+OK");
    assert_eq!(bench.run("PFDEBUG ENCODING e"), "+dense");
    assert_eq!(bench.run("PFMERGE d e"), "+OK");
    assert_eq!(bench.run("PFDEBUG ENCODING d"), "+dense");
    assert_eq!(bench.run("PFMERGE d d a"), "+OK");
    for key in ["d", "e"] {
        assert_eq!(bench.run(&format!("PFCOUNT {key}")), ":5");
    }
    assert_eq!(bench.run("PFMERGE f none"), "+OK");
    assert_eq!(bench.run("PFCOUNT f"), ":0");
}

#[test]
fn merging_one_by_one_or_at_once_stores_the_same() {
    let mut bench = bench();
    for element in 0..600 {
        bench.run(&format!("PFADD {} {element}", if element % 3 == 0 { "a" } else { "b" }));
    }
    bench.run("PFMERGE m a");
    bench.run("PFMERGE m b");
    bench.run("PFMERGE n b a");
    assert_eq!(bench.run("PFDEBUG GETREG m"), bench.run("PFDEBUG GETREG n"));
    assert_eq!(bench.run("PFCOUNT m"), bench.run("PFCOUNT a b"));
}

#[test]
fn sparse_values_become_dense_beyond_the_configured_size() {
    let mut bench = bench();
    for size_max in [30, 100, 500, 3000] {
        bench.settings.hll_sparse_max_bytes = size_max;
        let key = format!("h{size_max}");
        for element in 0.. {
            bench.run(&format!("PFADD {key} {element}"));
            let len = bench.run_words(&[b"peek", key.as_bytes()]).len();
            let encoding = bench.run(&format!("PFDEBUG ENCODING {key}"));
            if len == value::DENSE_LEN {
                assert_eq!(encoding, "+dense");
                break;
            }
            assert_eq!(encoding, "+sparse");
            assert!(len <= size_max);
        }
    }
}

#[test]
fn strings_that_are_not_hyperloglogs_are_the_wrong_type() {
    let mut bench = bench();
    let mut unknown = sparse(&[0x7f, 0xff]);
    unknown[4] = 2;
    let mut short = dense(&[0; 12288]);
    short.pop();
    for forged in [&b""[..], b"12", b"HYLL", b"hyll\x01\0\0\0\0\0\0\0\0\0\0\0\x7f\xff", &unknown, &short] {
        bench.run_words(&[b"forge", b"x", forged]);
        let lines =
            ["PFADD x", "PFADD x 1", "PFCOUNT x", "PFCOUNT x y", "PFMERGE y x", "PFMERGE x y", "PFDEBUG ENCODING x"];
        for line in lines {
            assert_eq!(bench.run(line), WRONG_TYPE, "{line} with {}", forged.escape_ascii());
        }
        assert_eq!(bench.run_words(&[b"peek", b"x"]), forged);
    }
}

#[test]
fn codes_longer_than_the_registers_are_found_corrupt() {
    let mut bench = bench();
    let forged = [&sparse(&[])[..], &b"\x7f\xff\x3f".repeat(2000), b"\x80"].concat();
    bench.run_words(&[b"forge", b"x", &forged]);
    bench.run("PFADD y hi");
    for line in ["PFADD x foo", "PFCOUNT x", "PFCOUNT x y", "PFMERGE z x y", "PFDEBUG TODENSE x", "PFDEBUG GETREG x"] {
        assert_eq!(bench.run(line), CORRUPT, "{line}");
    }
    assert_eq!(bench.run_words(&[b"peek", b"x"]), forged);
    assert_eq!(bench.run("peek z"), "-ERR no such key");
}

#[test]
fn estimates_beyond_the_signed_range_match_the_reference() {
    let mut bench = bench();
    bench.run_words(&[b"forge", b"x", &dense(&[0xff; 12288])]);
    assert_eq!(bench.run("PFCOUNT x"), ":-9223372036854775808");
}

#[test]
fn pfdebug_reports_invalid_requests() {
    let mut bench = bench();
    assert_eq!(bench.run("PFDEBUG ENCODING x"), "-ERR The specified key does not exist");
    bench.run("PFADD x a");
    assert_eq!(bench.run("PFDEBUG Foo x"), "-ERR Unknown PFDEBUG subcommand 'Foo'");
    assert_eq!(bench.run("PFDEBUG TODENSE x"), ":1");
    assert_eq!(bench.run("PFDEBUG TODENSE x"), ":0");
    assert_eq!(bench.run("PFDEBUG DECODE x"), "-ERR HLL encoding is not sparse");
    assert_eq!(bench.run("PFDEBUG SIMD maybe"), "-ERR Argument must be ON or OFF");
    assert!(bench.run("PFDEBUG GETREG x").starts_with("*16384 "));
}

#[test]
fn narrow_and_wide_code_agree() {
    let mut bench = bench();
    for element in 0..3000 {
        bench.run(&format!("PFADD {} {element}", ["a", "b"][element % 2]));
    }
    bench.run("PFDEBUG TODENSE a");
    assert_eq!(bench.run("PFDEBUG SIMD off"), "+disabled");
    bench.run("PFMERGE narrow a b");
    bench.run("PFDEBUG SIMD on");
    bench.run("PFMERGE wide a b");
    assert_eq!(bench.run_words(&[b"peek", b"narrow"]), bench.run_words(&[b"peek", b"wide"]));
}

/// The ways to forge a value.
#[derive(Clone, Debug)]
enum Damage {
    Set(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Append(Vec<u8>),
}

fn damage() -> impl Strategy<Value = Damage> {
    // Prefers bytes that are opcodes at the ends of their ranges.
    let byte = || prop_oneof![any::<u8>(), prop::sample::select(vec![0x00, 0x3f, 0x40, 0x7f, 0x80, 0x83, 0xfc, 0xff])];
    prop_oneof![
        4 => (any::<prop::sample::Index>(), byte()).prop_map(|(at, byte)| Damage::Set(at, byte)),
        1 => any::<prop::sample::Index>().prop_map(Damage::Cut),
        1 => vec(byte(), 1..6).prop_map(Damage::Append),
    ]
}

fn damaged(mut value: Vec<u8>, damages: Vec<Damage>) -> Vec<u8> {
    for damage in damages {
        match damage {
            Damage::Set(at, byte) if !value.is_empty() => {
                let at = at.index(value.len());
                value[at] = byte;
            }
            Damage::Set(..) => {}
            Damage::Cut(at) => value.truncate(at.index(value.len() + 1)),
            Damage::Append(bytes) => value.extend(bytes),
        }
    }
    value
}

fn forged() -> impl Strategy<Value = Vec<u8>> {
    let grown = (0usize..400, 0usize..4000).prop_map(|(elements, sparse_len_max)| {
        let mut sketch = Sketch::new(sparse_len_max);
        (0..elements).for_each(|element| _ = sketch.add(Mark::of(&element.to_le_bytes())));
        sketch.into_bytes()
    });
    prop_oneof![
        2 => (grown, vec(damage(), 0..5)).prop_map(|(value, damages)| damaged(value, damages)),
        1 => vec(any::<u8>(), 0..300).prop_map(|code| sparse(&code)),
        1 => vec(any::<u8>(), 0..40),
    ]
}

#[test]
fn forged_values_are_handled_and_errors_change_nothing() {
    // All cases share one keyspace.
    let bench = RefCell::new(bench());
    let cases = (forged(), vec(vec(any::<u8>(), 0..20), 0..20), 0usize..4000);
    let result = TestRunner::new(ProptestConfig::with_cases(300)).run(&cases, |(forged, elements, size_max)| {
        let mut bench = bench.borrow_mut();
        bench.settings.hll_sparse_max_bytes = size_max;
        let mut add: Vec<&[u8]> = vec![b"PFADD", b"x"];
        add.extend(elements.iter().map(Vec::as_slice));
        let mut commands = vec![add];
        let lines = [
            "PFCOUNT x",
            "PFCOUNT x y",
            "PFMERGE y x",
            "PFMERGE x y",
            "PFMERGE z x",
            "PFDEBUG GETREG x",
            "PFDEBUG DECODE x",
            "PFDEBUG ENCODING x",
            "PFDEBUG TODENSE x",
        ];
        commands.extend(lines.map(|line| line.split(' ').map(str::as_bytes).collect()));
        bench.run_words(&[b"forge", b"y", &sparse(&[0x7f, 0xfe, 0x88])]);
        for command in commands {
            bench.run_words(&[b"forge", b"x", &forged]);
            bench.propagated();
            let reply = bench.run_words(&command);
            if reply.starts_with(b"-") {
                let text = String::from_utf8_lossy(&reply);
                let known = [WRONG_TYPE, CORRUPT, "-ERR HLL encoding is not sparse"];
                prop_assert!(known.contains(&text.trim_end()), "{}", text);
                prop_assert_eq!(&bench.run_words(&[b"peek", b"x"]), &forged);
                prop_assert!(bench.propagated().is_empty());
            }
        }
        Ok(())
    });
    result.unwrap();
}
