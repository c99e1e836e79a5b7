//! Scripts and functions: EVAL and FCALL, SCRIPT, FUNCTION.

pub mod eval;
pub mod function;
pub mod script;
