//! The dump format, RDB: reads files of all versions from Redis 2 to Redis 7.4 and Valkey
//! 9.1, writes those of Valkey 9.1 and Redis 7.2, and reads and writes DUMP payloads.
//!
//! - [`Writer`] writes a dump to any writer; [`save_record`] writes one key, for
//!   snapshots that are assembled from captured entries; [`dump`] writes a payload.
//! - [`Reader`] reads a dump from any reader, as a sequence of [`Event`]s; [`load_into`]
//!   reads it to the end and passes the keys to a [`Target`]; [`restore`] reads a payload.
//! - [`aof`] is the append-only file: its manifest, its commands, and keys as commands.
//! - [`mod@check`] checks whether a dump is valid, and reports its contents.
//!
//! ```text
//! dump:    | REDIS and four digits, or VALKEY and three | opcode with its content, or record ... | 255 | CRC-64, 8 |
//! record:  | expiry: 252 and 8 bytes, optional | idle time or frequency, optional | type | key | value |
//! payload: | type | value | version 2 | CRC-64, 8 |
//! length:  | 00 and 6 bits | or 01 and 14 bits | or 0x80 and 4 bytes | or 0x81 and 8 bytes |   big-endian
//! string:  | length, bytes | or 0xc0, 0xc1, 0xc2 and 1, 2, 4 bytes of an integer | or 0xc3, two lengths, LZF |
//! ```
//!
//! **Invariants**: no input makes a reader panic, loop forever or allocate memory for a stated length
//! alone. An error states the problem and its offset. A dump is read and written through a buffer; at
//! most one value is in memory at a time, plus a copy of its compact encoding or of its longest element.

pub mod aof;
pub mod check;
pub mod crc64;
mod decode;
mod encode;
mod error;
mod format;
mod input;
mod load;
mod module;
mod payload;
mod read;
#[cfg(test)]
mod samples;
#[cfg(test)]
mod tests;
mod value;
mod write;
mod ziplist;

pub use encode::Sink;
pub use error::{Corrupt, Error, ErrorKind, ModuleType};
pub use format::{Type, VERSION, VERSION_REDIS, VersionCheck, is_foreign};
pub use input::Progress;
pub use load::{Key, Summary, Target, load_into};
pub use payload::{RestoreError, RestoreFunctionsError, dump_functions, restore, restore_functions};
pub use read::{Checksum, Event, ReadOptions, Reader, Record as ReadRecord, Stage, ValueOptions};
pub use value::{Loaded, ValueRef};
pub use write::{Gradual, Preface, Record, Usage, WriteError, WriteOptions, Writer, dump, save_record, value_len};
