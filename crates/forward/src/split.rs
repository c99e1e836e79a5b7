//! Requests that no single node executes: for keys in several slots, or for the whole database.

use super::gather::Merge;
use kvick_resp::{Args, OwnedArgs};
use std::collections::BTreeMap;

/// A request for keys in several slots, divided by slot.
pub struct Split {
    /// The parts, each a request with keys in one slot.
    pub parts: Vec<Part>,
    /// How their replies are merged.
    pub merge: Merge,
}

/// A part of a request.
pub struct Part {
    /// The slot of its keys.
    pub slot: u16,
    /// The request.
    pub request: OwnedArgs,
}

/// Whether a command with keys in several slots is divided. `name` is in lower case.
pub fn is_divisible(name: &str) -> bool {
    matches!(name, "mget" | "mset" | "del" | "unlink" | "exists" | "touch")
}

/// Divides a request for a [divisible](is_divisible) command by the slots of its keys. The parts are executed one by
/// one: unlike on a single node, another client may see the effect of some of them only. `None` if the command is not
/// divisible, or the arguments are incomplete.
pub fn by_slot(name: &str, args: Args<'_>, slot_of: impl Fn(&[u8]) -> u16) -> Option<Split> {
    if !is_divisible(name) || args.len() < 2 {
        return None;
    }
    let step = if name == "mset" { 2 } else { 1 };
    if !(args.len() - 1).is_multiple_of(step) {
        return None;
    }
    let keys: Vec<usize> = (1..args.len()).step_by(step).collect();
    let (mut slots, mut order) = (BTreeMap::<u16, usize>::new(), Vec::with_capacity(keys.len()));
    let mut positions: Vec<(u16, Vec<usize>)> = Vec::new();
    for position in keys {
        let slot = slot_of(&args[position]);
        let part = *slots.entry(slot).or_insert_with(|| {
            positions.push((slot, Vec::new()));
            positions.len() - 1
        });
        positions[part].1.extend(position..position + step);
        order.push(part as u32);
    }
    let parts = positions.into_iter().map(|(slot, positions)| {
        let words = std::iter::once(0).chain(positions).map(|position| &args[position]);
        Part { slot, request: OwnedArgs::new(words) }
    });
    let merge = match name {
        "mget" => Merge::Elements(order),
        "mset" => Merge::Same,
        _ => Merge::Sum,
    };
    Some(Split { parts: parts.collect(), merge })
}

/// How the replies are merged if a command concerns the data or the scripts of all primaries; `None` if any node can
/// execute it alone. `name` is the full name in lower case.
pub fn everywhere(name: &str) -> Option<Merge> {
    Some(match name {
        "keys" => Merge::Concatenation,
        "dbsize" => Merge::Sum,
        "randomkey" => Merge::Any(0),
        "script|exists" => Merge::All,
        "flushall" | "flushdb" | "script|load" | "script|flush" | "function|load" | "function|delete"
        | "function|flush" | "function|restore" => Merge::Same,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(name: &str, words: &[&str]) -> Option<(Vec<(u16, String)>, Merge)> {
        let request = OwnedArgs::new(words);
        let split = by_slot(name, request.args(), |key| key.first().copied().unwrap_or_default().into())?;
        let shown = |part: &Part| {
            let words = part.request.args().iter().map(String::from_utf8_lossy).collect::<Vec<_>>().join(" ");
            (part.slot, words)
        };
        Some((split.parts.iter().map(shown).collect(), split.merge))
    }

    #[test]
    fn keys_of_a_slot_stay_together_in_order() {
        let part = |key: char, words: &str| (key as u16, words.to_owned());
        assert_eq!(
            split("mget", &["MGET", "b1", "a1", "b2", "b1"]),
            Some((vec![part('b', "MGET b1 b2 b1"), part('a', "MGET a1")], Merge::Elements(vec![0, 1, 0, 0])))
        );
        assert_eq!(
            split("mset", &["mset", "a", "1", "b", "2"]),
            Some((vec![part('a', "mset a 1"), part('b', "mset b 2")], Merge::Same))
        );
        assert_eq!(split("del", &["del", "a"]), Some((vec![part('a', "del a")], Merge::Sum)));
    }

    #[test]
    fn other_requests_are_not_divided() {
        assert_eq!(split("mset", &["mset", "a", "1", "b"]), None);
        assert_eq!(split("mget", &["mget"]), None);
        assert_eq!(split("msetnx", &["msetnx", "a", "1", "b", "2"]), None);
    }
}
