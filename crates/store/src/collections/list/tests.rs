//! Tests of lists: how blocks split and merge, and random operations against a model.

use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

type Model = Vec<Vec<u8>>;

const BYTES: Limits = Limits { max_listpack_size: -2, compress_depth: 0 };

fn counted(max_listpack_size: i32) -> Limits {
    Limits { max_listpack_size, compress_depth: 0 }
}

fn words(list: &List, range: Range<usize>, from: Side) -> Model {
    let mut all = Vec::new();
    list.visit(range, from, |element| all.push(owned(element).to_vec()));
    all
}

fn filled(elements: impl IntoIterator<Item = usize>, limits: Limits) -> List {
    let mut list = List::new();
    for element in elements {
        list.push(Side::Tail, element.to_string().as_bytes(), limits);
    }
    list
}

/// The number of elements in each block.
fn counts(list: &List) -> Vec<usize> {
    let count = |block| match block {
        BlockView::Plain(_) => 1,
        BlockView::Packed(view) => view.len(),
        BlockView::Compressed(..) => panic!("not asked to compress"),
    };
    list.blocks().map(|(blocks, _)| blocks.map(count).collect()).unwrap_or_default()
}

#[test]
fn list_converts_between_encodings_as_it_grows_and_shrinks() {
    let limits = counted(4);
    let mut list = filled(0..4, limits);
    assert_eq!(list.encoding(), "listpack");
    list.push(Side::Tail, b"4", limits);
    assert_eq!((list.encoding(), counts(&list)), ("quicklist", vec![4, 1]));
    assert_eq!(list.free_effort(), 2);
    list.remove_range(3..5, limits);
    assert_eq!((list.encoding(), list.len()), ("quicklist", 3));
    list.pop(Side::Head, limits, |_| ());
    assert_eq!((list.encoding(), list.len()), ("listpack", 2));
}

#[test]
fn batch_size_is_considered_before_adding() {
    let mut list = List::new();
    let elements = [&[b'x'; 3000][..]; 3];
    list.extend(Side::Tail, elements.into_iter(), BYTES);
    assert_eq!((list.encoding(), counts(&list)), ("quicklist", vec![2, 1]));
}

#[test]
fn large_element_gets_its_own_block() {
    let mut list = filled(0..3, BYTES);
    let large = vec![b'x'; 8193];
    list.insert(b"1", Side::Tail, &large, BYTES);
    assert_eq!(counts(&list), [2, 1, 1]);
    assert!(matches!(list.blocks().unwrap().0.nth(1), Some(BlockView::Plain(element)) if element == large));
    // Once it is replaced by a small one, that joins its neighbour.
    assert!(list.set(2, b"small", BYTES));
    assert_eq!(counts(&list), [2, 2]);
    list.push_shared(Side::Head, &large.clone().into(), BYTES);
    assert_eq!(list.pop(Side::Head, BYTES, |element| element == Str::Bytes(&large)), Some(true));
}

#[test]
fn insertion_splits_full_block_and_merges_neighbours() {
    let limits = counted(4);
    let mut list = filled(0..12, limits);
    assert_eq!(counts(&list), [4, 4, 4]);
    assert!(list.insert(b"5", Side::Tail, b"new", limits));
    assert_eq!(counts(&list), [4, 2, 3, 4]);
    assert!(list.insert(b"4", Side::Head, b"newer", limits));
    assert_eq!(counts(&list), [4, 3, 3, 4]);
    assert!(!list.insert(b"99", Side::Head, b"x", limits));
    // At the end of a full block whose neighbour has room.
    assert!(list.insert(b"3", Side::Tail, b"newest", limits));
    assert_eq!(counts(&list), [4, 4, 3, 4]);
}

#[test]
fn inner_blocks_are_compressed_and_those_near_the_ends_are_not() {
    let limits = Limits { max_listpack_size: 2, compress_depth: 1 };
    let mut list = List::new();
    for i in 0..10 {
        list.push(Side::Tail, format!("{i}{}", "a".repeat(100)).as_bytes(), limits);
    }
    let compressed = |list: &List| -> String {
        let (blocks, _) = list.blocks().unwrap();
        blocks.map(|block| if matches!(block, BlockView::Compressed(..)) { 'c' } else { '-' }).collect()
    };
    assert_eq!(compressed(&list), "-ccc-");
    assert_eq!(list.get(5, |element| owned(element)[0]), Some(b'5'));
    assert!(list.set(5, &[b'z'; 90], limits));
    assert_eq!(compressed(&list), "-ccc-");
    list.remove_range(0..2, limits);
    assert_eq!(compressed(&list), "-cc-");
    list.pop(Side::Tail, limits, |_| ());
    list.pop(Side::Tail, limits, |_| ());
    assert_eq!(compressed(&list), "-c-");
    assert_eq!(compressed(&list.clone()), "-c-");
    assert_eq!(words(&list, 0..list.len(), Side::Head).len(), 6);
}

#[test]
fn ranges_and_indices_count_from_both_ends() {
    let list = filled(0..5, BYTES);
    assert_eq!((list.index(0), list.index(-5), list.index(5), list.index(-6)), (Some(0), Some(0), None, None));
    assert_eq!((list.index(i64::MIN), list.index(i64::MAX)), (None, None));
    assert_eq!(list.range(0, -1), 0..5);
    assert_eq!(list.range(-100, 100), 0..5);
    assert_eq!(list.range(3, 1), 0..0);
    assert_eq!(list.range(5, 9), 0..0);
    assert_eq!(list.range(i64::MIN, i64::MAX), 0..5);
    assert_eq!(list.range(i64::MAX, i64::MIN), 0..0);
    assert_eq!(list.range(-2, -2), 3..4);
}

#[test]
fn short_elements_have_little_overhead() {
    let mut list = List::new();
    for _ in 0..100_000 {
        list.push(Side::Tail, b"0123456789", BYTES);
    }
    let memory = list.memory(0) as f64 / 100_000.0;
    assert!(memory < 12.1, "{memory} bytes for each of 10");
}

#[test]
fn head_push_to_a_long_list_moves_nothing() {
    let mut list = filled(0..20_000, BYTES);
    let last_of_first_block = |list: &List| match list.blocks().and_then(|(mut blocks, _)| blocks.next()) {
        Some(BlockView::Packed(view)) => view.bytes().as_ptr_range().end,
        _ => panic!("a list of many blocks"),
    };
    // The first push starts a block, the second adds spare room at its front.
    (0..2).for_each(|_| list.push(Side::Head, b"x", BYTES));
    let before = last_of_first_block(&list);
    (0..300).for_each(|_| list.push(Side::Head, b"element", BYTES));
    assert_eq!(last_of_first_block(&list), before);
    (0..250).for_each(|_| _ = list.pop(Side::Head, BYTES, |_| ()));
    assert_eq!(last_of_first_block(&list), before);
    let expected: Model = std::iter::repeat_n(b"element".to_vec(), 50)
        .chain([b"x".to_vec(), b"x".to_vec()])
        .chain((0..20_000).map(|number: usize| number.to_string().into_bytes()))
        .collect();
    assert_eq!(words(&list, 0..list.len(), Side::Head), expected);
    assert_sound(&list);
    for element in expected {
        assert!(list.pop(Side::Head, BYTES, |popped| owned(popped).to_vec() == element).is_some_and(|same| same));
    }
    assert!(list.is_empty());
}

#[test]
fn head_and_tail_pushes_fill_blocks_equally() {
    let (mut head, mut tail) = (List::new(), List::new());
    for _ in 0..50_000 {
        head.push(Side::Head, b"0123456789", BYTES);
        tail.push(Side::Tail, b"0123456789", BYTES);
    }
    let mut reversed = counts(&head);
    reversed.reverse();
    assert_eq!(reversed, counts(&tail));
    assert!(head.memory(0) < tail.memory(0) + 8192);
}

#[test]
fn saved_list_can_be_rebuilt() {
    for limits in [counted(3), BYTES] {
        for len in [1, 3, 4, 10] {
            let list = filled(0..len, limits);
            let mut builder = Builder::new(limits);
            match (list.listpack(), list.blocks()) {
                (Some(view), _) => builder.listpack(view.into()),
                (None, Some((blocks, _))) => blocks.for_each(|block| match block {
                    BlockView::Packed(view) => builder.listpack(view.into()),
                    BlockView::Plain(element) => builder.plain(element.to_vec()),
                    BlockView::Compressed(..) => unreachable!(),
                }),
                (None, None) => unreachable!(),
            }
            let built = builder.finish();
            assert_eq!(built.encoding(), list.encoding());
            assert_eq!(words(&built, 0..len, Side::Head), words(&list, 0..len, Side::Head));
        }
    }
}

fn elements() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (0..12i32).prop_map(|number| number.to_string().into_bytes()),
        4 => vec(any::<u8>(), 0..20),
        2 => (any::<u8>(), 100usize..1500).prop_map(|(byte, len)| vec![byte; len]),
        1 => (any::<u8>(), 3000usize..9000).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Push(bool, Vec<Vec<u8>>),
    Pop(bool, usize),
    Set(Index, Vec<u8>),
    Insert(Index, bool, Vec<u8>),
    RemoveValue(Index, bool, usize),
    RemoveRange(Index, usize),
    Keep(Index, usize),
    Rotate(bool, bool),
    Find(Index, bool, usize),
    Read(Index, usize, bool),
    Copy,
    Limits(Limits),
}

fn limits() -> impl Strategy<Value = Limits> {
    let sizes = prop_oneof![Just(1), Just(2), Just(3), Just(7), Just(-1), Just(-2), Just(0)];
    (sizes, 0u32..4).prop_map(|(max_listpack_size, compress_depth)| Limits { max_listpack_size, compress_depth })
}

fn steps() -> impl Strategy<Value = Step> {
    let index = any::<Index>;
    prop_oneof![
        8 => (any::<bool>(), vec(elements(), 1..6)).prop_map(|(side, all)| Step::Push(side, all)),
        4 => (any::<bool>(), 1usize..5).prop_map(|(side, count)| Step::Pop(side, count)),
        4 => (index(), elements()).prop_map(|(at, element)| Step::Set(at, element)),
        6 => (index(), any::<bool>(), elements()).prop_map(|(at, side, element)| Step::Insert(at, side, element)),
        2 => (index(), any::<bool>(), 1usize..4).prop_map(|(at, side, most)| Step::RemoveValue(at, side, most)),
        2 => (index(), 0usize..9).prop_map(|(at, count)| Step::RemoveRange(at, count)),
        1 => (index(), 0usize..60).prop_map(|(at, count)| Step::Keep(at, count)),
        2 => (any::<bool>(), any::<bool>()).prop_map(|(from, to)| Step::Rotate(from, to)),
        2 => (index(), any::<bool>(), 0usize..30).prop_map(|(at, side, most)| Step::Find(at, side, most)),
        2 => (index(), 0usize..30, any::<bool>()).prop_map(|(at, count, side)| Step::Read(at, count, side)),
        1 => Just(Step::Copy),
        1 => limits().prop_map(Step::Limits),
    ]
}

fn side(tail: bool) -> Side {
    if tail { Side::Tail } else { Side::Head }
}

fn model_push(model: &mut Model, side: Side, element: Vec<u8>) {
    match side {
        Side::Head => model.insert(0, element),
        Side::Tail => model.push(element),
    }
}

fn model_pop(model: &mut Model, side: Side) -> Option<Vec<u8>> {
    match side {
        Side::Head => (!model.is_empty()).then(|| model.remove(0)),
        Side::Tail => model.pop(),
    }
}

/// Indices of the elements equal to `needle`, in order from that side.
fn places(model: &Model, needle: &[u8], from: Side) -> Vec<usize> {
    let mut all: Vec<_> = (0..model.len()).filter(|i| model[*i] == needle).collect();
    if from == Side::Tail {
        all.reverse();
    }
    all
}

fn follow(list: &mut List, model: &mut Model, limits: &mut Limits, step: Step) {
    match step {
        Step::Push(tail, all) => {
            list.extend(side(tail), all.iter().map(Vec::as_slice), *limits);
            all.into_iter().for_each(|element| model_push(model, side(tail), element));
        }
        Step::Pop(tail, count) => {
            for _ in 0..count {
                let popped = list.pop(side(tail), *limits, |element| owned(element).to_vec());
                assert_eq!(popped, model_pop(model, side(tail)));
            }
        }
        Step::Rotate(from, to) => {
            let seen = list.rotate(side(from), side(to), *limits, |element| element.to_vec());
            let expected = model_pop(model, side(from));
            assert_eq!(seen, expected);
            expected.into_iter().for_each(|element| model_push(model, side(to), element));
        }
        Step::Copy => *list = list.clone(),
        Step::Limits(other) => *limits = other,
        _ if model.is_empty() => {}
        Step::Set(at, element) => {
            let at = at.index(model.len());
            let index = if at.is_multiple_of(2) { at as i64 } else { at as i64 - model.len() as i64 };
            assert!(list.set(index, &element, *limits));
            model[at] = element;
        }
        Step::Insert(at, after, element) => {
            let pivot = model[at.index(model.len())].clone();
            assert!(list.insert(&pivot, side(after), &element, *limits));
            let first = places(model, &pivot, Side::Head)[0];
            model.insert(first + usize::from(after), element);
        }
        Step::RemoveValue(at, tail, most) => {
            let needle = model[at.index(model.len())].clone();
            let mut gone = places(model, &needle, side(tail));
            gone.truncate(most);
            assert_eq!(list.remove_value(&needle, side(tail), most, *limits), gone.len());
            gone.sort_unstable();
            gone.into_iter().rev().for_each(|i| drop(model.remove(i)));
        }
        Step::RemoveRange(at, count) => {
            let start = at.index(model.len());
            let end = model.len().min(start + count);
            list.remove_range(start..end, *limits);
            model.drain(start..end);
        }
        Step::Keep(at, count) => {
            let start = at.index(model.len());
            let end = model.len().min(start + count);
            list.keep_range(start..end, *limits);
            *model = model[start..end].to_vec();
        }
        Step::Find(at, tail, most) => {
            let needle = &model[at.index(model.len())];
            let mut found = Vec::new();
            list.find(needle, side(tail), most, |index| {
                found.push(index);
                ControlFlow::Continue(())
            });
            let mut expected = places(model, needle, side(tail));
            expected.retain(|i| if tail { model.len() - i <= most } else { *i < most });
            assert_eq!(found, expected);
        }
        Step::Read(at, count, tail) => {
            let start = at.index(model.len());
            let end = model.len().min(start + count);
            let mut expected = model[start..end].to_vec();
            if tail {
                expected.reverse();
            }
            assert_eq!(words(list, start..end, side(tail)), expected);
            assert_eq!(list.get(start as i64, |element| owned(element).to_vec()).as_ref(), model.get(start));
        }
    }
}

/// Checks the invariants.
fn assert_sound(list: &List) {
    let Some((blocks, limits)) = list.blocks() else { return };
    if let Form::Blocks(quicklist) = list.form() {
        quicklist.assert_sound();
    }
    let (depth, len) = (limits.compress_depth as usize, blocks.len());
    let mut count = 0;
    for (i, block) in blocks.enumerate() {
        match block {
            BlockView::Plain(_) => count += 1,
            BlockView::Packed(view) => {
                assert!(View::check(view.bytes()).is_ok() && !view.is_empty());
                count += view.len();
            }
            BlockView::Compressed(bytes, bytes_raw) => {
                let raw = crate::encodings::lzf::decompress(bytes, bytes_raw).expect("own compression");
                count += View::check(&raw).expect("it was a listpack").len();
                assert!((depth..len - depth).contains(&i) && depth > 0, "block {i} of {len} with depth {depth}");
            }
        }
    }
    assert_eq!(count, list.len());
    assert!(list.memory(0) > 0 && list.memory(1) > 0);
}

proptest! {
    #[test]
    fn behaves_as_vector(mut limits in limits(), long in any::<bool>(), all in vec(steps(), 1..120)) {
        let (mut list, mut model) = (List::new(), Model::new());
        // Enough blocks that the first one gets spare room at its front.
        for number in 0..if long { 10 } else { 0 } {
            let element = vec![b'a' + number; 2100];
            list.push(Side::Tail, &element, limits);
            model.push(element);
        }
        for step in all {
            follow(&mut list, &mut model, &mut limits, step);
            prop_assert_eq!(&words(&list, 0..model.len(), Side::Head), &model);
            prop_assert_eq!(list.len(), model.len());
            assert_sound(&list);
        }
        let mut backwards = words(&list, 0..model.len(), Side::Tail);
        backwards.reverse();
        prop_assert_eq!(backwards, model);
    }
}
