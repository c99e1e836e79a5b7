//! Network partitions: a primary, two replicas and three Sentinels (Valkey's) in separate network namespaces. A client
//! in each namespace writes, and confirms each write with WAIT 1. The primary is cut off, can only receive, has a slow
//! link, or stops. The other nodes continue; when the fault has ended, all nodes must hold the same data, and no write
//! that counts may be lost.
//!
//! **Which writes count.** Sentinel promotes the replica with the higher offset in its latest poll, which may be
//! seconds old. So a write that only one replica confirmed just before a fault may be lost, whatever servers do. A
//! write counts if WAIT returned 1 or more
//!
//! - long enough before the fault that the other replica had it too ([`MARGIN`]), or
//! - on the server that is the primary after the fault: it and a replica have the write, and it was not replaced since.
//!
//! `KVICK_PARTITIONS` sets the number of rounds (default: 4). Namespaces need root, and [`common::peer::sentinel`]
//! finds the program of Sentinel. Without either the test prints the reason and passes.

mod common;

use common::cable::{Cable, tap};
use common::wire::{Reply, Wire};
use common::{Server, peer};
use kvick_testing::SetOnDrop;
use std::fs::File;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const NODES: usize = 3;
const SENTINEL_PORT: u16 = 26379;
/// Minimum time between the confirmation of a counted write and a fault: by then both replicas have it.
const MARGIN: Duration = Duration::from_secs(1);
/// Duration of a fault: longer than a failover.
const FAULT: Duration = Duration::from_secs(5);
/// By how much a slow link is late: Sentinel does not take a server to be gone for that, but most of its questions
/// hang.
const DELAY: Duration = Duration::from_millis(700);
/// Duration of the writes before a fault.
const CALM: Duration = Duration::from_secs(2);
/// Maximum time of the recovery.
const RECOVERY: Duration = Duration::from_secs(60);
/// Timeout of replies.
const WAIT_LIMIT: Duration = Duration::from_secs(1);

/// Runs a program; what it complained of.
fn run(line: &str) -> Result<(), String> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = command.args(words).output().map_err(|error| format!("{line}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_string();
    if output.status.success() { Ok(()) } else { Err(format!("{line}: {said}")) }
}

#[track_caller]
fn run_or_panic(line: &str) {
    run(line).unwrap_or_else(|error| panic!("{error}"));
}

/// Moves the calling thread into a namespace.
fn enter(namespace: RawFd) -> std::io::Result<()> {
    // SAFETY: no memory is involved.
    match unsafe { libc::setns(namespace, libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Namespaces around a switch, taken down when dropped.
struct Network {
    prefix: String,
    /// The nodes', and the switch's last.
    namespaces: Vec<File>,
    /// Between the nodes and the switch.
    cables: Vec<Cable>,
}

impl Network {
    fn new() -> Result<Network, String> {
        let prefix = format!("kvick-{}-", std::process::id());
        let mut network = Network { prefix, namespaces: Vec::new(), cables: Vec::new() };
        for number in 0..=NODES {
            let name = network.name(number);
            run(&format!("ip netns add {name}"))?;
            let file = File::open(format!("/run/netns/{name}")).map_err(|error| format!("{name}: {error}"))?;
            network.namespaces.push(file);
        }
        let switch = network.name(NODES);
        run(&format!("ip -n {switch} link add bridge type bridge"))?;
        run(&format!("ip -n {switch} link set bridge up"))?;
        for node in 0..NODES {
            let name = network.name(node);
            let near = network.inside(node, || tap("eth0")).map_err(|error| format!("/dev/net/tun: {error}"))?;
            let far = network.inside(NODES, || tap(&format!("port{node}"))).map_err(|error| error.to_string())?;
            network.cables.push(Cable::between(near, far).map_err(|error| error.to_string())?);
            run(&format!("ip -n {switch} link set port{node} master bridge up"))?;
            run(&format!("ip -n {name} addr add {}/24 dev eth0", address(node)))?;
            run(&format!("ip -n {name} link set eth0 up"))?;
            run(&format!("ip -n {name} link set lo up"))?;
        }
        Ok(network)
    }

    /// The name of a node's namespace, or of the switch's.
    fn name(&self, number: usize) -> String {
        format!("{}{number}", self.prefix)
    }

    /// Runs `work` inside of a node's namespace.
    fn inside<T: Send>(&self, node: usize, work: impl FnOnce() -> T + Send) -> T {
        let namespace = self.namespaces[node].as_raw_fd();
        let inside = move || {
            enter(namespace).expect("a namespace");
            work()
        };
        std::thread::scope(|scope| scope.spawn(inside).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Makes a program run there.
    fn prepare(&self, node: usize, command: &mut Command) {
        let namespace = self.namespaces[node].as_raw_fd();
        // SAFETY: a system call alone, on a descriptor that is open until the program runs.
        unsafe { command.pre_exec(move || enter(namespace)) };
    }

    fn set_link(&self, node: usize, state: &str) {
        run_or_panic(&format!("ip -n {} link set port{node} {state}", self.name(NODES)));
    }

    /// Makes a node unable to send while it still receives: it maps the other nodes to an unused hardware address.
    fn silence(&self, node: usize) {
        for other in (0..NODES).filter(|other| *other != node) {
            let (name, address) = (self.name(node), address(other));
            run_or_panic(&format!(
                "ip -n {name} neigh replace {address} lladdr 02:00:00:00:00:fe dev eth0 nud permanent"
            ));
        }
    }

    fn unmute(&self, node: usize) {
        for other in (0..NODES).filter(|other| *other != node) {
            run_or_panic(&format!("ip -n {} neigh del {} dev eth0", self.name(node), address(other)));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.cables.clear();
        self.namespaces.clear();
        // Those that were not made cannot be taken down.
        (0..=NODES).for_each(|number| _ = run(&format!("ip netns del {}", self.name(number))));
    }
}

fn address(node: usize) -> IpAddr {
    [10, 77, 0, node as u8 + 1].into()
}

/// A Sentinel, ended when dropped.
struct Sentinel {
    child: Child,
    data_dir: TempDir,
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.data_dir.path().join("log")).unwrap_or_default();
            println!("A Sentinel's log:\n{log}");
        }
    }
}

/// Three nodes with all that runs on them. Fields are dropped in their order: the network last.
struct Site {
    sentinels: Vec<Sentinel>,
    servers: Vec<Server>,
    network: Network,
}

impl Site {
    fn start(network: Network, program: &std::path::Path) -> Site {
        let mut site = Site { sentinels: Vec::new(), servers: Vec::new(), network };
        for node in 0..NODES {
            let mut args = vec!["--bind", "0.0.0.0", "--protected-mode", "no", "--io-threads", "2"];
            args.extend(["--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"]);
            args.extend(["--repl-timeout", "5", "--repl-ping-replica-period", "1"]);
            let primary = site.servers.first().map(|primary| format!("{} {}", address(0), primary.port()));
            if let Some(primary) = &primary {
                args.extend(["--replicaof", primary]);
            }
            let server = Server::start_prepared(&args, &mut |command| site.network.prepare(node, command));
            site.servers.push(server);
        }
        for node in 0..NODES {
            let sentinel = site.watch(node, program);
            site.sentinels.push(sentinel);
        }
        // As quick as a test needs it.
        for node in 0..NODES {
            wait_for("a Sentinel answers", || site.ask_sentinel(node, &["PING"]).is_some());
            let line = ["SENTINEL", "DEBUG", "info-period", "500", "publish-period", "300", "ping-period", "200"];
            assert_eq!(site.ask_sentinel(node, &line), Some(Reply::Simple("OK".into())));
        }
        for node in 0..NODES {
            wait_for("the Sentinels know all", || {
                let count =
                    |what| site.ask_sentinel(node, &["SENTINEL", what, "main"]).map_or(0, |all| all.items().len());
                count("REPLICAS") == NODES - 1 && count("SENTINELS") == NODES - 1
            });
        }
        site
    }

    fn watch(&self, node: usize, program: &std::path::Path) -> Sentinel {
        let data_dir = TempDir::new().expect("a directory");
        let file = data_dir.path().join("sentinel.conf");
        let lines = format!(
            "port {SENTINEL_PORT}\nprotected-mode no\nsentinel monitor main {} {} 2\n\
             sentinel down-after-milliseconds main 1500\nsentinel failover-timeout main 5000\n",
            address(0),
            self.servers[0].port()
        );
        std::fs::write(&file, lines).expect("a file");
        let mut command = Command::new(program);
        command.arg(&file).arg("--sentinel").current_dir(data_dir.path()).stdin(Stdio::null());
        command.stdout(File::create(data_dir.path().join("log")).expect("a log"));
        self.network.prepare(node, &mut command);
        Sentinel { child: command.spawn().expect("Sentinel's program"), data_dir }
    }

    /// Sends a request to the Sentinel of a node, from its namespace.
    fn ask_sentinel(&self, node: usize, words: &[&str]) -> Option<Reply> {
        self.network.inside(node, || Wire::connect(SENTINEL_PORT, WAIT_LIMIT).ok()?.ask(words).ok())
    }

    /// Sends a request to a node, from its namespace.
    fn ask(&self, node: usize, words: &[&str]) -> Option<Reply> {
        self.ask_patiently(node, words, WAIT_LIMIT)
    }

    /// The same for slow requests.
    fn ask_patiently(&self, node: usize, words: &[&str], patience: Duration) -> Option<Reply> {
        let port = self.servers[node].port();
        self.network.inside(node, || Wire::connect(port, patience).ok()?.ask(words).ok())
    }

    /// Lines of INFO REPLICATION.
    fn replication(&self, node: usize) -> String {
        self.ask(node, &["INFO", "REPLICATION"]).map(|reply| reply.text()).unwrap_or_default()
    }

    /// The primary, once all nodes agree on it and have replicated everything.
    fn primary(&self) -> Option<usize> {
        let infos: Vec<String> = (0..NODES).map(|node| self.replication(node)).collect();
        let field = |node: usize, name: &str| {
            let found = infos[node].lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            found.unwrap_or_default().to_string()
        };
        let primary = (0..NODES).find(|node| field(*node, "role") == "master")?;
        let (host, port) = (address(primary).to_string(), self.servers[primary].port().to_string());
        let follows = |node: usize| {
            node == primary
                || field(node, "role") == "slave"
                    && field(node, "master_host") == host
                    && field(node, "master_port") == port
                    && field(node, "master_link_status") == "up"
        };
        let agrees = |node: usize| {
            let reply = self.ask_sentinel(node, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
            reply.is_some_and(|reply| reply.items().iter().map(Reply::text).eq([host.clone(), port.clone()]))
        };
        (0..NODES).all(|node| follows(node) && agrees(node)).then_some(primary)
    }

    fn wait_until_well(&self) -> usize {
        let mut primary = None;
        let mut well_since: Option<Instant> = None;
        wait_for("all is well", || {
            let now = self.primary();
            if now.is_none() || now != primary {
                well_since = None;
            }
            primary = now;
            // A failover may be about to begin.
            now.is_some() && well_since.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(1)
        });
        primary.expect("a primary")
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < RECOVERY, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A write that WAIT has confirmed.
#[derive(Debug)]
struct Confirmed {
    number: u64,
    by: SocketAddr,
    at: Instant,
}

/// Writes from one node to whom its Sentinel calls the primary, and notes what is confirmed.
fn write(number: &AtomicU64, stop: &AtomicBool, confirmed: &Mutex<Vec<Confirmed>>) {
    while !stop.load(Ordering::Relaxed) {
        let connected = primary_by_sentinel().and_then(|by| Some((by, Wire::connect_to(by, WAIT_LIMIT).ok()?)));
        let Some((by, mut wire)) = connected else {
            std::thread::sleep(Duration::from_millis(50));
            continue;
        };
        // Sentinel may name another by now.
        for _ in 0..100 {
            let number = number.fetch_add(1, Ordering::Relaxed);
            let written = wire.ask(&["SET", &format!("write:{number}"), &number.to_string()]);
            if stop.load(Ordering::Relaxed) || !matches!(written, Ok(Reply::Simple(_))) {
                break;
            }
            match wire.ask(&["WAIT", "1", "500"]) {
                Ok(had) if had.integer() >= 1 => {
                    let at = Instant::now();
                    confirmed.lock().expect("no other has failed").push(Confirmed { number, by, at });
                }
                _ => break,
            }
        }
    }
}

/// The primary according to the Sentinel of this thread's node.
fn primary_by_sentinel() -> Option<SocketAddr> {
    let mut wire = Wire::connect(SENTINEL_PORT, WAIT_LIMIT).ok()?;
    let reply = wire.ask(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]).ok()?;
    let [host, port] = reply.items() else { return None };
    Some(SocketAddr::new(host.text().parse().ok()?, port.text().parse().ok()?))
}

/// The fault of the primary.
#[derive(Clone, Copy, Debug)]
enum Fault {
    CutOff,
    StandsStill,
    Mute,
    Slow,
}

impl Fault {
    fn begin(self, site: &Site, node: usize) {
        match self {
            Fault::CutOff => site.network.set_link(node, "down"),
            Fault::StandsStill => site.servers[node].signal(libc::SIGSTOP),
            Fault::Mute => site.network.silence(node),
            Fault::Slow => site.network.cables[node].delay(DELAY),
        }
    }

    fn end(self, site: &Site, node: usize) {
        match self {
            Fault::CutOff => site.network.set_link(node, "up"),
            Fault::StandsStill => site.servers[node].signal(libc::SIGCONT),
            Fault::Mute => site.network.unmute(node),
            Fault::Slow => site.network.cables[node].delay(Duration::ZERO),
        }
    }
}

/// The writes that a server lacks.
fn missing(server: SocketAddr, writes: &[Confirmed]) -> Vec<&Confirmed> {
    let mut wire = Wire::connect_to(server, WAIT_LIMIT).expect("a connection");
    let mut is_there = |write: &&Confirmed| {
        let number = write.number.to_string();
        wire.ask(&["GET", &format!("write:{number}")]).expect("a reply").text() == number
    };
    writes.iter().filter(|write| !is_there(write)).collect()
}

/// One round: starts a fault while clients write, ends it, and checks the data. `number` is that of the next write.
fn round(site: &Site, fault: Fault, number: &AtomicU64) {
    let old = site.wait_until_well();
    println!("  the primary is node {old}");
    let (stop, confirmed) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let (began, new) = std::thread::scope(|scope| {
        let _stop = SetOnDrop(&stop);
        for node in 0..NODES {
            let (stop, confirmed, namespace) = (&stop, &confirmed, site.network.namespaces[node].as_raw_fd());
            scope.spawn(move || {
                enter(namespace).expect("a namespace");
                write(number, stop, confirmed);
            });
        }
        std::thread::sleep(CALM);
        let began = Instant::now();
        fault.begin(site, old);
        std::thread::sleep(FAULT);
        fault.end(site, old);
        (began, site.wait_until_well())
    });
    let by_new = SocketAddr::new(address(new), site.servers[new].port());
    let confirmed = confirmed.into_inner().expect("no writer has failed");
    let counts = |write: &Confirmed| write.at + MARGIN < began || write.by == by_new;
    let lost = site.network.inside(new, || missing(by_new, &confirmed));
    let counted = confirmed.iter().filter(|write| counts(write)).count();
    println!("  then node {new}; {} writes confirmed, {counted} of them count, {} lost", confirmed.len(), lost.len());
    assert!(counted > 10, "hardly anything was written");
    let wrongly = lost.into_iter().find(|write| counts(write));
    assert!(wrongly.is_none(), "{wrongly:?}, with the fault begun at {began:?} and {by_new} the primary now");
    let mut digests = Vec::new();
    let same = |digests: &[String]| digests.len() == NODES && digests.iter().all(|digest| *digest == digests[0]);
    let began = Instant::now();
    while !same(&digests) {
        assert!(began.elapsed() < RECOVERY, "the nodes hold different data: {digests:?}");
        digests = (0..NODES)
            .filter_map(|node| Some(site.ask_patiently(node, &["DEBUG", "DIGEST"], RECOVERY)?.text()))
            .collect();
    }
    assert_eq!(site.ask(new, &["FLUSHALL"]), Some(Reply::Simple("OK".into())), "nothing is left for the next round");
}

#[test]
fn replicated_writes_survive_network_partitions() {
    let Some(program) = peer::sentinel() else { return };
    let network = match Network::new() {
        Ok(network) => network,
        Err(why) => return println!("Not run: network namespaces cannot be made here ({why})"),
    };
    let rounds = std::env::var("KVICK_PARTITIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(4);
    let site = Site::start(network, &program);
    let number = AtomicU64::new(0);
    for round_number in 0..rounds {
        let fault = [Fault::CutOff, Fault::StandsStill, Fault::Mute, Fault::Slow][round_number % 4];
        println!("round {round_number}: {fault:?}");
        round(&site, fault, &number);
    }
}
