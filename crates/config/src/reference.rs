//! Tests that `kvick.conf` and `docs/compatibility.md` match the tables.

use std::collections::BTreeSet;
use std::io;

use super::arguments::Sources;
use super::directive::{Effect, Flags};
use super::explanations;
use super::load::load;
use super::tables::{self, network};
use super::values::Values;

const CONF: &str = include_str!("../kvick.conf");
const DOCS: &str = include_str!("../../../docs/compatibility.md");

/// The lines of `kvick.conf` that show a directive, each with the explanation above it.
fn shown_lines() -> Vec<(&'static str, String)> {
    explanations::all().into_iter().map(|directive| (directive.line, directive.text)).collect()
}

fn name_of(line: &str) -> &str {
    line.split(' ').next().unwrap_or_default()
}

fn effect_of(name: &str) -> Effect {
    let word = || tables::FILE_WORDS.iter().find(|word| word.name == name).map(|word| word.effect);
    let directive = tables::find(name.as_bytes()).map(|found| found.id.directive().effect);
    directive.or_else(word).unwrap_or_else(|| panic!("{name} is no directive"))
}

fn load_lines(lines: &str) -> Values {
    let sources = Sources { options: lines.into(), ..Sources::default() };
    let loaded = load(&sources, &mut io::empty(), &mut |_| Ok(()));
    loaded.unwrap_or_else(|error| panic!("{error}")).values
}

#[test]
fn the_file_loads_as_shipped() {
    assert_eq!(load_lines(CONF), Values::defaults().unwrap());
    assert!(CONF.lines().all(|line| line.is_empty() || line.starts_with('#')));
}

#[test]
fn the_file_mentions_every_visible_directive_once() {
    let mut names: Vec<&str> = shown_lines().iter().map(|(line, _)| name_of(line)).collect();
    names.sort_unstable();
    let visible = tables::ids().map(|id| id.directive()).filter(|directive| !directive.flags.contains(Flags::HIDDEN));
    let mut expected: Vec<&str> = visible.map(|directive| directive.name).collect();
    expected.extend(tables::FILE_WORDS.iter().map(|word| word.name));
    expected.sort_unstable();
    assert_eq!(names, expected);
}

#[test]
fn every_default_in_the_file_is_the_tables() {
    let defaults = Values::defaults().unwrap();
    for (line, _) in shown_lines() {
        let values = load_lines(line);
        if name_of(line) != network::IO_THREADS.id().directive().name {
            assert_eq!(values, defaults, "{line}");
        }
    }
}

#[test]
fn the_file_says_of_each_directive_whether_it_has_an_effect() {
    for (line, about) in shown_lines() {
        let about: Vec<&str> = about.split_whitespace().collect();
        let says_no_effect = about.join(" ").contains("No effect yet.");
        let name = name_of(line);
        assert_eq!(says_no_effect, effect_of(name) == Effect::Kept, "{name}");
        assert!(!about.is_empty(), "{name} is not explained");
    }
}

#[test]
fn the_documentation_lists_the_directives_without_effect() {
    let section = DOCS.split_once("\n## Configuration directives\n").expect("the section is there").1;
    let section = section.split("\n## ").next().unwrap_or_default();
    let mut listed = Vec::new();
    for row in section.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.trim_matches(['|', ' ']).split(" | ").collect();
        let [names, reason] = cells[..] else { panic!("{row} has more than two cells") };
        assert!(reason.len() > 10, "{row} gives no reason");
        // Names are between backquotes, separated by commas.
        listed.extend(names.split('`').skip(1).step_by(2));
    }
    let ineffective_words = tables::FILE_WORDS.iter().filter(|word| word.effect == Effect::Kept).map(|word| word.name);
    let directives = tables::ids().map(|id| id.directive());
    let kept = directives.filter(|directive| directive.effect == Effect::Kept).map(|directive| directive.name);
    let kept: BTreeSet<&str> = kept.chain(ineffective_words).collect();
    assert_eq!(listed.iter().copied().collect::<BTreeSet<_>>(), kept);
    assert_eq!(listed.len(), kept.len(), "each directive is listed once");
}
