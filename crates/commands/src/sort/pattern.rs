//! The patterns of BY and GET: key names with a placeholder for an element.
//!
//! The first `*` is replaced by the element. After it, `->` may precede the name of a field of the hash at that key.
//! `#` is the element itself. A pattern without a placeholder has no value.

use kvick_store::{Db, Hash, Str};

/// A pattern.
pub enum Pattern<'a> {
    /// `#`.
    Element,
    /// A pattern without `*`.
    Nothing,
    /// The name of another key.
    Key {
        /// The text before the element.
        prefix: &'a [u8],
        /// The text after the element.
        suffix: &'a [u8],
        /// The field, if the key is a hash.
        field: Option<&'a [u8]>,
    },
}

impl<'a> Pattern<'a> {
    /// Parses a pattern.
    pub fn parse(text: &'a [u8]) -> Pattern<'a> {
        if text == b"#" {
            return Pattern::Element;
        }
        let Some(star) = text.iter().position(|byte| *byte == b'*') else { return Pattern::Nothing };
        let (prefix, rest) = (&text[..star], &text[star + 1..]);
        let arrow = rest.windows(2).position(|pair| pair == b"->").filter(|at| at + 2 < rest.len());
        match arrow {
            None => Pattern::Key { prefix, suffix: rest, field: None },
            Some(at) => Pattern::Key { prefix, suffix: &rest[..at], field: Some(&rest[at + 2..]) },
        }
    }

    /// Whether it refers to other keys.
    pub fn accesses_other_keys(&self) -> bool {
        matches!(self, Pattern::Key { .. })
    }

    /// Calls the closure with the value of the pattern for an element. `name` is a buffer for the key name.
    pub fn look_up<T>(
        &self,
        db: &mut Db<'_>,
        element: &[u8],
        name: &mut Vec<u8>,
        show: impl FnOnce(Option<Str<'_>>) -> T,
    ) -> T {
        let (prefix, suffix, field) = match self {
            Pattern::Element => return show(Some(Str::Bytes(element))),
            Pattern::Nothing => return show(None),
            Pattern::Key { prefix, suffix, field } => (prefix, suffix, field),
        };
        name.clear();
        [prefix, element, suffix].iter().for_each(|part| name.extend_from_slice(part));
        let (key, clock) = (db.key(name), db.field_clock());
        let Some(entry) = db.get(key) else { return show(None) };
        show(match field {
            None => entry.str(),
            Some(field) => entry.collection::<Hash>().and_then(|hash| hash.get(field, clock)),
        })
    }
}
