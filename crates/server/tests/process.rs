//! The server as a process: startup, output, files and exit. Each test runs the binary in its own directory and, unless
//! it needs a TCP port, on a Unix socket there.

use kvick_testing::output;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Timeout of every wait.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// The line that a crash report begins with.
const REPORT: &str = "=== KVICK BUG REPORT START: Cut & paste starting from here ===";

fn data_dir() -> TempDir {
    tempfile::tempdir().unwrap()
}

/// The program, to be run in `data_dir` without arguments.
fn program(data_dir: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvick-server"));
    command.current_dir(data_dir.path()).stdin(Stdio::null());
    command
}

/// Runs the program to its end.
fn run(args: &[&str]) -> Output {
    output(program(&data_dir()).args(args))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Polls until there is a result.
fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(began.elapsed() < WAIT_LIMIT, "waited in vain for {what}");
        std::thread::yield_now();
    }
}

fn signal(pid: u32, signal: i32) {
    // SAFETY: the process is one that the test started.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Whether each of these stands in the text, behind the one before.
fn in_order(text: &str, words: &[&str]) -> bool {
    let places: Vec<_> = words.iter().map(|words| text.find(words)).collect();
    places.iter().all(Option::is_some) && places.is_sorted()
}

/// A running server, whose log comes from its standard output. It is killed if the test leaves it running.
struct Server {
    child: Child,
    lines: Receiver<String>,
    log: String,
    data_dir: TempDir,
}

impl Server {
    /// Starts a server on the Unix socket `socket` in its directory.
    fn start(args: &[&str]) -> Self {
        Self::start_in(data_dir(), args, |_| {})
    }

    /// Starts a server whose ticks, at which a signal's request is acted upon, are held up.
    fn start_between_ticks() -> Self {
        let server = Self::start(&["--io-threads", "1", "--enable-debug-command", "yes"]);
        assert_eq!(server.ask("DEBUG PAUSE-CRON 1"), "+OK");
        server
    }

    fn start_in(data_dir: TempDir, args: &[&str], prepare: impl FnOnce(&mut Command)) -> Self {
        let mut command = program(&data_dir);
        command.args(["--port", "0", "--unixsocket", "socket", "--io-threads", "2"]).args(args);
        prepare(&mut command);
        let mut server = Self::spawn(command, data_dir);
        server.wait_for("Ready to accept connections unix");
        server
    }

    fn spawn(mut command: Command, data_dir: TempDir) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Server { child, lines, log: String::new(), data_dir }
    }

    /// Reads the log up to a line with these words.
    fn wait_for(&mut self, words: &str) {
        loop {
            match self.lines.recv_timeout(WAIT_LIMIT) {
                Ok(line) => {
                    self.log += &format!("{line}\n");
                    if line.contains(words) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => panic!("no {words:?} in the log:\n{}", self.log),
                Err(RecvTimeoutError::Timeout) => panic!("waited in vain for {words:?}, log:\n{}", self.log),
            }
        }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn signal(&self, number: i32) {
        signal(self.pid(), number);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.data_dir.path().join(name)
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.path("socket")).unwrap();
        stream.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
        stream
    }

    /// Sends one line on a connection of its own and returns the line that is answered; empty if it is closed.
    fn ask(&self, line: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(format!("{line}\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }

    /// Waits for the end; the rest of the log is read.
    fn end(&mut self) -> ExitStatus {
        let status = wait_for("the server's end", || self.child.try_wait().unwrap());
        self.log.extend(self.lines.iter().map(|line| line + "\n"));
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended, as it should.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn version_and_help_are_printed() {
    let version = run(&["--version"]);
    assert!(version.status.success());
    assert!(text(&version.stdout).starts_with("Valkey server v=9.1."), "{version:?}");
    assert_eq!(run(&["-v"]).stdout, version.stdout);
    let help = text(&run(&["--help"]).stdout);
    assert!(help.contains("--check-system") && help.contains("kvick-server [/path/to/kvick.conf]"), "{help}");
    for (form, part) in [("man", ".SH OPTIONS"), ("bash", " --maxmemory "), ("zsh", "--port:"), ("fish", "-l port")] {
        let printed = run(&["--print", form]);
        assert!(printed.status.success() && text(&printed.stdout).contains(part), "{form}");
    }
    assert!(!run(&["--print", "other"]).status.success());
}

#[test]
fn test_memory_needs_an_amount() {
    let tested = run(&["--test-memory", "1"]);
    assert!(tested.status.success() && text(&tested.stdout).ends_with("No memory errors found.\n"), "{tested:?}");
    let missing = run(&["--test-memory"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("megabytes"));
}

#[test]
fn huge_pages_are_disabled_unless_left_to_the_system() {
    for (setting, shown) in [("yes", "THP_enabled:\t0"), ("no", "THP_enabled:\t1")] {
        let server = Server::start(&["--disable-thp", setting]);
        let status = fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
        assert!(status.contains(shown) || !status.contains("THP_enabled"), "{setting}: {status}");
    }
}

#[test]
fn check_system_reports_every_check() {
    let output = text(&run(&["--check-system"]).stdout);
    for name in ["slow-clocksource", "xen-clocksource", "overcommit", "THP", "CPUs"] {
        assert!(output.contains(&format!("[{name}]...")), "{output}");
    }
}

#[test]
fn an_invalid_line_prevents_startup_with_line_and_reason() {
    let data_dir = data_dir();
    let file = data_dir.path().canonicalize().unwrap().join("kvick.conf");
    fs::write(&file, "timeout 1\n\nnosuch 7\n").unwrap();
    let output = output(program(&data_dir).arg(&file));
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert!(error.contains("*** FATAL CONFIG FILE ERROR (Version 9.1."), "{error}");
    assert!(error.contains(&format!("at line 3 of {}\n>>> 'nosuch 7'\n", file.display())), "{error}");
    assert!(error.ends_with("Bad directive or wrong number of arguments\n"), "{error}");
}

#[test]
fn unsupported_settings_prevent_startup() {
    let output = run(&["--port", "0", "--loadmodule", "x.so"]);
    let messages = text(&output.stderr) + &text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{messages}");
    assert!(messages.contains("not supported"), "{messages}");
    let unknown = run(&["--rename-command", "NOSUCH", "x"]);
    assert!(text(&unknown.stderr).contains("No such command in rename-command"));
}

#[test]
fn files_includes_standard_input_and_options_are_read_in_order() {
    let data_dir = data_dir();
    fs::write(data_dir.path().join("more.conf"), "always-show-logo yes\nproc-title-template 'T {port} more'\n")
        .unwrap();
    fs::write(data_dir.path().join("kvick.conf"), "include more.conf\nloglevel debug\n").unwrap();
    let mut command = program(&data_dir);
    command.args(["kvick.conf", "--port", "0", "--unixsocket", "socket", "-"]).stdin(Stdio::piped());
    let mut server = Server::spawn(command, data_dir);
    let mut stdin = server.child.stdin.take().unwrap();
    stdin.write_all(b"port 1\nproc-title-template 'T {port} stdin'\n").unwrap();
    drop(stdin);
    server.wait_for(&format!(" PID: {}", server.pid()));
    server.wait_for("Ready to accept connections unix");
    let title = fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).unwrap();
    assert_eq!(title.trim_end_matches('\0'), "T 0 stdin");
}

#[test]
fn startup_messages_have_the_order_that_tools_expect() {
    let mut server = Server::start(&[]);
    let words = [
        "oO0OoO0OoO0Oo Valkey is starting oO0OoO0OoO0Oo",
        "Kvick version=",
        "Configuration loaded",
        "Running mode=standalone, port=0.",
        "Server initialized",
    ];
    assert!(in_order(&server.log, &words), "{}", server.log);
    let beginning = format!("{}:M ", server.pid());
    assert!(server.log.lines().all(|line| line.starts_with(&beginning)), "{}", server.log);
    assert_eq!(server.ask("PING"), "+PONG");
    server.signal(libc::SIGTERM);
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn sigterm_and_sigint_shut_down_cleanly() {
    for (number, name) in [(libc::SIGTERM, "SIGTERM"), (libc::SIGINT, "SIGINT")] {
        let mut server = Server::start(&["--pidfile", "the.pid"]);
        assert_eq!(fs::read_to_string(server.path("the.pid")).unwrap(), format!("{}\n", server.pid()));
        let mut idle = server.connect();
        server.signal(number);
        assert_eq!(server.end().code(), Some(0), "{}", server.log);
        let words = [
            &*format!("# Received {name} scheduling shutdown..."),
            "* User requested shutdown...",
            "* Removing the pid file.",
            "* Removing the unix socket file.",
            "# Valkey is now ready to exit, bye bye...",
        ];
        assert!(in_order(&server.log, &words), "{}", server.log);
        assert!(!server.path("the.pid").exists() && !server.path("socket").exists());
        assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn a_second_sigint_exits_at_once_with_an_error() {
    let mut server = Server::start_between_ticks();
    server.signal(libc::SIGINT);
    server.wait_for("Received SIGINT scheduling shutdown...");
    server.signal(libc::SIGINT);
    assert_eq!(server.end().code(), Some(1), "{}", server.log);
    assert!(server.log.contains("You insist... exiting now."), "{}", server.log);
}

#[test]
fn sighup_and_sigpipe_are_ignored() {
    let server = Server::start(&[]);
    server.signal(libc::SIGHUP);
    server.signal(libc::SIGPIPE);
    assert_eq!(server.ask("PING"), "+PONG");
}

#[test]
fn sigalrm_logs_the_state_of_the_server() {
    let mut server = Server::start(&[]);
    let _client = server.connect();
    assert_eq!(server.ask("PING"), "+PONG");
    server.signal(libc::SIGALRM);
    for words in ["Received SIGALRM", "connected_clients:", "CLIENT LIST OUTPUT", "id=1 addr="] {
        server.wait_for(words);
    }
    assert_eq!(server.ask("PING"), "+PONG");
}

#[test]
fn shutdown_closes_every_connection_and_exits() {
    for words in ["SHUTDOWN", "shutdown nosave now force", "SHUTDOWN SAVE FORCE"] {
        let mut server = Server::start(&["--pidfile", "the.pid"]);
        let mut idle = server.connect();
        assert_eq!(server.ask(words), "");
        assert_eq!(server.end().code(), Some(0), "{}", server.log);
        assert!(server.log.contains("User requested shutdown... (user request from 'id="), "{}", server.log);
        assert!(!server.path("the.pid").exists() && !server.path("socket").exists());
        assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn shutdown_refuses_invalid_options() {
    let mut server = Server::start(&["--shutdown-on-sigint", "save"]);
    // A file cannot replace a directory.
    fs::create_dir(server.path("dump.rdb")).unwrap();
    for (line, answer) in [
        ("SHUTDOWN LATER", "-ERR syntax error"),
        ("SHUTDOWN SAVE NOSAVE", "-ERR syntax error"),
        ("SHUTDOWN ABORT NOW", "-ERR syntax error"),
        ("SHUTDOWN ABORT", "-ERR No shutdown in progress."),
        ("SHUTDOWN FAILOVER", "-ERR SHUTDOWN FAILOVER is only supported in cluster mode."),
        ("SHUTDOWN SAVE", "-ERR Errors trying to SHUTDOWN. Check logs."),
    ] {
        assert_eq!(server.ask(line), answer, "{line}");
    }
    server.wait_for("Errors trying to shut down the server.");
    server.signal(libc::SIGINT);
    server.wait_for("Error trying to save the DB, can't exit.");
    assert_eq!(server.ask("PING"), "+PONG");
}

#[test]
fn shutdown_abort_cancels_a_sigterm() {
    let mut server = Server::start_between_ticks();
    server.signal(libc::SIGTERM);
    server.wait_for("Received SIGTERM scheduling shutdown...");
    assert_eq!(server.ask("SHUTDOWN ABORT"), "+OK");
    server.wait_for("Shutdown manually aborted.");
    assert_eq!(server.ask("PING"), "+PONG");
}

/// A process that is not a child, and must not outlive the test.
struct KillOnDrop(u32);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // SAFETY: the process is one that the test started; that it has ended already does not matter.
        unsafe { libc::kill(self.0 as i32, libc::SIGKILL) };
    }
}

#[test]
fn a_daemon_detaches_and_writes_log_and_pid_file() {
    let data_dir = data_dir();
    let args =
        ["--daemonize", "yes", "--port", "0", "--unixsocket", "socket", "--pidfile", "the.pid", "--logfile", "log"];
    // Since its output are pipes, this returns when the daemon has let go of them too.
    let parent = output(program(&data_dir).args(args));
    assert_eq!(parent.status.code(), Some(0));
    assert!(parent.stdout.is_empty() && parent.stderr.is_empty(), "{parent:?}");
    let log = || fs::read_to_string(data_dir.path().join("log")).unwrap_or_default();
    wait_for("the daemon", || log().contains("Ready to accept").then_some(()));
    let pid: u32 = fs::read_to_string(data_dir.path().join("the.pid")).unwrap().trim().parse().unwrap();
    let daemon = KillOnDrop(pid);
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = stat.rsplit_once(") ").unwrap().1.split(' ').nth(3).unwrap();
    assert_eq!(session, pid.to_string(), "it leads a session of its own");
    signal(daemon.0, libc::SIGTERM);
    wait_for("the daemon's end", || log().contains("bye bye").then_some(()));
    assert!(log().lines().all(|line| line.starts_with(&format!("{pid}:M "))), "{}", log());
    assert!(!data_dir.path().join("the.pid").exists());
}

#[test]
fn the_log_file_has_the_configured_format() {
    for (format, timestamp, beginning) in [
        ("json", "milliseconds", "{\"pid\":PID,\"role\":\"primary\",\"timestamp\":\"1"),
        ("logfmt", "iso8601", "pid=PID role=primary timestamp=\"2"),
        ("legacy", "iso8601", "PID:M 2"),
    ] {
        let data_dir = data_dir();
        fs::create_dir(data_dir.path().join("data")).unwrap();
        let mut command = program(&data_dir);
        command.args(["--dir", "data", "--logfile", "the.log", "--port", "0", "--unixsocket", "s"]);
        command.args(["--log-format", format, "--log-timestamp-format", timestamp]);
        let mut server = Server::spawn(command, data_dir);
        let path = server.path("data/the.log");
        let log = || fs::read_to_string(&path).unwrap_or_default();
        wait_for("the log", || log().contains("Ready to accept").then_some(()));
        let beginning = beginning.replace("PID", &server.pid().to_string());
        assert!(log().lines().all(|line| line.starts_with(&beginning)), "{}", log());
        server.signal(libc::SIGTERM);
        assert_eq!(server.end().code(), Some(0));
        assert_eq!(server.log, "");
    }
}

#[test]
fn loglevel_filters_messages() {
    let data_dir = data_dir();
    let mut command = program(&data_dir);
    command.args(["--port", "0", "--unixsocket", "socket", "--loglevel", "warning"]);
    let mut server = Server::spawn(command, data_dir);
    let path = server.path("socket");
    wait_for("the socket", || UnixStream::connect(&path).ok());
    server.signal(libc::SIGTERM);
    assert_eq!(server.end().code(), Some(0));
    assert!(server.log.lines().all(|line| line.contains(" # ")), "{}", server.log);
    assert!(server.log.contains("bye bye"));
}

#[test]
fn a_unix_socket_has_the_configured_permissions() {
    let server = Server::start(&["--unixsocketperm", "750"]);
    let metadata = fs::metadata(server.path("socket")).unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o750);
}

#[test]
fn a_taken_port_or_no_listener_prevents_startup() {
    let nowhere = run(&["--port", "0"]);
    assert_eq!(nowhere.status.code(), Some(1));
    assert!(text(&nowhere.stdout).contains("Configured to not listen anywhere, exiting."));
    let port = kvick_testing::free_port();
    let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let output = run(&["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    assert_eq!(output.status.code(), Some(1));
    let log = text(&output.stdout);
    assert!(log.contains("Could not create server TCP listening socket 127.0.0.1:"), "{log}");
    assert!(log.contains(&format!("Failed listening on port {port} (tcp), aborting.")), "{log}");
}

#[test]
fn a_tcp_port_is_served() {
    let port = kvick_testing::free_port();
    let data_dir = data_dir();
    let mut command = program(&data_dir);
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
    let mut server = Server::spawn(command, data_dir);
    server.wait_for("Ready to accept connections tcp");
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"PING\r\n").unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"+PONG\r\n");
}

#[test]
fn maxclients_is_reduced_to_the_descriptor_limit() {
    let server = Server::start(&["--maxclients", "4000000000"]);
    assert!(server.log.contains("You requested maxclients of 4000000000 requiring"), "{}", server.log);
    assert!(server.log.contains("maxclients has been reduced to "), "{}", server.log);
    assert_eq!(server.ask("PING"), "+PONG");
}

#[test]
fn systemd_is_notified_of_start_and_stop() {
    let data_dir = data_dir();
    let path = data_dir.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    let receive = || {
        let mut buffer = [0; 256];
        let n = socket.recv(&mut buffer).unwrap();
        text(&buffer[..n])
    };
    // A supervised server stays in the foreground.
    let mut server = Server::start_in(data_dir, &["--supervised", "auto", "--daemonize", "yes"], |command| {
        command.env("NOTIFY_SOCKET", &path).env_remove("UPSTART_JOB");
    });
    assert!(receive().starts_with("STATUS="));
    assert!(receive().starts_with("STATUS=Ready to accept connections"));
    assert_eq!(receive(), "READY=1\n");
    server.signal(libc::SIGTERM);
    assert_eq!(receive(), "STOPPING=1\n");
    assert_eq!(server.end().code(), Some(0));
}

#[test]
fn a_fatal_signal_writes_a_crash_report_and_kills_the_process() {
    for number in [libc::SIGSEGV, libc::SIGABRT] {
        let mut server = Server::start(&[]);
        server.signal(number);
        assert_eq!(server.end().signal(), Some(number));
        let report = server.log.split(REPORT).nth(1).unwrap_or_else(|| panic!("{}", server.log));
        assert!(report.contains(&format!("crashed by signal: {number}, ")), "{report}");
        assert!(report.contains(&format!("Killed by PID: {}", std::process::id())), "{report}");
        assert!(report.contains("kvick-server(+0x"), "{report}");
        assert!(report.contains("------ STACK TRACE DONE ------\n\n=== KVICK BUG REPORT END. ==="), "{report}");
    }
}

#[test]
fn crash_reports_can_be_disabled() {
    let mut server = Server::start(&["--crash-log-enabled", "no"]);
    server.signal(libc::SIGSEGV);
    assert_eq!(server.end().signal(), Some(libc::SIGSEGV));
    assert!(!server.log.contains("BUG REPORT"), "{}", server.log);
}

#[test]
fn a_panic_writes_a_crash_report_and_ends_the_process() {
    let mut server = Server::start(&["--enable-debug-command", "yes"]);
    let mut idle = server.connect();
    assert_eq!(server.ask("DEBUG PANIC"), "");
    assert_eq!(server.end().signal(), Some(libc::SIGABRT));
    let report = server.log.split(REPORT).nth(1).unwrap_or_else(|| panic!("{}", server.log));
    assert!(report.contains(" panicked in worker-"), "{report}");
    for words in ["DEBUG PANIC called", "debug::crash::panic", "connected_clients:2", "used_memory:", "REPORT END. ==="]
    {
        assert!(report.contains(words), "no {words} in\n{report}");
    }
    assert!(!report.contains("crashed by signal"), "{report}");
    assert_eq!(idle.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_thread_of_the_allocator_returns_memory_unless_it_is_disabled() {
    let server = Server::start(&[]);
    let pid = server.pid();
    let has_thread = || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let mut names = tasks.flatten().map(|task| fs::read_to_string(task.path().join("comm")).unwrap_or_default());
        names.any(|name| name.starts_with("jemalloc_bg"))
    };
    for (setting, expected) in [("yes", true), ("no", false), ("yes", true)] {
        assert_eq!(server.ask(&format!("CONFIG SET jemalloc-bg-thread {setting}")), "+OK");
        let deadline = Instant::now() + WAIT_LIMIT;
        while has_thread() != expected {
            assert!(Instant::now() < deadline, "jemalloc-bg-thread {setting}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn the_log_and_the_title_follow_config_set() {
    let mut server = Server::start(&["--enable-debug-command", "yes"]);
    for change in ["log-format json log-timestamp-format milliseconds", "proc-title-template T-{port}"] {
        assert_eq!(server.ask(&format!("CONFIG SET {change}")), "+OK");
    }
    assert_eq!(server.ask("DEBUG LOG hello"), "+OK");
    server.wait_for("DEBUG LOG: hello");
    let line = server.log.lines().last().unwrap();
    assert!(line.starts_with(&format!("{{\"pid\":{},\"role\":\"primary\",\"timestamp\":\"", server.pid())), "{line}");
    assert!(line.ends_with("\"level\":\"warning\",\"message\":\"DEBUG LOG: hello\"}"), "{line}");
    let title = fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).unwrap();
    assert_eq!(title.trim_end_matches('\0'), "T-0");
    assert_eq!(server.ask("CONFIG SET loglevel nothing"), "+OK");
    server.signal(libc::SIGTERM);
    assert_eq!(server.end().code(), Some(0));
    assert!(server.log.ends_with(&format!("{line}\n", line = "\"DEBUG LOG: hello\"}")), "{}", server.log);
}
