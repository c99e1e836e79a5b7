//! Sessions: who is logged in, with which connections.
//!
//! A browser knows its session by a random token of 256 bits. A session ends after a time without requests, after its
//! longest duration, by logout, when a new login needs its place, and when the server closes its connection, for
//! example because its user was deleted.

use crate::connection::Connection;
use crate::listeners::Listeners;
use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Sessions at the same time.
pub const SESSIONS_MAX: usize = 16;
/// Time without requests, or without a page that receives events.
const IDLE_TIME_MAX: Duration = Duration::from_secs(30 * 60);
/// The longest duration of a session.
const TIME_MAX: Duration = Duration::from_secs(12 * 60 * 60);

/// The secret by which a browser knows its session.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Token([u8; 32]);

impl Token {
    /// A random token.
    ///
    /// # Errors
    /// If the system has no random bits.
    pub fn random() -> Result<Token, getrandom::Error> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes)?;
        Ok(Token(bytes))
    }

    /// The token in the digits of a cookie.
    pub fn parse(digits: &str) -> Option<Token> {
        crate::reply::parse_hex(digits)?.try_into().ok().map(Token)
    }

    /// Its digits.
    pub fn digits(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// One session.
pub struct Session {
    /// The name of its user.
    pub user: String,
    /// Executes commands.
    pub commands: Connection,
    /// Has the subscriptions.
    pub messages: Connection,
    /// Whether it may have subscriptions to channels, patterns and shard channels.
    pub subscribed: [AtomicBool; 3],
    /// The pages that receive messages.
    pub listeners: Arc<Listeners>,
}

/// A session with the times that limit it.
struct Entry {
    session: Arc<Session>,
    began: Instant,
    used: Instant,
}

impl Entry {
    fn is_over(&self, now: Instant) -> bool {
        now.duration_since(self.used) > IDLE_TIME_MAX
            || now.duration_since(self.began) > TIME_MAX
            || self.session.commands.is_closed()
    }
}

/// All sessions.
#[derive(Default)]
pub struct Sessions {
    entries: Mutex<HashMap<Token, Entry>>,
}

impl Sessions {
    /// The entries; only the HTTP thread uses them.
    fn entries(&self) -> MutexGuard<'_, HashMap<Token, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a session. If there are too many, the one that was used least recently ends.
    pub fn add(&self, token: Token, session: Arc<Session>, now: Instant) {
        self.sweep(now);
        let mut entries = self.entries();
        while entries.len() >= SESSIONS_MAX {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.used).map(|(token, _)| token.clone());
            oldest.and_then(|token| entries.remove(&token));
        }
        entries.insert(token, Entry { session, began: now, used: now });
    }

    /// Finds a session, and counts that as use.
    pub fn find(&self, token: &Token, now: Instant) -> Option<Arc<Session>> {
        let mut entries = self.entries();
        let entry = entries.get_mut(token)?;
        if entry.is_over(now) {
            entries.remove(token);
            return None;
        }
        entry.used = now;
        Some(entry.session.clone())
    }

    /// Ends a session.
    pub fn remove(&self, token: &Token) {
        self.entries().remove(token);
    }

    /// Ends the sessions whose time is over. Returns how many remain.
    pub fn sweep(&self, now: Instant) -> usize {
        let mut entries = self.entries();
        entries.retain(|_, entry| !entry.is_over(now));
        entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    /// Runs a test within a runtime, as sessions have tasks.
    fn within_runtime(test: impl FnOnce(&tokio::runtime::Runtime)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let _entered = runtime.enter();
        test(&runtime);
    }

    /// A session, and the server's end of its connection.
    fn session() -> (Arc<Session>, UnixStream) {
        let (server, own) = UnixStream::pair().expect("sockets");
        let (_, other) = UnixStream::pair().expect("sockets");
        let start = |stream| Connection::start(stream, Box::new(|_| {})).expect("a connection");
        let session = Session {
            user: "u".to_owned(),
            commands: start(own),
            messages: start(other),
            subscribed: Default::default(),
            listeners: Arc::default(),
        };
        (Arc::new(session), server)
    }

    #[test]
    fn tokens_are_random_and_keep_their_digits() {
        let (one, other) = (Token::random().expect("bits"), Token::random().expect("bits"));
        assert!(one != other && Token::parse(&one.digits()) == Some(one));
        for wrong in ["", "00", "zz"] {
            assert!(Token::parse(wrong).is_none());
        }
    }

    #[test]
    fn sessions_end_when_idle_and_after_their_longest_duration() {
        within_runtime(|_| {
            let (sessions, token, now) = (Sessions::default(), Token::random().expect("bits"), Instant::now());
            let (session, _server) = session();
            sessions.add(token.clone(), session.clone(), now);
            assert!(sessions.find(&token, now + IDLE_TIME_MAX).is_some());
            assert!(sessions.find(&token, now + 2 * IDLE_TIME_MAX).is_some(), "it was used");
            assert!(sessions.find(&token, now + 3 * IDLE_TIME_MAX + Duration::from_secs(1)).is_none());
            sessions.add(token.clone(), session, now);
            let mut time = now;
            while sessions.find(&token, time).is_some() {
                time += IDLE_TIME_MAX;
            }
            assert!(time - now > TIME_MAX && time - now <= TIME_MAX + IDLE_TIME_MAX);
        });
    }

    #[test]
    fn the_least_recently_used_session_makes_room() {
        within_runtime(|_| {
            let (sessions, now) = (Sessions::default(), Instant::now());
            let tokens: Vec<Token> = (0..=SESSIONS_MAX).map(|_| Token::random().expect("bits")).collect();
            let mut servers = Vec::new();
            for (number, token) in tokens.iter().enumerate() {
                let (session, server) = session();
                servers.push(server);
                let time = now + Duration::from_secs(number as u64);
                if number == SESSIONS_MAX {
                    assert!(sessions.find(&tokens[0], time).is_some());
                }
                sessions.add(token.clone(), session, time);
            }
            let is_known = |token| sessions.find(token, now + Duration::from_secs(60)).is_some();
            assert!(is_known(&tokens[0]) && !is_known(&tokens[1]) && is_known(&tokens[SESSIONS_MAX]));
        });
    }

    #[test]
    fn a_closed_connection_ends_its_session() {
        within_runtime(|runtime| {
            let (sessions, token, now) = (Sessions::default(), Token::random().expect("bits"), Instant::now());
            let (session, server) = session();
            sessions.add(token.clone(), session, now);
            drop(server);
            runtime.block_on(async {
                while sessions.sweep(now) > 0 {
                    tokio::task::yield_now().await;
                }
            });
            assert!(sessions.find(&token, now).is_none());
        });
    }
}
