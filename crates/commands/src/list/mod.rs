//! Lists: sequences that grow and shrink at both ends.
//!
//! - [`push`]: LPUSH and related commands.
//! - [`pop`]: LPOP, RPOP and LMPOP, and the blocking BLPOP, BRPOP and BLMPOP.
//! - [`transfer`]: LMOVE and RPOPLPUSH, and the blocking BLMOVE and BRPOPLPUSH.
//! - [`read`]: LLEN, LINDEX, LRANGE, LPOS.
//! - [`edit`]: changes other than at the ends: LSET, LINSERT, LREM, LTRIM.
//!
//! A list that becomes empty is removed. Blocking commands are propagated as the equivalent non-blocking command.

use kvick_resp::format::parse_i64;
use kvick_store::collections::list::Side;
use kvick_store::{EventClass, Key};

use crate::context::{Block, Context, Error, Handler};
use crate::spec::Command;

pub mod edit;
pub mod pop;
pub mod push;
pub mod read;
pub mod transfer;

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] = &[
    push::LPUSH,
    push::RPUSH,
    push::LPUSHX,
    push::RPUSHX,
    pop::LPOP,
    pop::RPOP,
    pop::LMPOP,
    pop::BLPOP,
    pop::BRPOP,
    pop::BLMPOP,
    transfer::LMOVE,
    transfer::RPOPLPUSH,
    transfer::BLMOVE,
    transfer::BRPOPLPUSH,
    read::LLEN,
    read::LINDEX,
    read::LRANGE,
    read::LPOS,
    edit::LSET,
    edit::LINSERT,
    edit::LREM,
    edit::LTRIM,
];

/// Parses LEFT or RIGHT.
fn side(word: &[u8]) -> Result<Side, Error> {
    if word.eq_ignore_ascii_case(b"left") {
        Ok(Side::Head)
    } else if word.eq_ignore_ascii_case(b"right") {
        Ok(Side::Tail)
    } else {
        Err(Error::SYNTAX)
    }
}

/// The event of a push at a side.
fn push_event(side: Side) -> &'static str {
    match side {
        Side::Head => "lpush",
        Side::Tail => "rpush",
    }
}

/// The event of a pop at a side.
fn pop_event(side: Side) -> &'static str {
    match side {
        Side::Head => "lpop",
        Side::Tail => "rpop",
    }
}

/// The command that pops at a side.
fn pop_command(side: Side) -> &'static [u8] {
    match side {
        Side::Head => b"LPOP",
        Side::Tail => b"RPOP",
    }
}

/// Parses an integer of at least `least`; the error of any other argument is `text`.
fn integer_from(least: i64, word: &[u8], text: &'static str) -> Result<i64, Error> {
    parse_i64(word).filter(|number| *number >= least).ok_or(Error::text(text))
}

/// Parses an integer that can be negated.
fn signed_count(word: &[u8]) -> Result<i64, Error> {
    match parse_i64(word) {
        Some(i64::MIN) => Err(Error::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        )),
        Some(number) => Ok(number),
        None => Err(Error::NOT_INTEGER),
    }
}

/// Records that `count` elements were removed, with event `event`, and removes the list if none are left.
#[inline]
fn removed(cx: &mut Context<'_>, key: Key<'_>, event: &'static str, count: usize, none_left: bool) {
    let effects = cx.db.effects();
    effects.changed(count as u64);
    effects.notify(EventClass::LIST, event, key.bytes);
    if none_left {
        cx.db.remove(key, false);
        cx.db.effects().notify(EventClass::GENERIC, "del", key.bytes);
    }
}

/// A block on lists at the keys with these argument indices.
fn wait(keys: std::ops::Range<usize>, until_ms: Option<i64>) -> Block {
    Block {
        keys: keys.collect(),
        kind: kvick_store::Kind::List,
        wakes_on_deletion: false,
        group: 0,
        until_ms,
        rewritten: None,
    }
}

#[cfg(test)]
mod tests;
