//! The reference pages in `docs/reference`, which are made from the table of commands and from `kvick.conf`.
//!
//! With `KVICK_WRITE_REFERENCE=1` the tests write the pages instead of comparing them.

use kvick_commands::spec::{Arg, ArgKind};
use kvick_commands::table::CommandInfo;
use kvick_config::directive::{Effect, Flags};
use kvick_config::{explanations, tables};
use kvick_server::commands;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// Columns of a line, as everywhere in the documentation.
const COLUMNS: usize = 120;

/// Compares a page with the file of that name, or writes the file.
fn check(name: &str, page: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var_os("KVICK_WRITE_REFERENCE").is_some() {
        std::fs::write(&path, page).expect("a file that can be written");
        return;
    }
    let present = std::fs::read_to_string(&path).unwrap_or_default();
    let differs = page.lines().zip(present.lines()).find(|(new, old)| new != old);
    assert!(
        present == page,
        "docs/reference/{name} is out of date, {differs:?}; run this test with KVICK_WRITE_REFERENCE=1 to write it"
    );
}

/// Breaks words into lines, which begin with `indent`, later ones with `hanging`.
fn wrap(words: impl Iterator<Item = String>, indent: &str, hanging: &str) -> String {
    let (mut text, mut line) = (String::new(), indent.to_owned());
    let mut is_empty = true;
    for word in words {
        if !is_empty && line.len() + 1 + word.len() > COLUMNS {
            text.push_str(line.trim_end());
            text.push('\n');
            line = hanging.to_owned();
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(&word);
        is_empty = false;
    }
    text + &line + "\n"
}

fn paragraph(text: &str) -> String {
    // The page is Markdown: names in angle brackets would be taken for tags, stars for emphasis.
    let escape = |word: &str| word.replace('<', "\\<").replace('*', "\\*").replace('_', "\\_");
    wrap(text.split_whitespace().map(escape), "", "")
}

/// An argument as manuals write it: `[NX | XX]`, `key [key ...]`.
fn syntax(arg: &Arg) -> String {
    let name = if arg.display.is_empty() { arg.name } else { arg.display };
    let value = match arg.kind {
        ArgKind::PureToken => arg.token.unwrap_or(name).to_owned(),
        ArgKind::OneOf => arg.args.iter().map(syntax).collect::<Vec<_>>().join(" | "),
        ArgKind::Block => arg.args.iter().map(syntax).collect::<Vec<_>>().join(" "),
        _ => name.to_owned(),
    };
    let is_choice = arg.kind == ArgKind::OneOf && arg.args.len() > 1;
    let value = if is_choice && !arg.optional { format!("<{value}>") } else { value };
    let token = arg.token.filter(|_| arg.kind != ArgKind::PureToken).map(|token| format!("{token} "));
    let token = token.unwrap_or_default();
    let value = match (arg.multiple, arg.multiple_token) {
        (false, _) => format!("{token}{value}"),
        (true, false) => format!("{token}{value} [{value} ...]"),
        (true, true) => format!("{token}{value} [{token}{value} ...]"),
    };
    if arg.optional { format!("[{value}]") } else { value }
}

fn describe(command: &CommandInfo) -> String {
    let spec = command.spec;
    let name = command.full_name.replace('|', " ").to_ascii_uppercase();
    let mut page = format!("### {name}\n\n");
    let words = std::iter::once(name).chain(spec.args.iter().map(syntax)).flat_map(|part| {
        let words: Vec<String> = part.split(' ').map(str::to_owned).collect();
        words
    });
    page.push_str(&wrap(words, "    ", "        "));
    let mut about =
        format!("{} Complexity: {}. Since {}.", spec.summary, spec.complexity.trim_end_matches('.'), spec.since);
    if let Some(deprecation) = &spec.deprecated {
        let _ = write!(about, " Deprecated since {}: use {}.", deprecation.since, deprecation.instead);
    }
    for (version, change) in spec.history {
        let _ = write!(about, " {version}: {change}");
    }
    let _ = write!(page, "\n{}\n", paragraph(&about));
    let categories: Vec<String> = spec.categories().names().map(|name| format!("@{name}")).collect();
    let _ = writeln!(page, "{}", wrap(categories.join(", ").split(' ').map(str::to_owned), "ACL: ", ""));
    page
}

#[test]
fn commands_are_listed() {
    let table = commands::table();
    let mut groups: BTreeMap<&str, Vec<&CommandInfo>> = BTreeMap::new();
    for command in table.catalogue().all().iter().filter(|command| !command.spec.internal) {
        // A container without a form of its own has only subcommands.
        if command.subcommands.is_empty() || command.data.is_some() {
            groups.entry(command.spec.group.name()).or_default().push(command);
        }
    }
    let mut page =
        "# Commands\n\nAll commands by group, from the table that `COMMAND DOCS` shows. Versions are those of \
                    Valkey and Redis.\n[Compatibility](../compatibility.md) names the differences from Valkey.\n\n"
            .to_owned();
    for (group, commands) in &mut groups {
        commands.sort_by(|one, other| one.full_name.cmp(&other.full_name));
        let _ = write!(page, "## {group}\n\n");
        commands.iter().for_each(|command| page.push_str(&describe(command)));
    }
    assert!(groups.values().map(Vec::len).sum::<usize>() > 350);
    check("commands.md", &(page.trim_end().to_owned() + "\n"));
}

#[test]
fn directives_are_listed() {
    let mut page =
        "# Directives\n\nAll directives of the configuration, from `kvick.conf`, which explains the format of \
                    the file. A directive\nis also an option of the command line: `--port 7777`.\n"
            .to_owned();
    let (mut section, mut previous) = ("", String::new());
    let all = explanations::all();
    for explanation in &all {
        if explanation.section != section {
            section = explanation.section;
            let _ = write!(page, "\n## {section}\n");
        }
        let name = explanation.name();
        let _ = write!(page, "\n### {name}\n\n    {}\n\n", explanation.line);
        let text = &explanation.text;
        page.push_str(&if *text == previous { "As above.\n".to_owned() } else { paragraph(text) });
        previous.clone_from(text);
        let Some(found) = tables::find(name.as_bytes()) else { continue };
        let directive = found.id.directive();
        let mut remarks = Vec::new();
        if directive.flags.contains(Flags::IMMUTABLE) {
            remarks.push("CONFIG SET cannot change it.".to_owned());
        }
        if directive.flags.contains(Flags::PROTECTED) {
            remarks.push("CONFIG SET needs `enable-protected-configs`.".to_owned());
        }
        if let Some(alias) = directive.alias {
            remarks.push(format!("Other name: `{alias}`."));
        }
        if directive.effect == Effect::Kept && !text.contains("No effect yet") {
            remarks.push("No effect yet.".to_owned());
        }
        if !remarks.is_empty() {
            let _ = write!(page, "\n{}\n", remarks.join(" "));
        }
    }
    check("directives.md", &page);
}
