//! The versions that the server reports.

/// The version of Valkey that it behaves as.
pub const VALKEY: &str = "9.1.2";
/// The version of Redis that Valkey says it is compatible with.
pub const REDIS: &str = "7.2.4";
/// Its own version.
pub const KVICK: &str = env!("CARGO_PKG_VERSION");
