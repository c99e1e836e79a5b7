//! Checks an append-only file without loading it, and truncates it at the first error or after a given time. This
//! is the implementation of `kvick-check-aof`, with the messages of valkey-check-aof where tools depend on them.

use super::{Item, Manifest, PartKind, Reader};
use crate::check::{CheckOptions, check_dump};
use kvick_usage::Usage;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The command line.
pub const USAGE: Usage = Usage {
    program: "kvick-check-aof",
    summary: "check append-only files of Kvick, Valkey and Redis",
    synopses: &["[--fix|--truncate-to-timestamp $timestamp] <file.manifest|file.aof>"],
    description: &[
        "Checks whether an append-only file is valid: a manifest with all files that it names, or a single file. The \
         exit status is 0 if it is.",
        "Stop the server before you change a file, and keep a copy.",
    ],
    options: &[
        kvick_usage::Option {
            names: &["--fix"],
            value: "",
            text: "Truncates an invalid file at the first error, after a confirmation.",
        },
        kvick_usage::Option {
            names: &["--truncate-to-timestamp"],
            value: "timestamp",
            text: "Removes the commands after this Unix time in seconds. The file needs the lines that \
                   'aof-timestamp-enabled yes' writes.",
        },
        kvick_usage::Option { names: &["-v", "--version"], value: "", text: "Prints the version." },
        kvick_usage::Option { names: &["-h", "--help"], value: "", text: "Prints this text." },
    ],
    examples: &["kvick-check-aof --fix /var/lib/kvick/appendonlydir/appendonly.aof.manifest"],
    see_also: &["kvick-server", "kvick-check-rdb"],
};

/// The task to perform.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Task {
    /// Report errors.
    Check,
    /// Truncate at the first error, after confirmation by the user.
    Fix,
    /// Truncate the commands that were executed after this Unix time in seconds.
    TruncateTo(i64),
}

/// A parsed command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The task.
    pub task: Task,
    /// The manifest, or a file of commands.
    pub path: PathBuf,
}

impl Request {
    /// Parses a command line without the program's name; `None` if it is invalid.
    pub fn from_args(args: &[String]) -> Option<Request> {
        let (task, path) = match args {
            [path] => (Task::Check, path),
            [option, path] if option == "--fix" => (Task::Fix, path),
            [option, time, path] if option == "--truncate-to-timestamp" => (Task::TruncateTo(time.parse().ok()?), path),
            _ => return None,
        };
        Some(Request { task, path: path.into() })
    }
}

/// Performs the task and prints the results to `out`; returns whether everything
/// is valid now. Confirmations to truncate a file are read from `answers`.
pub fn run(request: &Request, answers: &mut dyn BufRead, out: &mut dyn Write) -> io::Result<bool> {
    let mut check = Check { task: request.task, answers, out };
    let done = match starts_like_manifest(&request.path) {
        Ok(true) => check.parts(&request.path),
        Ok(false) => check.single(&request.path),
        Err(error) => Err(Stop::new(format!("Cannot open file {}: {error}", request.path.display()))),
    };
    match done {
        Ok(()) => Ok(true),
        Err(Stop::Said(text)) => {
            writeln!(check.out, "{text}")?;
            Ok(false)
        }
        Err(Stop::Io(error)) => Err(error),
    }
}

/// Why the task was aborted.
enum Stop {
    /// For a reason to be printed.
    Said(String),
    /// The output could not be written.
    Io(io::Error),
}

impl Stop {
    fn new(text: String) -> Self {
        Stop::Said(text)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::Io(error)
    }
}

/// The result for a file.
enum Verdict {
    Valid,
    Empty,
    Truncated,
    TruncatedToTime(i64),
    NothingToTruncate,
}

struct Check<'a> {
    task: Task,
    answers: &'a mut dyn BufRead,
    out: &'a mut dyn Write,
}

/// A file to be checked.
struct Target<'a> {
    name: String,
    path: &'a Path,
    is_last: bool,
    /// Whether it begins with a dump.
    has_dump: bool,
}

impl Check<'_> {
    fn parts(&mut self, path: &Path) -> Result<(), Stop> {
        writeln!(self.out, "Start checking Multi Part AOF")?;
        let bytes = std::fs::read(path)?;
        let manifest = Manifest::parse(&bytes).map_err(|error| Stop::new(error.to_string()))?;
        let dir = path.parent().unwrap_or(Path::new(""));
        let count = manifest.parts().count();
        for (index, (kind, part)) in manifest.parts().enumerate() {
            let path = dir.join(OsStr::from_bytes(&part.name));
            let has_dump = kind == PartKind::Base && begins_with_dump(&path)?;
            let name = String::from_utf8_lossy(&part.name).into_owned();
            let what = match kind {
                PartKind::Base => {
                    let format = if has_dump { "RDB" } else { "RESP" };
                    writeln!(self.out, "Start to check BASE AOF ({format} format).")?;
                    "BASE AOF"
                }
                _ => {
                    if index == usize::from(manifest.base.is_some()) {
                        writeln!(self.out, "Start to check INCR files.")?;
                    }
                    "INCR AOF"
                }
            };
            self.file(what, &Target { name, path: &path, is_last: index + 1 == count, has_dump })?;
        }
        writeln!(self.out, "All AOF files and manifest are valid")?;
        Ok(())
    }

    fn single(&mut self, path: &Path) -> Result<(), Stop> {
        writeln!(self.out, "Start checking Old-Style AOF")?;
        let has_dump = begins_with_dump(path)?;
        self.file("AOF", &Target { name: path.display().to_string(), path, is_last: true, has_dump })
    }

    fn file(&mut self, what: &str, target: &Target<'_>) -> Result<(), Stop> {
        let name = &target.name;
        match self.check_file_of(target)? {
            Verdict::Valid => writeln!(self.out, "{what} {name} is valid")?,
            Verdict::Empty => writeln!(self.out, "{what} {name} is empty")?,
            Verdict::Truncated => writeln!(self.out, "Successfully truncated AOF {name}")?,
            Verdict::TruncatedToTime(time) => {
                writeln!(self.out, "Successfully truncated AOF {name} to timestamp {time}")?
            }
            Verdict::NothingToTruncate => writeln!(self.out, "{what} {name} is valid")?,
        }
        Ok(())
    }

    fn check_file_of(&mut self, target: &Target<'_>) -> Result<Verdict, Stop> {
        let Target { name, path, .. } = target;
        let mut file = OpenOptions::new()
            .read(true)
            .write(self.task != Task::Check)
            .open(path)
            .map_err(|error| Stop::new(format!("Cannot open file {}: {error}, aborting...", path.display())))?;
        let size = file.metadata()?.len();
        if size == 0 {
            return Ok(Verdict::Empty);
        }
        let start = if target.has_dump { self.dump(path)? } else { 0 };
        file.seek(SeekFrom::Start(start))?;
        let valid = self.commands(&file, target, start)?;
        let ValidPrefix { end, line } = match valid {
            Ok(valid) => valid,
            Err(verdict) => return Ok(verdict),
        };
        let excess = size - end;
        if excess == 0
            && let Task::TruncateTo(time) = self.task
        {
            writeln!(self.out, "Truncate nothing in AOF {name} to timestamp {time}")?;
            return Ok(Verdict::NothingToTruncate);
        }
        writeln!(
            self.out,
            "AOF analyzed: filename={name}, size={size}, ok_up_to={end}, ok_up_to_line={line}, diff={excess}"
        )?;
        match self.task {
            _ if excess == 0 => Ok(Verdict::Valid),
            Task::Fix if !target.is_last => {
                Err(Stop::new(format!("Failed to truncate AOF {name} because it is not the last file")))
            }
            Task::Fix => self.fix(&file, name, size, end),
            _ => Err(Stop::new(format!("AOF {name} is not valid. Use the --fix option to try fixing it."))),
        }
    }

    /// Checks the dump at the beginning of a file; returns where it ends.
    fn dump(&mut self, path: &Path) -> Result<u64, Stop> {
        let options = CheckOptions { path: path.into(), ..CheckOptions::default() };
        let end = check_dump(&options, self.out)?;
        let end = end.ok_or_else(|| Stop::new("RDB preamble of AOF file is not sane, aborting.".into()))?;
        writeln!(self.out, "RDB preamble is OK, proceeding with AOF tail...")?;
        Ok(end)
    }

    /// Reads commands up to the first error or the first that is too late, and truncates the file there.
    fn commands(&mut self, file: &File, target: &Target<'_>, start: u64) -> Result<Result<ValidPrefix, Verdict>, Stop> {
        let mut reader = Reader::new(file, start);
        let mut valid = ValidPrefix { end: start, line: 1 };
        let mut in_transaction = false;
        loop {
            let begin = reader.offset();
            let error = match reader.next_item() {
                Ok(None) if in_transaction => "Reached EOF before reading EXEC for MULTI".to_string(),
                Ok(None) => return Ok(Ok(ValidPrefix { end: begin, ..valid })),
                Ok(Some(Item::Request(args))) => {
                    let is = |name: &[u8]| args.get(0).is_some_and(|word| word.eq_ignore_ascii_case(name));
                    match (is(b"multi"), is(b"exec")) {
                        (true, _) if in_transaction => format!("Unexpected MULTI in AOF {}", target.name),
                        (_, true) if !in_transaction => format!("Unexpected EXEC in AOF {}", target.name),
                        (begins, ends) => {
                            in_transaction = begins || (in_transaction && !ends);
                            valid.line = reader.line();
                            if !in_transaction {
                                valid.end = reader.offset();
                            }
                            continue;
                        }
                    }
                }
                Ok(Some(Item::Timestamp(time))) => match self.task {
                    Task::TruncateTo(limit) if time > limit => {
                        return cut_at(file, target, begin, limit).map(Err);
                    }
                    _ => continue,
                },
                Ok(Some(Item::Annotation)) => continue,
                Err(error) => {
                    writeln!(self.out, "AOF {} format error", target.name)?;
                    error.to_string()
                }
            };
            writeln!(self.out, "{error}")?;
            return Ok(Ok(ValidPrefix { line: reader.line(), ..valid }));
        }
    }

    fn fix(&mut self, file: &File, name: &str, size: u64, end: u64) -> Result<Verdict, Stop> {
        let excess = size - end;
        writeln!(self.out, "This will shrink the AOF {name} from {size} bytes, with {excess} bytes, to {end} bytes")?;
        write!(self.out, "Continue? [y/N]: ")?;
        self.out.flush()?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer)?;
        if !answer.starts_with(['y', 'Y']) {
            return Err(Stop::new("Aborting...".into()));
        }
        file.set_len(end).map_err(|error| Stop::new(format!("Failed to truncate AOF {name}: {error}")))?;
        Ok(Verdict::Truncated)
    }
}

/// The valid part of a file.
#[derive(Clone, Copy)]
struct ValidPrefix {
    /// The offset at which it ends.
    end: u64,
    /// The line at which it ends.
    line: u64,
}

fn cut_at(file: &File, target: &Target<'_>, end: u64, time: i64) -> Result<Verdict, Stop> {
    let name = &target.name;
    if end == 0 {
        return Err(Stop::new(format!("AOF {name} has nothing before timestamp {time}, aborting...")));
    }
    if !target.is_last {
        return Err(Stop::new(format!(
            "Failed to truncate AOF {name} to timestamp {time} to offset {end} because it is not the last file.\n\
             If that is what you want, delete the files behind it, take their lines out of the manifest, and try again."
        )));
    }
    file.set_len(end)
        .map_err(|error| Stop::new(format!("Failed to truncate AOF {name} to timestamp {time}: {error}")))?;
    Ok(Verdict::TruncatedToTime(time))
}

/// Whether the first line that is not a comment begins like one of a manifest.
fn starts_like_manifest(path: &Path) -> io::Result<bool> {
    let mut lines = io::BufReader::new(File::open(path)?);
    loop {
        let mut line = Vec::new();
        lines.by_ref().take(1024).read_until(b'\n', &mut line)?;
        if !line.starts_with(b"#") {
            return Ok(line.starts_with(b"file"));
        }
    }
}

/// Whether a file begins with the signature of a dump.
fn begins_with_dump(path: &Path) -> Result<bool, Stop> {
    let file = File::open(path).map_err(|error| Stop::new(format!("Cannot open file {}: {error}", path.display())))?;
    let mut signature = Vec::new();
    file.take(6).read_to_end(&mut signature)?;
    Ok(matches!(&signature[..], b"REDIS0" | b"VALKEY"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SET: &str = "*3\r\n$3\r\nset\r\n$1\r\na\r\n$1\r\n1\r\n";

    fn check(task: Task, file: &str, answer: &str) -> (bool, String, String) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.aof");
        std::fs::write(&path, file).unwrap();
        let mut out = Vec::new();
        let is_valid = run(&Request { task, path: path.clone() }, &mut answer.as_bytes(), &mut out).unwrap();
        (is_valid, String::from_utf8(out).unwrap(), std::fs::read_to_string(path).unwrap())
    }

    #[test]
    fn a_valid_file_is_unchanged() {
        let file = format!("#TS:5\r\n{SET}*1\r\n$5\r\nMULTI\r\n{SET}*1\r\n$4\r\nEXEC\r\n");
        for task in [Task::Check, Task::Fix, Task::TruncateTo(5)] {
            let (is_valid, output, left) = check(task, &file, "");
            assert!(is_valid && output.contains("is valid") && left == file, "{output}");
        }
    }

    #[test]
    fn a_truncated_or_damaged_tail_can_be_truncated() {
        for rest in
            ["*3\r\n$3\r\nset\r\n$1", "!!!", "*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nPING\r\n", "*1\r\n$4\r\nEXEC\r\n"]
        {
            let file = format!("{SET}{rest}");
            let (is_valid, output, left) = check(Task::Check, &file, "");
            assert!(!is_valid && output.contains("not valid") && left == file, "{output}");
            assert!(output.contains(&format!("ok_up_to={}", SET.len())), "{output}");
            let (is_valid, output, left) = check(Task::Fix, &file, "n\n");
            assert!(!is_valid && output.contains("Aborting") && left == file, "{output}");
            let (is_valid, output, left) = check(Task::Fix, &file, "y\n");
            assert!(is_valid && output.contains("Successfully truncated") && left == SET, "{output}");
        }
    }

    #[test]
    fn a_file_is_truncated_at_a_timestamp() {
        let file = format!("#TS:5\r\n{SET}#TS:6\r\n{SET}");
        let (is_valid, output, left) = check(Task::TruncateTo(5), &file, "");
        assert!(is_valid && output.contains("to timestamp 5") && left == format!("#TS:5\r\n{SET}"), "{output}");
        let (is_valid, output, left) = check(Task::TruncateTo(4), &file, "");
        assert!(!is_valid && output.contains("nothing before") && left == file, "{output}");
    }

    #[test]
    fn only_the_last_file_is_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let place = |name: &str| dir.path().join(name);
        std::fs::write(place("base"), format!("{SET}!")).unwrap();
        std::fs::write(place("incr"), format!("{SET}!")).unwrap();
        std::fs::write(place("m"), "file base seq 1 type b\nfile incr seq 1 type i\n").unwrap();
        let fix = || {
            let mut out = Vec::new();
            let request = Request { task: Task::Fix, path: place("m") };
            (run(&request, &mut &b"y\n"[..], &mut out).unwrap(), String::from_utf8(out).unwrap())
        };
        let (is_valid, output) = fix();
        assert!(!is_valid && output.contains("because it is not the last file"), "{output}");
        std::fs::write(place("base"), SET).unwrap();
        let (is_valid, output) = fix();
        assert!(is_valid && output.contains("All AOF files and manifest are valid"), "{output}");
        assert_eq!(std::fs::read_to_string(place("incr")).unwrap(), SET);
    }
}
