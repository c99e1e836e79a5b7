//! Valkey's Sentinel monitors Kvick servers, and promotes a replica when the primary fails.
//!
//! [`common::peer::sentinel`] finds its program; without it the test prints so and passes.

mod common;

use common::{Server, free_port, peer};
use redis::{Connection, cmd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Maximum time of a failover: Sentinel needs some seconds, and tries again after 20.
const WAIT_LIMIT: Duration = Duration::from_secs(60);

/// A Sentinel, ended when dropped.
struct Sentinel {
    child: Child,
    port: u16,
    data_dir: TempDir,
}

impl Sentinel {
    fn watch(program: PathBuf, primary: u16) -> Sentinel {
        let (data_dir, port) = (TempDir::new().expect("a directory"), free_port());
        let file = data_dir.path().join("sentinel.conf");
        let lines = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary} 1\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 20000\n"
        );
        std::fs::write(&file, lines).expect("a file");
        let log = std::fs::File::create(data_dir.path().join("log")).expect("a log");
        let child = Command::new(program)
            .arg(&file)
            .arg("--sentinel")
            .current_dir(data_dir.path())
            .stdin(Stdio::null())
            .stdout(log)
            .spawn()
            .expect("the program");
        Sentinel { child, port, data_dir }
    }

    fn client(&self) -> Connection {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port)).expect("an address");
        let mut connection = None;
        wait_for("Sentinel answers", || {
            connection = client.get_connection().ok();
            connection.is_some()
        });
        connection.expect("a connection")
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            print!(
                "Sentinel's log:\n{}",
                std::fs::read_to_string(self.data_dir.path().join("log")).unwrap_or_default()
            );
        }
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < WAIT_LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Asked by a new connection: Sentinel has those closed that a server had before it changed sides. That may be this
/// one, which then is asked once more.
fn ask<T: redis::FromRedisValue>(server: &Server, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    let url = format!("redis://127.0.0.1:{}/", server.port());
    let answer = || {
        let mut connection = redis::Client::open(&*url)?.get_connection()?;
        connection.set_read_timeout(Some(WAIT_LIMIT))?;
        command.query(&mut connection)
    };
    match answer() {
        Err(error) if error.is_connection_dropped() => answer().expect("an answer"),
        answer => answer.expect("an answer"),
    }
}

fn info(server: &Server) -> String {
    ask(server, &["INFO", "replication"])
}

#[test]
fn sentinel_promotes_a_replica_of_a_dead_primary() {
    let Some(program) = peer::sentinel() else { return };
    for workers in ["1", "4"] {
        let start = || Server::start(&["--io-threads", workers, "--repl-diskless-sync-delay", "0"]);
        let primary = start();
        let replicas = [start(), start()];
        for replica in &replicas {
            let () = ask(replica, &["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
            wait_for("the link is up", || info(replica).contains("master_link_status:up"));
        }
        let sentinel = Sentinel::watch(program.clone(), primary.port());
        let mut watcher = sentinel.client();
        // As quick as a test needs it.
        let hurry = ["info-period", "500", "publish-period", "300", "ping-period", "200"];
        let () = cmd("SENTINEL").arg("DEBUG").arg(&hurry).query(&mut watcher).expect("OK");
        wait_for("Sentinel knows both replicas", || {
            let known: Vec<redis::Value> =
                cmd("SENTINEL").arg("REPLICAS").arg("main").query(&mut watcher).expect("a list");
            known.len() == 2
        });
        let mut client = primary.client();
        let () = cmd("SET").arg("key").arg("value").query(&mut client).expect("OK");
        let had: usize = cmd("WAIT").arg(2).arg(5000).query(&mut client).expect("a number");
        assert_eq!(had, 2);
        let old = primary.port();
        primary.signal(libc::SIGKILL);
        let mut address: (String, u16) = Default::default();
        wait_for("another is the primary", || {
            address = cmd("SENTINEL")
                .arg("GET-MASTER-ADDR-BY-NAME")
                .arg("main")
                .query::<(String, String)>(&mut watcher)
                .map(|(host, port)| (host, port.parse().expect("a port")))
                .expect("an address");
            address.1 != old
        });
        let new = replicas.iter().position(|replica| replica.port() == address.1).expect("one of the replicas");
        let (new, other) = (&replicas[new], &replicas[1 - new]);
        wait_for("it says so itself", || info(new).contains("role:master"));
        wait_for("the other follows it", || {
            let info = info(other);
            info.contains(&format!("master_port:{}", address.1)) && info.contains("master_link_status:up")
        });
        let () = ask(new, &["SET", "key", "newer"]);
        wait_for("the other has what is written", || ask::<String>(other, &["GET", "key"]) == "newer");
        // It went on from where it was.
        let info: String = ask(new, &["INFO", "stats"]);
        assert!(info.contains("sync_full:0") && info.contains("sync_partial_ok:1"), "{info}");
    }
}
