//! Sets: an intset, a listpack, or a sequence of members.

use super::{Loaded, sequence};
use crate::decode::Decoder;
use crate::encode::{Encoder, Sink};
use crate::error::{Corrupt, Error};
use crate::format::Type;
use crate::input::Input;
use crate::read::ValueOptions;
use kvick_store::collections::set::{Encoded, Limits, Loader, Set};
use kvick_store::encodings::intset::{self, Intset};
use kvick_store::{Collection, IntBuf, Str};

pub(super) fn type_of(set: &Set) -> Type {
    match set.encoded() {
        Encoded::Intset(_) => Type::SetIntset,
        Encoded::Listpack(_) => Type::SetListpack,
        Encoded::Table(_) => Type::Set,
    }
}

pub(super) fn save<S: Sink>(set: &Set, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    match set.encoded() {
        Encoded::Intset(view) => encoder.string(view.bytes()),
        Encoded::Listpack(view) => encoder.string(view.bytes()),
        Encoded::Table(_) => {
            save_head(set, encoder)?;
            set.iter().try_for_each(|member| encoder.str(member))
        }
    }
}

/// Writes the part before the members of a table.
pub(super) fn save_head<S: Sink>(set: &Set, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.length(set.len() as u64)
}

pub(super) fn load<I: Input>(kind: Type, decoder: &mut Decoder<I>, options: &ValueOptions) -> Result<Loaded, Error> {
    let limits = options.encoding.set;
    let set = match kind {
        Type::SetIntset => load_intset(decoder, &limits)?,
        Type::SetListpack => {
            let listpack = sequence::listpack(decoder, "Set listpack")?;
            if !listpack.view().are_distinct(0) {
                return Err(decoder.corrupt(Corrupt::Encoding("Set listpack")));
            }
            let fits = listpack.len() <= limits.listpack_entries;
            if fits { Set::from(listpack) } else { table_of(listpack.view().iter(), &limits) }
        }
        _ => load_members(decoder, &limits)?,
    };
    Ok(if set.is_empty() { Loaded::Empty } else { set.into() })
}

fn load_intset<I: Input>(decoder: &mut Decoder<I>, limits: &Limits) -> Result<Set, Error> {
    let checked = match decoder.string()? {
        Str::Bytes(bytes) => intset::View::check(bytes).ok().filter(|view| !view.is_empty()).map(|view| {
            let fits = view.len() <= limits.intset_entries;
            if fits { Set::from(Intset::from(view)) } else { table_of(view.iter().map(Str::Int), limits) }
        }),
        Str::Int(_) => None,
    };
    checked.ok_or_else(|| decoder.corrupt(Corrupt::Encoding("Intset")))
}

/// A table of members that are known to be distinct.
fn table_of<'a>(members: impl Iterator<Item = Str<'a>>, limits: &Limits) -> Set {
    let mut set = Set::table();
    for member in members {
        set.insert_str(member, limits);
    }
    set
}

fn load_members<I: Input>(decoder: &mut Decoder<I>, limits: &Limits) -> Result<Set, Error> {
    let count = decoder.number()?;
    let twice = Corrupt::Duplicate("set members");
    if count > limits.intset_entries as u64 {
        let mut loader = Loader::new(count as usize);
        for _ in 0..count {
            loader.add(decoder.string()?.bytes(&mut IntBuf::default()));
        }
        return loader.finish().map_err(|_| decoder.corrupt(twice));
    }
    let mut set = Set::of_integers();
    for _ in 0..count {
        if !set.insert(decoder.string()?.bytes(&mut IntBuf::default()), limits) {
            return Err(decoder.corrupt(twice));
        }
    }
    Ok(set)
}
