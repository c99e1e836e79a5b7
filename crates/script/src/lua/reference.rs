//! References to Lua values.

use std::ffi::c_int;

/// A reference to a value in the registry, which scripts cannot access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ref(pub(super) c_int);
