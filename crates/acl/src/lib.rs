//! Access control lists: authentication, and the rights of each user.
//!
//! - [`user`]: a user and its selectors, each with the commands, keys, channels and databases that it allows.
//! - [`rules`]: parses the rules that define a user; [`mod@print`] writes them.
//! - [`check`]: checks whether a user may execute a request.
//! - [`users`]: all users by name.
//! - [`identity`]: the user of a client, and the comparison that admits most requests.
//! - [`mod@file`]: users in configuration files and ACL files.
//! - [`log`]: ACL LOG. [`password`]: password digests.
//!
//! Invariants:
//!
//! - A command needs the rights at the time when it starts, even if it was queued in a transaction or blocked on a key.
//!   Except for CONFIG SET requirepass, users are changed under the global lock: after the reply to a change, no
//!   command is running that was allowed only before it.
//! - A client whose user was deleted executes no more commands.
//! - The default user always exists.

pub mod check;
pub mod file;
pub mod identity;
pub mod log;
pub mod password;
mod print;
pub mod rules;
#[cfg(test)]
mod testing;
pub mod user;
pub mod users;

pub use check::{Denied, Reason};
pub use user::User;
pub use users::Acl;
