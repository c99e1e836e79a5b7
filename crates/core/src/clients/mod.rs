//! All connected clients: the part of a connection that other threads may read, and the index by client id.
//!
//! A connection belongs to one worker. The fields that CLIENT LIST and similar commands show are in a [`ClientInfo`],
//! which only the owner writes, with plain stores, and any thread may read. The owner updates the fields that change
//! with every command (the counters, the last command) after it has executed all that it read from the connection
//! (`Client::publish` in the server crate). To act on a connection of another worker, send that worker a message.

use crate::pubsub::Kind;
use crate::routing::Viewer;
pub mod line;

use kvick_store::{Counter, Waiter, Watcher};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// Replaces user data in the log if `hide-user-data-from-log` is set.
pub const REDACTED: &str = "*redacted*";

/// The part of a connection that any thread may read. The fields that every request reads or changes are on the first
/// cache line.
#[repr(C, align(64))]
pub struct ClientInfo {
    /// Bits of [`ClientFlags`].
    pub flags: AtomicU32,
    /// Number of its last command in the command table; `u32::MAX` before the first.
    pub command: AtomicU32,
    /// 2 or 3.
    pub protocol: AtomicU8,
    /// Set by any thread that wants the connection closed.
    pub doomed: AtomicBool,
    /// DEBUG PROTECT-CLIENT: the connection stays open and listed even if it is doomed.
    pub protected: AtomicBool,
    /// True when the connection comes from this machine.
    pub loopback: bool,
    /// Unix time in ms of its last request.
    pub active_ms: AtomicI64,
    /// Bytes received.
    pub bytes_in: Counter,
    /// Bytes sent.
    pub bytes_out: Counter,
    /// Commands executed.
    pub commands: AtomicU64,
    /// Bytes of unexecuted input.
    pub input: AtomicUsize,
    /// Bytes of output waiting.
    pub output: AtomicUsize,
    /// Unique, ascending.
    pub id: u64,
    /// Number of the worker that owns the connection, which may change.
    pub worker: AtomicUsize,
    /// The owner's key of this connection; has no meaning to other threads.
    pub token: AtomicUsize,
    /// File descriptor.
    pub fd: i32,
    /// The client's address.
    pub peer: String,
    /// The server's address that it connected to.
    pub local: String,
    /// Unix time in ms at which it connected.
    pub connected_ms: i64,
    /// Selected database.
    pub db: AtomicUsize,
    /// How many channels, patterns and shard channels it is subscribed to: see [`Kind`].
    pub subscriptions: [AtomicUsize; Kind::COUNT],
    /// Bytes allocated for input.
    pub input_memory: AtomicUsize,
    /// Blocks of output waiting.
    pub output_blocks: AtomicUsize,
    /// Bytes allocated for output.
    pub output_memory: AtomicUsize,
    /// Commands queued in its transaction; -1 if it has never used transactions.
    pub queued: AtomicI64,
    /// Keys that it watches (WATCH).
    pub watched: AtomicUsize,
    /// The client that receives its invalidations, or 0.
    pub redirect: AtomicU64,
    /// Key prefixes for which it receives invalidations; the names are shared with the other clients.
    pub prefixes: AtomicUsize,
    /// Bytes of its request while it is blocked; otherwise of the arguments of the present command, if they are many.
    pub argument_memory: AtomicUsize,
    /// Bytes of the transaction queue and the watched keys.
    pub transaction_memory: AtomicUsize,
    /// Bytes of the subscriptions.
    pub subscription_memory: AtomicUsize,
    /// Bytes accounted for by client eviction: see [`crate::eviction::clients`].
    pub accounted: AtomicUsize,
    /// Bytes that the client used when it was chosen for eviction, until it is closed.
    pub closing_bytes: AtomicUsize,
    /// Name, library and user.
    pub names: Mutex<Names>,
    /// The blocked request, if the client is blocked.
    pub waiter: Mutex<Option<Arc<Waiter>>>,
    /// Tracks whether watched keys have changed, while there are any.
    pub watcher: Mutex<Option<Arc<Watcher>>>,
}

/// Bytes of a worker's own record of a connection, without buffers.
static CONNECTION_MEMORY: AtomicUsize = AtomicUsize::new(0);

/// Sets how many bytes a worker's own record of a connection takes, without buffers.
pub fn set_connection_memory(bytes: usize) {
    CONNECTION_MEMORY.store(bytes, Ordering::Relaxed);
}

/// The name of the default user.
pub const DEFAULT_USER: &[u8] = b"default";

/// The name of the default user, shared.
pub fn default_user_name() -> Arc<[u8]> {
    static NAME: LazyLock<Arc<[u8]>> = LazyLock::new(|| DEFAULT_USER.into());
    NAME.clone()
}

/// The names of a client: set by CLIENT SETNAME and CLIENT SETINFO, and its user.
#[derive(Clone)]
pub struct Names {
    /// CLIENT SETNAME.
    pub name: Box<[u8]>,
    /// CLIENT SETINFO LIB-NAME.
    pub lib_name: Box<[u8]>,
    /// CLIENT SETINFO LIB-VER.
    pub lib_ver: Box<[u8]>,
    /// The user that the client is authenticated as.
    pub user: Arc<[u8]>,
}

impl Default for Names {
    fn default() -> Self {
        let none = Box::<[u8]>::default;
        Names { name: none(), lib_name: none(), lib_ver: none(), user: default_user_name() }
    }
}

bitflags::bitflags! {
    /// State of a connection that other threads may read.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ClientFlags: u32 {
        /// Waiting for something (a blocking command, or the end of CLIENT PAUSE).
        const BLOCKED = 1 << 0;
        /// To be closed when its output is written.
        const CLOSE_AFTER_REPLY = 1 << 1;
        /// To be closed as soon as possible.
        const CLOSE_ASAP = 1 << 2;
        /// CLIENT NO-EVICT.
        const NO_EVICT = 1 << 3;
        /// CLIENT NO-TOUCH.
        const NO_TOUCH = 1 << 4;
        /// Connected through a Unix socket.
        const UNIX = 1 << 5;
        /// Held by CLIENT PAUSE.
        const PAUSED = 1 << 6;
        /// Has authenticated, or does not need to.
        const AUTHENTICATED = 1 << 7;
        /// CLIENT CAPA REDIRECT: follows redirections.
        const CAPA_REDIRECT = 1 << 8;
        /// CLIENT CAPA DIRECT: its requests are never forwarded, as those of a node that forwards itself.
        const CAPA_DIRECT = 1 << 29;
        /// CLIENT IMPORT-SOURCE: sees expired keys in import mode.
        const IMPORT_SOURCE = 1 << 9;
        /// In a transaction.
        const MULTI = 1 << 10;
        /// Subscribed to something.
        const PUBSUB = 1 << 11;
        /// READONLY: accepts reads from a replica.
        const READONLY = 1 << 12;
        /// Its requests come from a log, not from a connection; they were authorized and logged when they were first
        /// executed.
        const FROM_LOG = 1 << 15;
        /// A replica.
        const REPLICA = 1 << 16;
        /// The connection to the primary.
        const PRIMARY = 1 << 17;
        /// Connected by TLS.
        const TLS = 1 << 18;
        /// MONITOR: receives every command.
        const MONITOR = 1 << 13;
        /// A watched key has changed. Not stored, but computed on demand: see [`ClientInfo::shown_flags`].
        const DIRTY = 1 << 14;
        /// The source of a slot import: its commands are executed like a primary's.
        const SLOT_IMPORT = 1 << 27;
        /// Its requests are forwarded to the nodes that own their slots.
        const FORWARD = 1 << 19;
        /// The target of a slot export.
        const SLOT_EXPORT = 1 << 28;
        /// CLIENT TRACKING: receives invalidations of keys that it may have cached.
        const TRACKING = 1 << 20;
        /// CLIENT TRACKING BCAST: receives invalidations of all keys with certain prefixes.
        const BROADCAST = 1 << 21;
        /// CLIENT TRACKING OPTIN: caches only what it reads after CLIENT CACHING YES.
        const OPTIN = 1 << 22;
        /// CLIENT TRACKING OPTOUT: does not cache what it reads after CLIENT CACHING NO.
        const OPTOUT = 1 << 23;
        /// CLIENT TRACKING NOLOOP: receives no invalidations of its own changes.
        const NOLOOP = 1 << 24;
        /// CLIENT CACHING was given for the next command.
        const CACHING = 1 << 25;
        /// The client that should receive its invalidations is gone.
        const BROKEN_REDIRECT = 1 << 26;
        /// The options of CLIENT TRACKING.
        const TRACKING_MODE = Self::BROADCAST.bits() | Self::OPTIN.bits() | Self::OPTOUT.bits() | Self::NOLOOP.bits();
    }
}

/// The place of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the worker that owns the connection.
    pub worker: usize,
    /// The worker's key of the connection.
    pub token: usize,
}

impl ClientInfo {
    /// Number of the worker that owns its connection. Another worker may take it over at any time.
    #[inline]
    pub fn worker(&self) -> usize {
        self.worker.load(Ordering::Relaxed)
    }

    /// The place of its connection. Only the owner may use the token.
    pub fn place(&self) -> Place {
        Place { worker: self.worker(), token: self.token.load(Ordering::Relaxed) }
    }

    /// The info of a connection that was accepted at `now_ms`.
    pub fn new(id: u64, worker: usize, fd: i32, peer: String, local: String, loopback: bool, now_ms: i64) -> Self {
        ClientInfo {
            id,
            worker: AtomicUsize::new(worker),
            token: AtomicUsize::new(usize::MAX),
            fd,
            peer,
            local,
            loopback,
            connected_ms: now_ms,
            active_ms: AtomicI64::new(now_ms),
            db: AtomicUsize::new(0),
            command: AtomicU32::new(u32::MAX),
            protocol: AtomicU8::new(2),
            flags: AtomicU32::new(0),
            subscriptions: Default::default(),
            input: AtomicUsize::new(0),
            input_memory: AtomicUsize::new(0),
            output: AtomicUsize::new(0),
            output_blocks: AtomicUsize::new(0),
            output_memory: AtomicUsize::new(0),
            queued: AtomicI64::new(-1),
            watched: AtomicUsize::new(0),
            redirect: AtomicU64::new(0),
            prefixes: AtomicUsize::new(0),
            argument_memory: AtomicUsize::new(0),
            transaction_memory: AtomicUsize::new(0),
            subscription_memory: AtomicUsize::new(0),
            accounted: AtomicUsize::new(0),
            closing_bytes: AtomicUsize::new(0),
            bytes_in: Counter::default(),
            bytes_out: Counter::default(),
            commands: AtomicU64::new(0),
            doomed: AtomicBool::new(false),
            protected: AtomicBool::new(false),
            names: Mutex::default(),
            waiter: Mutex::default(),
            watcher: Mutex::default(),
        }
    }

    /// The flags.
    pub fn flags(&self) -> ClientFlags {
        ClientFlags::from_bits_truncate(self.flags.load(Ordering::Relaxed))
    }

    /// What the addresses in replies to it depend on.
    pub fn viewer(&self) -> Viewer {
        Viewer { tls: self.flags().contains(ClientFlags::TLS), ipv6: self.peer.starts_with('[') }
    }

    /// The flags, including [`DIRTY`](ClientFlags::DIRTY) if a watched key has changed.
    pub fn shown_flags(&self) -> ClientFlags {
        let mut flags = self.flags();
        flags.set(ClientFlags::DIRTY, self.watcher.lock().as_ref().is_some_and(|watcher| watcher.is_touched()));
        flags
    }

    /// Whether another thread has asked to close the connection; other threads treat it as gone.
    pub fn is_doomed(&self) -> bool {
        self.doomed.load(Ordering::SeqCst)
    }

    /// Whether CLIENT LIST and similar commands include it.
    fn is_shown(&self) -> bool {
        !self.is_doomed() || self.protected.load(Ordering::Relaxed)
    }

    /// Bytes of the arguments of its request that is blocked or being executed.
    pub fn arguments(&self) -> usize {
        self.argument_memory.load(Ordering::Relaxed)
    }

    /// Bytes of the connection, with its buffers, transaction and subscriptions.
    pub fn memory(&self) -> usize {
        let parts = [&self.input_memory, &self.output_memory, &self.transaction_memory, &self.subscription_memory];

        let variable: usize = parts.iter().map(|part| part.load(Ordering::Relaxed)).sum();
        CONNECTION_MEMORY.load(Ordering::Relaxed)
            + size_of::<ClientInfo>()
            + self.peer.len()
            + self.local.len()
            + self.arguments()
            + self.prefixes.load(Ordering::Relaxed) * size_of::<Arc<[u8]>>()
            + variable
    }

    /// Whether its reads update the access time of keys.
    #[inline]
    pub fn touches(&self) -> bool {
        !self.flags().contains(ClientFlags::NO_TOUCH)
    }

    /// Whether its requests repeat what another server has already executed.
    #[inline]
    pub fn is_replicated(&self) -> bool {
        self.flags().intersects(ClientFlags::FROM_LOG | ClientFlags::SLOT_IMPORT)
    }

    /// Whether its requests come from a log.
    #[inline]
    pub fn is_from_log(&self) -> bool {
        self.flags().contains(ClientFlags::FROM_LOG)
    }

    /// Describes the client for the log: the first fields of CLIENT LIST, its user and its library. If `hide` is set,
    /// names are redacted.
    pub fn described(&self, hide: bool) -> String {
        let ClientInfo { id, peer, local, fd, .. } = self;
        let names = self.names.lock();
        let [name, user, lib_name, lib_ver] =
            [&names.name, &names.user[..], &names.lib_name, &names.lib_ver].map(|name| String::from_utf8_lossy(name));
        let (name, user) = if hide { (REDACTED, REDACTED) } else { (&*name, &*user) };
        format!(
            "id={id} addr={peer} laddr={local} fd={fd} name={name} user={user} lib-name={lib_name} lib-ver={lib_ver}"
        )
    }

    /// Sets or clears flags. Only the owner may call this.
    pub fn set_flags(&self, flags: ClientFlags, on: bool) {
        let mut now = self.flags();
        now.set(flags, on);
        self.flags.store(now.bits(), Ordering::Relaxed);
    }
}

/// The connected clients by id.
#[derive(Default)]
pub struct Clients {
    by_id: RwLock<BTreeMap<u64, Arc<ClientInfo>>>,
    count: AtomicUsize,
    last_id: AtomicU64,
}

impl Clients {
    /// The next id.
    pub fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Clients connected.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Adds a connection.
    pub fn add(&self, client: Arc<ClientInfo>) {
        self.by_id.write().insert(client.id, client);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a connection that has ended.
    pub fn remove(&self, id: u64) {
        if self.by_id.write().remove(&id).is_some() {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// One client.
    pub fn get(&self, id: u64) -> Option<Arc<ClientInfo>> {
        self.by_id.read().get(&id).cloned()
    }

    /// Calls `visit` for each client that [`all`](Self::all) returns, without a copy of the index. The index is locked
    /// for some hundred clients at a time, so that connections can come and go; `visit` must be short.
    pub fn visit(&self, mut visit: impl FnMut(&Arc<ClientInfo>)) {
        const VISITED_AT_ONCE: usize = 512;
        let mut after = 0;
        loop {
            let by_id = self.by_id.read();
            let mut visited = 0;
            for (id, client) in by_id.range(after + 1..).take(VISITED_AT_ONCE) {
                if client.is_shown() {
                    visit(client);
                }
                (after, visited) = (*id, visited + 1);
            }
            if visited < VISITED_AT_ONCE {
                return;
            }
        }
    }

    /// The first clients of [`all`](Self::all).
    pub fn first(&self, count: usize) -> Vec<Arc<ClientInfo>> {
        self.by_id.read().values().filter(|client| client.is_shown()).take(count).cloned().collect()
    }

    /// All clients, oldest first, except those that are about to be closed.
    pub fn all(&self) -> Vec<Arc<ClientInfo>> {
        self.by_id.read().values().filter(|client| client.is_shown()).cloned().collect()
    }
}
