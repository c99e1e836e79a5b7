//! Few files of a crate import each other in a circle.
//!
//! A file imports another when it names something in it by a path: `crate::a::b`, `super::b`, `self::b`, or `b::c`
//! where `b` is a child. Declaring a child (`mod b;`) is not an import. Names that the root of a crate re-exports count
//! as what they stand for. Tests may import anything.
//!
//! The files of one family (a module right below the root, with all modules below it) belong together and may form a
//! circle. Once other families take part, no file of the circle can be understood, tested or moved to another crate
//! without all the others.

use crate::limits::exception;
use crate::source::{Token, line_of, test_items, tokens};
use crate::{File, Limits, Violation};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Finds circles of imports that span several families and too many files.
pub fn check(files: &[File], limits: &Limits) -> Vec<Violation> {
    let crates: BTreeSet<&str> = files.iter().filter_map(|file| Some(file.in_crate()?.0)).collect();
    let mut violations = Vec::new();
    for name in crates {
        let excepted = exception(limits.circle_files_max_of, name);
        let files_max = excepted.unwrap_or(limits.circle_files_max);
        let graph = Graph::of_crate(files, name);
        let circles = strongly_connected(&graph.imports);
        let large = circles.iter().filter(|circle| circle.len() > files_max && graph.families(circle).len() > 1);
        violations.extend(large.map(|circle| graph.violation(circle, name, files_max)));
        let is_needed = circles.iter().any(|circle| circle.len() > limits.circle_files_max);
        if excepted.is_some() && !is_needed {
            let message = "no large circle of imports left: remove the exception in crates/tidy/src/limits.rs";
            violations.push(Violation::new(&format!("crates/{name}/Cargo.toml"), 1, message));
        }
    }
    violations
}

/// The modules of a crate that have a file of their own, and what they import.
struct Graph<'a> {
    modules: Vec<Module<'a>>,
    /// What each of them imports.
    imports: Vec<Imports>,
}

/// Modules that are imported, with the line of the first import of each.
type Imports = BTreeMap<usize, usize>;

struct Module<'a> {
    file: &'a File,
    tokens: Vec<Token<'a>>,
    /// Its path below the root of the crate.
    path: Vec<&'a str>,
}

/// What names in the root of a crate stand for: a path below the root, or something in another crate.
type Aliases<'a> = HashMap<&'a str, Option<Vec<&'a str>>>;

impl<'a> Graph<'a> {
    fn of_crate(files: &'a [File], name: &str) -> Graph<'a> {
        let mut modules = modules_of_crate(files, name);
        let test_modules = drop_tests(&mut modules);
        modules.retain(|module| !test_modules.iter().any(|test| module.path.starts_with(test)));
        let index: HashMap<Vec<&str>, usize> =
            modules.iter().enumerate().map(|(at, module)| (module.path.clone(), at)).collect();
        let aliases = index.get(&Vec::new()).map(|root| aliases(&modules[*root], &index)).unwrap_or_default();
        let imports = modules.iter().enumerate().map(|(at, module)| imports(at, module, &index, &aliases)).collect();
        Graph { modules, imports }
    }

    fn family(&self, module: usize) -> &'a str {
        self.modules[module].path.first().copied().unwrap_or("the root")
    }

    fn families(&self, circle: &[usize]) -> BTreeSet<&'a str> {
        circle.iter().map(|module| self.family(*module)).collect()
    }

    fn violation(&self, circle: &[usize], name: &str, files_max: usize) -> Violation {
        // The imports from family to family, with the number of files and the first of them.
        let mut arrows: BTreeMap<(&str, &str), (usize, &str, usize)> = BTreeMap::new();
        for from in circle {
            for (to, line) in self.imports[*from].iter().filter(|(to, _)| circle.contains(to)) {
                let between = (self.family(*from), self.family(*to));
                if between.0 != between.1 {
                    let path = self.modules[*from].file.path.as_str();
                    arrows.entry(between).or_insert((0, path, *line)).0 += 1;
                }
            }
        }
        // Those come first that leave the smallest circle when they are cut.
        let mut arrows: Vec<_> = arrows
            .into_iter()
            .map(|(between, arrow)| (self.largest_without(circle, between), between, arrow))
            .collect();
        arrows.sort();
        let cuts: Vec<String> = arrows
            .iter()
            .take(4)
            .map(|(left, (from, to), (count, path, line))| {
                format!("{from} -> {to}, {count} imports, e.g. {path}:{line} ({left} files left in the circle)")
            })
            .collect();
        let families: Vec<&str> = self.families(circle).into_iter().collect();
        let (path, line) = arrows.first().map_or(("", 1), |(.., (_, path, line))| (*path, *line));
        let message = format!(
            "{} files of crate {name} import each other in a circle, at most {files_max} are allowed. Families: {}. \
             To cut first: {}",
            circle.len(),
            families.join(", "),
            cuts.join("; "),
        );
        Violation::new(path, line, message)
    }

    /// The files in the largest circle that is left of one without the imports from one family to another.
    fn largest_without(&self, circle: &[usize], (from, to): (&str, &str)) -> usize {
        let mut cut = self.imports.clone();
        for module in circle.iter().filter(|module| self.family(**module) == from) {
            cut[*module].retain(|imported, _| self.family(*imported) != to);
        }
        let left = strongly_connected(&cut);
        left.iter().filter(|left| left.iter().any(|module| circle.contains(module))).map(Vec::len).max().unwrap_or(0)
    }
}

/// The modules in the `src` of a crate, without its programs.
fn modules_of_crate<'a>(files: &'a [File], name: &str) -> Vec<Module<'a>> {
    let own = files.iter().filter(|file| file.is_rust()).filter_map(|file| match file.in_crate() {
        Some((of, path)) if of == name && !path.starts_with("bin/") => Some((file, path)),
        _ => None,
    });
    let own: Vec<(&File, &str)> = own.collect();
    let is_library = own.iter().any(|(_, path)| *path == "lib.rs");
    let modules = own.into_iter().filter(|(_, path)| !is_library || *path != "main.rs").map(|(file, path)| {
        let path = path.trim_end_matches(".rs");
        let path = path.strip_suffix("/mod").unwrap_or(path);
        let path = if matches!(path, "lib" | "main") { Vec::new() } else { path.split('/').collect() };
        Module { file, tokens: tokens(&file.code), path }
    });
    modules.collect()
}

/// Drops the tokens of tests, and returns the paths of modules that are declared as tests.
fn drop_tests<'a>(modules: &mut [Module<'a>]) -> Vec<Vec<&'a str>> {
    let mut test_modules = Vec::new();
    for module in modules {
        for item in test_items(&module.tokens).into_iter().rev() {
            let dropped: Vec<Token<'a>> = module.tokens.drain(item).collect();
            if let [.., keyword, name, end] = dropped[..]
                && (keyword.text, end.text) == ("mod", ";")
            {
                test_modules.push([&module.path[..], &[name.text]].concat());
            }
        }
    }
    test_modules
}

/// What the names that the root of a crate imports stand for.
fn aliases<'a>(root: &Module<'a>, index: &HashMap<Vec<&'a str>, usize>) -> Aliases<'a> {
    let mut aliases = Aliases::new();
    for (at, _) in root.tokens.iter().enumerate().filter(|(_, token)| token.text == "use") {
        let (paths, _) = paths(&root.tokens, at + 1);
        for Path { mut parts, name } in paths {
            if matches!(parts.first(), Some(&"crate" | &"self")) {
                parts.remove(0);
            }
            let is_own = parts.first().is_some_and(|first| index.contains_key(&vec![*first]));
            aliases.insert(name, is_own.then_some(parts));
        }
    }
    aliases
}

/// What a module imports.
fn imports<'a>(
    own: usize,
    module: &Module<'a>,
    index: &HashMap<Vec<&'a str>, usize>,
    aliases: &Aliases<'a>,
) -> Imports {
    let mut imports = BTreeMap::new();
    // The modules within the file that the token is in, with the depth of their braces.
    let mut inline: Vec<(usize, &str)> = Vec::new();
    let (mut depth, mut at) = (0, 0);
    let text = |at: usize| module.tokens.get(at).map_or("", |token| token.text);
    while at < module.tokens.len() {
        let start = at;
        at += 1;
        match text(start) {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                inline.pop_if(|(opened, _)| *opened == depth);
            }
            // What the root re-exports is imported by those who name it, not by the root.
            "use" if module.path.is_empty() && start > 0 && matches!(text(start - 1), "pub" | ")") => {
                at = paths(&module.tokens, start + 1).1;
            }
            "mod" if text(start + 2) == "{" => inline.push((depth, text(start + 1))),
            word if text(start + 1) == "::" && (start == 0 || !matches!(text(start - 1), "::" | ".")) => {
                let base: Vec<&str> = module.path.iter().copied().chain(inline.iter().map(|(_, name)| *name)).collect();
                let is_child = || index.contains_key(&[&base[..], &[word]].concat());
                if !matches!(word, "crate" | "super" | "self") && !is_child() {
                    continue;
                }
                let (paths, end) = paths(&module.tokens, start);
                at = end;
                for path in paths {
                    let found = target(&absolute(&base, &path.parts), index, aliases);
                    if let Some(found) = found.filter(|found| *found != own) {
                        let offset = module.tokens[start].offset;
                        imports.entry(found).or_insert_with(|| line_of(&module.file.code, offset));
                    }
                }
            }
            _ => {}
        }
    }
    imports
}

/// A path below the root of the crate, for one that is written in the module `base`.
fn absolute<'a>(base: &[&'a str], parts: &[&'a str]) -> Vec<&'a str> {
    let mut absolute = base.to_vec();
    for part in parts {
        match *part {
            "crate" => absolute.clear(),
            "super" => drop(absolute.pop()),
            "self" => {}
            part => absolute.push(part),
        }
    }
    absolute
}

/// The module with a file that a path below the root leads to; `None` when it leads to another crate.
fn target<'a>(path: &[&'a str], index: &HashMap<Vec<&'a str>, usize>, aliases: &Aliases<'a>) -> Option<usize> {
    let is_below_root = path.first().is_some_and(|first| !index.contains_key(&vec![*first]));
    if is_below_root && let Some(alias) = aliases.get(path[0]) {
        let behind = alias.as_ref()?;
        return longest_prefix(behind, index);
    }
    longest_prefix(path, index)
}

fn longest_prefix(path: &[&str], index: &HashMap<Vec<&str>, usize>) -> Option<usize> {
    (0..=path.len()).rev().find_map(|len| index.get(&path[..len]).copied())
}

/// One path of a `use`, or of an expression, and the name that it has there.
#[derive(Clone)]
struct Path<'a> {
    parts: Vec<&'a str>,
    name: &'a str,
}

/// The paths of the tree that begins at a token, and the token behind it.
fn paths<'a>(tokens: &[Token<'a>], start: usize) -> (Vec<Path<'a>>, usize) {
    let mut found = Vec::new();
    let end = read_paths(tokens, start, &mut Vec::new(), &mut found);
    (found, end)
}

fn read_paths<'a>(tokens: &[Token<'a>], start: usize, parts: &mut Vec<&'a str>, found: &mut Vec<Path<'a>>) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
    let len = parts.len();
    let mut at = start;
    if text(at) == "::" {
        at += 1;
    }
    loop {
        match text(at) {
            "{" => {
                at += 1;
                while !matches!(text(at), "}" | "") {
                    let before = at;
                    at = read_paths(tokens, at, parts, found);
                    if text(at) == "," || at == before {
                        at += 1;
                    }
                }
                parts.truncate(len);
                return at + 1;
            }
            word if word.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_') => {
                parts.push(word);
                at += 1;
                if text(at) == "::" {
                    at += 1;
                    continue;
                }
            }
            "*" => at += 1,
            _ => {}
        }
        break;
    }
    let mut name = parts.last().copied().unwrap_or_default();
    if text(at) == "as" && at > start {
        name = text(at + 1);
        at += 2;
    }
    found.push(Path { parts: parts.clone(), name });
    parts.truncate(len);
    at
}

/// The largest sets of several modules each of which reaches all others of its set by imports (Tarjan's algorithm).
fn strongly_connected(imports: &[Imports]) -> Vec<Vec<usize>> {
    let modules = imports.len();
    let mut search = Search {
        imports,
        order: vec![None; modules],
        low: vec![0; modules],
        on_stack: vec![false; modules],
        stack: Vec::new(),
        visited: 0,
        components: Vec::new(),
    };
    for module in 0..modules {
        if search.order[module].is_none() {
            search.visit(module);
        }
    }
    search.components
}

/// Tarjan's search for strongly connected components.
struct Search<'g> {
    imports: &'g [Imports],
    /// When each module was first visited.
    order: Vec<Option<usize>>,
    /// When the earliest module on the stack that each module reaches was first visited.
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    visited: usize,
    components: Vec<Vec<usize>>,
}

impl Search<'_> {
    fn visit(&mut self, module: usize) {
        let order = self.visited;
        self.visited += 1;
        self.order[module] = Some(order);
        self.low[module] = order;
        self.stack.push(module);
        self.on_stack[module] = true;
        for to in self.imports[module].keys().copied() {
            match self.order[to] {
                None => {
                    self.visit(to);
                    self.low[module] = self.low[module].min(self.low[to]);
                }
                Some(order) if self.on_stack[to] => self.low[module] = self.low[module].min(order),
                Some(_) => {}
            }
        }
        if self.low[module] == order {
            let first = self.stack.iter().rposition(|on_stack| *on_stack == module).unwrap_or_default();
            let component = self.stack.split_off(first);
            component.iter().for_each(|member| self.on_stack[*member] = false);
            if component.len() > 1 {
                self.components.push(component);
            }
        }
    }
}
