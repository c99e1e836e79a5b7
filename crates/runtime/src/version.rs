//! The versions that the server reports.

/// The version of Valkey that the server is compatible with.
pub const VALKEY: &str = "9.1.2";
/// The version of Redis that this version of Valkey reports for compatibility.
pub const REDIS: &str = "7.2.4";
/// The server's own version.
pub const KVICK: &str = env!("CARGO_PKG_VERSION");
