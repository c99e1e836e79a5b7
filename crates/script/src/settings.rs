//! What a virtual machine is made for: its kind, the identity of the server, and limits.

/// What a machine runs, which determines its environment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Scripts (EVAL): their keys and arguments are the globals `KEYS` and `ARGV`.
    Scripts,
    /// Functions (FCALL): their keys and arguments are parameters.
    Functions,
}

/// The identity that the server reports to scripts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// `SERVER_NAME`.
    pub server_name: String,
    /// `VALKEY_VERSION`, of three numbers.
    pub version: String,
    /// `REDIS_VERSION`, of three numbers.
    pub redis_version: String,
}

/// The settings of a machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Whether the deprecated `getfenv` and `setfenv` are available.
    pub insecure_api: bool,
    /// Maximum bytes that scripts may use; `None` for no limit.
    pub memory_max: Option<usize>,
    /// The seed of `math.random`; `None` for the one that Valkey starts with.
    pub seed: Option<i32>,
}

impl Default for Settings {
    /// No deprecated functions, no limit, Valkey's random numbers.
    fn default() -> Self {
        Settings { insecure_api: false, memory_max: None, seed: None }
    }
}
