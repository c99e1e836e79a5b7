//! Dependencies between crates point downwards only.

use crate::{File, Limits, Violation};

/// Where a crate may stand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// A layer, counted from the lowest.
    Layer(usize),
    /// Beside the layers.
    Beside,
}

/// Finds dependencies on crates of the same or a higher layer, and crates that have no layer. Dependencies of tests are
/// free.
pub fn check(files: &[File], limits: &Limits) -> Vec<Violation> {
    let mut violations = Vec::new();
    for file in files {
        let Some(name) = file.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml")) else {
            continue;
        };
        if name.contains('/') {
            continue;
        }
        let Some(place) = place_of(limits, name) else {
            violations.push(Violation::new(
                &file.path,
                1,
                format!("the crate `{name}` has no layer: add it to `Limits::layers` in crates/tidy/src/limits.rs"),
            ));
            continue;
        };
        for (line, dependency) in dependencies(&file.text) {
            if let Some(problem) = problem(limits, (name, place), dependency) {
                violations.push(Violation::new(&file.path, line, problem));
            }
        }
    }
    violations
}

fn place_of(limits: &Limits, name: &str) -> Option<Place> {
    if limits.beside_layers.contains(&name) {
        return Some(Place::Beside);
    }
    limits.layers.iter().position(|layer| layer.contains(&name)).map(Place::Layer)
}

fn problem(limits: &Limits, (name, place): (&str, Place), dependency: &str) -> Option<String> {
    match (place, place_of(limits, dependency)) {
        (Place::Layer(own), Some(Place::Layer(other))) if other < own => None,
        (Place::Layer(own), Some(Place::Layer(other))) if other == own => {
            Some(format!("`{name}` depends on `{dependency}`, which is of the same layer"))
        }
        (Place::Layer(_), Some(Place::Layer(_))) => {
            Some(format!("`{name}` depends on `{dependency}`, which is of a higher layer"))
        }
        (_, Some(Place::Beside)) => Some(format!("`{name}` depends on `{dependency}`, which is for development only")),
        (Place::Beside, Some(_)) => {
            Some(format!("`{name}` stands beside the layers, but depends on `{dependency}`, which has one"))
        }
        (_, None) => Some(format!("`{name}` depends on `{dependency}`, which has no layer")),
    }
}

/// The crates of this repository that a manifest names as dependencies, and the lines where it does.
fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let mut dependencies = Vec::new();
    let mut in_dependencies = false;
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_matches(['[', ']']);
            let parts: Vec<&str> = section.split('.').collect();
            let kind = parts.iter().position(|part| matches!(*part, "dependencies" | "build-dependencies"));
            // `[workspace.dependencies]` says where crates are, not who depends on them.
            in_dependencies = kind.is_some() && parts[0] != "workspace";
            if in_dependencies && let Some(name) = parts.last().and_then(|part| part.strip_prefix("kvick-")) {
                dependencies.push((index + 1, name));
            }
        } else if in_dependencies && !line.starts_with('#') {
            let renamed = line.split_once("package = \"kvick-").and_then(|(_, rest)| rest.split('"').next());
            let named = line.strip_prefix("kvick-").and_then(|rest| rest.split(['.', ' ', '=']).next());
            dependencies.extend(renamed.or(named).map(|name| (index + 1, name)));
        }
    }
    dependencies
}
