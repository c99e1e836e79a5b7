//! Replays the files, on the writer thread. Meanwhile workers answer that the data set is being loaded.
//!
//! Commands are executed for a pseudo-client: it has all permissions, never blocks, sees expired keys, and its commands
//! are not logged. A transaction runs when its end has been read. A truncated end of the last file is cut off if the
//! settings allow it; any other invalid content is an error with its offset.

use super::aof_dir::{reason, shown};
use super::journal::{self, Recovered};
use super::tail;
use super::writer::{Order, Writer};
use crate::DurableCore;
use crate::persistence::delay::Delay;
use crate::persistence::load::{FinishedLoad, load_base};
use crate::replay::{Replayed, Replayer};
use kvick_config::tables::persistence::{AOF_LOAD_TRUNCATED, KEY_LOAD_DELAY};
use kvick_core::admission::Reasons;
use kvick_core::clients::ClientInfo;
use kvick_core::inbox::Served;
use kvick_rdb::aof::{Item, Part, PartKind, ReadError, Reader};
use kvick_resp::{Reply, Version};
use kvick_runtime::logging;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Commands between two moments at which other threads can take the global lock.
const COMMANDS_PER_BATCH: u64 = 64;

/// The files could not be read, for a reason that has been logged, or the server is shutting down.
#[derive(Debug)]
pub struct Failed;

impl std::error::Error for Failed {}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("The append-only file could not be loaded or opened: see above. Exiting.")
    }
}

/// DEBUG LOADAOF: the client to notify when the reload is done.
pub struct Reload {
    /// The client.
    pub client: Arc<ClientInfo>,
    /// The ticket of its wait.
    pub ticket: u64,
    /// The protocol of its reply.
    pub version: Version,
}

/// Replays the files in place of the data, which was dropped, and answers the client.
pub fn request_reload(core: &'static DurableCore, reload: Reload) {
    core.aof.order(Order::Reload(reload));
}

/// The outcome of one file, or of all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loaded {
    Complete,
    /// Whether a truncated end was cut off.
    Truncated,
    Empty,
    Missing,
}

/// Replays the files at the start.
pub(super) fn load_at_startup(writer: &mut Writer) -> Result<(), Failed> {
    let began = Instant::now();
    writer.aof_dir.read().map_err(|_| Failed)?;
    recover_from_journal(writer)?;
    recover_from_tail(writer)?;
    if load_parts(writer)? != Loaded::Missing {
        logging::notice(format_args!("DB loaded from append only file: {:.3} seconds", began.elapsed().as_secs_f64()));
    }
    Ok(())
}

/// Completes the last increment from the journal, after a machine crash.
fn recover_from_journal(writer: &Writer) -> Result<(), Failed> {
    let Some(last) = writer.aof_dir.manifest.increments.last() else { return Ok(()) };
    let (journal, name) = (writer.aof_dir.journal_path(), shown(&last.name));
    match journal::recover(&journal, &writer.aof_dir.path(&last.name)) {
        Ok(Recovered::Nothing | Recovered::Completed(0)) => Ok(()),
        Ok(Recovered::Completed(missing)) => {
            logging::notice(format_args!("The last {missing} bytes of {name} were put back from the AOF journal"));
            Ok(())
        }
        Ok(Recovered::Mismatch) => {
            logging::warning(format_args!(
                "The AOF journal is of another state of {name} than there is, and was not used: if that file was not \
                 changed by hand, its disk has lost what it had said to have."
            ));
            Ok(())
        }
        Err(error) => {
            logging::warning(format_args!("Fatal error: can't put back what {name} lost: {}", reason(&error)));
            Err(Failed)
        }
    }
}

/// Completes the last increment from the tail, after the process was killed.
fn recover_from_tail(writer: &Writer) -> Result<(), Failed> {
    let Some(last) = writer.aof_dir.manifest.increments.last() else { return Ok(()) };
    let (path, name) = (writer.aof_dir.tail_path(), shown(&last.name));
    let unused = match tail::recover(&path, &last.name, &writer.aof_dir.path(&last.name)) {
        Ok(tail::Recovered::Nothing) => return Ok(()),
        Ok(tail::Recovered::Completed(bytes)) => {
            logging::notice(format_args!(
                "The last {bytes} bytes of {name}, which the previous process had not written, were appended from {}",
                path.display()
            ));
            return Ok(());
        }
        Ok(tail::Recovered::Foreign(other)) => format!("it continues {}, not {name}", shown(&other)),
        Ok(tail::Recovered::Mismatch) => format!("{name} is not as the previous process had left it"),
        Ok(tail::Recovered::Invalid) => "it is not a tail of an append-only file".to_owned(),
        Err(error) => {
            logging::warning(format_args!("Fatal error: can't complete {name}: {}", reason(&error)));
            return Err(Failed);
        }
    };
    let kept = path.with_extension("tail.unused");
    let kept = fs::rename(&path, &kept).map_or(path, |()| kept);
    logging::warning(format_args!("The AOF tail was not used: {unused}. It is kept as {}", kept.display()));
    Ok(())
}

/// See [`Reload`].
pub(super) fn reload(writer: &mut Writer, reload: Reload) {
    let core = writer.core;
    let read = writer.aof_dir.read().map_err(|_| Failed);
    writer.aof_dir.remove_history();
    let loaded = read.and_then(|()| load_parts(writer));
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, reload.version);
    match loaded {
        Ok(Loaded::Missing) | Err(Failed) => {
            reply.error("ERR Error trying to load the AOF files, check server logs.");
        }
        Ok(_) => {
            logging::notice(format_args!("Append Only File loaded by DEBUG LOADAOF"));
            core.persistence.forget_changes(core);
            reply.ok();
        }
    }
    core.admission.set(Reasons::LOADING, false);
    let served = Served { client: reload.client.clone(), ticket: reload.ticket, reply: out, is_last: false };
    core.answer(served);
}

fn load_parts(writer: &mut Writer) -> Result<Loaded, Failed> {
    let core = writer.core;
    writer.aof_dir.upgrade().map_err(|_| Failed)?;
    let parts: Vec<(PartKind, Part)> =
        writer.aof_dir.manifest.parts().map(|(kind, part)| (kind, part.clone())).collect();
    if parts.is_empty() {
        return Ok(Loaded::Missing);
    }
    let mut total = 0;
    for (_, part) in &parts {
        total += writer.aof_dir.size(&part.name).map_err(|_| Failed)?;
    }
    if total == 0 {
        return Ok(Loaded::Empty);
    }
    core.persistence.loading.begin(total);
    let mut last = Loaded::Complete;
    let mut before = 0;
    for (index, (kind, part)) in parts.iter().enumerate() {
        let (began, name) = (Instant::now(), shown(&part.name));
        let is_last = index + 1 == parts.len();
        last = load_file(writer, part, before)?;
        before += writer.aof_dir.size(&part.name).map_err(|_| Failed)?;
        if last == Loaded::Truncated && !is_last {
            logging::warning(format_args!("Fatal error: the truncated file is not the last file"));
            return Err(Failed);
        }
        if last != Loaded::Empty {
            let what = if *kind == PartKind::Base { "base" } else { "incr" };
            let seconds = began.elapsed().as_secs_f64();
            logging::notice(format_args!("DB loaded from {what} file {name}: {seconds:.3} seconds"));
        }
    }
    Ok(if last == Loaded::Empty { Loaded::Complete } else { last })
}

/// Replays one file. The files before it have `before` bytes.
fn load_file(writer: &mut Writer, part: &Part, before: u64) -> Result<Loaded, Failed> {
    let (core, name) = (writer.core, shown(&part.name));
    let path = writer.aof_dir.path(&part.name);
    let file = File::open(&path).map_err(|error| {
        let why = reason(&error);
        logging::warning(format_args!("Fatal error: can't open the append log file {name} for reading: {why}"));
        Failed
    })?;
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    if len == 0 {
        return Ok(Loaded::Empty);
    }
    let Some(replayer) = core.replayer(writer.participant) else {
        logging::warning(format_args!("Fatal error: there is nothing that executes the commands of {name}"));
        return Err(Failed);
    };
    let mut replay = Replay {
        core,
        name: &name,
        replayer,
        delay: Delay::new(core, KEY_LOAD_DELAY),
        before,
        valid: 0,
        before_multi: 0,
    };
    let read = if has_rdb_preamble(&path) {
        let old_style = part.name == writer.aof_dir.file_name();
        logging::notice(format_args!(
            "{}",
            if old_style { "Reading RDB preamble from AOF file..." } else { "Reading RDB base file on AOF loading..." }
        ));
        let FinishedLoad { rest, offset, .. } = load_base(core, writer.participant, file, before).map_err(|error| {
            logging::warning(format_args!("{error}"));
            let what = if old_style { "RDB preamble of the AOF file" } else { "RDB base file" };
            logging::warning(format_args!("Error reading the {what} {name}, AOF loading aborted"));
            Failed
        })?;
        if old_style {
            logging::notice(format_args!("Reading the remaining AOF tail..."));
        }
        replay.valid = offset;
        replay.commands(rest, offset)
    } else {
        replay.commands(file, 0)
    };
    match read {
        Ok(()) => Ok(Loaded::Complete),
        Err(Stop::Failed) => Err(Failed),
        Err(Stop::Unreadable(error)) if !error.is_cut_off() => {
            logging::warning(format_args!(
                "Bad file format reading the append only file {name}: make a backup of your AOF file, then use \
                 ./kvick-check-aof --fix <filename.manifest>. {error}"
            ));
            Err(Failed)
        }
        Err(Stop::Unreadable(_) | Stop::InTransaction) => {
            let valid = replay.valid_end();
            truncate_tail(core, &path, &name, valid)
        }
    }
}

/// Truncates the file to `valid` bytes, if the settings allow it.
fn truncate_tail(core: &DurableCore, path: &std::path::Path, name: &str, valid: u64) -> Result<Loaded, Failed> {
    if core.config.read(AOF_LOAD_TRUNCATED) {
        logging::warning(format_args!("!!! Warning: short read while loading the AOF file {name}!!!"));
        logging::warning(format_args!("!!! Truncating the AOF {name} at offset {valid} !!!"));
        let cut = OpenOptions::new().write(true).open(path).and_then(|file| {
            file.set_len(valid)?;
            file.sync_all()
        });
        match cut {
            Ok(()) => {
                logging::warning(format_args!("AOF {name} loaded anyway because aof-load-truncated is enabled"));
                return Ok(Loaded::Truncated);
            }
            Err(error) => {
                logging::warning(format_args!("Error truncating the AOF file {name}: {}", reason(&error)));
            }
        }
    }
    logging::warning(format_args!(
        "Unexpected end of file reading the append only file {name}. You can: 1) Make a backup of your AOF file, then \
         use ./kvick-check-aof --fix <filename.manifest>. 2) Alternatively you can set the 'aof-load-truncated' \
         configuration option to yes and restart the server."
    ));
    Err(Failed)
}

fn has_rdb_preamble(path: &std::path::Path) -> bool {
    let mut signature = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(6).read_to_end(&mut signature));
    read.is_ok() && matches!(&signature[..], b"REDIS0" | b"VALKEY")
}

/// Why the replay of a file stopped early.
enum Stop {
    /// The reason has been logged.
    Failed,
    /// The content is invalid or truncated.
    Unreadable(ReadError),
    /// It ends within a transaction.
    InTransaction,
}

/// The replay of one file.
struct Replay<'a> {
    core: &'static DurableCore,
    name: &'a str,
    replayer: Box<dyn Replayer>,
    delay: Delay,
    /// Bytes of the files before.
    before: u64,
    /// The offset up to which commands were replayed or queued.
    valid: u64,
    /// The same, before the open transaction.
    before_multi: u64,
}

impl Replay<'_> {
    fn commands(&mut self, input: impl Read, offset: u64) -> Result<(), Stop> {
        let mut reader = Reader::new(input, offset);
        let mut commands = 0u64;
        self.replayer.enter();
        let outcome = loop {
            let item = match reader.next_item() {
                Ok(None) => break Ok(()),
                Ok(Some(item)) => item,
                Err(error) => break Err(Stop::Unreadable(error)),
            };
            let Item::Request(args) = item else { continue };
            match self.replayer.execute(args) {
                Ok(Replayed::BeganTransaction) => self.before_multi = self.valid,
                Ok(Replayed::Done) => {}
                Err(error) => {
                    logging::warning(format_args!(
                        "Error reading the append only file {}, error: {}",
                        self.name, error
                    ));
                    break Err(Stop::Failed);
                }
            }
            self.valid = reader.offset();
            commands += 1;
            if commands.is_multiple_of(COMMANDS_PER_BATCH) {
                self.replayer.leave();
                self.core.persistence.loading.loaded_bytes.store(self.before + self.valid, Ordering::Relaxed);
                if self.core.is_shutting_down() {
                    return Err(Stop::Failed);
                }
                self.replayer.enter();
            }
            let core = self.core;
            self.delay.after(1, || core.is_shutting_down());
        };
        self.replayer.leave();
        match outcome {
            Ok(()) if self.replayer.is_in_transaction() => Err(Stop::InTransaction),
            outcome => outcome,
        }
    }

    /// The length to keep if the file is truncated.
    fn valid_end(&self) -> u64 {
        if !self.replayer.is_in_transaction() {
            return self.valid;
        }
        logging::warning(format_args!("Revert incomplete MULTI/EXEC transaction in AOF file {}", self.name));
        self.before_multi
    }
}
