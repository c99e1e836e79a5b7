//! A test bench that runs commands in-process, like a single worker, for the tests of the families.

use crate::context::{Context, Handler, Receiver, Settings};
use crate::spec::{Command, LockRule};
use kvick_resp::{OwnedArgs, Reply, Version};
use kvick_store::hash::KeyHasher;
use kvick_store::log::{Audience, Follower};
use kvick_store::slot::SLOTS;
use kvick_store::{Access, Counters, Db, Effects, Env, EventClass, Keyspace};

/// A keyspace with one client.
pub struct Bench {
    /// The data.
    pub keyspace: &'static Keyspace,
    /// The database that commands run in.
    pub database: usize,
    /// Whether reads update the access time of keys.
    pub touch: bool,
    /// Whether commands may block. A blocked command then replies with a line that describes the block.
    pub may_block: bool,
    /// Whether commands come from a log.
    pub from_log: bool,
    /// The settings.
    pub settings: Settings,
    /// The current time, which tests advance.
    pub now_ms: i64,
    /// The protocol version of replies.
    pub version: Version,
    /// The classes of events to record: all except `keymiss`, unless a test needs it.
    pub event_mask: EventClass,
    /// Hits and misses.
    pub counters: Counters,
    /// The message of the last command for the log.
    pub log_message: Option<String>,
    commands: Vec<&'static [Command<Handler>]>,
    effects: Effects,
    follower: Follower,
}

impl Bench {
    /// A bench with these families.
    pub fn new(families: &[&'static [Command<Handler>]]) -> Self {
        Bench::over(Keyspace::leak(16, 4, KeyHasher::with_secret(1, 2)), families)
    }

    /// A bench in cluster mode.
    pub fn in_cluster(families: &[&'static [Command<Handler>]]) -> Self {
        Bench::over(Keyspace::leak(2, SLOTS.into(), KeyHasher::with_secret(1, 2).by_slot()), families)
    }

    fn over(keyspace: &'static Keyspace, families: &[&'static [Command<Handler>]]) -> Self {
        let follower = keyspace.log.follow(Audience::All);
        Bench {
            keyspace,
            database: 0,
            touch: true,
            may_block: true,
            from_log: false,
            settings: Settings::default(),
            now_ms: 1_700_000_000_000,
            version: Version::Resp2,
            event_mask: EventClass::all() - EventClass::KEY_MISS,
            counters: Counters::default(),
            log_message: None,
            commands: families.to_vec(),
            effects: Effects::default(),
            follower,
        }
    }

    /// Runs a command given as words; returns the reply as text, with CR LF shown as spaces.
    pub fn run(&mut self, line: &str) -> String {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let reply = self.run_words(&words);
        String::from_utf8_lossy(&reply).trim_end().replace("\r\n", " ")
    }

    /// Runs a command; returns the reply.
    pub fn run_words(&mut self, words: &[&[u8]]) -> Vec<u8> {
        let owned = OwnedArgs::new(words);
        let args = owned.args();
        let name = String::from_utf8_lossy(words[0]).to_lowercase();
        let find = |list: &'static [Command<Handler>], name: &str| list.iter().find(|c| c.spec.name == name);
        let mut command = self.commands.iter().find_map(|list| find(list, &name)).expect("known command");
        if !command.subcommands.is_empty() && words.len() > 1 {
            let sub = String::from_utf8_lossy(words[1]).to_lowercase();
            command = find(command.subcommands, &sub).expect("known subcommand");
        }
        assert!(command.spec.accepts(args.len()), "wrong number of arguments");
        let global = match command.spec.lock {
            LockRule::Global => true,
            LockRule::GlobalIf(decide) => decide(args),
            LockRule::Keys => false,
        };
        let mut locked = if global {
            self.keyspace.lock_global()
        } else if command.spec.keys.is_empty() {
            self.keyspace.lock_nothing()
        } else {
            let keys = command.spec.key_positions(args).unwrap_or_default();
            let address = |index: usize| self.keyspace.address(self.database, self.keyspace.key(&args[index]));
            self.keyspace.lock_all(keys.iter().map(|key| address(key.index)).collect())
        };
        let mut access = Access::default();
        access.lfu = self.settings.lfu;
        access.set_now(self.now_ms);
        let mut out = Vec::new();
        self.effects.begin(self.keyspace.log.has_readers(), self.event_mask, self.database);
        let env = Env::command(self.now_ms, &access, &self.counters, &mut self.effects)
            .touch(self.touch)
            .lazy_expire(self.settings.lazy_expire)
            .lazy_overwrite(self.settings.lazy_server_del);
        let mut context = Context {
            reads_every_key: true,
            db: Db::new(&mut locked, self.database, env),
            reply: Reply::new(&mut out, self.version),
            settings: &self.settings,
            receiver: Receiver::Client,
            may_block: self.may_block,
            in_script: false,
            from_log: self.from_log,
            block: None,
            log_message: None,
        };
        let result = command.handler.expect("not a container")(&mut context, args);
        if let Some(block) = context.block {
            assert_eq!(context.reply.position(), 0, "a reply from a command that waits");
            let (keys, until) = (block.keys, block.until_ms);
            context.reply.simple(format!("waits for {:?} at {keys:?} until {until:?}", block.kind).as_bytes());
        }
        self.log_message = context.log_message.take();
        if let Err(error) = result {
            assert_eq!(context.reply.position(), 0, "an error after a reply had begun");
            context.reply.error(error.bytes());
        }
        self.effects.commit(&self.keyspace.log, args);
        out
    }

    /// The commands propagated since the last call, as lines of words, without SELECT.
    pub fn propagated(&mut self) -> Vec<String> {
        let mut lines = self.propagated_with_databases();
        lines.retain(|line| !line.starts_with("SELECT "));
        lines
    }

    /// Like [`propagated`](Self::propagated), with SELECT.
    pub fn propagated_with_databases(&mut self) -> Vec<String> {
        let bytes = self.follower.read().expect("not cut off");
        let (mut parser, mut pos, mut lines) = (kvick_resp::Parser::new(), 0, Vec::new());
        let (mut spans, mut big) = (Vec::new(), Vec::new());
        let limits = kvick_resp::Limits::default();
        while parser.parse(&bytes, &mut pos, &mut spans, &mut big, &limits) == kvick_resp::Parsed::Request {
            let args = kvick_resp::Args::new(&bytes, &spans, &big);
            let words: Vec<_> = args.iter().map(String::from_utf8_lossy).collect();
            lines.push(words.join(" "));
            spans.clear();
        }
        lines
    }

    /// The names of the events of the last command.
    pub fn events(&self) -> Vec<&'static str> {
        self.effects.events().iter().map(|event| event.name).collect()
    }

    /// The databases of the events of the last command.
    pub fn event_databases(&self) -> Vec<usize> {
        self.effects.events().iter().map(|event| event.database).collect()
    }
}
