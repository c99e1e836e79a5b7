//! What a session command works with: the connection it came from, the server, and the keyspace under the locks that
//! the command's rule asked for.

use crate::feed::Feed;
use crate::queued::{Transaction, Watching};
use crate::services::Services;
use kvick_acl::identity::Identity;
use kvick_commands::context::{Error, Settings};
use kvick_core::Core;
use kvick_core::clients::{ClientFlags, ClientInfo};
use kvick_core::commandlog::{Executed, OwnedArgument};
use kvick_core::executor::Executor;
use kvick_core::pubsub::subscriptions::Subscriptions;
use kvick_core::pubsub::{Kind, PubSub};
use kvick_core::stats::WorkerStats;
use kvick_core::tracking::{Mode as TrackingMode, OwnTracking};
use kvick_replication::replicas::Replica;
use kvick_resp::{Args, Reply, Version};
use kvick_scripting::debugging::Mode;
use kvick_store::{Access, Db, Effects, Env, Locked, Waiter, WhenExpired};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A session command. As with data commands, on an error it must have written no reply.
pub type SessionHandler = fn(&mut Session<'_>, Args<'_>) -> Result<(), Error>;

/// Everything a session command works with.
pub struct Session<'a> {
    /// The server.
    pub server: &'static Services,
    /// The connection.
    pub client: &'a mut Client,
    /// Where the reply goes.
    pub reply: Reply<'a>,
    /// The locks.
    pub locked: &'a mut Locked,
    /// What the command did to the keyspace.
    pub effects: &'a mut Effects,
    /// Present Unix time in milliseconds.
    pub now_ms: i64,
    /// How access is recorded.
    pub access: &'a Access,
    /// What becomes of keys whose time has come.
    pub when_expired: WhenExpired,
    /// Settings that commands go by.
    pub settings: &'a Settings,
    /// Whether it is part of a transaction that is being executed, or of a script.
    pub in_transaction: bool,
    /// Unix time in microseconds as of which a script calls it, if one does.
    pub script_us: Option<i64>,
    /// Who executes it.
    pub executor: Executor,
    /// The worker's statistics.
    pub stats: &'a WorkerStats,
    /// Set by a command that will be answered later, and has written no reply: what its client waits for.
    pub waits: &'a mut Option<Arc<Waiter>>,
}

impl Session<'_> {
    /// A database under the command's locks.
    pub fn db(&mut self, number: usize) -> Db<'_> {
        let env = Env {
            now_ms: self.now_ms,
            access: self.access,
            touch: self.client.touches(),
            lazy_expire: self.settings.lazy_expire,
            lazy_overwrite: self.settings.lazy_server_del,
            when_expired: self.when_expired,
            counters: &self.stats.keyspace,
            effects: self.effects,
        };
        Db::new(self.locked, number, env)
    }
}

/// The state of a connection that commands see and change. Its worker alone has it.
pub struct Client {
    /// What others may see.
    pub info: Arc<ClientInfo>,
    /// Selected database.
    pub db: usize,
    /// Protocol of replies.
    pub version: Version,
    /// Who it is.
    pub identity: Identity,
    /// CLIENT REPLY.
    pub reply_mode: ReplyMode,
    /// What becomes of the connection after the present command.
    pub fate: Fate,
    /// What it is subscribed to, if it is to anything.
    pub subscriptions: Option<Box<Subscriptions>>,
    /// Set by a command that is answered by pushes instead of a reply.
    pub answered_by_pushes: bool,
    /// The place in the command table of the command that came last; `u32::MAX` before the first.
    pub last_command: u32,
    /// Commands executed.
    pub commands: u64,
    /// The transaction that has begun, if any.
    pub transaction: Option<Box<Transaction>>,
    /// Whether RESET was executed just now: what it ends is left to the engine, as far as it needs locks.
    pub is_reset: bool,
    /// The keys that it watches.
    pub watching: Option<Box<Watching>>,
    /// CLIENT TRACKING, while it is on.
    pub tracking: Option<Box<OwnTracking>>,
    /// Arguments of the present command that no log may show, as bits.
    pub redacted: u32,
    /// What it said of itself as a replica, if it did.
    pub replica: Option<Arc<Replica>>,
    /// What it is sent as a replica.
    pub feed: Option<Box<Feed>>,
    /// Where the write log ended when it last wrote, at the latest.
    pub write_offset: u64,
    /// SCRIPT DEBUG, while it is on.
    pub debugging: Option<Mode>,
}

/// CLIENT REPLY.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyMode {
    /// Replies are sent.
    On,
    /// None is.
    Off,
    /// The present command's is not; set when it began with `SkipNext`.
    Skip,
    /// The next command's will not be.
    SkipNext,
}

/// What becomes of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// It goes on.
    Open,
    /// It is closed when its replies are written.
    CloseAfterReply,
    /// It is closed at once.
    Close,
}

impl Client {
    /// A new connection's state.
    pub fn new(info: Arc<ClientInfo>, identity: Identity) -> Self {
        info.set_flags(ClientFlags::AUTHENTICATED, identity.authenticated);
        info.names.lock().user = identity.user.name.clone();
        Client::stand_in(info, identity)
    }

    /// What stands in a connection's place while its client is elsewhere.
    pub fn stand_in(info: Arc<ClientInfo>, identity: Identity) -> Self {
        Client {
            info,
            identity,
            db: 0,
            version: Version::Resp2,
            reply_mode: ReplyMode::On,
            fate: Fate::Open,
            subscriptions: None,
            answered_by_pushes: false,
            last_command: u32::MAX,
            commands: 0,
            transaction: None,
            is_reset: false,
            watching: None,
            tracking: None,
            redacted: 0,
            replica: None,
            feed: None,
            write_offset: 0,
            debugging: None,
        }
    }

    /// Has the logs show argument `index` of the present command as "(redacted)". They show no argument beyond the
    /// thirty-second in any case.
    pub fn redact(&mut self, index: usize) {
        if let Some(bit) = u32::try_from(index).ok().and_then(|index| 1u32.checked_shl(index)) {
            self.redacted |= bit;
        }
    }

    /// The state of a connection that is none, for benches and tests of what runs commands.
    pub fn detached() -> Self {
        let address = |port: u16| format!("127.0.0.1:{port}");
        Client::new(Arc::new(ClientInfo::new(1, 0, -1, address(1), address(2), true, 0)), Identity::superuser())
    }

    /// Shows others what has changed since the last time.
    pub fn publish(&self) {
        self.info.command.store(self.last_command, Ordering::Relaxed);
        self.info.commands.store(self.commands, Ordering::Relaxed);
    }

    /// Selects a database, which must exist.
    pub fn select(&mut self, db: usize) {
        self.db = db;
        self.info.db.store(db, Ordering::Relaxed);
    }

    /// Changes the protocol of replies from the next one on.
    pub fn set_version(&mut self, version: Version) {
        self.version = version;
        let number = if version == Version::Resp3 { 3 } else { 2 };
        self.info.protocol.store(number, Ordering::Relaxed);
    }

    /// Whether all that it may do is to listen: it is subscribed to something, and its protocol has no pushes.
    #[inline]
    pub fn only_listens(&self) -> bool {
        self.subscriptions.is_some() & (self.version == Version::Resp2)
    }

    /// Takes note of what it is subscribed to, and shows it to others.
    pub fn set_subscriptions(&mut self, subscriptions: Box<Subscriptions>) {
        for kind in [Kind::Channel, Kind::Pattern, Kind::Shard] {
            self.info.subscriptions[kind as usize].store(subscriptions.count(kind), Ordering::Relaxed);
        }
        self.info.subscription_memory.store(subscriptions.memory(), Ordering::Relaxed);
        self.info.set_flags(ClientFlags::PUBSUB, !subscriptions.is_empty());
        self.subscriptions = (!subscriptions.is_empty()).then_some(subscriptions);
    }

    /// Ends all its subscriptions.
    pub fn unsubscribe_all(&mut self, pubsub: &PubSub) {
        if let Some(mut subscriptions) = self.subscriptions.take() {
            pubsub.unsubscribe_all(self.place(), &mut subscriptions);
            self.set_subscriptions(subscriptions);
        }
    }

    /// Begins to tell it what changes: see [`Tracking::start`](kvick_core::tracking::Tracking::start).
    pub fn start_tracking(&mut self, core: &Core, mode: &TrackingMode, prefixes: &[&[u8]]) {
        core.tracking.start(core, &self.info, &mut self.tracking, mode, prefixes);
    }

    /// Ends that.
    pub fn stop_tracking(&mut self, core: &Core) {
        core.tracking.stop(core, &self.info, &mut self.tracking);
    }

    /// A command that it sent just now, for the logs.
    #[inline]
    pub fn executed<'a>(&'a self, args: Args<'a>, owned_arg: Option<&'a OwnedArgument>) -> Executed<'a> {
        Executed { args, owned_arg, client: &self.info, redacted: self.redacted }
    }

    /// Whether a primary speaks through it.
    #[inline]
    pub fn is_primary(&self) -> bool {
        self.info.flags().contains(ClientFlags::PRIMARY)
    }

    /// Whether it is shown every command.
    #[inline]
    pub fn is_monitor(&self) -> bool {
        self.info.flags().contains(ClientFlags::MONITOR)
    }

    /// Has it shown every command from now on.
    pub fn begin_monitor(&self, server: &Services) {
        self.info.set_flags(ClientFlags::MONITOR, true);
        server.pubsub.begin_monitor(self.place(), &server.admission);
    }

    /// Has it shown none any more, if it was.
    pub fn end_monitor(&self, server: &Services) {
        if self.is_monitor() {
            self.info.set_flags(ClientFlags::MONITOR, false);
            server.pubsub.end_monitor(self.place(), &server.admission);
        }
    }

    /// Its worker, and where that keeps it.
    fn place(&self) -> (usize, usize) {
        (self.info.worker, self.info.token.load(Ordering::Relaxed))
    }

    /// Whether it comes from this machine.
    pub fn is_local(&self) -> bool {
        self.info.loopback
    }

    /// Whether looking at a key touches its access clock.
    #[inline]
    pub fn touches(&self) -> bool {
        self.info.touches()
    }
}
