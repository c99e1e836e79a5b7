//! Checks of rules that the compiler and the usual tools do not know. Run them with `cargo test -p kvick-tidy`.
//!
//! | rule | what fails |
//! | --- | --- |
//! | [`layers`] | a crate that depends on a crate of the same or a higher layer |
//! | [`circles`] | too many files that import each other in a circle |
//! | [`sizes`] | a source file, or a crate, with too many lines |
//! | [`columns`] | a line that is too long |
//! | [`headers`] | a module without a `//!` header |
//! | [`unsafe_reasons`] | `unsafe` without its reason |
//! | [`examples`] | an example in documentation that is not run |
//!
//! Each rule is a pure function from files to [`Violation`]s. [`Limits::default`] holds all numbers, including those
//! for parts of the repository that do not keep a rule yet: these numbers may be lowered, but not raised.
//! [`tree::read`] reads the files of a checkout; `tests/repository.rs` applies all rules to this one.

pub mod circles;
pub mod columns;
pub mod examples;
pub mod headers;
pub mod layers;
mod limits;
pub mod sizes;
pub mod source;
pub mod tree;
pub mod unsafe_reasons;

pub use limits::Limits;
pub use source::File;

use std::fmt::{self, Display, Formatter};

/// A place where a rule is broken.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Violation {
    /// The file, relative to the root of the repository.
    pub path: String,
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl Violation {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Violation {
        Violation { path: path.to_owned(), line, message: message.into() }
    }
}

impl Display for Violation {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Applies all rules to the files of a repository. The result is sorted by path and line.
pub fn check(files: &[File], limits: &Limits) -> Vec<Violation> {
    let mut violations = [
        layers::check(files, limits),
        circles::check(files, limits),
        sizes::check(files, limits),
        columns::check(files, limits),
        headers::check(files),
        unsafe_reasons::check(files),
        examples::check(files),
    ]
    .concat();
    violations.sort();
    violations
}

#[cfg(test)]
mod tests;
