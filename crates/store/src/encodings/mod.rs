//! The forms in which collections keep their elements, each understandable by itself.

pub mod element;
pub mod members;
