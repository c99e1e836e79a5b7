//! Sets.
//!
//! [`members`] contains the commands on members of one set, [`random`] those that select random members, and
//! [`combine`] intersections, unions and differences.

pub mod combine;
pub mod members;
pub mod random;
#[cfg(test)]
mod tests;

use crate::context::Handler;
use crate::spec::Command;
pub(crate) use crate::string::reply_string as reply_member;

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] = &[
    members::SADD,
    members::SREM,
    members::SISMEMBER,
    members::SMISMEMBER,
    members::SCARD,
    members::SMEMBERS,
    members::SMOVE,
    members::SSCAN,
    random::SPOP,
    random::SRANDMEMBER,
    combine::SINTER,
    combine::SINTERCARD,
    combine::SINTERSTORE,
    combine::SUNION,
    combine::SUNIONSTORE,
    combine::SDIFF,
    combine::SDIFFSTORE,
];
