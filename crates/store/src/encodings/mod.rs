//! The forms in which collections keep their elements, each understandable by itself.

pub mod buffer;
pub mod element;
pub mod intset;
pub mod listpack;
pub mod lzf;
pub mod members;
pub mod pairs;

/// Bytes from outside that are not what they claim to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;
