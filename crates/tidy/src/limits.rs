//! The numbers that the rules compare with.

/// Layers and limits of a repository.
///
/// Parts of the repository that do not keep a rule yet have a number of their own, the one that was measured last.
/// Lower it when a change makes that possible; never raise it. An exception that is no longer needed is a violation.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Crates by layer, the lowest first. A crate may depend only on crates of lower layers.
    pub layers: &'static [&'static [&'static str]],
    /// Crates beside the layers, for development only. No crate may depend on them, except in tests.
    pub beside_layers: &'static [&'static str],
    /// Files of different families in one circle of imports.
    pub circle_files_max: usize,
    /// The same for crates that do not keep that limit yet.
    pub circle_files_max_of: &'static [(&'static str, usize)],
    /// Lines of a Rust file.
    pub file_lines_max: usize,
    /// Lines in `src` of crates that must not grow further.
    pub crate_lines_max_of: &'static [(&'static str, usize)],
    /// Columns of a line.
    pub columns_max: usize,
    /// Directories, or files, that do not keep that limit yet, with the number of longer lines in each.
    pub long_lines_max_of: &'static [(&'static str, usize)],
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            layers: &[
                &["resp", "usage", "metrics", "load", "planner"],
                &["store", "operator"],
                &["rdb", "script", "runtime", "cluster", "forward"],
                &["commands", "config", "http", "otlp", "simulator", "backup"],
                &["core", "process", "page", "operator-kube"],
                &["acl", "scripting", "net"],
                &["durability", "cluster-bus"],
                &["replication"],
                &["engine"],
                &["worker"],
                &["server"],
            ],
            beside_layers: &["testing", "tidy"],
            circle_files_max: 25,
            circle_files_max_of: &[],
            file_lines_max: 800,
            crate_lines_max_of: &[("server", 16_000)],
            columns_max: 120,
            long_lines_max_of: &[],
        }
    }
}

/// The number that `exceptions` has for a name.
pub(crate) fn exception(exceptions: &[(&str, usize)], name: &str) -> Option<usize> {
    exceptions.iter().find(|(excepted, _)| *excepted == name).map(|(_, number)| *number)
}
