//! Backups of real servers: of a cluster, restored into one of another size, and from and to Valkey.

mod support;

use kvick_load::reply::Value;
use kvick_testing::SetOnDrop;
use kvick_testing::programs::{kvick_server, valkey_server};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{LIBRARY, PASSWORD, Program, Server, ask, cluster, content, fill, wait_for};

fn succeeds(arguments: &[&str]) -> String {
    Program::plain().succeeds(arguments)
}

fn fails(arguments: &[&str]) -> String {
    Program::plain().fails(arguments)
}

#[test]
fn cluster_is_restored_into_clusters_of_other_sizes() {
    let Some(program) = kvick_server() else { return };
    let source = cluster(&program, 3, &[]);
    fill(&source, 0..100);
    source.iter().for_each(|server| drop(server.ask(&["FUNCTION", "LOAD", LIBRARY])));
    let mut client = source[0].client();
    ask(&mut client, &["SELECT", "2"]);
    // Slot 0 is of the first node.
    ask(&mut client, &["SET", "{06S}in-another-database", "value"]);
    ask(&mut client, &["HSET", "{06S}fields", "a", "1", "b", "2"]);
    ask(&mut client, &["HPEXPIREAT", "{06S}fields", "4102444800000", "FIELDS", "1", "a"]);
    let expected = [content(&source, 0), content(&source, 2)];
    assert!(expected[0].len() == 900 && expected[1].len() == 2, "{} {}", expected[0].len(), expected[1].len());

    let directory = tempfile::tempdir().expect("a directory");
    let storage = directory.path().join("backups");
    let storage = storage.to_str().expect("a path");
    let made = succeeds(&["create", storage, "--endpoint", &source[1].endpoint()]);
    assert!(made.contains("3 shards, 902 keys"), "{made}");
    assert!(succeeds(&["list", storage]).contains("3 shards, 902 keys"));
    assert!(succeeds(&["verify", storage]).contains("valid"));

    for nodes in [1, 2, 4] {
        let target = cluster(&program, nodes, &[]);
        let endpoint = target[0].endpoint();
        let restored = succeeds(&["restore", storage, "latest", "--endpoint", &endpoint]);
        assert!(restored.contains("902 keys and 1 libraries"), "{restored}");
        assert_eq!([content(&target, 0), content(&target, 2)], expected);
        for server in &target {
            assert_eq!(server.ask(&["FCALL", "answer", "0"]).integer(), 42);
        }
        // A second time, keys are only overwritten if that is wanted.
        let refusal = fails(&["restore", storage, "latest", "--endpoint", &endpoint]);
        assert!(refusal.contains("already exists"), "{refusal}");
        succeeds(&["restore", storage, "latest", "--endpoint", &endpoint, "--replace"]);
        assert_eq!([content(&target, 0), content(&target, 2)], expected);
    }
}

#[test]
fn damaged_backups_are_found_and_not_restored() {
    let Some(program) = kvick_server() else { return };
    let server = [Server::start(&program, &[])];
    fill(&server, 0..20);
    let directory = tempfile::tempdir().expect("a directory");
    let storage = directory.path().to_str().expect("a path");
    let endpoint = server[0].endpoint();
    for _ in 0..4 {
        succeeds(&["create", storage, "--endpoint", &endpoint, "--keep", "2"]);
    }
    let names: Vec<String> = succeeds(&["list", storage]).lines().map(|line| line[..24].to_owned()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
    assert_eq!(fs::read_dir(storage).expect("a directory").count(), 2);

    let path = directory.path().join(&names[1]).join("shard-0.rdb");
    let file = File::options().read(true).write(true).open(&path).expect("a dump");
    let mut byte = [0];
    file.read_exact_at(&mut byte, 200).expect("a byte");
    file.write_all_at(&[byte[0] ^ 1], 200).expect("written");
    assert!(succeeds(&["verify", storage, &names[0]]).contains("valid"));
    let found = fails(&["verify", storage]);
    assert!(found.contains("was changed since it was written"), "{found}");
    server[0].ask(&["FLUSHALL"]);
    fails(&["restore", storage, "latest", "--endpoint", &endpoint]);
    assert_eq!(server[0].ask(&["DBSIZE"]).integer(), 0);
    file.set_len(100).expect("truncated");
    assert!(fails(&["verify", storage]).contains("has 100 bytes"));
    succeeds(&["restore", storage, &names[0], "--endpoint", &endpoint]);
    assert_eq!(server[0].ask(&["DBSIZE"]).integer(), 180);
    assert!(fails(&["restore", storage, "../x", "--endpoint", &endpoint]).contains("has no backup"));
}

/// A shard that does not answer leaves nothing behind, and a backup under writes has what was acknowledged before.
#[test]
fn backups_are_whole_or_not_there() {
    let Some(program) = kvick_server() else { return };
    let mut source = cluster(&program, 3, &["--cluster-require-full-coverage", "no"]);
    fill(&source, 0..10);
    let directory = tempfile::tempdir().expect("a directory");
    let storage = directory.path().join("backups");
    let storage = storage.to_str().expect("a path");
    let endpoint = source[0].endpoint();
    let stop = AtomicBool::new(false);
    let (before, after) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = source[0].client();
            while !stop.load(Ordering::Relaxed) {
                ask(&mut client, &["INCR", "{06S}counter"]);
            }
        });
        let stop = SetOnDrop(&stop);
        wait_for("writes have begun", || source[0].ask(&["GET", "{06S}counter"]).text().len() > 2);
        let count = || source[0].ask(&["GET", "{06S}counter"]).text().parse::<u64>().expect("a number");
        let before = count();
        succeeds(&["create", storage, "--endpoint", &endpoint]);
        let after = count();
        drop(stop);
        writer.join().expect("no panic");
        (before, after)
    });
    let target = [Server::start(&program, &[])];
    succeeds(&["restore", storage, "latest", "--endpoint", &target[0].endpoint()]);
    let restored: u64 = target[0].ask(&["GET", "{06S}counter"]).text().parse().expect("a number");
    assert!((before..=after).contains(&restored), "{before} {restored} {after}");

    drop(source.pop());
    fails(&["create", storage, "--endpoint", &endpoint]);
    assert_eq!(fs::read_dir(storage).expect("a directory").count(), 1);
}

#[test]
fn replicas_can_be_asked() {
    let Some(program) = kvick_server() else { return };
    let mut nodes = cluster(&program, 1, &[]);
    fill(&nodes, 0..10);
    let replica = Server::start(&program, &["--cluster-enabled", "yes"]);
    let (port, bus_port) = (nodes[0].port().to_string(), nodes[0].bus_port().to_string());
    replica.ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]);
    let id = nodes[0].ask(&["CLUSTER", "MYID"]).text();
    wait_for("the node is known", || {
        !matches!(replica.client().ask(&["CLUSTER", "REPLICATE", &id]), Ok(Value::Error(_)))
    });
    wait_for("the replica is in sync", || {
        replica.ask(&["INFO", "replication"]).text().contains("master_link_status:up")
    });
    let known = format!("127.0.0.1:{}", replica.port());
    nodes.push(replica);
    wait_for("the primary lists the replica", || {
        format!("{:?}", nodes[0].ask(&["CLUSTER", "SLOTS"])).contains(&format!("Integer({})", nodes[1].port()))
    });
    let directory = tempfile::tempdir().expect("a directory");
    let storage = directory.path().to_str().expect("a path");
    let made = succeeds(&["create", storage, "--endpoint", &nodes[0].endpoint(), "--from-replicas"]);
    assert!(made.contains("1 shards, 90 keys"), "{made}");
    let name = &made[..24];
    let manifest = fs::read_to_string(directory.path().join(name).join("manifest.json")).expect("a manifest");
    assert!(manifest.contains(&known), "{manifest}");
}

#[test]
fn valkey_is_backed_up_and_restored_into() {
    let (Some(program), Some(valkey)) = (kvick_server(), valkey_server((9, 0))) else { return };
    let directory = tempfile::tempdir().expect("a directory");
    let storage = directory.path().to_str().expect("a path");
    let (kvick, other) = ([Server::start(&program, &[])], [Server::start(&valkey, &[])]);
    fill(&other, 0..50);
    let expected = content(&other, 0);
    succeeds(&["create", storage, "--endpoint", &other[0].endpoint()]);
    succeeds(&["restore", storage, "latest", "--endpoint", &kvick[0].endpoint()]);
    assert_eq!(content(&kvick, 0), expected);
    succeeds(&["create", storage, "--endpoint", &kvick[0].endpoint()]);
    other[0].ask(&["FLUSHALL"]);
    succeeds(&["restore", storage, "latest", "--endpoint", &other[0].endpoint()]);
    assert_eq!(content(&other, 0), expected);
}

/// `docs/backup.md` names these rights.
#[test]
fn users_need_few_rights() {
    let Some(program) = kvick_server() else { return };
    let server = [Server::start(&program, &["--appendonly", "yes"])];
    fill(&server, 0..10);
    server[0].ask(&["FUNCTION", "LOAD", LIBRARY]);
    let (password, user) = (format!(">{PASSWORD}"), ["ACL", "SETUSER"]);
    let create = ["saver", "on", &password, "+cluster|slots", "+psync", "+replconf"];
    let restore =
        ["loader", "on", &password, "~*", "+cluster|slots", "+restore", "+select", "+asking", "+function|restore"];
    server[0].ask(&[&user[..], &create].concat());
    server[0].ask(&[&user[..], &restore].concat());
    let directory = tempfile::tempdir().expect("a directory");
    let storage = directory.path().to_str().expect("a path");
    let endpoint = server[0].endpoint();
    assert!(fails(&["create", storage, "--endpoint", &endpoint, "--user", "loader"]).contains("NOPERM"));
    succeeds(&["create", storage, "--endpoint", &endpoint, "--user", "saver"]);
    server[0].ask(&["FLUSHALL"]);
    server[0].ask(&["FUNCTION", "FLUSH"]);
    succeeds(&["restore", storage, "latest", "--endpoint", &endpoint, "--user", "loader"]);
    assert_eq!(server[0].ask(&["DBSIZE"]).integer(), 90);
    assert_eq!(server[0].ask(&["FCALL", "answer", "0"]).integer(), 42);
}
