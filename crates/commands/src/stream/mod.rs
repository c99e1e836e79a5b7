//! Streams: XADD and what reads, trims and acknowledges its entries.
//!
//! [`add`] and [`trim`] change a stream's entries, [`range`] and [`read`] tell them, [`group`], [`pending`] and [`claim`]
//! are about consumer groups, [`info`] tells of all. [`words`] reads the arguments that they share, [`write`] writes
//! the replies and the requests to followers that they share.
//!
//! What groups do depends on time and on what is there, so followers are told the outcome: each delivery and claim as an
//! XCLAIM of its own, and how far a group has read as an XGROUP SETID.

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
