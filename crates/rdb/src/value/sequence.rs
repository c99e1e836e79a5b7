//! Conversion of compact encodings to listpacks.

use crate::decode::Decoder;
use crate::error::{Corrupt, Error};
use crate::input::Input;
use crate::ziplist::{self, Malformed};
use kvick_store::Str;
use kvick_store::encodings::listpack::Listpack;

/// Reads a string that contains a listpack; `whose` is the type of value, for the error.
pub(crate) fn listpack<I: Input>(decoder: &mut Decoder<I>, whose: &'static str) -> Result<Listpack, Error> {
    let checked = match decoder.string()? {
        Str::Bytes(bytes) => Listpack::from_bytes(bytes).ok(),
        Str::Int(_) => None,
    };
    checked.ok_or_else(|| decoder.corrupt(Corrupt::Encoding(whose)))
}

/// Reads a string that contains a ziplist, and converts it to a listpack.
pub(crate) fn from_ziplist<I: Input>(decoder: &mut Decoder<I>, whose: &'static str) -> Result<Listpack, Error> {
    let converted = match decoder.string()? {
        Str::Bytes(bytes) => convert(bytes).ok(),
        Str::Int(_) => None,
    };
    converted.ok_or_else(|| decoder.corrupt(Corrupt::Encoding(whose)))
}

fn convert(bytes: &[u8]) -> Result<Listpack, Malformed> {
    let mut listpack = Listpack::new();
    ziplist::for_each(bytes, |entry| push(&mut listpack, entry))?;
    Ok(listpack)
}

/// Adds an element to the converted listpack.
pub(crate) fn push(listpack: &mut Listpack, element: Str<'_>) -> Result<(), Malformed> {
    match element {
        Str::Int(number) if listpack.fits(size_of::<u64>()) => listpack.push_back_int(number),
        Str::Bytes(bytes) if listpack.fits(bytes.len()) => listpack.push_back(bytes),
        _ => return Err(Malformed),
    }
    Ok(())
}
