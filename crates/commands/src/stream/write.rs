//! Common replies of stream commands, and the propagation of group state.

use kvick_store::collections::stream::{ConsumerId, Entry, Group, Id, IdBuf, Log, Pending};
use kvick_store::{Effects, IntBuf, Str};

use crate::context::Reply;

/// Replies with an ID.
#[inline]
pub fn id(reply: &mut Reply<'_>, id: Id) {
    reply.bulk(id.text(&mut [0; size_of::<IdBuf>()]));
}

/// Replies with an entry: its ID and its fields.
#[inline]
pub fn entry(reply: &mut Reply<'_>, entry: &Entry<'_>) {
    reply.array(2);
    id(reply, entry.id);
    reply.array(2 * entry.len());
    for (name, value) in entry.fields() {
        word(reply, name);
        word(reply, value);
    }
}

#[inline]
fn word(reply: &mut Reply<'_>, word: Str<'_>) {
    match word {
        Str::Bytes(bytes) => reply.bulk(bytes),
        Str::Int(number) => reply.bulk_int(number),
    }
}

/// Replies with an array of entries, at most `count` unless that is zero.
pub fn entries<'a>(reply: &mut Reply<'_>, all: impl Iterator<Item = Entry<'a>>, count: usize) {
    let mark = reply.deferred();
    let mut len = 0;
    for one in all.take(if count == 0 { usize::MAX } else { count }) {
        entry(reply, &one);
        len += 1;
    }
    reply.set_array_len(mark, len);
}

/// Replies with the entry of an ID; returns false and writes nothing if it does not exist.
pub fn entry_of(reply: &mut Reply<'_>, log: &Log, id: Id) -> bool {
    let found = log.range(id, id).next();
    found.inspect(|found| entry(reply, found)).is_some()
}

/// Replies with a map key.
pub fn name(reply: &mut Reply<'_>, name: &str) {
    reply.bulk(name.as_bytes());
}

/// Replies with a number, or null if it is unknown.
pub fn known(reply: &mut Reply<'_>, number: Option<i64>) {
    match number {
        Some(number) => reply.int(number),
        None => reply.null(),
    }
}

/// The group whose state is propagated.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// The key of the stream.
    pub key: &'a [u8],
    /// The name of the group.
    pub group: &'a [u8],
}

impl Place<'_> {
    /// Propagates the current state of a pending entry, and the last ID of the group.
    pub fn propagate_pending(self, effects: &mut Effects, group: &Group, id: &[u8], pending: &Pending) {
        if !effects.has_readers() {
            return;
        }
        effects.propagate(&[
            b"XCLAIM",
            self.key,
            self.group,
            group.consumer(pending.consumer()).name(),
            b"0",
            id,
            b"TIME",
            Str::Int(pending.delivered_ms).bytes(&mut IntBuf::default()),
            b"RETRYCOUNT",
            Str::Int(pending.deliveries as i64).bytes(&mut IntBuf::default()),
            b"FORCE",
            b"JUSTID",
            b"LASTID",
            group.last_id.text(&mut [0; 41]),
        ]);
    }

    /// Propagates the last ID and the progress of a group.
    pub fn propagate_last_id(self, effects: &mut Effects, group: &Group) {
        if !effects.has_readers() {
            return;
        }
        let read = group.entries_read.map_or(-1, |read| read as i64);
        effects.propagate(&[
            b"XGROUP",
            b"SETID",
            self.key,
            self.group,
            group.last_id.text(&mut [0; 41]),
            b"ENTRIESREAD",
            Str::Int(read).bytes(&mut IntBuf::default()),
        ]);
    }

    /// Propagates the creation of a consumer without pending entries.
    pub fn propagate_consumer(self, effects: &mut Effects, group: &Group, consumer: ConsumerId) {
        if effects.has_readers() {
            let name = group.consumer(consumer).name();
            effects.propagate(&[b"XGROUP", b"CREATECONSUMER", self.key, self.group, name]);
        }
    }
}
