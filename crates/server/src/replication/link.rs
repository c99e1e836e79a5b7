//! The thread that follows a primary: connects, tells who it is, synchronises, and applies what comes.
//!
//! It works on a blocking socket and may wait as long as it likes, since it is nobody's worker. Readers of this server go on
//! while it applies, except on the keys that are just being changed.

use super::apply::{Applier, Ends, Superseded};
use super::upstream::{LinkStage, Target};
use crate::config::tables::persistence::DBFILENAME;
use crate::config::tables::process::DIR;
use crate::config::tables::tls::{TLS_PORT, TLS_REPLICATION};
use crate::config::tables::{network, replication as settings};
use crate::persistence::{gate, load};
use crate::server::Server;
use crate::tls::outgoing::Channel;
use crate::tracking;
use crate::version::VALKEY;
use crate::{clock, logging};
use kvick_resp::{Args, Limits, Parsed, Parser};
use kvick_store::log::encode;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Bytes read at once.
const READ: usize = 256 * 1024;
/// How often the primary is told how far this server is.
const ACK_EVERY: Duration = Duration::from_secs(1);
/// How long until a link that broke is made again.
const RETRY: Duration = Duration::from_secs(1);

/// How often a wait looks whether it has become too long.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What the log is told of a primary that does not answer.
const HANDSHAKE: &str = "Timeout connecting to the PRIMARY...";
/// What it is told of one that does not send its dump.
const DUMP: &str = "Timeout receiving bulk data from PRIMARY... If the problem persists try to set the 'repl-timeout' parameter \
                    in valkey.conf to a larger value.";

/// Why a link ended.
#[derive(Debug)]
enum Broken {
    /// The connection: what was being done, and why that failed.
    Io(&'static str, io::Error),
    /// The primary said something that makes no sense, or that it will not.
    Refused(String),
    /// There is another primary to follow, or none.
    Superseded,
}

impl From<Superseded> for Broken {
    fn from(_: Superseded) -> Self {
        Broken::Superseded
    }
}

/// Starts the thread.
pub fn start(server: &'static Server) -> io::Result<()> {
    let participant = server.keyspace.world.join().ok_or_else(|| io::Error::other("too many workers"))?;
    std::thread::Builder::new().name("replication".into()).spawn(move || {
        crate::memory::enrol();
        let mut applier = Applier::new(server, participant);
        let upstream = &server.replication.upstream;
        loop {
            let (target, number) = upstream.wait_for_target();
            let mut link = Link { server, number, applier: &mut applier, participant };
            let outcome = link.follow(&target);
            applier.end();
            upstream.set_socket(None);
            if upstream.number() == number {
                upstream.set_stage(LinkStage::Connect);
            }
            match outcome {
                Broken::Superseded => {}
                Broken::Io(doing, error) => logging::warning(format_args!("{doing}: {error}")),
                Broken::Refused(reason) => logging::warning(format_args!("{reason}")),
            }
            upstream.pause(number, RETRY);
        }
    })?;
    Ok(())
}

/// What a primary answered to PSYNC.
enum Answer {
    /// It sends a dump of this history, as of this offset.
    Full(String, u64),
    /// It goes on where this server is, in a history that may have another ID.
    Continue(Option<String>),
}

/// How a dump is delimited.
enum Delimited {
    /// By its length in bytes.
    Length(u64),
    /// By a mark behind it.
    Mark(Vec<u8>),
}

/// How often it is looked whether a pause is over.
const PAUSE_LOOK: Duration = Duration::from_millis(20);

/// One attempt to follow a primary.
struct Link<'a> {
    server: &'static Server,
    number: u64,
    applier: &'a mut Applier,
    participant: kvick_store::world::Participant,
}

impl Link<'_> {
    /// Follows a primary until that comes to an end.
    fn follow(&mut self, target: &Target) -> Broken {
        match self.try_follow(target) {
            Ok(never) => never,
            Err(_) if self.server.replication.upstream.number() != self.number => Broken::Superseded,
            Err(broken) => broken,
        }
    }

    fn try_follow(&mut self, target: &Target) -> Result<Broken, Broken> {
        let upstream = &self.server.replication.upstream;
        logging::notice(format_args!("Connecting to PRIMARY {}:{}", target.host, target.port));
        upstream.set_stage(LinkStage::Connecting);
        let mut wire = self.connect(target)?;
        logging::notice(format_args!("PRIMARY <-> REPLICA sync started"));
        upstream.set_stage(LinkStage::Handshake);
        self.introduce(&mut wire)?;
        let answer = self.ask_to_synchronise(&mut wire);
        if self.server.is_handing_over() {
            self.end_failover(answer.is_ok())?;
        }
        match answer? {
            Answer::Full(id, offset) => self.begin_anew(&mut wire, &id, offset)?,
            Answer::Continue(id) => self.go_on(&wire, id.as_deref()),
        }
        upstream.set_stage(LinkStage::Connected);
        self.apply(&mut wire)
    }

    fn connect(&self, target: &Target) -> Result<Wire, Broken> {
        let timeout = Duration::from_secs(self.server.config.read(settings::REPL_TIMEOUT).into());
        let failed = |error| Broken::Io("Error condition on socket for SYNC", error);
        let mut failure = io::ErrorKind::NotFound.into();
        let source = self
            .server
            .config
            .read(network::BIND_SOURCE_ADDR)
            .map(|source| String::from_utf8_lossy(&source).into_owned());
        for address in (target.host.as_str(), target.port).to_socket_addrs().map_err(failed)? {
            match crate::dial::connect(address, source.as_deref(), timeout) {
                Ok(stream) => {
                    // Small packets have to go at once.
                    let _ = stream.set_nodelay(!self.server.config.read(settings::REPL_DISABLE_TCP_NODELAY));
                    stream.set_write_timeout(Some(timeout)).map_err(failed)?;
                    let upstream = &self.server.replication.upstream;
                    upstream.set_socket(stream.try_clone().ok());
                    upstream.heard_ms.store(clock::unix_ms(), Ordering::Relaxed);
                    if upstream.number() != self.number {
                        return Err(Broken::Superseded);
                    }
                    logging::notice(format_args!("Non blocking connect for SYNC fired the event."));
                    let channel = Rc::new(RefCell::new(self.shake_hands(stream, target, timeout).map_err(failed)?));
                    return Ok(Wire { server: self.server, channel, buffer: Vec::new(), at: 0, awaited: HANDSHAKE });
                }
                Err(error) => failure = error,
            }
        }
        Err(failed(failure))
    }

    /// Begins TLS on a connection if `tls-replication` asks for it.
    fn shake_hands(&self, stream: TcpStream, target: &Target, timeout: Duration) -> io::Result<Channel> {
        if !self.server.config.read(TLS_REPLICATION) {
            return Ok(Channel::Plain(stream));
        }
        let materials = self.server.tls.materials().ok_or(io::Error::other("TLS is not set up"))?;
        stream.set_read_timeout(Some(timeout))?;
        Channel::encrypted(stream, &target.host, &materials)
    }

    /// Tells the primary who this is.
    fn introduce(&self, wire: &mut Wire) -> Result<(), Broken> {
        wire.send(&[b"PING"])?;
        let answer = wire.line()?;
        let lacks_rights = [&b"-NOAUTH"[..], b"-NOPERM", b"-ERR operation not permitted"];
        if !answer.starts_with(b"+") && !lacks_rights.iter().any(|known| answer.starts_with(known)) {
            return Err(Broken::Refused(format!("Error reply to PING from primary: '{}'", shown(&answer))));
        }
        logging::notice(format_args!("Primary replied to PING, replication can continue..."));
        let values = self.server.config.values();
        if let Some(password) = values.read(settings::PRIMARYAUTH) {
            match values.read(settings::PRIMARYUSER) {
                Some(user) => wire.send(&[b"AUTH", &user, &password])?,
                None => wire.send(&[b"AUTH", &password])?,
            }
            let answer = wire.line()?;
            if !answer.starts_with(b"+") {
                return Err(Broken::Refused(format!("Unable to AUTH to PRIMARY: {}", shown(&answer))));
            }
        }
        let port = match values.read(settings::REPLICA_ANNOUNCE_PORT) {
            0 if values.read(TLS_REPLICATION) && values.read(TLS_PORT) != 0 => values.read(TLS_PORT),
            0 => values.read(network::PORT),
            port => port,
        };
        let announced = values.read(settings::REPLICA_ANNOUNCE_IP);
        let port = port.to_string();
        let mut requests: Vec<Vec<&[u8]>> = vec![vec![b"REPLCONF", b"listening-port", port.as_bytes()]];
        requests.extend(announced.as_ref().map(|address| vec![&b"REPLCONF"[..], b"ip-address", &address[..]]));
        requests.push(vec![b"REPLCONF", b"capa", b"eof", b"capa", b"psync2"]);
        requests.push(vec![b"REPLCONF", b"version", VALKEY.as_bytes()]);
        requests.iter().try_for_each(|request| wire.send(request))?;
        for request in &requests {
            let answer = wire.line()?;
            // An old primary goes on without.
            if answer.starts_with(b"-") {
                let option = shown(request[1]);
                logging::notice(format_args!(
                    "(Non critical) Primary does not understand REPLCONF {option}: {}",
                    shown(&answer)
                ));
            }
        }
        Ok(())
    }

    fn ask_to_synchronise(&self, wire: &mut Wire) -> Result<Answer, Broken> {
        let replication = &self.server.replication;
        let history = replication.history.lock().clone();
        let end = self.server.keyspace.log.offset();
        // Without a backlog changes may have been made that the log has not counted.
        let known = replication.has_backlog.load(Ordering::SeqCst);
        if known {
            let next = (end + 1).to_string();
            logging::notice(format_args!("Trying a partial resynchronization (request {}:{next}).", history.id));
            let mut request: Vec<&[u8]> = vec![b"PSYNC", history.id.as_bytes(), next.as_bytes()];
            if self.server.is_handing_over() {
                request.push(b"FAILOVER");
            }
            wire.send(&request)?;
        } else {
            logging::notice(format_args!("Partial resynchronization not possible (no cached primary)"));
            wire.send(&[b"PSYNC", b"?", b"-1"])?;
        }
        let answer = loop {
            // Empty lines say that the primary is still there.
            let line = wire.line()?;
            self.heard();
            if !line.is_empty() {
                break line;
            }
        };
        let text = shown(&answer);
        let mut words = text.split_ascii_whitespace();
        match words.next() {
            Some("+FULLRESYNC") => {
                let id = words.next().filter(|id| id.len() == 40);
                let offset = words.next().and_then(|offset| offset.parse().ok());
                let (Some(id), Some(offset)) = (id, offset) else {
                    return Err(Broken::Refused("Primary replied with wrong +FULLRESYNC syntax.".into()));
                };
                logging::notice(format_args!("Full resync from primary: {id}:{offset}"));
                Ok(Answer::Full(id.into(), offset))
            }
            Some("+CONTINUE") if known => {
                logging::notice(format_args!("Successful partial resynchronization with primary."));
                Ok(Answer::Continue(words.next().filter(|id| id.len() == 40).map(Into::into)))
            }
            Some("-NOMASTERLINK" | "-LOADING") => Err(Broken::Refused(format!(
                "PRIMARY is currently unable to PSYNC but should be in the future: {text}"
            ))),
            _ => Err(Broken::Refused(format!("Unexpected reply to PSYNC from primary: {text}"))),
        }
    }

    /// The replica that was to take over from this server has, or will not.
    fn end_failover(&self, taken_over: bool) -> Result<(), Broken> {
        let server = self.server;
        let mut world = server.keyspace.lock_world();
        if server.replication.upstream.number() != self.number {
            return Err(Broken::Superseded);
        }
        if taken_over {
            server.finish_failover(&mut world, &server.stats[server.workers()]);
        } else {
            server.abort_failover("Failover target rejected psync request");
        }
        Ok(())
    }

    /// The data are a part of the primary's history, which may go by another ID by now.
    fn go_on(&mut self, wire: &Wire, id: Option<&str>) {
        let replication = &self.server.replication;
        let end = self.server.keyspace.log.offset();
        if let Some(id) = id {
            let mut history = replication.history.lock();
            if *id != history.id {
                logging::notice(format_args!("Primary replication ID changed to {id}"));
                history.renamed(id, end);
                drop(history);
                // Replicas of this server have to hear of it.
                self.server.disconnect_replicas();
            }
        }
        let database = replication.upstream.database.load(Ordering::Relaxed);
        self.applier.begin(self.number, database, &wire.ends());
    }

    /// Takes a dump over in place of the data.
    fn begin_anew(&mut self, wire: &mut Wire, id: &str, offset: u64) -> Result<(), Broken> {
        let server = self.server;
        let upstream = &server.replication.upstream;
        upstream.set_stage(LinkStage::Receiving);
        wire.awaited = DUMP;
        let delimited = self.wait_for_dump(wire)?;
        let path = self.receive(wire, &delimited)?;
        let file = File::open(&path).map_err(|error| Broken::Io("Can't open the dump that was received", error))?;
        // Replicas of this server have nothing to do with what it will hold.
        server.disconnect_replicas();
        {
            let mut world = server.keyspace.lock_world();
            if upstream.number() != self.number {
                return Err(Broken::Superseded);
            }
            logging::notice(format_args!("PRIMARY <-> REPLICA sync: Flushing old data"));
            server.persistence.gate.set(gate::LOADING, true);
            let lazy = server.config.read(settings::REPLICA_LAZY_FLUSH);
            (0..server.keyspace.databases()).for_each(|number| _ = world.flush(number, lazy));
            world.forget_readers();
        }
        tracking::invalidate_all(server, server.workers());
        logging::notice(format_args!("PRIMARY <-> REPLICA sync: Loading DB in memory"));
        let mut told = Instant::now();
        let channel = wire.channel.clone();
        let alive = move || {
            if told.elapsed() >= ACK_EVERY {
                told = Instant::now();
                // A primary that is gone will be noticed when the load is over.
                let _ = channel.borrow_mut().write_all(b"\n");
            }
        };
        let loaded = load::load_received(server, self.participant, file, Box::new(alive));
        let mut world = server.keyspace.lock_world();
        if loaded.is_err() {
            (0..server.keyspace.databases()).for_each(|number| _ = world.flush(number, true));
        }
        server.persistence.gate.set(gate::LOADING, false);
        let report = loaded.map_err(|error| {
            Broken::Refused(format!("Failed trying to load the PRIMARY synchronization DB from disk: {error}"))
        })?;
        if upstream.number() != self.number {
            return Err(Broken::Superseded);
        }
        let log = &server.keyspace.log;
        log.reset(offset);
        log.set_repeats(true);
        server.replication.history.lock().adopt(id);
        server.replication.has_backlog.store(true, Ordering::SeqCst);
        log.keep_backlog(server.config.read(settings::REPL_BACKLOG_SIZE));
        drop(world);
        let database = report.replication.database.and_then(|number| usize::try_from(number).ok());
        let database = database.filter(|number| *number < server.keyspace.databases()).unwrap_or(0);
        self.applier.begin(self.number, database, &wire.ends());
        logging::notice(format_args!("PRIMARY <-> REPLICA sync: Finished with success"));
        Ok(())
    }

    /// Waits until the dump begins; how it is delimited.
    fn wait_for_dump(&self, wire: &mut Wire) -> Result<Delimited, Broken> {
        let line = loop {
            // Empty lines say that the primary is still at it.
            let line = wire.line()?;
            self.heard();
            if !line.is_empty() {
                break line;
            }
        };
        let upstream = &self.server.replication.upstream;
        upstream.dump_received.store(0, Ordering::Relaxed);
        let Some(rest) = line.strip_prefix(b"$") else {
            return Err(Broken::Refused(format!("PRIMARY aborted replication with an error: {}", shown(&line))));
        };
        if let Some(mark) = rest.strip_prefix(b"EOF:").filter(|mark| mark.len() == 40) {
            upstream.dump_bytes.store(0, Ordering::Relaxed);
            logging::notice(format_args!(
                "PRIMARY <-> REPLICA sync: receiving streamed RDB from primary with EOF to disk"
            ));
            return Ok(Delimited::Mark(mark.to_vec()));
        }
        let length = std::str::from_utf8(rest).ok().and_then(|digits| digits.parse().ok());
        let length = length.ok_or_else(|| {
            Broken::Refused(format!("Bad protocol from PRIMARY, length of the dump: {}", shown(&line)))
        })?;
        upstream.dump_bytes.store(length, Ordering::Relaxed);
        logging::notice(format_args!("PRIMARY <-> REPLICA sync: receiving {length} bytes from primary to disk"));
        Ok(Delimited::Length(length))
    }

    /// Writes the dump to a file, which takes the place of this server's own; where that is.
    fn receive(&self, wire: &mut Wire, delimited: &Delimited) -> Result<std::path::PathBuf, Broken> {
        let values = self.server.config.values();
        let place = values.read(DIR).resolve(&values.read(DBFILENAME));
        let temporary = place.with_file_name(format!("temp-{}.{}.rdb", clock::unix_ms() / 1000, std::process::id()));
        let written = self.receive_into(wire, delimited, &temporary);
        let installed = written.and_then(|()| {
            std::fs::rename(&temporary, &place)
                .map_err(|error| Broken::Io("Failed trying to rename the temp DB into the dump's name", error))
        });
        if installed.is_err() {
            // What is incomplete is of no use.
            let _ = std::fs::remove_file(&temporary);
        }
        installed.map(|()| place)
    }

    fn receive_into(&self, wire: &mut Wire, delimited: &Delimited, path: &std::path::Path) -> Result<(), Broken> {
        let failed = |error| Broken::Io("Write error or short write writing to the DB dump file", error);
        let mut file = File::create(path).map_err(failed)?;
        let upstream = &self.server.replication.upstream;
        let mut received = 0u64;
        // The last bytes that came, which may be the mark's beginning and are not written yet.
        let mut tail: Vec<u8> = Vec::new();
        loop {
            let wanted = match delimited {
                Delimited::Length(length) => (length - received).min(READ as u64) as usize,
                Delimited::Mark(_) => READ,
            };
            if wanted == 0 {
                break;
            }
            let bytes = wire.some(wanted)?;
            self.heard();
            received += bytes.len() as u64;
            upstream.dump_received.store(received, Ordering::Relaxed);
            match delimited {
                Delimited::Length(_) => file.write_all(&bytes).map_err(failed)?,
                Delimited::Mark(mark) => {
                    tail.extend_from_slice(&bytes);
                    let done = tail.ends_with(mark);
                    let sure = tail.len().saturating_sub(mark.len());
                    file.write_all(&tail[..sure]).map_err(failed)?;
                    tail.drain(..sure);
                    if done {
                        break;
                    }
                }
            }
            if upstream.number() != self.number {
                return Err(Broken::Superseded);
            }
        }
        file.sync_all().map_err(failed)
    }

    /// The primary was heard of.
    fn heard(&self) {
        self.server.replication.upstream.heard_ms.store(clock::unix_ms(), Ordering::Relaxed);
    }

    /// Applies what the primary sends, and tells it how far this server is.
    fn apply(&mut self, wire: &mut Wire) -> Result<Broken, Broken> {
        let server = self.server;
        let limits = Limits { replicated: true, ..Limits::default() };
        let mut parser = Parser::new();
        let (mut input, mut spans, mut big) = (std::mem::take(&mut wire.buffer), Vec::new(), Vec::new());
        input.drain(..std::mem::take(&mut wire.at));
        let mut acknowledged = Instant::now();
        self.acknowledge(wire)?;
        loop {
            self.sit_out_pause(wire, &mut input)?;
            self.applier.tick();
            let mut pos = 0;
            let mut asked = false;
            let mut violation = None;
            // Where each request ends, and its spans.
            let mut requests: Vec<(usize, std::ops::Range<usize>)> = Vec::new();
            loop {
                let first = spans.len();
                match parser.parse(&input, &mut pos, &mut spans, &mut big, &limits) {
                    Parsed::Request => requests.push((pos, first..spans.len())),
                    Parsed::Incomplete | Parsed::Big { .. } => break,
                    Parsed::Error(error) => {
                        violation = Some(error);
                        break;
                    }
                }
            }
            let (mut start, mut all) = (0, requests.into_iter());
            let mut next = || {
                let (end, range) = all.next()?;
                let args = Args::new(&input, &spans[range], &big);
                asked |= is_question(args);
                let bytes = &input[start..end];
                start = end;
                Some((args, bytes))
            };
            let applied = self.applier.run(&mut next);
            spans.clear();
            big.clear();
            input.drain(..pos);
            applied?;
            if self.applier.is_doomed() {
                return Err(Broken::Refused("Connection with primary closed by a client's wish.".into()));
            }
            server.log_moved(usize::MAX);
            if let Some(error) = violation {
                return Err(Broken::Refused(format!(
                    "Protocol error from the primary: {}",
                    String::from_utf8_lossy(&error.text())
                )));
            }
            if asked || acknowledged.elapsed() >= ACK_EVERY {
                acknowledged = Instant::now();
                self.acknowledge(wire)?;
            }
            let n = wire.read_behind(&mut input, ACK_EVERY.saturating_sub(acknowledged.elapsed()))?;
            if n > 0 {
                self.heard();
                server.stats[server.workers()].bytes_in.add(n as u64);
                server.replication.counts.bytes_in.fetch_add(n as u64, Ordering::Relaxed);
            } else if self.is_silent_for(wire.timeout()) {
                return Err(Broken::Refused("PRIMARY timeout: no data nor PING received...".into()));
            }
        }
    }

    /// While writes are paused, what comes is received and not applied.
    fn sit_out_pause(&self, wire: &mut Wire, input: &mut Vec<u8>) -> Result<(), Broken> {
        let (server, upstream) = (self.server, &self.server.replication.upstream);
        let mut acknowledged = Instant::now();
        while server.pause.is_there() && server.pause.state_or_forget(clock::unix_ms()).is_some() {
            if upstream.number() != self.number {
                return Err(Broken::Superseded);
            }
            if wire.read_behind(input, PAUSE_LOOK)? > 0 {
                upstream.heard_ms.store(clock::unix_ms(), Ordering::Relaxed);
            }
            upstream.unapplied.store(input.len() as u64, Ordering::Relaxed);
            let too_much = server.tunables().limits.query_buffer_exceeded(input.len());
            if too_much || self.applier.is_doomed() || self.is_silent_for(wire.timeout()) {
                upstream.unapplied.store(0, Ordering::Relaxed);
                return Err(Broken::Refused("Link with PRIMARY broken off while writes were paused.".into()));
            }
            if acknowledged.elapsed() >= ACK_EVERY {
                acknowledged = Instant::now();
                self.acknowledge(wire)?;
            }
        }
        upstream.unapplied.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn is_silent_for(&self, timeout: Duration) -> bool {
        let heard_ms = self.server.replication.upstream.heard_ms.load(Ordering::Relaxed);
        clock::unix_ms() - heard_ms > timeout.as_millis() as i64
    }

    /// Tells the primary how far this server is.
    fn acknowledge(&self, wire: &mut Wire) -> Result<(), Broken> {
        let offset = self.server.keyspace.log.offset().to_string();
        wire.send(&[b"REPLCONF", b"ACK", offset.as_bytes()])
    }
}

/// Whether a request of the primary's asks how far this server is.
fn is_question(args: Args<'_>) -> bool {
    let is = |index: usize, word: &str| args.get(index).is_some_and(|arg| arg.eq_ignore_ascii_case(word.as_bytes()));
    is(0, "replconf") && is(1, "getack")
}

/// What the primary said, for the log.
fn shown(bytes: &[u8]) -> String {
    const SHOWN_MAX: usize = 256;
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_MAX)]).into_owned()
}

/// The connection to a primary.
struct Wire {
    /// Shared with what tells the primary, while a dump is loaded, that this server is there.
    channel: Rc<RefCell<Channel>>,
    /// What was read and not used, from `at` on.
    buffer: Vec<u8>,
    at: usize,
    server: &'static Server,
    /// What the log is told when it does not come.
    awaited: &'static str,
}

impl Wire {
    fn send(&mut self, words: &[&[u8]]) -> Result<(), Broken> {
        let mut request = Vec::new();
        encode(&mut request, words.iter().copied());
        let mut channel = self.channel.borrow_mut();
        channel
            .write_all(&request)
            .and_then(|()| channel.flush())
            .map_err(|error| Broken::Io("Sending command to primary in replication handshake", error))
    }

    /// Reads some more behind what is in a buffer, waiting no longer than `wait`; 0 when nothing came.
    fn read_behind(&mut self, buffer: &mut Vec<u8>, wait: Duration) -> Result<usize, Broken> {
        let failed = |error| Broken::Io("Reading from primary", error);
        let mut channel = self.channel.borrow_mut();
        channel.socket().set_read_timeout(Some(wait.max(Duration::from_millis(1)))).map_err(failed)?;
        let before = buffer.len();
        buffer.resize(before + READ, 0);
        let read = channel.read(&mut buffer[before..]);
        buffer.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => Err(Broken::Refused("Connection with primary lost.".into())),
            Ok(n) => Ok(n),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads until there is something in the buffer.
    fn fill(&mut self) -> Result<(), Broken> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.drain(..std::mem::take(&mut self.at));
        let began = Instant::now();
        let n = loop {
            // The setting may change meanwhile.
            let left = self.timeout().saturating_sub(began.elapsed());
            match self.read_behind(&mut buffer, left.min(LOOK_EVERY)) {
                Ok(0) if left > LOOK_EVERY => {}
                read => break read,
            }
        };
        self.buffer = buffer;
        match n? {
            0 => Err(Broken::Refused(self.awaited.into())),
            n => {
                self.server.replication.counts.bytes_in.fetch_add(n as u64, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    fn ends(&self) -> Ends {
        Ends::of(self.channel.borrow().socket())
    }

    /// How long the primary may be silent.
    fn timeout(&self) -> Duration {
        Duration::from_secs(self.server.config.read(settings::REPL_TIMEOUT).into())
    }

    /// The next line, without its end.
    fn line(&mut self) -> Result<Vec<u8>, Broken> {
        const LINE_MAX: usize = 64 * 1024;
        loop {
            let unread = &self.buffer[self.at..];
            if let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                let line = unread[..end].strip_suffix(b"\r").unwrap_or(&unread[..end]).to_vec();
                self.at += end + 1;
                return Ok(line);
            }
            if unread.len() > LINE_MAX {
                return Err(Broken::Refused("The primary sends a line without an end".into()));
            }
            self.fill()?;
        }
    }

    /// The next bytes, at least one and at most `max`.
    fn some(&mut self, max: usize) -> Result<Vec<u8>, Broken> {
        if self.at == self.buffer.len() {
            self.fill()?;
        }
        let end = self.buffer.len().min(self.at + max);
        let bytes = self.buffer[self.at..end].to_vec();
        self.at = end;
        Ok(bytes)
    }
}
