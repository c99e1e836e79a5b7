//! The registry of function libraries, and how restored libraries are merged into it.

use super::functions::{Function, Library};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// How FUNCTION RESTORE treats existing libraries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RestorePolicy {
    /// They stay; a restored library with an existing name is an error.
    Append,
    /// Libraries with the same name are replaced.
    Replace,
    /// They are removed.
    Flush,
}

/// The registry of libraries. Library names are case-sensitive, function names are not.
#[derive(Default)]
pub struct Libraries {
    by_name: BTreeMap<String, Library>,
    functions: HashMap<String, Arc<Function>>,
}

impl Libraries {
    /// All libraries, by name.
    pub fn all(&self) -> impl Iterator<Item = &Library> {
        self.by_name.values()
    }

    /// Number of libraries.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True when there are no libraries.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// Number of functions in all libraries.
    pub fn functions(&self) -> usize {
        self.functions.len()
    }

    /// Whether a library of this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Approximate memory in bytes, without the interpreter's.
    pub fn memory(&self) -> usize {
        let of_function = |function: &Arc<Function>| size_of::<Function>() + 2 * function.name.len();
        let of_library = |library: &Library| {
            let functions: usize = library.functions.iter().map(of_function).sum();
            size_of::<Library>() + 2 * library.name.len() + library.code.len() + functions
        };
        self.all().map(of_library).sum()
    }

    /// Finds a function by its case-insensitive name.
    pub fn function(&self, name: &[u8]) -> Option<Arc<Function>> {
        let name = std::str::from_utf8(name).ok()?;
        self.functions.get(name).or_else(|| self.functions.get(&name.to_ascii_lowercase())).cloned()
    }

    /// The library that defines this function.
    pub fn library_of(&self, function: &Arc<Function>) -> Option<&Library> {
        self.all().find(|library| library.functions.iter().any(|own| Arc::ptr_eq(own, function)))
    }

    /// Adds all libraries or none. Returns the libraries removed to make room for them. On an error, whose text has no
    /// code word, nothing has changed and the new libraries are returned.
    pub fn merge(
        &mut self,
        loaded: Vec<Library>,
        policy: RestorePolicy,
    ) -> Result<Vec<Library>, (String, Vec<Library>)> {
        let replaced = |library: &Library| match policy {
            RestorePolicy::Append => false,
            RestorePolicy::Replace => loaded.iter().any(|new| new.name == library.name),
            RestorePolicy::Flush => true,
        };
        if policy == RestorePolicy::Append
            && let Some(taken) = loaded.iter().find(|library| self.contains(&library.name))
        {
            return Err((format!("Library {} already exists", taken.name), loaded));
        }
        let is_kept = |name: &str| {
            let mut kept = self.all().filter(|library| !replaced(library));
            kept.any(|library| library.functions.iter().any(|function| function.key() == name))
        };
        let mut names = std::collections::HashSet::new();
        let mut functions = loaded.iter().flat_map(|library| &library.functions);
        let duplicate = functions.find(|function| {
            let name = function.key();
            (self.functions.contains_key(&name) && is_kept(&name)) || !names.insert(name)
        });
        if let Some(duplicate) = duplicate {
            return Err((format!("Function {} already exists", duplicate.name), loaded));
        }
        let removed: Vec<_> =
            self.all().filter(|library| replaced(library)).map(|library| library.name.clone()).collect();
        let removed = removed.iter().filter_map(|name| self.remove(name)).collect();
        for library in loaded {
            self.functions.extend(library.functions.iter().map(|function| (function.key(), function.clone())));
            self.by_name.insert(library.name.clone(), library);
        }
        Ok(removed)
    }

    /// Removes a library.
    pub fn remove(&mut self, name: &str) -> Option<Library> {
        let library = self.by_name.remove(name)?;
        for function in &library.functions {
            self.functions.remove(&function.key());
        }
        Some(library)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvick_commands::table::CommandTable;
    use kvick_script::{Identity, Kind, Settings, Vm};

    /// Creates a library with these functions, using a real interpreter.
    fn library(name: &str, functions: &[&str]) -> Library {
        let text = || "1.0.0".to_string();
        let identity = Identity { server_name: text(), version: text(), redis_version: text() };
        let mut vm = Vm::new(Kind::Functions, &identity, Settings::default()).expect("there is memory");
        let register = |function: &&str| format!("server.register_function('{function}', function() end)\n");
        let code = format!("#!lua name={name}\n{}", functions.iter().map(register).collect::<String>());
        let table = CommandTable::<()>::new();
        Library::load(&mut vm, table.catalogue(), code.as_bytes(), None, |_| Ok(())).expect("nothing is wrong with it")
    }

    fn error(result: Result<Vec<Library>, (String, Vec<Library>)>) -> String {
        match result {
            Err(error) => error.0,
            Ok(_) => panic!("it should not join"),
        }
    }

    #[test]
    fn libraries_are_added_all_or_none() {
        let mut libraries = Libraries::default();
        assert!(
            libraries.merge(vec![library("one", &["a", "b"]), library("two", &["c"])], RestorePolicy::Append).is_ok()
        );
        assert_eq!(
            error(libraries.merge(vec![library("one", &["x"])], RestorePolicy::Append)),
            "Library one already exists"
        );
        let duplicates = vec![library("three", &["x"]), library("one", &["C"])];
        assert_eq!(error(libraries.merge(duplicates, RestorePolicy::Replace)), "Function C already exists");
        assert_eq!((libraries.len(), libraries.functions()), (2, 3));
        let twice = vec![library("x", &["f"]), library("y", &["F"])];
        assert_eq!(error(libraries.merge(twice, RestorePolicy::Flush)), "Function F already exists");
        assert!(libraries.function(b"A").is_some() && libraries.function(b"x").is_none());
        let replaced =
            libraries.merge(vec![library("one", &["A"])], RestorePolicy::Replace).expect("its own function may go");
        assert_eq!(replaced.len(), 1);
        assert!(libraries.function(b"a").is_some() && libraries.function(b"b").is_none());
        assert_eq!(
            libraries.merge(vec![library("new", &["c"])], RestorePolicy::Flush).map(|replaced| replaced.len()).ok(),
            Some(2)
        );
        assert!(libraries.remove("new").is_some() && libraries.is_empty() && libraries.functions() == 0);
    }
}
