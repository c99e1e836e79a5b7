//! Keyspace events: changes of keys, published to subscribers.
//!
//! An event `set` of key `k` in database 0 is published as the message `set` on the channel `__keyspace@0__:k` and as
//! the message `k` on the channel `__keyevent@0__:set`, as `notify-keyspace-events` selects. Events are published when
//! the command's effects are committed, under the locks of its keys, so the events of a key are published in the order
//! of its changes.

use super::publication::Address;
use crate::Core;
use crate::executor::Executor;
use kvick_config::shapes::KeyspaceEvents;
use kvick_store::EventClass;
use kvick_store::effects::{Event, Listener};
use std::sync::atomic::{AtomicBool, Ordering};

/// The classes of events to publish; empty if the setting enables neither channel.
pub fn notified_classes(setting: KeyspaceEvents) -> EventClass {
    let classes = [
        (KeyspaceEvents::GENERIC, EventClass::GENERIC),
        (KeyspaceEvents::STRING, EventClass::STRING),
        (KeyspaceEvents::LIST, EventClass::LIST),
        (KeyspaceEvents::SET, EventClass::SET),
        (KeyspaceEvents::HASH, EventClass::HASH),
        (KeyspaceEvents::ZSET, EventClass::SORTED_SET),
        (KeyspaceEvents::STREAM, EventClass::STREAM),
        (KeyspaceEvents::EXPIRED, EventClass::EXPIRED),
        (KeyspaceEvents::EVICTED, EventClass::EVICTED),
        (KeyspaceEvents::KEY_MISS, EventClass::KEY_MISS),
        (KeyspaceEvents::NEW, EventClass::NEW),
    ];
    if !setting.intersects(KeyspaceEvents::KEYSPACE | KeyspaceEvents::KEYEVENT) {
        return EventClass::empty();
    }
    classes.into_iter().filter(|(letter, _)| setting.contains(*letter)).map(|(_, class)| class).collect()
}

/// Publishes the events of the commands that a worker executes.
pub struct Publisher {
    core: &'static Core,
    executor: Executor,
    /// Whether to publish on the channels of keys.
    keyspace: AtomicBool,
    /// Whether to publish on the channels of events.
    keyevent: AtomicBool,
}

impl Publisher {
    /// A publisher for this worker.
    pub fn new(core: &'static Core, executor: Executor) -> Self {
        Publisher { core, executor, keyspace: AtomicBool::new(false), keyevent: AtomicBool::new(false) }
    }

    /// Sets the channels to publish on.
    pub fn set_channels(&self, setting: KeyspaceEvents) {
        self.keyspace.store(setting.contains(KeyspaceEvents::KEYSPACE), Ordering::Relaxed);
        self.keyevent.store(setting.contains(KeyspaceEvents::KEYEVENT), Ordering::Relaxed);
    }

    fn publish(&self, event: &Event, space: &str, subject: &[u8], payload: &[u8]) {
        let mut database = itoa::Buffer::new();
        let parts = [b"__", space.as_bytes(), b"@", database.format(event.database).as_bytes(), b"__:", subject];
        self.core.publish(self.executor, Address::Channel, &parts.concat(), payload);
    }
}

impl Listener for Publisher {
    fn on_events(&self, events: &[Event]) {
        for event in events {
            if self.keyspace.load(Ordering::Relaxed) {
                self.publish(event, "keyspace", &event.key, event.name.as_bytes());
            }
            if self.keyevent.load(Ordering::Relaxed) {
                self.publish(event, "keyevent", event.name.as_bytes(), &event.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_notified_only_if_a_channel_is_enabled() {
        assert_eq!(notified_classes(KeyspaceEvents::ALL), EventClass::empty());
        let classes = EventClass::all() - EventClass::CHANGE;
        let all_but_two = classes - EventClass::KEY_MISS - EventClass::NEW;
        assert_eq!(notified_classes(KeyspaceEvents::ALL | KeyspaceEvents::KEYEVENT), all_but_two);
        let some = KeyspaceEvents::KEYSPACE | KeyspaceEvents::ZSET | KeyspaceEvents::NEW;
        assert_eq!(notified_classes(some), EventClass::SORTED_SET | EventClass::NEW);
        assert_eq!(notified_classes(KeyspaceEvents::all()), classes);
    }
}
