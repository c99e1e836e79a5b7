//! Blocked clients that wait for keys: BLPOP, BZPOPMIN, XREAD and similar commands.
//!
//! Each partition has the queues of its keys. A waiter is in the queues of all the keys that its command names, with
//! one ticket that gives its position, and leaves all of them at once. **Invariant**: a waiter joins, is served and
//! leaves under the locks of all its keys, so a thread that holds these locks knows whether it still waits.
//!
//! A client waits for a key of some kind, or for new entries in a stream. If a key that clients wait for is
//! created, deleted or changes its kind, the command notes it in its [`Effects`](crate::effects::Effects).
//! A command that adds to a stream notes it explicitly ([`Db::signal_ready`](crate::Db::signal_ready)). The waiters are
//! served after the command. If no client waits, this costs one check of the partition.

use crate::value::Kind;
use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A client that waits for keys.
pub struct Waiter {
    ticket: u64,
    /// The kind of value that it waits for.
    pub kind: Kind,
    /// Whether it is also served, usually with an error, when the key is deleted or changes its kind.
    pub wakes_on_deletion: bool,
    left: AtomicBool,
    /// Waiters with the same nonzero number look for the same thing:
    /// if one of them finds nothing, the others will not either.
    pub group: u64,
    /// The client and its command, in a form that the server defines.
    pub purpose: Box<dyn Any + Send + Sync>,
}

impl Waiter {
    /// A waiter that begins to wait now.
    pub fn new(kind: Kind, wakes_on_deletion: bool, group: u64, purpose: Box<dyn Any + Send + Sync>) -> Arc<Waiter> {
        static TICKETS: AtomicU64 = AtomicU64::new(1);
        let ticket = TICKETS.fetch_add(1, Ordering::Relaxed);
        Arc::new(Waiter { ticket, kind, wakes_on_deletion, left: AtomicBool::new(false), group, purpose })
    }

    /// Its position among all waiters: lower is earlier.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Whether it has left its queues. Reliable only under the locks of its keys.
    pub fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Marks the waiter as having left.
    pub(crate) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed);
    }
}

/// The queues of one partition's keys.
#[derive(Default)]
pub(crate) struct Queues(HashMap<Box<[u8]>, Queue>);

#[derive(Default)]
struct Queue {
    /// By ticket.
    waiters: BTreeMap<u64, Arc<Waiter>>,
    /// Number of waiters that a deletion of the key wakes.
    woken_by_deletion: usize,
}

impl Queues {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.0.contains_key(key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.0.keys().map(AsRef::as_ref)
    }

    pub(crate) fn join(&mut self, key: &[u8], waiter: Arc<Waiter>) {
        let queue = self.0.entry(key.into()).or_default();
        let wakes_on_deletion = usize::from(waiter.wakes_on_deletion);
        if queue.waiters.insert(waiter.ticket, waiter).is_none() {
            queue.woken_by_deletion += wakes_on_deletion;
        }
    }

    pub(crate) fn remove(&mut self, key: &[u8], ticket: u64) {
        if let Some(queue) = self.0.get_mut(key) {
            if let Some(waiter) = queue.waiters.remove(&ticket) {
                queue.woken_by_deletion -= usize::from(waiter.wakes_on_deletion);
            }
            if queue.waiters.is_empty() {
                self.0.remove(key);
            }
        }
    }

    /// The first waiter with a ticket after `after` that is served when the key
    /// holds a value of this kind, and whose `group` number is not among `skipped_groups`.
    pub(crate) fn next(
        &self,
        key: &[u8],
        after: u64,
        kind: Option<Kind>,
        skipped_groups: &[u64],
    ) -> Option<Arc<Waiter>> {
        let queue = self.0.get(key)?;
        if kind.is_none() && queue.woken_by_deletion == 0 {
            return None;
        }
        let wanted = |waiter: &&Arc<Waiter>| {
            (kind == Some(waiter.kind) || waiter.wakes_on_deletion) && !skipped_groups.contains(&waiter.group)
        };
        queue.waiters.range(after + 1..).map(|(_, waiter)| waiter).find(wanted).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiter(group: u64) -> Arc<Waiter> {
        Waiter::new(Kind::Stream, true, group, Box::new(()))
    }

    #[test]
    fn waiters_in_a_skipped_group_are_not_served() {
        let (mut queues, all) = (Queues::default(), [0, 7, 7, 0, 9].map(waiter));
        all.iter().for_each(|waiter| queues.join(b"key", waiter.clone()));
        let next = |after, skipped: &[u64]| queues.next(b"key", after, Some(Kind::Stream), skipped).map(|w| w.ticket());
        assert_eq!(next(0, &[]), Some(all[0].ticket()));
        assert_eq!(next(all[0].ticket(), &[]), Some(all[1].ticket()));
        assert_eq!(next(all[1].ticket(), &[7]), Some(all[3].ticket()));
        assert_eq!(next(all[3].ticket(), &[7, 9]), None);
    }
}
