//! The append-only file: the files that it is made of, their manifest, and what stands in them.
//!
//! An append-only file is a folder. A [`Manifest`] lists its parts: one **base**, the data set at some moment as a dump or as
//! commands; then **increments**, the commands since, in the order of their numbers; and parts of its **history**, which a
//! later base replaced and which will be deleted. Versions before 7 of Redis had a single file: commands, or a dump with
//! commands behind it. [`Reader`] reads the commands of one file, and tells what is cut off from what is damaged. [`commands`]
//! writes keys as commands. [`mod@check`] is what `kvick-check-aof` does.
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
