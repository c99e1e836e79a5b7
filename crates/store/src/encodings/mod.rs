//! The encodings that collections use for their elements, each self-contained.

pub mod buffer;
pub mod element;
pub mod intset;
pub mod listpack;
pub mod lzf;
pub mod members;
pub mod pairs;

/// Bytes from outside that are not valid for their encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;
