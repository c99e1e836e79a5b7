//! Errors of reading a dump, with their offsets.

use std::fmt;
use std::io;

/// An error, and the offset at which it was detected.
#[derive(Debug)]
pub struct Error {
    /// Number of bytes of the input that had been read.
    pub offset: u64,
    /// The kind of error.
    pub kind: ErrorKind,
}

/// The kinds of errors in a dump.
#[derive(Debug)]
pub enum ErrorKind {
    /// The input could not be read.
    Io(io::Error),
    /// The input ended early.
    Truncated,
    /// The input does not begin with the signature of a dump; its first bytes.
    Signature([u8; 9]),
    /// A version of the format that is not accepted.
    Version(u32),
    /// A type or opcode that other servers may have defined, in a file written by one of them.
    Foreign {
        /// Type or opcode.
        byte: u8,
        /// The file's version.
        version: u32,
    },
    /// A type or opcode that is not defined.
    UnknownType {
        /// Type or opcode.
        byte: u8,
        /// The file's version.
        version: u32,
    },
    /// Data of a module, which is not supported here; the name of the module's type.
    Module(ModuleType),
    /// The bytes are invalid.
    Corrupt(Corrupt),
    /// The checksum at the end does not match.
    Checksum {
        /// The computed checksum.
        expected: u64,
        /// The checksum in the file.
        found: u64,
    },
    /// The caller cancelled reading.
    Cancelled,
}

/// The kinds of invalid bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Corrupt {
    /// Invalid first bits of a length.
    Length(u8),
    /// Unknown format of a string.
    StringForm(u8),
    /// A compressed string that does not decompress to its stated length.
    Lzf,
    /// A score that is NaN; the type of the value.
    Nan(&'static str),
    /// A score that cannot be parsed.
    Score,
    /// An expiry of a field that is before the epoch or out of range.
    FieldExpiry,
    /// A duplicate element, member or field.
    Duplicate(&'static str),
    /// An invalid compact encoding; which one, and of which type of value.
    Encoding(&'static str),
    /// A list block that is neither packed nor plain, or is empty.
    ListBlock,
    /// Invalid data of a stream.
    Stream(&'static str),
    /// A format that only release candidates wrote.
    PreRelease(&'static str),
    /// Invalid data of a module.
    ModuleData,
    /// An invalid slot range.
    SlotImport,
    /// A slot import's name with this invalid length, in bytes.
    SlotImportName(usize),
}

/// The name and version of a module's type, packed in 64 bits: nine characters of six bits, ten bits of version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleType(pub u64);

impl Error {
    /// True if the input ended early or could not be read, as on a broken connection, rather than being invalid.
    pub fn is_short(&self) -> bool {
        matches!(self.kind, ErrorKind::Io(_) | ErrorKind::Truncated)
    }

    /// The line that Valkey logs for this error, without the source location.
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
