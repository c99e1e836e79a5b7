//! Functions, and the libraries that define them.
//!
//! A library is code whose first line names its engine and the library. It is executed once, when it is loaded, and
//! registers its functions.

use crate::conduct::{Conduct, Known};
use kvick_commands::table::Catalogue;
use kvick_script::{Failure, FunctionHandle, FunctionSpec, ScriptFlags, Shebang, Vm};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Maximum run time of a library's code when a client loads it.
pub const LOAD_TIME_MAX: Duration = Duration::from_millis(500);

/// A function.
#[derive(Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Its description, as registered by its library.
    pub description: Option<Vec<u8>>,
    /// Its declared flags.
    pub flags: ScriptFlags,
    /// What is known about the keys it accesses.
    pub known: Known,
    /// Its handle in the shared interpreter.
    pub handle: FunctionHandle,
}

impl Function {
    /// Its lookup key, independent of the name's case.
    pub fn key(&self) -> String {
        self.name.to_ascii_lowercase()
    }
}

/// A library.
#[derive(Debug)]
pub struct Library {
    /// Its name.
    pub name: String,
    /// Its code, including the first line.
    pub code: Arc<[u8]>,
    /// Its functions.
    pub functions: Vec<Arc<Function>>,
}

impl Library {
    /// Runs the code of a library. On an error no function stays in the interpreter. `admit` may refuse the library by
    /// its name before its code runs.
    pub fn load(
        vm: &mut Vm,
        catalogue: &Catalogue,
        code: &[u8],
        time_max: Option<Duration>,
        admit: impl FnOnce(&str) -> Result<(), Failure>,
    ) -> Result<Library, Failure> {
        let (name, body) = read_head(code)?;
        admit(&name)?;
        let registered = vm.load_library(&code[body], time_max)?;
        let functions = registered.into_iter().map(|function| {
            let FunctionSpec { name, description, flags, calls, keeps_state, handle } = function;
            // Its state exists once, in the shared interpreter.
            let known =
                if keeps_state { Known::from(Conduct::Alone) } else { Known::of_code(catalogue, calls.as_deref()) };
            let name = String::from_utf8_lossy(&name).into_owned();
            Arc::new(Function { name, description, flags, known, handle })
        });
        let library = Library { name, code: code.into(), functions: functions.collect() };
        match library.validation_error() {
            None => Ok(library),
            Some(validation_error) => {
                library.drop_from(vm);
                Err(Failure::new(validation_error))
            }
        }
    }

    /// Loads the functions into another interpreter. Returns their names and handles.
    pub fn load_copy(&self, vm: &mut Vm) -> Result<Vec<(String, FunctionHandle)>, Failure> {
        let (_, body) = read_head(&self.code)?;
        let registered = vm.load_library(&self.code[body], None)?.into_iter();
        Ok(registered.map(|function| (String::from_utf8_lossy(&function.name).into_owned(), function.handle)).collect())
    }

    /// Removes its functions from the shared interpreter. None of them runs.
    pub fn drop_from(self, vm: &mut Vm) {
        self.functions.iter().for_each(|function| vm.drop_function(&function.handle));
    }

    /// Checks its functions. Returns the error, if any.
    fn validation_error(&self) -> Option<&'static str> {
        let names: Vec<_> = self.functions.iter().map(|function| function.name.as_str()).collect();
        if names.iter().any(|name| !is_name(name)) {
            return Some(
                "ERR Function names can only contain letters, numbers, or underscores(_) and must be at least one \
                 character long",
            );
        }
        if (1..names.len()).any(|at| names[..at].contains(&names[at])) {
            return Some("ERR Function already exists in the library");
        }
        names.is_empty().then_some("ERR No functions registered")
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Parses the first line of a library: its name, and the range of the code.
fn read_head(code: &[u8]) -> Result<(String, Range<usize>), Failure> {
    let head = Shebang::of_library(code)?;
    let name = String::from_utf8_lossy(&head.name).into_owned();
    if !is_name(&name) {
        return Err(Failure::new(
            "ERR Library names can only contain letters, numbers, or underscores(_) and must be at least one character \
             long",
        ));
    }
    if !head.engine.eq_ignore_ascii_case(b"lua") {
        return Err(Failure::new([b"ERR Engine '", &head.engine[..], b"' not found"].concat()));
    }
    Ok((name, head.code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_needs_a_known_engine_and_a_name() {
        let name = |code: &str| {
            read_head(code.as_bytes()).map(|(name, _)| name).map_err(|validation_error| validation_error.to_string())
        };
        assert_eq!(name("#!LUA name=test\ncode"), Ok("test".into()));
        assert_eq!(name("#! name=test\n"), Err("ERR Engine '' not found".into()));
        assert_eq!(name("#!bad name=test\n"), Err("ERR Engine 'bad' not found".into()));
        assert!(name("#!lua name=a-b\n").is_err_and(|error| error.starts_with("ERR Library names can only")));
    }
}
