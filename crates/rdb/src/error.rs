//! What can be wrong with a dump, and where.

use std::fmt;
use std::io;

/// Why reading ended, and at which byte of the input it was noticed.
#[derive(Debug)]
pub struct Error {
    /// How many bytes of the input had been read.
    pub offset: u64,
    /// What was found there.
    pub kind: ErrorKind,
}

/// What is wrong with a dump.
#[derive(Debug)]
pub enum ErrorKind {
    /// The input could not be read.
    Io(io::Error),
    /// It ends too early.
    Truncated,
    /// It does not begin as a dump does; the bytes that it begins with.
    Signature([u8; 9]),
    /// A version of the format that is not accepted.
    Version(u32),
    /// A type or opcode that other servers may have given a meaning, in a file of theirs.
    Foreign {
        /// Type or opcode.
        byte: u8,
        /// The file's version.
        version: u32,
    },
    /// A type or opcode that does not exist, or not yet.
    UnknownType {
        /// Type or opcode.
        byte: u8,
        /// The file's version.
        version: u32,
    },
    /// Data of a module, which has no place here; the module type's name.
    Module(ModuleType),
    /// The bytes make no sense.
    Corrupt(Corrupt),
    /// The checksum at the end is not that of what was read.
    Checksum {
        /// The sum over the bytes that were read.
        expected: u64,
        /// The sum that the file tells.
        found: u64,
    },
    /// Reading was called off from outside.
    Cancelled,
}

/// What is wrong with the bytes of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corrupt {
    /// The first bits of a length.
    Length(u8),
    /// A string of an unknown form.
    StringForm(u8),
    /// A compressed string that does not unpack to its length.
    Lzf,
    /// A score that is not a number, and in what.
    Nan(&'static str),
    /// A score that cannot be read.
    Score,
    /// A time before the epoch or beyond what a field's expiry may be.
    FieldExpiry,
    /// The same element, member or field twice.
    Duplicate(&'static str),
    /// A compact encoding that breaks its rules: which one, and whose.
    Encoding(&'static str),
    /// A list block that is neither packed nor plain, or holds nothing.
    ListBlock,
    /// Something about a stream.
    Stream(&'static str),
    /// A pre-release form that only release candidates wrote.
    PreRelease(&'static str),
    /// The data of a module that does not keep the rules for such data.
    ModuleData,
    /// A slot range that cannot be.
    SlotImport,
    /// The name of a slot import is of so many bytes.
    SlotImportName(usize),
}

/// The name and version of a module's type, packed in 64 bits: nine characters of six bits, ten bits of version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleType(pub u64);

impl Error {
    /// True when the input ended early or could not be read, rather than being wrong: what a broken connection does.
    pub fn is_short(&self) -> bool {
        matches!(self.kind, ErrorKind::Io(_) | ErrorKind::Truncated)
    }

    /// The line that Valkey's log has of it, but for a place in its source.
    pub fn for_log(&self) -> String {
        format!("Internal error in RDB reading offset {} -> {}", self.offset, self.kind)
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.kind {
            ErrorKind::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (at offset {})", self.kind, self.offset)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorKind::Io(error) => write!(f, "cannot read: {error}"),
            ErrorKind::Truncated => f.write_str("Unexpected EOF reading RDB file"),
            ErrorKind::Signature(_) => f.write_str("Wrong signature trying to load DB from file"),
            ErrorKind::Version(version) => write!(f, "Can't handle RDB format version {version}"),
            ErrorKind::Foreign { byte, version } => {
                write!(f, "Can't handle foreign type or opcode {byte} in RDB with version {version}")
            }
            ErrorKind::UnknownType { byte, .. } => write!(f, "Unknown RDB encoding type {byte}"),
            ErrorKind::Module(name) => {
                write!(f, "The RDB file contains module data I can't load: no matching module type '{name}'")
            }
            ErrorKind::Corrupt(corrupt) => corrupt.fmt(f),
            ErrorKind::Checksum { .. } => f.write_str("RDB CRC error"),
            ErrorKind::Cancelled => f.write_str("loading was called off"),
        }
    }
}

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Corrupt::Length(byte) => write!(f, "Unknown length encoding {byte}"),
            Corrupt::StringForm(byte) => write!(f, "Unknown RDB string encoding type {byte}"),
            Corrupt::Lzf => f.write_str("Invalid LZF compressed string"),
            Corrupt::Nan(what) => write!(f, "{what} with NAN score detected"),
            Corrupt::Score => f.write_str("Zset with a score that cannot be read"),
            Corrupt::FieldExpiry => f.write_str("Hash field with an impossible expiry"),
            Corrupt::Duplicate(what) => write!(f, "Duplicate {what} detected"),
            Corrupt::Encoding(what) => write!(f, "{what} integrity check failed."),
            Corrupt::ListBlock => f.write_str("Quicklist integrity check failed."),
            Corrupt::Stream(what) => f.write_str(what),
            Corrupt::PreRelease(what) => write!(f, "Pre-release {what} format not supported"),
            Corrupt::ModuleData => f.write_str("Module data without its proper markers"),
            Corrupt::SlotImport => f.write_str("Invalid slot import job in RDB"),
            Corrupt::SlotImportName(len) => write!(f, "Invalid slot import job name length in RDB: {len}"),
        }
    }
}

impl fmt::Display for ModuleType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const CHARACTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        (0..9).try_for_each(|position| {
            let index = self.0 >> (58 - 6 * position) & 63;
            write!(f, "{}", CHARACTERS[index as usize] as char)
        })
    }
}
