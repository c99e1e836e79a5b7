//! Sessions that clients may resume, limited by the settings.
//!
//! A session belongs to the materials that it was made with. New materials have a new cache, so that a client cannot
//! resume a session under revoked credentials.

use super::settings::SessionLimits;
use parking_lot::Mutex;
use rustls::server::StoresServerSessions;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Instant;

/// See the module's documentation.
pub struct Sessions {
    limits: SessionLimits,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    by_id: HashMap<Vec<u8>, Session>,
    /// Session IDs by age, the oldest first.
    by_age: BTreeMap<u64, Vec<u8>>,
    next_number: u64,
}

struct Session {
    number: u64,
    since: Instant,
    value: Vec<u8>,
}

impl Cache {
    fn remove(&mut self, id: &[u8]) -> Option<Session> {
        let session = self.by_id.remove(id)?;
        self.by_age.remove(&session.number);
        Some(session)
    }

    fn remove_oldest_if(&mut self, is_due: impl Fn(&Self, &Session) -> bool) -> bool {
        let oldest = self.by_age.first_key_value().map(|(_, id)| id.clone());
        match oldest {
            Some(id) if self.by_id.get(&id).is_none_or(|session| is_due(self, session)) => self.remove(&id).is_some(),
            _ => false,
        }
    }
}

impl Sessions {
    /// An empty cache.
    pub fn new(limits: SessionLimits) -> Self {
        Sessions { limits, cache: Mutex::default() }
    }

    fn is_current(&self, session: &Session) -> bool {
        session.since.elapsed() < self.limits.lifetime
    }
}

impl StoresServerSessions for Sessions {
    fn put(&self, id: Vec<u8>, value: Vec<u8>) -> bool {
        let mut cache = self.cache.lock();
        cache.remove(&id);
        let is_due =
            |cache: &Cache, oldest: &Session| cache.by_id.len() >= self.limits.count_max || !self.is_current(oldest);
        while cache.remove_oldest_if(is_due) {}
        let number = cache.next_number;
        cache.next_number += 1;
        cache.by_age.insert(number, id.clone());
        cache.by_id.insert(id, Session { number, since: Instant::now(), value });
        true
    }

    fn get(&self, id: &[u8]) -> Option<Vec<u8>> {
        let cache = self.cache.lock();
        cache.by_id.get(id).filter(|session| self.is_current(session)).map(|session| session.value.clone())
    }

    fn take(&self, id: &[u8]) -> Option<Vec<u8>> {
        let session = self.cache.lock().remove(id)?;
        self.is_current(&session).then_some(session.value)
    }

    fn can_cache(&self) -> bool {
        true
    }
}

impl fmt::Debug for Sessions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sessions")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn sessions(count_max: usize, lifetime: Duration) -> Sessions {
        Sessions::new(SessionLimits { count_max, lifetime })
    }

    const LONG: Duration = Duration::from_secs(300);

    #[test]
    fn a_full_cache_drops_its_oldest_session() {
        let sessions = sessions(2, LONG);
        for id in [b"a", b"b", b"a", b"c"] {
            sessions.put(id.to_vec(), b"value".to_vec());
        }
        assert_eq!(sessions.get(b"b"), None, "a was put again after it");
        assert_eq!(sessions.get(b"a"), Some(b"value".to_vec()));
        assert_eq!(sessions.take(b"a"), Some(b"value".to_vec()));
        assert_eq!(sessions.take(b"a"), None);
        assert_eq!(sessions.get(b"c"), Some(b"value".to_vec()));
        let cache = sessions.cache.lock();
        assert_eq!((cache.by_id.len(), cache.by_age.len()), (1, 1));
    }

    #[test]
    fn sessions_expire() {
        let sessions = sessions(usize::MAX, Duration::ZERO);
        sessions.put(b"a".to_vec(), b"value".to_vec());
        assert_eq!(sessions.get(b"a"), None);
        sessions.put(b"b".to_vec(), b"value".to_vec());
        assert_eq!(sessions.cache.lock().by_id.len(), 1, "the first went when the second came");
        assert_eq!(sessions.take(b"b"), None);
    }
}
