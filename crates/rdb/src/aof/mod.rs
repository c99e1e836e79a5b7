//! The append-only file: its files, their manifest, and their contents.
//!
//! An append-only file is a directory. A [`Manifest`] lists its parts: one **base**, the data set at some point in time
//! as a dump or as commands; then **increments**, the commands since then, in the order of their sequence numbers; and
//! its **history**, parts that a later base replaced and that will be deleted. Versions before 7 of Redis used a single
//! file: commands, or a dump followed by commands. [`Reader`] reads the commands of one file, and distinguishes
//! truncated from corrupt files. [`commands`] writes keys as commands. [`mod@check`] implements `kvick-check-aof`.
//!
//! ```text
//! manifest:  | file <name> seq <number> type <b, h or i> \n | ...   lines that begin with # are comments
//! commands:  | *<words> CR LF | $<length> CR LF <word> CR LF | ... | or #TS:<Unix time in seconds> CR LF | ...
//! ```

pub mod check;
pub mod commands;
mod manifest;
mod read;

pub use manifest::{BadManifest, Manifest, Part, PartKind};
pub use read::{Defect, Item, ReadError, Reader};
