//! Data of modules: a sequence of tagged parts, which can be skipped without the module.

use crate::decode::Decoder;
use crate::error::{Corrupt, Error};
use crate::input::Input;

const EOF: u64 = 0;
const SINT: u64 = 1;
/// Tag of an unsigned integer.
pub(crate) const UINT: u64 = 2;
const FLOAT: u64 = 3;
const DOUBLE: u64 = 4;
const STRING: u64 = 5;

/// Skips all parts and the end tag.
pub(crate) fn skip<I: Input>(decoder: &mut Decoder<I>) -> Result<(), Error> {
    loop {
        match decoder.number()? {
            EOF => return Ok(()),
            SINT | UINT => _ = decoder.number()?,
            FLOAT => _ = decoder.array::<4>()?,
            DOUBLE => _ = decoder.array::<8>()?,
            STRING => _ = decoder.string()?,
            _ => return Err(decoder.corrupt(Corrupt::ModuleData)),
        }
    }
}
