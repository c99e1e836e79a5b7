//! Slow commands as traces, received by a collector that decodes them with OpenTelemetry's own package for Python.

mod common;

use common::authority::Authority;
use common::{Server, for_workers, wait_until};
use kvick_testing::programs::python_with;
use redis::{RedisResult, cmd};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};

/// A line of JSON from the collector, read with plain searches: the values are simple.
struct Collector {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    port: u16,
}

impl Collector {
    fn start(python: &str, args: &[&Path]) -> Collector {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/tracing/collector.py");
        let mut command = Command::new(python);
        command.arg(script).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("an interpreter");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut collector = Collector { child, input, output, port: 0 };
        collector.port = collector.line().parse().expect("a port");
        collector
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        assert!(!line.is_empty(), "the collector has ended");
        line.trim_end().to_owned()
    }

    /// The next request.
    fn request(&mut self) -> Request {
        Request(self.line())
    }

    /// The status of a later reply.
    fn answer(&mut self, status: u16) {
        writeln!(self.input, "{status}").expect("a pipe");
        assert_eq!(self.line(), "ok");
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A request as the collector prints it, as JSON with spaces after colons and commas.
struct Request(String);

impl Request {
    /// The part of a span that begins with its name.
    fn span(&self, name: &str) -> &str {
        let start = format!("\"name\": \"{name}\"");
        let at = self.0.find(&start).unwrap_or_else(|| panic!("no span {name} in {}", self.0));
        let rest = &self.0[at..];
        &rest[..rest.find("}}").map_or(rest.len(), |end| end + 2)]
    }

    fn count(&self) -> usize {
        self.0.matches("\"trace_id\": ").count()
    }
}

/// A field's value in JSON, without quotes.
fn field<'a>(json: &'a str, name: &str) -> &'a str {
    let start = format!("\"{name}\": ");
    let at = json.find(&start).unwrap_or_else(|| panic!("no {name} in {json}")) + start.len();
    let rest = &json[at..];
    match rest.strip_prefix('"') {
        Some(text) => &text[..text.find('"').expect("an end")],
        None => &rest[..rest.find([',', '}']).expect("an end")],
    }
}

/// Nanoseconds by which two clocks may differ after some milliseconds.
const CLOCKS_NS: u128 = 2_000_000;

fn interpreter() -> Option<String> {
    python_with("opentelemetry.proto.collector.trace.v1.trace_service_pb2", "the package `opentelemetry-proto`")
}

fn ask(client: &mut redis::Connection, line: &str) -> RedisResult<redis::Value> {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(client)
}

fn set(client: &mut redis::Connection, name: &str, value: &str) {
    cmd("CONFIG").arg("SET").arg(name).arg(value).query::<()>(client).unwrap_or_else(|error| panic!("{error}"));
}

fn unix_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a time after 1970").as_nanos()
}

#[test]
fn slow_commands_become_spans() {
    let Some(python) = interpreter() else { return };
    for_workers(&["--enable-debug-command", "yes"], |server| {
        let mut collector = Collector::start(&python, &[]);
        let mut client = server.client();
        ask(&mut client, "DEBUG SLEEP 0.02").expect("slow, but before there is an endpoint");
        set(&mut client, "tracing-headers", "x-scope=a%20b,authorization=Bearer secret");
        set(&mut client, "tracing-endpoint", &format!("http://127.0.0.1:{}/otlp", collector.port));
        ask(&mut client, "CLIENT SETNAME tester").expect("a name");
        ask(&mut client, "SELECT 3").expect("a database");
        ask(&mut client, "RPUSH list x").expect("a list");
        let began = unix_ns();
        ask(&mut client, "DEBUG SLEEP 0.02").expect("slow");
        let ended = unix_ns();
        let request = collector.request();
        assert_eq!((field(&request.0, "path"), field(&request.0, "x-scope")), ("/otlp/v1/traces", "a b"));
        assert_eq!(field(&request.0, "authorization"), "Bearer secret");
        assert_eq!((request.count(), field(&request.0, "scope")), (1, "kvick"));
        assert_eq!(field(&request.0, "service.name"), "kvick");
        assert_eq!(field(&request.0, "process.pid"), server.pid().to_string());
        let span = request.span("DEBUG");
        let ns = |name| field(span, name).parse::<u128>().expect("a number");
        let (start, end) = (ns("start"), ns("end"));
        assert!(start + 20_000_000 <= end, "{span}");
        // Durations are counted by another clock than times.
        assert!(began <= start + CLOCKS_NS && end <= ended + CLOCKS_NS, "{began} to {ended}, {span}");
        assert_eq!((field(span, "kind"), field(span, "status")), ("2", "0"));
        assert_eq!((field(span, "db.system.name"), field(span, "db.operation.name")), ("redis", "DEBUG"));
        assert_eq!((field(span, "db.namespace"), field(span, "enduser.id")), ("3", "default"));
        assert_eq!((field(span, "client.address"), field(span, "kvick.client.name")), ("127.0.0.1", "tester"));
        assert_eq!(field(span, "server.port"), server.port().to_string());
        assert_eq!(field(span, "kvick.commandlog.id"), "1", "the entry of COMMANDLOG");
        assert!(!span.contains("SLEEP") && !span.contains("db.query.text"), "{span}");

        // An error, a subcommand, and arguments.
        set(&mut client, "tracing-query-text", "yes");
        set(&mut client, "commandlog-execution-slower-than", "0");
        ask(&mut client, "INCR list").expect_err("not a number");
        set(&mut client, "commandlog-execution-slower-than", "-1");
        let request = collector.request();
        let span = request.span("INCR");
        assert_eq!((field(span, "status"), field(span, "db.response.status_code")), ("2", "WRONGTYPE"));
        assert_eq!(field(span, "db.query.text"), "INCR list");
        assert!(field(span, "message").starts_with("WRONGTYPE Operation"), "{span}");
        assert_eq!(field(request.span("CONFIG SET"), "db.operation.name"), "CONFIG SET");
    });
}

#[test]
fn spans_are_sent_again_after_failures_that_pass() {
    let Some(python) = interpreter() else { return };
    let mut collector = Collector::start(&python, &[]);
    collector.answer(503);
    collector.answer(400);
    let endpoint = format!("http://127.0.0.1:{}", collector.port);
    let mut server = Server::start(&["--tracing-endpoint", &endpoint, "--enable-debug-command", "yes"]);
    let mut client = server.client();
    ask(&mut client, "DEBUG SLEEP 0.02").expect("slow");
    let (first, second) = (collector.request(), collector.request());
    assert_eq!((field(&first.0, "status"), field(&second.0, "status")), ("503", "400"));
    assert_eq!((first.count(), second.count()), (1, 1));
    // The second reply is final: only the next command is sent, before the server exits.
    wait_until("the refusal is logged", || server.log().contains("Traces cannot be sent to"));
    ask(&mut client, "DEBUG SLEEP 0.03").expect("slow");
    server.signal(libc::SIGTERM);
    assert_eq!(server.end(), Some(0));
    let last = collector.request();
    assert_eq!((field(&last.0, "status"), last.count()), ("200", 1));
}

#[test]
fn absent_collector_harms_nobody() {
    let port = common::free_port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let args = ["--tracing-endpoint", &endpoint, "--commandlog-execution-slower-than", "0"];
    let server = Server::start(&args);
    let mut client = server.client();
    for _ in 0..20_000 {
        ask(&mut client, "INCR counter").expect("a number");
    }
    wait_until("the failure is logged", || server.log().contains("Traces cannot be sent to"));
    let log = server.log();
    assert_eq!(log.matches("Traces cannot be sent to").count(), 1, "{log}");
    set(&mut client, "tracing-endpoint", "");
    let wrong = cmd("CONFIG").arg("SET").arg("tracing-endpoint").arg("ftp://x").query::<()>(&mut client);
    assert!(wrong.is_err_and(|error| error.to_string().contains("http://")));
}

#[test]
fn encrypted_collector_must_have_a_trusted_certificate() {
    let Some(python) = interpreter() else { return };
    let (authority, other) = (Authority::new("one"), Authority::new("two"));
    let identity = authority.certify("collector");
    let mut collector = Collector::start(&python, &[&identity.certificate, &identity.key]);
    let (endpoint, file) = (format!("https://127.0.0.1:{}", collector.port), |it: &Authority| {
        it.file().to_str().expect("a path").to_owned()
    });
    let trusted = file(&other);
    let args = ["--tracing-endpoint", &endpoint, "--tracing-ca-cert-file", &trusted, "--enable-debug-command", "yes"];
    let server = Server::start(&args);
    let mut client = server.client();
    ask(&mut client, "DEBUG SLEEP 0.02").expect("slow");
    wait_until("the failure is logged", || server.log().contains("certificate"));
    set(&mut client, "tracing-ca-cert-file", &file(&authority));
    assert_eq!(collector.request().count(), 1);
}
