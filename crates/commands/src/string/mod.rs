//! Strings.

pub mod long_double;
