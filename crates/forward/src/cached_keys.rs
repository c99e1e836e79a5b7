//! Which clients cache which keys of other nodes.

use std::collections::BTreeMap;
use std::ops::Bound;

/// The clients that have read keys, until these change. The number of keys is limited.
#[derive(Default)]
pub struct CachedKeys {
    readers: BTreeMap<Box<[u8]>, Vec<u64>>,
}

impl CachedKeys {
    /// Adds a client that has read a key. If there are more than `keys_max` keys now, another one is removed, and
    /// returned with its clients.
    pub fn add(&mut self, key: &[u8], client: u64, keys_max: usize) -> Option<(Box<[u8]>, Vec<u64>)> {
        match self.readers.get_mut(key) {
            Some(clients) if clients.contains(&client) => {}
            Some(clients) => clients.push(client),
            None => _ = self.readers.insert(key.into(), vec![client]),
        }
        if self.readers.len() <= keys_max {
            return None;
        }
        let behind = (Bound::Excluded(key), Bound::Unbounded);
        let other = self.readers.range::<[u8], _>(behind).next().or_else(|| self.readers.first_key_value());
        let other = other.map(|(other, _)| other.clone()).filter(|other| **other != *key)?;
        let clients = self.take(&other);
        Some((other, clients))
    }

    /// Removes a key that has changed; returns its clients.
    pub fn take(&mut self, key: &[u8]) -> Vec<u64> {
        self.readers.remove(key).unwrap_or_default()
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.readers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_known_until_it_changes_or_there_are_too_many() {
        let mut keys = CachedKeys::default();
        for client in [1, 2, 1] {
            assert_eq!(keys.add(b"a", client, 2), None);
        }
        assert_eq!(keys.add(b"b", 3, 2), None);
        assert_eq!(keys.take(b"b"), [3]);
        assert_eq!(keys.take(b"b"), []);
        assert_eq!(keys.add(b"c", 3, 1), Some((b"a"[..].into(), vec![1, 2])));
        assert_eq!(keys.add(b"c", 4, 0), None, "the key that was just read is kept");
        keys.clear();
        assert_eq!(keys.take(b"c"), []);
    }
}
