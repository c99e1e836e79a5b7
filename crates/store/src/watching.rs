//! WATCH: clients that need to know whether keys have changed.
//!
//! Each partition records the watchers of its keys. A command that may change such a key notes the watchers in
//! its [`Effects`](crate::effects::Effects); if it made a change, they are marked as touched, under the locks
//! of the command. A thread that holds the locks of all watched keys therefore knows whether they have changed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A client that watches keys.
#[derive(Default)]
pub struct Watcher {
    touched: AtomicBool,
}

impl Watcher {
    /// Whether one of the keys has changed. Reliable only under their locks.
    pub fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Relaxed)
    }

    pub(crate) fn touch(&self) {
        self.touched.store(true, Ordering::Relaxed);
    }
}

/// A watcher of one key.
pub(crate) struct Watch {
    pub(crate) watcher: Arc<Watcher>,
    /// Whether the key had already expired when the watch began: its deletion is then not a change.
    pub(crate) stale: bool,
}

/// The watchers of one partition's keys.
#[derive(Default)]
pub(crate) struct Watchers(HashMap<Box<[u8]>, Vec<Watch>>);

impl Watchers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn of(&self, key: &[u8]) -> &[Watch] {
        self.0.get(key).map_or(&[], Vec::as_slice)
    }

    /// Marks the watches of keys that are `overdue` as stale.
    pub(crate) fn mark_stale(&mut self, overdue: impl Fn(&[u8]) -> bool) {
        for (key, watches) in &mut self.0 {
            if overdue(key) {
                watches.iter_mut().for_each(|watch| watch.stale = true);
            }
        }
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.0.keys().map(AsRef::as_ref)
    }

    /// Adds a watch; returns false if the watcher already watches the key.
    pub(crate) fn add(&mut self, key: &[u8], watch: Watch) -> bool {
        let watches = self.0.entry(key.into()).or_default();
        let is_new = !watches.iter().any(|known| Arc::ptr_eq(&known.watcher, &watch.watcher));
        if is_new {
            watches.push(watch);
        }
        is_new
    }

    pub(crate) fn remove(&mut self, key: &[u8], watcher: &Arc<Watcher>) {
        if let Some(watches) = self.0.get_mut(key) {
            watches.retain(|watch| !Arc::ptr_eq(&watch.watcher, watcher));
            if watches.is_empty() {
                self.0.remove(key);
            }
        }
    }
}
