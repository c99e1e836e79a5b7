//! `kvick-operator local` with real processes: it creates a cluster, scales it to three shards and back under load,
//! heals a killed primary, and continues after it was killed itself. Each write checks that the acknowledged one
//! before it is there. With a replica, that one takes over; with two, the one that has all writes, also if it answers
//! late.

mod support;

use kvick_operator::observe::Access;
use kvick_testing::programs::kvick_server;
use kvick_testing::{SetOnDrop, free_ports};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use support::{Follower, KEYS, Writes, connect, wait};

/// Ports that an operator may use, from the first on. It uses some more than it has nodes.
const PORTS: u16 = 32;

struct Operator {
    child: Child,
    file: PathBuf,
}

impl Operator {
    fn start(file: &Path) -> Operator {
        Operator { child: spawn(file), file: file.to_owned() }
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills the operator and starts another one; the nodes go on.
    fn replace(&mut self) {
        self.kill();
        self.child = spawn(&self.file);
    }
}

fn spawn(file: &Path) -> Child {
    let output = fs::File::options().create(true).append(true).open(file.with_extension("log")).expect("a log");
    Command::new(env!("CARGO_BIN_EXE_kvick-operator"))
        .args(["local", "--plain"])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(Stdio::inherit())
        .spawn()
        .expect("an operator")
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", fs::read_to_string(self.file.with_extension("log")).unwrap_or_default());
        }
        let stop =
            Command::new(env!("CARGO_BIN_EXE_kvick-operator")).args(["local", "--stop"]).arg(&self.file).status();
        assert!(stop.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn write_config(file: &Path, program: &Path, port: u16, shards: u32, replicas: u32) {
    let text = format!(
        "directory = \"nodes\"\nprogram = {program:?}\nfirst-port = {port}\ninterval-ms = 200\n\
         [limits]\nshards-min = {shards}\nshards-max = {shards}\nreplicas = {replicas}\n\
         [server]\ncluster-node-timeout = 3000\n"
    );
    // As a whole, since the operator may read it at any time.
    fs::write(file.with_extension("next"), text).expect("a file");
    fs::rename(file.with_extension("next"), file).expect("a file");
}

fn signal(name: &str, pid: i32) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().expect("kill");
    assert!(status.success());
}

/// The records of nodes: port and process.
fn nodes(dir: &Path) -> Vec<(u16, i32)> {
    let records = fs::read_dir(dir.join("nodes")).into_iter().flatten().filter_map(|entry| {
        let text = fs::read(entry.ok()?.path().join("node.json")).ok()?;
        let record: serde_json::Value = serde_json::from_slice(&text).ok()?;
        Some((record["port"].as_u64()? as u16, record["pid"].as_i64()? as i32))
    });
    records.collect()
}

#[test]
fn a_cluster_is_created_scaled_and_healed_without_losing_writes() {
    let Some(program) = kvick_server() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("cluster.toml");
    let port = free_ports(PORTS);
    write_config(&file, &program, port, 1, 0);
    let mut operator = Operator::start(&file);
    wait("one shard has all slots", || slots(dir.path()).is_some_and(|counts| counts == [16384]));

    let end = AtomicBool::new(false);
    let writes = Writes::new();
    let follower = || Follower::new(|| endpoints(dir.path()));
    std::thread::scope(|scope| {
        let _end = SetOnDrop(&end);
        scope.spawn(|| writes.write(&mut follower(), &end));
        let writes_go_on = || writes.go_on(2 * KEYS);
        writes_go_on();

        write_config(&file, &program, port, 3, 0);
        let have_slots = |counts: Vec<usize>| counts.len() == 3 && !counts.contains(&0);
        wait("three shards have slots", || slots(dir.path()).is_some_and(have_slots));
        writes_go_on();

        // A primary without a replica is started again, with its data.
        let (_, pid) = nodes(dir.path())[1];
        signal("KILL", pid);
        wait("the process was replaced", || {
            nodes(dir.path()).len() == 3 && !nodes(dir.path()).iter().any(|n| n.1 == pid)
        });
        wait("the cluster is complete again", || slots(dir.path()).is_some_and(have_slots));
        writes_go_on();

        // Another operator continues with the same processes.
        let before = nodes(dir.path());
        operator.replace();
        write_config(&file, &program, port, 1, 0);
        wait("one shard is left", || slots(dir.path()).is_some_and(|counts| counts == [16384]));
        assert!(before.contains(&nodes(dir.path())[0]), "the remaining process is one that ran before");
        writes_go_on();
    });

    writes.check(&mut follower());
    drop(operator);
}

fn endpoints(dir: &Path) -> Vec<String> {
    nodes(dir).iter().map(|(port, _)| format!("127.0.0.1:{port}")).collect()
}

fn slots(dir: &Path) -> Option<Vec<usize>> {
    support::slots(&endpoints(dir), &Access::default())
}

/// The node that is a primary, and how many others have a copy of its data. `None` if a node does not answer.
fn primary(dir: &Path) -> Option<((u16, i32), usize)> {
    let replication = |(port, _): &(u16, i32)| {
        let mut client = connect(&format!("127.0.0.1:{port}")).ok()?;
        Some(client.ask(&["INFO", "replication"]).ok()?.text())
    };
    let nodes = nodes(dir);
    let infos: Vec<String> = nodes.iter().map(replication).collect::<Option<_>>()?;
    let primary = infos.iter().position(|info| info.contains("role:master"))?;
    let is_replica = |info: &&String| info.contains("role:slave") && info.contains("master_link_status:up");
    Some((nodes[primary], infos.iter().filter(is_replica).count()))
}

#[test]
fn a_replica_takes_over_and_the_killed_primary_follows_it() {
    let Some(program) = kvick_server() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("cluster.toml");
    write_config(&file, &program, free_ports(PORTS), 1, 1);
    let operator = Operator::start(&file);
    let is_complete = || {
        let has_replica = primary(dir.path()).is_some_and(|(_, replicas)| replicas == 1);
        has_replica && slots(dir.path()).is_some_and(|counts| counts.len() == 2 && counts.contains(&16384))
    };
    wait("the shard has a replica", is_complete);

    let ((port, pid), _) = primary(dir.path()).expect("a primary");
    let mut client = connect(&format!("127.0.0.1:{port}")).expect("a client");
    for key in 0..KEYS {
        let reply = client.ask(&["SET".to_owned(), format!("key:{key}"), key.to_string()]).expect("a reply");
        assert_eq!(reply.text(), "OK");
    }
    // Replication is asynchronous: only what the replica has is safe.
    wait("the replica has all writes", || client.ask(&["WAIT", "1", "1000"]).is_ok_and(|reply| reply.integer() == 1));
    signal("KILL", pid);
    wait("the replica has taken over", || primary(dir.path()).is_some_and(|((new, _), _)| new != port));
    wait("the old primary is a replica", is_complete);

    let ((new_port, _), _) = primary(dir.path()).expect("a primary");
    assert_ne!(new_port, port);
    let mut client = connect(&format!("127.0.0.1:{new_port}")).expect("a client");
    for key in 0..KEYS {
        let reply = client.ask(&["GET".to_owned(), format!("key:{key}")]).expect("a reply");
        assert_eq!(reply.text(), key.to_string());
    }
    drop(operator);
}

#[test]
fn a_replica_with_more_data_takes_over_although_it_answers_late() {
    /// More than what is on the way to a replica that does not read.
    const WRITES: usize = 64;
    let Some(program) = kvick_server() else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("cluster.toml");
    write_config(&file, &program, free_ports(PORTS), 1, 2);
    let operator = Operator::start(&file);
    let is_complete = || {
        let has_replicas = primary(dir.path()).is_some_and(|(_, replicas)| replicas == 2);
        has_replicas && slots(dir.path()).is_some_and(|counts| counts.len() == 3 && counts.contains(&16384))
    };
    wait("the shard has two replicas", is_complete);

    let ((port, pid), _) = primary(dir.path()).expect("a primary");
    let replicas: Vec<(u16, i32)> = nodes(dir.path()).into_iter().filter(|node| node.0 != port).collect();
    let [(late_port, late), (_, behind)] = replicas[..] else { panic!("{replicas:?}") };
    signal("STOP", behind);
    let mut client = connect(&format!("127.0.0.1:{port}")).expect("a client");
    let value = "v".repeat(1 << 20);
    for key in 0..WRITES {
        assert_eq!(client.ask(&["SET", &format!("key:{key}"), &value]).expect("a reply").text(), "OK");
    }
    wait("one replica has all writes", || client.ask(&["WAIT", "1", "1000"]).is_ok_and(|reply| reply.integer() == 1));
    signal("STOP", late);
    signal("KILL", pid);
    signal("CONT", behind);
    // Time for the operator to see that only the other one answers.
    std::thread::sleep(Duration::from_secs(4));
    signal("CONT", late);
    wait("it has taken over", || primary(dir.path()).is_some_and(|((new, _), _)| new == late_port));
    wait("the others follow", is_complete);

    let mut client = connect(&format!("127.0.0.1:{late_port}")).expect("a client");
    assert_eq!(client.ask(&["DBSIZE"]).expect("a reply").integer(), WRITES as i64);
    drop(operator);
}
