//! Sorted sets: a listpack of members and scores, or a sequence of them in descending order.

use super::{Loaded, sequence};
use crate::decode::Decoder;
use crate::encode::{Encoder, Sink};
use crate::error::{Corrupt, Error};
use crate::format::Type;
use crate::input::Input;
use crate::read::ValueOptions;
use kvick_resp::format::parse_double;
use kvick_store::collections::sorted_set::{Builder, Limits, Loader, SortedSet};
use kvick_store::encodings::listpack::Listpack;
use kvick_store::{Collection, IntBuf, Str};

/// Lengths of decimal scores with a special meaning.
const NAN: u8 = 253;
const INFINITE: u8 = 254;
const MINUS_INFINITE: u8 = 255;

pub(super) fn type_of(sorted_set: &SortedSet) -> Type {
    if sorted_set.listpack().is_some() { Type::SortedSetListpack } else { Type::SortedSet2 }
}

pub(super) fn save<S: Sink>(sorted_set: &SortedSet, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    if let Some(view) = sorted_set.listpack() {
        return encoder.string(view.bytes());
    }
    save_head(sorted_set, encoder)?;
    // Valkey is fastest at inserting at the front of a skiplist.
    sorted_set.range_rev(0..usize::MAX).try_for_each(|(member, score)| save_element(member, score, encoder))
}

/// Writes the part before the elements of a large sorted set.
pub(super) fn save_head<S: Sink>(sorted_set: &SortedSet, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.length(sorted_set.len() as u64)
}

pub(super) fn save_element<S: Sink>(member: Str<'_>, score: f64, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    encoder.str(member)?;
    encoder.score(score)
}

pub(super) fn load<I: Input>(kind: Type, decoder: &mut Decoder<I>, options: &ValueOptions) -> Result<Loaded, Error> {
    let limits = options.encoding.sorted_set;
    let sorted_set = match kind {
        Type::SortedSetListpack => {
            let listpack = sequence::listpack(decoder, "Zset listpack")?;
            from_listpack(listpack, limits, "Zset listpack").map_err(|what| decoder.corrupt(what))?
        }
        Type::SortedSetZiplist => {
            let listpack = sequence::from_ziplist(decoder, "Zset ziplist")?;
            from_listpack(listpack, limits, "Zset ziplist").map_err(|what| decoder.corrupt(what))?
        }
        _ => load_members(kind, decoder, limits)?,
    };
    Ok(if sorted_set.is_empty() { Loaded::Empty } else { sorted_set.into() })
}

/// A sorted set of the pairs in a listpack, which was read from `form`. Sorts the pairs if necessary.
fn from_listpack(listpack: Listpack, limits: Limits, form: &'static str) -> Result<SortedSet, Corrupt> {
    if listpack.len() / 2 <= limits.entries
        && let Ok(sorted_set) = SortedSet::from_listpack(listpack.clone())
    {
        return Ok(sorted_set);
    }
    let broken = Corrupt::Encoding(form);
    let mut builder = Builder::new();
    let (mut buffer, mut strings) = (IntBuf::default(), listpack.view().iter());
    while let Some(member) = strings.next() {
        let score = match strings.next().ok_or(broken)? {
            Str::Int(number) => number as f64,
            Str::Bytes(text) => parse_double(text).ok_or(if is_nan(text) { Corrupt::Nan(form) } else { broken })?,
        };
        let before = builder.len();
        builder.update(member.bytes(&mut buffer), |_| score);
        if builder.len() == before {
            return Err(broken);
        }
    }
    Ok(builder.build(limits))
}

/// Whether a text represents NaN, which is never a valid score.
fn is_nan(text: &[u8]) -> bool {
    let unsigned = text.strip_prefix(b"-").unwrap_or(text);
    unsigned.first_chunk().is_some_and(|word: &[u8; 3]| word.eq_ignore_ascii_case(b"nan"))
}

fn load_members<I: Input>(kind: Type, decoder: &mut Decoder<I>, limits: Limits) -> Result<SortedSet, Error> {
    let count = decoder.number()?;
    let twice = Corrupt::Duplicate("zset fields");
    let mut name = Vec::new();
    if count > limits.entries as u64 {
        let mut loader = Loader::new(count as usize);
        for _ in 0..count {
            let score = load_pair(kind, decoder, &mut name)?;
            loader.add(&name, score);
        }
        return loader.finish().map_err(|_| decoder.corrupt(twice));
    }
    let mut builder = Builder::new();
    for _ in 0..count {
        let score = load_pair(kind, decoder, &mut name)?;
        let before = builder.len();
        builder.update(&name, |_| score);
        if builder.len() == before {
            return Err(decoder.corrupt(twice));
        }
    }
    Ok(builder.build(limits))
}

/// Reads a member into `name`, and its score.
fn load_pair<I: Input>(kind: Type, decoder: &mut Decoder<I>, name: &mut Vec<u8>) -> Result<f64, Error> {
    name.clear();
    name.extend_from_slice(decoder.string()?.bytes(&mut IntBuf::default()));
    let score = match kind {
        Type::SortedSet => decimal_score(decoder)?,
        _ => f64::from_le_bytes(decoder.array()?),
    };
    if score.is_nan() { Err(decoder.corrupt(Corrupt::Nan("Zset"))) } else { Ok(score) }
}

fn decimal_score<I: Input>(decoder: &mut Decoder<I>) -> Result<f64, Error> {
    Ok(match decoder.byte()? {
        NAN => f64::NAN,
        INFINITE => f64::INFINITY,
        MINUS_INFINITE => f64::NEG_INFINITY,
        len => {
            let text = decoder.raw(len.into())?;
            parse_double(&text).ok_or_else(|| decoder.corrupt(Corrupt::Score))?
        }
    })
}
