//! Writing: a dump to a writer, one entry to a sink, a DUMP payload.

use crate::encode::{ChecksumWriter, Encoder, Sink};
use crate::format::{Type, VERSION, VERSION_REDIS, has_valkey_magic, opcode};
use crate::value::{self, ValueRef};
use kvick_store::snapshot::pieces::Piece;
use kvick_store::{Access, Entry};
use std::convert::Infallible;
use std::fmt;
use std::io::{self, Write};

/// Options for writing a dump.
#[derive(Clone, Copy, Debug)]
pub struct WriteOptions {
    /// The version of the format: [`VERSION`] or [`VERSION_REDIS`].
    pub version: u16,
    /// Whether strings are compressed (`rdbcompression`).
    pub compress: bool,
    /// Whether the dump ends with its checksum (`rdbchecksum`); otherwise with zeros.
    pub checksum: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        WriteOptions { version: VERSION, compress: true, checksum: true }
    }
}

impl WriteOptions {
    /// For servers that support nothing newer than Redis 7.2.
    pub fn for_redis() -> Self {
        WriteOptions { version: VERSION_REDIS, ..Self::default() }
    }
}

/// The access time or frequency of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Usage {
    /// Not recorded.
    #[default]
    Unknown,
    /// Seconds since the last access.
    IdleSeconds(u64),
    /// The logarithmic access counter.
    Frequency(u8),
}

/// A key to be written.
#[derive(Clone, Copy)]
pub struct Record<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its value.
    pub value: ValueRef<'a>,
    /// Its expiry: Unix time in milliseconds.
    pub expiry_ms: Option<i64>,
    /// Its access time or frequency.
    pub usage: Usage,
}

impl<'a> Record<'a> {
    /// An entry of the keyspace, without its usage.
    pub fn new(entry: Entry<'a>) -> Record<'a> {
        let usage = Usage::Unknown;
        Record { key: entry.key(), value: ValueRef::from(entry), expiry_ms: entry.expiry(), usage }
    }

    /// An entry of the keyspace with its usage, for a `maxmemory-policy` that depends on it.
    pub fn with_usage(entry: Entry<'a>, access: &Access) -> Record<'a> {
        let usage = if access.lfu {
            Usage::Frequency(access.frequency(entry.clock()) as u8)
        } else {
            Usage::IdleSeconds(access.idle_seconds(entry.clock()))
        };
        Record { usage, ..Record::new(entry) }
    }
}

/// Why a record could not be written.
#[derive(Debug)]
pub enum WriteError<E> {
    /// The sink returned an error.
    Sink(E),
    /// The version of the format does not support the value (a hash with expiring fields). Nothing was written.
    Unrepresentable,
}

impl<E> From<E> for WriteError<E> {
    fn from(error: E) -> Self {
        WriteError::Sink(error)
    }
}

impl<E: fmt::Display> fmt::Display for WriteError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Sink(error) => error.fmt(f),
            WriteError::Unrepresentable => f.write_str("the value cannot be stored in this version of the format"),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> std::error::Error for WriteError<E> {}

/// Appends one record in the format of a dump. A dump can be assembled from such records: see [`Writer::captured`].
pub fn save_record<S: Sink>(
    sink: &mut S,
    record: &Record<'_>,
    options: &WriteOptions,
) -> Result<(), WriteError<S::Error>> {
    let kind = record.value.type_in(options.version).ok_or(WriteError::Unrepresentable)?;
    let mut encoder = Encoder::new(sink, options.compress);
    save_key(record, kind, &mut encoder)?;
    value::save(record.value, kind, &mut encoder)?;
    Ok(())
}

/// Writes everything before a value.
fn save_key<S: Sink>(record: &Record<'_>, kind: Type, encoder: &mut Encoder<'_, S>) -> Result<(), S::Error> {
    if let Some(at) = record.expiry_ms {
        encoder.byte(opcode::EXPIRY_MS)?;
        encoder.time(at)?;
    }
    match record.usage {
        Usage::Unknown => {}
        Usage::IdleSeconds(seconds) => {
            encoder.byte(opcode::IDLE)?;
            encoder.length(seconds)?;
        }
        Usage::Frequency(frequency) => encoder.raw(&[opcode::FREQUENCY, frequency])?,
    }
    encoder.byte(kind.byte())?;
    encoder.string(record.key)
}

/// A record whose value is written in pieces as they are captured (see [`kvick_store::snapshot`]):
/// its bytes are those that [`save_record`] writes, except for the order of pieces.
#[derive(Debug)]
pub struct Gradual {
    kind: Type,
    compress: bool,
    /// The bytes after the pieces.
    tail: Vec<u8>,
}

impl Gradual {
    /// Writes the part before the pieces.
    pub fn begin(
        out: &mut Vec<u8>,
        record: &Record<'_>,
        options: &WriteOptions,
    ) -> Result<Gradual, WriteError<Infallible>> {
        let kind = record.value.type_in(options.version).ok_or(WriteError::Unrepresentable)?;
        let mut encoder = Encoder::new(out, options.compress);
        save_key(record, kind, &mut encoder)?;
        value::save_head(record.value, &mut encoder)?;
        let mut tail = Vec::new();
        value::save_tail(record.value, &mut Encoder::new(&mut tail, options.compress))?;
        Ok(Gradual { kind, compress: options.compress, tail })
    }

    /// Writes a piece.
    pub fn piece(&self, out: &mut Vec<u8>, piece: Piece<'_>) {
        let Ok(()) = value::save_piece(piece, self.kind, &mut Encoder::new(out, self.compress));
    }

    /// Writes the part after the pieces.
    pub fn end(self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.tail);
    }
}

/// Appends a value as returned by DUMP: type, value, version, checksum.
pub fn dump(value: ValueRef<'_>, options: &WriteOptions, payload: &mut Vec<u8>) -> Result<(), WriteError<Infallible>> {
    let kind = value.type_in(options.version).ok_or(WriteError::Unrepresentable)?;
    let start = payload.len();
    payload.push(kind.byte());
    value::save(value, kind, &mut Encoder::new(payload, options.compress))?;
    seal(payload, start, options.version);
    Ok(())
}

/// Ends a payload that begins at `start`: appends the version, and the checksum of everything before it.
pub(crate) fn seal(payload: &mut Vec<u8>, start: usize, version: u16) {
    payload.extend_from_slice(&version.to_le_bytes());
    let sum = crate::crc64::update(0, &payload[start..]);
    payload.extend_from_slice(&sum.to_le_bytes());
}

/// Size of a value in a dump, in bytes, without its type.
pub fn value_len(value: ValueRef<'_>, options: &WriteOptions) -> Result<u64, WriteError<Infallible>> {
    let kind = value.type_in(options.version).ok_or(WriteError::Unrepresentable)?;
    let mut counted = Counted(0);
    value::save(value, kind, &mut Encoder::new(&mut counted, options.compress))?;
    Ok(counted.0)
}

/// Counts bytes.
struct Counted(u64);

impl Sink for Counted {
    type Error = Infallible;

    fn put(&mut self, bytes: &[u8]) -> Result<(), Infallible> {
        self.0 += bytes.len() as u64;
        Ok(())
    }
}

/// The auxiliary fields at the beginning of a dump.
#[derive(Clone, Debug, Default)]
pub struct Preface<'a> {
    /// The version of Valkey with which the server is compatible.
    pub valkey_version: &'a str,
    /// Unix time in seconds.
    pub created_s: u64,
    /// Memory used by the server, in bytes.
    pub used_memory: u64,
    /// Replication: the database selected in the stream, the replication ID and the offset.
    pub replication: Option<(i64, &'a str, i64)>,
    /// Whether the dump is the base of an append-only file.
    pub aof_base: bool,
}

/// Writes a dump incrementally to `W`.
///
/// ```
/// # use kvick_rdb::{Preface, Record, Usage, ValueRef, WriteOptions, Writer};
/// # use kvick_store::Str;
/// # fn main() -> std::io::Result<()> {
/// let mut writer = Writer::new(Vec::new(), WriteOptions::default())?;
/// writer.preface(&Preface { valkey_version: "9.1.0", ..Preface::default() })?;
/// writer.select_db(0, 1, 0)?;
/// let value = ValueRef::Str(Str::Bytes(b"world"));
/// writer.record(&Record { key: b"hello", value, expiry_ms: None, usage: Usage::Unknown }).expect("strings fit");
/// let (file, _sum) = writer.finish()?;
/// assert_eq!(file[..9], *b"VALKEY080");
/// # Ok(())
/// # }
/// ```
pub struct Writer<W> {
    out: ChecksumWriter<W>,
    options: WriteOptions,
}

impl<W: Write> Writer<W> {
    /// Starts a dump.
    pub fn new(writer: W, options: WriteOptions) -> io::Result<Self> {
        let mut out = ChecksumWriter::new(writer, options.checksum);
        let name = if has_valkey_magic(options.version.into()) { "VALKEY" } else { "REDIS0" };
        out.put(format!("{name}{:03}", options.version).as_bytes())?;
        Ok(Writer { out, options })
    }

    /// Writes the auxiliary fields at the beginning of every dump.
    pub fn preface(&mut self, preface: &Preface<'_>) -> io::Result<()> {
        self.aux(b"valkey-ver", preface.valkey_version.as_bytes())?;
        self.aux_number("redis-bits", usize::BITS.into())?;
        self.aux_number("ctime", preface.created_s as i64)?;
        self.aux_number("used-mem", preface.used_memory as i64)?;
        if let Some((db, id, offset)) = preface.replication {
            self.aux_number("repl-stream-db", db)?;
            self.aux(b"repl-id", id.as_bytes())?;
            self.aux_number("repl-offset", offset)?;
        }
        self.aux_number("aof-base", preface.aof_base.into())
    }

    fn aux_number(&mut self, name: &str, number: i64) -> io::Result<()> {
        self.aux(name.as_bytes(), number.to_string().as_bytes())
    }

    /// Writes an auxiliary field about the dump or the server.
    pub fn aux(&mut self, name: &[u8], value: &[u8]) -> io::Result<()> {
        self.out.put(&[opcode::AUX])?;
        let mut encoder = self.encoder();
        encoder.string(name)?;
        encoder.string(value)
    }

    /// Writes the source of a function library.
    pub fn function(&mut self, code: &[u8]) -> io::Result<()> {
        self.out.put(&[opcode::FUNCTION])?;
        self.encoder().string(code)
    }

    /// Writes a slot import in progress: its name of 40 bytes, and the first and last slot of each range.
    pub fn slot_import(&mut self, job: &[u8; 40], ranges: &[(u16, u16)]) -> io::Result<()> {
        self.out.put(&[opcode::SLOT_IMPORT])?;
        let mut encoder = self.encoder();
        encoder.string(job)?;
        encoder.length(ranges.len() as u64)?;
        for (first, last) in ranges {
            encoder.length((*first).into())?;
            encoder.length((*last).into())?;
        }
        Ok(())
    }

    /// Writes the database of the following records, with its number of keys and of keys with an expiry.
    pub fn select_db(&mut self, number: u64, keys: u64, volatile: u64) -> io::Result<()> {
        let mut encoder = self.encoder();
        encoder.byte(opcode::SELECT_DB)?;
        encoder.length(number)?;
        encoder.byte(opcode::RESIZE_DB)?;
        encoder.length(keys)?;
        encoder.length(volatile)
    }

    /// Writes the slot of the following records, with its number of
    /// keys, of keys with an expiry, and of keys with expiring elements.
    pub fn slot_info(&mut self, slot: u16, keys: u64, volatile: u64, volatile_inside: u64) -> io::Result<()> {
        self.aux(b"slot-info", format!("{slot},{keys},{volatile},{volatile_inside}").as_bytes())
    }

    /// Writes a key with its value. A large value is written in several parts.
    pub fn record(&mut self, record: &Record<'_>) -> Result<(), WriteError<io::Error>> {
        save_record(&mut self.out, record, &self.options)
    }

    /// Writes records that were encoded by [`save_record`] with the same options.
    pub fn captured(&mut self, records: &[u8]) -> io::Result<()> {
        self.out.put(records)
    }

    /// Number of bytes written so far, including buffered ones.
    pub fn written(&self) -> u64 {
        self.out.len()
    }

    /// Writes the buffered bytes to the writer and flushes it.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush_buffer()?;
        self.out.get_mut().flush()
    }

    /// The writer, for example to sync a file periodically. Buffered bytes have not reached it yet.
    pub fn get_mut(&mut self) -> &mut W {
        self.out.get_mut()
    }

    /// Ends the dump; returns the writer and the checksum, which is 0 if disabled.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        self.out.put(&[opcode::EOF])?;
        let sum = self.out.sum()?;
        self.out.put(&sum.to_le_bytes())?;
        self.flush()?;
        Ok((self.out.into_inner(), sum))
    }

    fn encoder(&mut self) -> Encoder<'_, ChecksumWriter<W>> {
        Encoder::new(&mut self.out, self.options.compress)
    }
}
