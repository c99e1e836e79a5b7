//! One field of a hash, as commands and snapshots see it.

use crate::value::Str;

/// A field of a hash, with value and expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// Its name.
    pub name: Str<'a>,
    /// Its value.
    pub value: Str<'a>,
    /// Unix time in milliseconds at which it expires.
    pub expiry: Option<i64>,
}

impl<'a> From<(Str<'a>, Str<'a>)> for Field<'a> {
    #[inline]
    fn from((name, value): (Str<'a>, Str<'a>)) -> Self {
        Field { name, value, expiry: None }
    }
}
