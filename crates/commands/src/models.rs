//! Model tests of all types: random commands through all encoding conversions, with dumps in between.
//!
//! The thresholds are small and change during the test, so that a value of a few dozen elements passes through all its
//! encodings. From time to time the value is dumped, deleted and restored, and must be unchanged.

use crate::testing::Bench;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

const KEY: &[u8] = b"key";
const CASES: u32 = 48;
const STEPS: usize = 300;

/// A step of a test: the operation, the element, and a number.
type Step = (u8, u16, i16);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    vec((any::<u8>(), any::<u16>(), any::<i16>()), 1..STEPS)
}

/// One of about a hundred elements: integers of all widths, short words, and occasionally a long one.
fn element(n: u16) -> Vec<u8> {
    let n = n % 120;
    match n % 8 {
        0 | 1 => (i64::from(n) << (n % 7 * 8)).to_string().into_bytes(),
        2 => (-i64::from(n)).to_string().into_bytes(),
        7 if n > 100 => format!("{n}").repeat(40).into_bytes(),
        _ => format!("word:{n}").into_bytes(),
    }
}

fn bench() -> Bench {
    Bench::new(&crate::families())
}

/// An array reply of these words.
fn array<'a>(words: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let words: Vec<&[u8]> = words.collect();
    let mut out = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        out.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        out.extend_from_slice(word);
        out.extend_from_slice(b"\r\n");
    }
    out
}

/// Parses a reply that is an array of strings.
fn words(reply: &[u8]) -> Vec<Vec<u8>> {
    let line_end = |from: usize| from + reply[from..].iter().position(|byte| *byte == b'\r').expect("a line");
    let number =
        |from: usize| String::from_utf8_lossy(&reply[from..line_end(from)]).parse::<usize>().expect("a length");
    let (count, mut at, mut words) = (number(1), line_end(1) + 2, Vec::new());
    for _ in 0..count {
        let (len, start) = (number(at + 1), line_end(at + 1) + 2);
        words.push(reply[start..start + len].to_vec());
        at = start + len + 2;
    }
    words
}

/// Changes thresholds, or dumps and restores the value; returns whether it did one of these.
fn between(bench: &mut Bench, (operation, n, _): Step) -> bool {
    match operation {
        0..8 => {
            let small = usize::from(n % 24);
            let settings = &mut bench.settings;
            (settings.encoding.list.max_listpack_size, settings.encoding.list.compress_depth) =
                ((n % 9) as i32 - 2, u32::from(n % 3));
            settings.encoding.hash.fields = small;
            (settings.encoding.set.listpack_entries, settings.encoding.set.intset_entries) = (small, small + 4);
            settings.encoding.sorted_set.entries = small;
            settings.encoding.stream.entries = small;
            true
        }
        8..24 => {
            let reply = bench.run_words(&[b"DUMP", KEY]);
            if reply.starts_with(b"$-1") {
                return true;
            }
            let start = reply.iter().position(|byte| *byte == b'\n').expect("a length") + 1;
            let payload = &reply[start..reply.len() - 2];
            assert_eq!(bench.run("DEL key"), ":1");
            assert_eq!(bench.run_words(&[b"RESTORE", KEY, b"0", payload]), b"+OK\r\n");
            true
        }
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, ..ProptestConfig::default() })]

    #[test]
    fn list_behaves_as_vector(steps in steps()) {
        let (mut bench, mut model) = (bench(), Vec::<Vec<u8>>::new());
        for step in steps {
            let (operation, n, m) = step;
            if between(&mut bench, step) {
                continue;
            }
            let (word, index) = (element(n), i64::from(m) % 40);
            let at = usize::try_from(if index < 0 { index + model.len() as i64 } else { index }).ok();
            let at = at.filter(|at| *at < model.len());
            let number = index.to_string().into_bytes();
            match operation % 9 {
                0..3 => {
                    bench.run_words(&[b"RPUSH", KEY, &word]);
                    model.push(word);
                }
                3 | 4 => {
                    bench.run_words(&[b"LPUSH", KEY, &word]);
                    model.insert(0, word);
                }
                5 => {
                    bench.run("LPOP key");
                    if !model.is_empty() {
                        model.remove(0);
                    }
                }
                6 => {
                    bench.run_words(&[b"LSET", KEY, &number, &word]);
                    if let Some(at) = at {
                        model[at] = word;
                    }
                }
                7 => {
                    bench.run_words(&[b"LINSERT", KEY, b"AFTER", &word, b"inserted"]);
                    if let Some(at) = model.iter().position(|known| *known == word) {
                        model.insert(at + 1, b"inserted".to_vec());
                    }
                }
                _ => {
                    bench.run_words(&[b"LREM", KEY, b"-1", &word]);
                    if let Some(at) = model.iter().rposition(|known| *known == word) {
                        model.remove(at);
                    }
                }
            }
        }
        prop_assert_eq!(bench.run_words(&[b"LRANGE", KEY, b"0", b"-1"]), array(model.iter().map(Vec::as_slice)));
    }

    #[test]
    fn set_behaves_as_set(steps in steps()) {
        let (mut bench, mut model) = (bench(), BTreeSet::<Vec<u8>>::new());
        for step in steps {
            let (operation, n, _) = step;
            if between(&mut bench, step) {
                continue;
            }
            let word = element(n);
            let (reply, changed) = match operation % 3 {
                0 => (bench.run_words(&[b"SREM", KEY, &word]), model.remove(&word)),
                1 => (bench.run_words(&[b"SISMEMBER", KEY, &word]), model.contains(&word)),
                _ => (bench.run_words(&[b"SADD", KEY, &word]), model.insert(word)),
            };
            prop_assert_eq!(reply, format!(":{}\r\n", u8::from(changed)).into_bytes());
        }
        let mut members = words(&bench.run_words(&[b"SMEMBERS", KEY]));
        members.sort();
        prop_assert!(members.iter().eq(model.iter()));
    }

    #[test]
    fn hash_behaves_as_map_with_expiring_fields(steps in steps()) {
        let (mut bench, mut model) = (bench(), BTreeMap::<Vec<u8>, (Vec<u8>, Option<i64>)>::new());
        for step in steps {
            let (operation, n, m) = step;
            if between(&mut bench, step) {
                continue;
            }
            let (field, value) = (element(n), element(m as u16));
            match operation % 8 {
                0..4 => {
                    bench.run_words(&[b"HSET", KEY, &field, &value]);
                    model.insert(field, (value, None));
                }
                4 | 5 => {
                    bench.run_words(&[b"HDEL", KEY, &field]);
                    model.remove(&field);
                }
                6 => {
                    let at = bench.now_ms + 1 + i64::from(m.unsigned_abs());
                    bench.run_words(&[b"HPEXPIREAT", KEY, at.to_string().as_bytes(), b"FIELDS", b"1", &field]);
                    if let Some((_, expiry)) = model.get_mut(&field) {
                        *expiry = Some(at);
                    }
                }
                _ => {
                    bench.now_ms += i64::from(m.unsigned_abs() / 64);
                    let now_ms = bench.now_ms;
                    model.retain(|_, (_, expiry)| expiry.is_none_or(|at| at >= now_ms));
                }
            }
        }
        let fields = words(&bench.run_words(&[b"HGETALL", KEY]));
        let mut fields: Vec<_> = fields.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect();
        fields.sort();
        prop_assert!(fields.into_iter().eq(model.iter().map(|(field, (value, _))| (field.clone(), value.clone()))));
        for (field, (_, expiry)) in &model {
            let reply = bench.run_words(&[b"HPEXPIRETIME", KEY, b"FIELDS", b"1", field]);
            prop_assert_eq!(reply, format!("*1\r\n:{}\r\n", expiry.unwrap_or(-1)).into_bytes());
        }
    }

    #[test]
    fn sorted_set_is_ordered_by_score_and_member(steps in steps()) {
        let (mut bench, mut model) = (bench(), BTreeMap::<Vec<u8>, i64>::new());
        for step in steps {
            let (operation, n, m) = step;
            if between(&mut bench, step) {
                continue;
            }
            let (member, score) = (element(n), i64::from(m % 50));
            let text = score.to_string().into_bytes();
            match operation % 7 {
                0..4 => {
                    bench.run_words(&[b"ZADD", KEY, &text, &member]);
                    model.insert(member, score);
                }
                4 => {
                    bench.run_words(&[b"ZREM", KEY, &member]);
                    model.remove(&member);
                }
                5 => {
                    bench.run_words(&[b"ZINCRBY", KEY, &text, &member]);
                    *model.entry(member).or_default() += score;
                }
                _ => {
                    bench.run_words(&[b"ZREMRANGEBYSCORE", KEY, &text, &text]);
                    model.retain(|_, known| *known != score);
                }
            }
        }
        let mut order: Vec<(i64, &[u8])> = model.iter().map(|(member, score)| (*score, member.as_slice())).collect();
        order.sort();
        let reply = bench.run_words(&[b"ZRANGE", KEY, b"0", b"-1"]);
        prop_assert_eq!(reply, array(order.iter().map(|(_, member)| *member)));
        for (rank, (_, member)) in order.iter().enumerate() {
            let reply = bench.run_words(&[b"ZRANK", KEY, member]);
            prop_assert_eq!(reply, format!(":{rank}\r\n").into_bytes());
        }
    }

    #[test]
    fn stream_behaves_as_log_with_groups(steps in steps()) {
        let (mut bench, mut model, mut last) = (bench(), BTreeSet::<u64>::new(), 0u64);
        let (mut read, mut pending) = (0u64, BTreeSet::<u64>::new());
        bench.run("XGROUP CREATE key readers 0 MKSTREAM");
        for step in steps {
            let (operation, n, m) = step;
            if between(&mut bench, step) {
                continue;
            }
            let one = u64::from(n) % (last + 1);
            match operation % 8 {
                0..4 => {
                    last += 1 + u64::from(n % 3);
                    bench.run_words(&[b"XADD", KEY, format!("{last}-1").as_bytes(), b"field", &element(m as u16)]);
                    model.insert(last);
                }
                4 => {
                    let reply = bench.run(&format!("XDEL key {one}-1"));
                    prop_assert_eq!(reply, format!(":{}", u8::from(model.remove(&one))));
                }
                5 => {
                    let keep = usize::from(n % 40);
                    bench.run(&format!("XTRIM key MAXLEN = {keep}"));
                    while model.len() > keep {
                        model.pop_first();
                    }
                }
                6 => {
                    bench.run("XREADGROUP GROUP readers me COUNT 3 STREAMS key >");
                    let new: Vec<u64> = model.range(read + 1..).take(3).copied().collect();
                    read = new.last().copied().unwrap_or(read);
                    pending.extend(new);
                }
                _ => {
                    let reply = bench.run(&format!("XACK key readers {one}-1"));
                    prop_assert_eq!(reply, format!(":{}", u8::from(pending.remove(&one))));
                }
            }
        }
        prop_assert_eq!(bench.run("XLEN key"), format!(":{}", model.len()));
        for id in &model {
            let reply = bench.run(&format!("XRANGE key {id}-1 {id}-1"));
            let begins = format!("*1 *2 ${} {id}-1 *2 $5 field", id.to_string().len() + 2);
            prop_assert!(reply.starts_with(&begins), "{}", reply);
        }
        let summary = bench.run("XPENDING key readers");
        prop_assert!(summary.starts_with(&format!("*4 :{}", pending.len())), "{}", summary);
    }
}
