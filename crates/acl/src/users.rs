//! All users by name.
//!
//! A change replaces the user. Clients keep a user together with the rights epoch of the lookup (see [`Admission`]) and
//! look the user up again when the epoch has changed. Each change starts a new epoch under the lock of the user table.

use super::log::AclLog;
use super::rules::{Reader, RuleError, join_selectors};
use super::user::User;
use kvick_core::admission::Admission;
use kvick_core::clients::{DEFAULT_USER, default_user_name};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Users by name, in byte order. The default user always exists.
pub type Users = BTreeMap<Arc<[u8]>, Arc<User>>;

/// The users and ACL LOG.
pub struct Acl {
    users: RwLock<Users>,
    /// Whether new connections need no authentication: the default user is enabled and has `nopass`.
    is_open: AtomicBool,
    /// ACL LOG.
    pub log: AclLog,
}

/// The reason why a user was not changed.
#[derive(PartialEq, Eq, Debug)]
pub enum ChangeError {
    /// This word has an unclosed parenthesis.
    Unmatched(Vec<u8>),
    /// This rule is invalid.
    Rule(Vec<u8>, RuleError),
}

impl ChangeError {
    /// The text, which quotes the word.
    pub fn text(&self) -> Vec<u8> {
        match self {
            Self::Unmatched(word) => {
                [b"Unmatched parenthesis in acl selector starting at '", &word[..], b"'."].concat()
            }
            Self::Rule(rule, error) => {
                [b"Error in ACL SETUSER modifier '", &rule[..], b"': ", error.to_string().as_bytes()].concat()
            }
        }
    }
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl std::error::Error for ChangeError {}

/// A user before and after a change.
pub struct Changed {
    /// The user before the change, if it existed.
    pub before: Option<Arc<User>>,
    /// The user after the change.
    pub after: Arc<User>,
}

impl Default for Acl {
    fn default() -> Self {
        let default = Arc::new(User::unlimited_default());
        let users = Users::from([(default_user_name(), default)]);
        Acl { users: RwLock::new(users), is_open: AtomicBool::new(true), log: AclLog::default() }
    }
}

impl Acl {
    /// Finds a user by name.
    pub fn find(&self, name: &[u8]) -> Option<Arc<User>> {
        self.users.read().get(name).cloned()
    }

    /// The user of new connections.
    pub fn default_user(&self) -> Arc<User> {
        self.find(DEFAULT_USER).unwrap_or_else(|| Arc::new(User::new(default_user_name(), false)))
    }

    /// Returns the user that accepts this name and password. An unknown name is refused no faster than a wrong
    /// password.
    pub fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let unknown_user = || Arc::new(User::new(name.into(), false));
        Some(self.find(name).unwrap_or_else(unknown_user)).filter(|user| user.admits(password))
    }

    /// All users by name.
    pub fn all(&self) -> Vec<Arc<User>> {
        self.users.read().values().cloned().collect()
    }

    /// Whether new connections have to authenticate first.
    #[inline]
    pub fn requires_auth(&self) -> bool {
        !self.is_open.load(Ordering::Relaxed)
    }

    /// Applies rules to a user, which is created if it does not exist. Applies all rules or none.
    pub fn change<'a>(
        &self,
        admission: &Admission,
        name: &[u8],
        words: impl IntoIterator<Item = &'a [u8], IntoIter: Clone>,
        reader: Reader<'_>,
    ) -> Result<Changed, ChangeError> {
        let words = words.into_iter();
        let unmatched = |at| ChangeError::Unmatched(words.clone().nth(at).unwrap_or_default().to_vec());
        let rules = join_selectors(words.clone()).map_err(unmatched)?;
        self.write(admission, |users| {
            let before = users.get(name).cloned();
            let mut user = before.as_deref().cloned().unwrap_or_else(|| User::new(name.into(), reader.all_channels));
            for rule in rules {
                reader.apply(&mut user, &rule).map_err(|error| ChangeError::Rule(rule, error))?;
            }
            let after = Arc::new(user);
            users.insert(after.name.clone(), after.clone());
            Ok(Changed { before, after })
        })
    }

    /// Removes a user; returns false if it is the default user or does not exist.
    pub fn remove(&self, admission: &Admission, name: &[u8]) -> bool {
        name != DEFAULT_USER && self.write(admission, |users| users.remove(name).is_some())
    }

    /// Replaces all users and returns the previous ones. If there is no default user among the new ones, an
    /// unrestricted one is added.
    pub fn replace(&self, admission: &Admission, mut users: Users) -> Users {
        users.entry(default_user_name()).or_insert_with(|| Arc::new(User::unlimited_default()));
        self.write(admission, |current| std::mem::replace(current, users))
    }

    /// Sets the only password of the default user; without a password, sets `nopass`.
    pub fn set_default_password(&self, admission: &Admission, password: Option<&[u8]>) {
        self.write(admission, |users| {
            let mut user = users.get(DEFAULT_USER).map_or_else(User::unlimited_default, |user| User::clone(user));
            user.nopass = password.is_none();
            user.passwords = password.map(super::password::Digest::of).into_iter().collect();
            users.insert(default_user_name(), Arc::new(user));
        });
    }

    fn write<T>(&self, admission: &Admission, change: impl FnOnce(&mut Users) -> T) -> T {
        let mut users = self.users.write();
        let result = change(&mut users);
        let is_open = users.get(DEFAULT_USER).is_some_and(|user| user.nopass && user.enabled);
        self.is_open.store(is_open, Ordering::Relaxed);
        admission.renew_rights();
        result
    }
}
