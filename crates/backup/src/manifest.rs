//! What a backup consists of.

use crate::storage::Storage;
use serde::{Deserialize, Serialize};
use std::io::{self, Read};

/// Name of the file with the manifest.
pub const FILE: &str = "manifest.json";
/// The version that is written. Others are not read.
pub const VERSION: u32 = 1;
/// Bytes of the largest manifest that is read.
const BYTES_MAX: u64 = 64 << 20;

/// The file `manifest.json`. It is complete if it exists: it is the last file that is written.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Manifest {
    /// Version of this format.
    pub version: u32,
    /// Name of the backup: when it was begun, in UTC.
    pub name: String,
    /// Whether it is one of a cluster.
    pub cluster: bool,
    /// Time between the first and the last snapshot, in milliseconds.
    pub span_ms: u64,
    /// The dumps.
    pub shards: Vec<Dump>,
}

/// The dump of a shard.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Dump {
    /// Name of the file.
    pub file: String,
    /// Address of the node that sent it.
    pub node: String,
    /// First and last slot of each range. Empty without cluster mode.
    pub slots: Vec<(u16, u16)>,
    /// When the snapshot was begun, in milliseconds of Unix time.
    pub moment_unix_ms: u64,
    /// The replication history that the dump is a state of.
    pub replication_id: String,
    /// The offset in that history.
    pub replication_offset: u64,
    /// Keys in the dump, with expired ones.
    pub keys: u64,
    /// Size of the file.
    pub bytes: u64,
    /// CRC-64 of the file, as Redis computes it, in hexadecimal digits.
    pub crc64: String,
}

impl Manifest {
    /// Reads the manifest of a backup.
    ///
    /// # Errors
    /// If there is no such backup, or if its manifest is not one of this version with plain file names.
    pub fn read(storage: &dyn Storage, name: &str) -> io::Result<Manifest> {
        let mut text = String::new();
        storage.read(name, FILE)?.take(BYTES_MAX).read_to_string(&mut text)?;
        Manifest::parse(&text).map_err(|error| io::Error::other(format!("{name}/{FILE}: {error}")))
    }

    fn parse(text: &str) -> io::Result<Manifest> {
        let manifest: Manifest = serde_json::from_str(text)?;
        if manifest.version != VERSION {
            return Err(io::Error::other(format!("version {} is not known", manifest.version)));
        }
        // A name that leads out of the directory would read other files.
        match manifest.shards.iter().find(|dump| !is_plain(&dump.file)) {
            Some(dump) => Err(io::Error::other(format!("'{}' is no plain file name", dump.file))),
            None => Ok(manifest),
        }
    }

    /// The file's content.
    pub fn text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// Keys of all dumps.
    pub fn keys(&self) -> u64 {
        self.shards.iter().map(|dump| dump.keys).sum()
    }

    /// Bytes of all dumps.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|dump| dump.bytes).sum()
    }
}

/// Whether a name is that of a file or directory in the present one, and not hidden.
pub(crate) fn is_plain(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && !name.starts_with('.') && name.chars().all(is_plain)
}

/// Whether a name is one that [`name_of`] gives.
pub(crate) fn is_name(name: &str) -> bool {
    const FORM: &[u8] = b"0000-00-00T00-00-00.000Z";
    let fits = |(byte, form): (u8, &u8)| if *form == b'0' { byte.is_ascii_digit() } else { byte == *form };
    name.len() == FORM.len() && name.bytes().zip(FORM).all(fits)
}

/// The name of a backup that begins at a Unix time: `2026-01-31T23-59-59.999Z`.
pub fn name_of(unix_ms: u64) -> String {
    let (seconds, ms) = (unix_ms / 1000, unix_ms % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}.{ms:03}Z")
}

/// Year, month and day of a number of days since 1970, in the Gregorian calendar. Years begin in March here, so that
/// the leap day is the last one.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_utc_and_sort_by_time() {
        assert_eq!(name_of(0), "1970-01-01T00-00-00.000Z");
        assert_eq!(name_of(1_709_251_199_999), "2024-02-29T23-59-59.999Z");
        assert_eq!(name_of(1_709_251_200_000), "2024-03-01T00-00-00.000Z");
        assert_eq!(name_of(4_102_444_799_000), "2099-12-31T23-59-59.000Z");
        assert!(is_name(&name_of(1_709_251_199_999)));
        for other in ["", "photos", "2024-02-29T23-59-59.999", "2024-02-29T23-59-59.99xZ", "2024-02-29T23-59-59.999Z0"]
        {
            assert!(!is_name(other), "{other}");
        }
    }

    #[test]
    fn manifests_are_read_as_written_and_checked() {
        let dump = Dump {
            file: "shard-0.rdb".into(),
            node: "127.0.0.1:1".into(),
            slots: vec![(0, 16_383)],
            moment_unix_ms: 1,
            replication_id: "x".into(),
            replication_offset: 2,
            keys: 3,
            bytes: 4,
            crc64: "00".into(),
        };
        let manifest = Manifest { version: VERSION, name: "n".into(), cluster: true, span_ms: 0, shards: vec![dump] };
        assert_eq!(Manifest::parse(&manifest.text()).expect("valid"), manifest);
        let mut other = manifest.clone();
        other.version += 1;
        assert!(Manifest::parse(&other.text()).is_err());
        let mut outside = manifest;
        outside.shards[0].file = "../shard-0.rdb".into();
        assert!(Manifest::parse(&outside.text()).is_err());
    }
}
