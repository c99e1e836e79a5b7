//! Streams: logs of entries, with consumer groups.
//!
//! [`add`] and [`trim`] change the entries of a stream, [`range`] and [`read`] return them, [`group`], [`pending`] and
//! [`claim`] implement consumer groups, and [`info`] returns metadata. [`words`] parses the common arguments;
//! [`mod@write`] writes the common replies and propagated commands.
//!
//! The effect of group commands depends on the time and on the existing entries, so their results are propagated: each
//! delivery and claim as an XCLAIM, and the progress of a group as an XGROUP SETID.

mod add;
mod claim;
mod group;
mod info;
mod pending;
mod range;
mod read;
mod trim;
mod words;
mod write;

#[cfg(test)]
mod tests;

use crate::context::Handler;
use crate::spec::{Command, KeyFlags, KeySpec};

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] = &[
    add::XADD,
    trim::XTRIM,
    trim::XDEL,
    trim::XSETID,
    range::XLEN,
    range::XRANGE,
    range::XREVRANGE,
    read::XREAD,
    read::XREADGROUP,
    group::XGROUP,
    pending::XACK,
    pending::XPENDING,
    claim::XCLAIM,
    claim::XAUTOCLAIM,
    info::XINFO,
];

const READ: &[KeyFlags] = &[KeyFlags::RO, KeyFlags::ACCESS];
const UPDATE: &[KeyFlags] = &[KeyFlags::RW, KeyFlags::UPDATE];
const INSERT: &[KeyFlags] = &[KeyFlags::RW, KeyFlags::INSERT];
const DELETE: &[KeyFlags] = &[KeyFlags::RW, KeyFlags::DELETE];

/// The key of most commands.
const READ_KEY: &[KeySpec] = &[KeySpec::at(1, READ)];
