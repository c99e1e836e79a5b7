//! What tests share: timeouts, so that a failing test ends, programs ([`programs`]) and servers ([`servers`]).
//! Nothing else here needs a server, so unit tests can use it as well.

pub mod programs;
pub mod servers;

use std::io::{Error, ErrorKind, Result};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// How long to wait for anything before a test fails.
pub const WAIT_LIMIT: Duration = Duration::from_secs(20);

/// Sets a flag when dropped, also by a panic. A scope joins its threads before it passes a panic on, so threads that
/// run until a flag is set would otherwise keep a failed test from ending.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Both ends of a connection over TCP.
///
/// # Panics
/// If the system refuses it.
pub fn connected_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let one = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
    (one, listener.accept().expect("a connection").0)
}

/// A port that was free a moment ago, and is not among those that the system gives to outgoing connections (from 32768
/// on). The port of its cluster bus, which is 10000 higher, is not among them either.
///
/// The socket that tries the port does not listen: a process that another thread starts meanwhile has a copy of it
/// until it runs its program, and a copy that listened would keep the port.
///
/// # Panics
/// If all ports are in use.
pub fn free_port() -> u16 {
    free_ports(1)
}

/// The first of so many adjacent ports, of which each is as of [`free_port`]. Those of different calls in one process
/// do not overlap.
///
/// # Panics
/// If there are none.
pub fn free_ports(count: u16) -> u16 {
    const FIRST: u32 = 11_000;
    const COUNT: u32 = 11_500;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Processes begin at different ports.
    let own_first = std::process::id().wrapping_mul(997);
    let count = u32::from(count);
    let next = || own_first.wrapping_add(NEXT.fetch_add(count, Ordering::Relaxed)) % COUNT;
    (0..COUNT / count)
        .map(|_| next())
        .filter(|at| at + count <= COUNT)
        .map(|at| (FIRST + at) as u16)
        .find(|first| (*first..=*first + (count - 1) as u16).all(|port| can_bind(port).is_ok()))
        .expect("free ports")
}

fn can_bind(port: u16) -> Result<()> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from(([0, 0, 0, 0], port)).into())
}

/// Limits a loop that ends when the server does something.
pub struct Deadline {
    what: &'static str,
    began: Instant,
}

impl Deadline {
    /// Starts a deadline of [`WAIT_LIMIT`].
    pub fn of(what: &'static str) -> Deadline {
        Deadline { what, began: Instant::now() }
    }

    /// Fails the test when that time has passed.
    #[track_caller]
    pub fn check(&self) {
        assert!(self.began.elapsed() < WAIT_LIMIT, "waited in vain until {}", self.what);
    }
}

/// Runs a program to its end. Kills it, and fails the test, if that takes longer than [`WAIT_LIMIT`].
pub fn output(command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a program");
    let (pid, (sender, ended)) = (child.id(), channel());
    std::thread::spawn(move || sender.send(child.wait_with_output()));
    ended.recv_timeout(WAIT_LIMIT).map(|output| output.expect("its output")).unwrap_or_else(|_| {
        // SAFETY: no memory is involved. The child is waited for only after its output has ended.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        panic!("{command:?} does not end");
    })
}

/// The next connection to a listener. Waiting for it, and reading from it later, fails after [`WAIT_LIMIT`].
pub fn accept(listener: &TcpListener) -> Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let began = Instant::now();
    let stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(_) if began.elapsed() > WAIT_LIMIT => return Err(Error::from(ErrorKind::TimedOut)),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(WAIT_LIMIT))?;
    stream.set_write_timeout(Some(WAIT_LIMIT))?;
    Ok(stream)
}
