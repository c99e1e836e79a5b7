//! Tests of pairs against a vector of pairs, and against listpacks.

use super::*;
use crate::value::IntBuf;
use proptest::prelude::*;

type Model = Vec<(Vec<u8>, Vec<u8>)>;

fn text(string: Str<'_>) -> Vec<u8> {
    string.bytes(&mut IntBuf::default()).to_vec()
}

fn listpack_of(model: &Model) -> Listpack {
    let mut listpack = Listpack::new();
    for (first, second) in model {
        listpack.push_back(first);
        listpack.push_back(second);
    }
    listpack
}

fn assert_same(pairs: &Pairs, model: &Model) {
    let read: Model = pairs.iter().map(|(first, second)| (text(first), text(second))).collect();
    assert_eq!(&read, model);
    let listpack = listpack_of(model);
    assert_eq!((pairs.len(), pairs.is_empty()), (model.len(), model.is_empty()));
    assert_eq!(pairs.listpack_bytes(), listpack.byte_len());
    assert_eq!(pairs.to_listpack().bytes(), listpack.bytes());
    assert!(pairs.blocks.iter().all(|block| block.byte_len() > PREFIX), "empty blocks");
    for (index, (first, second)) in model.iter().enumerate() {
        let place = pairs.find(first).expect("it is there");
        assert_eq!((text(pairs.get(place).0), text(pairs.get(place).1)), (first.clone(), second.clone()));
        let place = pairs.seek(index).expect("there are so many");
        assert_eq!(text(pairs.get(place).0), *first);
    }
    assert!(pairs.seek(model.len()).is_none());
}

#[derive(Clone, Debug)]
enum Step {
    Set(u16, Vec<u8>),
    Remove(prop::sample::Index, usize),
    Copy,
}

fn second() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        20 => prop::collection::vec(any::<u8>(), 0..80),
        10 => any::<i64>().prop_map(|number| number.to_string().into_bytes()),
        10 => (0..200i64).prop_map(|number| number.to_string().into_bytes()),
        2 => (0..6000usize).prop_map(|len| vec![b'x'; len]),
    ]
}

/// Names of several lengths, including numbers, common prefixes, and names that differ only at their ends.
fn name(number: u16) -> Vec<u8> {
    match number % 5 {
        0 => number.to_string().into_bytes(),
        1 => format!("field:{number:012}").into_bytes(),
        2 => format!("h{number:x}").into_bytes(),
        3 => [&[b'n'; 70][..], &number.to_le_bytes()].concat(),
        _ => format!("{number:05}:name").into_bytes(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 150 }))]

    #[test]
    fn matches_listpack_of_all_elements(steps in prop::collection::vec(prop_oneof![
        30 => (0..150u16, second()).prop_map(|(number, second)| Step::Set(number, second)),
        3 => (any::<prop::sample::Index>(), 1..30usize).prop_map(|(index, count)| Step::Remove(index, count)),
        1 => Just(Step::Copy),
    ], 1..300)) {
        let (mut pairs, mut model) = (Pairs::of_listpack(Listpack::new().view()), Model::new());
        for step in steps {
            match step {
                Step::Set(number, second) => {
                    let first = name(number);
                    match model.iter_mut().find(|(other, _)| *other == first) {
                        Some((_, old)) => {
                            let place = pairs.find(&first).expect("it is there");
                            pairs.replace(place, &second);
                            *old = second;
                        }
                        None => {
                            prop_assert!(pairs.find(&first).is_none());
                            pairs.push(&first, &second);
                            model.push((first, second));
                        }
                    }
                }
                Step::Remove(index, count) => {
                    for _ in 0..count.min(model.len()) {
                        let (first, _) = model.remove(index.index(model.len()));
                        pairs.remove(pairs.find(&first).expect("it is there"));
                        prop_assert!(pairs.find(&first).is_none());
                    }
                }
                Step::Copy => pairs = Pairs::of_listpack(pairs.clone().to_listpack().view()),
            }
        }
        assert_same(&pairs, &model);
    }
}

#[test]
fn non_canonical_integers_are_found_in_loaded_listpacks() {
    // The string "12" as a string, and the number 7 in two bytes.
    let elements = [&[0x82, b'1', b'2', 3][..], &[1, 1], &[0xF1, 7, 0, 3], &[2, 1]].concat();
    let listpack = Listpack::written_by(4, elements.len(), |room| room.copy_from_slice(&elements));
    let pairs = Pairs::of_listpack(listpack.view());
    assert_same(&pairs, &vec![(b"12".to_vec(), b"1".to_vec()), (b"7".to_vec(), b"2".to_vec())]);
}

#[test]
fn mass_deletion_leaves_few_blocks() {
    let mut pairs = Pairs::of_listpack(Listpack::new().view());
    (0..2000).for_each(|number| pairs.push(&name(number), b"value"));
    assert!(pairs.blocks.spilled() && pairs.memory() < pairs.listpack_bytes() * 11 / 10);
    for number in (0..2000).filter(|number| number % 100 != 0) {
        pairs.remove(pairs.find(&name(number)).expect("it is there"));
    }
    let left: Model = (0..2000).step_by(100).map(|number| (name(number), b"value".to_vec())).collect();
    assert_same(&pairs, &left);
    assert!(pairs.blocks.len() <= 2, "{} blocks", pairs.blocks.len());
}

#[test]
fn value_that_outgrows_its_block_is_moved() {
    for (number, len) in [(0, 900), (0, 5000), (31, 900), (31, 5000), (60, 900), (60, 5000)] {
        let mut model: Model = (0..64).map(|number| (name(5 * number + 1), b"0123456789".to_vec())).collect();
        let mut pairs = Pairs::of_listpack(listpack_of(&model).view());
        model[number].1 = vec![b'x'; len];
        pairs.replace(pairs.find(&model[number].0).expect("it is there"), &model[number].1);
        assert_same(&pairs, &model);
    }
}
