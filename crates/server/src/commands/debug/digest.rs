//! DEBUG DIGEST: a checksum of the data that does not depend on the order of keys.
//!
//! The scheme is the reference's, so that data can be compared across servers. A digest is twenty bytes. To *add* data,
//! its SHA-1 is XORed in, in any order with the same result; to *mix* data, it is added and the digest replaced by its
//! own SHA-1, so that the order counts. A key's digest mixes key, type and value and adds a mark if there is an expiry;
//! that of all data mixes the number of each database that is not empty and adds its keys' digests.

use kvick_commands::context::Error;
use kvick_engine::session::Session;
use kvick_resp::Args;
use kvick_resp::format::format_double_shortest;
use kvick_store::collections::list::Side;
use kvick_store::collections::stream::Id;
use kvick_store::{Collection, Entry, Hash, IntBuf, Kind, List, Set, SortedSet, Str, Stream};
use sha1::{Digest as _, Sha1};

/// Added for keys that expire.
const EXPIRES: &[u8] = b"!!expire!!";

#[derive(Default)]
struct Digest([u8; 20]);

impl Digest {
    fn add(&mut self, data: &[u8]) {
        let hash: [u8; 20] = Sha1::digest(data).into();
        self.0.iter_mut().zip(hash).for_each(|(byte, other)| *byte ^= other);
    }

    fn mix(&mut self, data: &[u8]) {
        self.add(data);
        self.0 = Sha1::digest(self.0).into();
    }

    fn mix_number(&mut self, number: u32) {
        self.mix(&number.to_be_bytes());
    }

    fn mix_value(&mut self, entry: &Entry<'_>) {
        self.mix_number(type_number(entry.kind()));
        match entry.kind() {
            Kind::String => entry.str().into_iter().for_each(|string| self.mix_str(string)),
            Kind::List => self.mix_list(entry.collection()),
            Kind::Set => self.add_set(entry.collection()),
            Kind::SortedSet => self.add_sorted_set(entry.collection()),
            Kind::Hash => self.add_hash(entry.collection()),
            Kind::Stream => self.mix_stream(entry.collection()),
        }
        if entry.is_volatile() {
            self.add(EXPIRES);
        }
    }

    fn mix_str(&mut self, string: Str<'_>) {
        self.mix(string.bytes(&mut IntBuf::default()));
    }

    fn mix_list(&mut self, list: Option<&List>) {
        let Some(list) = list else { return };
        list.visit(0..list.len(), Side::Head, |element| self.mix_str(element));
    }

    fn add_set(&mut self, set: Option<&Set>) {
        for member in set.into_iter().flat_map(Set::iter) {
            self.add(member.bytes(&mut IntBuf::default()));
        }
    }

    fn add_sorted_set(&mut self, sorted_set: Option<&SortedSet>) {
        let mut text = Vec::new();
        for (member, score) in sorted_set.into_iter().flat_map(SortedSet::iter) {
            let mut one = Digest::default();
            one.mix_str(member);
            text.clear();
            format_double_shortest(score, &mut text);
            one.mix(&text);
            self.add(&one.0);
        }
    }

    fn add_hash(&mut self, hash: Option<&Hash>) {
        for field in hash.into_iter().flat_map(Hash::iter) {
            let mut one = Digest::default();
            one.mix_str(field.name);
            one.mix_str(field.value);
            self.add(&one.0);
        }
    }

    fn mix_stream(&mut self, stream: Option<&Stream>) {
        for entry in stream.into_iter().flat_map(|stream| stream.log().range(Id::MIN, Id::MAX)) {
            self.mix(format!("{}.{}", entry.id.ms, entry.id.seq).as_bytes());
            for (name, value) in entry.fields() {
                self.mix_str(name);
                self.mix_str(value);
            }
        }
    }

    fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Type numbers of the reference's dumps.
fn type_number(kind: Kind) -> u32 {
    match kind {
        Kind::String => 0,
        Kind::List => 1,
        Kind::Set => 2,
        Kind::SortedSet => 3,
        Kind::Hash => 4,
        Kind::Stream => 6,
    }
}

/// DEBUG DIGEST
pub fn all(cx: &mut Session<'_>, _: Args<'_>) -> Result<(), Error> {
    let keyspace = cx.server.keyspace;
    let mut digest = Digest::default();
    for number in (0..keyspace.databases()).filter(|number| !keyspace.is_empty(*number)) {
        digest.mix_number(number as u32);
        cx.db(number).for_each(|entry| {
            let mut one = Digest::default();
            one.mix(entry.key());
            one.mix_value(&entry);
            digest.add(&one.0);
        });
    }
    cx.reply.simple(digest.hex());
    Ok(())
}

/// DEBUG DIGEST-VALUE [key ...]
pub fn values(cx: &mut Session<'_>, args: Args<'_>) -> Result<(), Error> {
    let (keys, number) = (args.slice_from(2), cx.client.db);
    cx.reply.array(keys.len());
    for key in keys.iter() {
        let mut digest = Digest::default();
        let mut db = cx.db(number);
        if let Some(entry) = db.peek(db.key(key)) {
            digest.mix_value(&entry);
        }
        cx.reply.simple(digest.hex());
    }
    Ok(())
}
