//! Users of a cluster from a secret with an ACL file.
//!
//! The author's secret is not mounted: the operator checks a change first, by its form and with the rules of a running
//! node, and copies it into a secret of its own. So pods that start never find a file that is not valid. The copy has
//! one additional user, without rights, whose name contains the hash of the file. A node that has this user has loaded
//! the file; on the other ones ACL LOAD is repeated until the kubelet has updated the file.

use crate::objects;
use crate::spec::KvickCluster;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kvick_load::reply::Value;
use kvick_operator::observe::{Access, Observer};
use kvick_operator::state::State;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::time::{Duration, Instant};

/// Key of the password in the secret of the password.
pub const PASSWORD_KEY: &str = "password";
/// Key of the user in that secret.
pub const USERNAME_KEY: &str = "username";
/// Key of the users in their secret, and the name of the file.
pub const FILE: &str = "users.acl";
/// The user that logs in if the secret does not name one.
pub const DEFAULT_USER: &str = "default";

/// First part of the name of the user that says which file a node has loaded.
const REVISION_USER: &str = "kvick-revision-";
/// User with which the rules of the others are tried.
const CHECK_USER: &str = "kvick-operator-check";
/// Time between two looks at the author's secret.
const READ_EVERY: Duration = Duration::from_secs(2);
/// Time before ACL LOAD is repeated on a node whose file is still an old one.
const LOAD_EVERY: Duration = Duration::from_secs(2);
/// What the user of the operator and of replication must be allowed to do.
const NEEDED: &[&[&str]] = &[
    &["ACL", "LOAD"],
    &["CLUSTER", "FAILOVER"],
    &["CLUSTER", "NODES"],
    &["COMMAND"],
    &["CONFIG", "SET", "io-threads", "1"],
    &["DBSIZE"],
    &["INFO"],
    &["PING"],
    &["PSYNC", "?", "-1"],
    &["REPLCONF", "ack", "0"],
];

/// Name of the operator's secret with the users.
pub fn secret_name(cluster: &str) -> String {
    format!("{cluster}-acl")
}

/// The hash of an ACL file, as the operator's copy of it is named.
fn revision(text: &str) -> String {
    objects::hash(text.as_bytes())
}

/// The operator's secret with the users of an ACL file.
pub fn secret(cluster: &KvickCluster, text: &str) -> Secret {
    let file = format!("{}\nuser {REVISION_USER}{} off\n", text.trim_end(), revision(text));
    Secret {
        metadata: objects::metadata(cluster, secret_name(&cluster.name_any())),
        string_data: Some(BTreeMap::from([(FILE.to_owned(), file)])),
        ..Secret::default()
    }
}

/// The revision that the operator's secret has.
fn applied_revision(secret: &Secret) -> Option<String> {
    let file = secret.data.as_ref()?.get(FILE)?;
    let text = std::str::from_utf8(&file.0).ok()?;
    let line = text.lines().rfind(|line| !line.is_empty())?;
    let name = line.split(' ').nth(1)?.strip_prefix(REVISION_USER)?;
    Some(name.to_owned())
}

/// The users of an ACL file with their rules. Checks all that can be checked without a server.
///
/// # Errors
/// What is wrong with the file.
fn parse<'a>(text: &'a str, access: &Access) -> Result<Vec<(&'a str, Vec<&'a str>)>, String> {
    let mut users: Vec<(&str, Vec<&str>)> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let mut words = line.split_ascii_whitespace();
        let Some(first) = words.next() else { continue };
        let name = words.next().filter(|_| first == "user");
        let name = name.ok_or_else(|| format!("line {}: expected `user NAME RULES`", index + 1))?;
        if users.iter().any(|(other, _)| *other == name) {
            return Err(format!("line {}: the user '{name}' exists already", index + 1));
        }
        if name.starts_with(REVISION_USER) || name == CHECK_USER {
            return Err(format!("line {}: the name '{name}' is reserved", index + 1));
        }
        users.push((name, words.collect()));
    }
    if !users.iter().any(|(name, _)| *name == DEFAULT_USER) {
        return Err(format!("the user '{DEFAULT_USER}' is missing: without it, it would have all rights"));
    }
    let own = access.username.as_deref().unwrap_or(DEFAULT_USER);
    let rules = users.iter().find(|(name, _)| *name == own).map(|(_, rules)| rules);
    let rules = rules.ok_or_else(|| format!("the user '{own}' of the operator is missing"))?;
    if !admits(rules, access.password.as_deref().unwrap_or_default()) {
        return Err(format!("the user '{own}' of the operator is not on, or has another password than its secret"));
    }
    Ok(users)
}

/// Whether a user with these rules may log in with this password.
fn admits(rules: &[&str], password: &str) -> bool {
    let hash = Sha256::digest(password.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (mut is_on, mut is_open, mut passwords) = (false, false, BTreeSet::new());
    for rule in rules {
        match (*rule, rule.split_at_checked(1)) {
            ("on", _) => is_on = true,
            ("off", _) => is_on = false,
            ("nopass", _) => is_open = true,
            ("resetpass" | "reset", _) => {
                is_on &= *rule != "reset";
                is_open = false;
                passwords.clear();
            }
            (_, Some((">", given))) if given == password => drop(passwords.insert(hash.clone())),
            (_, Some(("#", given))) => drop(passwords.insert(given.to_owned())),
            (_, Some(("<", given))) if given == password => drop(passwords.remove(&hash)),
            (_, Some(("!", given))) => drop(passwords.remove(given)),
            _ => {}
        }
    }
    is_on && (is_open || passwords.contains(&hash))
}

/// Sends a command to a node.
type Ask<'a> = dyn FnMut(&[String]) -> io::Result<Value> + 'a;

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Checks rules with a node, without changing its users: a user without access gets them, and is deleted.
fn check_rules(users: &[(&str, Vec<&str>)], own: &str, send: &mut Ask<'_>) -> Result<(), String> {
    let mut check = || -> Result<(), String> {
        for (name, rules) in users {
            let mut request = words(&["ACL", "SETUSER", CHECK_USER, "reset"]);
            request.extend(words(rules));
            request.push("off".to_owned());
            send(&request).map_err(|error| format!("the user '{name}': {error}"))?;
            if *name != own {
                continue;
            }
            for command in NEEDED {
                let request: Vec<String> =
                    words(&["ACL", "DRYRUN", CHECK_USER]).into_iter().chain(words(command)).collect();
                let reply = send(&request).map_err(|error| error.to_string())?;
                if reply.text() != "OK" {
                    return Err(format!("the user '{name}' of the operator may not run {}", command.join(" ")));
                }
            }
        }
        Ok(())
    };
    let outcome = check();
    // If it fails, the next load deletes the user.
    let _ = send(&words(&["ACL", "DELUSER", CHECK_USER]));
    outcome
}

/// Where the users of a cluster come from.
pub trait Source {
    /// The file of the author's secret.
    ///
    /// # Errors
    /// If there is no such secret, or if it cannot be read.
    fn author_file(&self) -> io::Result<String>;
    /// How the operator gets in.
    ///
    /// # Errors
    /// If a secret is missing, or lacks something.
    fn login(&self) -> io::Result<Access>;
    /// The operator's secret.
    ///
    /// # Errors
    /// If the API server does not answer, or refuses.
    fn own_secret(&self) -> io::Result<Option<Secret>>;
    /// Creates or replaces the operator's secret.
    ///
    /// # Errors
    /// If the API server does not answer, or refuses.
    fn write_own_secret(&self, text: &str) -> io::Result<()>;
}

/// What is known of the users of a cluster. All of it can be lost.
#[derive(Default)]
pub struct Users {
    read_at: Option<Instant>,
    applied: Option<String>,
    /// The last file that was refused, and why.
    refused: Option<(String, String)>,
    loaded_at: HashMap<String, Instant>,
}

/// How far the users of the author's secret are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All nodes that answer have them.
    Loaded,
    /// So many nodes have older ones.
    Loading(usize),
    /// They are not valid, for this reason; nodes keep the ones before.
    Refused(String),
}

impl Users {
    /// Copies a changed file if it is valid, and has nodes load it.
    ///
    /// # Errors
    /// If the API server does not answer, or refuses.
    pub fn step(&mut self, source: &dyn Source, state: &State, observer: &mut Observer) -> io::Result<Progress> {
        if self.applied.is_none() {
            self.applied = source.own_secret()?.as_ref().and_then(applied_revision);
        }
        if self.read_at.is_none_or(|at| at.elapsed() >= READ_EVERY) {
            let problem = match source.author_file() {
                Ok(text) => self.apply(source, &text, state, observer)?,
                Err(error) => Some((String::new(), error.to_string())),
            };
            self.refused = problem;
            self.read_at = Some(Instant::now());
        }
        let outdated = self.load(state, observer);
        match &self.refused {
            Some((_, problem)) => Ok(Progress::Refused(problem.clone())),
            None if outdated > 0 || self.applied.is_none() => Ok(Progress::Loading(outdated)),
            None => Ok(Progress::Loaded),
        }
    }

    /// Copies the file, if it is another one and valid. Returns what is wrong with it otherwise, and its revision.
    fn apply(
        &mut self,
        source: &dyn Source,
        text: &str,
        state: &State,
        observer: &mut Observer,
    ) -> io::Result<Option<(String, String)>> {
        let revision = revision(text);
        if self.applied.as_ref() == Some(&revision) {
            return Ok(None);
        }
        if let Some(refused) = self.refused.as_ref().filter(|(refused, _)| *refused == revision) {
            return Ok(Some(refused.clone()));
        }
        let access = source.login()?;
        let own = access.username.as_deref().unwrap_or(DEFAULT_USER);
        let checked = parse(text, &access).and_then(|users| match state.answering().next() {
            Some((node, _)) => check_rules(&users, own, &mut |words| observer.command(&node.member, words)),
            // The cluster is being created.
            None => Ok(()),
        });
        match checked {
            Ok(()) => {
                source.write_own_secret(text)?;
                self.applied = Some(revision);
                Ok(None)
            }
            Err(problem) => Ok(Some((revision, problem))),
        }
    }

    /// Has nodes load the operator's file that have another one. Returns their number.
    fn load(&mut self, state: &State, observer: &mut Observer) -> usize {
        let Some(applied) = &self.applied else { return 0 };
        let marker = format!("{REVISION_USER}{applied}");
        let mut outdated = 0;
        for member in state.answering().map(|(node, _)| &node.member) {
            let name = &member.name;
            let found = observer.command(member, &words(&["ACL", "GETUSER", &marker]));
            if found.is_ok_and(|found| !matches!(found, Value::Null)) {
                continue;
            }
            outdated += 1;
            if self.loaded_at.get(name).is_none_or(|at| at.elapsed() >= LOAD_EVERY) {
                self.loaded_at.insert(name.clone(), Instant::now());
                if let Err(error) = observer.command(member, &words(&["ACL", "LOAD"])) {
                    eprintln!("{name}: cannot load the ACL file: {error}");
                }
            }
        }
        outdated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access() -> Access {
        Access { username: Some("op".into()), password: Some("secret".into()), ..Access::default() }
    }

    #[test]
    fn files_are_checked_by_their_form() {
        let users = "user default off\n\nuser op on >secret ~* &* +@all\n";
        assert_eq!(parse(users, &access()).expect("users").len(), 2);
        for (text, part) in [
            ("user op on >secret", "'default' is missing"),
            ("user default off", "'op' of the operator is missing"),
            ("user default off\nuser op on >other +@all", "another password"),
            ("user default off\nuser op >secret +@all", "is not on"),
            ("user default off\nuser default on", "line 2: the user 'default' exists"),
            ("# users", "line 1: expected"),
            ("user default off\nuser kvick-revision-1 on", "reserved"),
        ] {
            let error = parse(text, &access()).expect_err(text);
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn passwords_are_found_in_every_form() {
        let hash = "#2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
        for (rules, may_log_in) in [
            (&["on", ">secret"][..], true),
            (&["on", hash], true),
            (&["on", "nopass"], true),
            (&["on", ">secret", "<secret"], false),
            (&["on", ">secret", "resetpass"], false),
            (&["on", ">secret", "reset"], false),
            (&["on", ">secret", "off"], false),
        ] {
            assert_eq!(admits(rules, "secret"), may_log_in, "{rules:?}");
        }
    }

    #[test]
    fn a_node_tries_the_rules_and_keeps_no_user() {
        let users = [("op", vec!["on", "+@all"]), ("bad", vec!["+nonsense"])];
        let mut sent = Vec::new();
        let outcome = check_rules(&users, "op", &mut |words| {
            sent.push(words.join(" "));
            match words.iter().any(|word| word == "+nonsense") {
                true => Err(io::Error::other("Unknown command")),
                false => Ok(Value::Text(b"OK".to_vec())),
            }
        });
        assert_eq!(outcome, Err("the user 'bad': Unknown command".to_owned()));
        assert_eq!(sent[0], "ACL SETUSER kvick-operator-check reset on +@all off");
        assert_eq!(sent.last().map(String::as_str), Some("ACL DELUSER kvick-operator-check"));
        let outcome = check_rules(&users[..1], "op", &mut |words| {
            let is_denied = words.contains(&"PSYNC".to_owned());
            Ok(Value::Text(if is_denied { b"User may not".to_vec() } else { b"OK".to_vec() }))
        });
        assert!(outcome.expect_err("a problem").contains("may not run PSYNC"));
    }

    #[test]
    fn the_copy_says_which_file_it_is() {
        let cluster = crate::objects::tests::cluster();
        let text = "user default off\n";
        let mut copy = secret(&cluster, text);
        let strings = copy.string_data.take().unwrap_or_default();
        copy.data =
            Some(strings.into_iter().map(|(key, text)| (key, k8s_openapi::ByteString(text.into_bytes()))).collect());
        assert_eq!(applied_revision(&copy), Some(revision(text)));
    }
}
