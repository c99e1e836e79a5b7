//! Every `unsafe` says why it is sound, or what its caller must see to.

use crate::source::{Token, line_of, tokens};
use crate::{File, Violation};
use std::ops::Range;

/// Finds `unsafe` blocks, implementations and extern blocks without a `// SAFETY:` comment, and unsafe functions and
/// traits without a `# Safety` section.
///
/// The comment stands above the line, above the attributes there, or above the statement that the line belongs to. What
/// the functions of a trait require is said in the trait, not where it is implemented.
pub fn check(files: &[File]) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.is_rust() && file.code.contains("unsafe")) {
        let tokens = tokens(&file.code);
        let texts: Vec<&str> = file.text.lines().collect();
        let codes: Vec<&str> = file.code.lines().collect();
        let implementations = trait_implementations(&tokens);
        for (at, token) in tokens.iter().enumerate().filter(|(_, token)| token.text == "unsafe") {
            let next = |ahead: usize| tokens.get(at + ahead).map_or("", |token| token.text);
            let accepted: &[&str] = match (next(1), next(2)) {
                ("fn", "(") => continue,
                ("extern", "fn") if next(3) == "(" => continue,
                ("fn", _) | ("extern", "fn") if implementations.iter().any(|range| range.contains(&at)) => continue,
                ("fn", _) | ("extern", "fn") | ("trait", _) => &["# Safety"],
                ("{" | "impl" | "extern", _) => &["SAFETY:"],
                _ => continue,
            };
            let line = line_of(&file.code, token.offset);
            if !has_reason(&texts, &codes, line - 1, accepted) {
                let message = match accepted {
                    ["SAFETY:"] => "`unsafe` without a `// SAFETY:` comment above it",
                    _ => "`unsafe` without a `# Safety` section in its documentation",
                };
                violations.push(Violation::new(&file.path, line, message));
            }
        }
    }
    violations
}

/// Whether one of the `accepted` marks is in a comment at the line with this index, or in the one above its statement.
fn has_reason(texts: &[&str], codes: &[&str], index: usize, accepted: &[&str]) -> bool {
    let is_marked = |index: usize| accepted.iter().any(|mark| texts[index].contains(mark));
    if is_marked(index) {
        return true;
    }
    let mut above = index;
    let mut in_comment = false;
    while above > 0 {
        above -= 1;
        let code = codes[above].trim();
        let is_comment = code.is_empty() && !texts[above].trim().is_empty();
        if is_comment {
            in_comment = true;
            if is_marked(above) {
                return true;
            }
            continue;
        }
        let is_attribute = code.starts_with("#[");
        let is_earlier_statement = code.is_empty() || code.ends_with([';', '{', '}']);
        if !is_attribute && (in_comment || is_earlier_statement) {
            return false;
        }
    }
    false
}

/// The implementations of traits, as ranges of tokens.
fn trait_implementations(tokens: &[Token<'_>]) -> Vec<Range<usize>> {
    let mut implementations = Vec::new();
    for (start, _) in tokens.iter().enumerate().filter(|(_, token)| token.text == "impl") {
        let Some(head) = tokens[start..].iter().position(|token| matches!(token.text, "{" | ";" | ")")) else { break };
        let body = start + head;
        // `for<'a>` belongs to a bound.
        let is_of_trait = (start..body).any(|at| tokens[at].text == "for" && tokens[at + 1].text != "<");
        if tokens[body].text != "{" || !is_of_trait {
            continue;
        }
        let mut depth = 0;
        let end = (body..tokens.len()).find(|at| {
            match tokens[*at].text {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        implementations.push(body..end.unwrap_or(tokens.len()));
    }
    implementations
}
