//! An index of values by prefix. Finding all prefixes of a name takes one lookup per distinct prefix length.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// See the module's documentation.
pub struct Prefixes<T> {
    values: HashMap<Arc<[u8]>, T>,
    /// Number of prefixes of each length.
    lengths: BTreeMap<usize, usize>,
}

impl<T> Default for Prefixes<T> {
    fn default() -> Self {
        Prefixes { values: HashMap::new(), lengths: BTreeMap::new() }
    }
}

impl<T: Default> Prefixes<T> {
    /// Number of prefixes.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether there are no prefixes.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// The value of a prefix, which is added if missing, and the shared prefix.
    pub fn get_or_add(&mut self, prefix: &[u8]) -> (Arc<[u8]>, &mut T) {
        let shared = match self.values.get_key_value(prefix) {
            Some((known, _)) => known.clone(),
            None => {
                *self.lengths.entry(prefix.len()).or_default() += 1;
                Arc::from(prefix)
            }
        };
        (shared.clone(), self.values.entry(shared).or_default())
    }

    /// Removes a prefix if `should_remove` returns true for its value.
    pub fn remove_if(&mut self, prefix: &[u8], should_remove: impl FnOnce(&mut T) -> bool) {
        if !self.values.get_mut(prefix).is_some_and(should_remove) {
            return;
        }
        self.values.remove(prefix);
        if let Some(count) = self.lengths.get_mut(&prefix.len()) {
            *count -= 1;
            if *count == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// The prefixes of a name, shortest first, with their values.
    pub fn of<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = (&'a Arc<[u8]>, &'a T)> {
        self.lengths.range(..=name.len()).filter_map(|(len, _)| self.values.get_key_value(&name[..*len]))
    }
}

/// The first pair of overlapping prefixes, one beginning with the other: the pair with the smallest first index, then
/// the smallest second index.
pub fn first_overlap(prefixes: &[&[u8]]) -> Option<(usize, usize)> {
    let mut first_positions = HashMap::new();
    for (place, prefix) in prefixes.iter().enumerate() {
        first_positions.entry(*prefix).or_insert(place);
    }
    let lengths: HashSet<usize> = prefixes.iter().map(|prefix| prefix.len()).collect();
    let pairs = prefixes.iter().enumerate().flat_map(|(place, prefix)| {
        let beginnings = lengths.iter().filter_map(|len| prefix.get(..*len));
        let others = beginnings.filter_map(|beginning| first_positions.get(beginning).copied());
        others.filter(move |other| *other != place).map(move |other| (place.min(other), place.max(other)))
    });
    pairs.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookup_finds_all_prefixes_of_a_name() {
        let mut prefixes = Prefixes::<u32>::default();
        for (n, prefix) in ["", "a", "ab", "b", "abcd"].into_iter().enumerate() {
            *prefixes.get_or_add(prefix.as_bytes()).1 = n as u32;
        }
        let of =
            |prefixes: &Prefixes<u32>, name: &str| prefixes.of(name.as_bytes()).map(|(_, n)| *n).collect::<Vec<_>>();
        assert_eq!(of(&prefixes, "abc"), [0, 1, 2]);
        assert_eq!(of(&prefixes, "abcd"), [0, 1, 2, 4]);
        assert_eq!(of(&prefixes, ""), [0]);
        prefixes.remove_if(b"ab", |_| false);
        prefixes.remove_if(b"", |_| true);
        prefixes.remove_if(b"nothing", |_| true);
        assert_eq!((of(&prefixes, "abc"), prefixes.len()), (vec![1, 2], 4));
    }

    #[test]
    fn first_overlap_is_found() {
        let overlap = |prefixes: &[&str]| first_overlap(&prefixes.iter().map(|p| p.as_bytes()).collect::<Vec<_>>());
        assert_eq!(overlap(&[]), None);
        assert_eq!(overlap(&["a", "b", "c"]), None);
        assert_eq!(overlap(&["foobar", "foo"]), Some((0, 1)));
        assert_eq!(overlap(&["foo", "foobar"]), Some((0, 1)));
        assert_eq!(overlap(&["a", "b", "bc"]), Some((1, 2)));
        assert_eq!(overlap(&["x", "y", "y", "xx"]), Some((0, 3)));
        assert_eq!(overlap(&["ab", "abc", "a", "a"]), Some((0, 1)));
        assert_eq!(overlap(&["q", "abc", "", "q"]), Some((0, 2)));
    }

    #[test]
    fn first_overlap_matches_brute_force() {
        let words = ["", "a", "b", "aa", "ab", "ba", "aab", "abb"];
        let plain = |prefixes: &[&[u8]]| {
            let overlaps = |a: &[u8], b: &[u8]| a.starts_with(b) || b.starts_with(a);
            let pairs = (0..prefixes.len()).flat_map(|i| (i + 1..prefixes.len()).map(move |j| (i, j)));
            pairs.into_iter().find(|(i, j)| overlaps(prefixes[*i], prefixes[*j]))
        };
        for mut number in 0..words.len().pow(4) {
            let mut chosen = Vec::new();
            for _ in 0..4 {
                chosen.push(words[number % words.len()].as_bytes());
                number /= words.len();
            }
            assert_eq!(first_overlap(&chosen), plain(&chosen), "{chosen:?}");
        }
    }
}
