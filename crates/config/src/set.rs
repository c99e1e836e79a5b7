//! CONFIG SET: changes several settings atomically.

use std::fmt;

use super::Config;
use super::directive::{Flags, Id};
use super::tables::{self, Name, security};
use super::value::Refusal;
use super::values::Values;
use super::words::ProtectedAction;

/// Puts changed settings into effect.
pub trait Apply {
    /// Applies one directive. `values` contains all settings with the new values of this directive and of the others
    /// that change with it; other threads do not see them yet.
    ///
    /// If it fails, nothing changes: the directives applied so far, including this one, are applied again with the
    /// previous values.
    fn apply(&mut self, id: Id, values: &Values) -> Result<(), Refusal>;
}

impl<F: FnMut(Id, &Values) -> Result<(), Refusal>> Apply for F {
    fn apply(&mut self, id: Id, values: &Values) -> Result<(), Refusal> {
        self(id, values)
    }
}

/// The caller of a change of settings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// The client is connected from this machine.
    pub is_local: bool,
    /// A data set is being loaded.
    pub is_loading: bool,
}

/// The directives that were set, in the given order, by the names that the caller used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed(pub Vec<Name>);

/// The reason why settings were not changed. The text is that of the error reply, without the error code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A directive cannot be set while a data set is being loaded; the reply is the one for any command refused in this
    /// state.
    Loading,
    /// The directive does not exist.
    Unknown {
        /// As it was written.
        name: Vec<u8>,
    },
    /// A directive or its value was refused.
    Refused {
        /// The directive: as the caller wrote it if it may not be set, or as in the table if its value was refused.
        name: Vec<u8>,
        /// The reason.
        reason: Refusal,
    },
}

impl ConfigError {
    /// The text, which quotes the name as the caller wrote it.
    pub fn text(&self) -> Vec<u8> {
        match self {
            Self::Loading => b"Valkey is loading the dataset in memory".to_vec(),
            Self::Unknown { name } => {
                [b"Unknown option or number of arguments for CONFIG SET - '", &name[..], b"'"].concat()
            }
            Self::Refused { name, reason } => {
                let reason = reason.to_string();
                let text = b"CONFIG SET failed (possibly related to argument '";
                [&text[..], name, b"') - ", reason.as_bytes()].concat()
            }
        }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl std::error::Error for ConfigError {}

impl Config {
    /// Changes settings atomically: finds and checks every name, then every value, then applies every change in the
    /// given order, and finally makes the new values visible to other threads.
    ///
    /// A directive is applied if its value differs or if it is volatile.
    pub fn set_many(
        &self,
        caller: Caller,
        pairs: &[(&[u8], &[u8])],
        apply: &mut impl Apply,
    ) -> Result<Changed, ConfigError> {
        let _changing = self.changing.lock();
        let before = self.values();
        let names = find_all(caller, pairs, &before)?;
        let mut after = Values::clone(&before);
        let mut to_apply = Vec::new();
        for (name, (_, text)) in names.iter().zip(pairs) {
            let refused = |reason| ConfigError::Refused { name: name.name.into(), reason };
            let value = after.parse_text(name.id, text).map_err(refused)?;
            let directive = name.id.directive();
            if value == *after.value(name.id) && !directive.flags.contains(Flags::VOLATILE) {
                continue;
            }
            after.put(name.id, value);
            to_apply.push(*name);
        }
        apply_all(&to_apply, &before, &after, apply)?;
        self.publish(after);
        Ok(Changed(names))
    }
}

/// Finds the named directives, and checks that each may be set.
fn find_all(caller: Caller, pairs: &[(&[u8], &[u8])], values: &Values) -> Result<Vec<Name>, ConfigError> {
    let protected_allowed = match values.read(security::ENABLE_PROTECTED_CONFIGS) {
        ProtectedAction::No => false,
        ProtectedAction::Yes => true,
        ProtectedAction::Local => caller.is_local,
    };
    let mut found: Vec<Name> = Vec::with_capacity(pairs.len());
    for (written, _) in pairs {
        let Some(name) = tables::find(written) else {
            return Err(ConfigError::Unknown { name: written.to_vec() });
        };
        let refuse = |why| Err(ConfigError::Refused { name: written.to_vec(), reason: Refusal::new(why) });
        let flags = name.id.directive().flags;
        if flags.contains(Flags::IMMUTABLE) {
            return refuse("can't set immutable config");
        }
        if flags.contains(Flags::PROTECTED) && !protected_allowed {
            return refuse("can't set protected config");
        }
        if flags.contains(Flags::DENY_LOADING) && caller.is_loading {
            return Err(ConfigError::Loading);
        }
        // A directive and its alias are distinct names: the one given last prevails.
        if found.contains(&name) {
            return refuse("duplicate parameter");
        }
        found.push(name);
    }
    Ok(found)
}

fn apply_all(names: &[Name], before: &Values, after: &Values, apply: &mut impl Apply) -> Result<(), ConfigError> {
    for (position, name) in names.iter().enumerate() {
        let applied = match name.id.directive().refused_at_runtime {
            Some(why) => Err(Refusal::new(why)),
            None => apply.apply(name.id, after),
        };
        if let Err(reason) = applied {
            for undone in names[..=position].iter().filter(|name| name.id.directive().refused_at_runtime.is_none()) {
                // Restores the previous state where possible; an error cannot be handled further.
                let _ = apply.apply(undone.id, before);
            }
            return Err(ConfigError::Refused { name: name.name.into(), reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tables::{logging, memory, network, process};
    use super::*;
    use kvick_testing::SetOnDrop;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn config() -> Config {
        Config::new(Values::defaults().unwrap())
    }

    fn accept(_: Id, _: &Values) -> Result<(), Refusal> {
        Ok(())
    }

    fn set(config: &Config, pairs: &[(&str, &str)]) -> Result<Changed, String> {
        set_as(config, Caller::default(), pairs, &mut accept)
    }

    fn set_as(
        config: &Config,
        caller: Caller,
        pairs: &[(&str, &str)],
        apply: &mut impl Apply,
    ) -> Result<Changed, String> {
        let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|(name, text)| (name.as_bytes(), text.as_bytes())).collect();
        config.set_many(caller, &pairs, apply).map_err(|error| error.to_string())
    }

    #[test]
    fn settings_change_atomically() {
        let config = config();
        let generation = config.generation();
        let changed = set(&config, &[("MAXMEMORY", "10mb"), ("save", "3000 5"), ("slowlog-max-len", "7")]).unwrap();
        let names: Vec<&str> = changed.0.iter().map(|name| name.name).collect();
        assert_eq!(names, ["maxmemory", "save", "slowlog-max-len"]);
        assert_eq!(config.read(memory::MAXMEMORY), 10 << 20);
        assert_eq!(config.get(b"save").unwrap(), b"3000 5");
        assert_eq!(config.read(logging::COMMANDLOG_SLOW_EXECUTION_MAX_LEN), 7);
        assert!(config.generation() > generation);
    }

    #[test]
    fn one_bad_value_changes_nothing() {
        let config = config();
        let generation = config.generation();
        let text = set(&config, &[("maxmemory", "1"), ("maxmemory-clients", "200%"), ("hz", "x")]).unwrap_err();
        assert_eq!(
            text,
            "CONFIG SET failed (possibly related to argument 'maxmemory-clients') - \
             percentage argument must be less or equal to 100"
        );
        assert_eq!((config.read(memory::MAXMEMORY), config.generation()), (0, generation));
    }

    #[test]
    fn a_refused_change_is_rolled_back() {
        let config = config();
        let mut effects = Vec::new();
        let mut apply = |id: Id, values: &Values| {
            effects.push((id.directive().name, String::from_utf8(values.show(id)).unwrap()));
            let refused = id == network::PORT.id() && values.read(network::PORT) == 1;
            if refused { Err(Refusal::new("Unable to listen on this port. Check server logs.")) } else { Ok(()) }
        };
        let pairs = [("maxclients", "5"), ("timeout", "0"), ("port", "1"), ("hz", "50")];
        let text = set_as(&config, Caller::default(), &pairs, &mut apply).unwrap_err();
        assert_eq!(
            text,
            "CONFIG SET failed (possibly related to argument 'port') - \
             Unable to listen on this port. Check server logs."
        );
        let effects: Vec<(&str, &str)> = effects.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let expected = [("maxclients", "5"), ("port", "1"), ("maxclients", "10000"), ("port", "6379")];
        assert_eq!(effects, expected);
        assert_eq!((config.read(network::MAXCLIENTS), config.read(process::HZ)), (10000, 10));
    }

    #[test]
    fn effects_run_before_the_values_are_published() {
        let config = config();
        let mut apply = |_: Id, values: &Values| {
            assert_eq!((values.read(network::PORT), values.read(network::TIMEOUT)), (7, 8));
            assert_eq!(config.read(network::PORT), 6379);
            Ok(())
        };
        set_as(&config, Caller::default(), &[("port", "7"), ("timeout", "8")], &mut apply).unwrap();
        assert_eq!(config.read(network::PORT), 7);
    }

    #[test]
    fn names_are_checked_before_values() {
        let config = config();
        let text = |pairs| set(&config, pairs).unwrap_err();
        let unknown = "Unknown option or number of arguments for CONFIG SET - 'noSuch'";
        assert_eq!(text(&[("port", "x"), ("noSuch", "1")]), unknown);
        let failed = |name, why| format!("CONFIG SET failed (possibly related to argument '{name}') - {why}");
        assert_eq!(text(&[("Daemonize", "yes")]), failed("Daemonize", "can't set immutable config"));
        assert_eq!(text(&[("DIR", "/")]), failed("DIR", "can't set protected config"));
        let twice = [("maxmemory", "1"), ("MAXMEMORY", "2")];
        assert_eq!(text(&twice), failed("MAXMEMORY", "duplicate parameter"));
        assert_eq!(
            text(&[("LogLevel", "x")]).split(" - ").next().unwrap(),
            failed("loglevel", "").trim_end_matches(" - ")
        );
    }

    #[test]
    fn a_directive_and_its_alias_may_be_set_together() {
        let config = config();
        set(&config, &[("slowlog-max-len", "1"), ("commandlog-slow-execution-max-len", "2")]).unwrap();
        assert_eq!(config.get(b"slowlog-max-len").unwrap(), b"2");
    }

    #[test]
    fn protected_settings_can_be_enabled_for_all_or_local_clients() {
        let local = Caller { is_local: true, is_loading: false };
        for (allowed, far, near) in [("no", false, false), ("yes", true, true), ("local", false, true)] {
            let mut values = Values::defaults().unwrap();
            let id = security::ENABLE_PROTECTED_CONFIGS.id();
            values.put(id, values.parse_text(id, allowed.as_bytes()).unwrap());
            let config = Config::new(values);
            let works = |caller| set_as(&config, caller, &[("dbfilename", "x.rdb")], &mut accept).is_ok();
            assert_eq!((works(Caller::default()), works(local)), (far, near), "{allowed}");
        }
    }

    #[test]
    fn some_settings_are_denied_while_loading() {
        let loading = Caller { is_local: true, is_loading: true };
        let (config, pairs) = (config(), [(&b"appendonly"[..], &b"yes"[..])]);
        assert_eq!(config.set_many(loading, &pairs, &mut accept), Err(ConfigError::Loading));
        assert!(set_as(&config, loading, &[("loglevel", "debug")], &mut accept).is_ok());
    }

    #[test]
    fn only_changes_are_applied_unless_volatile() {
        let config = config();
        let mut applied = Vec::new();
        let mut apply = |id: Id, _: &Values| {
            applied.push(id.directive().name);
            Ok(())
        };
        let pairs = [("port", "6379"), ("tls-cert-file", ""), ("timeout", "1"), ("bind", "* -::*")];
        set_as(&config, Caller::default(), &pairs, &mut apply).unwrap();
        assert_eq!(applied, ["tls-cert-file", "timeout", "bind"]);
    }

    #[test]
    fn checks_refuse_or_adjust() {
        let config = config();
        set(&config, &[("hz", "0")]).unwrap();
        assert_eq!(config.read(process::HZ), 1);
        set(&config, &[("hz", "501")]).unwrap();
        assert_eq!(config.read(process::HZ), 500);
        set(&config, &[("repl-backlog-size", "100")]).unwrap();
        assert_eq!(config.get(b"repl-backlog-size").unwrap(), b"16384");
        let cases = [
            ("shutdown-on-sigint", "save nosave", "shutdown options SAVE and NOSAVE can't be used simultaneously"),
            ("rdma-bind", "1.2.3.4", "No RDMA building support."),
            ("rdma-port", "1", "No RDMA building support."),
            ("proc-title-template", "", "template format is invalid or contains unknown variables"),
            ("proc-title-template", "{x}", "template format is invalid or contains unknown variables"),
            ("cluster-announce-hostname", "a_b", "Hostnames may only contain alphanumeric characters, hyphens or dots"),
            ("cluster-announce-ip", "a b", "cluster-announce-ip contains invalid character"),
            ("cluster-announce-client-ipv4", "1.2.3", "Invalid IPv4 address"),
            ("cluster-announce-client-ipv6", "::g", "Invalid IPv6 address"),
            ("cluster-announce-human-nodename", "a,b", "Announced human node name contained invalid character"),
        ];
        for (name, text, why) in cases {
            let expected = format!("CONFIG SET failed (possibly related to argument '{name}') - {why}");
            assert_eq!(set(&config, &[(name, text)]), Err(expected));
        }
        assert!(set(&config, &[("activedefrag", "yes"), ("cluster-announce-ip", "::1")]).is_ok());
    }

    #[test]
    fn many_threads_read_while_one_changes() {
        let (config, done) = (config(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _done = SetOnDrop(&done);
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut seen = config.generation();
                    while !done.load(Ordering::Relaxed) {
                        let values = config.values();
                        assert_eq!(values.read(network::TIMEOUT), values.read(network::TCP_KEEPALIVE) - 300);
                        assert!(config.generation() >= seen);
                        seen = config.generation();
                    }
                });
            }
            for timeout in 1..=200 {
                let (timeout, keepalive) = (timeout.to_string(), (timeout + 300).to_string());
                set(&config, &[("timeout", &timeout), ("tcp-keepalive", &keepalive)]).unwrap();
            }
        });
    }
}
