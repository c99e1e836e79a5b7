//! What holds for every storage: a directory, and a bucket of a real server if there is one.

use super::*;
use crate::manifest::{self, Dump, VERSION, name_of};
use kvick_testing::servers::ObjectStorage;
use std::fs;

/// Bytes of the first part of an upload.
const PART: usize = 8 << 20;

fn for_each_storage(test: impl Fn(&dyn Storage)) {
    let directory = tempfile::tempdir().expect("a directory");
    test(&Directory::new(directory.path().join("backups")));
    if let Some(server) = ObjectStorage::start(&[]) {
        test(&bucket(&server, "backups"));
        test(&bucket(&server, "backups/one/and=two"));
    }
}

fn bucket(server: &ObjectStorage, place: &str) -> Bucket {
    let variables = server.environment();
    let variable = |wanted: &str| variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone());
    Bucket::open(place, &variable).expect("settings")
}

fn list(storage: &dyn Storage) -> Vec<String> {
    storage.list().expect("names")
}

fn manifest(name: &str, files: &[(&str, usize)]) -> Manifest {
    let dump = |(file, bytes): &(&str, usize)| Dump {
        file: (*file).to_owned(),
        node: "127.0.0.1:1".into(),
        slots: Vec::new(),
        moment_unix_ms: 0,
        replication_id: String::new(),
        replication_offset: 0,
        keys: 0,
        bytes: *bytes as u64,
        crc64: String::new(),
    };
    let shards = files.iter().map(dump).collect();
    Manifest { version: VERSION, name: name.to_owned(), cluster: false, span_ms: 0, shards }
}

/// Bytes of which no two parts are alike: lines with numbers.
fn content(length: usize) -> Vec<u8> {
    let mut content = Vec::with_capacity(length + 100);
    (0..=length / 100).try_for_each(|number| write!(content, "{number:0100}")).expect("memory");
    content.truncate(length);
    content
}

fn write(staged: &dyn Staged, file: &str, content: &[u8]) {
    let mut out = staged.create(file).expect("a file");
    // Not in pieces of the size of a part.
    content.chunks(300_000).for_each(|piece| out.write_all(piece).expect("written"));
    out.finish().expect("finished");
}

#[test]
fn only_complete_backups_are_there() {
    for_each_storage(|storage| {
        let name = name_of(0);
        drop(storage.stage(&name).expect("staged"));
        let staged = storage.stage(&name).expect("staged");
        write(&*staged, "shard-0.rdb", b"dump");
        assert_eq!(list(storage), [""; 0]);
        assert!(storage.read(&name, manifest::FILE).is_err_and(|error| error.to_string().contains("has no backup")));
        drop(staged);

        let staged = storage.stage(&name).expect("staged");
        write(&*staged, "shard-0.rdb", b"dump");
        let manifest = manifest(&name, &[("shard-0.rdb", 4)]);
        staged.publish(&manifest).expect("published");
        assert_eq!(list(storage), [&*name]);
        assert_eq!(Manifest::read(storage, &name).expect("a manifest"), manifest);
        assert!(storage.read(&name, "shard-1.rdb").is_err());
        for other in ["../backups", "", ".", "a/b", "missing"] {
            assert!(
                storage.read(other, manifest::FILE).is_err_and(|error| error.to_string().contains("has no backup"))
            );
            assert!(storage.remove(other).is_err(), "{other}");
        }
        storage.remove(&name).expect("removed");
        assert_eq!(list(storage), [""; 0]);
        assert!(storage.read(&name, "shard-0.rdb").is_err());
    });
}

#[test]
fn files_of_any_size_are_read_as_they_were_written() {
    for_each_storage(|storage| {
        let name = name_of(0);
        let staged = storage.stage(&name).expect("staged");
        let sizes = [0, 1, PART - 1, PART, PART + 1, 5 * PART / 2];
        let files: Vec<(String, usize)> = sizes.iter().map(|size| (format!("shard-{size}.rdb"), *size)).collect();
        files.iter().for_each(|(file, size)| write(&*staged, file, &content(*size)));
        let files: Vec<(&str, usize)> = files.iter().map(|(file, size)| (&**file, *size)).collect();
        staged.publish(&manifest(&name, &files)).expect("published");
        for (file, size) in files {
            let mut found = Vec::new();
            storage.read(&name, file).and_then(|mut input| input.read_to_end(&mut found)).expect("read");
            assert!(found == content(size), "{file}: {} bytes", found.len());
        }
    });
}

#[test]
fn names_are_in_the_order_of_time() {
    for_each_storage(|storage| {
        let names = [3, 1, 2].map(name_of);
        for name in &names {
            storage.stage(name).expect("staged").publish(&manifest(name, &[])).expect("published");
        }
        assert_eq!(list(storage), [1, 2, 3].map(name_of));
    });
}

#[test]
fn what_failed_backups_leave_is_removed_when_it_is_old() {
    for_each_storage(|storage| {
        let (complete, failed, other) = (name_of(1), name_of(2), "photos");
        storage.stage(&complete).expect("staged").publish(&manifest(&complete, &[])).expect("published");
        // As if the program was killed.
        for name in [&*failed, other] {
            let staged = storage.stage(name).expect("staged");
            write(&*staged, "shard-0.rdb", b"dump");
            let mut out = staged.create("shard-1.rdb").expect("a file");
            out.write_all(&content(PART + 1)).expect("written");
            std::mem::forget((out, staged));
        }
        let removed = |age_s| storage.remove_leftovers(Duration::from_secs(age_s)).expect("leftovers");
        assert_eq!(removed(3600), [""; 0]);
        assert_eq!(removed(0), [&*failed]);
        assert_eq!(removed(0), [""; 0]);
        assert_eq!(list(storage), [complete]);
    });
}

#[test]
fn files_that_are_not_finished_do_not_exist() {
    for_each_storage(|storage| {
        let name = name_of(0);
        let staged = storage.stage(&name).expect("staged");
        let mut out = staged.create("shard-0.rdb").expect("a file");
        out.write_all(&content(3 * PART)).expect("written");
        drop(out);
        staged.publish(&manifest(&name, &[])).expect("published");
        assert!(storage.read(&name, "shard-0.rdb").is_err());
        storage.remove(&name).expect("removed");
        assert_eq!(storage.remove_leftovers(Duration::ZERO).expect("leftovers"), [""; 0]);
    });
}

#[test]
fn backups_whose_files_somebody_else_removed_are_not_published() {
    for_each_storage(|storage| {
        let name = name_of(0);
        let staged = storage.stage(&name).expect("staged");
        write(&*staged, "shard-0.rdb", b"dump");
        assert_eq!(storage.remove_leftovers(Duration::ZERO).expect("leftovers"), [&*name]);
        assert!(staged.publish(&manifest(&name, &[("shard-0.rdb", 4)])).is_err());
        assert_eq!(list(storage), [""; 0]);
    });
}

#[test]
fn buckets_with_many_objects_are_listed_page_by_page() {
    let Some(server) = ObjectStorage::start(&[]) else { return };
    let names: Vec<String> = (0..1_100).map(name_of).collect();
    for name in &names {
        let directory = server.objects().join("many").join(name);
        fs::create_dir_all(&directory).expect("a directory");
        fs::write(directory.join(manifest::FILE), "{}").expect("a file");
    }
    assert_eq!(list(&bucket(&server, "backups/many")), names);
    assert_eq!(list(&bucket(&server, "backups")), [""; 0]);
}

#[test]
fn buckets_that_cannot_be_used_say_what_to_do() {
    let Some(server) = ObjectStorage::start(&[]) else { return };
    let error = |place: &str, name: &str, value: &str| {
        let mut variables = server.environment();
        variables.retain(|(other, _)| *other != name);
        let variable = |wanted: &str| match wanted {
            wanted if wanted == name => Some(value.to_owned()),
            wanted => variables.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.clone()),
        };
        let bucket = Bucket::open(place, &variable).expect("settings");
        let error = bucket.stage("x").map(drop).expect_err("it fails").to_string();
        assert!(!error.contains(ObjectStorage::SECRET_KEY) && !error.contains("Signature="), "{error}");
        error
    };
    assert!(error("missing/prefix", "", "").contains("create the bucket"));
    assert!(error("backups", "AWS_ACCESS_KEY_ID", "other").contains("check AWS_ACCESS_KEY_ID"));
    assert!(error("backups", "AWS_SECRET_ACCESS_KEY", "other").contains("check AWS_SECRET_ACCESS_KEY"));
    assert!(error("backups", "AWS_REGION", "mars-1").contains("set AWS_REGION"));
}
