//! TLS handshakes.
//!
//! A connection is stopped until its handshake completes, which determines the client's identity and whether it is
//! accepted. A handshake costs as much as thousands of requests, mostly for the signature. So each turn continues only
//! a few handshakes, after all requests: at most `max-new-tls-connections-per-cycle`.

use super::Worker;
use super::certificate_owner::Owner;
use kvick_engine::session::Fate;
use kvick_net::listen;
use kvick_net::socket::Socket;
use kvick_net::tls::stream::{Handshake, is_plain_text};
use kvick_runtime::logging;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::Ordering;

/// Timeout of a handshake in milliseconds.
pub(super) const HANDSHAKE_MAX_MS: i64 = 30_000;

/// Connections whose handshakes can continue, in the order in which their input arrived.
#[derive(Default)]
pub(super) struct Handshakes(VecDeque<usize>);

impl Handshakes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a connection, which counts as queued until its handshake continues.
    pub fn push(&mut self, token: usize) {
        self.0.push_back(token);
    }

    pub fn remove(&mut self, token: usize) {
        self.0.retain(|waiting| *waiting != token);
    }
}

impl Worker {
    /// Continues as many handshakes as a turn allows.
    pub(super) fn continue_handshakes(&mut self) {
        if self.handshakes.is_empty() {
            return;
        }
        for _ in 0..self.engine.runtime_config.handshakes_per_turn {
            let Some(token) = self.handshakes.0.pop_front() else { return };
            let Some(connection) = self.connections.get_mut(token) else { continue };
            connection.queued = false;
            let Socket::Tls(stream) = &mut connection.socket else { continue };
            match stream.handshake() {
                // The peer closed while the connection was queued. The poll reports that only once, so reading on
                // detects it.
                Ok(Handshake::Waiting) if connection.read_closed => {
                    connection.queued = true;
                    self.handshakes.push(token);
                }
                Ok(Handshake::Waiting) => {}
                Ok(Handshake::Done) => self.finish_handshake(token),
                Err(error) => self.abandon(token, &reason(&error)),
            }
        }
    }

    /// Starts serving a connection whose handshake has completed.
    fn finish_handshake(&mut self, token: usize) {
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
        if listen::is_refused_by_protected_mode(
            &self.engine.runtime_config,
            info.loopback,
            self.server.acl.default_user().nopass,
        ) {
            self.server.rejected_connections.fetch_add(1, Ordering::Relaxed);
            connection.output.push(listen::PROTECTED.as_bytes());
            connection.client.fate = Fate::CloseAfterReply;
            return self.write_waiting(token);
        }
        self.queue(token);
    }

    /// Closes a connection whose handshake failed.
    pub(super) fn abandon(&mut self, token: usize, reason: &str) {
        let Some(connection) = self.connections.get(token) else { return };
        let info = &connection.client.info;
        logging::warning(format_args!(
            "Error accepting a client connection: {reason} (addr={} laddr={})",
            info.peer, info.local
        ));
        self.close(token);
    }
}

/// The reason for a failed handshake, as logged.
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
