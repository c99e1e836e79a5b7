//! Owned values without their keys: used by RENAME, COPY and MOVE, and for values that are loaded or freed.

use crate::collections::collection::Collection;
use crate::collections::on;
use crate::value::Kind;
use crate::word::Word;
use kvick_resp::SharedBytes;

/// A value of any kind.
#[derive(Clone, Debug)]
pub enum Value {
    /// A string that is an integer.
    Int(i64),
    /// A string as set by a client.
    Bytes(Vec<u8>),
    /// A string that was modified in place, or is large.
    Raw(SharedBytes),
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
            Value::Raw(bytes) => Some(bytes.to_vec()),
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
