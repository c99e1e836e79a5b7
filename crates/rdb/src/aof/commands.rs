//! Writing keys as commands that rebuild them: the format of append-only files that are rewritten without a dump.
//!
//! A collection takes one command for every [`ELEMENTS_PER_REQUEST`] elements, which limits the size of requests. State
//! that commands cannot express is omitted: the access time or frequency of a key, and when a consumer was last seen.

use crate::value::ValueRef;
use crate::write::Record;
use kvick_resp::format::format_double;
use kvick_store::collections::hash::Field;
use kvick_store::collections::list::Side;
use kvick_store::collections::stream::{Entry, Group, Id};
use kvick_store::log::encode;
use kvick_store::snapshot::pieces::Piece;
use kvick_store::{Collection, Hash, IntBuf, List, Set, SortedSet, Str, Stream};

/// Maximum number of elements of a collection that one request adds.
pub const ELEMENTS_PER_REQUEST: usize = 64;

/// Appends a request of these words.
pub fn request(out: &mut Vec<u8>, words: &[&[u8]]) {
    encode(out, words.iter().copied());
}

/// Appends the commands that rebuild a key, which must not exist when they are executed.
pub fn rebuild(out: &mut Vec<u8>, record: &Record<'_>) {
    let key = record.key;
    match record.value {
        ValueRef::Str(string) => request(out, &[b"SET", key, string.bytes(&mut IntBuf::default())]),
        ValueRef::List(list) => rebuild_list(out, key, list),
        ValueRef::Set(set) => rebuild_set(out, key, set),
        ValueRef::SortedSet(sorted_set) => rebuild_sorted_set(out, key, sorted_set),
        ValueRef::Hash(hash) => rebuild_hash(out, key, hash),
        ValueRef::Stream(stream) => rebuild_stream(out, key, stream),
    }
    rebuild_expiry(out, record);
}

fn rebuild_expiry(out: &mut Vec<u8>, record: &Record<'_>) {
    if let Some(at) = record.expiry_ms {
        request(out, &[b"PEXPIREAT", record.key, at.to_string().as_bytes()]);
    }
}

/// Writes requests that add elements, each of the same number of words, in batches.
struct Requests<'a> {
    out: &'a mut Vec<u8>,
    command: &'static [u8],
    key: &'a [u8],
    words_per_element: usize,
    /// Number of elements that remain.
    left: usize,
    /// Number of elements that still fit in the current request.
    room: usize,
}

impl<'a> Requests<'a> {
    fn new(
        out: &'a mut Vec<u8>,
        command: &'static [u8],
        key: &'a [u8],
        words_per_element: usize,
        elements: usize,
    ) -> Self {
        Requests { out, command, key, words_per_element, left: elements, room: 0 }
    }

    /// Starts a request if the next element needs one.
    fn begin_element(&mut self) {
        if self.room == 0 {
            self.room = self.left.min(ELEMENTS_PER_REQUEST);
            array(self.out, 2 + self.room * self.words_per_element);
            bulk(self.out, self.command);
            bulk(self.out, self.key);
        }
        self.room = self.room.saturating_sub(1);
        self.left = self.left.saturating_sub(1);
    }

    fn word(&mut self, word: Str<'_>) {
        bulk(self.out, word.bytes(&mut IntBuf::default()));
    }
}

fn rebuild_list(out: &mut Vec<u8>, key: &[u8], list: &List) {
    let mut requests = Requests::new(out, b"RPUSH", key, 1, list.len());
    list.visit(0..list.len(), Side::Head, |element| {
        requests.begin_element();
        requests.word(element);
    });
}

fn rebuild_set(out: &mut Vec<u8>, key: &[u8], set: &Set) {
    let mut requests = Requests::new(out, b"SADD", key, 1, set.len());
    for member in set.iter() {
        requests.begin_element();
        requests.word(member);
    }
}

fn rebuild_sorted_set(out: &mut Vec<u8>, key: &[u8], sorted_set: &SortedSet) {
    let mut requests = Requests::new(out, b"ZADD", key, 2, sorted_set.len());
    let mut text = Vec::new();
    for (member, score) in sorted_set.iter() {
        requests.begin_element();
        text.clear();
        format_double(score, &mut text);
        requests.word(Str::Bytes(&text));
        requests.word(member);
    }
}

fn rebuild_hash(out: &mut Vec<u8>, key: &[u8], hash: &Hash) {
    for field in hash.iter() {
        if let Some(at) = field.expiry {
            rebuild_volatile_field(out, key, field, at);
        }
    }
    let lasting = hash.iter().filter(|field| field.expiry.is_none()).count();
    let mut requests = Requests::new(out, b"HMSET", key, 2, lasting);
    for field in hash.iter().filter(|field| field.expiry.is_none()) {
        requests.begin_element();
        requests.word(field.name);
        requests.word(field.value);
    }
}

fn rebuild_volatile_field(out: &mut Vec<u8>, key: &[u8], field: Field<'_>, at: i64) {
    let (mut name, mut value) = Default::default();
    let (name, value) = (field.name.bytes(&mut name), field.value.bytes(&mut value));
    request(out, &[b"HSETEX", key, b"PXAT", at.to_string().as_bytes(), b"FIELDS", b"1", name, value]);
}

fn rebuild_stream(out: &mut Vec<u8>, key: &[u8], stream: &Stream) {
    stream.log().range(Id::MIN, Id::MAX).for_each(|entry| rebuild_stream_entry(out, key, &entry));
    rebuild_history(out, key, stream);
}

fn rebuild_stream_entry(out: &mut Vec<u8>, key: &[u8], entry: &Entry<'_>) {
    array(out, 3 + 2 * entry.len());
    bulk(out, b"XADD");
    bulk(out, key);
    bulk(out, entry.id.to_string().as_bytes());
    for (name, value) in entry.fields() {
        bulk(out, name.bytes(&mut IntBuf::default()));
        bulk(out, value.bytes(&mut IntBuf::default()));
    }
}

/// Rebuilds the state of a stream besides its entries.
fn rebuild_history(out: &mut Vec<u8>, key: &[u8], stream: &Stream) {
    let log = stream.log();
    if log.is_empty() {
        // Adding an entry that is trimmed at once creates an empty stream.
        request(out, &[b"XADD", key, b"MAXLEN", b"0", b"0-1", b"x", b"y"]);
    }
    let history = log.history();
    let (last_id, max_deleted) = (log.last_id().to_string(), history.max_deleted_id.to_string());
    let added = history.entries_added.to_string();
    let history = [&b"ENTRIESADDED"[..], added.as_bytes(), b"MAXDELETEDID", max_deleted.as_bytes()];
    request(out, &[&[&b"XSETID"[..], key, last_id.as_bytes()][..], &history[..]].concat());
    stream.groups().iter().for_each(|group| rebuild_group(out, key, group));
}

fn rebuild_group(out: &mut Vec<u8>, key: &[u8], group: &Group) {
    let (name, last_id) = (group.name(), group.last_id.to_string());
    let read = group.entries_read.map_or("-1".to_string(), |read| read.to_string());
    request(out, &[b"XGROUP", b"CREATE", key, name, last_id.as_bytes(), b"ENTRIESREAD", read.as_bytes()]);
    for consumer in group.consumers() {
        if consumer.pending_len() == 0 {
            request(out, &[b"XGROUP", b"CREATECONSUMER", key, name, consumer.name()]);
        }
        for (id, pending) in group.pending_of(consumer, Id::MIN) {
            let (id, time) = (id.to_string(), pending.delivered_ms.to_string());
            let deliveries = pending.deliveries.to_string();
            let state = [&b"TIME"[..], time.as_bytes(), b"RETRYCOUNT", deliveries.as_bytes(), b"JUSTID", b"FORCE"];
            let claim = [&b"XCLAIM"[..], key, name, consumer.name(), b"0", id.as_bytes()];
            request(out, &[&claim[..], &state[..]].concat());
        }
    }
}

/// The commands that rebuild a collection whose elements arrive in pieces.
pub struct Gradual {
    key: Vec<u8>,
    command: &'static [u8],
    words_per_element: usize,
    /// Elements for the next request, and their number.
    words: Vec<u8>,
    elements: usize,
    /// The commands after all elements.
    tail: Vec<u8>,
}

impl Gradual {
    /// Starts with a key that must not exist when the commands are executed.
    pub fn begin(record: &Record<'_>) -> Gradual {
        let key = record.key;
        let (command, words_per_element): (&'static [u8], usize) = match record.value {
            ValueRef::Str(_) | ValueRef::Stream(_) => (b"", 0),
            ValueRef::List(_) => (b"RPUSH", 1),
            ValueRef::Set(_) => (b"SADD", 1),
            ValueRef::SortedSet(_) => (b"ZADD", 2),
            ValueRef::Hash(_) => (b"HMSET", 2),
        };
        let mut tail = Vec::new();
        if let ValueRef::Stream(stream) = record.value {
            rebuild_history(&mut tail, key, stream);
        }
        rebuild_expiry(&mut tail, record);
        Gradual { key: key.to_vec(), command, words_per_element, words: Vec::new(), elements: 0, tail }
    }

    /// Adds a piece.
    pub fn piece(&mut self, out: &mut Vec<u8>, piece: Piece<'_>) {
        match piece {
            Piece::Member(member) => self.element(out, &[Str::Bytes(member)]),
            Piece::Scored(member, score) => {
                let mut text = Vec::new();
                format_double(score, &mut text);
                self.element(out, &[Str::Bytes(&text), Str::Bytes(member)]);
            }
            Piece::Field(field) => match field.expiry {
                Some(at) => rebuild_volatile_field(out, &self.key, field, at),
                None => self.element(out, &[field.name, field.value]),
            },
            Piece::ListBlock(block) => block.for_each(|element| self.element(out, &[element])),
            Piece::StreamBlock(id, block) => {
                block.live_entries(id).for_each(|entry| rebuild_stream_entry(out, &self.key, &entry));
            }
        }
    }

    fn element(&mut self, out: &mut Vec<u8>, words: &[Str<'_>]) {
        words.iter().for_each(|word| bulk(&mut self.words, word.bytes(&mut IntBuf::default())));
        self.elements += 1;
        if self.elements == ELEMENTS_PER_REQUEST {
            self.end_request(out);
        }
    }

    fn end_request(&mut self, out: &mut Vec<u8>) {
        if self.elements > 0 {
            array(out, 2 + self.elements * self.words_per_element);
            bulk(out, self.command);
            bulk(out, &self.key);
            out.append(&mut self.words);
            self.elements = 0;
        }
    }

    /// Ends the commands, after all pieces.
    pub fn end(mut self, out: &mut Vec<u8>) {
        self.end_request(out);
        out.extend_from_slice(&self.tail);
    }
}

fn array(out: &mut Vec<u8>, words: usize) {
    out.extend_from_slice(format!("*{words}\r\n").as_bytes());
}

fn bulk(out: &mut Vec<u8>, word: &[u8]) {
    out.push(b'$');
    kvick_resp::format::format_u64(word.len() as u64, out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(word);
    out.extend_from_slice(b"\r\n");
}
