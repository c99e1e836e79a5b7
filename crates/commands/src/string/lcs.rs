//! LCS: the longest common subsequence of two strings.
//!
//! This is the usual dynamic program: the length of the subsequence for each pair of prefixes follows from those of
//! prefixes one byte shorter. Only one row of lengths is kept. To reconstruct the subsequence, it suffices to know for
//! each pair which of the two shorter prefixes had the longer subsequence, so one bit per pair is stored ([`Table`]),
//! 1/32 of the memory of Valkey's table of lengths.

use kvick_resp::Args;
use kvick_resp::format::parse_i64;
use kvick_store::IntBuf;

use crate::context::{Context, Error, Handler};
use crate::spec::{Arg, Categories, Command, Flags, Group, KeyFlags, KeySpec, Spec};

/// `LCS key1 key2 [LEN] [IDX] [MINMATCHLEN min-match-len] [WITHMATCHLEN]`
pub const LCS: Command<Handler> = Command::new(
    Spec::new("lcs", -3)
        .flags(&[Flags::READONLY])
        .acl(&[Categories::STRING])
        .keys(&[KeySpec::range(1, 1, 1, &[KeyFlags::RO, KeyFlags::ACCESS])])
        .doc(
            Group::String,
            "7.0.0",
            "O(N*M), N and M being the lengths of the two strings.",
            "Finds the longest common subsequence of two strings.",
        )
        .args(&[
            Arg::key("key1"),
            Arg::key("key2"),
            Arg::word("len", "LEN").optional(),
            Arg::word("idx", "IDX").optional(),
            Arg::integer("min-match-len").token("MINMATCHLEN").optional(),
            Arg::word("withmatchlen", "WITHMATCHLEN").optional(),
        ]),
    lcs,
);

#[derive(Default)]
struct Options {
    len: bool,
    idx: bool,
    with_match_len: bool,
    match_len_min: i64,
}

impl Options {
    fn parse(args: Args<'_>) -> Result<Options, Error> {
        const AMBIGUOUS: Error = Error::text("ERR If you want both the length and indexes, please just use IDX.");
        let mut options = Options::default();
        let mut words = args.slice_from(3).iter();
        while let Some(word) = words.next() {
            if word.eq_ignore_ascii_case(b"idx") {
                options.idx = true;
            } else if word.eq_ignore_ascii_case(b"len") {
                options.len = true;
            } else if word.eq_ignore_ascii_case(b"withmatchlen") {
                options.with_match_len = true;
            } else if word.eq_ignore_ascii_case(b"minmatchlen") {
                let number = words.next().ok_or(Error::SYNTAX)?;
                options.match_len_min = parse_i64(number).ok_or(Error::NOT_INTEGER)?;
            } else {
                return Err(Error::SYNTAX);
            }
        }
        if options.len && options.idx { Err(AMBIGUOUS) } else { Ok(options) }
    }
}

fn lcs(cx: &mut Context<'_>, args: Args<'_>) -> Result<(), Error> {
    let a = operand(cx, args, 1);
    let b = operand(cx, args, 2);
    let (Some(a), Some(b)) = (a, b) else {
        return Err(Error::text("ERR The specified keys must contain string values"));
    };
    let options = Options::parse(args)?;
    let table = Table::fill(&a, &b, cx.settings.proto_max_bulk_len)?;
    if options.idx {
        reply_runs(cx, &options, &table, &table.runs(&a, &b));
    } else if options.len {
        cx.reply.uint(table.len.into());
    } else {
        let runs = table.runs(&a, &b);
        let common: Vec<u8> = runs.iter().rev().flat_map(|run| &a[run.a..run.a + run.len]).copied().collect();
        cx.reply.bulk(&common);
    }
    Ok(())
}

/// A copy of the string at argument `index`, empty if the key does not exist; `None` if it has another type.
fn operand(cx: &mut Context<'_>, args: Args<'_>, index: usize) -> Option<Vec<u8>> {
    let key = cx.key(args, index);
    match cx.db.get(key).map(|entry| entry.str()) {
        None => Some(Vec::new()),
        Some(value) => Some(value?.bytes(&mut IntBuf::default()).to_vec()),
    }
}

fn reply_runs(cx: &mut Context<'_>, options: &Options, table: &Table, runs: &[Run]) {
    let shown = || runs.iter().filter(|run| run.len as i64 >= options.match_len_min);
    let reply = &mut cx.reply;
    reply.map(2);
    reply.bulk(b"matches");
    reply.array(shown().count());
    for run in shown() {
        reply.array(2 + options.with_match_len as usize);
        for start in [run.a, run.b] {
            reply.array(2);
            reply.uint(start as u64);
            reply.uint((start + run.len - 1) as u64);
        }
        if options.with_match_len {
            reply.uint(run.len as u64);
        }
    }
    reply.bulk(b"len");
    reply.uint(table.len.into());
}

/// A part of the subsequence that is contiguous in both strings.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    /// Its start in the first string.
    a: usize,
    /// Its start in the second string.
    b: usize,
    /// Its length in bytes, at least 1.
    len: usize,
}

/// The completed table.
struct Table {
    /// The length of the subsequence.
    len: u32,
    /// 64-bit words in a row of `steps`.
    row_words: usize,
    /// For each pair of prefixes, in one row per byte of the first string: whether the subsequence is longer without
    /// the last byte of the first string than without that of the second.
    steps: Vec<u64>,
}

impl Table {
    /// Compares the strings. The limits are those of Valkey, whose table takes four bytes per pair of prefixes and must
    /// not exceed `bytes_max` bytes.
    fn fill(a: &[u8], b: &[u8], bytes_max: u64) -> Result<Table, Error> {
        const TOO_LONG: Error = Error::text("ERR String too long for LCS");
        const TOO_LARGE: Error =
            Error::text("ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len");
        const NO_MEMORY: Error = Error::text("ERR Insufficient memory, failed allocating transient memory for LCS");
        let len_max = u32::MAX as usize - 2;
        if a.len() > len_max || b.len() > len_max {
            return Err(TOO_LONG);
        }
        if 4 * (a.len() as u128 + 1) * (b.len() as u128 + 1) > bytes_max.into() {
            return Err(TOO_LARGE);
        }
        let row_words = b.len().div_ceil(64);
        let mut steps = Vec::new();
        steps.try_reserve_exact(a.len() * row_words).map_err(|_| NO_MEMORY)?;
        let mut row = vec![0; b.len()];
        for &x in a {
            let (mut diagonal, mut left) = (0, 0);
            for (b, row) in b.chunks(64).zip(row.chunks_mut(64)) {
                let mut word = 0;
                for (place, (&y, cell)) in b.iter().zip(row).enumerate() {
                    let up = *cell;
                    word |= ((up > left) as u64) << place;
                    left = if x == y { diagonal + 1 } else { left.max(up) };
                    diagonal = up;
                    *cell = left;
                }
                steps.push(word);
            }
        }
        Ok(Table { len: row.last().copied().unwrap_or(0), row_words, steps })
    }

    /// Reconstructs the runs of the subsequence from the table, the last one first.
    fn runs(&self, a: &[u8], b: &[u8]) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let (mut i, mut j) = (a.len(), b.len());
        while i > 0 && j > 0 {
            let word = self.steps[(i - 1) * self.row_words + (j - 1) / 64];
            if a[i - 1] == b[j - 1] {
                match runs.last_mut() {
                    Some(run) if (run.a, run.b) == (i, j) => {
                        *run = Run { a: i - 1, b: j - 1, len: run.len + 1 };
                    }
                    _ => runs.push(Run { a: i - 1, b: j - 1, len: 1 }),
                }
                i -= 1;
                j -= 1;
            } else if word >> ((j - 1) % 64) & 1 == 1 {
                i -= 1;
            } else {
                j -= 1;
            }
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use kvick_resp::Version;

    use super::*;
    use crate::string::COMMANDS;
    use crate::testing::Bench;

    fn bench() -> Bench {
        let mut bench = Bench::new(&[COMMANDS]);
        bench.run("MSET a ohmytext b mynewtext");
        bench
    }

    #[test]
    fn lcs_replies_with_string_length_or_positions() {
        let mut bench = bench();
        assert_eq!(bench.run("LCS a b"), "$6 mytext");
        assert_eq!(bench.run("LCS a b LEN"), ":6");
        let places = "$7 matches *2 *2 *2 :4 :7 *2 :5 :8 *2 *2 :2 :3 *2 :0 :1 $3 len :6";
        assert_eq!(bench.run("LCS a b IDX"), format!("*4 {places}"));
        bench.version = Version::Resp3;
        assert_eq!(bench.run("LCS a b IDX"), format!("%2 {places}"));
        assert_eq!(
            bench.run("LCS a b IDX MINMATCHLEN 4 WITHMATCHLEN"),
            "%2 $7 matches *1 *3 *2 :4 :7 *2 :5 :8 :4 $3 len :6"
        );
    }

    #[test]
    fn missing_key_is_empty() {
        let mut bench = bench();
        assert_eq!(bench.run("LCS a n"), "$0");
        assert_eq!(bench.run("LCS n a LEN"), ":0");
        assert_eq!(bench.run("LCS n m IDX"), "*4 $7 matches *0 $3 len :0");
    }

    #[test]
    fn options_are_checked() {
        let mut bench = bench();
        assert_eq!(bench.run("LCS a b LEN IDX"), "-ERR If you want both the length and indexes, please just use IDX.");
        assert_eq!(bench.run("LCS a b MINMATCHLEN"), "-ERR syntax error");
        assert_eq!(bench.run("LCS a b MINMATCHLEN x"), "-ERR value is not an integer or out of range");
        bench.settings.proto_max_bulk_len = 4 * 9 * 10 - 1;
        assert_eq!(
            bench.run("LCS a b"),
            "-ERR Insufficient memory, transient memory for LCS exceeds proto-max-bulk-len"
        );
        bench.settings.proto_max_bulk_len += 1;
        assert_eq!(bench.run("LCS a b"), "$6 mytext");
    }

    #[test]
    fn long_strings_match_the_plain_algorithm() {
        // A small alphabet, and lengths beyond one word of a row, compared with the full table of the definition.
        let text = |seed: u32, len: usize| -> Vec<u8> {
            let next = |x: &u32| Some(x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223));
            std::iter::successors(Some(seed), next).map(|x| b'a' + (x >> 30) as u8).take(len).collect()
        };
        for (a_len, b_len) in [(1, 64), (64, 65), (200, 129), (130, 1)] {
            let (a, b) = (text(1, a_len), text(7, b_len));
            let mut plain = vec![vec![0; b_len + 1]; a_len + 1];
            for i in 1..=a_len {
                for j in 1..=b_len {
                    plain[i][j] = if a[i - 1] == b[j - 1] {
                        plain[i - 1][j - 1] + 1
                    } else {
                        plain[i - 1][j].max(plain[i][j - 1])
                    };
                }
            }
            let table = Table::fill(&a, &b, u64::MAX).unwrap();
            assert_eq!(table.len, plain[a_len][b_len]);
            let runs = table.runs(&a, &b);
            assert_eq!(runs.iter().map(|run| run.len).sum::<usize>(), table.len as usize);
            assert!(runs.iter().all(|run| a[run.a..run.a + run.len] == b[run.b..run.b + run.len]));
            assert!(
                runs.windows(2)
                    .all(|pair| { pair[1].a + pair[1].len <= pair[0].a && pair[1].b + pair[1].len <= pair[0].b })
            );
        }
    }
}
