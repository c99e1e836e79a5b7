//! Tests of entries: size classes, integers, the access clock, and entries of any contents.

use super::*;
use proptest::prelude::*;

fn with<T>(key: &[u8], content: Content<'_>, expiry: Option<i64>, look: impl FnOnce(Entry<'_>, Pointer) -> T) -> T {
    let pointer = build(key, content, expiry, 0x00ab_cdef, false);
    // SAFETY: just built, freed below.
    let result = look(unsafe { Entry::from_pointer(pointer) }, pointer);
    // SAFETY: not used again.
    unsafe { free(pointer) };
    result
}

#[test]
fn common_sizes_map_to_their_classes() {
    let (key, ten, hundred) = ([b'k'; 16], [b'v'; 10], [b'v'; 100]);
    let later = Some(1_800_000_000_000);
    assert_eq!(with(&key, Content::Bytes(&ten), None, |e, _| e.memory(0)), 32);
    assert_eq!(with(&key, Content::Bytes(&hundred), None, |e, _| e.memory(0)), 128);
    assert_eq!(with(&key, Content::Bytes(&hundred), later, |e, _| e.memory(0)), 128);
    assert_eq!(with(&key, Content::Int(7), None, |e, _| e.memory(0)), 32);
}

#[test]
fn integers_are_recognised_strictly() {
    for text in ["0", "-1", "9223372036854775807", "-9223372036854775808"] {
        assert!(matches!(Content::from_bytes(text.as_bytes()), Content::Int(n) if n.to_string() == text));
    }
    for text in ["", "01", "+1", "-0", "9223372036854775808", " 1", "1 ", "1.0"] {
        assert!(matches!(Content::from_bytes(text.as_bytes()), Content::Bytes(_)), "{text:?}");
    }
}

#[test]
fn clock_can_be_set_separately() {
    with(b"key", Content::Bytes(b"value"), None, |entry, pointer| {
        assert_eq!(entry.clock(), 0x00ab_cdef);
        // SAFETY: no other thread uses it.
        unsafe { set_clock(pointer, 0x0012_3456) };
        assert_eq!((entry.clock(), entry.key(), entry.kind()), (0x0012_3456, &b"key"[..], Kind::String));
    });
}

fn contents() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..300),
        any::<i64>().prop_map(|n| n.to_string().into_bytes()),
        Just(vec![b'x'; INLINE_MAX]),
        Just(vec![b'x'; INLINE_MAX + 1]),
    ]
}

fn expiries() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![Just(None), (0..1i64 << 50).prop_map(Some), Just(Some(i64::MAX)), Just(Some((1 << 48) - 1))]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 256 }))]

    #[test]
    fn built_entries_round_trip(
        key in proptest::collection::vec(any::<u8>(), 0..600),
        values in proptest::collection::vec((contents(), expiries()), 1..6),
    ) {
        let mut pointer = build(&key, Content::from_bytes(&values[0].0), values[0].1, 1, false);
        for (value, expiry) in &values {
            // SAFETY: the pointer is live, and only used here.
            if let Err(content) = unsafe { overwrite(pointer, Content::from_bytes(value), *expiry, 1, true) } {
                // SAFETY: not used again.
                unsafe { free(pointer) };
                pointer = build(&key, content, *expiry, 1, true);
            }
            // SAFETY: live.
            let entry = unsafe { Entry::from_pointer(pointer) };
            let mut buffer = Default::default();
            prop_assert_eq!(entry.key(), &key[..]);
            prop_assert_eq!(entry.str().map(|s| s.bytes(&mut buffer).to_vec()), Some(value.clone()));
            prop_assert_eq!(entry.expiry(), *expiry);
            prop_assert_eq!(entry.is_volatile(), expiry.is_some());
        }
        // SAFETY: not used again.
        let (value, expiry) = unsafe { into_value(pointer) };
        prop_assert_eq!(value.to_bytes(), Some(values[values.len() - 1].0.clone()));
        prop_assert_eq!(expiry, values[values.len() - 1].1);
    }
}
