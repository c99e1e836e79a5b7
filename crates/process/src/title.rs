//! The process title that `ps` shows, from `proc-title-template`.
//!
//! The kernel reads the title from the memory in which it placed the process's arguments. [`prepare`] takes over this
//! memory, and that of the environment directly behind it; [`apply`] writes there.
//!
//! Invariant: [`prepare`] is called while the process has one thread and after the arguments have been read, since they
//! are overwritten later; it leaves no environment variable in that memory.

use kvick_config::tables::process::{PROC_TITLE_TEMPLATE, SET_PROC_TITLE};
use kvick_config::{Values, proc_title};
use parking_lot::Mutex;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

static TITLE: Mutex<Option<Title>> = Mutex::new(None);

struct Title {
    /// The address of the memory.
    start: usize,
    /// Its size in bytes.
    len: usize,
    /// The value of `{title}`.
    program: String,
    /// The value of `{config-file}`.
    config_file: Option<PathBuf>,
}

/// Prepares the memory for titles. If it cannot be found, the title stays unchanged.
pub fn prepare(program: &OsStr, config_file: Option<&Path>) {
    let Some((start, len)) = find_memory() else { return };
    for (name, value) in std::env::vars_os() {
        // SAFETY: there is one thread. Setting a variable moves it to memory of its own.
        unsafe { std::env::set_var(name, value) };
    }
    let (program, config_file) = (program.to_string_lossy().into_owned(), config_file.map(Path::to_path_buf));
    *TITLE.lock() = Some(Title { start, len, program, config_file });
}

/// Sets the title that the settings require, at startup and whenever the template, the port or the addresses change.
pub fn apply(values: &Values) {
    let guard = TITLE.lock();
    let Some(title) = guard.as_ref().filter(|_| values.read(SET_PROC_TITLE)) else { return };
    let template = values.read(PROC_TITLE_TEMPLATE);
    if let Some(text) = proc_title::expand(&template, &title.program, title.config_file.as_deref(), values) {
        title.write(text.as_bytes());
    }
}

impl Title {
    fn write(&self, text: &[u8]) {
        let shown = text.len().min(self.len - 1);
        let memory = std::ptr::with_exposed_provenance_mut::<u8>(self.start);
        // SAFETY: the kernel set these bytes aside, writable, for arguments and environment; both have been copied
        // from there (see the module's documentation), so nobody else reads or writes them, and the lock keeps other
        // callers out. `shown` is less than `len`.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), memory, shown);
            std::ptr::write_bytes(memory.add(shown), 0, self.len - shown);
        }
    }
}

/// The address and size of the memory for arguments and environment.
fn find_memory() -> Option<(usize, usize)> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    parse_stat(&stat)
}

/// Parses fields 48 to 51 of `/proc/<pid>/stat`: start and end of the arguments and of the environment. The second
/// field, a name in parentheses, may contain spaces.
fn parse_stat(stat: &str) -> Option<(usize, usize)> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_ascii_whitespace().skip(48 - 3).map(|field| field.parse::<usize>().ok());
    let mut next = || fields.next().flatten();
    let (arg_start, arg_end, env_start, env_end) = (next()?, next()?, next()?, next()?);
    if arg_start == 0 || arg_end <= arg_start {
        return None;
    }
    let end = if env_start == arg_end && env_end > env_start { env_end } else { arg_end };
    Some((arg_start, end - arg_start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_and_environment_are_found_in_proc_stat() {
        let before: String = (4..48).map(|n| format!("{n} ")).collect();
        let stat = |rest: &str| parse_stat(&format!("1 (a ) b) S {before}{rest} 0"));
        assert_eq!(stat("1000 1010 1010 1100"), Some((1000, 100)));
        assert_eq!(stat("1000 1010 2000 2100"), Some((1000, 10)));
        assert_eq!(stat("0 0 0 0"), None);
        assert_eq!(parse_stat("1 (x) S 1 2 3"), None);
        assert!(find_memory().is_some());
    }
}
