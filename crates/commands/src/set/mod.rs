//! Sets.

use crate::context::Handler;
use crate::spec::Command;

/// The commands of this family.
pub static COMMANDS: &[Command<Handler>] = &[];
