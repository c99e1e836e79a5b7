//! Servers that tests start: Kvick or Valkey, and object storage. They end when they are dropped.

use crate::{Deadline, free_port, programs};
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The log message of a server that is ready.
const READY: &str = "Ready to accept connections";
/// Attempts to start, in case that another process takes the port first.
const STARTS: usize = 5;

/// A process with a log, which is printed if the test fails.
struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    fn start(command: &mut Command, log: PathBuf) -> Process {
        let file = File::options().create(true).append(true).open(&log).expect("a log");
        let output = file.try_clone().expect("a second handle");
        let child = command.stdin(Stdio::null()).stdout(output).stderr(file).spawn().expect("a program");
        Process { child, log }
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the state of a child").is_some()
    }

    fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("{}", self.log());
        }
    }
}

/// A server of keys.
pub struct Server {
    process: Process,
    directory: TempDir,
    port: u16,
    bus_port: u16,
}

impl Server {
    /// Starts this program with a port, a port for the cluster bus, a directory, and these options. Waits until it
    /// accepts connections.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(program: &Path, options: &[&str]) -> Server {
        let started = (0..STARTS).find_map(|_| Server::try_start(program, options));
        started.expect("the server starts")
    }

    fn try_start(program: &Path, options: &[&str]) -> Option<Server> {
        let directory = tempfile::tempdir().expect("a directory");
        let (port, bus_port) = (free_port(), free_port());
        let mut command = Command::new(program);
        command.args(["--port", &port.to_string(), "--save", "", "--dir"]).arg(directory.path()).args(options);
        if options.contains(&"--cluster-enabled") {
            command.args(["--cluster-port", &bus_port.to_string()]);
        }
        let process = Process::start(&mut command, directory.path().join("log"));
        let mut server = Server { process, directory, port, bus_port };
        let deadline = Deadline::of("the server is ready");
        // What accepts on the port before that may be a server of another test.
        while !server.process.log().contains(READY) {
            if server.process.has_ended() {
                eprintln!("{}", server.process.log());
                return None;
            }
            deadline.check();
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }

    /// Its address.
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of its cluster bus, in cluster mode.
    pub fn bus_port(&self) -> u16 {
        self.bus_port
    }

    /// Its directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Sends the process a signal.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, number: i32) {
        // SAFETY: the process is a child that was not waited for, so the number is still its own.
        assert_eq!(unsafe { libc::kill(self.process.child.id() as i32, number) }, 0);
    }
}

/// A server of object storage that speaks the protocol of Amazon S3, with an empty bucket: versitygw, which keeps
/// objects as files.
pub struct ObjectStorage {
    program: PathBuf,
    options: Vec<String>,
    process: Process,
    directory: TempDir,
    port: u16,
}

impl ObjectStorage {
    /// The name of the bucket.
    pub const BUCKET: &str = "backups";
    /// The access key.
    pub const ACCESS_KEY: &str = "access";
    /// The secret key.
    pub const SECRET_KEY: &str = "a secret key";
    /// The region, which is not the one that programs assume.
    pub const REGION: &str = "eu-north-1";

    /// Starts a server with these options; `None`, with a message, if the program is absent.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(options: &[&str]) -> Option<ObjectStorage> {
        let program = programs::find("KVICK_TEST_S3", &["versitygw"])?;
        let directory = tempfile::tempdir().expect("a directory");
        for part in [&*format!("objects/{}", Self::BUCKET), "metadata"] {
            fs::create_dir_all(directory.path().join(part)).expect("a directory");
        }
        let port = free_port();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let process = ObjectStorage::run(&program, &options, directory.path(), port);
        Some(ObjectStorage { program, options, process, directory, port })
    }

    fn run(program: &Path, options: &[String], directory: &Path, port: u16) -> Process {
        let mut command = Command::new(program);
        command
            .args(["--port", &format!("127.0.0.1:{port}"), "--keep-alive", "--region", Self::REGION])
            .args(["--access", Self::ACCESS_KEY, "--secret", Self::SECRET_KEY])
            .args(options)
            .args(["posix", "--sidecar"])
            .args([directory.join("metadata"), directory.join("objects")]);
        let mut process = Process::start(&mut command, directory.join("log"));
        let deadline = Deadline::of("object storage is ready");
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(!process.has_ended(), "object storage does not start");
            deadline.check();
            std::thread::sleep(Duration::from_millis(5));
        }
        process
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts it again, with its objects.
    pub fn restart(&mut self) {
        self.process = ObjectStorage::run(&self.program, &self.options, self.directory.path(), self.port);
    }

    /// Its address, with this scheme.
    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://127.0.0.1:{}", self.port)
    }

    /// Variables of the environment that programs find it by.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("AWS_ENDPOINT_URL", self.url("http")),
            ("AWS_ACCESS_KEY_ID", Self::ACCESS_KEY.into()),
            ("AWS_SECRET_ACCESS_KEY", Self::SECRET_KEY.into()),
            ("AWS_REGION", Self::REGION.into()),
        ]
    }

    /// The directory that has the objects of the bucket as files.
    pub fn objects(&self) -> PathBuf {
        self.directory.path().join("objects").join(Self::BUCKET)
    }

    /// The requests that it has answered.
    pub fn log(&self) -> String {
        self.process.log()
    }
}
