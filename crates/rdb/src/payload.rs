//! RESTORE: a value from a DUMP payload of any server. FUNCTION
//! DUMP and FUNCTION RESTORE: function libraries in the same frame.

use crate::crc64;
use crate::decode::Decoder;
use crate::encode::Encoder;
use crate::error::Error;
use crate::format::{FOREIGN_BYTES, Type, VERSION_REDIS_7_4, VersionCheck, is_foreign, opcode};
use crate::input::{Input, Payload};
use crate::read::ValueOptions;
use crate::value::{Builder, Loaded};
use crate::write::{WriteOptions, seal};
use kvick_store::Value;
use std::convert::Infallible;
use std::fmt;

/// Size of the version and the checksum after the value, in bytes.
const FOOTER_LEN: usize = 10;

/// Why a payload cannot be restored. Formats as the text of the error reply, without its code.
#[derive(Debug)]
pub enum RestoreError {
    /// The payload is too short, has an unsupported version, or a wrong checksum.
    VersionOrChecksum,
    /// The type is one that another project may have defined.
    Foreign(u8),
    /// The payload does not contain a valid value; the reason, if known.
    BadData(Option<Error>),
}

impl fmt::Display for RestoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RestoreError::VersionOrChecksum => f.write_str("DUMP payload version or checksum are wrong"),
            RestoreError::Foreign(byte) => write!(f, "Unsupported foreign data type: {byte}"),
            RestoreError::BadData(_) => f.write_str("Bad data format"),
        }
    }
}

impl std::error::Error for RestoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            RestoreError::BadData(Some(error)) => Some(error),
            _ => None,
        }
    }
}

/// Reads a payload. With `checks` false, the checksum is ignored (`DEBUG SET-SKIP-CHECKSUM-VALIDATION`).
pub fn restore(
    payload: &[u8],
    check: VersionCheck,
    checks: bool,
    options: &ValueOptions,
) -> Result<Value, RestoreError> {
    let (body, version) = open(payload, check, checks).ok_or(RestoreError::VersionOrChecksum)?;
    let [byte, ..] = *body else { return Err(RestoreError::BadData(None)) };
    let Some(kind) = Type::from_byte(byte, version) else {
        let foreign = is_foreign(version) && Type::from_byte(byte, VERSION_REDIS_7_4 - 1).is_some();
        let clashes = foreign && FOREIGN_BYTES.contains(&byte);
        return Err(if clashes { RestoreError::Foreign(byte) } else { RestoreError::BadData(None) });
    };
    read(&body[1..], kind, options)
}

/// A payload with the sources of function libraries.
pub fn dump_functions<S: AsRef<[u8]>>(sources: &[S], options: &WriteOptions) -> Vec<u8> {
    let mut payload = Vec::new();
    for source in sources {
        payload.push(opcode::FUNCTION);
        let written: Result<(), Infallible> = Encoder::new(&mut payload, options.compress).string(source.as_ref());
        let Ok(()) = written;
    }
    seal(&mut payload, 0, options.version);
    payload
}

/// Why a payload of function libraries cannot be restored. Formats as the text of the error reply, without its code.
#[derive(Debug)]
pub enum RestoreFunctionsError {
    /// The payload is too short, has an unsupported version, or a wrong checksum.
    VersionOrChecksum,
    /// The libraries are in a pre-release format.
    PreRelease,
    /// The payload contains something other than libraries.
    NotFunctions,
    /// A library is truncated.
    BadData(Error),
}

impl fmt::Display for RestoreFunctionsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RestoreFunctionsError::VersionOrChecksum => "DUMP payload version or checksum are wrong",
            RestoreFunctionsError::PreRelease => "Pre-GA function format not supported",
            RestoreFunctionsError::NotFunctions => "given type is not a function",
            RestoreFunctionsError::BadData(_) => "failed loading the given functions payload",
        })
    }
}

impl std::error::Error for RestoreFunctionsError {}

/// The sources of the function libraries in a payload.
pub fn restore_functions(
    payload: &[u8],
    check: VersionCheck,
    checks: bool,
) -> Result<Vec<Vec<u8>>, RestoreFunctionsError> {
    let (body, _) = open(payload, check, checks).ok_or(RestoreFunctionsError::VersionOrChecksum)?;
    let mut decoder = Decoder::new(Payload::new(body));
    let mut sources = Vec::new();
    while decoder.input.offset() < body.len() as u64 {
        match decoder.byte().map_err(RestoreFunctionsError::BadData)? {
            opcode::FUNCTION => sources.push(decoder.owned().map_err(RestoreFunctionsError::BadData)?),
            opcode::FUNCTION_PRE_RELEASE => return Err(RestoreFunctionsError::PreRelease),
            _ => return Err(RestoreFunctionsError::NotFunctions),
        }
    }
    Ok(sources)
}

/// The type and value in a payload, and the version.
fn open(payload: &[u8], check: VersionCheck, checks: bool) -> Option<(&[u8], u32)> {
    let (body, footer) = payload.split_at_checked(payload.len().checked_sub(FOOTER_LEN)?)?;
    let (version, sum) = footer.split_first_chunk()?;
    let version = u32::from(u16::from_le_bytes(*version));
    let sum_is_right = || {
        let found = sum.first_chunk().copied().map(u64::from_le_bytes);
        found == Some(crc64::update(0, &payload[..payload.len() - sum.len()]))
    };
    (check.accepts(version) && (!checks || sum_is_right())).then_some((body, version))
}

fn read(bytes: &[u8], kind: Type, options: &ValueOptions) -> Result<Value, RestoreError> {
    let bad = |error| RestoreError::BadData(Some(error));
    let mut decoder = Decoder::new(Payload::new(bytes));
    match Builder::new(options, false).load(kind, &mut decoder).map_err(bad)? {
        Loaded::Value(value) => Ok(value),
        Loaded::Empty | Loaded::Expired | Loaded::Module(_) => Err(RestoreError::BadData(None)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::VERSION;

    #[test]
    fn function_libraries_round_trip_through_their_payload() {
        let options = WriteOptions { version: VERSION, compress: true, checksum: true };
        let sources = ["#!lua name=one\ncode", &"#!lua name=two\n".repeat(30)];
        let payload = dump_functions(&sources, &options);
        let restored = restore_functions(&payload, VersionCheck::Strict, true).expect("just written");
        assert_eq!(restored, sources.map(|source| source.as_bytes().to_vec()));
        for cut in 0..payload.len() {
            assert!(restore_functions(&payload[..cut], VersionCheck::Strict, true).is_err());
            assert!(restore_functions(&payload[cut..], VersionCheck::Strict, true).is_err() || cut == 0);
        }
        assert!(restore(&payload, VersionCheck::Strict, true, &ValueOptions::default()).is_err());
    }
}
