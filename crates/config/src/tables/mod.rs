//! All directives, in tables by theme, and the additional words of configuration files.
//!
//! The themes share one numbering, so that a [`Key`](super::Key) is an index into the values. To add a directive, add a
//! line to a theme; to declare that the server implements it, append `.works()` to the line.

pub mod cluster;
pub mod logging;
pub mod memory;
pub mod metrics;
pub mod network;
pub mod persistence;
pub mod process;
pub mod replication;
pub mod security;
pub mod tls;
pub mod tracing;
pub mod types;

use std::collections::HashMap;
use std::sync::LazyLock;

use super::directive::{Directive, Effect, Id};

const I32_MAX: i128 = i32::MAX as i128;
const I64_MAX: i128 = i64::MAX as i128;
const U32_MAX: i128 = u32::MAX as i128;
const U64_MAX: i128 = u64::MAX as i128;

const KB: i128 = 1 << 10;
const MB: i128 = 1 << 20;
const GB: i128 = 1 << 30;

const THEMES: [&[Directive]; 12] = [
    network::TABLE,
    process::TABLE,
    logging::TABLE,
    memory::TABLE,
    types::TABLE,
    persistence::TABLE,
    replication::TABLE,
    cluster::TABLE,
    tls::TABLE,
    security::TABLE,
    metrics::TABLE,
    tracing::TABLE,
];

/// Reads every setting as its type and converts it back into a value.
#[cfg(test)]
pub(super) fn read_all(values: &super::Values) -> Vec<super::value::Value> {
    let themes = [
        network::read_all,
        process::read_all,
        logging::read_all,
        memory::read_all,
        types::read_all,
        persistence::read_all,
        replication::read_all,
        cluster::read_all,
        tls::read_all,
        security::read_all,
        metrics::read_all,
        tracing::read_all,
    ];
    themes.iter().flat_map(|read_all| read_all(values)).collect()
}

/// The number of directives.
pub const COUNT: usize = tracing::END as usize;

static ALL: LazyLock<Vec<&'static Directive>> = LazyLock::new(|| THEMES.iter().copied().flatten().collect());

static BY_NAME: LazyLock<HashMap<&'static str, Name>> = LazyLock::new(|| {
    ids()
        .flat_map(|id| {
            let Directive { name, alias, .. } = id.directive();
            std::iter::once(*name).chain(*alias).map(move |name| (name, Name { name, id }))
        })
        .collect()
});

/// A directive together with the name by which it was found, its own or its alias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    /// In lower case, as in the table.
    pub name: &'static str,
    /// The directive.
    pub id: Id,
}

/// All directives in the order of the tables.
pub fn ids() -> impl Iterator<Item = Id> {
    (0..COUNT).map(|position| Id(position as u16))
}

/// The directive with this number.
pub(super) fn directive(id: Id) -> &'static Directive {
    ALL[usize::from(id.0)]
}

/// Finds a directive by name or alias, case-insensitively.
pub fn find(name: &[u8]) -> Option<Name> {
    let name = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
    BY_NAME.get(name.as_str()).copied()
}

/// All names and aliases, in no particular order.
pub fn names() -> impl Iterator<Item = Name> {
    BY_NAME.values().copied()
}

/// A word that configuration files accept but CONFIG GET and CONFIG SET do not.
#[derive(Debug)]
pub struct FileWord {
    /// The word.
    pub name: &'static str,
    /// Whether the server implements it.
    pub effect: Effect,
}

/// The words that only configuration files and the command line accept. Each may occur several times.
pub const FILE_WORDS: [FileWord; 4] = [
    FileWord { name: "include", effect: Effect::Works },
    FileWord { name: "rename-command", effect: Effect::Works },
    FileWord { name: "user", effect: Effect::Works },
    FileWord { name: "loadmodule", effect: Effect::Kept },
];

/// Directives of earlier versions: ignored with one argument, otherwise unknown.
pub const RETIRED: [&str; 7] = [
    "dynamic-hz",
    "events-per-io-thread",
    "io-threads-do-reads",
    "list-max-ziplist-entries",
    "list-max-ziplist-value",
    "lua-replicate-commands",
    "sanitize-dump-payload",
];
