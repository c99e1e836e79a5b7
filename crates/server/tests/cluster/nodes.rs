//! Clusters of real processes: nodes of Kvick, and of Valkey where a test asks for them.

use crate::common::{free_port, wait_until};
use kvick_testing::WAIT_LIMIT;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Node timeout in milliseconds.
const NODE_TIMEOUT_MS: &str = "1500";

/// A running node.
pub struct Node {
    child: Child,
    dir: TempDir,
    program: PathBuf,
    args: Vec<String>,
    pub port: u16,
}

/// The program of Kvick.
pub fn kvick() -> PathBuf {
    env!("CARGO_BIN_EXE_kvick-server").into()
}

/// The program of Valkey: `KVICK_TEST_VALKEY`, or `valkey-server` in `VALKEY_BIN_DIR` or in `PATH`. Says so if there is
/// none, or if it is older than 9.0.
pub fn valkey() -> Option<PathBuf> {
    let named = std::env::var_os("KVICK_TEST_VALKEY").map(PathBuf::from);
    let in_dir = std::env::var_os("VALKEY_BIN_DIR").map(|dir| Path::new(&dir).join("valkey-server"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|dir| dir.join("valkey-server"));
    let Some(program) = named.into_iter().chain(in_dir).chain(in_path).find(|program| program.is_file()) else {
        println!("Not run: valkey-server is absent (KVICK_TEST_VALKEY, VALKEY_BIN_DIR, PATH)");
        return None;
    };
    let version = Command::new(&program).arg("--version").output().expect("its version");
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let major = version.split(" v=").nth(1).and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    if major.is_none_or(|major| major < 9) {
        println!("Not run: {} is older than 9.0: {version}", program.display());
        return None;
    }
    Some(program)
}

impl Node {
    /// Starts a node in a directory of its own, and waits until it answers.
    pub fn start(program: &Path, args: &[&str]) -> Node {
        let (port, bus_port) = (free_port(), free_port());
        let dir = tempfile::tempdir().expect("a directory");
        let mut all: Vec<String> = Vec::new();
        for (name, value) in [
            ("--port", port.to_string()),
            ("--cluster-port", bus_port.to_string()),
            ("--bind", "127.0.0.1".into()),
            ("--cluster-enabled", "yes".into()),
            ("--cluster-node-timeout", NODE_TIMEOUT_MS.into()),
            ("--save", String::new()),
            ("--dir", dir.path().display().to_string()),
            ("--logfile", dir.path().join("log").display().to_string()),
        ] {
            all.extend([name.to_owned(), value]);
        }
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let child = spawn(program, &all);
        let node = Node { child, dir, program: program.into(), args: all, port };
        node.wait_for_start();
        node
    }

    fn wait_for_start(&self) {
        wait_until("the node answers", || {
            let url = format!("redis://127.0.0.1:{}/", self.port);
            let connection = redis::Client::open(url).and_then(|client| client.get_connection());
            connection.is_ok_and(|mut connection| redis::cmd("PING").query::<String>(&mut connection).is_ok())
        });
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again after it was killed.
    pub fn restart(&mut self) {
        self.child = spawn(&self.program, &self.args);
        self.wait_for_start();
    }

    /// Its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// A new connection.
    pub fn client(&self) -> redis::Connection {
        let url = format!("redis://127.0.0.1:{}/", self.port);
        let connection = redis::Client::open(url).and_then(|client| client.get_connection()).expect("a connection");
        connection.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        connection
    }

    /// The reply to a command, as text; errors by their text.
    pub fn call(&self, command: &str) -> String {
        let mut words = command.split(' ');
        let mut request = redis::cmd(words.next().unwrap_or_default());
        words.for_each(|word| {
            request.arg(word);
        });
        match request.query::<redis::Value>(&mut self.client()) {
            Ok(redis::Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Ok(redis::Value::Okay) => "OK".into(),
            Ok(redis::Value::Int(number)) => number.to_string(),
            Ok(redis::Value::SimpleString(text)) => text,
            Ok(redis::Value::Nil) => String::new(),
            Ok(other) => format!("{other:?}"),
            Err(error) => {
                let code = error.code().unwrap_or_default();
                format!("{code} {}", error.detail().unwrap_or_default()).trim().to_owned()
            }
        }
    }

    /// Its ID.
    pub fn id(&self) -> String {
        self.call("CLUSTER MYID")
    }

    /// Whether CLUSTER INFO has this line.
    pub fn has_info(&self, line: &str) -> bool {
        self.call("CLUSTER INFO").lines().any(|known| known == line)
    }

    /// The role in INFO.
    pub fn role(&self) -> String {
        let info = self.call("INFO replication");
        info.lines().find_map(|line| line.strip_prefix("role:")).unwrap_or_default().to_owned()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            println!("The log of node {}:\n{}", self.port, self.log());
        }
    }
}

fn spawn(program: &Path, args: &[String]) -> Child {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("the program of a node")
}

/// Joins primaries, which share the slots evenly, with a replica for each of `replicas`, in order.
pub fn form(primaries: &[&Node], replicas: &[&Node]) {
    let all: Vec<&Node> = primaries.iter().chain(replicas).copied().collect();
    for (index, node) in all.iter().enumerate() {
        assert_eq!(node.call(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)), "OK");
    }
    for (index, node) in primaries.iter().enumerate() {
        let share = |index: usize| index * 16_384 / primaries.len();
        let range = format!("CLUSTER ADDSLOTSRANGE {} {}", share(index), share(index + 1) - 1);
        assert_eq!(node.call(&range), "OK");
    }
    for node in &all[1..] {
        let bus_port = bus_port(node);
        assert_eq!(all[0].call(&format!("CLUSTER MEET 127.0.0.1 {} {bus_port}", node.port)), "OK");
    }
    wait_for("all know all", || all.iter().all(|node| node.has_info(&format!("cluster_known_nodes:{}", all.len()))));
    for (index, replica) in replicas.iter().enumerate() {
        let primary = primaries[index % primaries.len()].id();
        wait_for("the replica may follow", || replica.call(&format!("CLUSTER REPLICATE {primary}")) == "OK");
    }
    wait_for("the cluster is up", || all.iter().all(|node| node.has_info("cluster_state:ok")));
    wait_for("replicas are in sync", || {
        replicas.iter().all(|replica| replica.call("INFO replication").contains("master_link_status:up"))
    });
}

fn bus_port(node: &Node) -> &str {
    let at = node.args.iter().position(|arg| arg == "--cluster-port").expect("a bus port");
    &node.args[at + 1]
}

/// Waits longer than for a single server: clusters agree by timers of seconds.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < 3 * WAIT_LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
