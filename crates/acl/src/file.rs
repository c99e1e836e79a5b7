//! Users in configuration files and in ACL files.
//!
//! Both have one line per user: the word `user`, a name, and rules. The server writes ACL files, so they contain no
//! comments and no quotes; words are separated by blanks. ACL LOAD reads the file under the global lock and applies
//! either the whole file or nothing. ACL SAVE replaces the file atomically, on the worker that executes the command.

use super::rules::{Reader, RuleError, has_blanks, join_selectors};
use super::user::User;
use super::users::Users;
use crate::users::Acl;
use kvick_config::tables::security::{ACL_PUBSUB_DEFAULT, ACLFILE, REQUIREPASS};
use kvick_config::words::AclPubsubDefault;
use kvick_config::{Refusal, trim};
use kvick_core::Core;
use kvick_runtime::fsync_dir::replace;
use kvick_runtime::logging;
use std::ffi::OsStr;
use std::fmt::Write;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A `user` line of a configuration file.
#[derive(Debug)]
pub struct UserLine {
    name: Vec<u8>,
    rules: Vec<Vec<u8>>,
}

impl UserLine {
    /// Reads the words after `user`, and checks what does not require the full command table. `earlier` contains the
    /// lines before it.
    pub fn read(words: &[Vec<u8>], earlier: &[UserLine], reader: Reader<'_>) -> Result<Self, Refusal> {
        let refuse = |word: &[u8], why: &dyn std::fmt::Display| {
            Refusal::new(format!("Error in user declaration '{}': {why}", String::from_utf8_lossy(word)))
        };
        let (name, words) = words.split_first().ok_or_else(|| refuse(b"user", &RuleError::Syntax))?;
        if earlier.iter().any(|line| line.name == *name) {
            return Err(refuse(name, &"Duplicate user found. A user can only be defined once in config files"));
        }
        let rules = join_selectors(words.iter().map(Vec::as_slice))
            .map_err(|at| refuse(words.get(at).unwrap_or(name), &"Unmatched parenthesis in selector definition"))?;
        let mut user = User::new(name.as_slice().into(), reader.all_channels);
        for rule in &rules {
            match reader.apply(&mut user, rule) {
                Ok(()) | Err(RuleError::UnknownCommand) => {}
                Err(error) => return Err(refuse(hide_password(rule), &error)),
            }
        }
        Ok(UserLine { name: name.clone(), rules })
    }
}

/// The rule as error messages show it, with passwords redacted.
fn hide_password(rule: &[u8]) -> &[u8] {
    match rule {
        [b'>' | b'<', ..] => b"(redacted)",
        rule => rule,
    }
}

/// Creates the users from the lines of a configuration file.
pub fn make_users(lines: &[UserLine], reader: Reader<'_>) -> Result<Vec<User>, String> {
    lines.iter().map(|line| make_user(line, reader)).collect()
}

fn make_user(line: &UserLine, reader: Reader<'_>) -> Result<User, String> {
    if has_blanks(&line.name) {
        return Err("Spaces not allowed in ACL usernames".to_string());
    }
    let mut user = User::new(line.name.as_slice().into(), reader.all_channels);
    let name = String::from_utf8_lossy(&line.name);
    for rule in &line.rules {
        reader.apply(&mut user, rule).map_err(|error| {
            let rule = String::from_utf8_lossy(hide_password(rule));
            format!("Error loading ACL rule '{rule}' for the user named '{name}': {error}")
        })?;
    }
    if !user.enabled {
        logging::notice(format_args!(
            "The user '{name}' is disabled (there is no 'on' modifier in the user description). Make sure this is not \
             a configuration error."
        ));
    }
    Ok(user)
}

/// Creates the users at startup, from `requirepass`, the `user` lines of the configuration, and the ACL file.
pub fn load_at_start(core: &Core, acl: &Acl, lines: &[UserLine]) -> Result<(), String> {
    let (admission, reader) = (&core.admission, reader(core));
    if let Some(password) = core.config.read(REQUIREPASS) {
        acl.set_default_password(admission, Some(&password));
    }
    let path = path(core);
    if path.is_some() && !lines.is_empty() {
        return Err(
            "Configuring Valkey with users defined in valkey.conf and at the same setting an ACL file path is \
                    invalid. Users stand either in the configuration or in the ACL file, not in both."
                .to_string(),
        );
    }
    if !lines.is_empty() {
        let made = make_users(lines, reader).map_err(|error| {
            logging::warning(format_args!("{error}"));
            "Critical error while loading ACLs. Exiting.".to_string()
        })?;
        let default = (acl.default_user().name.clone(), acl.default_user());
        let made = made.into_iter().map(|user| (user.name.clone(), Arc::new(user)));
        acl.replace(admission, std::iter::once(default).chain(made).collect());
    }
    if let Some(path) = path {
        let users =
            load(&path, reader).map_err(|errors| format!("Aborting Valkey startup because of ACL errors: {errors}"))?;
        acl.replace(admission, users);
    }
    Ok(())
}

/// The path of the ACL file; `None` if none is configured.
pub fn path(core: &Core) -> Option<PathBuf> {
    let name = core.config.read(ACLFILE);
    (!name.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(&name)))
}

/// The context for reading rules on this server.
pub fn reader(core: &Core) -> Reader<'_> {
    let all_channels = core.config.read(ACL_PUBSUB_DEFAULT) == AclPubsubDefault::Allchannels;
    Reader { table: core.catalogue, all_channels }
}

/// Reads an ACL file. The error describes everything that is wrong with the file.
pub fn load(path: &Path, reader: Reader<'_>) -> Result<Users, String> {
    let text = std::fs::read(path)
        .map_err(|error| format!("Error loading ACLs, opening file '{}': {}", path.display(), Refusal::from(error)))?;
    parse(&text, &path.display().to_string(), reader)
}

/// Parses the text of an ACL file. `name` is the file name for error messages.
fn parse(text: &[u8], name: &str, reader: Reader<'_>) -> Result<Users, String> {
    let (mut users, mut errors) = (Users::new(), String::new());
    for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = trim(line);
        if line.is_empty() {
            continue;
        }
        match parse_line(line, name, index + 1, &users, reader) {
            Ok(user) => drop(users.insert(user.name.clone(), Arc::new(user))),
            Err(error) => errors += &error,
        }
    }
    if errors.is_empty() {
        return Ok(users);
    }
    Err(errors + "WARNING: ACL errors detected, no change to the previously active ACL rules was performed")
}

fn parse_line(line: &[u8], file: &str, number: usize, users: &Users, reader: Reader<'_>) -> Result<User, String> {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(b"user"), Some(name)) = (words.next(), words.next()) else {
        return Err(format!("{file}:{number} should start with user keyword followed by the username. "));
    };
    let shown = String::from_utf8_lossy(name);
    if has_blanks(name) {
        return Err(format!("'{file}:{number}: username '{shown}' contains invalid characters. "));
    }
    if users.contains_key(name) {
        return Err(format!("WARNING: Duplicate user '{shown}' found on line {number}. "));
    }
    let rules =
        join_selectors(words).map_err(|_| format!("{file}:{number}: Unmatched parenthesis in selector definition."))?;
    let mut user = User::new(name.into(), reader.all_channels);
    let (mut errors, mut is_broken) = (String::new(), false);
    for rule in rules.iter().map(|rule| trim(rule)) {
        // Writing to a string does not fail.
        let _ = match reader.apply(&mut user, rule) {
            Ok(()) => Ok(()),
            Err(error @ RuleError::UnknownCommand) => {
                let rule = String::from_utf8_lossy(rule);
                write!(errors, "{file}:{number}: Error in applying operation '{rule}': {error}. ")
            }
            // Errors in later rules may follow from the first.
            Err(_) if is_broken => Ok(()),
            Err(error) => {
                is_broken = true;
                write!(errors, "{file}:{number}: {error}. ")
            }
        };
    }
    if errors.is_empty() { Ok(user) } else { Err(errors) }
}

/// Replaces an ACL file by these users, atomically.
pub fn save(path: &Path, users: &[Arc<User>]) -> io::Result<()> {
    let mut text = Vec::new();
    for user in users {
        text.extend_from_slice(b"user ");
        text.extend_from_slice(&user.line());
        text.push(b'\n');
    }
    replace(path, &text)
}

#[cfg(test)]
mod tests;
