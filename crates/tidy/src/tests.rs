//! One bad input for each thing that a rule forbids, beside what it allows.

use crate::source::{test_items, tokens};
use crate::*;

/// The limits of a small repository: `low` and `base` below `high`, with `tools` beside them.
fn limits() -> Limits {
    Limits {
        layers: &[&["low", "base"], &["high"]],
        beside_layers: &["tools"],
        circle_files_max: 2,
        circle_files_max_of: &[],
        file_lines_max: 5,
        crate_lines_max_of: &[],
        columns_max: 40,
        long_lines_max_of: &[],
    }
}

fn files<const N: usize>(files: [(&str, &str); N]) -> Vec<File> {
    files.into_iter().map(|(path, text)| File::new(path, text)).collect()
}

/// The line of the only violation, whose message contains `part`.
#[track_caller]
fn only(violations: Vec<Violation>, path: &str, part: &str) -> usize {
    let [violation] = &violations[..] else { panic!("one violation is expected: {violations:#?}") };
    assert!(violation.path == path && violation.message.contains(part), "{violation}");
    violation.line
}

#[track_caller]
fn none(violations: Vec<Violation>) {
    assert!(violations.is_empty(), "{violations:#?}");
}

fn layers_of(name: &str, manifest: &str) -> Vec<Violation> {
    layers::check(&files([(&format!("crates/{name}/Cargo.toml"), manifest)]), &limits())
}

#[test]
fn dependencies_point_downwards() {
    none(layers_of("high", "[dependencies]\nkvick-low.workspace = true\nlibc = \"1\"\n"));
    none(layers_of("low", "[dependencies]\n# kvick-high = 1\n\n[dev-dependencies]\nkvick-high.workspace = true\n"));
    none(layers_of("low/fuzz", "[dependencies]\nkvick-high = { path = \"..\" }\n"));
}

#[test]
fn an_upward_dependency_is_found_however_it_is_written() {
    let upward = [
        (2, "[dependencies]\nkvick-high.workspace = true\n"),
        (3, "[dependencies]\nlibc = \"1\"\nkvick-high = { path = \"../high\" }\n"),
        (1, "[dependencies.kvick-high]\npath = \"../high\"\n"),
        (2, "[target.'cfg(unix)'.dependencies]\nkvick-high.workspace = true\n"),
        (2, "[build-dependencies]\nkvick-high.workspace = true\n"),
        (2, "[dependencies]\nhigh = { package = \"kvick-high\", path = \"../high\" }\n"),
    ];
    for (line, manifest) in upward {
        assert_eq!(only(layers_of("low", manifest), "crates/low/Cargo.toml", "higher layer"), line, "{manifest}");
    }
}

#[test]
fn dependencies_within_a_layer_or_beside_the_layers_are_found() {
    let on = |name| format!("[dependencies]\nkvick-{name}.workspace = true\n");
    assert_eq!(only(layers_of("low", &on("base")), "crates/low/Cargo.toml", "same layer"), 2);
    assert_eq!(only(layers_of("high", &on("tools")), "crates/high/Cargo.toml", "for development only"), 2);
    assert_eq!(only(layers_of("tools", &on("low")), "crates/tools/Cargo.toml", "beside the layers"), 2);
}

#[test]
fn crates_without_a_layer_are_found() {
    only(layers_of("new", "[package]\n"), "crates/new/Cargo.toml", "has no layer: add it");
    only(layers_of("high", "[dependencies]\nkvick-new = \"1\"\n"), "crates/high/Cargo.toml", "has no layer");
}

/// Three modules of two families; `c` is the text of the last.
fn circle(c: &str) -> Vec<File> {
    files([
        ("crates/low/src/lib.rs", "mod a;\nmod c;\nmod d;\npub use a::Item;\npub use other::Thing;\n"),
        ("crates/low/src/a/mod.rs", "mod b;\nuse b::Part;\n"),
        ("crates/low/src/a/b.rs", "fn f() { crate::c::g() }\n"),
        ("crates/low/src/c.rs", c),
        ("crates/low/src/d.rs", "\nuse crate::{Thing, a::Item};\n"),
    ])
}

#[test]
fn modules_may_be_imported_one_way() {
    let harmless = [
        "use other::a;\n",
        "// crate::a::Item\n/* use crate::a; */ const C: &str = \"crate::a\"; const D: &str = r#\"crate::a \" \"#;\n",
        "#[cfg(test)]\nmod tests { use crate::a::Item; fn f() { { } } }\n",
        "#[cfg(test)]\nuse crate::a::Item;\n",
        "use crate::Thing;\n",
        "use crate::other_item;\n",
    ];
    for c in harmless {
        none(circles::check(&circle(c), &limits()));
    }
}

#[test]
fn a_circle_of_families_is_found_however_it_is_written() {
    let closing = [
        "use crate::a::Item;\n",
        "use crate::{other::D, a::{self, Item}};\n",
        "use super::a::*;\n",
        "use crate::Item;\n",
        "fn f<'a>(_: &'a str) -> char { crate::a::f('\"') }\n",
        "mod inner { use super::super::a::Item; }\n",
        "#[cfg(test)]\nmod tests { }\nuse crate::a::Item;\n",
    ];
    for c in closing {
        let violations = circles::check(&circle(c), &limits());
        let [violation] = &violations[..] else { panic!("{c}: {violations:#?}") };
        assert!(violation.message.starts_with("3 files of crate low"), "{c}: {violation}");
        assert!(violation.message.contains("Families: a, c."), "{violation}");
    }
}

#[test]
fn circles_within_a_family_are_allowed() {
    none(circles::check(
        &files([
            ("crates/low/src/lib.rs", "mod a;\n"),
            ("crates/low/src/a/mod.rs", "mod b;\nmod c;\nuse b::B;\n"),
            ("crates/low/src/a/b.rs", "use super::c::C;\n"),
            ("crates/low/src/a/c.rs", "use super::A;\n"),
        ]),
        &limits(),
    ));
}

#[test]
fn a_crate_may_have_a_limit_of_its_own_while_it_needs_one() {
    let excepted = |files_max| Limits { circle_files_max_of: files_max, ..limits() };
    none(circles::check(&circle("use crate::a::Item;\n"), &excepted(&[("low", 3)])));
    let violations = circles::check(&circle(""), &excepted(&[("low", 3)]));
    only(violations, "crates/low/Cargo.toml", "remove the exception");
}

#[test]
fn long_files_are_found() {
    let check = |text: &str| sizes::check(&files([("crates/low/tests/a.rs", text)]), &limits());
    none(check("1\n2\n3\n4\n5\n"));
    assert_eq!(only(check("1\n2\n3\n4\n5\n6\n"), "crates/low/tests/a.rs", "6 lines, at most 5"), 6);
}

#[test]
fn large_crates_are_found() {
    let limits = Limits { crate_lines_max_of: &[("low", 4)], ..limits() };
    let check = |text: &str| {
        let sources = files([
            ("crates/low/src/lib.rs", "1\n2\n"),
            ("crates/low/src/a/b.rs", text),
            ("crates/low/tests/t.rs", "1\n2\n"),
        ]);
        sizes::check(&sources, &limits)
    };
    none(check("1\n2\n"));
    only(check("1\n2\n3\n"), "crates/low/Cargo.toml", "has 5 lines, at most 4");
}

#[test]
fn long_lines_are_found() {
    let long = "x".repeat(41);
    for path in ["a.rs", "docs/a.md", "kvick.conf", "run.sh", "a.py"] {
        let violations = columns::check(&files([(path, &format!("short\n{long}\n"))]), &limits());
        assert_eq!(only(violations, path, "41 columns, at most 40"), 2);
    }
    let script = format!("#!/bin/sh\n{long}\n");
    assert_eq!(only(columns::check(&files([(".ci/run", &script)]), &limits()), ".ci/run", "41 columns"), 2);
    let link = format!("{} [text](docs/{long}.md) and more", "x".repeat(30));
    assert_eq!(only(columns::check(&files([("a.md", &link)]), &limits()), "a.md", "columns"), 1);
}

#[test]
fn what_cannot_be_wrapped_may_be_long() {
    let long = "x".repeat(41);
    none(columns::check(&files([("a.rs", &"\u{e4}".repeat(40))]), &limits()));
    none(columns::check(&files([("a.rs", &format!("// https://example.org/{long}"))]), &limits()));
    none(columns::check(&files([("a.md", &format!("- [text](docs/{long}.md): more"))]), &limits()));
    none(columns::check(&files([("a.md", &format!("| {long} |\n\n    {long}\n\n```\n{long}\n```\n"))]), &limits()));
    let after = format!("```\n{long}\n```\n{long}\n");
    assert_eq!(only(columns::check(&files([("a.md", &after)]), &limits()), "a.md", "columns"), 4);
}

#[test]
fn a_directory_may_have_long_lines_while_it_needs_them() {
    let excepted = Limits { long_lines_max_of: &[("crates/low", 1)], ..limits() };
    let check = |text: &str| columns::check(&files([("crates/low/src/a.rs", text)]), &excepted);
    let long = "x".repeat(41);
    none(check(&long));
    assert_eq!(check(&format!("{long}\n{long}")).len(), 2);
    only(check("short"), "crates/low", "remove the exception");
    let elsewhere = columns::check(&files([("crates/lower/a.rs", &long), ("crates/low/b.rs", &long)]), &excepted);
    only(elsewhere, "crates/lower/a.rs", "columns");
}

#[test]
fn modules_without_a_header_are_found() {
    let check = |path: &str, text: &str| headers::check(&files([(path, text)]));
    none(check("crates/low/src/a.rs", "//! What it is.\n"));
    none(check("crates/low/src/main.rs", "#![no_std]\n\n//! What it is.\n"));
    none(check("crates/low/tests/a.rs", "use a;\n"));
    for text in ["", "use a;\n//! Late.\n", "// No header.\n", "/// Nor this.\n"] {
        only(check("crates/low/src/a.rs", text), "crates/low/src/a.rs", "no `//!` header");
    }
}

fn unsafe_in(text: &str) -> Vec<Violation> {
    unsafe_reasons::check(&files([("crates/low/src/a.rs", text)]))
}

#[test]
fn unsafe_with_a_reason_is_allowed() {
    let sound = [
        "// SAFETY: it is.\nunsafe { f() }\n",
        "// SAFETY: it is,\n// for two reasons.\n#[attribute]\nunsafe impl A for B {}\n",
        "// SAFETY: it is.\nlet a = f(\n    1,\n    unsafe { g() },\n);\n",
        "let a = unsafe { g() }; // SAFETY: it is.\n",
        "/// Does it.\n///\n/// # Safety\n/// Not on Mondays.\n#[inline]\npub unsafe fn f() {}\n",
        "// SAFETY: it is.\nunsafe impl A for B {\n    unsafe fn f() {}\n}\n",
        "// SAFETY: as declared in C.\nunsafe extern \"C\" { fn f(); }\n",
        "type F = unsafe fn();\ntype G = unsafe extern \"C\" fn(u8);\n",
        "// unsafe { }\nconst A: &str = \"unsafe { }\";\n#[unsafe(no_mangle)]\nfn f() {}\n",
    ];
    for text in sound {
        none(unsafe_in(text));
    }
}

#[test]
fn unsafe_without_a_reason_is_found() {
    let unsound = [
        (1, "unsafe { f() }\n"),
        (3, "// SAFETY: of another one.\nunsafe { f() };\nunsafe { g() };\n"),
        (3, "// SAFETY: too far away.\n\nunsafe { g() };\n"),
        (2, "// Trust me.\nunsafe impl A for B {}\n"),
        (2, "let a = \"SAFETY\";\nlet b = unsafe { f() };\n"),
        (2, "// SAFETY: for the caller to see to.\npub unsafe fn f() {}\n"),
        (2, "/// Does it.\npub(crate) unsafe extern \"C\" fn f() {}\n"),
        (1, "unsafe trait A {}\n"),
        (2, "impl B {\n    unsafe fn f() {}\n}\n"),
        (1, "unsafe extern \"C\" { fn f(); }\n"),
    ];
    for (line, text) in unsound {
        assert_eq!(only(unsafe_in(text), "crates/low/src/a.rs", "`unsafe` without"), line, "{text}");
    }
}

#[test]
fn examples_of_a_crate_without_doctests_are_found() {
    let text = "//! ```text\n//! a\n//! ```\n\n/// ```\n/// f();\n/// ```\nfn f() {}\n";
    let found =
        |manifest| examples::check(&files([("crates/low/Cargo.toml", manifest), ("crates/low/src/a.rs", text)]));
    none(found("[dependencies]\n"));
    let violations = found("[lib]\ndoctest = false\n");
    assert_eq!(only(violations, "crates/low/src/a.rs", "not run"), 5);
}

#[test]
fn comments_and_literals_are_no_code() {
    let text = "a /* b /* c */ d */ 'e' '\\'' b'\"' f \"g\\\"h\" r\"i\\\" j r##\"k\"# l\"## m<'n> br\"o\" var\"p\" 'q: \
        // r\n's'";
    let file = File::new("a.rs", text);
    assert_eq!(file.code.len(), text.len());
    let words: Vec<&str> = tokens(&file.code).iter().map(|token| token.text).collect();
    assert_eq!(words, ["a", "b", "f", "j", "m", "<", "'", "n", ">", "b", "var", "'", "q", ":"]);
}

#[test]
fn items_of_tests_end_where_they_end() {
    let ends = |text: &str| -> Vec<usize> {
        let tokens = tokens(text);
        test_items(&tokens)
            .into_iter()
            .map(|item| tokens.get(item.end).map_or(text.len(), |next| next.offset))
            .collect()
    };
    assert_eq!(ends("#[cfg(test)] mod tests; x"), [24]);
    assert_eq!(ends("#[cfg(test)] #[a] fn f(a: [u8; 2]) { {} } x"), [42]);
    assert_eq!(ends("struct A { #[cfg(test)] b: u8 } x"), [30]);
}
