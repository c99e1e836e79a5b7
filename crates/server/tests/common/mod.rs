//! Starts the real server for end-to-end tests, and connects to it.
//!
//! [`Server::start`] runs the binary on a free port in its own directory, waits until it accepts connections, and ends
//! it when dropped; if a test fails, the server's log is printed. [`Server::client`] is a connection of the `redis`
//! crate, [`Server::raw`] one for exact bytes. [`for_workers`] runs a test with one worker and with several.

#![allow(dead_code)] // Each test binary uses its own part of this module.

pub mod authority;
pub mod cable;
pub mod compare;
pub mod disk;
pub mod groups;
pub mod journal;
pub mod line;
pub mod peer;
pub mod segments;
pub mod vocabulary;
pub mod wire;

use kvick_testing::WAIT_LIMIT;
pub use kvick_testing::free_port;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The log message of a server that is ready.
const READY: &str = "Ready to accept connections";
/// Attempts to start, in case that another process takes the port first.
const STARTS: usize = 5;

/// Runs a test with one worker, which keeps everything in one order, and with four.
pub fn for_workers(args: &[&str], test: impl Fn(&Server)) {
    for workers in ["1", "4"] {
        println!("with {workers} workers");
        test(&Server::start(&[&["--io-threads", workers], args].concat()));
    }
}

/// The processors on which this process may run, as the kernel lists them.
pub fn processors() -> String {
    processors_in(&std::fs::read_to_string("/proc/self/status").expect("a status"))
}

/// The CPUs in the status of a thread; none once it has ended.
pub fn processors_in(status: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_string()
}

/// A running server.
pub struct Server {
    child: Child,
    dir: TempDir,
    port: u16,
}

impl Server {
    /// Starts a server with its port and directory and these arguments.
    pub fn start(args: &[&str]) -> Server {
        Server::start_from(None, args)
    }

    /// Starts a server with a configuration file.
    pub fn start_with_file(file: &Path, args: &[&str]) -> Server {
        Server::start_from(Some(file), args)
    }

    /// Starts a server, but waits only until it loads its dump.
    pub fn start_loading(args: &[&str]) -> Server {
        Server::start_until("Loading RDB produced by", None, args, &mut |_| {}, &mut |_| {})
    }

    /// Starts a server of which `prepare` changes how.
    pub fn start_prepared(args: &[&str], prepare: &mut dyn FnMut(&mut Command)) -> Server {
        Server::start_until(READY, None, args, prepare, &mut |_| {})
    }

    /// The same, and passes the process ID to `begun` before the server is ready.
    pub fn start_watched(args: &[&str], prepare: &mut dyn FnMut(&mut Command), begun: &mut dyn FnMut(u32)) -> Server {
        Server::start_until(READY, None, args, prepare, begun)
    }

    fn start_from(file: Option<&Path>, args: &[&str]) -> Server {
        Server::start_until(READY, file, args, &mut |_| {}, &mut |_| {})
    }

    fn start_until(
        words: &str,
        file: Option<&Path>,
        args: &[&str],
        prepare: &mut dyn FnMut(&mut Command),
        begun: &mut dyn FnMut(u32),
    ) -> Server {
        for _ in 0..STARTS {
            if let Some(server) = Server::try_start(words, file, args, prepare, begun) {
                return server;
            }
        }
        panic!("the server does not start");
    }

    fn try_start(
        words: &str,
        file: Option<&Path>,
        args: &[&str],
        prepare: &mut dyn FnMut(&mut Command),
        begun: &mut dyn FnMut(u32),
    ) -> Option<Server> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let port = free_port();
        let log = File::create(dir.path().join("log")).expect("a log file");
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvick-server"));
        command
            .args(file)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(dir.path())
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log);
        prepare(&mut command);
        let child = command.spawn().expect("the server's binary");
        begun(child.id());
        let mut server = Server { child, dir, port };
        let began = Instant::now();
        while began.elapsed() < WAIT_LIMIT {
            if server.has_ended() {
                print!("{}", server.log());
                return None;
            }
            // What accepts on the port before that may be a server of another test.
            if server.log().contains(words) {
                return Some(server);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        None
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the state of a child").is_some()
    }

    /// Waits for the end of the process; its exit code, `None` after a signal.
    pub fn end(&mut self) -> Option<i32> {
        wait_until("the server ends", || self.has_ended());
        self.child.wait().expect("the state of a child").code()
    }

    /// Sends the process a signal.
    pub fn signal(&self, number: i32) {
        // SAFETY: the process is a child that was not waited for, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, number) }, 0);
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The id of its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processor time that the process has used.
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("a process");
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<u64>().expect("ticks");
        // SAFETY: no memory is involved.
        let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as u64;
        Duration::from_millis((ticks(11) + ticks(12)) * 1000 / per_second)
    }

    /// Its working directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Its log.
    pub fn log(&self) -> String {
        let bytes = std::fs::read(self.dir.path().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// A new connection of a client library.
    pub fn client(&self) -> redis::Connection {
        self.client_of("")
    }

    /// The same with RESP3.
    pub fn client_resp3(&self) -> redis::Connection {
        self.client_of("?protocol=resp3")
    }

    fn client_of(&self, query: &str) -> redis::Connection {
        let url = format!("redis://127.0.0.1:{}/{query}", self.port);
        let connection = redis::Client::open(url).and_then(|client| client.get_connection()).expect("a connection");
        connection.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        connection.set_write_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        connection
    }

    /// A new connection for exact bytes.
    pub fn raw(&self) -> Raw {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).expect("a connection");
        stream.set_read_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        stream.set_write_timeout(Some(WAIT_LIMIT)).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Raw { stream }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            print!("The server's log:\n{}", self.log());
        }
    }
}

/// Waits until something holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < WAIT_LIMIT, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A connection for exact bytes.
pub struct Raw {
    stream: TcpStream,
}

impl Raw {
    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("a connection that takes bytes");
    }

    /// The same for a server that may have closed the connection.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// The port that it comes from.
    pub fn port(&self) -> u16 {
        self.stream.local_addr().expect("its address").port()
    }

    /// Sends no more.
    pub fn end(&mut self) {
        self.stream.shutdown(Shutdown::Write).expect("an open connection");
    }

    /// Sends a request.
    pub fn request(&mut self, words: &[&str]) {
        let mut bytes = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| bytes += &format!("${}\r\n{word}\r\n", word.len()));
        self.send(bytes);
    }

    /// Reads as many bytes as `expected` has, and checks that they are the same.
    #[track_caller]
    pub fn expect(&mut self, expected: &str) {
        let mut got = Vec::new();
        let mut byte = [0];
        while got.len() < expected.len() {
            match self.stream.read(&mut byte) {
                Ok(1) => got.push(byte[0]),
                end => panic!("expected {expected:?}, got {:?}, then {end:?}", String::from_utf8_lossy(&got)),
            }
            if !expected.as_bytes().starts_with(&got) {
                let line = self.line();
                panic!("expected {expected:?}, got {:?}", String::from_utf8_lossy(&got) + &*line);
            }
        }
    }

    /// Sends a request and checks the reply.
    #[track_caller]
    pub fn ask(&mut self, words: &[&str], expected: &str) {
        self.request(words);
        self.expect(expected);
    }

    /// Reads so many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes).expect("as many bytes");
        bytes
    }

    /// Reads a line, without its end.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        let mut byte = [0];
        while !line.ends_with(b"\r\n") {
            match self.stream.read(&mut byte) {
                Ok(1) => line.push(byte[0]),
                _ => break,
            }
        }
        String::from_utf8_lossy(&line).trim_end().to_string()
    }

    /// Reads lines up to this one.
    #[track_caller]
    pub fn skip_to(&mut self, last: &str) {
        self.skip_until(last, |line| line == last);
    }

    /// Reads lines up to the one for which `is_last` holds, which is described by `what`.
    #[track_caller]
    pub fn skip_until(&mut self, what: &str, is_last: impl Fn(&str) -> bool) {
        loop {
            match &*self.line() {
                line if is_last(line) => return,
                "" => panic!("expected a line {what:?}"),
                _ => {}
            }
        }
    }

    /// Checks that the server has closed the connection and sent nothing more.
    #[track_caller]
    pub fn expect_end(&mut self) {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(0) => {}
            // The server closed it with input unread.
            Err(error) if error.kind() == ErrorKind::ConnectionReset && rest.is_empty() => {}
            other => panic!("expected the end, got {other:?}: {:?}", String::from_utf8_lossy(&rest)),
        }
    }
}
