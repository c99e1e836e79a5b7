//! Tests of loading whole dumps into a target, and of the output of checks.

use super::{file, record};
use crate::check::{CheckOptions, check_file};
use crate::{Checksum, Error, ErrorKind, Key, ReadOptions, Summary, Target, load_into};
use kvick_store::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::ops::ControlFlow;

/// Keeps everything it receives.
#[derive(Default)]
struct Recorder {
    keys: BTreeMap<(u64, Vec<u8>), (Option<i64>, Value)>,
    expired: Vec<(u64, Vec<u8>, usize)>,
    sizes: Vec<(u64, u64, u64)>,
    functions: usize,
}

impl Target for Recorder {
    type Error = Error;

    fn key(&mut self, key: Key<'_>, value: Value) -> Result<(), Error> {
        self.keys.insert((key.db, key.name.to_vec()), (key.expiry_ms, value));
        Ok(())
    }

    fn expired(&mut self, db: u64, name: &[u8], fields: &[Vec<u8>]) -> Result<(), Error> {
        self.expired.push((db, name.to_vec(), fields.len()));
        Ok(())
    }

    fn database(&mut self, db: u64, keys: u64, volatile: u64) -> Result<(), Error> {
        self.sizes.push((db, keys, volatile));
        Ok(())
    }

    fn function(&mut self, _code: Vec<u8>) -> Result<(), Error> {
        self.functions += 1;
        Ok(())
    }
}

/// A function; then in database 0 a key, one that expires at 1 ms, and a list without elements; in database 3 a hash
/// with a field that expires at 5000 ms and one that does not, and a hash whose fields have all expired by then.
fn sample() -> Vec<u8> {
    let (at, never) = (5000i64.to_le_bytes(), (-1i64).to_le_bytes());
    let body = [
        &b"\xf5\x04code\xfe\x00\xfb\x03\x01"[..],
        b"\x00\x01a\x01v",
        b"\xfc\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01b\x01v",
        b"\x01\x01c\x00",
        b"\xfe\x03",
        b"\x16\x01d\x02\x01f\x01v",
        &at,
        b"\x01g\x01w",
        &never,
        &record(22, &[&b"\x01\x01f\x01v"[..], &at].concat()),
    ];
    file(80, &body.concat())
}

#[test]
fn a_primary_skips_expired_keys() {
    let mut recorder = Recorder::default();
    let dump = [&sample()[..], b"what follows"].concat();
    let loaded = load_into(&dump[..], ReadOptions::default(), Some(6000), None, &mut recorder);
    let (summary, mut rest) = loaded.expect("a sound dump");
    let expected = Summary { keys: 2, expired: 1, empty: 1, all_fields_expired: 1, checksum: Checksum::Absent };
    assert_eq!(summary, expected);
    let names: Vec<_> = recorder.keys.keys().cloned().collect();
    assert_eq!(names, [(0, b"a".to_vec()), (3, b"d".to_vec())]);
    assert_eq!(recorder.expired, [(0, b"b".to_vec(), 0), (3, b"d".to_vec(), 1), (3, b"k".to_vec(), 1)]);
    assert_eq!(recorder.sizes, [(0, 0, 0), (0, 3, 1), (3, 0, 0)]);
    assert_eq!(recorder.functions, 1);
    let mut left = Vec::new();
    rest.read_to_end(&mut left).expect("memory");
    assert_eq!(left, b"what follows");
}

#[test]
fn a_replica_keeps_expired_keys() {
    let mut recorder = Recorder::default();
    let (summary, _) =
        load_into(&sample()[..], ReadOptions::default(), None, None, &mut recorder).expect("a sound dump");
    assert_eq!((summary.keys, summary.expired, summary.all_fields_expired), (4, 0, 0));
    assert_eq!(recorder.keys[&(0, b"b".to_vec())].0, Some(1));
    assert!(recorder.expired.is_empty());
}

#[test]
fn loading_can_be_cancelled() {
    let progress: crate::Progress<'_> = Box::new(|_| ControlFlow::Break(()));
    let (dump, mut recorder) = (sample(), Recorder::default());
    let loaded = load_into(&dump[..], ReadOptions::default(), None, Some(progress), &mut recorder);
    assert!(matches!(loaded.err().map(|error| error.kind), Some(ErrorKind::Cancelled)));
}

/// The output of a check of this dump, and whether it is valid.
fn check(dump: &[u8], args: &[&str]) -> (String, bool) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("dump");
    std::fs::write(&path, dump).expect("a temporary file");
    let args = [path.to_str().expect("a plain name")].into_iter().chain(args.iter().copied());
    let options = CheckOptions::from_args(args.map(str::to_owned)).expect("a sound command line");
    let mut out = Vec::new();
    let is_valid = check_file(&options, &mut out).expect("a vector");
    (String::from_utf8(out).expect("text"), is_valid)
}

#[test]
fn a_valid_dump_is_reported_valid() {
    let (output, is_valid) = check(&sample(), &[]);
    assert!(is_valid);
    for line in ["] Selecting DB ID 3\n", "] \\o/ RDB looks OK! \\o/\n", "[info] 5 keys read\n", "[info] 1 functions\n"]
    {
        assert!(output.contains(line), "{output}");
    }
    let (output, is_valid) = check(&file(12, b""), &[]);
    assert!(is_valid);
    assert!(output.contains("[offset 9] Foreign RDB version 12 detected\n"), "{output}");
    assert!(output.contains("RDB looks OK, but loading requires config 'rdb-version-check relaxed'\n"), "{output}");
}

#[test]
fn statistics_are_counted_by_database_and_kind() {
    let (output, _) = check(&sample(), &["--stats", "--format", "info"]);
    for line in [
        "db.0.type.string.keys.total:2\n",
        "db.0.type.string.expire_keys.total:1\n",
        "db.3.type.hash.elements.total:3\n",
        "db.3.type.hash.elements.num.avg:1.50\n",
    ] {
        assert!(output.contains(line), "{output}");
    }
    let (output, _) = check(&sample(), &["--stats", "--format", "csv"]);
    assert!(output.contains("db.0.keys.total,2,0,0,0,0,0,0\n"), "{output}");
}

#[test]
fn a_broken_dump_is_reported_with_its_offset() {
    let dump = sample();
    let (output, is_valid) = check(&dump[..dump.len() - 20], &[]);
    assert!(!is_valid);
    assert!(output.contains(&format!("[offset {}] Unexpected EOF reading RDB file\n", dump.len() - 20)), "{output}");
    assert!(output.contains("While doing: read-object-value\n[additional info] Reading key 'k'\n"), "{output}");
    let (output, is_valid) = check(&file(75, &record(150, b"")), &[]);
    assert!(!is_valid);
    assert!(output.contains("] Unknown object type 150 in RDB file with foreign version 75\n"), "{output}");
}

#[test]
fn invalid_command_lines_are_refused() {
    for args in [&[][..], &["x", "--format"], &["x", "--format", "xml"], &["x", "--output"], &["x", "--nonsense"]] {
        assert_eq!(CheckOptions::from_args(args.iter().map(|arg| (*arg).to_owned())), None, "{args:?}");
    }
}
