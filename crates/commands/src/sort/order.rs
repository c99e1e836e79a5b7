//! Sorts the elements.
//!
//! Equal numbers are ordered by their elements as strings, so that the result does not depend on the order of the
//! source. Strings are compared as the locale requires, but byte by byte if the result is stored. Missing values
//! precede all other strings, and count as zero among numbers.

use kvick_resp::format::parse_double;
use kvick_store::Str;
use std::cmp::Ordering;

use super::options::Request;
use super::words::Words;
use crate::context::{Collation, Context, Error};

/// The elements to return, in the requested order.
pub fn sort(cx: &mut Context<'_>, request: &Request<'_>, elements: Words) -> Result<Words, Error> {
    let len = elements.len();
    let mut order: Vec<usize> = (0..len).collect();
    if request.alpha {
        let values = values(cx, request, &elements);
        let words = values.as_ref().map_or(&elements, |values| &values.words);
        let collation = cx.settings.collation.as_ref().filter(|_| request.store.is_none());
        let keys = collation.map(|collation| sort_keys(words, &**collation));
        let is_there = |index: usize| values.as_ref().is_none_or(|values| values.there[index]);
        // Equal keys are of strings that differ only in what the locale ignores.
        let rank =
            |index: usize| is_there(index).then(|| (keys.as_ref().map(|keys| keys.get(index)), words.get(index)));
        sort_indices(&mut order, request, |a, b| rank(a).cmp(&rank(b)));
    } else {
        let numbers = numbers(cx, request, &elements)?;
        sort_indices(&mut order, request, |a, b| {
            let numeric = numbers[a].partial_cmp(&numbers[b]).unwrap_or(Ordering::Equal);
            numeric.then_with(|| elements.get(a).cmp(elements.get(b)))
        });
    }
    Ok(elements.picked(order.drain(request.range(len))))
}

fn sort_indices(order: &mut [usize], request: &Request<'_>, compare: impl Fn(usize, usize) -> Ordering) {
    order.sort_by(|a, b| if request.descending { compare(*b, *a) } else { compare(*a, *b) });
}

fn sort_keys(words: &Words, collation: &dyn Collation) -> Words {
    let mut keys = Words::default();
    words.iter().for_each(|word| keys.push(Str::Bytes(&collation.sort_key(word))));
    keys
}

/// The values of the BY pattern, by element.
struct Values {
    words: Words,
    /// Whether the value exists.
    there: Vec<bool>,
}

/// The strings to sort by; `None` to sort by the elements.
fn values(cx: &mut Context<'_>, request: &Request<'_>, elements: &Words) -> Option<Values> {
    let by = request.by.as_ref()?;
    let (mut words, mut there, mut name) = (Words::default(), Vec::with_capacity(elements.len()), Vec::new());
    for element in elements.iter() {
        by.look_up(&mut cx.db, element, &mut name, |value| {
            there.push(value.is_some());
            words.push(value.unwrap_or(Str::Bytes(b"")));
        });
    }
    Some(Values { words, there })
}

/// The numbers to sort by.
fn numbers(cx: &mut Context<'_>, request: &Request<'_>, elements: &Words) -> Result<Vec<f64>, Error> {
    let mut name = Vec::new();
    let number = |element: &[u8]| match &request.by {
        None => parse_double(element),
        Some(by) => by.look_up(&mut cx.db, element, &mut name, |value| match value {
            None => Some(0.0),
            Some(Str::Int(number)) => Some(number as f64),
            Some(Str::Bytes(bytes)) => parse_double(bytes),
        }),
    };
    let numbers: Option<Vec<f64>> = elements.iter().map(number).collect();
    numbers.ok_or(Error::text("ERR One or more scores can't be converted into double"))
}
