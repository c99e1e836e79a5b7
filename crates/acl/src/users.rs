//! The users that there are, by name.
//!
//! A user that changes is replaced by a new one. Whoever keeps a user keeps the gate's rights epoch of the moment with it
//! (see [`Admission`]), and looks for the user again when that has moved: it moves after each change, under the same lock.

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

/// Users by name, in the order of their bytes. The default user is always among them.
pub type Users = BTreeMap<Arc<[u8]>, Arc<User>>;

/// All that is known about who may do what.
pub struct Acl {
    users: RwLock<Users>,
    /// Whether connections are let in without logging in: as the default user, that has no password and is enabled.
    is_open: AtomicBool,
    /// ACL LOG.
    pub log: AclLog,
}

/// Why a user was not changed.
#[derive(PartialEq, Eq, Debug)]
pub enum ChangeError {
    /// A parenthesis is not closed in this word.
    Unmatched(Vec<u8>),
    /// A rule is wrong.
    Rule(Vec<u8>, RuleError),
}

impl fmt::Display for ChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmatched(word) => {
                let word = String::from_utf8_lossy(word);
                write!(f, "Unmatched parenthesis in acl selector starting at '{word}'.")
            }
            Self::Rule(rule, error) => {
                let rule = String::from_utf8_lossy(rule);
                write!(f, "Error in ACL SETUSER modifier '{rule}': {error}")
            }
        }
    }
}

impl std::error::Error for ChangeError {}

/// A user before and after a change.
pub struct Changed {
    /// As it was, if it was there.
    pub before: Option<Arc<User>>,
    /// As it is.
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
    /// A user by name.
    pub fn find(&self, name: &[u8]) -> Option<Arc<User>> {
        self.users.read().get(name).cloned()
    }

    /// The user that new connections are.
    pub fn default_user(&self) -> Arc<User> {
        self.find(DEFAULT_USER).unwrap_or_else(|| Arc::new(User::new(default_user_name(), false)))
    }

    /// The user whom this name and password let in. A name that is nobody's is refused no faster than a wrong password.
    pub fn log_in(&self, name: &[u8], password: &[u8]) -> Option<Arc<User>> {
        let nobody = || Arc::new(User::new(name.into(), false));
        Some(self.find(name).unwrap_or_else(nobody)).filter(|user| user.admits(password))
    }

    /// All users by name.
    pub fn all(&self) -> Vec<Arc<User>> {
        self.users.read().values().cloned().collect()
    }

    /// Whether a connection has to log in before anything else.
    #[inline]
    pub fn requires_auth(&self) -> bool {
        !self.is_open.load(Ordering::Relaxed)
    }

    /// Applies rules to a user, which is created if it is not there; all of them or none.
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

    /// Removes a user, unless it is the default user; false when it was not there.
    pub fn remove(&self, admission: &Admission, name: &[u8]) -> bool {
        name != DEFAULT_USER && self.write(admission, |users| users.remove(name).is_some())
    }

    /// Puts other users in the place of all that there are, and returns those. Without a default user among them there
    /// is one that may do everything.
    pub fn replace(&self, admission: &Admission, mut users: Users) -> Users {
        users.entry(default_user_name()).or_insert_with(|| Arc::new(User::unlimited_default()));
        self.write(admission, |current| std::mem::replace(current, users))
    }

    /// Gives the default user a password, its only one, or makes it need none.
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
