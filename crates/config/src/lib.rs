//! The configuration: the directives, their current values, and how values are read, changed and written.
//!
//! - [`tables`] lists the directives and defines a typed [`Key`] for each; [`directive`], [`value`], [`words`] and
//!   [`shapes`] define their building blocks.
//! - [`Config`] holds the values of a running server. Any thread may read them; [`Config::set_many`] changes several of
//!   them atomically, as CONFIG SET does.
//! - [`explanations`] has what `kvick.conf` says about each directive.
//! - [`arguments`] parses the command line and [`load`] the configuration that it selects; [`rewrite`] writes the
//!   configuration back to its file.
//!
//! Invariants: a value has the kind of its directive, is within its bounds and passes its check; values are put into
//! effect before other threads can read them; and every change increments the generation.

pub mod arguments;
mod checks;
pub mod directive;
pub mod explanations;
mod glob;
pub mod load;
pub mod metrics_streams;
pub mod numbers;
pub mod proc_title;
pub mod process_settings;
pub mod quoting;
#[cfg(test)]
mod reference;
pub mod rewrite;
pub mod set;
pub mod shapes;
pub mod tables;
pub mod value;
mod values;
pub mod words;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

pub use directive::{Directive, Effect, Flags, Id, Key, Kind};
pub use load::trim;
pub use set::{Apply, Caller, Changed, ConfigError};
pub use value::{Refusal, Setting, Text};
pub use values::Values;

/// The configuration of a running server, shared by its threads.
pub struct Config {
    values: RwLock<Arc<Values>>,
    generation: AtomicU64,
    /// Held while values are changed, so that changes and their effects are serialized.
    changing: Mutex<()>,
}

impl Config {
    /// A configuration with these initial values, at generation 1.
    pub fn new(values: Values) -> Self {
        Self { values: RwLock::new(Arc::new(values)), generation: AtomicU64::new(1), changing: Mutex::new(()) }
    }

    /// A number that every change increments. Threads that keep copies of settings read them again when it has changed.
    /// It is incremented after the values are replaced, so a thread that sees the new number also sees the new values.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// A consistent snapshot of all values.
    pub fn values(&self) -> Arc<Values> {
        self.values.read().clone()
    }

    /// One setting.
    pub fn read<T: Setting>(&self, key: Key<T>) -> T {
        self.values.read().read(key)
    }

    /// One setting by its name or alias, as CONFIG GET shows it.
    pub fn get(&self, name: &[u8]) -> Option<Vec<u8>> {
        let found = tables::find(name)?;
        Some(self.values.read().show(found.id))
    }

    /// The reply of CONFIG GET to these patterns: names with their values, sorted by name.
    ///
    /// An argument without a wildcard is looked up case-insensitively and listed as it was written. A pattern lists
    /// every matching name and alias, except those of hidden directives.
    pub fn match_names<'a>(&self, patterns: impl IntoIterator<Item = &'a [u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut found: Vec<(Vec<u8>, Id)> = Vec::new();
        for pattern in patterns {
            if !glob::is_pattern(pattern) {
                found.extend(tables::find(pattern).map(|name| (pattern.to_vec(), name.id)));
                continue;
            }
            let visible = tables::names().filter(|name| !name.id.directive().flags.contains(Flags::HIDDEN));
            let matching = visible.filter(|name| kvick_resp::glob::matches(pattern, name.name.as_bytes(), true));
            found.extend(matching.map(|name| (name.name.as_bytes().to_vec(), name.id)));
        }
        // List a name that several patterns match once, as first written.
        let mut seen = std::collections::HashSet::new();
        found.retain(|(name, _)| seen.insert(name.to_ascii_lowercase()));
        found.sort();
        let values = self.values();
        found.into_iter().map(|(name, id)| (name, values.show(id))).collect()
    }

    /// The names of all directives that are not hidden, sorted.
    pub fn directive_names() -> Vec<&'static str> {
        let visible = tables::names().filter(|name| !name.id.directive().flags.contains(Flags::HIDDEN));
        let mut names: Vec<&str> = visible.map(|name| name.name).collect();
        names.sort_unstable();
        names
    }

    /// Stores a value that the server itself determined, without checking or applying it: the primary of REPLICAOF, or
    /// the number of clients that the limit of open files allows.
    pub fn put<T: Setting>(&self, key: Key<T>, value: T) {
        let _changing = self.changing.lock();
        let mut values = Values::clone(&self.values());
        values.put(key.id(), value.into_value());
        self.publish(values);
    }

    fn publish(&self, values: Values) {
        *self.values.write() = Arc::new(values);
        self.generation.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::tables::{ids, network, process, replication};
    use super::value::Value;
    use super::*;

    fn config() -> Config {
        Config::new(Values::defaults().unwrap())
    }

    fn names(patterns: &[&str]) -> Vec<String> {
        let found = config().match_names(patterns.iter().map(|pattern| pattern.as_bytes()));
        found.into_iter().map(|(name, _)| String::from_utf8(name).unwrap()).collect()
    }

    #[test]
    fn every_directive_round_trips() {
        let values = Values::defaults().unwrap();
        for id in ids() {
            let directive = id.directive();
            if id == replication::REPLICAOF.id() {
                continue; // No primary is shown as an empty value but written as `no one`.
            }
            let value = values.parse_text(id, &values.show(id));
            assert_eq!(value.as_ref(), Ok(values.value(id)), "{}", directive.name);
        }
    }

    #[test]
    fn names_and_aliases_are_distinct_lower_case_words() {
        let mut seen = std::collections::HashSet::new();
        for id in ids() {
            let Directive { name, alias, .. } = id.directive();
            for name in std::iter::once(name).chain(alias) {
                assert!(seen.insert(*name), "{name} is there twice");
                assert_eq!(tables::find(name.to_ascii_uppercase().as_bytes()).unwrap().id, id);
                assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_')), "{name}");
            }
        }
        assert!(tables::RETIRED.iter().all(|name| !seen.contains(name)));
    }

    #[test]
    fn patterns_find_aliases_and_no_hidden_names() {
        assert_eq!(names(&["*of"]), ["replicaof", "slaveof"]);
        assert_eq!(names(&["key-load*"]), Vec::<String>::new());
        assert_eq!(names(&["key-load-delay"]), ["key-load-delay"]);
        assert_eq!(names(&["nosuch"]), Vec::<String>::new());
    }

    #[test]
    fn exact_names_are_listed_once_as_written() {
        assert_eq!(names(&["MaxClients", "maxclient*"]), ["MaxClients"]);
        assert_eq!(names(&["slowlog-max-len", "slowlog-max-len"]), ["slowlog-max-len"]);
    }

    #[test]
    fn matches_are_sorted() {
        let found = names(&["*", "bind", "*mem*"]);
        assert!(found.is_sorted());
        assert!(found.len() > 200);
    }

    #[test]
    fn settings_are_read_with_their_types() {
        let config = config();
        assert_eq!(config.read(network::PORT), 6379);
        assert_eq!(config.read(network::BIND).list().len(), 2);
        assert_eq!(config.read(process::SUPERVISED), words::Supervised::No);
        assert_eq!(config.read(network::UNIXSOCKET), None);
        assert_eq!(config.get(b"SLOWLOG-MAX-LEN").unwrap(), b"128");
        assert!(config.read(network::IO_THREADS) >= 1);
    }

    #[test]
    fn publishing_a_value_advances_the_generation() {
        let config = config();
        let before = config.generation();
        config.put(replication::REPLICAOF, Some(shapes::Primary { host: "h".into(), port: 1 }));
        assert!(config.generation() > before);
        assert_eq!(config.get(b"slaveof").unwrap(), b"h 1");
    }

    /// Checks that every setting keeps its value when it is read as its type.
    fn assert_types_hold(values: &Values) {
        for (id, read) in ids().zip(tables::read_all(values)) {
            assert_eq!(&read, values.value(id), "{}", id.directive().name);
        }
    }

    #[test]
    fn every_type_covers_the_bounds_of_its_directive() {
        let mut values = Values::defaults().unwrap();
        assert_types_hold(&values);
        for pick in [|min, _| min, |_, max| max] as [fn(i128, i128) -> i128; 2] {
            for id in ids() {
                if let Kind::Integer { min, max, .. } = id.directive().kind {
                    values.put(id, Value::Integer(pick(min, max)));
                }
            }
            assert_types_hold(&values);
        }
        for id in ids() {
            if let Kind::Word(words) = id.directive().kind {
                for (_, word) in words {
                    values.put(id, Value::Word(*word));
                    assert_types_hold(&values);
                }
            }
        }
    }
}
