//! Hashes: a listpack of fields and values, or a sequence of fields, with expiry in the newer formats.

use super::{Loaded, sequence};
use crate::decode::Decoder;
use crate::encode::{Encoder, Sink};
use crate::error::{Corrupt, Error};
use crate::format::{Type, VERSION};
use crate::input::Input;
use crate::read::ValueOptions;
use crate::ziplist;
use kvick_store::collections::hash::{Field, FieldClock, Hash, Limits, Loader, Stored};
use kvick_store::encodings::listpack::Listpack;
use kvick_store::{Collection, Expiry, IntBuf, Str};

/// Represents no expiry.
const NO_EXPIRY: i64 = -1;

pub(super) fn type_in(hash: &Hash, version: u16) -> Option<Type> {
    if hash.is_packed() {
        Some(Type::HashListpack)
    } else if hash.volatile() == 0 {
        Some(Type::Hash)
    } else {
        (version >= VERSION).then_some(Type::HashExpiry)
    }
}

pub(super) fn save<S: Sink>(hash: &Hash, kind: Type, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    if let Some(saved) = hash.with_listpack(|view| encoder.string(view.bytes())) {
        return saved;
    }
    save_head(hash, encoder)?;
    hash.iter().try_for_each(|field| save_field(field, kind, encoder))
}

/// Writes the part before the fields of a table.
pub(super) fn save_head<S: Sink>(hash: &Hash, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.length(hash.len() as u64)
}

pub(super) fn save_field<S: Sink>(field: Field<'_>, kind: Type, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.str(field.name)?;
    encoder.str(field.value)?;
    if kind == Type::HashExpiry {
        encoder.time(field.expiry.unwrap_or(NO_EXPIRY))?;
    }
    Ok(())
}

pub(super) fn load<I: Input>(
    kind: Type,
    decoder: &mut Decoder<I>,
    options: &ValueOptions,
    expired: &mut Vec<Vec<u8>>,
) -> Result<Loaded, Error> {
    let limits = options.encoding.hash;
    let mut loading = Loading { hash: Hash::new(), table: None, limits, options, expired };
    match kind {
        Type::HashListpack => {
            let listpack = sequence::listpack(decoder, "Hash listpack")?;
            return loading.take(listpack).ok_or_else(|| decoder.corrupt(Corrupt::Encoding("Hash listpack")));
        }
        Type::HashZiplist => {
            let listpack = sequence::from_ziplist(decoder, "Hash ziplist")?;
            return loading.take(listpack).ok_or_else(|| decoder.corrupt(Corrupt::Encoding("Hash ziplist")));
        }
        Type::HashZipmap => {
            let whole = match decoder.string()? {
                Str::Bytes(bytes) => ziplist::for_each_pair(bytes, |name, value| {
                    if loading.add(name, value, None) { Ok(()) } else { Err(ziplist::Malformed) }
                })
                .is_ok(),
                Str::Int(_) => false,
            };
            if !whole {
                return Err(decoder.corrupt(Corrupt::Encoding("Zipmap")));
            }
        }
        Type::RedisHashListpack | Type::RedisHashListpackPreRelease => {
            if kind == Type::RedisHashListpack {
                decoder.time()?;
            }
            let listpack = sequence::listpack(decoder, "Hash listpack")?;
            loading.add_triples(&listpack).ok_or_else(|| decoder.corrupt(Corrupt::Encoding("Hash listpack")))?;
        }
        _ => load_fields(kind, decoder, &mut loading)?,
    }
    Ok(loading.finish())
}

fn load_fields<I: Input>(kind: Type, decoder: &mut Decoder<I>, loading: &mut Loading<'_>) -> Result<(), Error> {
    let least = if kind == Type::RedisHash { decoder.time()? } else { 0 };
    let count = decoder.number()?;
    if kind == Type::HashExpiry || count > loading.limits.fields as u64 {
        loading.table = Some(Loader::new(count as usize));
    }
    let twice = || Corrupt::Duplicate("hash fields");
    let (mut name, mut text) = (Vec::new(), IntBuf::default());
    for _ in 0..count {
        let mut expiry = match kind {
            Type::RedisHash => relative(decoder.number()?, least),
            Type::RedisHashPreRelease => relative(decoder.number()?, 1),
            _ => Some(None),
        };
        name.clear();
        name.extend_from_slice(decoder.string()?.bytes(&mut text));
        let added = if kind == Type::HashExpiry {
            let value = decoder.owned()?;
            let at = decoder.time()?;
            expiry = if at < NO_EXPIRY { None } else { Some((at != NO_EXPIRY).then_some(at)) };
            expiry.map(|expiry| loading.add(&name, &value, expiry))
        } else {
            let value = decoder.string()?;
            expiry.map(|expiry| loading.add(&name, value.bytes(&mut text), expiry))
        };
        match added {
            None => return Err(decoder.corrupt(Corrupt::FieldExpiry)),
            Some(false) => return Err(decoder.corrupt(twice())),
            Some(true) => {}
        }
    }
    if let Some(table) = loading.table.take() {
        loading.hash = table.finish().map_err(|_| decoder.corrupt(twice()))?;
    }
    Ok(())
}

/// Redis's relative expiry: 0 for none, otherwise the difference to `least` plus one; `None` if it is out of range.
fn relative(number: u64, least: i64) -> Option<Option<i64>> {
    if number == 0 {
        return Some(None);
    }
    let at = i64::try_from(number - 1).ok()?.checked_add(least)?;
    (at >= 0).then_some(Some(at))
}

/// A hash that is being loaded.
struct Loading<'o> {
    hash: Hash,
    /// The fields of a hash that will be a table; detects duplicates at the end.
    table: Option<Loader>,
    limits: Limits,
    options: &'o ValueOptions,
    expired: &'o mut Vec<Vec<u8>>,
}

impl Loading<'_> {
    /// Adds a field; returns false if it exists. Skips an expired one.
    fn add(&mut self, name: &[u8], value: &[u8], expiry: Option<i64>) -> bool {
        if let (Some(at), Some(now_ms)) = (expiry, self.options.expire_fields_before_ms)
            && at < now_ms
        {
            self.expired.push(name.to_vec());
            return true;
        }
        if let Some(table) = &mut self.table {
            table.add(name, value, expiry);
            return true;
        }
        let expiry = expiry.map_or(Expiry::None, Expiry::At);
        self.hash.set(name, value, expiry, FieldClock::ALL, self.limits) == Stored::Added
    }

    /// Creates a hash from a listpack of fields and values; `None` if it is invalid.
    fn take(mut self, listpack: Listpack) -> Option<Loaded> {
        if listpack.is_empty() {
            return Some(Loaded::Empty);
        }
        if listpack.len() / 2 <= self.limits.fields {
            return Hash::from_listpack(listpack).ok().map(Loaded::from);
        }
        let (mut name_text, mut value_text) = (IntBuf::default(), IntBuf::default());
        let mut strings = listpack.view().iter();
        while let Some(name) = strings.next() {
            let value = strings.next()?;
            if !self.add(name.bytes(&mut name_text), value.bytes(&mut value_text), None) {
                return None;
            }
        }
        Some(self.finish())
    }

    /// Adds the fields, values and expiries in a listpack; `None` if it is invalid.
    fn add_triples(&mut self, listpack: &Listpack) -> Option<()> {
        let (mut name_text, mut value_text) = (IntBuf::default(), IntBuf::default());
        let mut strings = listpack.view().iter();
        while let Some(name) = strings.next() {
            let (value, at) = (strings.next()?, strings.next()?.as_int()?);
            let expiry = relative(u64::try_from(at).ok()?, 1)?;
            if !self.add(name.bytes(&mut name_text), value.bytes(&mut value_text), expiry) {
                return None;
            }
        }
        Some(())
    }

    fn finish(self) -> Loaded {
        match (self.hash.is_empty(), self.expired.is_empty()) {
            (false, _) => self.hash.into(),
            (true, true) => Loaded::Empty,
            (true, false) => Loaded::Expired,
        }
    }
}
