//! Tests of listpacks: encodings, validation, and random operations against a model.

use super::*;
use crate::value::{IntBuf, Str};
use proptest::collection::vec;
use proptest::prelude::*;

fn words(view: View<'_>) -> Vec<Vec<u8>> {
    view.iter().map(|element| element.bytes(&mut IntBuf::default()).to_vec()).collect()
}

/// Checks that everything readable agrees with the model, from both ends, and that the bytes pass the validation.
fn assert_same(listpack: &Listpack, model: &[Vec<u8>]) {
    let view = View::check(listpack.bytes()).expect("own bytes hold together");
    assert_eq!(words(view), model);
    assert_eq!((view.len(), view.is_empty()), (model.len(), model.is_empty()));
    let mut backwards: Vec<_> = view.iter_rev().map(|element| element.bytes(&mut IntBuf::default()).to_vec()).collect();
    backwards.reverse();
    assert_eq!(backwards, model);
    assert_eq!(view.first().is_some(), !model.is_empty());
    assert_eq!(view.last(), view.seek(-1));
}

/// A single element: the listpack's bytes without header and terminator.
fn encoded(bytes: &[u8]) -> Vec<u8> {
    let mut listpack = Listpack::new();
    listpack.push_back(bytes);
    assert_same(&listpack, &[bytes.to_vec()]);
    listpack.bytes()[HEADER..listpack.byte_len() - 1].to_vec()
}

#[test]
fn every_integer_width_has_its_encoding() {
    let known: &[(&str, &[u8])] = &[
        ("0", &[0, 1]),
        ("127", &[127, 1]),
        ("128", &[0xC0, 128, 2]),
        ("-1", &[0xDF, 0xFF, 2]),
        ("4095", &[0xCF, 0xFF, 2]),
        ("-4096", &[0xD0, 0, 2]),
        ("4096", &[0xF1, 0, 0x10, 3]),
        ("-32768", &[0xF1, 0, 0x80, 3]),
        ("32768", &[0xF2, 0, 0x80, 0, 4]),
        ("-8388608", &[0xF2, 0, 0, 0x80, 4]),
        ("8388608", &[0xF3, 0, 0, 0x80, 0, 5]),
        ("-2147483648", &[0xF3, 0, 0, 0, 0x80, 5]),
        ("2147483648", &[0xF4, 0, 0, 0, 0x80, 0, 0, 0, 0, 9]),
        ("-9223372036854775808", &[0xF4, 0, 0, 0, 0, 0, 0, 0, 0x80, 9]),
    ];
    for (text, bytes) in known {
        assert_eq!(encoded(text.as_bytes()), *bytes, "{text}");
        assert_eq!(Element::new(text.as_bytes()).size(), bytes.len());
    }
}

#[test]
fn non_canonical_integers_are_strings() {
    for text in ["", "-", "-0", "+1", "01", " 1", "1 ", "9223372036854775808", "1.0", "123456789012345678901"] {
        assert_eq!(encoded(text.as_bytes())[0], 0x80 | text.len() as u8, "{text:?}");
    }
}

#[test]
fn every_string_length_has_its_encoding() {
    for (len, header, backlen) in [
        (0, &[0x80][..], 1),
        (63, &[0xBF], 1),
        (64, &[0xE0, 64], 1),
        (125, &[0xE0, 125], 1),
        (126, &[0xE0, 126], 2),
        (4095, &[0xEF, 0xFF], 2),
        (4096, &[0xF0, 0, 0x10, 0, 0], 2),
        (16378, &[0xF0, 0xFA, 0x3F, 0, 0], 2),
        (16379, &[0xF0, 0xFB, 0x3F, 0, 0], 3),
        (0x1F_FFFA, &[0xF0, 0xFA, 0xFF, 0x1F, 0], 3),
        (0x1F_FFFB, &[0xF0, 0xFB, 0xFF, 0x1F, 0], 4),
    ] {
        let bytes = encoded(&vec![b'x'; len]);
        assert_eq!(bytes[..header.len()], *header, "{len}");
        assert_eq!(bytes.len(), header.len() + len + backlen, "{len}");
    }
}

#[test]
fn longest_backlen_is_five_bytes() {
    let len = 0x1000_0000;
    let mut room = [0; element::BACKLEN_MAX];
    assert_eq!(element::backlen_size(len - 1), 4);
    assert_eq!(element::backlen_size(len), 5);
    element::write_backlen(len, &mut room);
    assert_eq!(room, [1, 0x80, 0x80, 0x80, 0x80]);
    assert_eq!(element::read_backlen(&room), Some((len, 5)));
    assert_eq!(element::read_backlen(&[0x80; 6]), None);
}

#[test]
fn element_count_beyond_the_header_field_is_computed() {
    let mut listpack = Listpack::new();
    for i in 0..65_536 {
        listpack.push_back_int(i % 100);
    }
    assert_eq!(listpack.bytes()[4..6], [0xFF, 0xFF]);
    assert_eq!(listpack.len(), 65_536);
    assert_eq!(listpack.view().seek(65_535), listpack.view().last());
    assert_eq!(listpack.view().seek(-65_536), listpack.view().first());
    assert_eq!((listpack.view().seek(65_536), listpack.view().seek(-65_537)), (None, None));
    assert_eq!(listpack.remove_range(0, 65_000), 65_000);
    assert_eq!(listpack.len(), 536);
    assert!(View::check(listpack.bytes()).is_ok());
}

#[test]
fn allocation_matches_its_size_class() {
    let mut listpack = Listpack::new();
    assert_eq!((listpack.byte_len(), listpack.memory()), (7, 8));
    listpack.push_back(b"a");
    assert_eq!((listpack.byte_len(), listpack.memory()), (10, 16));
    assert_eq!(listpack.bytes_with(Element::new(b"bcd").size()), 15);
}

#[test]
fn word_is_updated_when_its_listpack_moves() {
    let mut word = Listpack::new().into_word(3);
    for i in 0..1000 {
        // SAFETY: the word owns its listpack.
        unsafe { Mut::new(&mut word) }.push_back_int(i);
    }
    assert_eq!(word.tag(), 3);
    // SAFETY: it does not change.
    assert_eq!(unsafe { view_of(word) }.len(), 1000);
    // SAFETY: the word is not used again.
    assert_eq!(unsafe { Listpack::from_word(word) }.len(), 1000);
}

#[test]
fn front_padding_is_used_before_reallocation() {
    let mut listpack = Listpack::new();
    (0..20).for_each(|number| listpack.push_back_int(number));
    assert!(Fronted::copy_of(listpack.view(), listpack.byte_len() - 1).is_none());
    let mut fronted = Fronted::copy_of(listpack.view(), listpack.byte_len() + 9).expect("there is room");
    for element in [&b"abc"[..], b"7"] {
        assert!(fronted.push_front(Element::new(element)));
        listpack.push_front(element);
        assert_eq!(fronted.view().bytes(), listpack.bytes());
    }
    assert!(!fronted.push_front(Element::new(b"a")));
    assert_eq!((fronted.to_listpack().bytes(), fronted.memory()), (listpack.bytes(), 56));
    for _ in 0..23 {
        fronted.pop_front();
        listpack.remove_range(0, 1);
        assert_eq!(View::check(fronted.view().bytes()).expect("it holds together"), listpack.view());
    }
    assert!(fronted.view().is_empty());
}

#[test]
fn integer_like_strings_are_found_in_loaded_listpacks() {
    let bytes = [11, 0, 0, 0, 1, 0, 0x82, b'1', b'2', 3, 0xFF];
    let view = View::check(&bytes).expect("valid");
    assert_eq!(view.find(view.first().unwrap(), b"12", 0), view.first());
    assert_eq!(view.get(view.first().unwrap()), Str::Bytes(b"12"));
}

#[test]
fn each_corruption_is_detected() {
    let good = [10, 0, 0, 0, 1, 0, 0x81, b'a', 2, 0xFF];
    assert!(View::check(&good).is_ok());
    for (i, byte) in
        [(0, 11), (0, 9), (1, 1), (4, 0), (4, 2), (6, 0x82), (6, 0x80), (6, 0xF5), (6, 0xFF), (8, 3), (8, 0x82), (9, 0)]
    {
        let mut bad = good;
        bad[i] = byte;
        assert_eq!(View::check(&bad), Err(Corrupt), "byte {i} is {byte}");
    }
    for len in 0..good.len() {
        assert_eq!(View::check(&good[..len]), Err(Corrupt), "cut to {len}");
    }
    // Strings that are longer than the remaining bytes.
    assert_eq!(View::check(&[13, 0, 0, 0, 1, 0, 0xF0, 0xFF, 0xFF, 0xFF, 0xFF, 5, 0xFF]), Err(Corrupt));
}

/// Strings of all encodings.
fn elements() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => (0u32..64, any::<i64>()).prop_map(|(shift, number)| (number >> shift).to_string().into_bytes()),
        6 => vec(any::<u8>(), 0..12),
        2 => vec(any::<u8>(), 55..140),
        1 => vec(any::<u8>(), 4000..4200),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    PushBack(Vec<u8>),
    PushFront(Vec<u8>),
    PushBackInt(i64),
    InsertBefore(prop::sample::Index, Vec<u8>),
    InsertAfter(prop::sample::Index, Vec<u8>),
    InsertAll(prop::sample::Index, Vec<Vec<u8>>),
    Replace(prop::sample::Index, Vec<u8>),
    Remove(prop::sample::Index),
    RemoveRange(prop::sample::Index, usize),
    Append(Vec<Vec<u8>>),
    Find(prop::sample::Index, prop::sample::Index, usize),
    Copy,
}

fn steps() -> impl Strategy<Value = Step> {
    let index = any::<prop::sample::Index>;
    prop_oneof![
        4 => elements().prop_map(Step::PushBack),
        2 => elements().prop_map(Step::PushFront),
        1 => any::<i64>().prop_map(Step::PushBackInt),
        2 => (index(), elements()).prop_map(|(at, bytes)| Step::InsertBefore(at, bytes)),
        2 => (index(), elements()).prop_map(|(at, bytes)| Step::InsertAfter(at, bytes)),
        1 => (index(), vec(elements(), 0..4)).prop_map(|(at, all)| Step::InsertAll(at, all)),
        3 => (index(), elements()).prop_map(|(at, bytes)| Step::Replace(at, bytes)),
        3 => index().prop_map(Step::Remove),
        1 => (index(), 0usize..5).prop_map(|(at, count)| Step::RemoveRange(at, count)),
        1 => vec(elements(), 0..5).prop_map(Step::Append),
        3 => (index(), index(), 0usize..3).prop_map(|(at, needle, skip)| Step::Find(at, needle, skip)),
        1 => Just(Step::Copy),
    ]
}

/// Applies a step to both; `model` is not empty if the step needs an element.
fn follow(listpack: &mut Listpack, model: &mut Vec<Vec<u8>>, step: Step) {
    let place = |index: prop::sample::Index, model: &Vec<Vec<u8>>, listpack: &Listpack| {
        let i = index.index(model.len());
        let from_either_end = if i.is_multiple_of(2) { i as isize } else { i as isize - model.len() as isize };
        (i, listpack.view().seek(from_either_end).expect("there is one"))
    };
    match step {
        Step::PushBack(bytes) => {
            let size = Element::new(&bytes).size();
            let predicted = listpack.bytes_with(size);
            listpack.push_back(&bytes);
            assert_eq!(listpack.byte_len(), predicted);
            model.push(bytes);
        }
        Step::PushFront(bytes) => {
            listpack.push_front(&bytes);
            model.insert(0, bytes);
        }
        Step::PushBackInt(number) => {
            listpack.push_back_int(number);
            model.push(number.to_string().into_bytes());
        }
        Step::Append(all) => {
            let mut other = Listpack::new();
            all.iter().for_each(|bytes| other.push_back(bytes));
            listpack.append(other.view());
            model.extend(all);
        }
        Step::Copy => *listpack = Listpack::from_bytes(listpack.clone().bytes()).expect("valid"),
        _ if model.is_empty() => {}
        Step::InsertBefore(index, bytes) => {
            let (i, at) = place(index, model, listpack);
            listpack.insert_before(at, &bytes);
            assert!(listpack.view().equals(at, &bytes));
            model.insert(i, bytes);
        }
        Step::InsertAfter(index, bytes) => {
            let (i, at) = place(index, model, listpack);
            let new = listpack.insert_after(at, &bytes);
            assert!(listpack.view().equals(new, &bytes));
            model.insert(i + 1, bytes);
        }
        Step::InsertAll(index, all) => {
            let (i, at) = place(index, model, listpack);
            let elements: Vec<_> = all.iter().map(|bytes| Element::new(bytes)).collect();
            listpack.insert_all_before(Some(at), &elements);
            model.splice(i..i, all);
        }
        Step::Replace(index, bytes) => {
            let (i, at) = place(index, model, listpack);
            let new = listpack.replace(at, &bytes);
            assert!(listpack.view().equals(new, &bytes));
            model[i] = bytes;
        }
        Step::Remove(index) => {
            let (i, at) = place(index, model, listpack);
            let next = listpack.remove(at);
            model.remove(i);
            assert_eq!(next, listpack.view().seek(i as isize));
        }
        Step::RemoveRange(index, count) => {
            let (i, _) = place(index, model, listpack);
            let end = model.len().min(i + count);
            assert_eq!(listpack.remove_range(i as isize, count), end - i);
            model.drain(i..end);
        }
        Step::Find(from, needle, skip) => {
            let (i, at) = place(from, model, listpack);
            let needle = &model[needle.index(model.len())];
            let expected = (i..model.len()).step_by(skip + 1).find(|i| model[*i] == *needle);
            let expected = expected.and_then(|i| listpack.view().seek(i as isize));
            assert_eq!(listpack.view().find(at, needle, skip), expected);
        }
    }
}

/// Reads in all possible ways.
fn read_all(view: View<'_>) {
    assert_eq!(view.iter().count(), view.len());
    assert_eq!(view.iter_rev().count(), view.len());
    let mut next = view.first();
    while let Some(at) = next {
        let element = view.get(at);
        assert!(view.equals(at, element.bytes(&mut IntBuf::default())));
        assert!(view.find(at, b"12", 1).is_none_or(|found| found >= at));
        assert_eq!(view.next(at).and_then(|after| view.prev(after)).unwrap_or(at), at);
        assert!(view.size_of(at) >= 2);
        next = view.next(at);
    }
    for index in -4..4 {
        assert_eq!(view.seek(index).is_some(), (-(view.len() as isize)..view.len() as isize).contains(&index));
    }
}

proptest! {
    #[test]
    fn behaves_as_vector(all in vec(steps(), 1..60)) {
        let (mut listpack, mut model) = (Listpack::new(), Vec::new());
        for step in all {
            follow(&mut listpack, &mut model, step);
            assert_same(&listpack, &model);
        }
    }

    #[test]
    fn checked_bytes_can_be_read_and_changed(
        all in vec(elements(), 0..12),
        flips in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        steps in vec(steps(), 0..6),
    ) {
        let mut listpack = Listpack::new();
        all.iter().for_each(|bytes| listpack.push_back(bytes));
        let mut bytes = listpack.bytes().to_vec();
        for (at, byte) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= byte;
        }
        if let Ok(view) = View::check(&bytes) {
            read_all(view);
            let mut model = words(view);
            let mut listpack = Listpack::from_bytes(&bytes).expect("checked");
            for step in steps {
                follow(&mut listpack, &mut model, step);
            }
            assert_same(&listpack, &model);
        }
    }

    #[test]
    fn check_accepts_arbitrary_bytes(mut bytes in vec(any::<u8>(), 0..60), honest: bool) {
        if honest && bytes.len() > HEADER {
            let total = bytes.len();
            bytes[..HEADER].copy_from_slice(&[total as u8, 0, 0, 0, 0xFF, 0xFF]);
            bytes[total - 1] = element::END;
        }
        if let Ok(view) = View::check(&bytes) {
            read_all(view);
        }
    }
}
