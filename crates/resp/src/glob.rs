//! Glob patterns, used by KEYS, SCAN, CONFIG GET and other commands.
//!
//! `*` matches any run of bytes, `?` any single byte, `[abc]`, `[a-z]` and `[^abc]` one byte of a set, and a backslash
//! escapes the next byte. An unclosed set ends with the pattern; the bounds of a range may be in either order.
//!
//! Two peculiarities are Valkey's, and visible to clients: an empty text matches only the empty pattern (not
//! even `*`, for which KEYS and SCAN skip matching), and a pattern with very many stars matches nothing.
//!
//! Matching takes at most `pattern * text` steps: after a mismatch only the latest star is
//! retried, which suffices because an earlier one could only match the same bytes later.

/// Maximum number of stars, other than trailing ones, that a match may pass; a pattern with more does not match.
const STARS_MAX: u32 = 1000;

/// Whether `pattern` matches the whole of `text`, without regard to ASCII case if `fold_case`.
pub fn matches(pattern: &[u8], text: &[u8], fold_case: bool) -> bool {
    if text.is_empty() {
        return pattern.is_empty();
    }
    let (mut p, mut t, mut stars) = (0, 0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            p += pattern[p..].iter().take_while(|byte| **byte == b'*').count();
            if p == pattern.len() {
                return true;
            }
            stars += 1;
            if stars > STARS_MAX {
                return false;
            }
            retry = Some((p, t));
        }
        if t == text.len() {
            return p == pattern.len();
        }
        match match_one(&pattern[p..], text[t], fold_case) {
            Some(used) => {
                p += used;
                t += 1;
            }
            None => match retry {
                Some((after_star, from)) => {
                    retry = Some((after_star, from + 1));
                    (p, t) = (after_star, from + 1);
                }
                None => return false,
            },
        }
    }
}

/// Matches one byte against the first element of `pattern` (not a `*`); returns the length of that element on a match.
fn match_one(pattern: &[u8], byte: u8, fold_case: bool) -> Option<usize> {
    let fold = |byte: u8| {
        if fold_case { byte.to_ascii_lowercase() } else { byte }
    };
    match pattern {
        [] => None,
        [b'?', ..] => Some(1),
        [b'[', ..] => match_set(pattern, byte, fold),
        [b'\\', literal, ..] => (fold(*literal) == fold(byte)).then_some(2),
        [literal, ..] => (fold(*literal) == fold(byte)).then_some(1),
    }
}

/// Matches one byte against a `[...]` set. A byte after a backslash is compared without `fold`.
fn match_set(pattern: &[u8], byte: u8, fold: impl Fn(u8) -> u8) -> Option<usize> {
    let negated = pattern.get(1) == Some(&b'^');
    let mut at = if negated { 2 } else { 1 };
    let mut found = false;
    loop {
        match &pattern[at..] {
            [] => break,
            [b'\\', literal, ..] => {
                found |= *literal == byte;
                at += 2;
            }
            [b']', ..] => {
                at += 1;
                break;
            }
            [one, b'-', other, ..] => {
                let (low, high) = (*one.min(other), *one.max(other));
                found |= (fold(low)..=fold(high)).contains(&fold(byte));
                at += 3;
            }
            [literal, ..] => {
                found |= fold(*literal) == fold(byte);
                at += 1;
            }
        }
    }
    (found != negated).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn glob(pattern: &str, text: &str) -> bool {
        matches(pattern.as_bytes(), text.as_bytes(), false)
    }

    #[test]
    fn elements_match_one_byte_and_stars_any_number() {
        for (pattern, text) in [
            ("h?llo", "hello"),
            ("h*llo", "hllo"),
            ("h*llo", "heeeello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-b]llo", "hbllo"),
            ("h[b-a]llo", "hbllo"),
            ("*", "x"),
            ("a**", "a"),
            (r"a\*b", "a*b"),
            (r"[\]]", "]"),
            (r"a\", r"a\"),
            ("[abc", "c"),
            ("[^", "x"),
            ("", ""),
        ] {
            assert!(glob(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("h[^e]llo", "hello"),
            ("h[]llo", "h]llo"),
            ("*x", "xa"),
            ("a?", "a"),
            ("a*b", "a"),
            (r"a\*b", "axb"),
            ("[", "["),
            ("A", "a"),
            ("", "a"),
            ("*", ""),
        ] {
            assert!(!glob(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn case_is_folded_on_request() {
        for (pattern, text) in [("MAX*", "maxmemory"), ("[a-mZ]ax*", "MAXclients"), (r"\Max", "max")] {
            assert!(matches(pattern.as_bytes(), text.as_bytes(), true), "{pattern} {text}");
            assert!(!matches(pattern.as_bytes(), text.as_bytes(), false), "{pattern} {text}");
        }
        assert!(!matches(br"[\M]ax", b"max", true));
    }

    #[test]
    fn pathological_patterns_are_fast() {
        assert!(!glob(&("a*".repeat(20) + "b"), &"a".repeat(40)));
        assert!(!glob(&"*a".repeat(200), &"a".repeat(199)));
        assert!(!glob(&"*?".repeat(50_000), &"a".repeat(50_000)));
    }

    #[test]
    fn a_thousand_stars_may_be_followed_by_text() {
        let text = "a".repeat(5000);
        assert!(glob(&("*?".repeat(1000) + "*"), &text));
        assert!(!glob(&"*?".repeat(1001), &text));
    }

    /// A simple reference implementation, without regard to speed.
    fn matches_plainly(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|skip| matches_plainly(rest, &text[skip..])),
            ([], _) => text.is_empty(),
            (_, []) => false,
            (_, [byte, text @ ..]) => {
                match_one(pattern, *byte, false).is_some_and(|used| matches_plainly(&pattern[used..], text))
            }
        }
    }

    proptest! {
        #[test]
        fn any_pattern_is_matched_without_panic(pattern: Vec<u8>, text: Vec<u8>) {
            matches(&pattern, &text, true);
        }

        #[test]
        fn backtracking_to_the_last_star_suffices(pattern in "[\\[\\]^*?\\\\a-c-]{0,10}", text in "[a-c]{1,10}") {
            let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
            prop_assert_eq!(matches(pattern, text, false), matches_plainly(pattern, text));
        }
    }
}
