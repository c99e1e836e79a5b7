//! Handshakes of connections with TLS.
//!
//! A connection is stopped until its handshake is done: then it is known who its client is, and whether it may be let
//! in. A handshake costs as much as thousands of requests, most of it for the signature. So a turn goes on with few of
//! them, after the requests of everybody else; `max-new-tls-connections-per-cycle` says with how many.

use super::Worker;
use super::certificate_owner::Owner;
use crate::session::Fate;
use kvick_net::listen;
use kvick_net::socket::Socket;
use kvick_net::tls::stream::{Handshake, is_plain_text};
use kvick_runtime::logging;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;

/// A handshake that takes longer is given up.
pub(super) const HANDSHAKE_MAX_MS: i64 = 30_000;

/// Connections that may go on with their handshakes, in the order in which they heard from their clients.
#[derive(Default)]
pub(super) struct Handshakes(VecDeque<usize>);

impl Handshakes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a connection, which counts as queued until its turn comes.
    pub fn push(&mut self, token: usize) {
        self.0.push_back(token);
    }

    pub fn remove(&mut self, token: usize) {
        self.0.retain(|waiting| *waiting != token);
    }
}

impl Worker {
    /// Goes on with as many handshakes as a turn may.
    pub(super) fn shake_hands(&mut self) {
        if self.handshakes.is_empty() {
            return;
        }
        for _ in 0..self.engine.runtime_config.handshakes_per_turn {
            let Some(token) = self.handshakes.0.pop_front() else { return };
            let Some(connection) = self.connections.get_mut(token) else { continue };
            connection.queued = false;
            let Socket::Tls(stream) = &mut connection.socket else { continue };
            match stream.handshake() {
                // The end came while it waited for its turn, and the poll tells of that once: it is found by reading
                // on.
                Ok(Handshake::Waiting) if connection.read_closed => {
                    connection.queued = true;
                    self.handshakes.push(token);
                }
                Ok(Handshake::Waiting) => {}
                Ok(Handshake::Done) => self.let_in(token),
                Err(error) => self.give_up(token, &reason(&error)),
            }
        }
    }

    /// The handshake of a connection is done.
    fn let_in(&mut self, token: usize) {
        let Some(connection) = self.connections.get_mut(token) else { return };
        connection.stopped = false;
        if let Socket::Tls(stream) = &connection.socket
            && let Some(certificate) = stream.peer_certificate()
        {
            let owner = Owner::of(certificate, self.server);
            owner.log_in(self.server, &mut connection.client, self.engine.now_ms);
        }
        let info = &connection.client.info;
        info.active_ms.store(self.engine.now_ms, Ordering::Relaxed);
        if listen::keeps_out(&self.engine.runtime_config, info.loopback, self.server.acl.default_user().nopass) {
            self.server.rejected_connections.fetch_add(1, Ordering::Relaxed);
            connection.output.push(listen::PROTECTED.as_bytes());
            connection.client.fate = Fate::CloseAfterReply;
            return self.write_waiting(token);
        }
        self.queue(token);
    }

    /// Closes a connection whose handshake failed.
    pub(super) fn give_up(&mut self, token: usize, reason: &str) {
        let Some(connection) = self.connections.get(token) else { return };
        let info = &connection.client.info;
        logging::warning(format_args!(
            "Error accepting a client connection: {reason} (addr={} laddr={})",
            info.peer, info.local
        ));
        self.close(token);
    }
}

/// Why a handshake failed, in words for the log.
fn reason(error: &io::Error) -> String {
    if is_plain_text(error) {
        return "this port takes TLS, and the client does not speak it".into();
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the client went away during the handshake".into()
        }
        _ => error.to_string(),
    }
}
