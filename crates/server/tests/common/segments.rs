//! Segments that TCP sends.

use super::{Server, wait_until};
use redis::cmd;
use std::io::{Read, Write};
use std::mem::offset_of;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Requests that are sent in two parts.
const ROUNDS: u32 = 20;

/// Checks that the server acknowledges the first part of a request while it waits for the rest. `socket` carries what
/// is written to `client`.
pub fn first_parts_are_acknowledged(server: &Server, client: &mut (impl Read + Write), socket: &TcpStream) {
    socket.set_nodelay(true).expect("an option");
    let mut reply = [0; 7];
    // A new connection acknowledges each segment, until it has sent replies.
    for _ in 0..ROUNDS {
        send(client, b"PING\r\n");
        client.read_exact(&mut reply).expect("a reply");
    }
    let (mut observer, end) = (server.client(), format!(":{}", socket.local_addr().expect("an address").port()));
    let mut acknowledged = 0;
    for _ in 0..ROUNDS {
        send(client, b"*2\r\n$4\r\nECHO\r\n$1");
        wait_until("the server has read this", || {
            let list: String = cmd("CLIENT").arg("LIST").query(&mut observer).expect("a list");
            let is_it = |line: &&str| line.split(' ').any(|field| field.starts_with("addr=") && field.ends_with(&end));
            list.lines().find(is_it).is_some_and(|line| !line.contains(" qbuf=0 "))
        });
        acknowledged += u32::from(unacknowledged(socket) == 0);
        send(client, b"\r\na\r\n");
        client.read_exact(&mut reply).expect("a reply");
    }
    assert_eq!(&reply, b"$1\r\na\r\n");
    // TCP would wait for 40 ms. Now and then the observer is faster than the server.
    assert!(acknowledged >= ROUNDS * 3 / 4, "{acknowledged} of {ROUNDS}");
}

fn send(client: &mut impl Write, bytes: &[u8]) {
    client.write_all(bytes).expect("a connection that takes bytes");
    client.flush().expect("the same");
}

/// Number of segments that this end has sent, and the other has not acknowledged.
fn unacknowledged(socket: &TcpStream) -> u32 {
    let info = kernel_info(socket, libc::IPPROTO_TCP, libc::TCP_INFO).expect("a TCP socket");
    let field = &info[offset_of!(libc::tcp_info, tcpi_unacked)..];
    u32::from_ne_bytes(*field.first_chunk().expect("four bytes"))
}

/// What the kernel tells of a socket; nothing if it has no information of this kind.
pub fn kernel_info(socket: &TcpStream, level: libc::c_int, name: libc::c_int) -> Option<[u8; 256]> {
    let mut info = [0u8; 256];
    let mut len = info.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info`.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, info.as_mut_ptr().cast(), &mut len) };
    (result == 0).then_some(info)
}
