//! Values: writing each kind, and loading it from every format in which it was ever written.
//!
//! There is one file per kind. A compact encoding from outside is validated as a whole before it is used; a small
//! value is then a copy of it. Encodings that the configuration does not allow are converted while loading.

mod hash;
mod list;
mod sequence;
mod set;
mod sorted_set;
mod stream;

use crate::decode::Decoder;
use crate::encode::{Encoder, Sink};
use crate::error::{Corrupt, Error, ErrorKind, ModuleType};
use crate::format::Type;
use crate::input::Input;
use crate::module;
use crate::read::ValueOptions;
use kvick_resp::format::parse_i64;
use kvick_store::snapshot::pieces::Piece;
use kvick_store::value::INLINE_MAX;
use kvick_store::{Entry, Hash, Kind, List, Set, SortedSet, Str, Stream, Value};

/// A value to be written.
#[derive(Clone, Copy)]
pub enum ValueRef<'a> {
    /// A string.
    Str(Str<'a>),
    /// A list.
    List(&'a List),
    /// A set.
    Set(&'a Set),
    /// A sorted set.
    SortedSet(&'a SortedSet),
    /// A hash.
    Hash(&'a Hash),
    /// A stream.
    Stream(&'a Stream),
}

/// The result of loading a value.
#[derive(Debug)]
pub enum Loaded {
    /// The value.
    Value(Value),
    /// A collection without elements, which must not be kept: old servers wrote some by mistake.
    Empty,
    /// A hash whose fields have all expired.
    Expired,
    /// A module's value, which was skipped.
    Module(ModuleType),
}

impl<C> From<C> for Loaded
where
    Value: From<C>,
{
    fn from(value: C) -> Self {
        Loaded::Value(value.into())
    }
}

impl<'a> From<Entry<'a>> for ValueRef<'a> {
    fn from(entry: Entry<'a>) -> Self {
        let missing = "an entry holds what its kind says";
        match entry.kind() {
            Kind::String => ValueRef::Str(entry.str().expect(missing)),
            Kind::List => ValueRef::List(entry.collection().expect(missing)),
            Kind::Set => ValueRef::Set(entry.collection().expect(missing)),
            Kind::SortedSet => ValueRef::SortedSet(entry.collection().expect(missing)),
            Kind::Hash => ValueRef::Hash(entry.collection().expect(missing)),
            Kind::Stream => ValueRef::Stream(entry.collection().expect(missing)),
        }
    }
}

impl<'a> From<&'a Value> for ValueRef<'a> {
    fn from(value: &'a Value) -> Self {
        let missing = "an object holds what its kind says";
        let object = match value {
            Value::Int(number) => return ValueRef::Str(Str::Int(*number)),
            Value::Bytes(bytes) => return ValueRef::Str(Str::Bytes(bytes)),
            Value::Raw(bytes) => return ValueRef::Str(Str::Bytes(bytes)),
            Value::Object(object) => object,
        };
        match object.kind() {
            Kind::String => unreachable!("no object is a string"),
            Kind::List => ValueRef::List(object.get().expect(missing)),
            Kind::Set => ValueRef::Set(object.get().expect(missing)),
            Kind::SortedSet => ValueRef::SortedSet(object.get().expect(missing)),
            Kind::Hash => ValueRef::Hash(object.get().expect(missing)),
            Kind::Stream => ValueRef::Stream(object.get().expect(missing)),
        }
    }
}

impl ValueRef<'_> {
    /// The format of the value in a version of dumps; `None` if that version does not support it.
    pub fn type_in(self, version: u16) -> Option<Type> {
        Some(match self {
            ValueRef::Str(_) => Type::String,
            ValueRef::List(_) => Type::ListQuicklist2,
            ValueRef::Set(set) => set::type_of(set),
            ValueRef::SortedSet(sorted_set) => sorted_set::type_of(sorted_set),
            ValueRef::Hash(hash) => return hash::type_in(hash, version),
            ValueRef::Stream(_) => Type::Stream3,
        })
    }
}

/// Writes a value in the format that [`ValueRef::type_in`] chose.
pub(crate) fn save<S: Sink>(value: ValueRef<'_>, kind: Type, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    match value {
        ValueRef::Str(string) => encoder.str(string),
        ValueRef::List(list) => list::save(list, encoder),
        ValueRef::Set(set) => set::save(set, encoder),
        ValueRef::SortedSet(sorted_set) => sorted_set::save(sorted_set, encoder),
        ValueRef::Hash(hash) => hash::save(hash, kind, encoder),
        ValueRef::Stream(stream) => stream::save(stream, encoder),
    }
}

/// Writes the part before the pieces of a value that is written in pieces.
pub(crate) fn save_head<S: Sink>(value: ValueRef<'_>, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    match value {
        ValueRef::Str(_) => Ok(()),
        ValueRef::List(list) => list::save_head(list, encoder),
        ValueRef::Set(set) => set::save_head(set, encoder),
        ValueRef::SortedSet(sorted_set) => sorted_set::save_head(sorted_set, encoder),
        ValueRef::Hash(hash) => hash::save_head(hash, encoder),
        ValueRef::Stream(stream) => stream::save_head(stream, encoder),
    }
}

/// Writes a piece of a value in the format that [`ValueRef::type_in`] chose for it.
pub(crate) fn save_piece<S: Sink>(piece: Piece<'_>, kind: Type, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    match piece {
        Piece::Member(member) => encoder.string(member),
        Piece::Scored(member, score) => sorted_set::save_element(Str::Bytes(member), score, encoder),
        Piece::Field(field) => hash::save_field(field, kind, encoder),
        Piece::ListBlock(block) => list::save_block(block, encoder),
        Piece::StreamBlock(id, block) => stream::save_block(id, block, encoder),
    }
}

/// Writes the part after the pieces.
pub(crate) fn save_tail<S: Sink>(value: ValueRef<'_>, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    if let ValueRef::Stream(stream) = value { stream::save_tail(stream, encoder) } else { Ok(()) }
}

/// Builds values from a decoder.
pub(crate) struct Builder<'o> {
    options: &'o ValueOptions,
    skip_modules: bool,
    /// Names of fields that were skipped.
    pub expired_fields: Vec<Vec<u8>>,
}

impl<'o> Builder<'o> {
    pub fn new(options: &'o ValueOptions, skip_modules: bool) -> Self {
        Builder { options, skip_modules, expired_fields: Vec::new() }
    }

    /// Reads a value in this format.
    pub fn load<I: Input>(&mut self, kind: Type, decoder: &mut Decoder<I>) -> Result<Loaded, Error> {
        match kind {
            Type::String => load_string(decoder),
            Type::List | Type::ListZiplist | Type::ListQuicklist | Type::ListQuicklist2 => {
                list::load(kind, decoder, self.options)
            }
            Type::Set | Type::SetIntset | Type::SetListpack => set::load(kind, decoder, self.options),
            Type::SortedSet | Type::SortedSet2 | Type::SortedSetZiplist | Type::SortedSetListpack => {
                sorted_set::load(kind, decoder, self.options)
            }
            Type::Hash
            | Type::HashZipmap
            | Type::HashZiplist
            | Type::HashListpack
            | Type::HashExpiry
            | Type::RedisHash
            | Type::RedisHashListpack
            | Type::RedisHashPreRelease
            | Type::RedisHashListpackPreRelease => hash::load(kind, decoder, self.options, &mut self.expired_fields),
            Type::Stream | Type::Stream2 | Type::Stream3 => stream::load(kind, decoder),
            Type::ModulePreRelease => Err(decoder.corrupt(Corrupt::PreRelease("module"))),
            Type::Module => {
                let name = ModuleType(decoder.number()?);
                if !self.skip_modules {
                    return Err(decoder.fail(ErrorKind::Module(name)));
                }
                module::skip(decoder)?;
                Ok(Loaded::Module(name))
            }
        }
    }
}

fn load_string<I: Input>(decoder: &mut Decoder<I>) -> Result<Loaded, Error> {
    let bytes = decoder.owned()?;
    Ok(Loaded::Value(match parse_i64(&bytes) {
        Some(number) => Value::Int(number),
        None if bytes.len() > INLINE_MAX => Value::Raw(bytes.into()),
        None => Value::Bytes(bytes),
    }))
}
