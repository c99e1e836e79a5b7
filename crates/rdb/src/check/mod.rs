//! Checks a dump without loading it: the implementation of `kvick-check-rdb`, with the messages of valkey-check-rdb.

mod histogram;
mod stats;

use crate::error::{Error, ErrorKind};
use crate::format::{FOREIGN_BYTES, VERSION, VersionCheck, is_foreign};
use crate::read::{Checksum, Event, ReadOptions, Reader, Record, Stage};
use crate::value::{Loaded, ValueRef};
use kvick_usage::Usage;
pub use stats::Format;
use stats::Stats;
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Options for checking a dump.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct CheckOptions {
    /// The file.
    pub path: PathBuf,
    /// Whether statistics are collected.
    pub stats: bool,
    /// The format in which they are printed.
    pub format: Format,
    /// The file to which they are printed, instead of standard output.
    pub output: Option<PathBuf>,
    /// Whether keys and auxiliary fields are omitted from the output.
    pub hide_user_data: bool,
}

/// The command line.
pub const USAGE: Usage = Usage {
    program: "kvick-check-rdb",
    summary: "check RDB files of Kvick, Valkey and Redis",
    synopses: &["<rdb-file-name> [--format table|info|csv] [--stats] [--output <file>]"],
    description: &[
        "Checks whether an RDB file is valid, and reports what it contains. The exit status is 0 if it is valid.",
    ],
    options: &[
        kvick_usage::Option {
            names: &["--stats"],
            value: "",
            text: "Prints numbers and sizes of keys and elements, by type and database.",
        },
        kvick_usage::Option {
            names: &["--format"],
            value: "table|info|csv",
            text: "Prints statistics as a table, as lines of names and values, or as comma-separated values.",
        },
        kvick_usage::Option { names: &["--output"], value: "file", text: "Prints statistics to a file." },
        kvick_usage::Option { names: &["-v", "--version"], value: "", text: "Prints the version." },
        kvick_usage::Option { names: &["-h", "--help"], value: "", text: "Prints this text." },
    ],
    examples: &["kvick-check-rdb /var/lib/kvick/dump.rdb --stats"],
    see_also: &["kvick-server", "kvick-check-aof"],
};

impl CheckOptions {
    /// Parses a command line without the program's name; `None` if it is invalid.
    pub fn from_args(args: impl IntoIterator<Item = String>) -> Option<CheckOptions> {
        let mut args = args.into_iter();
        let mut options = CheckOptions { path: args.next()?.into(), ..CheckOptions::default() };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--stats" => options.stats = true,
                "--format" => options.format = Format::from_name(&args.next()?)?,
                "--output" => options.output = Some(args.next()?.into()),
                _ => return None,
            }
        }
        Some(options)
    }
}

/// Checks a file and prints the results to `out`; returns whether it is valid.
pub fn check_file(options: &CheckOptions, out: &mut dyn Write) -> io::Result<bool> {
    Ok(check_dump(options, out)?.is_some())
}

/// Checks a dump that may be followed by other data; returns where it ends, if it is valid.
pub(crate) fn check_dump(options: &CheckOptions, out: &mut dyn Write) -> io::Result<Option<u64>> {
    let file = File::open(&options.path).ok();
    Ok(check(options, file, out)?.map(|valid| valid.end))
}

/// What a valid dump contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Valid {
    /// Number of keys, with expired ones.
    pub keys: u64,
    /// Where the dump ends. Other data may follow.
    pub end: u64,
}

/// Checks a dump that is read from `input`, once, instead of from the file at `options.path`. `None` if it is not
/// valid; then `out` has the reason. It is also not valid if `input` fails.
///
/// # Errors
/// If `out` fails.
pub fn check_stream(options: &CheckOptions, input: impl Read, out: &mut dyn Write) -> io::Result<Option<Valid>> {
    check(options, Some(input), out)
}

fn check(options: &CheckOptions, input: Option<impl Read>, out: &mut dyn Write) -> io::Result<Option<Valid>> {
    let mut check = Check { out, options, offset: 0, found: Found::default() };
    check.say(format_args!("Checking RDB file {}", options.path.display()))?;
    let sound = match input {
        Some(input) => check.read(input)?,
        None => false,
    };
    check.say(format_args!("Check RDB returned error code {} (0 means success)", u8::from(!sound)))?;
    if sound {
        let version = check.found.version;
        if is_foreign(version) || version > VERSION.into() {
            check.say(format_args!("\\o/ RDB looks OK, but loading requires config 'rdb-version-check relaxed'"))?;
        } else {
            check.say(format_args!("\\o/ RDB looks OK! \\o/"))?;
        }
        check.print_summary()?;
    }
    Ok(sound.then_some(Valid { keys: check.found.keys, end: check.offset }))
}

/// The results of a check so far.
#[derive(Default)]
struct Found {
    version: u32,
    keys: u64,
    volatile: u64,
    expired: u64,
    functions: u64,
    scripts: u64,
    stats: Stats,
}

struct Check<'a> {
    out: &'a mut dyn Write,
    options: &'a CheckOptions,
    offset: u64,
    found: Found,
}

impl Check<'_> {
    fn say(&mut self, text: std::fmt::Arguments<'_>) -> io::Result<()> {
        writeln!(self.out, "[offset {}] {text}", self.offset)
    }

    /// Reads a dump to its end; returns whether it is valid.
    fn read(&mut self, file: impl Read) -> io::Result<bool> {
        let options =
            ReadOptions { version_check: VersionCheck::Relaxed, skip_modules: true, ..ReadOptions::default() };
        let mut reader = match Reader::new(file, options) {
            Ok(reader) => reader,
            Err(error) => return self.fail(&error, Stage::Start, b""),
        };
        self.offset = reader.offset();
        self.found.version = reader.version();
        if reader.version() > VERSION.into() {
            self.say(format_args!("Future RDB version {} detected", reader.version()))?;
        } else if is_foreign(reader.version()) {
            self.say(format_args!("Foreign RDB version {} detected", reader.version()))?;
        }
        self.found.stats.note_database(0);
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64);
        let mut number = 0;
        loop {
            let event = match reader.next_event() {
                Ok(event) => event,
                Err(error) => {
                    self.found.keys += u64::from(matches!(reader.stage(), Stage::Value(_)));
                    return self.fail(&error, reader.stage(), reader.key());
                }
            };
            self.offset = reader.offset();
            match event {
                None => return Ok(true),
                Some(Event::Entry(record)) => self.count(number, reader.key(), &record, now_ms),
                Some(Event::SelectDb(selected)) => {
                    number = selected;
                    self.found.stats.note_database(selected);
                    self.say(format_args!("Selecting DB ID {selected}"))?;
                }
                Some(event) => self.report_progress(&event)?,
            }
        }
    }

    /// Prints an event that is not a key.
    fn report_progress(&mut self, event: &Event) -> io::Result<()> {
        match event {
            Event::Aux { name, value } => {
                self.found.scripts += u64::from(name.eq_ignore_ascii_case(b"lua"));
                if self.options.hide_user_data {
                    return Ok(());
                }
                let (name, value) = (String::from_utf8_lossy(name), String::from_utf8_lossy(value));
                self.say(format_args!("AUX FIELD {name} = '{value}'"))
            }
            Event::ModuleAux(name) => self.say(format_args!("MODULE AUX for: {name}")),
            Event::Function(_) => {
                self.found.functions += 1;
                Ok(())
            }
            Event::End(Checksum::Verified) => self.say(format_args!("Checksum OK")),
            Event::End(Checksum::Absent) => {
                self.say(format_args!("RDB file was saved with checksum disabled: no check performed."))
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self, number: u64, key: &[u8], record: &Record, now_ms: i64) {
        self.found.keys += 1;
        self.found.volatile += u64::from(record.expiry_ms.is_some());
        self.found.expired += u64::from(record.expiry_ms.is_some_and(|at| at < now_ms));
        if self.options.stats && !matches!(record.value, Loaded::Empty | Loaded::Expired) {
            let value = match &record.value {
                Loaded::Value(value) => Some(ValueRef::from(value)),
                _ => None,
            };
            self.found.stats.count(number, key, value, record.expiry_ms, now_ms);
        }
    }

    /// Prints an error; returns false, for invalid.
    fn fail(&mut self, error: &Error, stage: Stage, key: &[u8]) -> io::Result<bool> {
        self.offset = error.offset;
        writeln!(self.out, "--- RDB ERROR DETECTED ---")?;
        let version = self.found.version;
        match error.kind {
            ErrorKind::Foreign { byte, .. } | ErrorKind::UnknownType { byte, .. }
                if is_foreign(version) && FOREIGN_BYTES.contains(&byte) =>
            {
                self.say(format_args!("Unknown object type {byte} in RDB file with foreign version {version}"))?;
            }
            ErrorKind::UnknownType { byte, .. } if version > VERSION.into() => {
                self.say(format_args!("Unknown object type {byte} in RDB file with future version {version}"))?;
            }
            ErrorKind::Foreign { byte, .. } | ErrorKind::UnknownType { byte, .. } => {
                self.say(format_args!("Invalid object type: {byte}"))?;
            }
            ref kind => self.say(format_args!("{kind}"))?,
        }
        writeln!(self.out, "[additional info] While doing: {}", name_of(stage))?;
        if let Stage::Value(kind) = stage {
            if !self.options.hide_user_data {
                writeln!(self.out, "[additional info] Reading key '{}'", String::from_utf8_lossy(key))?;
            }
            writeln!(self.out, "[additional info] Reading type {} ({})", kind.byte(), kind.name())?;
        }
        self.print_summary()?;
        Ok(false)
    }

    /// Prints the counts, and the statistics to the requested output.
    fn print_summary(&mut self) -> io::Result<()> {
        writeln!(self.out, "[info] {} keys read", self.found.keys)?;
        writeln!(self.out, "[info] {} expires", self.found.volatile)?;
        writeln!(self.out, "[info] {} already expired", self.found.expired)?;
        writeln!(self.out, "[info] {} functions", self.found.functions)?;
        if self.found.scripts > 0 {
            writeln!(self.out, "[info] {} lua scripts read", self.found.scripts)?;
        }
        match &self.options.output {
            _ if !self.options.stats => Ok(()),
            None => self.found.stats.print(self.out, self.options.format),
            Some(path) => {
                let mut file = BufWriter::new(File::create(path)?);
                self.found.stats.print(&mut file, self.options.format)?;
                file.flush()
            }
        }
    }
}

/// The name of the item that was being read.
fn name_of(stage: Stage) -> &'static str {
    match stage {
        Stage::Start => "start",
        Stage::Type => "read-type",
        Stage::Expiry => "read-expire",
        Stage::Key => "read-key",
        Stage::Value(_) => "read-object-value",
        Stage::Checksum => "check-sum",
        Stage::Length => "read-len",
        Stage::Aux => "read-aux",
        Stage::ModuleAux => "read-module-aux",
        Stage::Function => "read-functions",
    }
}
