//! Scripts and functions: EVAL and FCALL, SCRIPT, FUNCTION.

pub mod function;
pub mod script;
