//! DEBUG DIGEST: a checksum of the data that does not depend on the order of keys.
//!
//! The scheme is the reference's, so that data can be compared across servers. A digest is twenty bytes. To *add* data,
//! its SHA-1 is XORed in, in any order with the same result; to *mix* data, it is added and the digest replaced by its
//! own SHA-1, so that the order counts. A key's digest mixes key, type and value and adds a mark if there is an expiry;
//! that of all data mixes the number of each database that is not empty and adds its keys' digests.

use crate::session::Session;
use kvick_commands::context::Error;
use kvick_resp::Args;
use kvick_store::{Entry, Kind, Str};
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
        match entry.str() {
            Some(Str::Int(number)) => self.mix(number.to_string().as_bytes()),
            Some(Str::Bytes(bytes)) => self.mix(bytes),
            None => {}
        }
        if entry.is_volatile() {
            self.add(EXPIRES);
        }
    }

    fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The numbers that the reference's dumps have for types.
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
