//! The command line: the configuration sources, or another task.
//!
//! `kvick-server [/path/to/kvick.conf] [--directive value ...] [-]`. Options become configuration lines that are read
//! last: `--port 7777` is the line `port "7777"`. A single `-` as the first or last argument selects standard input,
//! which is read between the file and the options.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::quoting::{push_quoted, split_args};

/// The task that the command line selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Invocation {
    /// `-v` or `--version`.
    Version,
    /// `-h` or `--help`.
    Help,
    /// `--test-memory <megabytes>`; `None` if it is not followed by exactly one argument.
    TestMemory {
        /// Amount of memory to test; an argument that is not a number counts as 0.
        megabytes: Option<u64>,
    },
    /// `--check-system`.
    CheckSystem,
    /// `--print <form>`: the command line as a manual page or as completions.
    Print {
        /// The form.
        form: String,
    },
    /// Run a server with this configuration.
    Serve(Sources),
}

/// The sources of the configuration. Later sources override earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    /// Read first.
    pub file: Option<PathBuf>,
    /// Whether standard input is read next.
    pub stdin: bool,
    /// The options of the command line as configuration lines, read last.
    pub options: Vec<u8>,
}

impl Invocation {
    /// Reads the arguments after the program's name.
    pub fn parse(args: &[OsString]) -> Self {
        match args.first().map(|arg| arg.as_bytes()) {
            Some(b"-v" | b"--version") => Self::Version,
            Some(b"-h" | b"--help") => Self::Help,
            Some(b"--test-memory") => {
                let megabytes = if args.len() == 2 { Some(&args[1]) } else { None };
                let number = |text: &OsString| text.to_str().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
                Self::TestMemory { megabytes: megabytes.map(number) }
            }
            Some(b"--check-system") => Self::CheckSystem,
            Some(b"--print") if args.len() == 2 => Self::Print { form: args[1].to_string_lossy().into_owned() },
            _ => Self::Serve(Sources::parse(args)),
        }
    }
}

impl Sources {
    fn parse(args: &[OsString]) -> Self {
        let mut sources = Self::default();
        let mut rest = args;
        if let [file, tail @ ..] = args
            && !file.as_bytes().starts_with(b"-")
        {
            sources.file = Some(file.into());
            rest = tail;
        }
        // Whether the previous option has a value, so that `--` starts another option.
        let mut has_value = true;
        for (position, arg) in rest.iter().enumerate() {
            let is_first = position == 0 && sources.file.is_none();
            let is_last = position + 1 == rest.len();
            if arg == "-" && (is_first || is_last) {
                sources.stdin = true;
            } else if has_value && let Some(option) = arg.as_bytes().strip_prefix(b"--") {
                has_value = push_option(&mut sources.options, option, rest.get(position + 1).map(OsString::as_os_str));
            } else {
                push_quoted(&mut sources.options, arg.as_bytes());
                sources.options.push(b' ');
                has_value = true;
            }
        }
        sources
    }
}

/// Starts a line with an option; returns whether the option needs no value from the following arguments. This is the
/// case if its own argument contains one, as in `"--port 7777"`, and for `--save` before another option, which means no
/// save points.
fn push_option(lines: &mut Vec<u8>, option: &[u8], next: Option<&OsStr>) -> bool {
    if !lines.is_empty() {
        lines.push(b'\n');
    }
    lines.extend(option);
    lines.push(b' ');
    if split_args(option).is_none_or(|args| args.len() != 1) {
        return true;
    }
    let next_is_option = next.is_some_and(|next| next.as_bytes().starts_with(b"--"));
    if option.eq_ignore_ascii_case(b"save") && (next.is_none() || next_is_option) {
        lines.extend(b"\"\"");
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Invocation {
        Invocation::parse(&args.iter().map(OsString::from).collect::<Vec<_>>())
    }

    fn sources(args: &[&str]) -> (Option<String>, bool, String) {
        let Invocation::Serve(sources) = parse(args) else { panic!("{args:?} do not serve") };
        let file = sources.file.map(|path| path.to_string_lossy().into_owned());
        (file, sources.stdin, String::from_utf8(sources.options).unwrap())
    }

    fn options(args: &[&str]) -> String {
        sources(args).2
    }

    #[test]
    fn the_first_argument_selects_the_mode() {
        assert_eq!(parse(&["-v"]), Invocation::Version);
        assert_eq!(parse(&["--version", "x"]), Invocation::Version);
        assert_eq!(parse(&["--help"]), Invocation::Help);
        assert_eq!(parse(&["-h"]), Invocation::Help);
        assert_eq!(parse(&["--print", "man"]), Invocation::Print { form: "man".into() });
        assert_eq!(parse(&["--check-system"]), Invocation::CheckSystem);
        assert_eq!(parse(&["--test-memory", "64"]), Invocation::TestMemory { megabytes: Some(64) });
        assert_eq!(parse(&["--test-memory"]), Invocation::TestMemory { megabytes: None });
        assert_eq!(parse(&[]), Invocation::Serve(Sources::default()));
    }

    #[test]
    fn a_file_comes_first_and_options_become_lines() {
        let (file, stdin, options) = sources(&["/etc/k.conf", "--port", "7777", "--loglevel", "verbose"]);
        assert_eq!((file.as_deref(), stdin), (Some("/etc/k.conf"), false));
        assert_eq!(options, "port \"7777\" \nloglevel \"verbose\" ");
    }

    #[test]
    fn a_lone_dash_first_or_last_is_standard_input() {
        assert_eq!(sources(&["-"]), (None, true, String::new()));
        assert!(sources(&["-", "--port", "1"]).1);
        assert!(sources(&["k.conf", "--port", "1", "-"]).1);
        assert_eq!(sources(&["--logfile", "-", "--port", "1"]), (None, false, "logfile \"-\" \nport \"1\" ".into()));
    }

    #[test]
    fn a_value_may_begin_with_dashes() {
        assert_eq!(options(&["--port", "--loglevel", "verbose"]), "port \"--loglevel\" \"verbose\" ");
        assert_eq!(
            options(&["--logfile", "--my--log", "--loglevel", "--bla"]),
            "logfile \"--my--log\" \nloglevel \"--bla\" "
        );
    }

    #[test]
    fn an_option_may_include_its_value() {
        assert_eq!(options(&["--maxmemory 700mb", "--port 1"]), "maxmemory 700mb \nport 1 ");
        assert_eq!(options(&["--port=7777"]), "port=7777 ");
    }

    #[test]
    fn save_without_a_value_means_no_save_points() {
        assert_eq!(options(&["--save", "--loglevel", "verbose"]), "save \"\"\nloglevel \"verbose\" ");
        assert_eq!(options(&["--port", "1", "--save"]), "port \"1\" \nsave \"\"");
        assert_eq!(options(&["--save", "", "--port", "1"]), "save \"\" \nport \"1\" ");
    }
}
