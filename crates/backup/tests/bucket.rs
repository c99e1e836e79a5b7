//! Backups of real servers in object storage, with a real server of that kind. If it is absent, the tests say so.

mod support;

use kvick_testing::programs::kvick_server;
use kvick_testing::servers::ObjectStorage;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use support::{Program, Server, cluster, content, fill, wait_for};

const STORAGE: &str = "s3://backups/production/main";
/// Values that a server has in tests of dumps that are larger than several parts.
const LARGE_DUMP_MB: u64 = 100;

fn servers() -> Option<(PathBuf, ObjectStorage)> {
    Some((kvick_server()?, ObjectStorage::start(&[])?))
}

/// A server with a dump of [`LARGE_DUMP_MB`].
fn large_server(program: &Path) -> Server {
    let server = Server::start(program, &["--rdbcompression", "no"]);
    server.ask(&["DEBUG", "POPULATE", &LARGE_DUMP_MB.to_string(), "key", "1000000"]);
    server
}

/// Files below a directory; none if it does not exist.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

/// Parts of uploads that are not completed.
fn parts(storage: &ObjectStorage) -> Vec<PathBuf> {
    files(&storage.objects().join(".sgwtmp").join("multipart"))
}

/// The files of all backups, also of those that are not complete.
fn objects(storage: &ObjectStorage) -> Vec<PathBuf> {
    files(&storage.objects().join("production"))
}

/// Flips a bit.
fn damage(path: &Path) {
    let file = File::options().read(true).write(true).open(path).expect("a dump");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 200).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], 200).expect("written");
}

#[test]
fn clusters_are_backed_up_into_a_bucket_and_restored_into_other_sizes() {
    let Some((kvick, storage)) = servers() else { return };
    let program = Program::with(storage.environment());
    let source = cluster(&kvick, 3, &[]);
    fill(&source, 0..100);
    let expected = content(&source, 0);
    assert_eq!(expected.len(), 900);
    let endpoint = source[1].endpoint();

    assert_eq!(program.succeeds(&["list", STORAGE]), "");
    for _ in 0..3 {
        let made = program.succeeds(&["create", STORAGE, "--endpoint", &endpoint, "--keep", "2"]);
        assert!(made.contains("3 shards, 900 keys"), "{made}");
    }
    let listed = program.succeeds(&["list", STORAGE]);
    let names: Vec<&str> = listed.lines().map(|line| &line[..24]).collect();
    assert!(names.len() == 2 && listed.matches("3 shards, 900 keys").count() == 2, "{listed}");
    assert_eq!(objects(&storage).len(), 2 * 4, "three dumps and a manifest each");
    assert_eq!(program.succeeds(&["verify", STORAGE]).matches(": valid").count(), 2);
    // Backups of others are elsewhere.
    assert_eq!(program.succeeds(&["list", "s3://backups/production/other"]), "");

    for nodes in [1, 4] {
        let target = cluster(&kvick, nodes, &[]);
        let restored = program.succeeds(&["restore", STORAGE, "latest", "--endpoint", &target[0].endpoint()]);
        assert!(restored.contains(names[1]) && restored.contains("900 keys"), "{restored}");
        assert_eq!(content(&target, 0), expected);
    }

    damage(&storage.objects().join("production/main").join(names[1]).join("shard-1.rdb"));
    let found = program.fails(&["verify", STORAGE]);
    assert!(found.contains(&format!("{}/shard-1.rdb: was changed since it was written", names[1])), "{found}");
    assert_eq!(found.matches(": valid").count(), 1);
    let target = [Server::start(&kvick, &[])];
    program.fails(&["restore", STORAGE, "latest", "--endpoint", &target[0].endpoint()]);
    assert_eq!(target[0].ask(&["DBSIZE"]).integer(), 0);
    fs::remove_file(storage.objects().join("production/main").join(names[1]).join("shard-1.rdb")).expect("removed");
    assert!(program.fails(&["verify", STORAGE, names[1]]).contains("NoSuchKey"));
    program.succeeds(&["restore", STORAGE, names[0], "--endpoint", &target[0].endpoint()]);
    assert_eq!(content(&target, 0), expected);
}

/// Runs the program to its end, and returns the most memory that it had, in bytes.
fn memory_peak(mut child: Child) -> u64 {
    let status = format!("/proc/{}/status", child.id());
    let mut peak_kib = 0;
    while child.try_wait().expect("a state").is_none() {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        peak_kib = line.and_then(|text| text.trim().parse().ok()).unwrap_or(peak_kib);
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    assert!(child.wait().expect("a status").success());
    peak_kib << 10
}

#[test]
fn memory_is_bounded_while_a_large_dump_passes() {
    let Some((kvick, storage)) = servers() else { return };
    let program = Program::with(storage.environment());
    let server = large_server(&kvick);
    let run = |arguments: &[&str]| {
        let peak_mib = memory_peak(program.command(arguments).stdout(Stdio::null()).spawn().expect("a program")) >> 20;
        eprintln!("{arguments:?}: {peak_mib} MiB");
        peak_mib
    };
    let endpoint = server.endpoint();
    // Three parts of 8 MiB, and what a program needs anyway.
    assert!((1..64).contains(&run(&["create", STORAGE, "--endpoint", &endpoint])));
    let dumps: Vec<u64> = objects(&storage).iter().map(|path| fs::metadata(path).expect("a file").len()).collect();
    assert!(dumps.iter().any(|bytes| *bytes > LARGE_DUMP_MB * 1_000_000), "{dumps:?}");
    assert!((1..48).contains(&run(&["verify", STORAGE])));
    let digest = || server.ask(&["DEBUG", "DIGEST-VALUE", "key:0", "key:99"]);
    let before = digest();
    server.ask(&["FLUSHALL"]);
    assert!((1..64).contains(&run(&["restore", STORAGE, "latest", "--endpoint", &endpoint])));
    assert_eq!(server.ask(&["DBSIZE"]).integer(), LARGE_DUMP_MB as i64);
    assert_eq!(digest(), before);
}

#[test]
fn uploads_go_on_after_the_server_of_the_bucket_was_killed() {
    let Some((kvick, mut storage)) = servers() else { return };
    let program = Program::with(storage.environment());
    let server = large_server(&kvick);
    let mut create =
        program.command(&["create", STORAGE, "--endpoint", &server.endpoint()]).spawn().expect("a program");
    wait_for("parts have arrived", || parts(&storage).len() > 1);
    storage.kill();
    assert!(create.try_wait().expect("a state").is_none(), "the upload was complete before");
    assert!(!objects(&storage).iter().any(|path| path.ends_with("manifest.json")));
    storage.restart();
    assert!(create.wait().expect("a status").success());
    assert!(program.succeeds(&["verify", STORAGE]).contains(&format!("{LARGE_DUMP_MB} keys")));
    assert_eq!(parts(&storage), [""; 0].map(PathBuf::from));
}

#[test]
fn what_a_killed_program_leaves_is_not_listed_and_removed_later() {
    let Some((kvick, storage)) = servers() else { return };
    let program = Program::with(storage.environment());
    let server = large_server(&kvick);
    let endpoint = server.endpoint();
    let mut create = program.command(&["create", STORAGE, "--endpoint", &endpoint]).spawn().expect("a program");
    wait_for("a part has arrived", || !parts(&storage).is_empty());
    create.kill().expect("killed");
    create.wait().expect("a status");
    assert_eq!(program.succeeds(&["list", STORAGE]), "");
    server.ask(&["FLUSHALL"]);
    // It may be a backup that goes on.
    let made = program.succeeds(&["create", STORAGE, "--endpoint", &endpoint, "--keep", "2"]);
    assert!(!made.contains("removed") && !parts(&storage).is_empty(), "{made}");
    let arguments = ["create", STORAGE, "--endpoint", &endpoint, "--keep", "2", "--leftovers-after", "1s"];
    wait_for("it is old", || program.succeeds(&arguments).contains("was not complete"));
    assert!(parts(&storage).is_empty());
    assert_eq!(program.succeeds(&["list", STORAGE]).lines().count(), 2);
}

#[test]
fn certificates_are_checked() {
    let Some(kvick) = kvick_server() else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let path = |name: &str| directory.path().join(name).to_str().expect("a path").to_owned();
    fs::write(path("certificate"), certified.cert.pem()).expect("a file");
    fs::write(path("key"), certified.signing_key.serialize_pem()).expect("a file");
    let options = ["--cert", &path("certificate"), "--key", &path("key")];
    let Some(storage) = ObjectStorage::start(&options) else { return };
    let mut variables = storage.environment();
    variables.push(("AWS_ENDPOINT_URL", storage.url("https")));
    let server = Server::start(&kvick, &[]);
    fill(std::slice::from_ref(&server), 0..10);
    let create = ["create", STORAGE, "--endpoint", &server.endpoint()];
    variables.push(("AWS_CA_BUNDLE", path("certificate")));
    let program = Program::with(variables);
    program.succeeds(&create);
    assert!(program.succeeds(&["verify", STORAGE]).contains("90 keys"));
    fs::write(path("certificate"), "").expect("a file");
    assert!(program.fails(&["list", STORAGE]).contains("certificate"));
}
