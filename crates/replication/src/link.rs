//! The thread that follows a primary: connects, performs the handshake, synchronises, and applies the stream.
//!
//! It uses a blocking socket and may wait indefinitely, since it is not a worker. Clients can read while it applies
//! commands, except keys that are just being changed.

use super::apply::{Apply, Endpoints, Superseded};
use super::full_sync::FullSync;
use super::primary_connection::{LinkError, PrimaryConnection, for_log};
use super::reply::Reply;
use super::upstream::{Assignment, LinkStage, Target};
use crate::ReplicatedCore;
use kvick_config::tables::tls::{TLS_PORT, TLS_REPLICATION};
use kvick_config::tables::{network, replication as settings};
use kvick_durability::aof::State;
use kvick_net::tls::outgoing::Channel;
use kvick_resp::{Args, Limits, Parsed, Parser};
use kvick_runtime::affinity::{self, Role};
use kvick_runtime::clock;
use kvick_runtime::dial::{self, Route};
use kvick_runtime::logging;
use kvick_runtime::version::VALKEY;
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How often this server acknowledges its offset.
const ACK_PERIOD: Duration = Duration::from_secs(1);
/// The delay before a broken link is re-established.
const RETRY: Duration = Duration::from_secs(1);

/// The error if a primary does not answer.
const HANDSHAKE_TIMEOUT: &str = "Timeout connecting to the PRIMARY...";

impl From<Superseded> for LinkError {
    fn from(_: Superseded) -> Self {
        LinkError::Superseded
    }
}

/// Starts the thread.
pub fn start(core: &'static ReplicatedCore) -> io::Result<()> {
    let participant = core.keyspace.global_lock.join().ok_or_else(|| io::Error::other("too many workers"))?;
    std::thread::Builder::new().name("replication".into()).spawn(move || {
        kvick_runtime::memory::register_thread();
        affinity::set(Role::Serving);
        let Some(mut applier) = core.applier(participant) else {
            return logging::warning(format_args!(
                "Replication ends: there is nothing that executes the primary's commands"
            ));
        };
        let upstream = &core.replication.upstream;
        loop {
            let Assignment { target, generation } = upstream.wait_for_target();
            // The thread waits while another one holds the global lock.
            core.keyspace.global_lock.enter(participant);
            core.keyspace.global_lock.leave(participant);
            let mut link = Link { core, generation, applier: &mut *applier, participant };
            let outcome = link.follow(&target);
            applier.end();
            upstream.forget_sockets();
            if upstream.generation() == generation {
                upstream.set_stage(LinkStage::Connect);
            }
            if !matches!(outcome, LinkError::Superseded) {
                logging::warning(format_args!("{outcome}"));
            }
            upstream.sleep_unless_changed(generation, RETRY);
        }
    })?;
    Ok(())
}

/// A primary's answer to PSYNC.
enum PsyncReply {
    /// Full sync with a dump of this history, at this offset.
    FullResync(String, u64),
    /// Partial sync from this server's offset, in a history that may have another ID.
    Continue(Option<String>),
    /// Full sync with a separate connection for the dump.
    DualChannel,
}

/// How often to check whether a pause is over.
const PAUSE_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// One attempt to follow a primary.
pub(crate) struct Link<'a> {
    pub(crate) core: &'static ReplicatedCore,
    /// The generation of the primary.
    pub(crate) generation: u64,
    pub(crate) applier: &'a mut dyn Apply,
    pub(crate) participant: kvick_store::global_lock::Participant,
}

impl Link<'_> {
    /// Follows a primary until the link ends. Returns why.
    fn follow(&mut self, target: &Target) -> LinkError {
        match self.try_follow(target) {
            Ok(never) => never,
            Err(_) if self.core.replication.upstream.generation() != self.generation => LinkError::Superseded,
            Err(broken) => broken,
        }
    }

    fn try_follow(&mut self, target: &Target) -> Result<LinkError, LinkError> {
        let upstream = &self.core.replication.upstream;
        logging::notice(format_args!("Connecting to PRIMARY {}:{}", target.host, target.port));
        upstream.set_stage(LinkStage::Connecting);
        let mut primary_connection = self.connect(target)?;
        logging::notice(format_args!("PRIMARY <-> REPLICA sync started"));
        upstream.set_stage(LinkStage::Handshake);
        self.handshake(&mut primary_connection)?;
        self.check_node_id(&mut primary_connection, target)?;
        let answer = self.request_psync(&mut primary_connection);
        if self.core.is_failover_in_progress() {
            self.end_failover(answer.is_ok())?;
        }
        match answer? {
            PsyncReply::FullResync(id, offset) => {
                let (core, generation, participant) = (self.core, self.generation, self.participant);
                let applier = &mut *self.applier;
                let mut full_sync = FullSync { core, generation, participant, applier, id: &id, offset };
                let database = full_sync.run(&mut primary_connection)?;
                self.applier.begin(generation, database, &Endpoints::of(primary_connection.channel().socket()));
            }
            PsyncReply::Continue(id) => self.continue_partial_sync(&primary_connection, id.as_deref()),
            PsyncReply::DualChannel => primary_connection = self.dual_channel_sync(target, primary_connection)?,
        }
        upstream.set_connected(self.generation);
        self.apply(&mut primary_connection)
    }

    /// Connects to a primary.
    pub(crate) fn connect(&self, target: &Target) -> Result<PrimaryConnection, LinkError> {
        let timeout = Duration::from_secs(self.core.config.read(settings::REPL_TIMEOUT).into());
        let failed = |error| LinkError::Io("Error condition on socket for SYNC", error);
        let mut failure = io::ErrorKind::NotFound.into();
        let source = self
            .core
            .config
            .read(network::BIND_SOURCE_ADDR)
            .map(|source| String::from_utf8_lossy(&source).into_owned());
        let is_multipath = self.core.config.read(settings::REPL_MPTCP);
        let route = Route { source: source.as_deref(), is_multipath };
        for address in (target.host.as_str(), target.port).to_socket_addrs().map_err(failed)? {
            match dial::connect(address, route, timeout) {
                Ok(stream) => {
                    // Small packets must be sent at once.
                    let _ = stream.set_nodelay(!self.core.config.read(settings::REPL_DISABLE_TCP_NODELAY));
                    stream.set_write_timeout(Some(timeout)).map_err(failed)?;
                    let upstream = &self.core.replication.upstream;
                    upstream.add_socket(stream.try_clone().map_err(failed)?);
                    upstream.last_io_ms.store(clock::unix_ms(), Ordering::Relaxed);
                    if upstream.generation() != self.generation {
                        return Err(LinkError::Superseded);
                    }
                    logging::notice(format_args!("Non blocking connect for SYNC fired the event."));
                    let channel = self.tls_handshake(stream, target, timeout).map_err(failed)?;
                    return Ok(PrimaryConnection::new(self.core, channel, HANDSHAKE_TIMEOUT));
                }
                Err(error) => failure = error,
            }
        }
        Err(failed(failure))
    }

    /// Performs the TLS handshake if `tls-replication` is set.
    fn tls_handshake(&self, stream: TcpStream, target: &Target, timeout: Duration) -> io::Result<Channel> {
        if !self.core.config.read(TLS_REPLICATION) {
            return Ok(Channel::Plain(stream));
        }
        let materials = self.core.tls.materials().ok_or(io::Error::other("TLS is not set up"))?;
        stream.set_read_timeout(Some(timeout))?;
        Channel::encrypted(stream, &target.host, &materials)
    }

    /// Sends the handshake: the server's port, capabilities and version.
    fn handshake(&self, primary_connection: &mut PrimaryConnection) -> Result<(), LinkError> {
        primary_connection.send(&[b"PING"])?;
        let text = for_log(&primary_connection.read_line()?);
        let reply = Reply::parse(&text);
        if !reply.is_status() && !reply.is_permission_error() {
            return Err(LinkError::Refused(format!("Error reply to PING from primary: '{text}'")));
        }
        logging::notice(format_args!("Primary replied to PING, replication can continue..."));
        let values = self.core.config.values();
        self.authenticate(primary_connection)?;
        let announced = values.read(settings::REPLICA_ANNOUNCE_IP);
        let port = self.listening_port().to_string();
        let mut requests: Vec<Vec<&[u8]>> = vec![vec![b"REPLCONF", b"listening-port", port.as_bytes()]];
        requests.extend(announced.as_ref().map(|address| vec![&b"REPLCONF"[..], b"ip-address", &address[..]]));
        let mut capabilities: Vec<&[u8]> = vec![b"REPLCONF", b"capa", b"eof", b"capa", b"psync2"];
        if values.read(settings::DUAL_CHANNEL_REPLICATION_ENABLED) {
            capabilities.extend([&b"capa"[..], b"dual-channel"]);
        }
        requests.push(capabilities);
        requests.push(vec![b"REPLCONF", b"version", VALKEY.as_bytes()]);
        let node_id = self.core.routing.as_ref().and_then(|routing| routing.node_id());
        requests.extend(node_id.as_ref().map(|id| vec![&b"REPLCONF"[..], b"SET-CLUSTER-NODE-ID", &id[..]]));
        requests.iter().try_for_each(|request| primary_connection.send(request))?;
        for request in &requests {
            let answer = for_log(&primary_connection.read_line()?);
            // An old primary does not know this option.
            if Reply::parse(&answer).is_error() {
                let option = for_log(request[1]);
                logging::notice(format_args!("(Non critical) Primary does not understand REPLCONF {option}: {answer}"));
            }
        }
        Ok(())
    }

    /// In a cluster: checks that the server is the node to follow. After a restart elsewhere, another node may have its
    /// address; following that one would replace the data of this shard by another shard's.
    fn check_node_id(&self, primary_connection: &mut PrimaryConnection, target: &Target) -> Result<(), LinkError> {
        let Some(expected) = &target.node_id else { return Ok(()) };
        primary_connection.send(&[b"CLUSTER", b"MYID"])?;
        let first = for_log(&primary_connection.read_reply()?);
        if first != "$40" {
            if Reply::parse(&first).is_permission_error() {
                logging::notice(format_args!("(Non critical) Primary does not allow CLUSTER MYID: {first}"));
                return Ok(());
            }
            return Err(LinkError::Refused(format!("Unexpected reply to CLUSTER MYID from primary: {first}")));
        }
        let found = primary_connection.read_line()?;
        if found == expected {
            return Ok(());
        }
        Err(LinkError::Refused(format!(
            "The node at {}:{} is {}, but this node replicates {}: waiting for its new address",
            target.host,
            target.port,
            for_log(&found),
            for_log(expected)
        )))
    }

    /// Authenticates, if credentials are configured.
    pub(crate) fn authenticate(&self, primary_connection: &mut PrimaryConnection) -> Result<(), LinkError> {
        let values = self.core.config.values();
        let Some(password) = values.read(settings::PRIMARYAUTH) else { return Ok(()) };
        match values.read(settings::PRIMARYUSER) {
            Some(user) => primary_connection.send(&[b"AUTH", &user, &password])?,
            None => primary_connection.send(&[b"AUTH", &password])?,
        }
        let answer = for_log(&primary_connection.read_line()?);
        if !Reply::parse(&answer).is_status() {
            return Err(LinkError::Refused(format!("Unable to AUTH to PRIMARY: {answer}")));
        }
        Ok(())
    }

    /// The port at which replicas and clients can reach this server.
    pub(crate) fn listening_port(&self) -> u16 {
        let values = self.core.config.values();
        match values.read(settings::REPLICA_ANNOUNCE_PORT) {
            0 if values.read(TLS_REPLICATION) && values.read(TLS_PORT) != 0 => values.read(TLS_PORT),
            0 => values.read(network::PORT),
            port => port,
        }
    }

    fn request_psync(&self, primary_connection: &mut PrimaryConnection) -> Result<PsyncReply, LinkError> {
        let replication = &self.core.replication;
        let history = replication.history.lock().clone();
        let end = self.core.keyspace.log.offset();
        // Without a backlog the log may have missed changes.
        let known = replication.has_backlog.load(Ordering::SeqCst);
        if known {
            let next = (end + 1).to_string();
            logging::notice(format_args!("Trying a partial resynchronization (request {}:{next}).", history.id));
            let mut request: Vec<&[u8]> = vec![b"PSYNC", history.id.as_bytes(), next.as_bytes()];
            if self.core.is_failover_in_progress() {
                request.push(b"FAILOVER");
            }
            primary_connection.send(&request)?;
        } else {
            logging::notice(format_args!("Partial resynchronization not possible (no cached primary)"));
            primary_connection.send(&[b"PSYNC", b"?", b"-1"])?;
        }
        let text = for_log(&primary_connection.read_reply()?);
        match Reply::parse(&text) {
            Reply::Status { word: "FULLRESYNC", rest } => {
                let mut words = rest.split_ascii_whitespace();
                let id = words.next().filter(|id| id.len() == 40);
                let offset = words.next().and_then(|offset| offset.parse().ok());
                let (Some(id), Some(offset)) = (id, offset) else {
                    return Err(LinkError::Refused("Primary replied with wrong +FULLRESYNC syntax.".into()));
                };
                logging::notice(format_args!("Full resync from primary: {id}:{offset}"));
                Ok(PsyncReply::FullResync(id.into(), offset))
            }
            Reply::Status { word: "DUALCHANNELSYNC", .. } => Ok(PsyncReply::DualChannel),
            Reply::Status { word: "CONTINUE", rest } if known => {
                logging::notice(format_args!("Successful partial resynchronization with primary."));
                Ok(PsyncReply::Continue(
                    rest.split_ascii_whitespace().next().filter(|id| id.len() == 40).map(Into::into),
                ))
            }
            Reply::Error { code: "NOMASTERLINK" | "LOADING", .. } => Err(LinkError::Refused(format!(
                "PRIMARY is currently unable to PSYNC but should be in the future: {text}"
            ))),
            _ => Err(LinkError::Refused(format!("Unexpected reply to PSYNC from primary: {text}"))),
        }
    }

    /// Ends a failover: the replica has taken over, or refused to.
    fn end_failover(&self, taken_over: bool) -> Result<(), LinkError> {
        let core = self.core;
        let mut global = core.keyspace.lock_global();
        if core.replication.upstream.generation() != self.generation {
            return Err(LinkError::Superseded);
        }
        if taken_over {
            core.finish_failover(&mut global, &core.stats[core.workers_max()]);
        } else {
            core.abort_failover("Failover target rejected psync request");
        }
        Ok(())
    }

    /// Partial sync: the data is a prefix of the primary's history, whose ID may have changed.
    fn continue_partial_sync(&mut self, primary_connection: &PrimaryConnection, id: Option<&str>) {
        let replication = &self.core.replication;
        let end = self.core.keyspace.log.offset();
        if let Some(id) = id {
            let mut history = replication.history.lock();
            if *id != history.id {
                logging::notice(format_args!("Primary replication ID changed to {id}"));
                history.continue_with_id(id, end);
                drop(history);
                // This server's replicas must learn the new ID.
                self.core.disconnect_replicas();
            }
        }
        let database = replication.upstream.database.load(Ordering::Relaxed);
        self.applier.begin(self.generation, database, &Endpoints::of(primary_connection.channel().socket()));
    }

    /// Applies the primary's stream, and acknowledges offsets.
    fn apply(&mut self, primary_connection: &mut PrimaryConnection) -> Result<LinkError, LinkError> {
        let core = self.core;
        let limits = Limits { replicated: true, ..Limits::default() };
        let mut parser = Parser::new();
        let (mut input, mut spans, mut big) = (primary_connection.take_unused(), Vec::new(), Vec::new());
        let mut acknowledged = Instant::now();
        self.acknowledge(primary_connection)?;
        loop {
            self.wait_while_paused(primary_connection, &mut input)?;
            self.applier.tick();
            let mut pos = 0;
            let mut getack = false;
            let mut protocol_error = None;
            // The end of each request, and its argument spans.
            let mut requests: Vec<(usize, std::ops::Range<usize>)> = Vec::new();
            loop {
                let first = spans.len();
                match parser.parse(&input, &mut pos, &mut spans, &mut big, &limits) {
                    Parsed::Request => requests.push((pos, first..spans.len())),
                    Parsed::Incomplete | Parsed::Big { .. } => break,
                    Parsed::Error(error) => {
                        protocol_error = Some(error);
                        break;
                    }
                }
            }
            let (mut start, mut all) = (0, requests.into_iter());
            let mut next = || {
                let (end, range) = all.next()?;
                let args = Args::new(&input, &spans[range], &big);
                getack |= is_getack(args);
                let bytes = &input[start..end];
                start = end;
                Some((args, bytes))
            };
            let applied = self.applier.run(&mut next);
            spans.clear();
            big.clear();
            input.drain(..pos);
            if self.applier.is_doomed() {
                return Err(LinkError::Refused("Connection with primary closed by a client's wish.".into()));
            }
            applied?;
            core.on_log_appended(None);
            if let Some(error) = protocol_error {
                return Err(LinkError::Refused(format!(
                    "Protocol error from the primary: {}",
                    String::from_utf8_lossy(&error.text())
                )));
            }
            if getack || acknowledged.elapsed() >= ACK_PERIOD {
                acknowledged = Instant::now();
                self.acknowledge(primary_connection)?;
            }
            let n = primary_connection.read_append(&mut input, ACK_PERIOD.saturating_sub(acknowledged.elapsed()))?;
            if n > 0 {
                core.stats[core.workers_max()].bytes_in.add(n as u64);
            } else if self.is_timed_out(primary_connection.timeout()) {
                return Err(LinkError::Refused("PRIMARY timeout: no data nor PING received...".into()));
            }
        }
    }

    /// Receives without applying while writes are paused.
    fn wait_while_paused(
        &self,
        primary_connection: &mut PrimaryConnection,
        input: &mut Vec<u8>,
    ) -> Result<(), LinkError> {
        let (core, upstream) = (self.core, &self.core.replication.upstream);
        let mut acknowledged = Instant::now();
        while core.pause.may_be_active() && core.pause.state_or_clear(clock::unix_ms()).is_some() {
            if upstream.generation() != self.generation {
                return Err(LinkError::Superseded);
            }
            if primary_connection.read_append(input, PAUSE_POLL_INTERVAL)? > 0 {
                upstream.last_io_ms.store(clock::unix_ms(), Ordering::Relaxed);
            }
            upstream.unapplied_bytes.store(input.len() as u64, Ordering::Relaxed);
            let is_over_limit = core.runtime_config().limits.query_buffer_exceeded(input.len());
            if is_over_limit || self.applier.is_doomed() || self.is_timed_out(primary_connection.timeout()) {
                upstream.unapplied_bytes.store(0, Ordering::Relaxed);
                return Err(LinkError::Refused("Link with PRIMARY broken off while writes were paused.".into()));
            }
            if acknowledged.elapsed() >= ACK_PERIOD {
                acknowledged = Instant::now();
                self.acknowledge(primary_connection)?;
            }
        }
        upstream.unapplied_bytes.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn is_timed_out(&self, timeout: Duration) -> bool {
        let last_io_ms = self.core.replication.upstream.last_io_ms.load(Ordering::Relaxed);
        clock::unix_ms() - last_io_ms > timeout.as_millis() as i64
    }

    /// Acknowledges the applied and the synced offset.
    fn acknowledge(&self, primary_connection: &mut PrimaryConnection) -> Result<(), LinkError> {
        let offset = self.core.keyspace.log.offset().to_string();
        let mut words: Vec<&[u8]> = vec![b"REPLCONF", b"ACK", offset.as_bytes()];
        let synced = self.core.aof.synced().to_string();
        if self.core.aof.status().state != State::Off {
            words.extend([&b"FACK"[..], synced.as_bytes()]);
        }
        primary_connection.send(&words)
    }
}

/// Whether a request asks for an acknowledgement.
fn is_getack(args: Args<'_>) -> bool {
    let is = |index: usize, word: &str| args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
    is(0, "replconf") && is(1, "getack")
}
