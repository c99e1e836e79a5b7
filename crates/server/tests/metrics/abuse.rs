//! What the endpoint does with peers that do not behave, and that clients do not notice them.

use crate::common::wait_until;
use crate::page::{Page, connect, get};
use crate::{ask, start};
use kvick_testing::SetOnDrop;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Peers of each kind: more than connections may be open.
const PEERS: usize = 100;

/// Reads what has arrived; true if the peer has closed the connection.
fn has_ended(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).expect("an option");
    loop {
        match stream.read(&mut [0; 65536]) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

#[test]
fn slow_readers_half_requests_and_garbage_change_nothing_for_others() {
    let (server, port) = start(&["--io-threads", "2"]);
    let is_over = AtomicBool::new(false);
    let mut slowest = Duration::ZERO;
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&is_over);
        let clients = scope.spawn(|| {
            let (mut client, mut slowest) = (server.client(), Duration::ZERO);
            while !is_over.load(Ordering::SeqCst) {
                let began = Instant::now();
                ask::<()>(&mut client, "SET a b");
                slowest = slowest.max(began.elapsed());
            }
            slowest
        });
        let mut peers: Vec<TcpStream> = Vec::new();
        for number in 0..PEERS {
            // A slow reader requests more than the socket's buffers take, and reads nothing.
            let mut slow = connect(port);
            let _ = slow.write_all("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100).as_bytes());
            let mut half = connect(port);
            let _ = half.write_all(b"GET /metrics HTTP/1.1\r\nHost");
            let mut garbage = connect(port);
            let bytes: Vec<u8> = (0..4000).map(|at: usize| ((at * at * (number + 3)) >> 3) as u8).collect();
            let _ = garbage.write_all(&bytes);
            peers.extend([slow, half, garbage, connect(port)]);
            if number % 10 == 0 {
                assert_eq!(Page::scrape(port).value("redis_up", &[]), 1.0);
                assert_eq!(get(port, "/healthz", "").status, 200);
            }
        }
        // Only the latest connections remain.
        let (old, _) = peers.split_at_mut(PEERS);
        wait_until("the oldest connections are closed", || old.iter_mut().all(has_ended));
        is_over.store(true, Ordering::SeqCst);
        slowest = clients.join().expect("no client fails");
    });
    assert!(slowest < Duration::from_secs(2), "a client waited {slowest:?}");
    println!("slowest command: {slowest:?}");
    assert!(!server.log().contains("BUG REPORT"), "{}", server.log());
}

#[test]
fn too_large_heads_and_bodies_are_refused() {
    let (_server, port) = start(&[]);
    for request in [
        format!("GET /metrics HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(40_000)),
        format!("GET /{} HTTP/1.1\r\nHost: x\r\n\r\n", "x".repeat(40_000)),
        format!("GET /metrics HTTP/1.1\r\nHost: x\r\n{}\r\n", "X: y\r\n".repeat(500)),
        format!("GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000)),
        "GET /metrics HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n".to_owned(),
        "\x16\x03\x01\x02\x00\x01\x00\x01\u{fc}".to_owned(),
    ] {
        let mut stream = connect(port);
        // The server may close the connection before it has read everything.
        let _ = stream.write_all(request.as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let reply = String::from_utf8_lossy(&bytes).into_owned();
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 4"), "{reply}");
    }
    assert_eq!(get(port, "/healthz", "").status, 200);
}

#[test]
fn readers_that_stop_are_cut() {
    let (_server, port) = start(&[]);
    let mut slow = connect(port);
    slow.set_nonblocking(true).expect("an option");
    // Requests until neither side can write any more.
    let (request, began) = ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(100), Instant::now());
    wait_until("the connection is cut", || {
        slow.write(request.as_bytes()).is_err_and(|error| {
            !matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted)
        })
    });
    assert!(began.elapsed() >= Duration::from_secs(9), "it was cut after {:?}", began.elapsed());
}
