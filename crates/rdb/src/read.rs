//! Reading a dump as a sequence of events.

use crate::decode::Decoder;
use crate::error::{Corrupt, Error, ErrorKind, ModuleType};
use crate::format::{FOREIGN_BYTES, Type, VersionCheck, has_valkey_magic, opcode};
use crate::input::{Input, Progress, Stream};
use crate::module;
use crate::value::{Builder, Loaded};
use crate::write::Usage;
use kvick_store::EncodingLimits;
use std::io::{Chain, Cursor, Read};

/// Options for reading a dump.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Which versions are accepted.
    pub version_check: VersionCheck,
    /// Whether the checksum at the end is verified (`rdbchecksum`).
    pub checksum: bool,
    /// Whether data of modules is skipped. Otherwise it is an error, because it would be lost.
    pub skip_modules: bool,
    /// How values are built.
    pub values: ValueOptions,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions {
            version_check: VersionCheck::Strict,
            checksum: true,
            skip_modules: false,
            values: ValueOptions::default(),
        }
    }
}

/// Options for building values.
#[derive(Clone, Debug, Default)]
pub struct ValueOptions {
    /// The limits of the compact encodings.
    pub encoding: EncodingLimits,
    /// Fields of hashes that expired before this Unix time in milliseconds are skipped. `None`
    /// loads them all, as a replica, or an append-only file with commands after the dump, requires.
    pub expire_fields_before_ms: Option<i64>,
}

/// An item of a dump, in order.
#[derive(Debug)]
pub enum Event {
    /// An auxiliary field about the dump or the server that wrote it.
    Aux {
        /// Its name.
        name: Vec<u8>,
        /// Its value.
        value: Vec<u8>,
    },
    /// The database of the following entries; 0 before the first of these events.
    SelectDb(u64),
    /// The size of the database.
    ResizeDb {
        /// Number of keys.
        keys: u64,
        /// Number of keys with an expiry.
        volatile: u64,
    },
    /// The size of a slot, as older servers wrote it; newer ones use the auxiliary field `slot-info`.
    SlotInfo {
        /// The slot.
        slot: u64,
        /// Number of keys in it.
        keys: u64,
        /// Number of keys with an expiry.
        volatile: u64,
    },
    /// A slot import that is in progress in a cluster.
    SlotImport {
        /// Its name.
        job: [u8; 40],
        /// First and last slot of each range.
        ranges: Vec<(u16, u16)>,
    },
    /// The source of a function library.
    Function(Vec<u8>),
    /// Data of a module that does not belong to a key; it was skipped.
    ModuleAux(ModuleType),
    /// A key and its value. [`Reader::key`] returns the key's name.
    Entry(Record),
    /// The end of the dump.
    End(Checksum),
}

/// The value of a key and its attributes.
#[derive(Debug)]
pub struct Record {
    /// The value.
    pub value: Loaded,
    /// The names of fields that were skipped because they had expired.
    pub expired_fields: Vec<Vec<u8>>,
    /// The key's expiry: Unix time in milliseconds.
    pub expiry_ms: Option<i64>,
    /// The key's access time or frequency.
    pub usage: Usage,
}

/// The result of the checksum at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// It matches.
    Verified,
    /// The dump was written without a checksum.
    Absent,
    /// It was not verified.
    Ignored,
    /// The dump's version does not support checksums.
    None,
}

/// The item being read, for error messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The signature.
    Start,
    /// A type or opcode.
    Type,
    /// The expiry of a key.
    Expiry,
    /// A key.
    Key,
    /// The value of a key.
    Value(Type),
    /// The checksum at the end.
    Checksum,
    /// A database's number or size.
    Length,
    /// An auxiliary field.
    Aux,
    /// Data of a module.
    ModuleAux,
    /// A function library.
    Function,
}

/// Reads a dump from `R`, which needs no buffering.
///
/// ```
/// # use kvick_rdb::{Event, ReadOptions, Reader, Error};
/// # fn main() -> Result<(), Error> {
/// let dump = b"REDIS0003\xfe\x00\x00\x05hello\x05world\xff";
/// let mut reader = Reader::new(&dump[..], ReadOptions::default())?;
/// while let Some(event) = reader.next_event()? {
///     if let Event::Entry(_) = event {
///         assert_eq!(reader.key(), b"hello");
///     }
/// }
/// # Ok(())
/// # }
/// ```
pub struct Reader<'r, R> {
    decoder: Decoder<Stream<'r, R>>,
    options: ReadOptions,
    version: u32,
    key: Vec<u8>,
    stage: Stage,
    ended: bool,
}

impl<'r, R: Read> Reader<'r, R> {
    /// Reads the signature and the version.
    pub fn new(reader: R, options: ReadOptions) -> Result<Self, Error> {
        Self::open(reader, options, None)
    }

    /// Like [`Reader::new`], and calls `progress` periodically with the number of bytes read.
    pub fn with_progress(reader: R, options: ReadOptions, progress: Progress<'r>) -> Result<Self, Error> {
        Self::open(reader, options, Some(progress))
    }

    pub(crate) fn open(reader: R, options: ReadOptions, progress: Option<Progress<'r>>) -> Result<Self, Error> {
        let mut decoder = Decoder::new(Stream::new(reader, options.checksum, progress));
        let version = read_version(&mut decoder, options.version_check)?;
        Ok(Reader { decoder, options, version, key: Vec::new(), stage: Stage::Start, ended: false })
    }

    /// The dump's version.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Bytes read so far.
    pub fn offset(&self) -> u64 {
        self.decoder.input.offset()
    }

    /// The item that was read last.
    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// The key that was read last.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The next event; `None` after the end. Must not be called again after an error.
    pub fn next_event(&mut self) -> Result<Option<Event>, Error> {
        if self.ended {
            return Ok(None);
        }
        self.ended = true;
        let event = self.read_event()?;
        self.ended = matches!(event, Event::End(_));
        Ok(Some(event))
    }

    /// The input after the dump: the commands after a preamble, or the end mark after a dump from a socket.
    pub fn into_rest(self) -> Chain<Cursor<Vec<u8>>, R> {
        let (ahead, reader) = self.decoder.input.into_parts();
        Cursor::new(ahead).chain(reader)
    }

    fn read_event(&mut self) -> Result<Event, Error> {
        let (mut expiry_ms, mut usage) = (None, Usage::Unknown);
        loop {
            self.stage = Stage::Type;
            let byte = self.decoder.byte()?;
            return Ok(match byte {
                opcode::EXPIRY_SECONDS => {
                    self.stage = Stage::Expiry;
                    let seconds = i32::from_le_bytes(self.decoder.array()?);
                    expiry_ms = Some(i64::from(seconds) * 1000);
                    continue;
                }
                opcode::EXPIRY_MS => {
                    self.stage = Stage::Expiry;
                    expiry_ms = Some(self.decoder.time()?);
                    continue;
                }
                opcode::FREQUENCY => {
                    usage = Usage::Frequency(self.decoder.byte()?);
                    continue;
                }
                opcode::IDLE => {
                    usage = Usage::IdleSeconds(self.decoder.number()?);
                    continue;
                }
                opcode::EOF => Event::End(self.end()?),
                opcode::SELECT_DB => {
                    self.stage = Stage::Length;
                    Event::SelectDb(self.decoder.number()?)
                }
                opcode::RESIZE_DB => {
                    self.stage = Stage::Length;
                    Event::ResizeDb { keys: self.decoder.number()?, volatile: self.decoder.number()? }
                }
                opcode::SLOT_INFO => Event::SlotInfo {
                    slot: self.decoder.number()?,
                    keys: self.decoder.number()?,
                    volatile: self.decoder.number()?,
                },
                opcode::SLOT_IMPORT if has_valkey_magic(self.version) => self.slot_import()?,
                opcode::AUX => {
                    self.stage = Stage::Aux;
                    Event::Aux { name: self.decoder.owned()?, value: self.decoder.owned()? }
                }
                opcode::MODULE_AUX => {
                    self.stage = Stage::ModuleAux;
                    Event::ModuleAux(self.module_aux()?)
                }
                opcode::FUNCTION_PRE_RELEASE => {
                    return Err(self.decoder.corrupt(Corrupt::PreRelease("function")));
                }
                opcode::FUNCTION => {
                    self.stage = Stage::Function;
                    Event::Function(self.decoder.owned()?)
                }
                _ => {
                    let (value, expired_fields) = self.record(byte)?;
                    Event::Entry(Record { value, expired_fields, expiry_ms, usage })
                }
            });
        }
    }

    /// Reads a key and its value.
    fn record(&mut self, byte: u8) -> Result<(Loaded, Vec<Vec<u8>>), Error> {
        let version = self.version;
        let Some(kind) = Type::from_byte(byte, version) else {
            let foreign = !has_valkey_magic(version) && FOREIGN_BYTES.contains(&byte);
            return Err(self.decoder.fail(if foreign {
                ErrorKind::Foreign { byte, version }
            } else {
                ErrorKind::UnknownType { byte, version }
            }));
        };
        self.stage = Stage::Key;
        self.key.clear();
        let key = self.decoder.string()?;
        self.key.extend_from_slice(key.bytes(&mut [0; 20]));
        self.stage = Stage::Value(kind);
        let mut builder = Builder::new(&self.options.values, self.options.skip_modules);
        let value = builder.load(kind, &mut self.decoder)?;
        Ok((value, builder.expired_fields))
    }

    fn end(&mut self) -> Result<Checksum, Error> {
        self.stage = Stage::Checksum;
        if self.version < 5 {
            return Ok(Checksum::None);
        }
        let expected = self.decoder.input.sum();
        let found = u64::from_le_bytes(self.decoder.array()?);
        if !self.options.checksum {
            Ok(Checksum::Ignored)
        } else if found == 0 {
            Ok(Checksum::Absent)
        } else if found == expected {
            Ok(Checksum::Verified)
        } else {
            Err(self.decoder.fail(ErrorKind::Checksum { expected, found }))
        }
    }

    fn slot_import(&mut self) -> Result<Event, Error> {
        let job = self.decoder.owned()?;
        let len = job.len();
        let job = job.try_into().map_err(|_| self.decoder.corrupt(Corrupt::SlotImportName(len)))?;
        let count = self.decoder.number()?;
        let mut ranges = Vec::new();
        for _ in 0..count {
            let (first, last) = (self.decoder.number()?, self.decoder.number()?);
            match (u16::try_from(first), u16::try_from(last)) {
                (Ok(first), Ok(last)) if first <= last && last < 16384 => ranges.push((first, last)),
                _ => return Err(self.decoder.corrupt(Corrupt::SlotImport)),
            }
        }
        Ok(Event::SlotImport { job, ranges })
    }

    fn module_aux(&mut self) -> Result<ModuleType, Error> {
        let name = ModuleType(self.decoder.number()?);
        let (mark, _when) = (self.decoder.number()?, self.decoder.number()?);
        if mark != module::UINT {
            return Err(self.decoder.corrupt(Corrupt::ModuleData));
        }
        if !self.options.skip_modules {
            return Err(self.decoder.fail(ErrorKind::Module(name)));
        }
        module::skip(&mut self.decoder)?;
        Ok(name)
    }
}

/// Reads the nine bytes that a dump begins with.
fn read_version<I: Input>(decoder: &mut Decoder<I>, check: VersionCheck) -> Result<u32, Error> {
    let signature = decoder.array::<9>()?;
    let valkey = match signature.first_chunk() {
        Some(b"REDIS0") => false,
        Some(b"VALKEY") => true,
        _ => return Err(decoder.fail(ErrorKind::Signature(signature))),
    };
    let digits = signature[6..].iter().take_while(|byte| byte.is_ascii_digit());
    let version = digits.fold(0, |version, digit| version * 10 + u32::from(digit - b'0'));
    if valkey != has_valkey_magic(version) || !check.accepts(version) {
        return Err(decoder.fail(ErrorKind::Version(version)));
    }
    Ok(version)
}
