//! Clusters of real processes: nodes of Kvick, and of Valkey where a test asks for them.

use crate::common::wait_until;
use kvick_testing::WAIT_LIMIT;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
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

/// The program of Valkey 9.0 or later.
pub fn valkey() -> Option<PathBuf> {
    kvick_testing::programs::valkey_server((9, 0))
}

impl Node {
    /// Starts a node in a directory of its own, and waits until it answers.
    pub fn start(program: &Path, args: &[&str]) -> Node {
        Node::start_at(program, args, node_port(), node_port())
    }

    /// The same at given ports.
    fn start_at(program: &Path, args: &[&str], port: u16, bus_port: u16) -> Node {
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

    /// Sends the process a signal.
    pub fn signal(&self, number: i32) {
        // SAFETY: the process is a child that was not waited for, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, number) }, 0);
    }

    /// Stops all of its threads, which do nothing any more when this returns.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let status = task.and_then(|task| std::fs::read_to_string(task.path().join("status")));
            status.is_ok_and(|status| status.contains("State:\tT"))
        };
        wait_until("it is stopped", || {
            let mut tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("a process");
            tasks.all(is_stopped)
        });
    }

    /// Starts it again after it was killed.
    pub fn restart(&mut self) {
        self.child = spawn(&self.program, &self.args);
        self.wait_for_start();
    }

    /// Starts another node at the address of this one, which was killed. This one gets another address.
    pub fn give_address_away(&mut self, args: &[&str]) -> Node {
        let bus_port = bus_port(self).parse().expect("a port");
        let stranger = Node::start_at(&self.program, args, self.port, bus_port);
        self.port = node_port();
        self.set("--port", &self.port.to_string());
        self.set("--cluster-port", &node_port().to_string());
        stranger
    }

    /// Changes an argument for the next start.
    pub fn set(&mut self, name: &str, value: &str) {
        let at = self.args.iter().rposition(|arg| arg == name).expect("an argument");
        value.clone_into(&mut self.args[at + 1]);
    }

    /// Its log.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// A new connection.
    pub fn client(&self) -> redis::Connection {
        self.client_of("")
    }

    /// A new connection that uses RESP3.
    pub fn client_resp3(&self) -> redis::Connection {
        self.client_of("?protocol=resp3")
    }

    fn client_of(&self, options: &str) -> redis::Connection {
        let url = format!("redis://127.0.0.1:{}/{options}", self.port);
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

    /// The reply to CLUSTER NODES as it is on a node that forwards nothing.
    pub fn known_nodes(&self) -> String {
        let mut client = self.client();
        redis::cmd("CLIENT").arg(&["CAPA", "direct"]).exec(&mut client).expect("accepted");
        redis::cmd("CLUSTER").arg("NODES").query(&mut client).expect("nodes")
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

/// A free port for a node, outside of the range that the system gives to outgoing connections: those of others could
/// take the port while the node is down.
fn node_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Test processes run at the same time.
    let first = (std::process::id() * 131 % 20_000) as u16;
    loop {
        let port = 10_000 + (first + NEXT.fetch_add(1, Ordering::Relaxed)) % 20_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
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

/// Waits until a replica has all writes of its primary. WAIT by [`Node::call`] would wait for nothing: each call has a
/// connection of its own, which has written nothing.
pub fn wait_for_data(primary: &Node, replica: &Node) {
    let offset = |node: &Node| {
        let info = node.call("INFO replication");
        info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")?.parse::<u64>().ok())
    };
    wait_for("the replica has all writes", || {
        let of_primary = offset(primary);
        of_primary > Some(0) && of_primary == offset(replica)
    });
}

/// The port of its bus.
pub fn bus_port(node: &Node) -> &str {
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
