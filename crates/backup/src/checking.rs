//! One pass over a dump: size, checksum, validity and number of keys, while it is copied.

use kvick_rdb::check::{CheckOptions, check_stream};
use kvick_rdb::crc64;
use std::io::{self, Read, Write};
use std::path::Path;

/// What was found.
#[derive(Debug)]
pub(crate) struct Passed {
    /// Size of the dump.
    pub(crate) bytes: u64,
    /// CRC-64 of the whole dump, as Redis computes it, in hexadecimal digits.
    pub(crate) crc64: String,
    /// Number of keys, with expired ones; or why the dump is not valid.
    pub(crate) keys: Result<u64, String>,
}

/// Copies a dump to `out`, up to its end, and checks it meanwhile as `kvick-check-rdb` does.
///
/// # Errors
/// If `input` or `out` fails. A dump that is not valid is copied too.
pub(crate) fn pass(name: &str, input: &mut dyn Read, out: &mut dyn Write) -> io::Result<Passed> {
    let mut copy = Copy { input, out, bytes: 0, crc64: 0, failure: None };
    let mut report = Vec::new();
    let options = CheckOptions { path: Path::new(name).to_owned(), hide_user_data: true, ..CheckOptions::default() };
    let valid = check_stream(&options, &mut copy, &mut report)?;
    // The check takes a failure for the end of the dump.
    match copy.failure.take() {
        Some(error) => return Err(error),
        None => io::copy(&mut copy, &mut io::sink())?,
    };
    let keys = valid.map(|valid| valid.keys);
    let keys = keys.ok_or_else(|| format!("{name} is no valid dump:\n{}", String::from_utf8_lossy(&report)));
    Ok(Passed { bytes: copy.bytes, crc64: format!("{:016x}", copy.crc64), keys })
}

/// Copies what is read, counts it and computes its checksum.
struct Copy<'a> {
    input: &'a mut dyn Read,
    out: &'a mut dyn Write,
    bytes: u64,
    crc64: u64,
    failure: Option<io::Error>,
}

impl Read for Copy<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer).and_then(|count| self.out.write_all(&buffer[..count]).map(|()| count));
        match read {
            Ok(count) => {
                self.bytes += count as u64;
                self.crc64 = crc64::update(self.crc64, &buffer[..count]);
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                let same = io::Error::new(error.kind(), error.to_string());
                self.failure = Some(error);
                Err(same)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Input that fails behind its bytes.
    struct Failing<'a>(&'a [u8]);

    impl Read for Failing<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() { Err(io::ErrorKind::TimedOut.into()) } else { self.0.read(buffer) }
        }
    }

    /// A dump without keys.
    fn empty_dump() -> Vec<u8> {
        let mut dump = b"REDIS0011\xff".to_vec();
        let sum = crc64::update(0, &dump);
        dump.extend(sum.to_le_bytes());
        dump
    }

    #[test]
    fn dumps_are_copied_summed_and_checked_at_once() {
        let dump = empty_dump();
        let mut copy = Vec::new();
        let passed = pass("a", &mut &dump[..], &mut copy).expect("copied");
        assert_eq!((passed.bytes, passed.keys, copy), (dump.len() as u64, Ok(0), dump.clone()));
        assert_eq!(passed.crc64, format!("{:016x}", crc64::update(0, &dump)));
    }

    #[test]
    fn damaged_dumps_are_copied_to_their_end() {
        let mut dump = empty_dump();
        dump[2] ^= 1;
        dump.extend([0; 100_000]);
        let mut copy = Vec::new();
        let passed = pass("a", &mut &dump[..], &mut copy).expect("copied");
        assert!(passed.keys.is_err_and(|report| report.starts_with("a is no valid dump")));
        assert!(passed.bytes == dump.len() as u64 && copy == dump);
    }

    #[test]
    fn failures_are_not_taken_for_damage() {
        for dump in [&empty_dump()[..12], &empty_dump()] {
            let error = pass("a", &mut Failing(dump), &mut Vec::new()).expect_err("it fails");
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        }
        let mut full = [0; 4];
        let error = pass("a", &mut &empty_dump()[..], &mut &mut full[..]).expect_err("it fails");
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
    }
}
