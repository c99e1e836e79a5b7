//! RESTORE: a value from the bytes that DUMP returned, whichever server did.

use crate::crc64;
use crate::decode::Decoder;
use crate::error::Error;
use crate::format::{FOREIGN_BYTES, Type, VERSION_REDIS_7_4, VersionCheck, is_foreign};
use crate::input::Payload;
use crate::read::ValueOptions;
use crate::value::{Builder, Loaded};
use kvick_store::Value;
use std::fmt;

/// Bytes of the version and the sum behind the value.
const FOOTER_LEN: usize = 10;

/// Why a payload is not restored. Prints as the error reply says it, without code word.
#[derive(Debug)]
pub enum RestoreError {
    /// It is too short, of a version that is not accepted, or its sum is wrong.
    VersionOrChecksum,
    /// A type that another project may have given this number.
    Foreign(u8),
    /// It does not hold a value; the reason, if it has been looked into.
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

/// Reads a payload. `checks` is false where sums are not looked at (`DEBUG SET-SKIP-CHECKSUM-VALIDATION`).
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
