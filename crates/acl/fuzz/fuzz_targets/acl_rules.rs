//! Any lines as the rules of a user are applied or refused, and what is written down of the user makes the same one
//! again.
//!
//! Two things cannot be written down so that they read back, in the reference neither: in a selector, patterns with
//! quotes or with a parenthesis at their end; and `%RW~*`, which is not `~*` but looks like it.

#![no_main]

use kvick_acl::User;
use kvick_acl::rules::{Reader, join_selectors};
use kvick_commands::table::CommandTable;
use kvick_core::clients::default_user_name;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TABLE: LazyLock<CommandTable<()>> = LazyLock::new(CommandTable::new);

fuzz_target!(|bytes: &[u8]| {
    let reader = Reader { table: TABLE.catalogue(), all_channels: bytes.first().is_some_and(|byte| byte & 1 == 1) };
    let Ok(rules) = join_selectors(bytes.split(|byte| *byte == b'\n')) else { return };
    let mut user = User::new(default_user_name(), reader.all_channels);
    for rule in &rules {
        let before = user.clone();
        if !reads_back(rule) || reader.apply(&mut user, rule).is_err() {
            user = before;
        }
    }
    let line = user.rules();
    let mut recreated = User::new(default_user_name(), reader.all_channels);
    for rule in join_selectors(line.split(|byte| *byte == b' ')).expect("parentheses are closed") {
        reader.apply(&mut recreated, &rule).expect("what is written down is right");
    }
    assert_eq!(recreated.rules(), line);
    assert_eq!(recreated.is_unrestricted(), user.is_unrestricted());
});

/// Whether what a rule does can be written down.
fn reads_back(rule: &[u8]) -> bool {
    let in_selector = rule.strip_prefix(b"(").and_then(|rest| rest.strip_suffix(b")"));
    let plain = |inner: &[u8]| !inner.iter().any(|byte| matches!(byte, b'"' | b'\'' | b'(' | b')' | b'\0'));
    let looks_like_all = rule.contains(&b'%') && rule.windows(2).any(|pair| pair == b"~*");
    in_selector.is_none_or(plain) && !looks_like_all
}
