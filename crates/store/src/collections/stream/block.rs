//! A block of a stream: some dozens of entries in one listpack, in the format of dump files.
//!
//! ```text
//! block:   live  deleted  n  name-1 .. name-n  0            then the entries
//! entry:   flags  ms  seq  [n  name-1 value-1 .. name-n value-n]  size
//!          flags  ms  seq  [value-1 .. value-n]  size       with the names of the block
//! ```
//!
//! The block's names are the field names of its first entry; entries with the same names omit them.
//! `ms` and `seq` are the differences, modulo 2^64, between the entry's ID and the block's, which
//! is that of its first entry and is stored outside. `size` is the number of the entry's other
//! elements, for reading backwards. Deleted entries stay, marked, until their block is removed.

use super::id::Id;
use crate::defrag::Mover;
use crate::encodings::Corrupt;
use crate::encodings::listpack::{At, BYTES_MAX, Element, Iter, Listpack, View};
use crate::value::Str;
use smallvec::SmallVec;

/// Flag of deleted entries.
const DELETED: i64 = 1;
/// Flag of entries with the same names as their block.
const SAME_NAMES: i64 = 2;
/// Maximum overhead of an element, in bytes.
const OVERHEAD_MAX: usize = 10;
/// Maximum number of elements of a block and an entry besides names and values.
const FIXED_ELEMENTS: usize = 16;

/// A block. See the module documentation.
#[derive(Clone, Debug)]
pub struct Block(Listpack);

/// The header of a block.
struct Head<'a> {
    names_len: usize,
    /// The names and everything after them.
    names: Iter<'a>,
    /// The first entry and everything after it.
    entries: Iter<'a>,
}

/// An entry.
#[derive(Clone)]
pub struct Entry<'a> {
    /// Its ID.
    pub id: Id,
    deleted: bool,
    len: usize,
    /// The names of the block, if the entry uses those.
    names: Option<Iter<'a>>,
    values: Iter<'a>,
}

impl<'a> Entry<'a> {
    /// Number of its fields.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if it has no fields; no command creates such an entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it is deleted.
    #[inline]
    pub(super) fn is_deleted(&self) -> bool {
        self.deleted
    }

    /// Its fields: names and values.
    #[inline]
    pub fn fields(&self) -> impl Iterator<Item = (Str<'a>, Str<'a>)> + use<'a> {
        let (mut names, mut values) = (self.names.clone(), self.values.clone());
        (0..self.len).map_while(move |_| {
            let name = match &mut names {
                Some(names) => names.next()?,
                None => values.next()?,
            };
            Some((name, values.next()?))
        })
    }
}

/// Upper bound for the size of an entry of `words_len` words with `bytes` bytes in total, with or without the names.
fn bytes_bound(words_len: usize, bytes: usize) -> usize {
    bytes.saturating_add(words_len.saturating_add(FIXED_ELEMENTS).saturating_mul(OVERHEAD_MAX))
}

/// Whether an entry of `words_len` words with `bytes` bytes in total can be stored at all.
pub(super) fn is_storable(words_len: usize, bytes: usize) -> bool {
    bytes_bound(words_len, bytes) < BYTES_MAX - 1024
}

#[inline]
fn int(element: Option<Str<'_>>) -> Option<i64> {
    element.and_then(Str::as_int)
}

/// A number of elements.
#[inline]
fn count(element: Option<Str<'_>>) -> usize {
    int(element).and_then(|number| usize::try_from(number).ok()).unwrap_or(0)
}

impl Block {
    /// A block with one entry of these words, which alternate between names and values. The entry must be storable.
    pub(super) fn new<'w>(words: impl ExactSizeIterator<Item = &'w [u8]> + Clone) -> Block {
        let len = (words.len() / 2) as i64;
        let mut elements: SmallVec<[Element<'_>; 24]> = SmallVec::new();
        elements.extend([1, 0, len].map(Element::int));
        elements.extend(words.clone().step_by(2).map(Element::new));
        elements.extend([0, SAME_NAMES, 0, 0].map(Element::int));
        elements.extend(words.skip(1).step_by(2).map(Element::new));
        elements.push(Element::int(len + 3));
        let mut listpack = Listpack::new();
        listpack.insert_all_before(None, &elements);
        Block(listpack)
    }

    /// Offers its bytes to a mover.
    pub(super) fn relocate(&mut self, mover: &mut Mover<'_>) {
        self.0.relocate(mover);
    }

    /// Whether an entry of `words_len` words with `bytes` bytes in total fits.
    #[inline]
    pub(super) fn has_room(&self, words_len: usize, bytes: usize) -> bool {
        self.0.fits(bytes_bound(words_len, bytes))
    }

    /// Appends an entry of these words; `base` is the block's ID. The entry must fit.
    #[inline]
    pub(super) fn push<'w>(&mut self, base: Id, id: Id, words: impl ExactSizeIterator<Item = &'w [u8]> + Clone) {
        let len = words.len() / 2;
        let same = self.has_names(words.clone().step_by(2));
        let mut elements: SmallVec<[Element<'_>; 24]> = SmallVec::new();
        let delta = [id.ms.wrapping_sub(base.ms) as i64, id.seq.wrapping_sub(base.seq) as i64];
        elements.extend([if same { SAME_NAMES } else { 0 }, delta[0], delta[1]].map(Element::int));
        if same {
            elements.extend(words.skip(1).step_by(2).map(Element::new));
        } else {
            elements.push(Element::int(len as i64));
            elements.extend(words.map(Element::new));
        }
        elements.push(Element::int(elements.len() as i64));
        self.0.insert_all_before(None, &elements);
        self.recount(1, 0);
    }

    /// Whether these are the block's names.
    #[inline]
    fn has_names<'w>(&self, names: impl ExactSizeIterator<Item = &'w [u8]>) -> bool {
        let view = self.0.view();
        let Some(mut at) = view.first().and_then(|at| view.next(at)).and_then(|at| view.next(at)) else { return false };
        if count(Some(view.get(at))) != names.len() {
            return false;
        }
        for name in names {
            match view.next(at) {
                Some(next) if view.equals(next, name) => at = next,
                _ => return false,
            }
        }
        true
    }

    /// Adds to the numbers of live and deleted entries.
    #[inline]
    fn recount(&mut self, live: i64, deleted: i64) {
        let listpack = &mut self.0;
        let Some(at) = listpack.view().first() else { return };
        let number = listpack.view().get(at).as_int().unwrap_or(0);
        listpack.replace_int(at, number.saturating_add(live));
        if deleted != 0
            && let Some(at) = listpack.view().next(at)
        {
            let number = listpack.view().get(at).as_int().unwrap_or(0);
            listpack.replace_int(at, number.saturating_add(deleted));
        }
    }

    /// Number of entries that are not deleted.
    #[inline]
    pub(super) fn live(&self) -> u64 {
        self.view().iter().next().and_then(Str::as_int).map_or(0, |number| number.max(0) as u64)
    }

    /// Number of all entries.
    #[inline]
    pub(super) fn len(&self) -> u64 {
        let mut elements = self.view().iter();
        count(elements.next()).saturating_add(count(elements.next())) as u64
    }

    /// The listpack.
    #[inline]
    pub fn view(&self) -> View<'_> {
        self.0.view()
    }

    /// Number of bytes of the listpack.
    #[inline]
    pub fn byte_len(&self) -> usize {
        self.0.byte_len()
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        self.0.memory()
    }

    #[inline]
    fn head(&self) -> Head<'_> {
        let mut elements = self.view().iter();
        let names_len = count(elements.by_ref().nth(2));
        let names = elements.clone();
        let mut entries = elements;
        // The names, and the zero after them.
        entries.nth(names_len);
        Head { names_len, names, entries }
    }

    /// All entries including deleted ones, in order; `base` is the block's ID.
    #[inline]
    pub(super) fn entries(&self, base: Id) -> Entries<'_> {
        let Head { names_len, names, entries } = self.head();
        Entries { base, names_len, names, rest: entries }
    }

    /// The entries that are not deleted, in order; `base` is the block's ID.
    pub fn live_entries(&self, base: Id) -> impl Iterator<Item = Entry<'_>> {
        self.entries(base).filter(|entry| !entry.is_deleted())
    }

    /// All entries including deleted ones, in reverse order.
    #[inline]
    pub(super) fn entries_back(&self, base: Id) -> EntriesBack<'_> {
        let Head { names_len, names, .. } = self.head();
        EntriesBack { base, names_len, names, view: self.view(), size: self.view().last() }
    }

    /// The ID of the last entry, deleted or not.
    #[inline]
    pub(super) fn last_id(&self, base: Id) -> Option<Id> {
        self.entries_back(base).next().map(|entry| entry.id)
    }

    /// The start of the first entry.
    fn first_entry(&self) -> Option<At> {
        let view = self.view();
        let mut at = view.next(view.next(view.first()?)?)?;
        for _ in 0..count(Some(view.get(at))) {
            at = view.next(at)?;
        }
        view.next(view.next(at)?)
    }

    /// The flags and ID of the entry at a position, and the position of the next entry.
    fn step(&self, at: At, base: Id) -> Option<(i64, Id, Option<At>)> {
        let view = self.view();
        let mut elements = view.iter_from(at);
        let flags = int(elements.next())?;
        let id = beyond(base, &mut elements);
        let values = if flags & SAME_NAMES != 0 {
            count(view.iter().nth(2))
        } else {
            count(elements.next()).checked_mul(2)?.checked_add(1)?
        };
        // From the flags over the two numbers of the ID, and the other elements, to the size and beyond it.
        let mut end = at;
        for _ in 0..values.checked_add(3)? {
            end = view.next(end)?;
        }
        Some((flags, id, view.next(end)))
    }

    /// Marks an entry as deleted; returns false if it does not exist or is deleted.
    pub(super) fn delete(&mut self, base: Id, id: Id) -> bool {
        let mut next = self.first_entry();
        while let Some(at) = next {
            let Some((flags, own, after)) = self.step(at, base) else { return false };
            if own == id && flags & DELETED == 0 {
                self.0.replace_int(at, flags | DELETED);
                self.recount(-1, 1);
                return true;
            }
            next = after;
        }
        false
    }

    /// Marks entries as deleted, from the first on, until `stop` returns true for an
    /// entry's ID and the number of live ones marked before it. Returns the number marked.
    pub(super) fn delete_until(&mut self, base: Id, stop: impl Fn(Id, u64) -> bool) -> u64 {
        let (mut next, mut marked) = (self.first_entry(), 0);
        while let Some(at) = next {
            let Some((flags, id, _)) = self.step(at, base) else { break };
            if stop(id, marked) {
                break;
            }
            if flags & DELETED == 0 {
                self.0.replace_int(at, flags | DELETED);
                marked += 1;
            }
            // If the mark has another width, the rest has moved.
            next = self.step(at, base).and_then(|(_, _, after)| after);
        }
        self.recount(-(marked as i64), marked as i64);
        marked
    }

    /// Validates a listpack from outside as a block: its elements must be as many entries as the header
    /// states, each with the stated number of elements, and the IDs of those that are not deleted must ascend.
    pub(super) fn check(bytes: &[u8], base: Id) -> Result<(Block, Contents), Corrupt> {
        let listpack = Listpack::from_bytes(bytes)?;
        let contents = check_elements(listpack.view().iter(), base).ok_or(Corrupt)?;
        Ok((Block(listpack), contents))
    }
}

/// The contents of a validated block.
pub(super) struct Contents {
    /// Number of entries that are not deleted.
    pub live: u64,
    /// The first and the last ID of those.
    pub ids: Option<(Id, Id)>,
}

/// Reads the ID of an entry; `elements` is positioned at its two numbers.
#[inline]
fn beyond(base: Id, elements: &mut Iter<'_>) -> Id {
    let ms = int(elements.next()).unwrap_or(0);
    let seq = int(elements.next()).unwrap_or(0);
    Id::new(base.ms.wrapping_add(ms as u64), base.seq.wrapping_add(seq as u64))
}

/// Skips `len` elements, a number of names or values.
fn skip(elements: &mut Iter<'_>, len: i64) -> Option<()> {
    let len = usize::try_from(len).ok()?;
    if len > 0 {
        elements.nth(len - 1)?;
    }
    Some(())
}

fn check_elements(mut elements: Iter<'_>, base: Id) -> Option<Contents> {
    let (live, deleted, names) = (int(elements.next())?, int(elements.next())?, int(elements.next())?);
    skip(&mut elements, names)?;
    let mut counted = (0, 0);
    let mut ids: Option<(Id, Id)> = None;
    let mut terminated = int(elements.next())? == 0;
    while let Some(flags) = elements.next() {
        let flags = flags.as_int()?;
        let (ms, seq) = (int(elements.next())?, int(elements.next())?);
        let id = Id::new(base.ms.wrapping_add(ms as u64), base.seq.wrapping_add(seq as u64));
        let values = if flags & SAME_NAMES != 0 {
            names
        } else {
            let len = int(elements.next())?;
            skip(&mut elements, len)?;
            skip(&mut elements, len)?;
            2 * len + 1
        };
        if flags & SAME_NAMES != 0 {
            skip(&mut elements, values)?;
        }
        terminated &= int(elements.next())? == values + 3;
        if flags & DELETED != 0 {
            counted.1 += 1;
        } else {
            counted.0 += 1;
            terminated &= ids.is_none_or(|(_, last)| last < id);
            ids = Some((ids.map_or(id, |(first, _)| first), id));
        }
    }
    (terminated && counted == (live, deleted)).then_some(Contents { live: live as u64, ids })
}

/// The entries of a block, in order.
pub(super) struct Entries<'a> {
    base: Id,
    names_len: usize,
    names: Iter<'a>,
    /// The next entry and everything after it.
    rest: Iter<'a>,
}

/// Reads an entry; `elements` is positioned at its flags, and `names` are those of the block.
#[inline]
fn read<'a>(elements: &mut Iter<'a>, base: Id, names_len: usize, names: &Iter<'a>) -> Option<Entry<'a>> {
    let flags = int(elements.next())?;
    let id = beyond(base, elements);
    let same = flags & SAME_NAMES != 0;
    let len = if same { names_len } else { count(elements.next()) };
    let names = same.then(|| names.clone());
    Some(Entry { id, deleted: flags & DELETED != 0, len, names, values: elements.clone() })
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        let entry = read(&mut self.rest, self.base, self.names_len, &self.names)?;
        let values = if entry.names.is_some() { entry.len } else { entry.len.saturating_mul(2) };
        // The values, and the size after them.
        self.rest.nth(values);
        Some(entry)
    }
}

/// The entries of a block, in reverse order.
pub(super) struct EntriesBack<'a> {
    base: Id,
    names_len: usize,
    names: Iter<'a>,
    view: View<'a>,
    /// The size of the next entry.
    size: Option<At>,
}

impl<'a> Iterator for EntriesBack<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        let mut at = self.size?;
        let size = count(Some(self.view.get(at)));
        if size == 0 {
            // The zero after the names.
            self.size = None;
            return None;
        }
        for _ in 0..size {
            at = self.view.prev(at)?;
        }
        self.size = self.view.prev(at);
        read(&mut self.view.iter_from(at), self.base, self.names_len, &self.names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::IntBuf;

    fn text(entry: &Entry<'_>) -> String {
        let word = |word: Str<'_>| String::from_utf8_lossy(word.bytes(&mut IntBuf::default())).into_owned();
        let fields: Vec<_> = entry.fields().map(|(name, value)| format!("{}={}", word(name), word(value))).collect();
        format!("{} {}{}", entry.id, fields.join(","), if entry.deleted { " deleted" } else { "" })
    }

    fn all(block: &Block, base: Id) -> Vec<String> {
        let mut back: Vec<_> = block.entries_back(base).map(|entry| text(&entry)).collect();
        back.reverse();
        let forth: Vec<_> = block.entries(base).map(|entry| text(&entry)).collect();
        assert_eq!(forth, back);
        assert_eq!(forth.len() as u64, block.len());
        assert!(Block::check(block.view().bytes(), base).is_ok());
        forth
    }

    fn words(line: &str) -> impl ExactSizeIterator<Item = &[u8]> + Clone {
        line.split(' ').map(str::as_bytes).collect::<Vec<_>>().into_iter()
    }

    fn sample() -> (Block, Id) {
        let base = Id::new(1000, 5);
        let mut block = Block::new(words("a 1 b 2"));
        block.push(base, Id::new(1000, 6), words("a x b -7"));
        block.push(base, Id::new(1001, 0), words("a x"));
        block.push(base, Id::new(1001, 1), words("b x a y"));
        (block, base)
    }

    #[test]
    fn entries_are_read_from_both_ends() {
        let (block, base) = sample();
        assert_eq!(all(&block, base), ["1000-5 a=1,b=2", "1000-6 a=x,b=-7", "1001-0 a=x", "1001-1 b=x,a=y"]);
        assert_eq!((block.live(), block.last_id(base)), (4, Some(Id::new(1001, 1))));
    }

    #[test]
    fn matches_the_dump_file_format() {
        let mut block = Block::new(words("a 1"));
        block.push(Id::MIN, Id::new(1, 0), words("a 2"));
        block.push(Id::MIN, Id::new(2, 0), words("b 3"));
        let elements: Vec<_> = block.view().iter().map(|element| element.as_int()).collect();
        let [a, b] = [None, None];
        let ints = [3, 0, 1].map(Some).into_iter().chain([a]).chain([0, 2, 0, 0, 1, 4, 2, 1, 0, 2, 4].map(Some));
        assert!(elements.into_iter().eq(ints.chain([0, 2, 0, 1].map(Some)).chain([b]).chain([3, 6].map(Some))));
    }

    #[test]
    fn deleted_entries_stay_marked() {
        let (mut block, base) = sample();
        assert!(block.delete(base, Id::new(1000, 6)) && !block.delete(base, Id::new(1000, 6)));
        assert!(!block.delete(base, Id::new(7, 7)));
        assert_eq!((block.live(), block.len()), (3, 4));
        assert_eq!(all(&block, base)[1], "1000-6 a=x,b=-7 deleted");
        assert_eq!(block.delete_until(base, |id, _| id > Id::new(1001, 0)), 2);
        assert_eq!((block.live(), block.last_id(base)), (1, Some(Id::new(1001, 1))));
        assert_eq!(block.delete_until(base, |_, marked| marked == 1), 1);
        assert!(all(&block, base).iter().all(|entry| entry.ends_with("deleted")));
    }

    #[test]
    fn counts_may_exceed_a_byte() {
        let (base, len) = (Id::MIN, 300);
        let mut block = Block::new(words("a 0"));
        (1..len).for_each(|ms| block.push(base, Id::new(ms, 0), words("a 0")));
        assert_eq!(all(&block, base).len() as u64, len);
        assert_eq!(block.delete_until(base, |id, _| id.ms == 200), 200);
        assert_eq!((all(&block, base).len(), block.live()), (300, 100));
    }

    #[test]
    fn each_corruption_is_detected() {
        let good: [&[i64]; 2] = [&[1, 1, 1, 7, 0, 3, 0, 0, 5, 4, 0, 1, 0, 1, 7, 5, 6], &[1, 0, 0, 0, 2, 0, 0, 3]];
        let bytes = |elements: &[i64]| {
            let mut listpack = Listpack::new();
            elements.iter().for_each(|number| listpack.push_back_int(*number));
            listpack.bytes().to_vec()
        };
        assert!(good.iter().all(|elements| Block::check(&bytes(elements), Id::MIN).is_ok()));
        let flaws =
            [(0, 2), (0, -1), (1, 0), (1, 2), (2, 2), (2, -1), (4, 1), (5, 1), (9, 5), (13, 2), (13, -1), (16, 5)];
        for (index, number) in flaws {
            let mut elements = good[0].to_vec();
            elements[index] = number;
            assert!(Block::check(&bytes(&elements), Id::MIN).is_err(), "element {index} is {number}");
        }
        for len in 0..good[0].len() {
            assert!(Block::check(&bytes(&good[0][..len]), Id::MIN).is_err(), "cut to {len}");
        }
        let falling = [2, 0, 0, 0, 2, 1, 0, 3, 2, 0, 0, 3];
        assert!(Block::check(&bytes(&falling), Id::MIN).is_err());
        let deleted_between = [1, 1, 0, 0, 3, 1, 0, 3, 2, 0, 0, 3];
        assert!(Block::check(&bytes(&deleted_between), Id::MIN).is_ok());
    }
}
