//! Loads the configuration at startup: a file, then standard input, then the options of the command line.
//!
//! Lines are processed in order. A later line overrides an earlier one, with these exceptions:
//! - `save` lines after the first add save points, until one with an empty argument removes all;
//! - `client-output-buffer-limit` changes only the classes that it names;
//! - all lines of `include`, `rename-command`, `user`, `loadmodule` and module settings take effect.
//!
//! `dir` takes effect from its line on: later relative paths, including those of `include`, are relative to it.

use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::arguments::Sources;
use super::directive::{Flags, Id};
use super::glob;
use super::quoting::split_args;
use super::shapes::SavePoints;
use super::tables::{self, cluster, logging, persistence, process, replication};
use super::value::{Refusal, Setting};
use super::values::Values;

/// Maximum nesting depth of included files.
const INCLUDE_DEPTH_MAX: usize = 64;

/// A line that is not a setting, but is processed by another part of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// `rename-command <from> <to>`; an empty `to` removes the command.
    RenameCommand {
        /// The name of a command, in any case.
        from: Vec<u8>,
        /// Its new name.
        to: Vec<u8>,
    },
    /// `user <name> <rules>...`: the name, then the rules.
    User(Vec<Vec<u8>>),
    /// `loadmodule <path> <arguments>...`: the path, then the arguments.
    LoadModule(Vec<Vec<u8>>),
    /// `<module>.<setting> <value>`.
    ModuleSetting {
        /// Module and setting, in lower case.
        name: Vec<u8>,
        /// The arguments, separated by blanks.
        value: Vec<u8>,
    },
}

/// The source of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    File(PathBuf),
    /// Standard input.
    Stdin,
    /// The options of the command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Stdin => f.write_str("standard input"),
            Self::CommandLine => f.write_str("the command line"),
        }
    }
}

/// The reason why the configuration could not be loaded. The text is printed to standard error, and the process exits
/// with status 1.
#[derive(Debug)]
pub enum LoadError {
    /// A file cannot be read.
    Open {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: Refusal,
    },
    /// A line is invalid.
    Line {
        /// Its source.
        origin: Origin,
        /// Line number, starting at 1.
        number: usize,
        /// The line without surrounding blanks.
        line: Vec<u8>,
        /// The error.
        reason: Refusal,
    },
    /// The lines are valid individually but not in combination.
    Whole(Refusal),
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Open { path, reason } = self {
            return write!(f, "Fatal error, can't open config file '{}': {reason}", path.display());
        }
        writeln!(f, "\n*** FATAL CONFIG FILE ERROR (Version {}) ***", kvick_runtime::version::VALKEY)?;
        match self {
            Self::Line { origin, number, line, reason } => {
                writeln!(f, "Reading the configuration file, at line {number} of {origin}")?;
                writeln!(f, ">>> '{}'", String::from_utf8_lossy(&without_passwords(line)))?;
                write!(f, "{reason}")
            }
            Self::Whole(reason) | Self::Open { reason, .. } => write!(f, "{reason}"),
        }
    }
}

/// The line as error messages show it: passwords in `user` lines are removed.
fn without_passwords(line: &[u8]) -> Vec<u8> {
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    if !words[0].eq_ignore_ascii_case(b"user") {
        return line.to_vec();
    }
    let hide = |word: &&[u8]| word.iter().find(|byte| !matches!(byte, b'"' | b'\'')).is_some_and(|b| b"><".contains(b));
    let shown: Vec<&[u8]> = words.into_iter().map(|word| if hide(&word) { b"(redacted)" } else { word }).collect();
    shown.join(&b' ')
}

impl std::error::Error for LoadError {}

/// The loaded configuration.
#[derive(Debug)]
pub struct Loaded {
    /// The values of all settings.
    pub values: Values,
    /// The absolute path of the file that CONFIG REWRITE writes.
    pub file: Option<PathBuf>,
}

/// Loads a configuration from its sources. `stdin` is read if the sources select it. `accept` receives each [`Entry`]
/// in order; an error that it returns is reported as an error of that line.
pub fn load(
    sources: &Sources,
    stdin: &mut dyn Read,
    accept: &mut dyn FnMut(Entry) -> Result<(), Refusal>,
) -> Result<Loaded, LoadError> {
    let unplaced = |error: io::Error| LoadError::Whole(error.into());
    let values = Values::defaults().map_err(unplaced)?;
    let file = sources.file.as_deref().map(std::path::absolute).transpose().map_err(unplaced)?;
    let mut reader = Reader { values, save_seen: false, depth: 0, accept };
    if let Some(file) = &file {
        reader.read_files(file)?;
    }
    if sources.stdin {
        let mut lines = Vec::new();
        stdin.read_to_end(&mut lines).map_err(unplaced)?;
        reader.read_lines(&lines, &Origin::Stdin)?;
    }
    reader.read_lines(&sources.options, &Origin::CommandLine)?;
    check_consistency(&reader.values).map_err(LoadError::Whole)?;
    Ok(Loaded { values: reader.values, file })
}

/// Checks conditions that involve several settings.
fn check_consistency(values: &Values) -> Result<(), Refusal> {
    let logfile = values.read(logging::LOGFILE);
    if !logfile.is_empty() {
        let path = values.read(process::DIR).resolve(&logfile);
        let opened = fs::OpenOptions::new().append(true).create(true).open(path);
        opened.map_err(|error| Refusal::new(format!("Can't open the log file: {}", Refusal::from(error))))?;
    }
    if values.read(cluster::CLUSTER_ENABLED) && values.read(replication::REPLICAOF).is_some() {
        return Err(Refusal::new("replicaof directive not allowed in cluster mode"));
    }
    Ok(())
}

/// The error of a line: its own, or one in a file that it includes.
enum Stop {
    Here(Refusal),
    Included(LoadError),
}

impl From<Refusal> for Stop {
    fn from(reason: Refusal) -> Self {
        Self::Here(reason)
    }
}

struct Reader<'a> {
    values: Values,
    /// Whether a `save` line was read, so that the next one adds to it.
    save_seen: bool,
    depth: usize,
    accept: &'a mut dyn FnMut(Entry) -> Result<(), Refusal>,
}

impl Reader<'_> {
    /// Reads a file, or all files that match a pattern. A pattern may match none.
    fn read_files(&mut self, path: &Path) -> Result<(), LoadError> {
        let open_error = |path: &Path, error: io::Error| LoadError::Open { path: path.into(), reason: error.into() };
        let files = if glob::is_pattern(path.as_os_str().as_bytes()) {
            glob::expand(path).map_err(|error| open_error(path, error))?
        } else {
            vec![path.to_owned()]
        };
        for file in files {
            let lines = fs::read(&file).map_err(|error| open_error(&file, error))?;
            self.read_lines(&lines, &Origin::File(file))?;
        }
        Ok(())
    }

    fn read_lines(&mut self, lines: &[u8], origin: &Origin) -> Result<(), LoadError> {
        for (index, line) in lines.split(|byte| *byte == b'\n').enumerate() {
            let line = trim(line);
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            self.read_line(line).map_err(|stop| match stop {
                Stop::Included(error) => error,
                Stop::Here(reason) => {
                    LoadError::Line { origin: origin.clone(), number: index + 1, line: line.into(), reason }
                }
            })?;
        }
        Ok(())
    }

    fn read_line(&mut self, line: &[u8]) -> Result<(), Stop> {
        let mut args = split_args(line).ok_or(Refusal::new("Unbalanced quotes in configuration line"))?;
        if args.is_empty() {
            return Ok(());
        }
        let name = args.remove(0).to_ascii_lowercase();
        match tables::find(&name) {
            Some(found) => Ok(self.set(found.id, &args)?),
            None if args.len() == 1 && tables::RETIRED.iter().any(|retired| retired.as_bytes() == name) => Ok(()),
            None => self.read_entry(name, args),
        }
    }

    fn set(&mut self, id: Id, args: &[Vec<u8>]) -> Result<(), Refusal> {
        let several = id.directive().flags.contains(Flags::MULTI_ARG);
        let split;
        let args = match args {
            // `"arg1 arg2"` in quotes is equivalent to `arg1 arg2`; an empty argument remains a single one.
            [unplaced] if several && !unplaced.is_empty() => {
                split = split_args(unplaced).ok_or(Refusal::new("Unbalanced quotes in configuration line"))?;
                &split
            }
            args => args,
        };
        let borrowed: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        if !several && borrowed.len() != 1 {
            return Err(Refusal::new("wrong number of arguments"));
        }
        let mut value = self.values.parse(id, &borrowed)?;
        if id == persistence::SAVE.id() {
            let takes_all_away = matches!(borrowed[..], [[]]);
            if self.save_seen && !takes_all_away {
                let before = self.values.read(persistence::SAVE);
                value = before.followed_by(&SavePoints::of(&value)).into_value();
            }
            self.save_seen = true;
        }
        self.values.put(id, value);
        Ok(())
    }

    /// Processes a line that is not a setting.
    fn read_entry(&mut self, name: Vec<u8>, mut args: Vec<Vec<u8>>) -> Result<(), Stop> {
        let entry = match (name.as_slice(), args.as_mut_slice()) {
            (b"include", [path]) => return self.include(path),
            (b"rename-command", [from, to]) => {
                Entry::RenameCommand { from: std::mem::take(from), to: std::mem::take(to) }
            }
            (b"user", [_, ..]) => Entry::User(args),
            (b"loadmodule", [_, ..]) => Entry::LoadModule(args),
            (b"sentinel", []) => {
                return Err(Refusal::new("this server does not run as Sentinel, use valkey-sentinel").into());
            }
            (b"sentinel", _) => {
                return Err(Refusal::new("sentinel directive while not in sentinel mode").into());
            }
            (name, args) if name.contains(&b'.') => {
                if args.is_empty() {
                    return Err(Refusal::new("Module config specified without value").into());
                }
                Entry::ModuleSetting { name: name.into(), value: args.join(&b' ') }
            }
            _ => return Err(Refusal::new("Bad directive or wrong number of arguments").into()),
        };
        Ok((self.accept)(entry)?)
    }

    fn include(&mut self, path: &[u8]) -> Result<(), Stop> {
        if self.depth == INCLUDE_DEPTH_MAX {
            return Err(Refusal::new("Configuration files include each other too deeply").into());
        }
        let path = self.values.read(process::DIR).resolve(path);
        self.depth += 1;
        let read = self.read_files(&path).map_err(Stop::Included);
        self.depth -= 1;
        read
    }
}

/// Removes blanks at both ends.
pub fn trim(line: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    let start = line.iter().position(|byte| !blank(byte)).unwrap_or(line.len());
    let end = line.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &line[start..end]
}

#[cfg(test)]
mod tests {
    use super::super::tables::{network, types};
    use super::*;

    struct Case {
        dir: tempfile::TempDir,
        entries: Vec<Entry>,
    }

    impl Case {
        fn new() -> Self {
            Self { dir: tempfile::tempdir().unwrap(), entries: Vec::new() }
        }

        fn path(&self, name: &str) -> PathBuf {
            self.dir.path().canonicalize().unwrap().join(name)
        }

        fn write(&self, name: &str, lines: &str) -> PathBuf {
            fs::write(self.path(name), lines).unwrap();
            self.path(name)
        }

        fn load_all(&mut self, sources: Sources, stdin: &str) -> Result<Loaded, String> {
            let mut accept = |entry: Entry| {
                if matches!(&entry, Entry::RenameCommand { from, .. } if from == b"nosuch") {
                    return Err(Refusal::new("No such command in rename-command"));
                }
                self.entries.push(entry);
                Ok(())
            };
            load(&sources, &mut stdin.as_bytes(), &mut accept).map_err(|error| error.to_string())
        }

        /// Loads these lines as a file.
        fn load(&mut self, lines: &str) -> Result<Values, String> {
            let file = Some(self.write("kvick.conf", lines));
            self.load_all(Sources { file, ..Sources::default() }, "").map(|loaded| loaded.values)
        }
    }

    fn shown(lines: &str, name: &str) -> String {
        let values = Case::new().load(lines).unwrap();
        String::from_utf8(values.show(tables::find(name.as_bytes()).unwrap().id)).unwrap()
    }

    /// The reason why a single line is refused.
    fn refused(line: &str) -> String {
        Case::new().load(line).unwrap_err().lines().last().unwrap().to_owned()
    }

    #[test]
    fn comments_blank_lines_and_case_do_not_matter() {
        assert_eq!(shown("# port 1\n\n \t\r\n  PORT  7 \r\n#x", "port"), "7");
    }

    #[test]
    fn quoted_arguments_are_read() {
        assert_eq!(shown(r#"requirepass "a \"b\" \x63""#, "requirepass"), r#"a "b" c"#);
        assert_eq!(shown("proc-title-template '{title} x'", "proc-title-template"), "{title} x");
    }

    #[test]
    fn errors_name_file_line_and_reason() {
        let mut case = Case::new();
        let text = case.load("\nport 1\n  port 1 2  \n").unwrap_err();
        let path = case.path("kvick.conf");
        let expected = format!(
            "\n*** FATAL CONFIG FILE ERROR (Version 9.1.2) ***\n\
             Reading the configuration file, at line 3 of {}\n>>> 'port 1 2'\nwrong number of arguments",
            path.display()
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn malformed_lines_are_refused() {
        let cases = [
            ("nosuch 1", "Bad directive or wrong number of arguments"),
            ("port=1", "Bad directive or wrong number of arguments"),
            ("include", "Bad directive or wrong number of arguments"),
            ("rename-command get", "Bad directive or wrong number of arguments"),
            ("dynamic-hz", "Bad directive or wrong number of arguments"),
            ("port \"1", "Unbalanced quotes in configuration line"),
            ("bind '\"1'", "Unbalanced quotes in configuration line"),
            ("port", "wrong number of arguments"),
            ("port x", "argument couldn't be parsed into an integer"),
            ("port -1", "argument must be between 0 and 65535 inclusive"),
            ("unixsocketperm 8", "argument couldn't be parsed as an octal number"),
            ("replicaof h", "wrong number of arguments"),
            ("replicaof h x", "Invalid primary port"),
            (
                "shutdown-on-sigint",
                "argument(s) must be one of the following: default, save, nosave, now, force, safe, failover",
            ),
            ("notify-keyspace-events a b", "wrong number of arguments"),
            ("dbfilename a/b", "dbfilename can't be a path, just a filename"),
            ("dir /nosuch/folder", "No such file or directory"),
            ("mod.setting", "Module config specified without value"),
            ("sentinel monitor x", "sentinel directive while not in sentinel mode"),
            ("rename-command nosuch x", "No such command in rename-command"),
            ("cluster-enabled yes\nreplicaof h 1", "replicaof directive not allowed in cluster mode"),
            ("logfile /nosuch/folder/log", "Can't open the log file: No such file or directory"),
        ];
        for (line, reason) in cases {
            assert_eq!(refused(line), reason, "{line}");
        }
    }

    #[test]
    fn retired_directives_are_ignored() {
        let lines: String = tables::RETIRED.iter().map(|name| format!("{name} yes\n")).collect();
        assert_eq!(Case::new().load(&lines).unwrap(), Values::defaults().unwrap());
    }

    #[test]
    fn save_lines_add_up_until_one_is_empty() {
        assert_eq!(shown("", "save"), "3600 1 300 100 60 10000");
        assert_eq!(shown("save 900 1\nsave 100 100", "save"), "900 1 100 100");
        assert_eq!(shown("save '900 1 60 5'", "save"), "900 1 60 5");
        assert_eq!(shown("save ''", "save"), "");
        assert_eq!(shown("save 900 1\nsave ''\nsave 10 1", "save"), "10 1");
    }

    #[test]
    fn later_lines_replace_earlier_ones() {
        assert_eq!(shown("port 1\nport 2", "port"), "2");
        assert_eq!(
            shown("hash-max-ziplist-entries 20\nhash-max-listpack-entries 21", "hash-max-ziplist-entries"),
            "21"
        );
        assert_eq!(shown("bind 1.1.1.1\nbind 2.2.2.2 3.3.3.3", "bind"), "2.2.2.2 3.3.3.3");
        assert_eq!(shown("bind ''", "bind"), "");
    }

    #[test]
    fn output_limits_change_class_by_class() {
        let lines = "client-output-buffer-limit replica 1kb 2 3\nclient-output-buffer-limit normal 4 5 6";
        let expected = "normal 4 5 6 slave 1024 2 3 pubsub 33554432 8388608 60";
        assert_eq!(shown(lines, "client-output-buffer-limit"), expected);
    }

    #[test]
    fn options_override_standard_input_which_overrides_the_file() {
        let mut case = Case::new();
        let file = Some(case.write("kvick.conf", "port 1\ntimeout 1\nhz 1"));
        let sources = Sources { file: file.clone(), stdin: true, options: b"port \"3\" \nsave \"\"".to_vec() };
        let loaded = case.load_all(sources, "port 2\ntimeout 2").unwrap();
        let read = |key| loaded.values.read(key);
        assert_eq!((loaded.values.read(network::PORT), read(network::TIMEOUT), read(process::HZ)), (3, 2, 1));
        assert_eq!(loaded.file, file);
    }

    #[test]
    fn errors_outside_files_name_their_source() {
        let mut case = Case::new();
        let sources = Sources { options: b"port \"6379\" \"6380\" ".to_vec(), ..Sources::default() };
        let text = case.load_all(sources, "").unwrap_err();
        assert!(text.contains("at line 1 of the command line\n>>> 'port \"6379\" \"6380\"'\nwrong"), "{text}");
        let text = case.load_all(Sources { stdin: true, ..Sources::default() }, "\nx").unwrap_err();
        assert!(text.contains("at line 2 of standard input\n"), "{text}");
    }

    #[test]
    fn included_files_take_effect_at_their_position() {
        let mut case = Case::new();
        case.write("a.inc", "port 2\ntimeout 2");
        case.write("b.inc", "timeout 3");
        let dir = case.path("").display().to_string();
        let values = case.load(&format!("timeout 1\ndir {dir}\ninclude *.inc\nport 9\ninclude none*")).unwrap();
        assert_eq!((values.read(network::PORT), values.read(network::TIMEOUT)), (9, 3));
    }

    #[test]
    fn a_missing_or_invalid_included_file_is_an_error() {
        let mut case = Case::new();
        let missing = case.path("missing").display().to_string();
        let text = case.load(&format!("include {missing}")).unwrap_err();
        assert_eq!(text, format!("Fatal error, can't open config file '{missing}': No such file or directory"));
        let wrong = case.write("wrong", "port 1\nport x").display().to_string();
        let text = case.load(&format!("\n\ninclude {wrong}")).unwrap_err();
        assert!(text.contains(&format!("at line 2 of {wrong}\n>>> 'port x'\n")), "{text}");
    }

    #[test]
    fn recursive_includes_are_an_error() {
        let mut case = Case::new();
        let path = case.path("kvick.conf").display().to_string();
        let text = case.load(&format!("include {path}")).unwrap_err();
        assert!(text.ends_with("Configuration files include each other too deeply"), "{text}");
    }

    #[test]
    fn deferred_lines_keep_their_order() {
        let mut case = Case::new();
        let lines = "rename-command FLUSHALL ''\nuser bob on >x\nloadmodule /m.so a 'b c'\nMod.Level a b\nuser al off";
        case.load(lines).unwrap();
        let words = |line: &str| line.split(' ').map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>();
        let expected = [
            Entry::RenameCommand { from: b"FLUSHALL".to_vec(), to: Vec::new() },
            Entry::User(words("bob on >x")),
            Entry::LoadModule(vec![b"/m.so".to_vec(), b"a".to_vec(), b"b c".to_vec()]),
            Entry::ModuleSetting { name: b"mod.level".to_vec(), value: b"a b".to_vec() },
            Entry::User(words("al off")),
        ];
        assert_eq!(case.entries, expected);
    }

    #[test]
    fn the_log_file_is_created_in_dir() {
        let mut case = Case::new();
        let dir = case.path("").display().to_string();
        case.load(&format!("dir {dir}\nlogfile the.log")).unwrap();
        assert!(case.path("the.log").exists());
    }

    #[test]
    fn one_argument_may_contain_several() {
        assert_eq!(shown("shutdown-on-sigterm 'nosave force'", "shutdown-on-sigterm"), "nosave force");
        assert_eq!(shown("oom-score-adj-values '1 2 3'", "oom-score-adj-values"), "1 2 3");
        assert_eq!(shown("shutdown-on-sigint nosave force now", "shutdown-on-sigint"), "nosave now force");
    }

    #[test]
    fn a_list_size_may_be_negative() {
        assert_eq!(Case::new().load("list-max-ziplist-size -5").unwrap().read(types::LIST_MAX_LISTPACK_SIZE), -5);
    }
}
