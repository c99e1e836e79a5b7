//! Tests of the tree against an ordered map.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A tree and a model: scores are whole here, so that they can be keys.
#[derive(Default)]
struct Both {
    tree: Tree,
    model: BTreeMap<(i64, Vec<u8>), Element>,
}

impl Both {
    fn insert(&mut self, score: i64, member: &[u8]) {
        if !self.model.contains_key(&(score, member.to_vec())) {
            let element = Element::new(score as f64, member);
            self.tree.insert(element);
            self.model.insert((score, member.to_vec()), element);
        }
    }

    fn nth(&self, n: usize) -> Option<((i64, Vec<u8>), Element)> {
        let (key, element) = self.model.iter().nth(n)?;
        Some((key.clone(), *element))
    }

    fn remove_nth(&mut self, n: usize) {
        if let Some((key, element)) = self.nth(n) {
            self.tree.remove(element);
            self.model.remove(&key);
            element.free();
        }
    }

    fn remove_range(&mut self, rank: usize, count: usize) {
        let expected: Vec<_> = self.model.iter().skip(rank).take(count).map(|(k, e)| (k.clone(), *e)).collect();
        let mut removed = Vec::new();
        self.tree.remove_range(rank, expected.len(), |element| removed.push(element));
        assert_eq!(removed, expected.iter().map(|(_, element)| *element).collect::<Vec<_>>());
        for (key, element) in expected {
            self.model.remove(&key);
            element.free();
        }
    }

    fn rescore_nth(&mut self, n: usize, score: i64) {
        let Some(((_, member), element)) = self.nth(n) else { return };
        if self.model.contains_key(&(score, member.clone())) {
            return;
        }
        self.tree.rescore(element, score as f64);
        self.model.retain(|_, other| *other != element);
        self.model.insert((score, member), element);
    }

    fn check(&self) {
        self.tree.check();
        let mut position = self.tree.at(0);
        for (rank, element) in self.model.values().enumerate() {
            let at = position.expect("as many as in the model");
            assert_eq!(self.tree.get(at), *element, "number {rank}");
            position = self.tree.next(at);
        }
        assert!(position.is_none() && self.tree.len() == self.model.len());
    }

    /// Ranks both ways, for some elements.
    fn check_ranks(&self, step: usize) {
        for (rank, ((score, member), element)) in self.model.iter().enumerate().step_by(step) {
            assert_eq!(self.tree.rank_of(*element), rank);
            assert_eq!(self.tree.at(rank).map(|at| self.tree.get(at)), Some(*element));
            let cut = Cut::Element { score: *score as f64, member, behind: true };
            assert_eq!((self.tree.rank(&Cut::of(*element)), self.tree.rank(&cut)), (rank, rank + 1));
            let score_cut = |behind| self.tree.rank(&Cut::Score { score: *score as f64, behind });
            let below = self.model.range(..(*score, Vec::new())).count();
            let up_to = self.model.range(..(*score + 1, Vec::new())).count();
            assert_eq!((score_cut(false), score_cut(true)), (below, up_to));
        }
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        self.model.values().for_each(|element| element.free());
    }
}

fn name(n: usize) -> Vec<u8> {
    format!("member:{n:06}").into_bytes()
}

#[test]
fn ascending_insertion_fills_leaves() {
    let mut both = Both::default();
    let count = if cfg!(miri) { 1_000 } else { 30_000 };
    for n in 0..count {
        both.insert(n as i64 / 3, &name(n));
    }
    both.check();
    both.check_ranks(97);
    assert_eq!(both.tree.leaves, count.div_ceil(LEAF));
}

#[test]
fn descending_insertion_fills_leaves() {
    let mut both = Both::default();
    let count = if cfg!(miri) { 1_000 } else { 30_000 };
    for n in (0..count).rev() {
        both.insert(7, &name(n));
    }
    both.check();
    both.check_ranks(97);
    assert_eq!(both.tree.leaves, count.div_ceil(LEAF));
}

#[test]
fn random_order_insertion_wastes_little_space() {
    let mut both = Both::default();
    let count = if cfg!(miri) { 1_000 } else { 60_000 };
    for n in 0..count {
        let mixed = (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        both.insert(mixed as i64, &name(n));
    }
    both.check();
    let fill = both.tree.len() as f64 / (both.tree.leaves * LEAF) as f64;
    assert!(fill > 0.78, "{fill}");
}

#[test]
fn emptied_tree_frees_all_nodes() {
    for from_end in [false, true] {
        let mut both = Both::default();
        let count = if cfg!(miri) { 500 } else { 12_000 };
        (0..count).for_each(|n| both.insert(0, &name(n * 7919 % count)));
        while both.tree.len() > 0 {
            let rank = if from_end { both.tree.len() - 1 } else { 0 };
            both.remove_range(rank, 1);
            if both.tree.len() % 501 == 0 {
                both.check();
            }
        }
        both.check();
    }
}

#[test]
fn empty_tree_queries() {
    let mut tree = Tree::default();
    assert_eq!((tree.rank(&Cut::End), tree.len(), tree.memory()), (0, 0, 0));
    assert!(tree.at(0).is_none());
    tree.remove_range(0, 0, |_| panic!("nothing to remove"));
    tree.check();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 1 } else { 48 }, ..ProptestConfig::default() })]

    #[test]
    fn tree_behaves_as_ordered_map(
        seed in any::<u64>(),
        scores in 1i64..2_000,
        steps in 100usize..4_000,
        favour in 2u64..9,
    ) {
        let mut state = seed | 1;
        let mut draw = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below.max(1) as u64) as usize
        };
        let mut both = Both::default();
        for step in 0..steps {
            let len = both.tree.len();
            // The first half mostly grows, the second mostly shrinks.
            let grows = (draw(10) as u64) < if step < steps / 2 { favour } else { 10 - favour };
            match draw(12) {
                0 => both.remove_range(draw(len), draw(len / 2 + 1)),
                1..=2 => both.rescore_nth(draw(len), draw(scores as usize) as i64),
                _ if grows => both.insert(draw(scores as usize) as i64, &name(draw(5_000))),
                3..=5 => both.remove_nth(draw(len)),
                _ => (0..40).for_each(|_| both.insert(draw(scores as usize) as i64, &name(draw(5_000)))),
            }
            if step % 256 == 0 {
                both.check();
            }
        }
        both.check();
        both.check_ranks(both.model.len() / 50 + 1);
    }
}
