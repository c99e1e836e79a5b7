//! Sets.
//!
//! [`members`] contains the commands on members of one set, [`random`] those that select random members, and
//! [`combine`] intersections, unions and differences.

pub mod combine;
pub mod members;
pub mod random;
#[cfg(test)]
mod tests;

use kvick_store::collections::set::Limits;

use crate::context::{Handler, Settings};
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

/// The size limits of the compact encodings.
fn limits(settings: &Settings) -> Limits {
    Limits {
        intset_entries: settings.set_max_intset_entries,
        listpack_entries: settings.set_max_listpack_entries,
        listpack_value: settings.set_max_listpack_value,
    }
}
