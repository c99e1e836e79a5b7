//! One export: the thread that talks to the target.
//!
//! It connects, sends what the [driver](super::driver) orders, reads the target's messages, and sends the slots: first a
//! snapshot, then, from the write log, all later writes to them.

mod connection;
mod probe;
mod stream;

use super::SlotMigration;
use crate::ReplicatedCore;
use crate::reply::Reply;
use connection::{Connection, Lost};
use kvick_cluster::migration::{JobName, Jobs, Message, RangeList};
use kvick_config::tables::replication::{PRIMARYAUTH, PRIMARYUSER};
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_durability::persistence::slot_snapshot;
use kvick_runtime::{clock, logging};
use kvick_store::global_lock::Participant;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use stream::Stream;

/// How long the thread sleeps at most while it feeds writes, and otherwise.
const FEEDING_WAIT: Duration = Duration::from_millis(1);
const IDLE_WAIT: Duration = Duration::from_millis(50);

/// Unsent bytes of a snapshot above which its capture waits for the target.
const UNSENT_MAX: usize = 256 * 1024;

/// What the driver orders.
pub(super) enum Order {
    Authenticate,
    Establish(Vec<u8>),
    StartSnapshot(RangeList),
    Send(Message),
    PauseWrites(RangeList),
    /// The writes proceed, whatever was ordered before.
    ForgetPause,
    Disconnect,
}

/// How the driver reaches an export.
pub(super) struct Handle {
    orders: mpsc::Sender<Order>,
    wake: UnixStream,
}

impl Handle {
    pub(super) fn order(&self, order: Order) {
        // The thread may have ended already. A full pipe wakes it as well.
        let _ = self.orders.send(order);
        let _ = (&self.wake).write(b"!");
    }
}

/// Starts the thread of an export.
pub(super) fn start(core: &'static ReplicatedCore, job: JobName, address: String, port: u16) -> io::Result<Handle> {
    let (wake, woken) = UnixStream::pair()?;
    wake.set_nonblocking(true)?;
    woken.set_nonblocking(true)?;
    let (sender, orders) = mpsc::channel();
    std::thread::Builder::new().name("slot-export".into()).spawn(move || {
        kvick_runtime::memory::register_thread();
        kvick_runtime::time_slice::shorten();
        let migration = &core.slot_migration;
        let connection = match Connection::open(core, &address, port, woken) {
            Ok(connection) => connection,
            Err(error) => {
                migration.with(core, |jobs, context| jobs.connect_failed(job, &error, context));
                return;
            }
        };
        let Some(participant) = migration.participant(core) else {
            migration.with(core, |jobs, context| jobs.connect_failed(job, "too many threads", context));
            return;
        };
        let info = register(core, &connection);
        let mut export = Export {
            core,
            migration,
            job,
            participant,
            orders,
            later: VecDeque::new(),
            connection,
            info: info.clone(),
            expects: Expects::Nothing,
            stream: None,
        };
        migration.with(core, |jobs, context| jobs.connected(job, context));
        let ended = export.run();
        drop(export.stream.take());
        core.clients.remove(info.id);
        migration.return_participant(participant);
        if let Err(Ended::Lost(lost)) = ended {
            logging::verbose(format_args!("Slot migration {job}: {lost}"));
            migration.with(core, |jobs, context| jobs.disconnected(job, context));
        }
    })?;
    Ok(Handle { orders: sender, wake })
}

/// Shows the connection in CLIENT LIST.
fn register(core: &'static ReplicatedCore, connection: &Connection) -> Arc<ClientInfo> {
    let (peer, local, fd) = connection.endpoints();
    let now_ms = clock::unix_ms();
    let info = Arc::new(ClientInfo::new(core.clients.next_id(), core.workers_max(), fd, peer, local, false, now_ms));
    info.set_flags(ClientFlags::SLOT_EXPORT | ClientFlags::AUTHENTICATED, true);
    core.clients.add(info.clone());
    info
}

/// Why the thread ends.
enum Ended {
    /// The job has ended.
    Ordered,
    /// The connection is lost, or the target cannot be served.
    Lost(Lost),
}

impl From<Lost> for Ended {
    fn from(lost: Lost) -> Ended {
        Ended::Lost(lost)
    }
}

/// What the next bytes from the target are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expects {
    Nothing,
    AuthReply,
    EstablishReply,
    Messages,
}

struct Export {
    core: &'static ReplicatedCore,
    migration: &'static SlotMigration,
    job: JobName,
    participant: Participant,
    orders: mpsc::Receiver<Order>,
    /// Orders that wait until the snapshot is sent.
    later: VecDeque<Order>,
    connection: Connection,
    info: Arc<ClientInfo>,
    expects: Expects,
    stream: Option<Stream>,
}

impl Export {
    fn run(&mut self) -> Result<(), Ended> {
        loop {
            while let Some(order) = self.next_order() {
                self.obey(order)?;
            }
            self.read()?;
            let mut feeds = false;
            if let Some(stream) = &mut self.stream {
                feeds = true;
                stream.feed(&mut self.connection)?;
            }
            self.connection.write()?;
            self.check_killed()?;
            if let Some(stream) = &mut self.stream {
                stream.report(&mut self.connection, &self.info)?;
            }
            let wait = if feeds { FEEDING_WAIT } else { IDLE_WAIT };
            let has_more = self.stream.as_ref().is_some_and(|stream| stream.has_more(&self.connection));
            self.connection.wait(if has_more { Duration::ZERO } else { wait });
        }
    }

    fn next_order(&mut self) -> Option<Order> {
        self.later.pop_front().or_else(|| self.orders.try_recv().ok())
    }

    fn check_killed(&self) -> Result<(), Lost> {
        match self.info.is_doomed() {
            true => Err(Lost("the client was killed".into())),
            false => Ok(()),
        }
    }

    fn obey(&mut self, order: Order) -> Result<(), Ended> {
        match order {
            Order::Disconnect => return Err(Ended::Ordered),
            Order::Authenticate => self.authenticate(),
            Order::Establish(request) => {
                self.expects = Expects::EstablishReply;
                self.connection.send(&request);
            }
            Order::StartSnapshot(slots) => self.send_snapshot(&slots)?,
            Order::Send(Message::FailoverGranted) => {
                // The target may own the slots from here on.
                if let Some(stream) = &mut self.stream {
                    stream.grant();
                }
                self.connection.send(&Message::FailoverGranted.encode());
            }
            Order::Send(message) => self.connection.send(&message.encode()),
            Order::PauseWrites(slots) => {
                if let Some(stream) = &mut self.stream {
                    stream.pause(&slots);
                }
            }
            Order::ForgetPause => {
                if let Some(stream) = &mut self.stream {
                    stream.forget_pause();
                }
            }
        }
        Ok(())
    }

    fn authenticate(&mut self) {
        let values = self.core.config.values();
        let Some(password) = values.read(PRIMARYAUTH) else { return self.authenticated(Ok(())) };
        let user = values.read(PRIMARYUSER);
        let words = [Some(&b"AUTH"[..]), user.as_deref(), Some(&password[..])];
        let words: Vec<&[u8]> = words.into_iter().flatten().collect();
        self.expects = Expects::AuthReply;
        self.connection.send(&kvick_cluster::migration::encode_request(&words));
    }

    fn authenticated(&mut self, result: Result<(), &str>) {
        self.expects = Expects::Nothing;
        self.migration.with(self.core, |jobs, context| jobs.authenticated(self.job, result, context));
    }

    /// Reads what has arrived from the target.
    fn read(&mut self) -> Result<(), Ended> {
        self.connection.read()?;
        loop {
            match self.expects {
                Expects::Nothing => return Ok(()),
                Expects::AuthReply => {
                    let Some(line) = self.connection.next_line()? else { return Ok(()) };
                    self.authenticated(if is_error(&line) { Err(&line) } else { Ok(()) });
                }
                Expects::EstablishReply => {
                    let Some(line) = self.connection.next_line()? else { return Ok(()) };
                    self.expects = Expects::Messages;
                    let result = if is_error(&line) { Err(&line[..]) } else { Ok(()) };
                    self.migration.with(self.core, |jobs, context| jobs.established(self.job, result, context));
                }
                Expects::Messages => {
                    let Some(words) = self.connection.next_request()? else { return Ok(()) };
                    self.receive(&words);
                }
            }
        }
    }

    fn receive(&mut self, words: &[Vec<u8>]) {
        let is = |index: usize, word: &[u8]| words.get(index).is_some_and(|it| it.eq_ignore_ascii_case(word));
        let message = words.get(2).and_then(|name| Message::from_name(name));
        if let (Some(Message::Capa), Some(stream)) = (message, &mut self.stream) {
            stream.probe_returned();
        }
        self.migration.with(self.core, |jobs: &mut Jobs, context| match message {
            Some(message) if is(0, b"CLUSTER") && is(1, b"SYNCSLOTS") => jobs.received(self.job, message, context),
            _ if is(0, b"CLUSTER") && is(1, b"SYNCSLOTS") => jobs.received_unknown(self.job, context),
            _ => jobs.command_failed(self.job, context),
        });
    }

    /// Begins a snapshot as soon as no other one has the partitions, and sends it.
    fn send_snapshot(&mut self, slots: &RangeList) -> Result<(), Ended> {
        let (mut snapshot, follower) = loop {
            let mut global = self.core.keyspace.lock_global();
            match slot_snapshot::begin(self.core, self.participant, &mut global, slots.slots()) {
                Ok(begun) => break begun,
                Err(busy) => {
                    drop(global);
                    logging::debug(format_args!("Slot migration {} waits: {busy:?}", self.job));
                    self.keep_alive(IDLE_WAIT)?;
                }
            }
        };
        self.migration.with(self.core, |jobs, context| jobs.snapshot_started(self.job, context));
        self.stream = Some(Stream::new(self.core, self.job, slots.clone(), follower));
        let shared = RefCell::new(&mut *self);
        let ended = RefCell::new(None);
        let note = |result: Result<(), Ended>| match result {
            Ok(()) => true,
            Err(end) => {
                ended.borrow_mut().get_or_insert(end);
                false
            }
        };
        let writer = SnapshotWriter { export: &shared, note: &note };
        let is_cancelled = || ended.borrow().is_some() || !note(shared.borrow_mut().keep_alive(Duration::ZERO));
        let written = snapshot.write(writer, is_cancelled);
        drop(snapshot);
        if let Some(ended) = ended.into_inner() {
            return Err(ended);
        }
        if let Err(error) = written {
            logging::warning(format_args!("Slot migration {}: {error}", self.job));
            self.migration
                .with(self.core, |jobs, context| jobs.export_failed(self.job, "Failed to perform snapshot", context));
            return Ok(());
        }
        self.connection.send(&Message::SnapshotEof.encode());
        if let Some(stream) = &mut self.stream {
            stream.begin();
        }
        self.migration.with(self.core, |jobs, context| jobs.snapshot_sent(self.job, context));
        Ok(())
    }

    /// Serves the connection for a moment while a snapshot waits or is being sent. Messages to the target have to wait
    /// until it is complete.
    fn keep_alive(&mut self, wait: Duration) -> Result<(), Ended> {
        while let Ok(order) = self.orders.try_recv() {
            match order {
                Order::Disconnect => return Err(Ended::Ordered),
                order => self.later.push_back(order),
            }
        }
        self.read()?;
        self.connection.write()?;
        self.check_killed()?;
        if let Some(stream) = &mut self.stream {
            stream.feed(&mut self.connection)?;
            stream.report(&mut self.connection, &self.info)?;
        }
        if !wait.is_zero() {
            self.connection.wait(wait);
        }
        Ok(())
    }
}

/// Sends a snapshot, as fast as the target takes it.
struct SnapshotWriter<'a, 'e> {
    export: &'a RefCell<&'e mut Export>,
    note: &'a dyn Fn(Result<(), Ended>) -> bool,
}

impl Write for SnapshotWriter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut export = self.export.borrow_mut();
        while export.connection.unsent() > UNSENT_MAX {
            if !(self.note)(export.keep_alive(FEEDING_WAIT)) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
        }
        export.connection.send(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_error(line: &str) -> bool {
    Reply::parse(line).is_error()
}

impl Drop for Export {
    fn drop(&mut self) {
        self.info.doomed.store(true, Ordering::SeqCst);
    }
}
