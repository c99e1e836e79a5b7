//! Values as commands see them: kinds, strings, and values without their keys.

use crate::collections::{Collection, Word, on};

/// Strings up to this many bytes are stored inline in their entry, longer ones in a separate buffer.
/// Large arguments are read directly into such a buffer, which is then moved into the entry.
pub const INLINE_MAX: usize = 32 * 1024 - 1;

/// The kinds of values, numbered as in entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// A string, bitmap or HyperLogLog.
    String = 0,
    /// A list.
    List = 1,
    /// A set.
    Set = 2,
    /// A sorted set.
    SortedSet = 3,
    /// A hash.
    Hash = 4,
    /// A stream.
    Stream = 5,
}

impl Kind {
    /// All kinds with their names in TYPE and SCAN.
    pub const NAMES: [(Kind, &'static str); 6] = [
        (Kind::String, "string"),
        (Kind::List, "list"),
        (Kind::Set, "set"),
        (Kind::SortedSet, "zset"),
        (Kind::Hash, "hash"),
        (Kind::Stream, "stream"),
    ];

    /// The name in TYPE.
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// The kind with this name, in any case.
    pub fn from_name(name: &[u8]) -> Option<Kind> {
        Self::NAMES.iter().find(|(_, n)| n.as_bytes().eq_ignore_ascii_case(name)).map(|(kind, _)| *kind)
    }

    pub(crate) fn from_bits(bits: u8) -> Kind {
        Self::NAMES[(bits as usize).min(Self::NAMES.len() - 1)].0
    }
}

/// Buffer for printing an integer.
pub type IntBuf = [u8; 20];

/// A string as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Str<'a> {
    /// An integer that prints as the string.
    Int(i64),
    /// The bytes.
    Bytes(&'a [u8]),
}

impl<'a> Str<'a> {
    /// Length in bytes.
    pub fn len(self) -> usize {
        match self {
            Str::Int(number) => itoa::Buffer::new().format(number).len(),
            Str::Bytes(bytes) => bytes.len(),
        }
    }

    /// True for the empty string.
    pub fn is_empty(self) -> bool {
        matches!(self, Str::Bytes([]))
    }

    /// The bytes, printed into `buffer` if it is an integer.
    pub fn bytes<'b>(self, buffer: &'b mut IntBuf) -> &'b [u8]
    where
        'a: 'b,
    {
        match self {
            Str::Bytes(bytes) => bytes,
            Str::Int(number) => {
                let mut printer = itoa::Buffer::new();
                let text = printer.format(number).as_bytes();
                let target = &mut buffer[..text.len()];
                target.copy_from_slice(text);
                target
            }
        }
    }

    /// Whether two strings are equal, in either representation.
    #[inline]
    pub fn is_same(self, other: Str<'_>) -> bool {
        match (self, other) {
            (Str::Bytes(a), Str::Bytes(b)) => a == b,
            (Str::Int(a), Str::Int(b)) => a == b,
            (Str::Bytes(bytes), int) | (int, Str::Bytes(bytes)) => bytes == int.bytes(&mut IntBuf::default()),
        }
    }

    /// The value as an integer, parsed strictly if it is stored as bytes.
    pub fn as_int(self) -> Option<i64> {
        match self {
            Str::Int(number) => Some(number),
            Str::Bytes(bytes) => kvick_resp::format::parse_i64(bytes),
        }
    }
}

/// An owned value without its key: used by RENAME, COPY and MOVE.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string that is an integer.
    Int(i64),
    /// A string as set by a client.
    Bytes(Vec<u8>),
    /// A string that was modified in place, or is large.
    Raw(Box<Vec<u8>>),
    /// A collection.
    Object(Object),
}

impl Value {
    /// What kind of value it is.
    pub fn kind(&self) -> Kind {
        match self {
            Value::Object(object) => object.kind,
            _ => Kind::String,
        }
    }

    /// The string's bytes; `None` for collections.
    pub fn to_bytes(&self) -> Option<Vec<u8>> {
        match self {
            Value::Int(number) => Some(number.to_string().into_bytes()),
            Value::Bytes(bytes) => Some(bytes.clone()),
            Value::Raw(bytes) => Some(bytes.as_ref().clone()),
            Value::Object(_) => None,
        }
    }
}

impl<C: Collection> From<C> for Value {
    fn from(collection: C) -> Value {
        Value::Object(Object::new(collection))
    }
}

/// An owned collection of any kind.
pub struct Object {
    kind: Kind,
    word: Word,
}

impl Object {
    /// Wraps a collection.
    #[inline]
    pub fn new<C: Collection>(collection: C) -> Object {
        Object { kind: C::KIND, word: collection.into_word() }
    }

    /// Its kind, never [`Kind::String`].
    #[inline]
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The collection, if it is of this kind.
    pub fn get<C: Collection>(&self) -> Option<&C> {
        // SAFETY: made from a collection of this kind, which is a transparent wrapper of its word.
        (self.kind == C::KIND).then(|| unsafe { &*std::ptr::from_ref(&self.word).cast::<C>() })
    }

    /// Releases ownership of the collection as a word.
    #[inline]
    pub(crate) fn into_word(self) -> Word {
        std::mem::ManuallyDrop::new(self).word
    }

    /// Takes ownership of a collection given as a word.
    ///
    /// # Safety
    /// The word must be that of a collection of this kind, and no copy of it may be used afterwards.
    #[inline]
    pub(crate) unsafe fn from_word(kind: Kind, word: Word) -> Object {
        Object { kind, word }
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        // SAFETY: the word is that of a collection of this kind, and dropped once.
        on!(self.kind, C => unsafe { drop(C::from_word(self.word)) }, ())
    }
}

impl Clone for Object {
    fn clone(&self) -> Object {
        on!(self.kind, C => match self.get::<C>() {
            Some(collection) => Object::new(collection.clone()),
            None => unreachable!("the kind is its own"),
        }, unreachable!("no object is a string"))
    }
}

impl std::fmt::Debug for Object {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}
