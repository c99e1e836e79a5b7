//! Servers for the tests: a real one, if there is a program, and one that does what a test says.

#![allow(dead_code)] // Each test binary uses its own part of this module.

use kvick_load::config::Config;
use kvick_load::metrics::Interval;
use kvick_load::reply::{Reader, Value};
use kvick_load::result::RunResult;
use kvick_load::run::{Observer, Share, run};
use kvick_testing::programs;
use kvick_testing::servers::Server;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A server program: `KVICK_TEST_SERVER`, the one that the workspace builds, or Valkey's.
fn program() -> Option<PathBuf> {
    let named = std::env::var_os("KVICK_TEST_SERVER").map(PathBuf::from);
    let built = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.parent()?.join("kvick-server")));
    let found = named.into_iter().chain(built).find(|path| path.is_file());
    found.or_else(|| programs::valkey_server((7, 0)))
}

/// Starts a server; `None`, with a message, if there is no program.
pub fn start(options: &[&str]) -> Option<Server> {
    Some(Server::start(&program()?, &[&["--bind", "127.0.0.1"], options].concat()))
}

/// What a scripted server does with a request.
pub enum Answer {
    Reply(String),
    /// The same after a time, in which the connection reads nothing else.
    Late(Duration, String),
    Close,
}

/// A server in this process that answers as a function says. Returns its port.
pub fn scripted(answer: impl Fn(&[String]) -> Answer + Send + Sync + 'static) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let answer = Arc::new(answer);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let answer = answer.clone();
            std::thread::spawn(move || serve(stream, &*answer));
        }
    });
    port
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&[String]) -> Answer) {
    // A request has the form of a reply.
    let (mut reader, mut buffer) = (Reader::default(), [0; 4096]);
    reader.capture(true);
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        let mut input = &buffer[..count];
        while reader.next(&mut input).expect("a request").is_some() {
            let request = Value::parse(reader.captured()).expect("a request");
            let words: Vec<String> = request.elements().iter().map(Value::text).collect();
            let reply = match answer(&words) {
                Answer::Reply(reply) => reply,
                Answer::Late(delay, reply) => {
                    std::thread::sleep(delay);
                    reply
                }
                Answer::Close => return,
            };
            if stream.write_all(reply.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// Runs a configuration for a server on a port.
pub fn run_on(port: u16, text: &str) -> RunResult {
    run_with(port, text, &mut Nothing)
}

/// The same with an observer.
pub fn run_with(port: u16, text: &str, observer: &mut dyn Observer) -> RunResult {
    let mut config = Config::parse(text).expect("a configuration");
    config.target.endpoints = vec![format!("127.0.0.1:{port}")];
    let result = run(&config, "test", Share::ALL, &Arc::new(AtomicBool::new(false)), observer);
    let result = result.unwrap_or_else(|error| panic!("{error}"));
    check_sums(&result);
    result
}

struct Nothing;

impl Observer for Nothing {}

/// No request is lost from the accounts.
pub fn check_sums(result: &RunResult) {
    let c = &result.counters;
    assert_eq!(c.scheduled, c.sent + c.dropped + c.unsent, "{c:?}");
    assert_eq!(c.sent, c.answered + c.failed + c.unanswered, "{c:?}");
    assert_eq!(result.response.summary.count, c.answered, "{c:?}");
    let by_interval: u64 = result.intervals.iter().map(|interval| interval.counters.answered).sum();
    assert_eq!(by_interval, c.answered);
}

/// Calls a function when an interval has ended.
pub struct AtInterval<F: FnMut(&Interval)>(pub F);

impl<F: FnMut(&Interval)> Observer for AtInterval<F> {
    fn interval(&mut self, interval: &Interval) {
        (self.0)(interval);
    }
}
