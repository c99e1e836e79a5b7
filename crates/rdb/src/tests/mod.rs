//! Tests of values and whole dumps: round trips, dumps of other servers, and invalid input.

mod corrupt;
mod files;
mod loading;
mod old_forms;
mod round_trip;

use crate::value::ValueRef;
use crate::{Error, Event, Loaded, ReadOptions, Reader, VersionCheck, WriteOptions, dump};
use kvick_store::collections::list::Side;
use kvick_store::collections::stream::Id;
use kvick_store::{Collection, Str, Value};

/// A textual description of a value, beginning with its encoding; sets and hashes are sorted.
pub fn describe(value: &Value) -> Vec<String> {
    let text = |string: Str<'_>| String::from_utf8_lossy(string.bytes(&mut [0; 20])).into_owned();
    match ValueRef::from(value) {
        ValueRef::Str(string) => vec!["string".to_owned(), text(string)],
        ValueRef::List(list) => {
            let mut lines = vec![list.encoding().to_owned()];
            list.visit(0..list.len(), Side::Head, |element| lines.push(text(element)));
            lines
        }
        ValueRef::Set(set) => {
            let mut lines: Vec<String> = set.iter().map(text).collect();
            lines.sort();
            lines.insert(0, set.encoding().to_owned());
            lines
        }
        ValueRef::SortedSet(sorted_set) => {
            let mut lines = vec![sorted_set.encoding().to_owned()];
            lines.extend(sorted_set.iter().map(|(member, score)| format!("{} {score:?}", text(member))));
            lines
        }
        ValueRef::Hash(hash) => {
            let lines =
                hash.iter().map(|field| format!("{}={} {:?}", text(field.name), text(field.value), field.expiry));
            let mut lines: Vec<String> = lines.collect();
            lines.sort();
            lines.insert(0, hash.encoding().to_owned());
            lines
        }
        ValueRef::Stream(stream) => {
            let log = stream.log();
            let mut lines = vec![format!("{} {:?} {:?}", log.len(), log.last_id(), log.history())];
            for entry in log.range(Id::MIN, Id::MAX) {
                let fields: Vec<_> = entry.fields().map(|(name, value)| (text(name), text(value))).collect();
                lines.push(format!("{:?} {fields:?}", entry.id));
            }
            for group in stream.groups().iter() {
                lines.push(format!("{:?} {:?} {:?}", group.name(), group.last_id, group.entries_read));
                for consumer in group.consumers() {
                    let pending: Vec<_> = group
                        .pending_of(consumer, Id::MIN)
                        .map(|(id, pending)| (id, pending.delivered_ms, pending.deliveries))
                        .collect();
                    let times = (consumer.seen_ms(), consumer.active_ms);
                    lines.push(format!("{:?} {times:?} {pending:?}", consumer.name()));
                }
            }
            lines
        }
    }
}

/// A payload of a value.
pub fn payload(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    dump(ValueRef::from(value), &WriteOptions::default(), &mut bytes).expect("this version expresses everything");
    bytes
}

/// Options that accept everything.
pub fn relaxed() -> ReadOptions {
    ReadOptions { version_check: VersionCheck::Relaxed, skip_modules: true, ..ReadOptions::default() }
}

/// The keys of a dump with their values.
pub fn read_all(file: &[u8], options: ReadOptions) -> Result<Vec<(Vec<u8>, Loaded)>, Error> {
    let mut reader = Reader::new(file, options)?;
    let mut entries = Vec::new();
    while let Some(event) = reader.next_event()? {
        if let Event::Entry(record) = event {
            entries.push((reader.key().to_vec(), record.value));
        }
    }
    Ok(entries)
}

/// A dump without a checksum, with these bytes between signature and end.
pub fn file(version: u32, body: &[u8]) -> Vec<u8> {
    let magic = if version > 79 { format!("VALKEY{version:03}") } else { format!("REDIS{version:04}") };
    [magic.as_bytes(), body, b"\xff", if version < 5 { &[] } else { &[0; 8] }].concat()
}

/// A record of a key named `k`; `value` is its value in the format of the file.
pub fn record(kind: u8, value: &[u8]) -> Vec<u8> {
    [&[kind, 1, b'k'], value].concat()
}

/// A string of at most 16383 bytes, uncompressed, with its length.
pub fn string(bytes: &[u8]) -> Vec<u8> {
    let len = bytes.len() as u16;
    let mut string = if len < 64 { vec![len as u8] } else { (len | 0x4000).to_be_bytes().to_vec() };
    string.extend_from_slice(bytes);
    string
}
