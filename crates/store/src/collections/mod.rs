//! Collection types: all values except strings. Each type owns its
//! encodings and converts between them under the same conditions as Valkey.
//!
//! A collection is one [`Word`](crate::word::Word) in its entry and is modified
//! in place there. Code that depends on the type uses [`on`].

pub mod collection;
pub mod hash;
pub mod list;
pub mod set;
pub mod sorted_set;
pub mod stream;

pub use collection::{Collection, Inside};
pub use hash::Hash;
pub use list::List;
pub use set::Set;
pub use sorted_set::SortedSet;
pub use stream::Stream;

/// Evaluates `$body` with `$type` bound to the collection type of a kind; `$string` for strings.
macro_rules! on {
    ($kind:expr, $type:ident => $body:expr, $string:expr) => {
        match $kind {
            $crate::value::Kind::String => $string,
            $crate::value::Kind::List => {
                type $type = $crate::collections::List;
                $body
            }
            $crate::value::Kind::Set => {
                type $type = $crate::collections::Set;
                $body
            }
            $crate::value::Kind::SortedSet => {
                type $type = $crate::collections::SortedSet;
                $body
            }
            $crate::value::Kind::Hash => {
                type $type = $crate::collections::Hash;
                $body
            }
            $crate::value::Kind::Stream => {
                type $type = $crate::collections::Stream;
                $body
            }
        }
    };
}
pub(crate) use on;
