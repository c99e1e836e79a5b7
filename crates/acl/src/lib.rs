//! Access control lists: who may log in, and what each user may do.
//!
//! - [`user`]: a user and its selectors, each with the commands, keys, channels and databases that it allows.
//! - [`rules`]: reading the rules that make a user; [`print`] writes them down again.
//! - [`check`]: whether a user may do what a request asks for.
//! - [`users`]: all users by name.
//! - [`identity`]: who a client is, and the one comparison that most requests cost.
//! - [`file`]: users in configuration files and in a file of their own.
//! - [`log`]: what was refused. [`password`]: what passwords are kept as.
//!
//! What always holds:
//!
//! - Rights are those of the moment in which a command begins, also of one that was queued in a transaction or has waited
//!   for a key. Changes of users, but for CONFIG SET requirepass, are made while the world is held: when they are replied
//!   to, no command is running that was allowed before them.
//! - A client whose user is gone executes nothing any more.
//! - The default user is always there.

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
